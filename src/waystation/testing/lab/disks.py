"""Disks with faults under the journal: full, failing, torn by a crash, and bits that flip.

The journal is the real one; its writer is the loop, and its tails are never sealed. A turn of the
writer either ends, and what it wrote counts as kept, or the crash comes after some bytes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

from waystation.core.record import Record
from waystation.journal import Journal, seal, tail, write
from waystation.journal.read import TableReader, instants_as_integers
from waystation.journal.schema import SCHEMAS
from waystation.testing.simulation import Simulation

FLUSH: Final = 4.0
"""Seconds between two turns of a writer; there is more to tear than at the usual one."""

ROOM: Final = 4_000
"""Bytes of its last turn, at most, that a writer gets to the disk before a crash."""

_Row = dict[str, Any]


class Crash(BaseException):
    """The process, or the machine, ends in the middle of a write."""


class Disk:
    """What is wrong with the disk of one machine."""

    def __init__(self) -> None:
        self.error = 0  # errno of every write
        self.room: int | None = None  # bytes until a crash

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write what the disk takes."""
        if self.error:
            os.write(descriptor, data[: len(data) // 2])  # in part, as a full disk does
            raise OSError(self.error, os.strerror(self.error))
        if self.room is None:
            return os.write(descriptor, data)
        written = os.write(descriptor, data[: self.room])
        self.room -= written
        if self.room <= 0:
            raise Crash
        return written


class Given:
    """What one life of a journal was given, and how much of it a turn that ended wrote."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, pa.RecordBatch]] = []
        self.kept = 0  # batches

    def append(self, table: str, batch: pa.RecordBatch) -> None:
        """Note a batch that the tails took."""
        self.batches.append((table, batch))


class DiskJournal:
    """The journal of one life of a node."""

    def __init__(self, directory: Path, node: str, disk: Disk) -> None:
        self._disk = disk
        self.given = Given()
        self._journal = Journal(directory, node, fsync="flush", buffer_records=10_000)
        self.note: Callable[[Record], None] = self._journal.note
        self.node, self.incarnation = node, self._journal.incarnation
        tails = self._journal._tails  # noqa: SLF001 - its writer is this loop
        append = tails.append

        def appended(table: str, batch: pa.RecordBatch) -> None:
            append(table, batch)
            self.given.append(table, batch)

        tails.append = appended  # type: ignore[method-assign]
        self._loop = asyncio.get_running_loop()
        self._flush()

    def _flush(self) -> None:
        self._turn()
        self._loop.call_later(FLUSH, self._flush)

    def _turn(self) -> None:
        self._journal._turn()  # noqa: SLF001
        if not self._journal.trouble:
            self.given.kept = len(self.given.batches)

    def crash(self, room: int) -> None:
        """End in the middle of the next turn, after this many bytes."""
        self._disk.room = room
        with contextlib.suppress(Crash):
            self._journal._turn()  # noqa: SLF001
        self._disk.room = None
        for one in self._journal._tails._open.values():  # noqa: SLF001
            with contextlib.suppress(OSError):
                one.close()
        self._journal._release()  # noqa: SLF001


class Disks:
    """The disks of a fleet, and the journals on them."""

    def __init__(self, simulation: Simulation, seed: int, nodes: list[str]) -> None:
        self._simulation = simulation
        self._chance = random.Random(f"disks {seed}")  # noqa: S311 - it must repeat
        self.by_node = {node: Disk() for node in nodes}
        self._lives: list[DiskJournal] = []
        self._running: dict[str, DiskJournal] = {}
        self._by_descriptor: dict[int, Disk] = {}
        self._place: Path | None = None
        self.flipped: dict[str, int] = {}

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Let journals be written to these disks, by no thread, in virtual time."""
        if not self.by_node:
            yield
            return
        with (
            tempfile.TemporaryDirectory(prefix="waystation-lab-") as name,
            patch.object(tail, "os", _System(self)),
            patch.object(tail, "sync_directory", lambda _: None),
            patch.object(write, "Thread", _NoThread),
            patch.object(seal, "Thread", _NoThread),
            patch.object(write, "time", _Time(self._simulation)),
        ):
            self._place = Path(name)
            yield

    def journal_of(self, node: str) -> DiskJournal:
        """The journal of a new life; the former one ended in the middle of something."""
        assert self._place is not None
        self.end(node)
        journal = DiskJournal(self._place, node, self.by_node[node])
        self._running[node] = journal
        self._lives.append(journal)
        return journal

    def end(self, node: str) -> None:
        """Let the life that runs end in a crash."""
        former = self._running.pop(node, None)
        if former is not None:
            former.crash(self._chance.randint(0, ROOM))

    def opened(self, path: Path, descriptor: int) -> None:
        """Know whose file it is that was opened."""
        node = path.parent.name.partition("=")[2]
        self._by_descriptor[descriptor] = self.by_node[node]

    def of(self, descriptor: int) -> Disk:
        """The disk that has an open file."""
        return self._by_descriptor[descriptor]

    def flip_a_bit(self, node: str, chance: random.Random) -> bool:
        """Change one bit of what is written; whether there is anything."""
        assert self._place is not None
        tails = [path for path in sorted(self._place.glob(f"*/node={node}/.*")) if _size(path)]
        if not tails:
            return False
        path = chance.choice(tails)
        place = chance.randrange(_size(path))
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0] ^ (1 << chance.randrange(8))
            file.seek(place)
            file.write(bytes([byte]))
        self.flipped[node] = self.flipped.get(node, 0) + 1
        return True

    def differences(self) -> Iterator[str]:
        """What the journals that are read after all this lack, or have that was never written."""
        if self._place is None:
            return
        for node in self.by_node:
            self.end(node)
        for node in self.by_node:
            yield from self._differences_of(node)

    def _differences_of(self, node: str) -> Iterator[str]:
        problems: list[object] = []
        found = self._read(node, problems)
        lost = 0
        for row, was_kept in self._given(node):
            there = found.pop(_position(row), None)
            if there is None:
                lost += was_kept
            elif there != _known(row):
                yield f"{node}: a row of its journal is not what was written: {there}"
        for row in found.values():
            yield f"{node}: a row of its journal was never written: {row}"
        flipped = self.flipped.get(node, 0)
        if lost and not flipped:
            yield f"{node}: {lost} rows are missing that were on disk"
        elif lost and not problems:
            yield f"{node}: {lost} rows are missing, and nobody tells that anything is damaged"

    def _read(self, node: str, problems: list[object]) -> dict[tuple[int, int], _Row]:
        """The rows that can be read of a node's journal."""
        assert self._place is not None
        found: dict[tuple[int, int], _Row] = {}
        for table in SCHEMAS:
            reader = TableReader(self._place, table, node, lambda *told: problems.append(told))
            for batch in reader.batches():
                found |= {_position(row): _known(row) for row in _rows(batch)}
        return found

    def _given(self, node: str) -> Iterator[tuple[_Row, bool]]:
        """The rows that the journals of a node were given, and whether they had to be kept."""
        for life in self._lives:
            if life.node == node:
                for number, (_, batch) in enumerate(life.given.batches):
                    for row in _rows(batch):
                        yield row, number < life.given.kept


class _System:
    """The calls that tails make, as the disks answer them."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int) -> int:
        if error := self._disks.by_node[path.parent.name.partition("=")[2]].error:
            raise OSError(error, os.strerror(error))
        descriptor = os.open(path, flags, mode)
        self._disks.opened(path, descriptor)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        return self._disks.of(descriptor).write(descriptor, data)

    def fdatasync(self, descriptor: int) -> None:
        error = self._disks.of(descriptor).error
        if error == errno.EIO:
            raise OSError(error, os.strerror(error))


class _NoThread:
    """A thread that never runs."""

    def __init__(self, **options: object) -> None:
        del options

    def start(self) -> None:
        """Do nothing."""


class _Time:
    """The clock of the simulation, where a module asks for the system's."""

    def __init__(self, simulation: Simulation) -> None:
        self.monotonic = simulation.loop.time


def _size(path: Path) -> int:
    return path.stat().st_size


def _rows(batch: pa.RecordBatch) -> list[_Row]:
    found: list[_Row] = instants_as_integers(batch).to_pylist()
    return found


def _position(row: _Row) -> tuple[int, int]:
    return row["incarnation"], row["seq"]


def _known(row: _Row) -> _Row:
    return {name: value for name, value in row.items() if value is not None}
