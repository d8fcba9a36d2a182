"""Ship a journal to an archive: sealed files once, tails again while they grow.

One pass looks at all files, oldest first, and copies what has not arrived. It may end anywhere,
also by a kill: the next one finds by name and content what is there, and goes on. A tail is
a copy of what a node wrote last, for the case that the node never comes back; once its sealed file
has arrived, the copy is removed.

A name stands for one content. If the archive has another one that was not shipped from here, two
machines use the same name for their nodes, and nothing of that node is shipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Final

import pyarrow as pa
from msgspec import Struct

from waystation.core.clock import now_ns
from waystation.errors import LocalError, WaystationError
from waystation.journal.archive import Archive, RefusedError
from waystation.journal.files import FileLock
from waystation.journal.layout import SEALED, Stem, all_nodes, files_in, table_directory, tails_in
from waystation.journal.read import UNREADABLE, read_footer
from waystation.journal.schema import SCHEMAS
from waystation.journal.shipped import Arrivals, Content, content_of, mark_shipping

EVERY_SECONDS: Final = 10.0
"""Between two passes."""

TAIL_SECONDS: Final = 30.0
"""A tail that grows is copied this often."""

_FIRST_RETRY: Final = 1.0
_LAST_RETRY: Final = 60.0
_LOG: Final = logging.getLogger("waystation.journal")

TROUBLE: Final = (OSError, pa.ArrowException, WaystationError)
"""What an archive that does not work raises."""


class Waiting(Struct, frozen=True):
    """Sealed files that have not arrived yet."""

    files: int = 0
    bytes: int = 0
    seconds: float = 0.0  # how long the oldest of them has waited


class Pass(Struct):
    """The result of one pass."""

    files: int = 0  # that arrived, tails included
    bytes: int = 0
    waiting: Waiting = Waiting()
    refused: dict[str, str] = {}  # by node


class Shipper:
    """Ships one journal to one archive; only one at a time does."""

    def __init__(self, journal: Path, target: str, open: Callable[[], Archive]) -> None:
        self._journal = journal
        self._target = target
        self._open = open
        self._archive: Archive | None = None
        self._tails: dict[str, tuple[Content, float]] = {}  # what arrived of each, and when
        self._lock = FileLock(journal / ".ship.lock", "ships this journal")
        mark_shipping(journal, target)
        self.last = Pass()
        self.trouble = ""

    def close(self) -> None:
        """Let another process ship the journal."""
        self._lock.release()

    def run(self, stop: Event, every: float = EVERY_SECONDS) -> None:
        """Ship until told to stop; an archive that does not work is tried again, less often."""
        wait = every
        while not stop.is_set():
            try:
                self.ship()
                self._say_all_is_well()
                wait = every
            except TROUBLE as error:
                self._complain(error)
                wait = min(max(_FIRST_RETRY, 2 * wait), max(_LAST_RETRY, every))
            stop.wait(wait)

    def ship(self) -> Pass:
        """Copy all that has not arrived; raises one of TROUBLE if the archive does not work."""
        done = Pass(refused={})
        try:
            if self._archive is None:
                self._archive = self._open()
            for node in all_nodes(self._journal):
                self._ship_node(self._archive, node, done)
        except TROUBLE:
            self._archive = None  # connect again
            raise
        finally:
            done.waiting = self.waiting()
            self.last = done
        return done

    def waiting(self) -> Waiting:
        """What has not arrived yet."""
        files = size = 0
        oldest = now = now_ns() / 1e9
        for directory in self._directories():
            arrived = Arrivals(directory, self._target)
            for stem in files_in(directory, SEALED):
                if not arrived.has(stem.sealed):
                    try:
                        found = (directory / stem.sealed).stat()
                    except FileNotFoundError:
                        continue
                    files, size = files + 1, size + found.st_size
                    oldest = min(oldest, found.st_mtime)
        return Waiting(files, size, max(0.0, now - oldest))

    def _directories(self) -> Iterator[Path]:
        for node in all_nodes(self._journal):
            for table in SCHEMAS:
                yield table_directory(self._journal, table, node)

    def _ship_node(self, archive: Archive, node: str, done: Pass) -> None:
        try:
            for table in SCHEMAS:
                self._ship_table(archive, table_directory(self._journal, table, node), done)
        except RefusedError as error:
            done.refused[node] = str(error)
            _LOG.error(
                "journal of %s: not shipped: %s at %s; do two machines use this name?",
                *(node, error, self._target),
            )

    def _ship_table(self, archive: Archive, directory: Path, done: Pass) -> None:
        tails = tails_in(directory)  # first: what is sealed meanwhile is found below
        arrived = Arrivals(directory, self._target)
        for stem in files_in(directory, SEALED):
            if not arrived.has(stem.sealed):
                self._ship_sealed(archive, directory / stem.sealed, arrived, done)
                self._tails.pop(self._name(directory / stem.tail), None)
        self._remove_covered(archive, directory, arrived)
        for stem, path in tails.items():
            if not (directory / stem.sealed).exists():
                self._ship_tail(archive, path, done)

    def _remove_covered(self, archive: Archive, directory: Path, arrived: Arrivals) -> None:
        """Remove files from the archive whose rows are in a compacted file that has arrived."""
        here = files_in(directory, SEALED)
        for gone in sorted(arrived.stems() - set(here)):
            before = [stem for stem in here if stem < gone]
            if before and covers(directory / before[-1].sealed, gone):
                archive.remove(self._name(directory / gone.sealed))
            arrived.forget(gone.sealed)
        arrived.tidy()

    def _ship_sealed(self, archive: Archive, path: Path, arrived: Arrivals, done: Pass) -> None:
        content = _content_if_there(path)
        if content is None:
            return  # compacted or removed meanwhile
        name = self._name(path)
        held = archive.held(name)
        if held is not None and held not in (content, arrived.content(path.name)):
            raise RefusedError(f"{name} is there with another content")
        self._put(archive, path, content, held, done)
        archive.remove(_tail_of(name))
        arrived.add(path.name, content)

    def _ship_tail(self, archive: Archive, path: Path, done: Pass) -> None:
        name, now = self._name(path), time.monotonic()
        known, copied = self._tails.get(name, (None, -TAIL_SECONDS))
        content = _content_if_there(path) if now - copied >= TAIL_SECONDS else None
        if content is None or not content.size or content == known:
            return
        held = archive.held(name)
        if held is not None and held not in (content, known):
            self._check_grown(path, held)
        self._put(archive, path, content, held, done)
        self._tails[name] = content, now

    def _check_grown(self, path: Path, held: Content) -> None:
        """A tail only grows: what was copied is the beginning of it."""
        if _content_if_there(path, held.size) not in (held, None):
            raise RefusedError(f"{self._name(path)} is there with another content")

    def _put(
        self, archive: Archive, path: Path, content: Content, held: Content | None, done: Pass
    ) -> None:
        if held != content:
            archive.put(self._name(path), path, content, held)
            done.files += 1
            done.bytes += content.size

    def _name(self, path: Path) -> str:
        return path.relative_to(self._journal).as_posix()

    def _complain(self, error: BaseException) -> None:
        told = " ".join(str(error).split())[:300] or type(error).__name__
        if not self.trouble:
            waiting = self.last.waiting
            _LOG.warning(
                "journal in %s: cannot ship to %s, will retry: %s; %d files (%d bytes) wait",
                *(self._journal, self._target, told, waiting.files, waiting.bytes),
            )
        self.trouble = told

    def _say_all_is_well(self) -> None:
        if self.trouble:
            _LOG.warning("journal in %s: shipping works again", self._journal)
        self.trouble = ""


def _content_if_there(path: Path, size: int | None = None) -> Content | None:
    try:
        return content_of(path, size)
    except FileNotFoundError:
        return None


def covers(path: Path, stem: Stem) -> bool:
    """Whether a sealed file has the rows that another one had."""
    try:
        footer = read_footer(path)
    except UNREADABLE:
        return False
    return footer.stem.incarnation == stem.incarnation and stem.first <= footer.last


def _tail_of(name: str) -> str:
    """The name of the tail that a sealed file was made of."""
    directory, _, base = name.rpartition("/")
    return f"{directory}/.{base.removesuffix(SEALED)}.tail"


def check_journal(journal: Path, target: str) -> None:
    """Refuse to ship a journal into itself."""
    if Path(target).absolute() == journal.absolute():
        raise LocalError(
            f"the journal {journal} cannot be shipped to itself",
            rule="OB-5",
            hint="give another directory",
        )
