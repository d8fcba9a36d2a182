"""Build all tables of a journal and write them to disk, with progress and a summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.dataset as ds
from msgspec import Struct, field
from pyspark.sql import DataFrame, SparkSession

from waystation.errors import LocalError
from waystation.journal.filesystems import file_system
from waystation.journal.schema import TEXT
from waystation.journal.seal import seal_all_left
from waystation.locations import is_remote, located
from waystation.pipeline.day_building import Asked, build_days
from waystation.pipeline.days import checked_state, day_numbers, read_state, refuse_days
from waystation.pipeline.journal import Journal, read_journal
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.listing import EVERYTHING
from waystation.pipeline.making import built, checked_name, made, rows_beside
from waystation.pipeline.reach import TELLING, Reach, reach_in, reach_in_tables
from waystation.pipeline.schema import JOURNAL
from waystation.pipeline.shipping import check_shared
from waystation.pipeline.spark_session import session
from waystation.pipeline.steps import rejects
from waystation.pipeline.store import PartFile, Store, opened_store
from waystation.pipeline.tables import ROWS_READ, TABLES, Table, passes
from waystation.pipeline.writing import Written, read_back, write_tables
from waystation.why.finished import StoredTables


class Progress(Struct, frozen=True):
    """The progress of a build: the current table, its number and state."""

    table: str
    number: int
    of: int
    state: Literal["started", "running", "done"]
    rows: int
    seconds: float


class TableSummary(Struct, frozen=True):
    """The result for one table of a build."""

    rows: int
    bytes: int
    seconds: float  # a share, for tables that are made together


class Summary(Struct, frozen=True):
    """The result of a build."""

    tables: dict[str, TableSummary]
    rows_in: dict[str, int]  # rows of the journal by table, including invalid ones
    rejected: int
    seconds: float
    out: str
    sealed: list[str] = field(default_factory=list)  # what was done with tails of killed nodes
    reach: Reach | None = None  # who is missing; None if not all tables were built that tell
    days: list[str] | None = None  # those that were built; None if tables are not kept by day
    removed: list[str] = field(default_factory=list)  # days that are no longer kept


def build(
    journal: str | Path | Journal,
    out: str | Path,
    *,
    spark: SparkSession | None = None,
    nodes: Iterable[str] | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    tables: Iterable[str] = TABLES,
    format: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    days: Iterable[str] = (),
    changed: bool = False,
    keep_days: int | None = None,
    lookahead: float | None = None,
) -> Summary:
    """Build the tables of a journal and write them to `out`, a directory or the URI of a store.

    They replace the former ones when all of them are complete: a build that fails changes none. All
    tables cover the files that exist when the build begins; the last records of nodes that were
    killed are sealed before, so that they are included, and the summary says so. A journal that was
    read before is taken as it was then. `format` is `parquet` or `delta`, the
    default in object stores. `progress` is called when a table is started and when it is complete.

    ```text
    summary = pipeline.build("journal/", "tables/", progress=print)
    print(summary.rejected, "rows or files could not be read")
    ```

    With `days`, such as `2026-11-16` or `2026-11-01..2026-11-16`, or with `changed`, which are the
    days that are new or that other files belong to than before, only these are built, beside the
    days that are there (SP-6). `keep_days` removes all but the last so many. Records more than
    `lookahead` seconds after the last day are not read; by default all there are.

    ```text
    pipeline.build("journal/", "tables/", changed=True, keep_days=30)
    ```
    """
    by_day = _asked_days(days, changed=changed, keep=keep_days, lookahead=lookahead)
    if by_day is not None:
        if (nodes, since, until, tuple(tables)) != (None, None, None, TABLES):
            raise _all_of_it()
        return _build_days(journal, opened_store(out, format), by_day, spark, progress)
    asked = passes([checked_name(table) for table in tables])
    count = sum(map(len, asked))
    store = opened_store(out, format)
    refuse_days(store.out)
    sealed: list[str] = []
    if not isinstance(journal, Journal):
        found = spark if spark is not None else session()
        sealed = _seal_left(str(journal))
        journal = read_journal(found, journal, nodes=nodes, since=since, until=until)
    _check_shared(journal, store)
    tell = progress if progress is not None else _tell_nobody
    began = time.monotonic()
    written: dict[str, TableSummary] = {}
    files: dict[str, list[PartFile]] = {}
    read: dict[str, int] = {}
    with journal.sharing():
        for group in asked:
            started = time.monotonic()
            numbers = {table.name: len(written) + place for place, table in enumerate(group, 1)}
            for table, number in numbers.items():
                tell(Progress(table, number, count, "started", 0, 0.0))
            done = _write(journal, store, group, files)
            read |= done.read
            files |= done.files
            seconds = (time.monotonic() - started) / len(group)
            for table, number in numbers.items():
                size = sum(file.size for file in files[table])
                written[table] = TableSummary(done.rows[table], size, seconds)
                tell(Progress(table, number, count, "done", done.rows[table], seconds))
    rejected = written["rejects"].rows if "rejects" in written else rejects(journal).count()
    read = {table: read.get(table, 0) for table in JOURNAL} if read else rows_in(journal)
    reach = _reach(store, files)
    store.publish(files)
    return Summary(written, read, rejected, time.monotonic() - began, store.out, sealed, reach)


def _asked_days(
    days: Iterable[str], *, changed: bool, keep: int | None, lookahead: float | None
) -> Asked | None:
    """The days that are asked for; None if all of the journal is."""
    numbers = frozenset(day_numbers([days] if isinstance(days, str) else days))
    if not numbers and not changed:
        if keep is not None or lookahead is not None:
            raise LocalError(
                "only tables that are kept by day have days to keep, or to look ahead of",
                rule="SP-6",
                hint="give days, or those that changed",
            )
        return None
    if keep is not None and keep < 1:
        raise LocalError(f"cannot keep {keep} days", rule="SP-6", hint="give 1 or more")
    if lookahead is not None and lookahead < 0:
        raise LocalError(f"cannot look {lookahead} s ahead", rule="SP-6", hint="give 0 or more")
    ahead = None if lookahead is None else round(lookahead * 1_000_000)
    return Asked(numbers, changed, keep, ahead)


def _all_of_it() -> LocalError:
    return LocalError(
        "days are built of all tables and nodes",
        rule="SP-6",
        hint="give no nodes, times or tables with days",
    )


def _build_days(
    journal: str | Path | Journal,
    store: Store,
    asked: Asked,
    spark: SparkSession | None,
    progress: Callable[[Progress], None] | None,
) -> Summary:
    """Build days of the tables."""
    checked_state(store.out)
    sealed: list[str] = []
    if not isinstance(journal, Journal):
        found = spark if spark is not None else session()
        sealed = _seal_left(str(journal))
        journal = read_journal(found, journal)
    elif journal.wanted != EVERYTHING:
        raise _all_of_it()
    _check_shared(journal, store)
    began = time.monotonic()

    def tell(table: str, rows: int, seconds: float) -> None:
        if progress is not None:
            place = (TABLES.index(table) + 1, len(TABLES))
            state: Literal["started", "done"] = "started" if rows < 0 else "done"
            progress(Progress(table, *place, state, max(rows, 0), seconds))

    done = build_days(journal, store, asked, tell)
    written = {
        table: TableSummary(rows, done.bytes[table], done.seconds[table])
        for table, rows in done.rows.items()
    }
    rejected = done.rows.get("rejects", 0)
    reach = reach_in_tables(StoredTables(store.out)) if read_state(store.out) else None
    return Summary(
        *(written, {}, rejected, time.monotonic() - began, store.out, sealed, reach),
        days=done.days,
        removed=done.removed,
    )


def _check_shared(journal: Journal, store: Store) -> None:
    check_shared(
        journal.spark, read=[journal.path], write=[] if is_remote(store.out) else [Path(store.out)]
    )


def _reach(store: Store, files: Mapping[str, list[PartFile]]) -> Reach | None:
    """Whose records the tables are made of, if those were built that tell."""
    if not files.keys() >= {*TELLING}:
        return None
    system, _ = file_system(store.out)
    coverage, sessions = (
        ds.dataset([file_system(path)[1] for path in paths], filesystem=system, format="parquet")
        for paths in (store.written(table, files[table]) for table in TELLING)
    )
    return reach_in(coverage, sessions)


def _seal_left(journal: str) -> list[str]:
    """Let the pipeline see the last records of nodes that were killed; says what was done."""
    done = [] if is_remote(journal) else seal_all_left(Path(located(journal)))
    return [str(sealed) for sealed in done if not sealed.running]


def _write(
    journal: Journal,
    store: Store,
    tables: tuple[Table, ...],
    files: Mapping[str, list[PartFile]],
) -> Written:
    """Write one table, or several that are made together; `files` are those written before."""

    def of(name: str) -> DataFrame:
        if name not in files:
            return built(journal, name)
        return read_back(journal.spark, store, name, files[name])

    beside = {table.name: rows_beside(journal, table) for table in tables}
    return write_tables(made(journal, tables, ROWS_READ, of=of), store, beside, beside)


def rows_in(journal: Journal) -> dict[str, int]:
    """The number of rows of each table's files, according to their footers."""

    def count(data: FileData) -> Iterator[pa.Table]:
        counted = {table: data.rows(table) for table in JOURNAL}
        yield pa.table({"table": list(counted), "rows": list(counted.values())}, schema=schema)

    schema = pa.schema({"table": TEXT, "rows": pa.int64()})
    found = (
        journal.work(tuple(JOURNAL), count, schema, split=False)
        .groupBy("table")
        .sum("rows")
        .collect()
    )
    totals = {row[0]: row[1] for row in found}
    return {table: totals.get(table, 0) for table in JOURNAL}


def _tell_nobody(progress: Progress) -> None:
    del progress
