"""Read the built tables with Arrow and aggregate them batch by batch.

Memory grows with the number of groups, not with that of the rows. What the numbers
mean, and which are needed, is up to the callers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import acero

from waystation.errors import LocalError, quote
from waystation.journal.schema import INSTANT
from waystation.pipeline.reach import Reach, reach_in_tables
from waystation.pipeline.tables import REPORTED, STORED
from waystation.why.finished import StoredTables

Row: TypeAlias = dict[str, Any]
Expression: TypeAlias = Any

BESIDE: Final = ("session_history", "clocks", "coverage", "incidents", "whatif")
"""Tables that a report uses if they are there: earlier builds made none of them.

`whatif` is no table of a build: `waystation pipeline whatif` writes it.
"""

NO_ID: Final = "0" * 32
"""The id of messages whose sender gave them none."""

BATCH_ROWS: Final = 65_536
"""Number of rows that are read at a time."""

_AHEAD: Final = {"batch_readahead": 4, "fragment_readahead": 2}
_FORMAT: Final = {"coerce_int96_timestamp_unit": "us"}  # older versions of Spark write nanoseconds


class Tables:
    """The tables in a directory; missing ones have no rows."""

    def __init__(self, directory: str | Path, *, batch_rows: int = BATCH_ROWS) -> None:
        self.directory = directory
        self._batch_rows = batch_rows
        self._datasets: dict[str, Any] = {}
        self._stored = StoredTables(directory)
        for table in (*REPORTED, *BESIDE):
            with self._complaining(table):
                dataset = self._stored.dataset(table, **_FORMAT)
            if dataset is not None:
                self._datasets[table] = self._checked(table, dataset)
        if not self._datasets:
            raise LocalError(
                f"no tables in {quote(str(directory))}",
                rule="OB-4",
                hint="build them with `waystation pipeline build`",
            )

    @property
    def missing(self) -> tuple[str, ...]:
        """The tables that are missing."""
        return tuple(table for table in REPORTED if table not in self._datasets)

    def has(self, table: str) -> bool:
        """Whether a table is there, with rows or without."""
        return table in self._datasets

    def reach(self) -> Reach | None:
        """Whose records the tables are made of, and how far these reach, if they tell."""
        with self._complaining("coverage"):
            return reach_in_tables(self._stored)

    def rows(self, table: str) -> int:
        """The number of rows of a table, according to the footers of its files."""
        dataset = self._datasets.get(table)
        with self._complaining(table):
            return 0 if dataset is None else int(dataset.count_rows())

    def grouped(
        self,
        table: str,
        keys: Mapping[str, Expression],
        values: Mapping[str, tuple[Expression, str]] | None = None,
        where: Expression | None = None,
    ) -> list[Row]:
        """Groups of rows with the same keys, sorted by these, and the number of `rows` of each.

        `values` are expressions with their aggregation: `sum`, `min`, `max`. Without
        keys there is one group, of all rows, or none.
        """
        if not self._files(table):
            return []
        wanted = values or {}
        columns = {**keys, **{name: expression for name, (expression, _) in wanted.items()}}
        joined: list[tuple[Any, ...]] = [
            (name, f"hash_{function}", None, name) for name, (_, function) in wanted.items()
        ]
        joined.append(([], "hash_count_all", None, "rows"))
        columns = columns if keys else {"": pc.scalar(0), **columns}
        steps = [
            acero.Declaration("scan", self._scan(table, columns, where)),
            *(
                []
                if where is None
                else [acero.Declaration("filter", acero.FilterNodeOptions(where))]
            ),
            acero.Declaration(
                "project", acero.ProjectNodeOptions(list(columns.values()), list(columns))
            ),
            acero.Declaration(
                "aggregate", acero.AggregateNodeOptions(joined, keys=list(keys) or [""])
            ),
        ]
        with self._complaining(table):
            found: list[Row] = acero.Declaration.from_sequence(steps).to_table().to_pylist()
        return sorted(found, key=lambda row: [_ordered(row[name]) for name in keys])

    def batches(
        self, table: str, columns: list[str], where: Expression | None = None
    ) -> Iterator[Any]:
        """Some columns of a table, batch after batch, in the order of its files.

        A scanner reads many batches ahead; nested ones are large, so files are read one by one.
        The rows of small files are combined: a larger batch is more informative.
        """
        waiting: list[Any] = []
        for batch in self._small_batches(table, columns, where):
            if waiting and waiting[0].schema != batch.schema:  # a file of another version
                yield _joined(waiting)
                waiting = []
            waiting.append(batch)
            if sum(part.num_rows for part in waiting) >= self._batch_rows:
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)

    def _small_batches(
        self, table: str, columns: list[str], where: Expression | None
    ) -> Iterator[Any]:
        if not self._files(table):
            return
        with self._complaining(table):
            for path in self._datasets[table].files:
                with pq.ParquetFile(path, filesystem=self._stored.system, **_FORMAT) as file:
                    for batch in file.iter_batches(self._batch_rows, columns=columns):
                        chosen = batch if where is None else batch.filter(where)
                        if chosen.num_rows:
                            yield chosen

    def _scan(self, table: str, columns: Mapping[str, Expression], where: Expression | None) -> Any:
        """How a table is read: only the needed columns, and not far ahead."""
        return acero.ScanNodeOptions(
            self._datasets[table], columns=dict(columns), filter=where, **_AHEAD
        )

    def _files(self, table: str) -> bool:
        return table in self._datasets and bool(self._datasets[table].files)

    def _checked(self, table: str, dataset: Any) -> Any:
        absent = [name for name in STORED[table].names if name not in dataset.schema.names]
        if absent and dataset.files:
            raise LocalError(
                f"the table {table} in {quote(str(self.directory))} has no column {absent[0]}",
                rule="OB-4",
                hint="build it with `waystation pipeline build`",
            )
        return dataset

    @contextmanager
    def _complaining(self, table: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            problem = next(iter(str(error).splitlines()), type(error).__name__)
            raise LocalError(
                f"the table {table} in {quote(str(self.directory))} cannot be read: {problem}",
                rule="OB-4",
                hint="build it again with `waystation pipeline build`",
            ) from error


def _joined(batches: list[Any]) -> Any:
    """One batch with the rows of several."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def micros(column: str | Expression) -> Expression:
    """A timestamp as microseconds since the epoch, whatever unit the file has."""
    instant = pc.field(column) if isinstance(column, str) else column
    return instant.cast(INSTANT, safe=False).cast(pa.int64())


def with_numbers(batch: Any) -> Any:
    """Rows with timestamps as microseconds since the epoch."""
    columns = {
        name: column.cast(INSTANT, safe=False).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return pa.table(columns)


def identified(column: str = "message_id") -> Expression:
    """The id of a message, or null for one that has none."""
    field = pc.field(column)
    return pc.if_else(
        pc.equal(field, pc.scalar(NO_ID)), pc.scalar(pa.scalar(None, pa.string())), field
    )


def _ordered(value: Any) -> tuple[bool, Any]:
    """Null comes first."""
    return (value is not None, value)
