"""A tail: the file of a table that is being written, in Arrow's streaming format.

The format is what Arrow says: a schema, then batches, each with its length in front. So a reader
finds every whole batch, and what a crash left behind it is recognised as torn. There is no
checksum; each batch is validated before anybody sees it. Only the writer's thread calls this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa

from waystation.journal.files import is_at, sync_directory
from waystation.journal.layout import Stem, table_directory
from waystation.journal.schema import SCHEMAS

ReportLoss: TypeAlias = Callable[[int, str], None]
"""Is told how many records were lost, and why; 0 where nobody can tell how many."""

_END_OF_STREAM: Final = 8  # bytes
_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
# Less than a third of the bytes, and no more work than writing the plain ones.


def _compressed(batch: pa.RecordBatch) -> pa.Buffer:
    """The bytes of a batch in a stream, without the schema that stands at its beginning."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_LZ4) as stream:
        stream.write_batch(batch)
    whole = sink.getvalue()
    start = batch.schema.serialize().size
    return whole.slice(start, whole.size - start - _END_OF_STREAM)


class Tail:
    """A tail as its one writer sees it. Every method may raise OSError."""

    def __init__(self, directory: Path, table: str, stem: Stem) -> None:
        self.table = table
        self.stem = stem
        self.directory = directory
        self.path = directory / stem.tail
        self.opened = time.monotonic()
        self.rows = 0
        self.size = 0
        self._synced = -1  # how much of it the disk has
        self.broken = False  # half a batch stands at its end and could not be taken back
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o644)
        try:
            self._write(SCHEMAS[table].serialize())
        except OSError:
            self.close()
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        """Write a batch, wholly or not at all."""
        self._write(_compressed(batch))
        self.rows += batch.num_rows

    def _write(self, data: pa.Buffer) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self._take_back()
            raise
        self.size += data.size

    def _take_back(self) -> None:
        """Half a batch must not stand between whole ones."""
        try:
            os.ftruncate(self._descriptor, self.size)
            os.lseek(self._descriptor, self.size, os.SEEK_SET)
        except OSError:
            self.broken = True

    def sync(self) -> None:
        """Wait until the disk has it."""
        if self._synced < 0:
            sync_directory(self.directory)
        if self._synced != self.size:
            os.fdatasync(self._descriptor)
            self._synced = self.size

    def in_place(self) -> bool:
        """Whether the file still has its name; what is written to it is lost otherwise."""
        return is_at(self.path, self._descriptor)

    def close(self) -> None:
        """Close the file; it stays where it is."""
        os.close(self._descriptor)


class Tails:
    """Where batches go. `retire` hears of each tail that is finished."""

    def __init__(
        self,
        journal: Path,
        node: str,
        *,
        seal_bytes: int,
        seal_seconds: float,
        sync: bool,
        report_loss: ReportLoss,
        retire: Callable[[Tail], None],
    ) -> None:
        self._journal = journal
        self._node = node
        self._seal_bytes = seal_bytes
        self._seal_seconds = seal_seconds
        self._sync = sync
        self._report_loss = report_loss
        self._retire = retire
        self._open: dict[str, Tail] = {}

    def append(self, table: str, batch: pa.RecordBatch) -> None:
        """Write a batch, wholly or not at all; raises OSError."""
        tail = self._open.get(table)
        if tail is not None and not tail.in_place():
            self._abandon(tail)
            tail = None
        if tail is None:
            tail = self._open[table] = self._new(table, batch)
        try:
            tail.append(batch)
        except OSError:
            if tail.broken:
                self._finish(tail)
            raise
        if tail.size >= self._seal_bytes:
            self._finish(tail)

    def _new(self, table: str, batch: pa.RecordBatch) -> Tail:
        stem = Stem(batch.column("incarnation")[0].as_py(), batch.column("seq")[0].as_py())
        return Tail(table_directory(self._journal, table, self._node), table, stem)

    def flushed(self) -> None:
        """A round of appends is over: sync if asked for, and retire what is old."""
        now = time.monotonic()
        for tail in list(self._open.values()):
            if self._sync:
                tail.sync()
            if now - tail.opened >= self._seal_seconds:
                self._finish(tail)

    def finish_all(self) -> None:
        """Retire every tail."""
        for tail in list(self._open.values()):
            self._finish(tail)

    def _finish(self, tail: Tail) -> None:
        del self._open[tail.table]
        tail.close()
        self._retire(tail)

    def _abandon(self, tail: Tail) -> None:
        """Somebody removed the file under us: what it held is gone."""
        del self._open[tail.table]
        tail.close()
        self._report_loss(tail.rows, f"{tail.table}/{tail.path.name.removeprefix('.')} vanished")
