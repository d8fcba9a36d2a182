"""Build all tables of a journal and write them to disk, with progress and a summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import SparkSession

from waystation.journal.schema import TEXT
from waystation.pipeline.journal import Journal, read_journal
from waystation.pipeline.making import checked_name, made, rows_beside
from waystation.pipeline.node_data import FileData
from waystation.pipeline.output import Place, prepared_directory
from waystation.pipeline.schema import JOURNAL
from waystation.pipeline.session import session
from waystation.pipeline.shipping import check_shared
from waystation.pipeline.steps import rejects
from waystation.pipeline.tables import ROWS_READ, TABLES, Table, passes
from waystation.pipeline.writing import Written, write_tables


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


def build(
    journal: str | Path | Journal,
    out: str | Path,
    *,
    spark: SparkSession | None = None,
    nodes: Iterable[str] | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    tables: Iterable[str] = TABLES,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Build the tables of a journal and write them to `out`, replacing each atomically.

    All tables cover the files that exist when the build begins. `progress` is called when a table
    is started and when it is complete.

    ```text
    summary = pipeline.build("journal/", "tables/", progress=print)
    print(summary.rejected, "rows or files could not be read")
    ```
    """
    asked = passes([checked_name(table) for table in tables])
    count = sum(map(len, asked))
    directory = prepared_directory(Path(out))
    if not isinstance(journal, Journal):
        found = spark if spark is not None else session()
        journal = read_journal(found, journal, nodes=nodes, since=since, until=until)
    check_shared(journal.spark, read=[journal.path], write=[directory])
    tell = progress if progress is not None else _tell_nobody
    began = time.monotonic()
    written: dict[str, TableSummary] = {}
    read: dict[str, int] = {}
    for group in asked:
        started = time.monotonic()
        numbers = {table.name: len(written) + place for place, table in enumerate(group, 1)}
        for table, number in numbers.items():
            tell(Progress(table, number, count, "started", 0, 0.0))
        done = _write(journal, directory, group)
        read |= done.read
        seconds = (time.monotonic() - started) / len(group)
        for table, number in numbers.items():
            size = Place(directory, table).size()
            written[table] = TableSummary(done.rows[table], size, seconds)
            tell(Progress(table, number, count, "done", done.rows[table], seconds))
    rejected = written["rejects"].rows if "rejects" in written else rejects(journal).count()
    read = {table: read.get(table, 0) for table in JOURNAL} if read else {}
    taken = time.monotonic() - began
    return Summary(written, read or rows_in(journal), rejected, taken, str(directory))


def _write(journal: Journal, directory: Path, tables: tuple[Table, ...]) -> Written:
    """Write one table, or several that are made together."""
    places = {table.name: Place(directory, table.name) for table in tables}
    beside = {table.name: rows_beside(journal, table) for table in tables}
    return write_tables(made(journal, tables, ROWS_READ), places, beside)


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
