"""The stores of durable messages without threads and disks: the real tables, and every crash point.

What a process hands to its store waits, is committed a moment later, and is told a moment after
that. A process that is killed, or a machine that is switched off, loses what waits in either
place: what was not committed was never written, whole transactions at a time, and what was
committed stays although nobody was told. That is what SQLite makes of torn and unsynced writes with
`fsync = "full"`; how it copes with pages that the disk has changed is for the tests of the store.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, Final

from waystation.node.store import Done, Store, StoreSettings, _call_all, _create, _Entry, _read

WRITING: Final = (0.0005, 0.02)
"""Seconds that a commit takes, at least and at most."""

TELLING: Final = 0.002
"""Seconds at most from a commit until somebody is told."""

CACHED: Final = 0.5
"""Seconds after which a cache writes, where somebody is told before that: see `StoreDisk`."""


class StoreDisk:
    """The database of one machine, which outlives its processes.

    With `tells_first` a process is told before the disk has it: an ablation, see `safeguards`.
    """

    def __init__(self, chance: random.Random, *, tells_first: bool = False) -> None:
        self.chance = chance
        self.trouble = ""  # why nothing can be written at the moment
        self.tells_first = tells_first
        self._db: sqlite3.Connection | None = None
        self._written = b""

    def open(self) -> sqlite3.Connection:
        """The database as a new process finds it."""
        if self._db is None:
            self._db = _database()
            _create(self._db)
            self.write()
        elif self.tells_first:
            self._db.close()
            self._db = _database()
            self._db.deserialize(self._written)
        return self._db

    def write(self) -> None:
        """Let everything be on the disk that is in the cache."""
        if self.tells_first and self._db is not None:
            self._written = self._db.serialize()


class SimulatedStore(Store):
    """A store whose writer is the loop."""

    def __init__(self, settings: StoreSettings, disk: StoreDisk) -> None:
        self.settings = settings
        self.directory = Path(settings.directory)
        self._disk = disk
        self._db = disk.open()
        self.id, self.secret, self.link_base, self.pairs = _read(self._db, self.directory)
        self.kept = self._db.execute("select * from kept").fetchall()
        self.dead = int(self._db.execute("select count(*) from dead").fetchone()[0])
        self._process = secrets.token_hex(8)
        self.commits = self.jobs = 0
        self.trouble = ""
        self._again: list[_Entry] = []
        self._pause = 0.0
        self._crashed = Event()
        self._loop = asyncio.get_running_loop()
        self._waiting: Any = _Line(self._entry_came)
        if disk.tells_first:
            self._write_cache()

    def _entry_came(self) -> None:
        seconds = 0.0 if self._disk.tells_first else self._disk.chance.uniform(*WRITING)
        self._later(seconds, self._write_all)

    def _write_all(self) -> None:
        if not (self._again or self._waiting.entries):
            return
        group, self._again = [*self._again, *self._waiting.take()], []
        if self._disk.trouble:
            self._failed(group, self._disk.trouble, closing=False)
        else:
            self._commit(group, closing=False)
        if self._again:
            self._later(self._pause, self._write_all)

    def _tell(self, told: list[tuple[Done, Any]]) -> None:
        if told:
            self._later(self._disk.chance.uniform(0, TELLING), lambda: _call_all(told))

    def _write_cache(self) -> None:
        self._disk.write()
        self._later(CACHED, self._write_cache)

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        assert self._loop is not None
        self._loop.call_later(seconds, act)

    def close(self) -> None:
        """Do what waits."""
        self._write_all()

    def abandon(self) -> None:
        """Let go of it; the disk keeps what it has."""


class _Line:
    """What waits to be written, in place of a queue between threads."""

    def __init__(self, came: Callable[[], None]) -> None:
        self.entries: list[_Entry] = []
        self._came = came

    def put(self, entry: _Entry) -> None:
        self.entries.append(entry)
        if len(self.entries) == 1:
            self._came()

    def take(self) -> list[_Entry]:
        taken, self.entries = self.entries, []
        return taken

    def qsize(self) -> int:
        return len(self.entries)


def _database() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)
