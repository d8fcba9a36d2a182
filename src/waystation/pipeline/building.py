"""Build all tables of a journal and write them to disk, with progress and a summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from waystation.errors import LocalError, quote
from waystation.pipeline.journal import Journal, read_journal
from waystation.pipeline.node_data import FileData
from waystation.pipeline.output import Place, prepared_directory
from waystation.pipeline.schema import JOURNAL, TEXT
from waystation.pipeline.session import session
from waystation.pipeline.shipping import check_shared
from waystation.pipeline.steps import (
    audit,
    expected,
    expected_and_audit,
    health,
    rejects,
    route_history,
    subscription_history,
    traces,
)
from waystation.pipeline.writing import write_table, write_tables

TABLES: Final = (
    "route_history",
    "subscription_history",
    "expected",
    "audit",
    "traces",
    "health",
    "rejects",
)
"""The tables, in the order in which they are built."""

_TOGETHER: Final = ("expected", "audit")


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
    asked = _checked(tables)
    directory = prepared_directory(Path(out))
    if not isinstance(journal, Journal):
        found = spark if spark is not None else session()
        journal = read_journal(found, journal, nodes=nodes, since=since, until=until)
    check_shared(journal.spark, read=[journal.path], write=[directory])
    tell = progress if progress is not None else _tell_nobody
    began = time.monotonic()
    written: dict[str, TableSummary] = {}
    for group in _grouped(asked):
        started = time.monotonic()
        numbers = {table: len(written) + place for place, table in enumerate(group, 1)}
        for table, number in numbers.items():
            tell(Progress(table, number, len(asked), "started", 0, 0.0))
        rows = _write(journal, directory, group)
        seconds = (time.monotonic() - started) / len(group)
        for table, number in numbers.items():
            size = Place(directory, table).size()
            written[table] = TableSummary(rows[table], size, seconds)
            tell(Progress(table, number, len(asked), "done", rows[table], seconds))
    rejected = written["rejects"].rows if "rejects" in written else rejects(journal).count()
    taken = time.monotonic() - began
    return Summary(written, rows_in(journal), rejected, taken, str(directory))


def _grouped(tables: list[str]) -> list[tuple[str, ...]]:
    """The tables in order, grouped by those that are made together."""
    if not set(_TOGETHER) <= set(tables):
        return [(table,) for table in tables]
    first, *others = _TOGETHER
    return [_TOGETHER if table == first else (table,) for table in tables if table not in others]


def _write(journal: Journal, directory: Path, tables: tuple[str, ...]) -> dict[str, int]:
    """Write one table, or several that are made together; returns the number of rows of each."""
    places = {table: Place(directory, table) for table in tables}
    if tables == _TOGETHER:
        return write_tables(expected_and_audit(journal), places)
    [table] = tables
    return {table: write_table(_frames(journal)[table](), places[table], table)}


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


def _frames(journal: Journal) -> dict[str, Callable[[], DataFrame]]:
    """How each table is made. A step recomputes what it needs: cheaper than storing it."""

    def routes() -> DataFrame:
        return route_history(journal.routes)

    def subscriptions() -> DataFrame:
        return subscription_history(journal.subscriptions)

    def ruled() -> DataFrame:
        return expected(journal.messages, routes(), subscriptions())

    return {
        "route_history": routes,
        "subscription_history": subscriptions,
        "expected": ruled,
        "traces": lambda: traces(journal.messages),
        "audit": lambda: audit(ruled(), journal.messages),
        "health": lambda: health(journal.messages),
        "rejects": lambda: rejects(journal),
    }


def _checked(tables: Iterable[str]) -> list[str]:
    asked = list(tables)
    for table in asked:
        if table not in TABLES:
            raise LocalError(
                f"unknown table {quote(table)}",
                rule="SP-1",
                hint=f"choose from {', '.join(TABLES)}",
            )
    return [table for table in TABLES if table in asked]


def _tell_nobody(progress: Progress) -> None:
    del progress
