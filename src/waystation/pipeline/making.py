"""From the registry to frames: tables that are made together, of one read of a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from waystation.errors import LocalError, quote
from waystation.pipeline.journal import Journal
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.schema import spark_schema
from waystation.pipeline.tables import BY_NAME, TABLES, Table, maker, table_of


def built(journal: Journal, table: str) -> DataFrame:
    """A table that the pipeline builds, by its name, as a frame.

    ```text
    pipeline.built(journal, "coverage").where("ended_by = 'crash'").show()
    ```
    """
    found = BY_NAME[checked_name(table)]
    frame = made(journal, [found])
    outside = rows_beside(journal, found)
    if not outside.num_rows:
        return frame
    rows = outside.to_pylist()
    return frame.unionAll(journal.spark.createDataFrame(rows, spark_schema(found.schema)))


def made(
    journal: Journal,
    tables: Sequence[Table],
    *more: str,
    of: Callable[[str], DataFrame] | None = None,
) -> DataFrame:
    """Tables that are made together, as one frame; the rows of each are a part of their table.

    `more` is what kernels can tell beside tables, such as ROWS_READ. `of` returns other tables of
    the same journal; without it they are made anew.
    """
    if tables[0].exchange:
        [table] = tables
        make = maker(table.made_by)
        frame: DataFrame = make(journal, of) if table.of else make(journal)
        return frame
    asked = frozenset([*(table.name for table in tables), *more])
    kernels = dict.fromkeys(table.made_by for table in tables)

    def work(data: FileData) -> Iterator[pa.Table]:
        for kernel in kernels:
            for part in maker(kernel)(data, asked):
                if table_of(part) in asked:
                    yield part

    inputs = dict.fromkeys(name for table in tables for name in table.inputs)
    return journal.work(
        tuple(inputs),
        work,
        tables[-1].schema,
        split=all(table.split for table in tables),
        frugal=all(table.frugal for table in tables),
    )


def rows_beside(journal: Journal, table: Table) -> pa.Table:
    """The rows of a table that belong to no node."""
    if not table.beside:
        return table.schema.empty_table()
    found: pa.Table = maker(table.beside)(journal.listing)
    return found


def checked_name(table: str) -> str:
    """The name of a table; raises a LocalError if there is none of that name."""
    if table not in BY_NAME:
        raise LocalError(
            f"unknown table {quote(table)}",
            rule="SP-1",
            hint=f"choose from {', '.join(TABLES)}",
        )
    return table
