"""Sealed files as a reader sees them: footers, rows, and which file covers which.

A compacted file takes the name of the first file it was made of, and the others are removed after
that. Whoever looks in between, or after a crash in between, finds rows twice; so each file says in
its footer how far it goes, and a file that begins before the end of the one before it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from waystation.journal.layout import SEALED, Stem, files_in
from waystation.journal.tail import UNREADABLE

LAST_SEQ: Final = b"waystation.last_seq"
"""The key in the footer of a file under which its last seq stands."""


class Footer(Struct, frozen=True):
    """What the footer of a sealed file tells."""

    stem: Stem
    path: Path
    rows: int
    last: int  # the last seq
    size: int  # in bytes
    schema: pa.Schema
    ours: bool = True  # written by this package, which numbers rows without gaps


def read_footer(path: Path) -> Footer:
    """Read the footer of a sealed file; raises one of UNREADABLE."""
    stem = Stem.parse(path.name)
    if stem is None:
        raise ValueError(f"{path.name} is no name of a sealed file")
    size = path.stat().st_size
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        told = (metadata.metadata or {}).get(LAST_SEQ)
        last = _last_seq(file) if told is None else int(told)
        ours = told is not None
        return Footer(stem, path, metadata.num_rows, last, size, file.schema_arrow, ours)


def _last_seq(file: Any) -> int:
    """Files of other make do not tell; then the rows do."""
    return int(max(file.read(["seq"]).column("seq").to_pylist(), default=-1))


def footers_in(directory: Path, problems: list[tuple[Path, str]]) -> list[Footer]:
    """The footers of all sealed files that can be read, covered ones included, in order."""
    footers = []
    for stem in files_in(directory, SEALED):
        path = directory / stem.sealed
        try:
            footers.append(read_footer(path))
        except FileNotFoundError:
            continue  # compacted or removed meanwhile
        except UNREADABLE as error:
            problems.append((path, said(error)))
    return footers


def split_covered(footers: list[Footer]) -> tuple[list[Footer], list[Footer]]:
    """Those that count, and those that a file before them covers."""
    counting: list[Footer] = []
    covered: list[Footer] = []
    for footer in footers:
        before = counting[-1] if counting else None
        same = before is not None and before.stem.incarnation == footer.stem.incarnation
        if same and before is not None and footer.stem.first <= before.last:
            covered.append(footer)
        else:
            counting.append(footer)
    return counting, covered


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a sealed file, each batch validated; raises one of UNREADABLE."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(batch_size=16_384, use_threads=False):
            batch.validate(full=True)
            yield batch


def said(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
