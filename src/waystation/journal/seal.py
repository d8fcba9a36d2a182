"""Sealing: finished tails become Parquet files, and so do those that a crash left behind.

A sealed file is written under a hidden name and then renamed, so a reader sees all of it or
nothing. `write_sealed` decides how rows are encoded, for compacted files too; `recover` seals the
tails of earlier incarnations and reports what is missing (OB-5); `Sealer` is the thread that does
this work, so that neither the node nor the writer waits for it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waystation.journal.files import sync_directory, sync_path
from waystation.journal.layout import SEALING, TAIL, Stem, files_in, table_directory
from waystation.journal.read import (
    LAST_SEQ,
    UNREADABLE,
    TailContent,
    error_text,
    read_footer,
    read_footers,
    read_sealed,
    read_tail,
    removed_rows,
    split_covered,
)
from waystation.journal.schema import (
    MESSAGES,
    NODES,
    SCHEMAS,
    VERSION_KEY,
    WRITTEN_VERSION,
    conform,
)
from waystation.journal.tail import ReportLoss, Tail

ROW_GROUP: Final = 131_072
"""Rows in a row group: a few megabytes, which a reader can skip by the statistics of seq and at."""

_LOG: Final = logging.getLogger("waystation.journal")
_RETRY_SECONDS: Final = 5.0
_RETENTION_SECONDS: Final = 60.0
_ASCENDING: Final = ("seq", "at", "received_at", "expiry")
_SEARCHED: Final = ("message_id", "recipient")  # columns of messages with a Bloom filter
_FALSE_POSITIVES: Final = 0.05  # of a Bloom filter, which then takes about a byte per value

# Sealed files.


def write_sealed(
    directory: Path,
    table: str,
    stem: Stem,
    batches: Iterable[pa.RecordBatch],
    *,
    fsync: bool,
    version: int = WRITTEN_VERSION,
    suffix: str = SEALING,
) -> Path:
    """Write rows, which must be in the order of seq, to the sealed file of a stem.

    `version` is that of the file which the rows were read from.
    """
    temporary = directory / stem.temporary(suffix)
    try:
        _write_parquet(temporary, table, batches, version)
        if fsync:
            sync_path(temporary)
        sealed = temporary.rename(directory / stem.sealed)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if fsync:
        sync_directory(directory)
    return sealed


def seal_tail(directory: Path, table: str, stem: Stem, *, fsync: bool) -> TailContent:
    """Seal the complete batches of a tail, then remove the tail; returns what it held.

    Whenever a crash happens, every row is in the tail or in the sealed file: if both exist, the
    sealed file counts only if it can be read and goes as far as the tail.
    """
    path = directory / stem.tail
    content = read_tail(path)
    if content.batches and not _reaches(directory / stem.sealed, content.batches[-1]):
        write_sealed(directory, table, stem, content.batches, fsync=fsync, version=content.version)
    path.unlink()
    return content


def _reaches(sealed: Path, batch: pa.RecordBatch) -> bool:
    """Whether a sealed file exists, can be read, and goes as far as this batch."""
    if not sealed.exists():
        return False
    try:
        last = read_footer(sealed).last
    except UNREADABLE:
        return False
    return bool(last >= batch.column("seq")[-1].as_py())


def _write_parquet(path: Path, table: str, batches: Iterable[pa.RecordBatch], version: int) -> None:
    schema = SCHEMAS[table]
    last = -1
    groups = _row_groups(table, batches)
    first = next(groups, schema.empty_table())  # the largest: it sizes the Bloom filters
    with pq.ParquetWriter(path, schema, **_options(table, first)) as writer:
        for group in chain([first] if first.num_rows else [], groups):
            writer.write_table(group, row_group_size=ROW_GROUP)
            last = group.column("seq")[-1].as_py()
        writer.add_key_value_metadata(
            {LAST_SEQ.decode(): str(last), VERSION_KEY.decode(): str(version)}
        )


def _row_groups(table: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Regroup rows into row groups; at most one is held in memory."""
    schema = SCHEMAS[table]
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        rest = conform(batch, table)
        while rows + rest.num_rows >= ROW_GROUP:
            yield pa.Table.from_batches([*held, rest[: ROW_GROUP - rows]], schema)
            rest = rest[ROW_GROUP - rows :]
            held, rows = [], 0
        held.append(rest)
        rows += rest.num_rows
    if rows:
        yield pa.Table.from_batches(held, schema)


