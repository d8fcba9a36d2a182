"""Sealing: finished tails become Parquet files, and so do those that a crash left behind.

A sealed file is written under a hidden name and then renamed, so a reader sees all of it or
nothing. `write_sealed` decides how rows are encoded, for compacted files too; `Recovery` seals the
tails of earlier incarnations and reports what is missing or damaged (OB-5, OB-9); `Sealer` is the
thread that does this work, so that neither the node nor the writer waits for it; `seal_left_tails`
does it for nodes that do not run.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from waystation.errors import LocalError
from waystation.journal import checksum
from waystation.journal.archive import is_archive
from waystation.journal.files import FileLock, sync_directory, sync_path
from waystation.journal.frames import Damage
from waystation.journal.layout import (
    SEALING,
    Stem,
    all_nodes,
    files_in,
    lock_path,
    table_directory,
    tails_in,
)
from waystation.journal.read import (
    LAST_SEQ,
    UNREADABLE,
    TailContent,
    end_of_sealed,
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
    NodeKind,
    conform,
)
from waystation.journal.tail import ReportLoss, Tail

ROW_GROUP: Final = 131_072
"""Rows in a row group: a few megabytes, which a reader can skip by the statistics of seq and at."""

_LAST_INCARNATION: Final = 2**62
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


def seal_tail(path: Path, table: str, *, fsync: bool) -> TailContent:
    """Seal the complete batches of a tail, then remove the tail; returns what it held.

    Whenever a crash happens, every row is in the tail or in the sealed file: if both exist, the
    sealed file counts only if it can be read and goes as far as the tail. What failed its checksum
    is set aside in files of its own (OB-9).
    """
    directory, stem = path.parent, _stem_of(path)
    content = read_tail(path)
    _set_aside(path, content.damaged, fsync=fsync)
    if content.batches and not _reaches(directory / stem.sealed, content.batches[-1]):
        write_sealed(directory, table, stem, content.batches, fsync=fsync, version=content.version)
    path.unlink()
    return content


def _stem_of(path: Path) -> Stem:
    stem = Stem.parse(path.name)
    if stem is None:
        raise ValueError(f"{path.name} is not the name of a tail")
    return stem


def _set_aside(path: Path, damaged: list[Damage], *, fsync: bool) -> None:
    """Copy the damaged bytes of a tail to files beside it."""
    for damage in damaged:
        with path.open("rb") as tail:
            tail.seek(damage.start)
            aside = path.with_name(_stem_of(path).corrupt(damage.start))
            aside.write_bytes(tail.read(damage.size))
        if fsync:
            sync_path(aside)


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
            {
                LAST_SEQ.decode(): str(last),
                VERSION_KEY.decode(): str(version),
                checksum.KEY: checksum.ZEROS,
            }
        )
    checksum.write_checksum(path)


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


class Finding(Struct, frozen=True):
    """What an incarnation lacks: a row of `nodes` that is still to be written.

    `count` is the number of records; 0 where only bytes can be counted.
    """

    incarnation: int
    kind: NodeKind
    detail: str
    count: int


class _Left(Struct):
    """What the tails of one incarnation held."""

    torn: list[str] = []
    damaged: list[str] = []
    failed: int = 0  # rows that failed their checksum


class Recovery:
    """Seals the tails of the incarnations of a node before this one.

    The caller must hold the node's lock. If the disk fails, call `run` again: what was sealed stays
    sealed, and what was found is kept.
    """

    def __init__(self, journal: Path, node: str, before: int, *, fsync: bool) -> None:
        self._journal = journal
        self._node = node
        self._before = before
        self._fsync = fsync
        self._left: dict[int, _Left] = {}
        self.tails = 0
        self.rows = 0

    def run(self) -> list[Finding]:
        """Seal the tails; returns what is missing or damaged. Raises OSError if the disk fails."""
        for table in SCHEMAS:
            directory = table_directory(self._journal, table, self._node)
            for stem in files_in(directory, SEALING):
                if stem.incarnation < self._before:
                    (directory / stem.temporary(SEALING)).unlink(missing_ok=True)
            for stem, path in tails_in(directory).items():
                if stem.incarnation < self._before:
                    self._seal(path, table, self._left.setdefault(stem.incarnation, _Left()))
        found = [self._findings(number, self._left[number]) for number in sorted(self._left)]
        self._left = {}
        return list(chain(*found))

    def _seal(self, path: Path, table: str, left: _Left) -> None:
        where = f"{table}/{path.name.removeprefix('.')}"
        try:
            content = seal_tail(path, table, fsync=self._fsync)
        except OSError:
            raise
        except UNREADABLE as error:  # not written by us: leave it, and go on
            left.torn.append(f"{where} cannot be sealed: {error_text(error)}")
            return
        self.tails += 1
        self.rows += content.rows
        if content.torn:
            left.torn.append(f"{content.torn} bytes torn off {where}")
        left.damaged += [f"{where}: {damage}" for damage in content.damaged]
        left.failed += sum(damage.rows for damage in content.damaged)

    def _findings(self, incarnation: int, left: _Left) -> Iterator[Finding]:
        """What an incarnation lacks now that all of its tails are sealed."""
        whose = f"incarnation {incarnation}"
        missing = max(0, _missing(self._journal, self._node, incarnation) - left.failed)
        if left.damaged:
            detail = f"{whose}: {'; '.join(left.damaged)}"
            yield Finding(incarnation, NodeKind.CORRUPT, detail, left.failed)
        if missing:
            left.torn.append(f"{missing} records of its last moments missing")
        if left.torn:
            yield Finding(incarnation, NodeKind.LOST, f"{whose}: {'; '.join(left.torn)}", missing)


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


class SealedTails(Struct, frozen=True):
    """What was done with the tails of a node; prints as text.

    `problems` says what is missing or damaged, `left` why the tails were left as they are.
    """

    node: str
    tails: int = 0
    rows: int = 0
    problems: list[str] = []
    left: str | None = None
    running: bool = False

    def __str__(self) -> str:
        if self.left is not None:
            return f"{self.node}: tails not sealed: {self.left}"
        done = f"{self.node}: {self.tails} tails sealed, {self.rows} rows"
        return "\n".join([done, *(f"  {problem}" for problem in self.problems)])


def seal_all_left(journal: Path) -> list[SealedTails]:
    """Seal the tails of all nodes that do not run; nodes without tails are not in the result.

    Those in an archive are copies of tails that may still grow, and are left as they are.
    """
    done: list[SealedTails] = []
    if is_archive(journal):
        return done
    for node in all_nodes(journal):
        if any(tails_in(table_directory(journal, table, node)) for table in SCHEMAS):
            try:
                done.append(seal_left_tails(journal, node))
            except LocalError:
                done.append(SealedTails(node, left="it is running", running=True))
            except OSError as error:
                done.append(SealedTails(node, left=str(error)))
    return done


def seal_left_tails(journal: Path, node: str) -> SealedTails:
    """Seal the tails that a node left, and write down what is missing, as its next start would.

    Raises LocalError if the node is running, and OSError if the disk fails.
    """
    lock = FileLock(lock_path(journal, node), "writes this node's journal")
    try:
        recovery = Recovery(journal, node, _LAST_INCARNATION, fsync=True)
        findings = recovery.run()
        for incarnation, own in groupby(findings, lambda finding: finding.incarnation):
            _write_at_end(journal, node, incarnation, list(own))
        problems = [finding.detail for finding in findings]
        return SealedTails(node, recovery.tails, recovery.rows, problems)
    finally:
        lock.release()


def _write_at_end(journal: Path, node: str, incarnation: int, findings: list[Finding]) -> None:
    """Add rows to an incarnation all of whose tails are sealed."""
    ends = [
        footer
        for table in SCHEMAS
        for footer in read_footers(table_directory(journal, table, node), [])
        if footer.stem.incarnation == incarnation
    ]
    seq = max((footer.last for footer in ends), default=-1) + 1
    at = max((end_of_sealed(footer.path) or 0 for footer in ends), default=incarnation * 1_000)
    version = max((footer.version for footer in ends), default=WRITTEN_VERSION)
    write_findings(journal, node, findings, seq=seq, at=at, version=version)


def write_findings(
    journal: Path,
    node: str,
    findings: list[Finding],
    *,
    seq: int,
    at: int,
    version: int = WRITTEN_VERSION,
) -> None:
    """Write rows of `nodes` to a sealed file of their own: what one incarnation lacks."""
    incarnation = findings[0].incarnation
    rows = [
        {
            "incarnation": incarnation,
            "seq": number,
            "at": at,
            "kind": str(found.kind),
            "detail": found.detail,
            "lost": found.count,
        }
        for number, found in enumerate(findings, seq)
    ]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMAS[NODES])
    directory = table_directory(journal, NODES, node)
    directory.mkdir(parents=True, exist_ok=True)
    write_sealed(directory, NODES, Stem(incarnation, seq), [batch], fsync=True, version=version)


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
        self._node = node
        self._fsync = fsync
        self._apply_retention = retain
        self._report_loss = report_loss
        self._may_recover = may_recover  # only the holder of the node's lock may touch other tails
        self._retired: deque[Tail] = deque()
        self._recovery = Recovery(journal, node, incarnation, fsync=fsync)
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
            for found in self._recovery.run():
                self._report_loss(found.kind, found.count, found.detail)
            self._recovered = True
        while self._retired:
            self._seal(self._retired[0])
            self._retired.popleft()
        self._warned = False
        self._retain()

    def _seal(self, tail: Tail) -> None:
        try:
            content = seal_tail(tail.path, tail.table, fsync=self._fsync)
        except FileNotFoundError:
            self._report_loss(NodeKind.LOST, tail.rows, f"{tail.label} vanished")
            return
        _LOG.debug("journal of %s: sealed %s, %d rows", self._node, tail.label, content.rows)
        missing = tail.rows - content.rows
        if content.damaged:
            detail = "; ".join(f"{tail.label}: {damage}" for damage in content.damaged)
            self._report_loss(NodeKind.CORRUPT, missing, detail)
        elif missing:
            self._report_loss(NodeKind.LOST, missing, f"{tail.label} incomplete")

    def _retain(self) -> None:
        now = time.monotonic()
        if now - self._retention_ran >= _RETENTION_SECONDS or self._stopping:
            self._retention_ran = now
            self._apply_retention()

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("journal of %s: cannot seal, will retry: %s", self._node, error)
