"""The journal of one node: takes records on the hot path, writes them behind it (OB-4 .. OB-6).

Three parties:

    the caller   `note` appends to a list, and that is all
    the writer   takes the records off the list, turns them into columns, appends those to tails
    the sealer   turns finished tails into Parquet (seal.py)

Why no record is lost or changes place between caller and writer: the list is one object for the
whole life of the journal, never swapped for another. The caller only appends at its end. The writer
copies the first n records and then deletes the first n, where n was the length at some moment
before: appends in between land behind them. Appending, copying a slice and deleting a slice are
each one operation of the list, which no other thread can interrupt.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.record import Record
from waystation.errors import LocalError, quote
from waystation.journal.convert import Batches, Converter, Row, keeps, threshold
from waystation.journal.files import FileLock
from waystation.journal.housekeeping import Keep, apply_retention
from waystation.journal.layout import check_node, last_incarnation, lock_path
from waystation.journal.schema import MESSAGES, NodeKind, NodeRecord
from waystation.journal.seal import Sealer
from waystation.journal.tail import Tails

Fsync: TypeAlias = Literal["never", "seal", "flush"]

_LOG: Final = logging.getLogger("waystation.journal")
_CHUNK: Final = 4_096  # records converted at once: a few milliseconds of the interpreter's time
_WAITING: Final = 262_144  # records that may wait for the writer, and rows for the disk
_HELD_BYTES: Final = 64 * 2**20  # about so much payload may wait with them before they are taken
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 10.0
_CROWDED: Final = "the writer could not keep up"


def _now() -> int:
    return time.time_ns() // 1_000


class Losses:
    """Counts of lost records by what became of them, from whichever thread noticed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._untold: dict[str, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        """All records lost so far, told or not."""
        return self._total

    def add(self, count: int, why: str) -> None:
        """Note a loss; 0 where nobody can tell how many."""
        with self._lock:
            self._total += count
            self._untold[why] = self._untold.get(why, 0) + count

    def take(self) -> dict[str, int]:
        """What nobody was told yet; from now on it counts as told."""
        with self._lock:
            untold, self._untold = self._untold, {}
        return untold


class Journal:
    """Writes the journal of a node; pass `note` to whoever has records.

    `incarnation` is by default the present time in milliseconds, and later than any that left a
    file. Records are flushed to a tail within `flush_seconds`, or once `flush_records` wait; a
    tail is sealed when it has `seal_bytes` or is `seal_seconds` old. `fsync` says what the disk
    must have taken before going on: nothing, each sealed file before its tail goes, or each flush.
    `sample` is the share of messages to keep; `keep_age` (seconds) and `keep_bytes` bound what is
    kept of sealed files. `clock` gives microseconds since the epoch.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        node: str,
        *,
        incarnation: int | None = None,
        flush_seconds: float = 1.0,
        flush_records: int = 4_096,
        seal_bytes: int = 64 * 2**20,
        seal_seconds: float = 60.0,
        fsync: Fsync = "seal",
        sample: float = 1.0,
        keep_age: float | None = None,
        keep_bytes: int | None = None,
        clock: Callable[[], int] = _now,
    ) -> None:
        self.directory = Path(directory)
        self.node = check_node(node)
        _check_positive(
            flush_seconds=flush_seconds,
            flush_records=flush_records,
            seal_bytes=seal_bytes,
            seal_seconds=seal_seconds,
            keep_age=keep_age,
            keep_bytes=keep_bytes,
        )
        if fsync not in {"never", "seal", "flush"}:
            raise LocalError(
                f"fsync is {quote(fsync)}", rule="OB-5", hint="give 'never', 'seal' or 'flush'"
            )
        self._below = threshold(sample)
        self._clock = clock
        self._lock: FileLock | None = None
        self.incarnation = self._open(incarnation)
        self._losses = Losses()
        keep = Keep(keep_age, keep_bytes)
        self._sealer = Sealer(
            self.directory,
            node,
            self.incarnation,
            fsync=fsync != "never",
            retain=lambda: apply_retention(self.directory, node, keep, time.time()),
            report_loss=self._losses.add,
            may_recover=lambda: self._lock is not None,
        )
        self._tails = Tails(
            self.directory,
            node,
            seal_bytes=seal_bytes,
            seal_seconds=seal_seconds,
            sync=fsync == "flush",
            report_loss=self._losses.add,
            retire=self._sealer.seal,
        )
        self._converter = Converter(self.incarnation)
        self._seq = 0
        self._at = 0  # the latest instant written: the journal's own rows never go back either
        self._pending: deque[tuple[str, pa.RecordBatch]] = deque()
        self._pending_rows = 0
        self._retry_at = 0.0
        self._retry_seconds = 0.0  # 0: the disk takes what it is given
        self._trouble = ""
        # The writer looks twice in each interval, so that half of it is left for the writing.
        self._pause = flush_seconds / 2
        self._flush_records = min(flush_records, _WAITING // 2)
        self._wake_every = self._flush_records  # fewer when messages are large
        self._full = _WAITING
        self._buffer: list[Record | NodeRecord] = []
        self._mark = self._flush_records
        self._wake = Event()
        self._closing = False
        self._buffer.append(NodeRecord(NodeKind.START, f"process {os.getpid()}", self._instant()))
        self._thread = Thread(target=self._run, name=f"journal-writer-{node}", daemon=True)
        self._thread.start()
        self._sealer.start()

    # The hot path.

    def note(self, record: Record) -> None:
        """Take a record; never blocks and never raises. Order and seq follow the calls."""
        buffer = self._buffer
        if len(buffer) < self._mark:
            buffer.append(record)
        else:
            self._note_crowded(record)

    def _note_crowded(self, record: Record) -> None:
        waiting = len(self._buffer)
        if waiting >= self._full:
            self._losses.add(1, self._trouble or _CROWDED)
            return
        self._buffer.append(record)
        self._mark = min(waiting + self._wake_every, self._full)  # wake once for so many
        self._wake.set()

    # What people ask.

    @property
    def lost(self) -> int:
        """How many records were lost so far, told in a row or not yet."""
        return self._losses.total

    def __repr__(self) -> str:
        return f"<Journal of {self.node} in {self.directory}, incarnation {self.incarnation}>"

    # Opening and closing.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, timeout: float = 60.0) -> None:
        """Write all that was noted and a `stop` row, seal, and let go of the directory.

        Call it when nobody notes any more: what comes during or after it is lost, and counted.
        """
        if self._closing:
            return
        self._sealer.wait_until_tried(timeout)
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)
        self._sealer.stop(timeout)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _open(self, incarnation: int | None) -> int:
        """Lock the directory and find the incarnation.

        What the user got wrong is raised. A disk that is full or broken is not the user's mistake:
        then the node starts all the same, and the writer tries again.
        """
        started = self._clock() // 1_000 if incarnation is None else incarnation
        try:
            self._take_directory()
        except (PermissionError, NotADirectoryError, FileExistsError, FileNotFoundError) as error:
            raise LocalError(
                f"no journal can be kept in {quote(str(self.directory))}: {error.strerror}",
                rule="OB-5",
                hint="give a directory that this process may write to",
            ) from error
        except OSError as error:
            _LOG.warning("the journal of %s cannot be written for now: %s", self.node, error)
        former = last_incarnation(self.directory, self.node)
        if incarnation is not None and incarnation <= former:
            self._release()
            raise LocalError(
                f"incarnation {incarnation} of {self.node} is not later than {former}",
                rule="OB-5",
                hint="leave it out, and it is chosen",
            )
        return max(started, former + 1)

    def _take_directory(self) -> None:
        if self._lock is None or not self._lock.in_place():
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(lock_path(self.directory, self.node), "writes this node's journal")
            self._release()
            self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # The writer's thread.

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause)
            self._wake.clear()
            closing = self._closing
            try:
                if closing:
                    self._last_turn()
                else:
                    self._turn()
            except Exception:  # noqa: BLE001 - whatever it is, the node goes on
                _LOG.exception("the journal of %s failed", self.node)
            if closing:
                break
        self._full = self._mark = 0  # whoever still notes is counted as lost

    def _turn(self) -> None:
        """Take what waits, write it, and say what was lost."""
        while True:
            self._gather()
            self._write()
            if self._retry_seconds or len(self._buffer) < self._wake_every:
                break
        if self._tell_losses():
            self._write()

    def _last_turn(self) -> None:
        self._retry_at = 0.0  # one more try
        self._turn()
        self._gather()
        self._convert([NodeRecord(NodeKind.STOP, "closed", self._instant())])
        self._write()
        self._give_up_pending()
        self._tails.finish_all()

    def _gather(self) -> None:
        """Take what waits now off the buffer and turn it into columns."""
        buffer = self._buffer
        waiting = len(buffer)  # what comes meanwhile is for the next time: this must be written
        while waiting > 0 and self._pending_rows < _WAITING:
            count = min(waiting, _CHUNK)
            waiting -= count
            records = buffer[:count]
            del buffer[:count]
            self._convert(records)
        self._mark = min(self._wake_every, self._full)

    def _convert(self, records: Sequence[Row]) -> None:
        if self._below < 2**32:
            records = [record for record in records if keeps(record, self._below)]
        if not records:
            return
        try:
            batches = self._converter.convert(records, self._seq)
        except Exception as error:  # noqa: BLE001 - a record may hold anything
            if len(records) > 1:  # find the one that is to blame
                middle = len(records) // 2
                self._convert(records[:middle])
                self._convert(records[middle:])
                return
            _LOG.warning("the journal of %s left out a record: %r", self.node, error)
            self._losses.add(1, f"no record of the journal: {type(error).__name__}")
            return
        self._at = max(self._at, records[-1].at)
        self._queue(batches)

    def _queue(self, batches: Batches) -> None:
        for table, batch in batches:
            self._pending.append((table, batch))
            self._pending_rows += batch.num_rows
            self._seq += batch.num_rows
            if table == MESSAGES:
                self._mind_payloads(batch)

    def _mind_payloads(self, batch: pa.RecordBatch) -> None:
        """Records hold their messages in memory while they wait: of large ones, let fewer wait."""
        mean = pc.sum(batch.column("bytes")).as_py() // batch.num_rows + 1
        self._wake_every = max(16, min(self._flush_records, _HELD_BYTES // mean))
        self._full = max(64, min(_WAITING, 4 * _HELD_BYTES // mean))

    def _write(self) -> None:
        """Hand what is pending to the disk, if it takes it."""
        if self._retry_seconds and time.monotonic() < self._retry_at:
            return
        try:
            self._take_directory()
            while self._pending:
                table, batch = self._pending[0]
                self._tails.append(table, batch)
                self._pending.popleft()
                self._pending_rows -= batch.num_rows
            self._tails.flushed()
        except (OSError, LocalError) as error:
            self._complain(error)
        else:
            self._relax()

    def _complain(self, error: Exception) -> None:
        if not self._retry_seconds:
            _LOG.warning("the journal of %s cannot be written for now: %s", self.node, error)
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._trouble = f"the disk could not take them: {why}"
        self._retry_seconds = min(max(_FIRST_RETRY, 2 * self._retry_seconds), _LAST_RETRY)
        self._retry_at = time.monotonic() + self._retry_seconds

    def _relax(self) -> None:
        if self._retry_seconds:
            _LOG.warning("the journal of %s can be written again", self.node)
        self._retry_seconds = 0.0
        self._trouble = ""

    def _tell_losses(self) -> bool:
        """Say what was lost as soon as the disk takes anything."""
        if self._retry_seconds:
            return False
        told = self._losses.take()
        for why, count in told.items():
            self._convert([NodeRecord(NodeKind.LOST, why, self._instant(), count)])
        return bool(told)

    def _give_up_pending(self) -> None:
        if self._pending or self._buffer:
            count = self._pending_rows + len(self._buffer)
            _LOG.warning("the journal of %s ends without its last %d records", self.node, count)
            self._losses.add(count, self._trouble)
            self._pending.clear()

    def _instant(self) -> int:
        """Now, but never before what was written already."""
        self._at = max(self._at, self._clock())
        return self._at


def _check_positive(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise LocalError(f"{name} is {quote(value)}", rule="OB-5", hint="give a number above 0")