def _options(table: str, rows: pa.Table) -> dict[str, Any]:
    """How a table is encoded; the rows are those of the largest row group."""
    schema = rows.schema
    searched = _SEARCHED if table == MESSAGES else ()
    encodings = {name: "DELTA_BINARY_PACKED" for name in _ASCENDING if name in schema.names}
    if table == MESSAGES:
        encodings["message_id"] = "DELTA_LENGTH_BYTE_ARRAY"  # hardly any of them repeats
    repeating = [
        f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
        for field in schema
        if field.name not in encodings and not pa.types.is_boolean(field.type)
    ]
    return {
        "compression": "zstd",
        "use_dictionary": repeating,
        "column_encoding": encodings,
        "bloom_filter_options": {
            name: {"ndv": _distinct(rows, name), "fpp": _FALSE_POSITIVES} for name in searched
        },
        "sorting_columns": [pq.SortingColumn(schema.get_field_index("seq"))],
        "store_schema": False,  # the Parquet types are enough
        "write_page_checksum": True,
    }


def _distinct(rows: pa.Table, name: str) -> int:
    """About how many values of a column differ, at least 1."""
    if name == "message_id":  # counting would take longer than writing
        return int(rows.num_rows) or 1
    return max(int(pc.count_distinct(rows.column(name)).as_py()), 1)


# Recovery.


def recover(journal: Path, node: str, before: int, *, fsync: bool, report: ReportLoss) -> None:
    """Seal the tails of the incarnations before this one.

    `report` is called with the number of records that an incarnation lacks, and why; the number is
    0 where only bytes can be counted. The caller must hold the node's lock. Raises OSError if the
    disk fails; what was sealed stays sealed, and it can be called again.
    """
    problems: dict[int, list[str]] = {}
    for table in SCHEMAS:
        directory = table_directory(journal, table, node)
        for stem in files_in(directory, SEALING):
            if stem.incarnation < before:
                (directory / stem.temporary(SEALING)).unlink(missing_ok=True)
        for stem in files_in(directory, TAIL):
            if stem.incarnation >= before:
                continue
            found = problems.setdefault(stem.incarnation, [])
            problem = _seal_left_tail(directory, table, stem, fsync=fsync)
            if problem:
                found.append(problem)
    for incarnation, found in sorted(problems.items()):
        missing = _missing(journal, node, incarnation)
        if missing:
            found.append(f"{missing} records of its last moments missing")
        if found:
            report(missing, f"incarnation {incarnation}: {'; '.join(found)}")


def _seal_left_tail(directory: Path, table: str, stem: Stem, *, fsync: bool) -> str:
    """Seal a tail; returns what is wrong with it, or an empty string."""
    where = f"{table}/{stem.tail.removeprefix('.')}"
    try:
        content = seal_tail(directory, table, stem, fsync=fsync)
    except OSError:
        raise
    except UNREADABLE as error:  # not written by us: leave it, and go on
        return f"{where} cannot be sealed: {error_text(error)}"
    if content.torn:
        return f"{content.torn} bytes torn off {where} at byte {content.end}"
    return ""


