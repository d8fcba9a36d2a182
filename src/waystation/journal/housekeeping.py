"""Housekeeping of sealed files, beside running writers and readers: compaction and retention.

Compaction merges neighbouring files of one incarnation under the name of the first, which is
replaced by an atomic rename; then the others are removed. So no row is ever missing. Between the
two steps, and after a crash between them until the next compaction, rows are in two files: readers
of this package skip the second one (read.py), but a Spark job that lists the files at that moment
reads them twice and should not run during a compaction.

Retention removes messages first, oldest first. The other tables of an incarnation hold its routing
table and subscriptions, of which half is worth little: they are removed together, once the
incarnation has ended and all of its messages are old enough or gone; those of the latest
incarnation stay. The number of removed rows is kept in `_removed`, so that a check can tell them
from lost ones.

What is shipped elsewhere is removed after it has arrived there. If it does not arrive, the limit of
the size still holds: then the oldest files are lost, and that is written down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from waystation.errors import LocalError
from waystation.journal.files import FileLock
from waystation.journal.layout import (
    COMPACTING,
    CORRUPT,
    REMOVED,
    Stem,
    all_nodes,
    files_in,
    housekeeping_lock_path,
    table_directory,
    tails_in,
)
from waystation.journal.read import (
    UNREADABLE,
    Footer,
    ReportProblem,
    error_text,
    read_footers,
    read_sealed,
    split_covered,
)
from waystation.journal.schema import MESSAGES, SCHEMAS, NodeKind
from waystation.journal.seal import write_sealed
from waystation.journal.shipped import Arrivals, target_of
from waystation.journal.tail import ReportLoss

# Compaction.

TARGET_BYTES: Final = 128 * 2**20
"""Maximum size of a compacted file: what Spark reads in one task."""


class Compacted(Struct, frozen=True):
    """Result of a compaction: number of files before and after, and of rows rewritten."""

    before: int = 0
    after: int = 0
    rows: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            self.before + other.before, self.after + other.after, self.rows + other.rows
        )


def compact(
    journal: Path,
    report: ReportProblem,
    *,
    node: str | None = None,
    target_bytes: int = TARGET_BYTES,
) -> Compacted:
    """Compact the sealed files of one node or of all.

    Raises LocalError if another process compacts or removes files, and OSError if the disk fails;
    what was merged stays merged. A file that cannot be read is reported and left as it is.
    """
    lock = FileLock(housekeeping_lock_path(journal), "compacts or removes files")
    try:
        total = Compacted()
        for name in all_nodes(journal) if node is None else [node]:
            for table in SCHEMAS:
                directory = table_directory(journal, table, name)
                total += _compact_directory(directory, table, report, target_bytes)
        return total
    finally:
        lock.release()


def _compact_directory(
    directory: Path, table: str, report: ReportProblem, target: int
) -> Compacted:
    for stem in files_in(directory, COMPACTING):  # left by a crash
        (directory / stem.temporary(COMPACTING)).unlink(missing_ok=True)
    problems: list[tuple[Path, str]] = []
    footers = read_footers(directory, problems)
    for path, problem in problems:
        report(path, problem)
    counting, covered = split_covered(footers)
    _remove(covered)
    done = Compacted(len(footers), len(counting))
    # A merged file must not cover rows that are not sealed yet or cannot be read.
    barriers = [
        *tails_in(directory),
        *filter(None, (Stem.parse(p.name) for p, _ in problems)),
    ]
    for group in _groups(counting, target, barriers):
        try:
            rows = _merge(directory, table, group)
        except FileNotFoundError:
            continue  # one was removed meanwhile; the next compaction merges the rest
        except UNREADABLE as error:
            report(group[0].path, f"cannot be compacted: {error_text(error)}")
            continue
        done += Compacted(0, 1 - len(group), rows)
    return done


def _groups(footers: list[Footer], target: int, barriers: list[Stem]) -> Iterator[list[Footer]]:
    """Runs of two or more neighbours of one incarnation that fit into the target size."""
    group: list[Footer] = []
    size = 0
    for footer in footers:
        fits = size + footer.size <= target
        if group and not (fits and _are_neighbours(group[-1], footer, barriers)):
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(footer)
        size += footer.size
    if len(group) > 1:
        yield group


def _are_neighbours(one: Footer, next: Footer, barriers: list[Stem]) -> bool:
    between = any(one.stem < barrier < next.stem for barrier in barriers)
    alike = (one.stem.incarnation, one.version) == (next.stem.incarnation, next.version)
    return alike and not between


def _merge(directory: Path, table: str, group: list[Footer]) -> int:
    first, rest = group[0], group[1:]
    modified = max(footer.path.stat().st_mtime for footer in group)
    rows = sum(footer.rows for footer in group)
    path = write_sealed(
        directory,
        table,
        first.stem,
        _rows_of(group),
        fsync=True,
        version=first.version,
        suffix=COMPACTING,
    )
    _remove(rest)
    os.utime(path, (modified, modified))  # retention goes by the age of the rows
    return rows


def _rows_of(group: list[Footer]) -> Iterator[pa.RecordBatch]:
    for footer in group:
        rows = 0
        for batch in read_sealed(footer.path):
            rows += batch.num_rows
            yield batch
        if rows != footer.rows:
            raise ValueError(f"{footer.path.name} has {rows} rows instead of {footer.rows}")


def _remove(footers: list[Footer]) -> None:
    for footer in footers:
        footer.path.unlink(missing_ok=True)


# Retention.

_UNSHIPPED: Final = "removed before they were shipped: the journal had reached its size"


class RetentionLimits(Struct, frozen=True):
    """Maximum age (seconds) and size (bytes) of a node's sealed files; None is unlimited."""

    age: float | None = None
    bytes: int | None = None

    def unlimited(self) -> bool:
        """Whether everything is kept."""
        return self.age is None and self.bytes is None


