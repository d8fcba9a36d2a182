"""Housekeeping of sealed files, beside running writers and readers: compaction and retention.

Compaction: neighbours of one incarnation are merged under the name of the first of them, which is
replaced by an atomic rename; then the others are removed. So no row is ever missing. For the moment
between, and after a crash in that moment until the next compaction, rows stand in two files: the
readers of this package leave the second one out (read.py); a Spark job that lists files just then
sees them twice, and should be run when nobody compacts.

Retention: messages go first, the oldest first. The other tables of an incarnation say what its
routing table and subscriptions were, and half of them is worth little: they go all together, when
that incarnation has ended and all of its messages are old enough or gone; those of the latest
incarnation stay. What was removed is counted in `_removed`, so that a check can tell it from what
was lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from waystation.errors import LocalError
from waystation.journal.files import FileLock
from waystation.journal.layout import (
    COMPACTING,
    REMOVED,
    TAIL,
    Stem,
    all_nodes,
    files_in,
    packing_lock_path,
    table_directory,
)
from waystation.journal.read import (
    UNREADABLE,
    Footer,
    Report,
    footers_in,
    read_batches,
    said,
    split_covered,
)
from waystation.journal.schema import MESSAGES, SCHEMAS
from waystation.journal.seal import write_sealed

TARGET_BYTES: Final = 128 * 2**20
"""What a compacted file should not exceed: what Spark reads in one task."""


class Compacted(Struct, frozen=True):
    """What a compaction did: numbers of files before and after, and of rows moved."""

    before: int = 0
    after: int = 0
    rows: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            self.before + other.before, self.after + other.after, self.rows + other.rows
        )


def compact(
    journal: Path, report: Report, *, node: str | None = None, target_bytes: int = TARGET_BYTES
) -> Compacted:
    """Compact the sealed files of a journal, of one node or of all.

    Raises LocalError when somebody else does, and OSError when the disk does not let it; what was
    done stays done. A file that cannot be read is reported and left as it is.
    """
    lock = FileLock(packing_lock_path(journal), "compacts or removes files")
    try:
        total = Compacted()
        for name in all_nodes(journal) if node is None else [node]:
            for table in SCHEMAS:
                directory = table_directory(journal, table, name)
                total += _compact_directory(directory, table, report, target_bytes)
        return total
    finally:
        lock.release()


def _compact_directory(directory: Path, table: str, report: Report, target: int) -> Compacted:
    for stem in files_in(directory, COMPACTING):  # of a compaction that did not end well
        (directory / stem.temporary(COMPACTING)).unlink(missing_ok=True)
    problems: list[tuple[Path, str]] = []
    footers = footers_in(directory, problems)
    for path, problem in problems:
        report(path, problem)
    counting, covered = split_covered(footers)
    _remove(covered)
    done = Compacted(len(footers), len(counting))
    # What is not sealed yet, or cannot be read, must not be covered by its neighbours.
    barriers = [
        *files_in(directory, TAIL),
        *filter(None, (Stem.parse(p.name) for p, _ in problems)),
    ]
    for group in _groups(counting, target, barriers):
        try:
            rows = _merge(directory, table, group)
        except FileNotFoundError:
            continue  # somebody removed one; the next compaction sees what is left
        except UNREADABLE as error:
            report(group[0].path, f"cannot be compacted: {said(error)}")
            continue
        done += Compacted(0, 1 - len(group), rows)
    return done


def _groups(footers: list[Footer], target: int, barriers: list[Stem]) -> Iterator[list[Footer]]:
    """Neighbours of one incarnation that together stay within the target, two or more."""
    group: list[Footer] = []
    size = 0
    for footer in footers:
        stem = footer.stem
        fits = size + footer.size <= target
        if group and not (fits and _are_neighbours(group[-1].stem, stem, barriers)):
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(footer)
        size += footer.size
    if len(group) > 1:
        yield group


def _are_neighbours(one: Stem, next: Stem, barriers: list[Stem]) -> bool:
    between = any(one < barrier < next for barrier in barriers)
    return one.incarnation == next.incarnation and not between


def _merge(directory: Path, table: str, group: list[Footer]) -> int:
    first, rest = group[0], group[1:]
    modified = max(footer.path.stat().st_mtime for footer in group)
    rows = sum(footer.rows for footer in group)
    path = write_sealed(
        directory, table, first.stem, _rows_of(group), fsync=True, suffix=COMPACTING
    )
    _remove(rest)
    os.utime(path, (modified, modified))  # its rows are as old as they were
    return rows


def _rows_of(group: list[Footer]) -> Iterator[pa.RecordBatch]:
    for footer in group:
        rows = 0
        for batch in read_batches(footer.path):
            rows += batch.num_rows
            yield batch
        if rows != footer.rows:
            raise ValueError(f"{footer.path.name} has {rows} rows instead of {footer.rows}")


def _remove(footers: list[Footer]) -> None:
    for footer in footers:
        footer.path.unlink(missing_ok=True)


class Keep(Struct, frozen=True):
    """How much of a node's journal to keep: seconds, bytes, either, both, or (None) all."""

    age: float | None = None
    bytes: int | None = None

    def everything(self) -> bool:
        """Whether there is nothing to remove ever."""
        return self.age is None and self.bytes is None


