"""Fleets that differ in nothing but their size: so many cells, all alike in how much they do."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystation.simulate.fleet import Fleet

NODES_A_CELL = 17  # a hub and its leaves
PARTICIPANTS_A_NODE = 1_000
MESSAGES_A_PARTICIPANT = 10  # in the hour that a simulated journal covers


def fleet_of(cells: int) -> Fleet:
    nodes = cells * NODES_A_CELL
    participants = nodes * PARTICIPANTS_A_NODE
    return Fleet(nodes, participants, participants * MESSAGES_A_PARTICIPANT, seed=4)


def bytes_of(directory: Path) -> int:
    """What the files of a table take."""
    return sum(path.stat().st_size for path in directory.rglob("*.parquet"))


def files_of(journal: Path) -> int:
    """How many files a journal has."""
    return sum(1 for _ in journal.rglob("*.parquet"))


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="waystation-scale-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
