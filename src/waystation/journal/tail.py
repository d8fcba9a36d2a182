"""A tail: the file of a table that is being written, in Arrow's streaming format.

The format is what Arrow says: a schema, then batches, each with its length in front. So a reader
finds every whole batch, and what a crash left behind it is recognised as torn. There is no
checksum; each batch is validated before anybody sees it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from waystation.journal.files import is_at, sync_directory
from waystation.journal.layout import Stem
from waystation.journal.schema import SCHEMAS

_END_OF_STREAM: Final = 8  # bytes
UNREADABLE: Final = (
    pa.ArrowException,
    EOFError,
    LookupError,  # a column that is not there
    MemoryError,
    OSError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What Arrow raises when it is given bytes that are not Arrow, or not those of our tables."""


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


class TailContent(Struct):
    """What could be read of a tail.

    `whole` is where the last readable batch ends; `torn` are the bytes behind it, and `problem`
    says what is wrong with them. A tail that is being written may well be torn for a moment.
    """

    schema: pa.Schema | None
    batches: list[pa.RecordBatch]
    whole: int
    torn: int
    problem: str

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return sum(batch.num_rows for batch in self.batches)


def read_tail(path: Path, start: int = 0, schema: pa.Schema | None = None) -> TailContent:
    """Read the whole batches of a tail; go on at `start` if its schema is known from before.

    The file is read, not mapped: a writer that takes back half a batch makes it shorter.
    """
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    source = pa.BufferReader(data)
    content = TailContent(schema, [], start, 0, "")
    try:
        while source.tell() < len(data):
            _read_message(source, content)
            content.whole = start + source.tell()
    except UNREADABLE as error:
        content.problem = " ".join(str(error).split()) or type(error).__name__
    content.torn = start + len(data) - content.whole
    return content


def _read_message(source: pa.BufferReader, content: TailContent) -> None:
    if content.schema is None:
        content.schema = pa.ipc.read_schema(source)
        return
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), content.schema)
    batch.validate(full=True)
    content.batches.append(batch)