def _missing(journal: Path, node: str, incarnation: int) -> int:
    """How many seqs of an incarnation are missing below its highest; 0 if that is unknown."""
    problems: list[tuple[Path, str]] = []
    rows, highest = 0, -1
    for table in SCHEMAS:
        directory = table_directory(journal, table, node)
        footers = [
            footer
            for footer in read_footers(directory, problems)
            if footer.stem.incarnation == incarnation
        ]
        counting, _ = split_covered(footers)
        rows += sum(footer.rows for footer in counting)
        rows += removed_rows(directory, incarnation)
        highest = max(highest, *(footer.last for footer in counting), -1)
        if table == NODES:
            rows += sum(_reported_lost(footer.path) for footer in counting)
    return 0 if problems else max(0, highest + 1 - rows)


def _reported_lost(path: Path) -> int:
    """How many lost records the rows of a file of `nodes` account for."""
    try:
        return sum(pc.sum(batch.column("lost")).as_py() or 0 for batch in read_sealed(path))
    except UNREADABLE:
        return 0


# The sealer's thread.


class Sealer:
    """Recovers, seals the tails it is given in order, and applies retention, in a thread.

    What fails stays in its tail, where readers find it, and is tried again.
    """

    def __init__(
        self,
        journal: Path,
        node: str,
        incarnation: int,
        *,
        fsync: bool,
        retain: Callable[[], object],
        report_loss: ReportLoss,
        may_recover: Callable[[], bool],
    ) -> None:
        self._journal = journal
        self._node = node
        self._incarnation = incarnation
        self._fsync = fsync
        self._apply_retention = retain
        self._report_loss = report_loss
        self._may_recover = may_recover  # only the holder of the node's lock may touch other tails
        self._retired: deque[Tail] = deque()
        self._recovered = False
        self._recovery_tried = Event()
        self._retention_ran = float("-inf")
        self._warned = False
        self._wake = Event()
        self._stopping = False
        self._thread = Thread(target=self._run, name=f"journal-sealer-{node}", daemon=True)

    def start(self) -> None:
        """Start with the tails of earlier incarnations."""
        self._wake.set()
        self._thread.start()

    def seal(self, tail: Tail) -> None:
        """Seal a closed tail."""
        self._retired.append(tail)
        self._wake.set()

    def wait_for_recovery(self, timeout: float) -> None:
        """Wait for the first attempt at recovery, which reports what earlier incarnations lost."""
        self._recovery_tried.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Try once more to seal what is left, and end the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._wake.wait(_RETRY_SECONDS if self._has_backlog() else _RETENTION_SECONDS)
            self._wake.clear()
            stopping = self._stopping
            try:
                self._work()
            except OSError as error:
                self._warn(error)
            except Exception:  # noqa: BLE001 - the node must go on
                _LOG.exception("journal of %s: sealing failed", self._node)
            self._recovery_tried.set()
            if stopping:
                break

    def _has_backlog(self) -> bool:
        return bool(self._retired) or not self._recovered

    def _work(self) -> None:
        if not self._recovered and self._may_recover():
            recover(
                self._journal,
                self._node,
                self._incarnation,
                fsync=self._fsync,
                report=self._report_loss,
            )
            self._recovered = True
        while self._retired:
            self._seal(self._retired[0])
            self._retired.popleft()
        self._warned = False
        self._retain()

    def _seal(self, tail: Tail) -> None:
        try:
            content = seal_tail(tail.directory, tail.table, tail.stem, fsync=self._fsync)
        except FileNotFoundError:
            self._report_loss(tail.rows, f"{tail.label} vanished")
            return
        _LOG.debug("journal of %s: sealed %s, %d rows", self._node, tail.label, content.rows)
        if content.rows < tail.rows:
            self._report_loss(
                tail.rows - content.rows,
                f"{tail.label} unreadable: {content.problem}",
            )

    def _retain(self) -> None:
        now = time.monotonic()
        if now - self._retention_ran >= _RETENTION_SECONDS or self._stopping:
            self._retention_ran = now
            self._apply_retention()

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("journal of %s: cannot seal, will retry: %s", self._node, error)