class _Candidate(Struct, frozen=True):
    """Files that go together."""

    footers: list[Footer]
    modified: float

    @property
    def size(self) -> int:
        return sum(footer.size for footer in self.footers)


def apply_retention(journal: Path, node: str, keep: Keep, now: float) -> int:
    """Remove what need not be kept of one node; `now` is in seconds since the epoch.

    Returns how many files went. Raises OSError when the disk does not let it. While somebody
    compacts, nothing is removed: a name may stand for other rows a moment later.
    """
    if keep.everything():
        return 0
    try:
        lock = FileLock(packing_lock_path(journal), "compacts or removes files")
    except LocalError:
        return 0
    try:
        return _remove_surplus(journal, node, keep, now)
    finally:
        lock.release()


def _remove_surplus(journal: Path, node: str, keep: Keep, now: float) -> int:
    every = {table: footers_in(table_directory(journal, table, node), []) for table in SCHEMAS}
    total = sum(footer.size for footers in every.values() for footer in footers)
    gone = 0
    for candidate in _candidates(every):
        too_old = keep.age is not None and candidate.modified < now - keep.age
        too_much = keep.bytes is not None and total > keep.bytes
        if not (too_old or too_much):
            continue
        _remove_counted(candidate.footers)
        total -= candidate.size
        gone += len(candidate.footers)
    return gone


def _candidates(every: dict[str, list[Footer]]) -> Iterable[_Candidate]:
    """What may go, in the order in which it should."""
    messages = every[MESSAGES]
    for footer in messages:
        yield _Candidate([footer], _modified(footer))
    others = [footer for table in every if table != MESSAGES for footer in every[table]]
    incarnations = sorted({footer.stem.incarnation for footer in [*others, *messages]})
    for incarnation in incarnations[:-1]:
        together = [footer for footer in others if footer.stem.incarnation == incarnation]
        own_messages = [footer for footer in messages if footer.stem.incarnation == incarnation]
        youngest = max(map(_modified, [*together, *own_messages]), default=0.0)
        if together:
            yield _Candidate(together, youngest)


def _modified(footer: Footer) -> float:
    try:
        return footer.path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_counted(footers: list[Footer]) -> None:
    for footer in footers:
        # The note comes first: a crash in between leaves a file that is noted and still there,
        # which no check takes for a loss.
        note = f"{footer.stem.incarnation} {footer.stem.first} {footer.last} {footer.rows}\n"
        descriptor = os.open(
            footer.path.parent / REMOVED,
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )
        try:
            os.write(descriptor, note.encode())
        finally:
            os.close(descriptor)
        with suppress(FileNotFoundError):
            footer.path.unlink()