class _Candidate(Struct, frozen=True):
    """Files that are removed together."""

    footers: list[Footer]
    modified: float

    @property
    def size(self) -> int:
        return sum(footer.size for footer in self.footers)


def apply_retention(
    journal: Path,
    node: str,
    limits: RetentionLimits,
    now: float,
    report_loss: ReportLoss | None = None,
) -> int:
    """Remove a node's sealed files that exceed the limits; `now` is in seconds since the epoch.

    Returns how many files were removed. Raises OSError if the disk fails. During a compaction
    nothing is removed, because a file may be replaced by one with more rows at any moment.
    `report_loss` is told of rows that had to go before they were shipped.
    """
    if limits.unlimited():
        return 0
    try:
        lock = FileLock(housekeeping_lock_path(journal), "compacts or removes files")
    except LocalError:
        return 0
    try:
        lost = _remove_surplus(journal, node, limits, now)
    finally:
        lock.release()
    if lost.rows and report_loss is not None:
        report_loss(NodeKind.LOST, lost.rows, _UNSHIPPED)
    return lost.files


class _Removed(Struct):
    """How many files were removed, and how many rows of them had not been shipped."""

    files: int = 0
    rows: int = 0


def _remove_surplus(journal: Path, node: str, limits: RetentionLimits, now: float) -> _Removed:
    directories = {table: table_directory(journal, table, node) for table in SCHEMAS}
    footers = {table: read_footers(directory, []) for table, directory in directories.items()}
    if limits.age is not None:
        _remove_set_aside(directories.values(), now - limits.age)
    total = sum(footer.size for files in footers.values() for footer in files)
    removed = _Removed()
    waiting = _unshipped(journal)
    candidates = [(candidate, waiting(candidate)) for candidate in _candidates(footers)]
    for candidate, rows in sorted(candidates, key=lambda found: found[1] > 0):
        too_old = limits.age is not None and candidate.modified < now - limits.age
        too_much = limits.bytes is not None and total > limits.bytes
        if not too_much and (rows or not too_old):
            continue
        _remove_counted(candidate.footers)
        total -= candidate.size
        removed.files += len(candidate.footers)
        removed.rows += rows
    return removed


def _unshipped(journal: Path) -> Callable[[_Candidate], int]:
    """What counts the rows of files that have not arrived where the journal is shipped to."""
    target = target_of(journal)
    if target is None:
        return lambda _: 0
    known: dict[Path, Arrivals] = {}

    def waiting(candidate: _Candidate) -> int:
        rows = 0
        for footer in candidate.footers:
            directory = footer.path.parent
            if directory not in known:
                known[directory] = Arrivals(directory, target)
            rows += 0 if known[directory].has(footer.path.name) else footer.rows
        return rows

    return waiting


def _remove_set_aside(directories: Iterable[Path], before: float) -> None:
    """Remove what failed its checksum and was set aside before this time."""
    for directory in directories:
        for path in directory.glob(f".*{CORRUPT}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()


def _candidates(footers: dict[str, list[Footer]]) -> Iterable[_Candidate]:
    """What may be removed, first to last."""
    messages = footers[MESSAGES]
    for footer in messages:
        yield _Candidate([footer], _modified(footer))
    others = [footer for table in footers if table != MESSAGES for footer in footers[table]]
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
        # Counted first: after a crash in between, the file is counted and still there, which no
        # check takes for a loss.
        line = f"{footer.stem.incarnation} {footer.stem.first} {footer.last} {footer.rows}\n"
        descriptor = os.open(
            footer.path.parent / REMOVED,
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
        with suppress(FileNotFoundError):
            footer.path.unlink()
