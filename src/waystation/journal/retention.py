"""Retention: sealed files that are too old, or too many, are removed.

Messages go first, the oldest first. The other tables of an incarnation say what its routing table
and subscriptions were, and half of them is worth little: they go all together, when that
incarnation has ended and all of its messages are old enough or gone; those of the latest
incarnation stay. What was removed is counted in `_removed`, so that a check can tell it from what
was lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from waystation.errors import LocalError
from waystation.journal.layout import REMOVED, packing_lock_path, table_directory
from waystation.journal.lock import FileLock
from waystation.journal.schema import MESSAGES, SCHEMAS
from waystation.journal.sealed import Footer, footers_in


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
        _remove(candidate.footers)
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


def _remove(footers: list[Footer]) -> None:
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


def removed_rows(directory: Path, incarnation: int) -> int:
    """How many rows of an incarnation retention has removed from a directory."""
    try:
        lines = (directory / REMOVED).read_text("ascii", "replace").splitlines()
    except OSError:
        return 0
    rows = 0
    for line in lines:
        fields = line.split()
        if len(fields) == 4 and all(map(str.isdigit, fields)) and int(fields[0]) == incarnation:
            rows += int(fields[3])
    return rows
