"""What former incarnations of a node left behind is sealed, and what is missing told (OB-5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc

from waystation.journal.layout import SEALING, TAIL, Stem, files_in, table_directory
from waystation.journal.retention import removed_rows
from waystation.journal.schema import NODES, SCHEMAS
from waystation.journal.seal import seal_tail
from waystation.journal.sealed import footers_in, read_batches, said, split_covered
from waystation.journal.tail import UNREADABLE


def recover(
    journal: Path, node: str, before: int, *, fsync: bool, report: Callable[[int, str], None]
) -> None:
    """Seal the tails of the incarnations before this one.

    `report` hears how many records are missing of an incarnation, and why; 0 where only bytes can
    be counted. The caller must hold the node's lock. Raises OSError when the disk does not let it;
    then what was done stays done, and it can be called again.
    """
    torn: dict[int, list[str]] = {}
    for table in SCHEMAS:
        directory = table_directory(journal, table, node)
        for stem in files_in(directory, SEALING):
            if stem.incarnation < before:
                (directory / stem.temporary(SEALING)).unlink(missing_ok=True)
        for stem in files_in(directory, TAIL):
            if stem.incarnation >= before:
                continue
            cuts = torn.setdefault(stem.incarnation, [])
            problem = _seal(directory, table, stem, fsync=fsync)
            if problem:
                cuts.append(problem)
    for incarnation, cuts in sorted(torn.items()):
        missing = _missing(journal, node, incarnation)
        if missing:
            cuts.append(f"{missing} records of its last moments missing")
        if cuts:
            report(missing, f"incarnation {incarnation}: {'; '.join(cuts)}")


def _seal(directory: Path, table: str, stem: Stem, *, fsync: bool) -> str:
    """Seal a tail; says what is wrong with it, if anything."""
    where = f"{table}/{stem.tail.removeprefix('.')}"
    try:
        content = seal_tail(directory, table, stem, fsync=fsync)
    except OSError:
        raise
    except UNREADABLE as error:  # not of our making: it stays where it is, and the rest goes on
        return f"{where} cannot be sealed: {said(error)}"
    if content.torn:
        return f"{content.torn} bytes torn off {where} at byte {content.whole}"
    return ""


def _missing(journal: Path, node: str, incarnation: int) -> int:
    """How many numbers below the highest seq of an incarnation no row has; 0 if nobody can tell."""
    problems: list[tuple[Path, str]] = []
    rows, highest = 0, -1
    for table in SCHEMAS:
        directory = table_directory(journal, table, node)
        footers = [
            footer
            for footer in footers_in(directory, problems)
            if footer.stem.incarnation == incarnation
        ]
        counting, _ = split_covered(footers)
        rows += sum(footer.rows for footer in counting)
        rows += removed_rows(directory, incarnation)
        highest = max(highest, *(footer.last for footer in counting), -1)
        if table == NODES:
            rows += sum(_told(footer.path) for footer in counting)
    return 0 if problems else max(0, highest + 1 - rows)


def _told(path: Path) -> int:
    """How many losses the rows of a file of `nodes` have told already."""
    try:
        return sum(pc.sum(batch.column("lost")).as_py() or 0 for batch in read_batches(path))
    except UNREADABLE:
        return 0
