"""Tails: the files of the tables that are being written, a frame for each batch (frames.py).

A reader finds every complete frame, recognises what a crash left after the last one as torn, and
what the disk did to others by their checksums (OB-9). Only the writer's thread calls what is here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa

from waystation.journal.files import is_same_file, sync_directory
from waystation.journal.frames import frame_header
from waystation.journal.layout import Stem, table_directory
from waystation.journal.schema import ADDED_COLUMNS, VERSION_KEY, WRITTEN_VERSION, NodeKind

ReportLoss: TypeAlias = Callable[[NodeKind, int, str], None]
"""Called with the kind of loss, the number of records lost (0 if unknown), and why."""

# LZ4: less than a third of the bytes for no more work than writing them uncompressed.
_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_VERSION: Final = {VERSION_KEY: str(WRITTEN_VERSION).encode()}


class Tail:
    """A tail as its only writer sees it. Every method may raise OSError."""

    def __init__(self, directory: Path, table: str, stem: Stem) -> None:
        self.table = table
        self.stem = stem
        self.directory = directory
        self.path = directory / stem.tail
        self.opened = time.monotonic()
        self.rows = 0
        self.size = 0
        self._synced = -1  # how many bytes are known to be on disk
        self.broken = False  # it ends in a partial batch that could not be removed
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o644)

    @property
    def label(self) -> str:
        """The name of this tail in the journal's `lost` rows."""
        return f"{self.table}/{self.path.name.removeprefix('.')}"

    def append(self, batch: pa.RecordBatch) -> None:
        """Write a batch, completely or not at all."""
        payload = memoryview(_stream_of(batch, self.table))
        header = frame_header(payload, batch.num_rows, self.size)
        try:  # at one go, so that who reads meanwhile hardly ever sees a part of it
            self._write(memoryview(b"".join((header, payload))))
        except OSError:
            self._undo_partial_write()
            raise
        self.size += len(header) + len(payload)
        self.rows += batch.num_rows

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _undo_partial_write(self) -> None:
        """Truncate: a frame must begin where its header says."""
        try:
            os.ftruncate(self._descriptor, self.size)
            os.lseek(self._descriptor, self.size, os.SEEK_SET)
        except OSError:
            self.broken = True

    def sync(self) -> None:
        """Wait until everything written is on disk."""
        if self._synced < 0:
            sync_directory(self.directory)
        if self._synced != self.size:
            os.fdatasync(self._descriptor)
            self._synced = self.size

    def in_place(self) -> bool:
        """Whether the path still names this file; if not, what is written to it is lost."""
        return is_same_file(self.path, self._descriptor)

    def close(self) -> None:
        """Close the file and leave it where it is."""
        os.close(self._descriptor)


def _stream_of(batch: pa.RecordBatch, table: str) -> pa.Buffer:
    """A batch as an Arrow stream, whose schema tells the version.

    Columns that are null in every row are left out: readers see nulls in what a batch lacks.
    """
    added = ADDED_COLUMNS[table]
    empty = {name for name in added if batch.column(name).null_count == batch.num_rows}
    if empty:
        batch = batch.select([name for name in batch.schema.names if name not in empty])
    sink = pa.BufferOutputStream()
    schema = batch.schema.with_metadata(_VERSION)
    with pa.ipc.new_stream(sink, schema, options=_LZ4) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


class Tails:
    """The open tails of a node, one for each table that has had a record.

    A tail that is large, old or broken is closed and handed to `retire`, to be sealed.
    """

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
        """Write a batch, completely or not at all; raises OSError."""
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

    def flush(self) -> None:
        """End a round of appends: sync if configured, and retire old tails."""
        now = time.monotonic()
        for tail in list(self._open.values()):
            if self._sync:
                tail.sync()
            if now - tail.opened >= self._seal_seconds:
                self._finish(tail)

    def finish_all(self) -> None:
        """Close every tail and hand it over."""
        for tail in list(self._open.values()):
            self._finish(tail)

    def _finish(self, tail: Tail) -> None:
        del self._open[tail.table]
        tail.close()
        self._retire(tail)

    def _abandon(self, tail: Tail) -> None:
        """Report the rows of a tail whose file was removed or replaced."""
        del self._open[tail.table]
        tail.close()
        self._report_loss(NodeKind.LOST, tail.rows, f"{tail.label} vanished")
