"""Sealing: whole rows to a Parquet file that appears all at once.

The file is written under a hidden name and then renamed, so that whoever sees it sees all of it.
What lies in it and how it is encoded is decided here, for sealed and for compacted files alike.
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

from waystation.journal.files import sync, sync_directory
from waystation.journal.layout import SEALING, TAIL, Stem, files_in, table_directory
from waystation.journal.read import (
    LAST_SEQ,
    UNREADABLE,
    TailContent,
    footers_in,
    read_batches,
    read_footer,
    read_tail,
    removed_rows,
    said,
    split_covered,
)
from waystation.journal.schema import NODES, SCHEMAS, conforming
from waystation.journal.tail import ReportLoss, Tail

_LOG = logging.getLogger("waystation.journal")
_RETRY_SECONDS = 5.0
_RETENTION_SECONDS = 60.0

ROW_GROUP: Final = 131_072
"""Rows in a row group: some megabytes, which a reader can skip by the statistics of seq and at."""

_RISING: Final = ("seq", "at", "received_at", "expiry")
_DIGITS: Final = ("message_id",)
_MISTAKES: Final = 0.05  # how often a Bloom filter lets an id pass that is not there: a byte an id


def write_sealed(
    directory: Path,
    table: str,
    stem: Stem,
    batches: Iterable[pa.RecordBatch],
    *,
    fsync: bool,
    suffix: str = SEALING,
) -> Path:
    """Write rows, which must be in the order of seq, to the sealed file of this stem."""
    temporary = directory / stem.temporary(suffix)
    try:
        _write_parquet(temporary, SCHEMAS[table], batches)
        if fsync:
            sync(temporary)
        sealed = temporary.rename(directory / stem.sealed)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if fsync:
        sync_directory(directory)
    return sealed


def seal_tail(directory: Path, table: str, stem: Stem, *, fsync: bool) -> TailContent:
    """Seal what is whole of a tail, then remove the tail; says what it held.

    Whatever instant a crash chooses, every row is in the tail or in the sealed file: when both are
    there, the sealed file is taken only if it can be read and goes as far as the tail.
    """
    path = directory / stem.tail
    content = read_tail(path)
    if content.batches and not _sealed_already(directory / stem.sealed, content.batches[-1]):
        write_sealed(directory, table, stem, content.batches, fsync=fsync)
    path.unlink()
    return content


def _sealed_already(path: Path, last: pa.RecordBatch) -> bool:
    if not path.exists():
        return False
    try:
        reached = read_footer(path).last
    except UNREADABLE:
        return False
    return bool(reached >= last.column("seq")[-1].as_py())


def _write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    last = -1
    groups = _row_groups(schema, batches)
    first = next(groups, schema.empty_table())  # no later one has more rows
    with pq.ParquetWriter(path, schema, **_options(schema, first.num_rows)) as writer:
        for group in chain([first] if first.num_rows else [], groups):
            writer.write_table(group, row_group_size=ROW_GROUP)
            last = group.column("seq")[-1].as_py()
        writer.add_key_value_metadata({LAST_SEQ.decode(): str(last)})


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows, so many at a time: no more than a row group is held in memory."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        rest = conforming(batch, schema)
        while rows + rest.num_rows >= ROW_GROUP:
            yield pa.Table.from_batches([*held, rest[: ROW_GROUP - rows]], schema)
            rest = rest[ROW_GROUP - rows :]
            held, rows = [], 0
        held.append(rest)
        rows += rest.num_rows
    if rows:
        yield pa.Table.from_batches(held, schema)


def _options(schema: pa.Schema, rows: int) -> dict[str, Any]:
    encodings = {name: "DELTA_BINARY_PACKED" for name in _RISING if name in schema.names}
    encodings |= {name: "DELTA_LENGTH_BYTE_ARRAY" for name in _DIGITS if name in schema.names}
    ids = [name for name in _DIGITS if name in schema.names]
    repeating = [
        f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
        for field in schema
        if field.name not in encodings and not pa.types.is_boolean(field.type)
    ]
    return {
        "compression": "zstd",
        "use_dictionary": repeating,
        "column_encoding": encodings,
        "bloom_filter_options": {name: {"ndv": max(rows, 1), "fpp": _MISTAKES} for name in ids},
        "sorting_columns": [pq.SortingColumn(schema.get_field_index("seq"))],
        "store_schema": False,  # the types of Parquet say it all
        "write_page_checksum": True,
    }


def recover(journal: Path, node: str, before: int, *, fsync: bool, report: ReportLoss) -> None:
    """Seal the tails of the incarnations before this one.

    `report` hears how many records are missing of an incarnation, and why; 0 where only bytes can
    be counted. The caller must hold the node's lock. Raises OSError when the disk does not let it;
    then what was done stays done, and it can be called again.
    """
    torn: dict[int, list[str]] = {}
    for table in SCHEMAS:
        directory = table_directory(journal, table, node)
        for stem in files_in(directory, SEALING):
            if stem.incarnation < before:
                (directory / stem.temporary(SEALING)).unlink(missing_ok=True)
        for stem in files_in(directory, TAIL):
            if stem.incarnation >= before:
                continue
            cuts = torn.setdefault(stem.incarnation, [])
            problem = _seal(directory, table, stem, fsync=fsync)
            if problem:
                cuts.append(problem)
    for incarnation, cuts in sorted(torn.items()):
        missing = _missing(journal, node, incarnation)
        if missing:
            cuts.append(f"{missing} records of its last moments missing")
        if cuts:
            report(missing, f"incarnation {incarnation}: {'; '.join(cuts)}")


def _seal(directory: Path, table: str, stem: Stem, *, fsync: bool) -> str:
    """Seal a tail; says what is wrong with it, if anything."""
    where = f"{table}/{stem.tail.removeprefix('.')}"
    try:
        content = seal_tail(directory, table, stem, fsync=fsync)
    except OSError:
        raise
    except UNREADABLE as error:  # not of our making: it stays where it is, and the rest goes on
        return f"{where} cannot be sealed: {said(error)}"
    if content.torn:
        return f"{content.torn} bytes torn off {where} at byte {content.whole}"
    return ""


def _missing(journal: Path, node: str, incarnation: int) -> int:
    """How many numbers below the highest seq of an incarnation no row has; 0 if nobody can tell."""
    problems: list[tuple[Path, str]] = []
    rows, highest = 0, -1
    for table in SCHEMAS:
        directory = table_directory(journal, table, node)
        footers = [
            footer
            for footer in footers_in(directory, problems)
            if footer.stem.incarnation == incarnation
        ]
        counting, _ = split_covered(footers)
        rows += sum(footer.rows for footer in counting)
        rows += removed_rows(directory, incarnation)
        highest = max(highest, *(footer.last for footer in counting), -1)
        if table == NODES:
            rows += sum(_told(footer.path) for footer in counting)
    return 0 if problems else max(0, highest + 1 - rows)


def _told(path: Path) -> int:
    """How many losses the rows of a file of `nodes` have told already."""
    try:
        return sum(pc.sum(batch.column("lost")).as_py() or 0 for batch in read_batches(path))
    except UNREADABLE:
        return 0


class Sealer:
    """Seals what it is handed, in order, until it is stopped and has no more."""

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
        self._may_recover = may_recover  # only who holds the node's lock touches others' tails
        self._retired: deque[Tail] = deque()
        self._recovered = False
        self._tried = Event()  # to recover, with whatever success
        self._retained = float("-inf")
        self._complained = False
        self._wake = Event()
        self._stopping = False
        self._thread = Thread(target=self._run, name=f"journal-sealer-{node}", daemon=True)

    def start(self) -> None:
        """Begin with what former incarnations left."""
        self._wake.set()
        self._thread.start()

    def seal(self, tail: Tail) -> None:
        """Take over a tail that is closed."""
        self._retired.append(tail)
        self._wake.set()

    def wait_until_tried(self, timeout: float) -> None:
        """Wait until what former incarnations lost is known, if it can be."""
        self._tried.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Do what is left, once, and end."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._wake.wait(_RETRY_SECONDS if self._behind() else _RETENTION_SECONDS)
            self._wake.clear()
            stopping = self._stopping
            try:
                self._work()
            except OSError as error:
                self._complain(error)
            except Exception:  # noqa: BLE001 - whatever it is, the node goes on
                _LOG.exception("the journal of %s could not seal", self._node)
            self._tried.set()
            if stopping:
                break

    def _behind(self) -> bool:
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
        self._complained = False
        self._retain()

    def _seal(self, tail: Tail) -> None:
        try:
            content = seal_tail(tail.directory, tail.table, tail.stem, fsync=self._fsync)
        except FileNotFoundError:
            self._report_loss(tail.rows, f"{tail.table}/{tail.path.name[1:]} vanished")
            return
        if content.rows < tail.rows:
            self._report_loss(
                tail.rows - content.rows,
                f"{tail.table}/{tail.path.name[1:]} unreadable: {content.problem}",
            )

    def _retain(self) -> None:
        now = time.monotonic()
        if now - self._retained >= _RETENTION_SECONDS or self._stopping:
            self._retained = now
            self._apply_retention()

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _LOG.warning("the journal of %s cannot be sealed for now: %s", self._node, error)
