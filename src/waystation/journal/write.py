"""The journal of one node: takes records on the hot path and writes them in threads (OB-4 .. OB-6).

    the caller   `note` appends the record to a list, a large payload replaced by its length
    the writer   takes records off the list, converts them to columns, appends those to tails
    the sealer   turns finished tails into Parquet (seal.py)

Why no record is lost or reordered between caller and writer: the list is never replaced by another.
The caller only appends to its end. The writer copies the first n records and then deletes the first
n, where n was the length at an earlier moment; what is appended in between comes after them.
Appending, copying a slice and deleting a slice are each one operation of the list, which no other
thread can interrupt.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

import pyarrow as pa

from waystation import __version__
from waystation.core.clock import current_clock, now_ns
from waystation.core.record import Record
from waystation.errors import LocalError, quote
from waystation.journal.convert import Batches, Converter, Row, is_kept, sample_threshold
from waystation.journal.files import FileLock
from waystation.journal.housekeeping import RetentionLimits, apply_retention
from waystation.journal.layout import check_node, last_incarnation, lock_path
from waystation.journal.read import last_instant
from waystation.journal.schema import NodeKind, NodeRecord
from waystation.journal.seal import Finding, Sealer, write_findings
from waystation.journal.tail import Tails
from waystation.locations import local_directory

Fsync: TypeAlias = Literal["never", "seal", "flush"]

_LOG: Final = logging.getLogger("waystation.journal")
_CHUNK: Final = 4_096  # records converted at once: this holds the interpreter for milliseconds
_LARGE: Final = 1_024  # bytes: smaller payloads weigh less than the record that has them
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 10.0
_OVERLOADED: Final = "the writer could not keep up"


class Losses:
    """Counts lost records by reason, from any thread, until a `lost` row reports them (OB-6)."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lock = Lock()
        self._unreported: dict[tuple[NodeKind, str], int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        """All records lost so far, reported or not."""
        return self._total

    def add(self, kind: NodeKind, count: int, reason: str) -> None:
        """Count a loss of records that are LOST or CORRUPT; 0 if their number is unknown."""
        if kind is NodeKind.CORRUPT:
            _LOG.warning("journal of %s: damaged, %d records lost: %s", self._node, count, reason)
        with self._lock:
            self._total += count
            unreported = self._unreported.get((kind, reason), 0)
            self._unreported[kind, reason] = unreported + count

    def take(self) -> dict[tuple[NodeKind, str], int]:
        """The unreported losses by kind and reason, which count as reported from now on."""
        with self._lock:
            taken, self._unreported = self._unreported, {}
        return taken


class Journal:
    """Writes the journal of a node; pass `note` to `node.observe`.

    `incarnation` is by default the current time in milliseconds, or more if an earlier incarnation
    had that. Records are flushed to a tail within `flush_seconds`, or once `flush_records` wait; at
    most `buffer_records` wait in memory while the disk fails, and as many rows behind them. A tail
    is sealed when it has `seal_bytes` or is `seal_seconds` old. `fsync` says what is synced to
    disk: nothing, each sealed file before its tail is removed, or each flush as well. `sample` is
    the share of messages to keep; `keep_age` (seconds) and `keep_bytes` limit the sealed files.
    `clock` returns microseconds since the epoch; by default it is the clock of the process, which
    is set to a time after the last row if it is not in use yet (TM-1).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        node: str,
        *,
        incarnation: int | None = None,
        flush_seconds: float = 1.0,
        flush_records: int = 4_096,
        buffer_records: int = 262_144,
        seal_bytes: int = 64 * 2**20,
        seal_seconds: float = 60.0,
        fsync: Fsync = "seal",
        sample: float = 1.0,
        keep_age: float | None = None,
        keep_bytes: int | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.directory = local_directory(directory, "the journal of a node")
        self.node = check_node(node)
        _check_positive(
            flush_seconds=flush_seconds,
            flush_records=flush_records,
            buffer_records=buffer_records,
            seal_bytes=seal_bytes,
            seal_seconds=seal_seconds,
            keep_age=keep_age,
            keep_bytes=keep_bytes,
        )
        if fsync not in {"never", "seal", "flush"}:
            raise LocalError(
                f"invalid fsync {quote(fsync)}",
                rule="OB-5",
                hint="give 'never', 'seal' or 'flush'",
            )
        self._threshold = sample_threshold(sample)
        self._clock = self._clock_of_process() if clock is None else clock
        self._lock: FileLock | None = None
        self.incarnation = self._open(incarnation)
        self._losses = Losses(node)
        limits = RetentionLimits(keep_age, keep_bytes)
        self._sealer = Sealer(
            self.directory,
            node,
            self.incarnation,
            fsync=fsync != "never",
            retain=lambda: apply_retention(
                self.directory, node, limits, now_ns() / 1e9, self._losses.add
            ),
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
        self._converter = Converter(node, self.incarnation)
        self._seq = 0
        self._at = 0  # the latest timestamp written: the journal's own rows are not earlier
        self._pending: deque[tuple[str, pa.RecordBatch]] = deque()
        self._pending_rows = 0
        self._retry_at = 0.0
        self._retry_seconds = 0.0  # 0 while writing succeeds
        self._trouble = ""
        # The writer wakes twice per interval, so that half of it is left for writing.
        self._pause = flush_seconds / 2
        self._buffer_records = buffer_records
        self._flush_records = max(1, min(flush_records, buffer_records // 2))
        self._full = buffer_records
        self._buffer: list[Record | NodeRecord] = []
        self._mark = self._flush_records
        self._wake = Event()
        self._flushes: deque[Event] = deque()  # who waits until all that is here is in a file
        self._closing = False
        self._buffer.append(NodeRecord(NodeKind.START, _start_detail(sample), self._instant()))
        self._thread = Thread(target=self._run, name=f"journal-writer-{node}", daemon=True)
        self._thread.start()
        self._sealer.start()

    # The hot path.

    def note(self, record: Record) -> None:
        """Take a record; never blocks and never raises. Rows are in the order of the calls."""
        noted: Any = record
        try:
            if len(noted.arrival.message.payload) > _LARGE:
                noted = noted.without_payload()
        except (AttributeError, TypeError):
            pass  # not about a message; the writer finds out what it is
        buffer = self._buffer
        if len(buffer) < self._mark:
            buffer.append(noted)
        else:
            self._note_at_mark(noted)

    def _note_at_mark(self, record: Record) -> None:
        """Wake the writer, or drop the record if the buffer is full."""
        waiting = len(self._buffer)
        if waiting >= self._full:
            self._losses.add(NodeKind.LOST, 1, self._trouble or _OVERLOADED)
            return
        self._buffer.append(record)
        self._mark = min(waiting + self._flush_records, self._full)
        self._wake.set()

    # State, for those who watch it.

    @property
    def lost(self) -> int:
        """How many records were lost so far, whether a `lost` row says so yet or not."""
        return self._losses.total

    @property
    def waiting(self) -> int:
        """How many records and rows wait in memory to be written."""
        return len(self._buffer) + self._pending_rows

    @property
    def trouble(self) -> str:
        """Why nothing can be written at the moment; empty while all is well."""
        return self._trouble

    def __repr__(self) -> str:
        return f"<Journal of {self.node} in {self.directory}, incarnation {self.incarnation}>"

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until what was noted so far can be read; returns False if that took too long."""
        if not self._thread.is_alive():
            return True  # it is closed, and has written everything
        done = Event()
        self._flushes.append(done)
        self._wake.set()
        return done.wait(timeout)

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
        """Write all records and a `stop` row, seal the tails, and release the directory.

        Call it after the last `note`: records that come during or after it are counted as lost.
        """
        if self._closing:
            return
        self._sealer.wait_for_recovery(timeout)
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)
        self._sealer.stop(timeout)
        self._report_late_losses()
        self._release()

    def _report_late_losses(self) -> None:
        """Write down what was lost while the last tails were written and sealed, if possible."""
        losses = self._losses.take()
        if not losses or self._lock is None:
            return
        findings = [Finding(self.incarnation, *lost, count) for lost, count in losses.items()]
        try:
            write_findings(self.directory, self.node, findings, seq=self._seq, at=self._instant())
        except OSError as error:
            _LOG.warning("journal of %s: cannot report lost records: %s", self.node, error)

    def _open(self, incarnation: int | None) -> int:
        """Lock the directory and choose the incarnation.

        Raises LocalError for a directory that cannot be used. A full or broken disk is no reason
        not to start the node: the writer tries again.
        """
        started = self._clock() // 1_000 if incarnation is None else incarnation
        try:
            self._lock_directory()
        except (PermissionError, NotADirectoryError, FileExistsError, FileNotFoundError) as error:
            raise LocalError(
                f"cannot write a journal to {quote(str(self.directory))}: {error.strerror}",
                rule="OB-5",
                hint="give a directory that this process may write to",
            ) from error
        except OSError as error:
            _LOG.warning("journal of %s: cannot write, will retry: %s", self.node, error)
        latest = last_incarnation(self.directory, self.node)
        if incarnation is not None and incarnation <= latest:
            self._release()
            raise LocalError(
                f"incarnation {incarnation} of {self.node} is not later than {latest}",
                rule="OB-5",
                hint="omit it to have one chosen",
            )
        return max(started, latest + 1)

    def _clock_of_process(self) -> Callable[[], int]:
        """The clock, which goes on after the node's last row: lives of a node do not overlap."""
        clock = current_clock()
        last = last_instant(self.directory, self.node)
        if last is not None:
            clock.not_before((last + 1) * 1_000)
        return lambda: clock.read() // 1_000

    def _lock_directory(self) -> None:
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
            flushes = len(self._flushes)
            try:
                if closing:
                    self._last_turn()
                else:
                    self._turn()
            except Exception:  # noqa: BLE001 - the node must go on
                _LOG.exception("journal of %s: writing failed", self.node)
            for _ in range(flushes):
                self._flushes.popleft().set()
            if closing:
                break
        self._full = self._mark = 0  # from now on, every record is counted as lost

    def _turn(self) -> None:
        """Write what waits, and report what was lost."""
        while True:
            self._gather()
            self._write()
            if self._retry_seconds or len(self._buffer) < self._flush_records:
                break
        if self._report_losses():
            self._write()

    def _last_turn(self) -> None:
        self._retry_at = 0.0  # try once more
        self._turn()
        self._gather()
        self._convert([NodeRecord(NodeKind.STOP, "closed", self._instant())])
        self._write()
        self._abandon_pending()
        self._tails.finish_all()

    def _gather(self) -> None:
        """Take the waiting records off the buffer and convert them."""
        buffer = self._buffer
        waiting = len(buffer)  # later records come next time: these must be written soon
        while waiting > 0 and self._pending_rows < self._buffer_records:
            count = min(waiting, _CHUNK)
            waiting -= count
            records = buffer[:count]
            del buffer[:count]
            self._convert(records)
        self._mark = min(self._flush_records, self._full)

    def _convert(self, records: Sequence[Row]) -> None:
        if self._threshold < 2**32:
            records = [record for record in records if is_kept(record, self._threshold)]
        if not records:
            return
        try:
            batches = self._converter.convert(records, self._seq)
        except Exception as error:  # noqa: BLE001 - a record may hold anything
            if len(records) > 1:  # find the one that fails
                middle = len(records) // 2
                self._convert(records[:middle])
                self._convert(records[middle:])
                return
            _LOG.warning("journal of %s: skipped an invalid record: %r", self.node, error)
            why = f"no record of the journal: {type(error).__name__}"
            self._losses.add(NodeKind.LOST, 1, why)
            return
        self._at = max(self._at, records[-1].at)
        self._queue(batches)

    def _queue(self, batches: Batches) -> None:
        for table, batch in batches:
            self._pending.append((table, batch))
            self._pending_rows += batch.num_rows
            self._seq += batch.num_rows

    def _write(self) -> None:
        """Append the pending batches to their tails, unless a retry has to wait."""
        if self._retry_seconds and time.monotonic() < self._retry_at:
            return
        try:
            self._lock_directory()
            while self._pending:
                table, batch = self._pending[0]
                self._tails.append(table, batch)
                self._pending.popleft()
                self._pending_rows -= batch.num_rows
            self._tails.flush()
        except (OSError, LocalError) as error:
            self._writing_failed(error)
        else:
            self._writing_succeeded()

    def _writing_failed(self, error: Exception) -> None:
        if not self._retry_seconds:
            _LOG.warning("journal of %s: cannot write, will retry: %s", self.node, error)
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._trouble = f"the disk could not take them: {why}"
        self._retry_seconds = min(max(_FIRST_RETRY, 2 * self._retry_seconds), _LAST_RETRY)
        self._retry_at = time.monotonic() + self._retry_seconds

    def _writing_succeeded(self) -> None:
        if self._retry_seconds:
            _LOG.warning("journal of %s: writing works again", self.node)
        self._retry_seconds = 0.0
        self._trouble = ""

    def _report_losses(self) -> bool:
        """Add `lost` rows for unreported losses, unless writing fails; True if there are any."""
        if self._retry_seconds:
            return False
        losses = self._losses.take()
        for (kind, reason), count in losses.items():
            self._convert([NodeRecord(kind, reason, self._instant(), count)])
        return bool(losses)

    def _abandon_pending(self) -> None:
        if self._pending or self._buffer:
            buffered = len(self._buffer)
            count = self._pending_rows + buffered
            _LOG.warning("journal of %s: closed without its last %d records", self.node, count)
            self._losses.add(NodeKind.LOST, count, self._trouble)
            self._pending.clear()
            self._pending_rows = 0
            del self._buffer[:buffered]

    def _instant(self) -> int:
        """The current time, but not before the latest timestamp written."""
        self._at = max(self._at, self._clock())
        return self._at


def _start_detail(sample: float) -> str:
    """What a start row tells readers: which version wrote the rows, and which share of messages.

    >>> _start_detail(1).replace(__version__, "0.2.0")
    'waystation 0.2.0 sample=1.0'
    """
    return f"waystation {__version__} sample={float(sample)}"


def _check_positive(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise LocalError(
                f"invalid {name} {quote(value)}", rule="OB-5", hint="give a number above 0"
            )
