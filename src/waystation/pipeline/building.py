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

from waystation.journal.filesystems import file_system
from waystation.journal.schema import TEXT
from waystation.journal.seal import seal_all_left
from waystation.locations import is_remote, located
from waystation.pipeline.journal import Journal, read_journal
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.making import built, checked_name, made, rows_beside
from waystation.pipeline.reach import TELLING, Reach, reach_in
from waystation.pipeline.schema import JOURNAL
from waystation.pipeline.shipping import check_shared
from waystation.pipeline.spark_session import session
from waystation.pipeline.steps import rejects
from waystation.pipeline.store import PartFile, Store, opened_store
from waystation.pipeline.tables import ROWS_READ, TABLES, Table, passes
from waystation.pipeline.writing import Written, read_back, write_tables


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
    """
    asked = passes([checked_name(table) for table in tables])
    count = sum(map(len, asked))
    store = opened_store(out, format)
    sealed: list[str] = []
    if not isinstance(journal, Journal):
        found = spark if spark is not None else session()
        sealed = _seal_left(str(journal))
        journal = read_journal(found, journal, nodes=nodes, since=since, until=until)
    check_shared(
        journal.spark, read=[journal.path], write=[] if is_remote(store.out) else [Path(store.out)]
    )
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
