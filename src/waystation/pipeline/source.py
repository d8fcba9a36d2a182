"""A journal as a Spark table: the reader behind `spark.read.format("waystation")`.

The rows are those of `read_journal`, read by the same code. Filters are pushed down:
those on nodes, incarnations and times to files and row groups, all others to the rows before they
leave the Python worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from waystation.errors import LocalError
from waystation.pipeline.columns import repeated
from waystation.pipeline.listing import Listing, Wanted, list_journal
from waystation.pipeline.node_data import FileData, Share
from waystation.pipeline.schema import JOURNAL, MESSAGES, TEXT, spark_schema
from waystation.pipeline.source_filters import Condition, all_hold, condition_of
from waystation.pipeline.source_options import REJECTS, Reading
from waystation.pipeline.source_pieces import Piece, PieceData, decoded, encoded, plan

_BATCH_ROWS = 65_536


class JournalReader(DataSourceReader):
    """Reads one table of a journal as it is when the query is planned."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self.reading = reading
        self.schema = wanted_columns(reading, schema)
        self.conditions: list[Condition] = []

    def partitions(self) -> list[InputPartition]:
        """The partitions of the read, each a list of pieces."""
        reading = self.reading
        listing = list_journal(reading.path, Wanted())
        if reading.table == REJECTS:
            return [*_rejecting(listing), InputPartition(_strays(listing))]
        pieces = plan(listing, reading.table, self.conditions, reading.partition_bytes)
        return [InputPartition(encoded(bundle)) for bundle in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces."""
        if partition.value is None:  # there are none
            return
        reading, value = self.reading, partition.value
        if reading.table == REJECTS:
            found = value if isinstance(value, list) else _rejects(reading.path, value)
            yield from in_batches(_as_table(found, reading.schema), self.schema, self.conditions)
            return
        asked = [condition for condition in self.conditions if condition.column != "node"]
        for piece in decoded(value):
            yield from rows_of(reading, piece, self.schema, asked)


class FilteringReader(JournalReader):
    """Reads one table with filters pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Accept the filters that can be used here; Spark applies the others."""
        for filter in filters:
            condition = condition_of(filter, self.reading.schema)
            if condition is None:
                yield filter
            else:
                self.conditions.append(condition)


def rows_of(
    reading: Reading,
    piece: Piece,
    schema: pa.Schema,
    conditions: Iterable[Condition] = (),
    *,
    must_be_there: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of one piece with the requested columns."""
    data = PieceData(reading.path, reading.table, piece, conditions, must_be_there=must_be_there)
    for rows in data.batches(reading.table):
        named = rows.add_column(0, "node", repeated(piece.node, rows.num_rows))
        yield from in_batches(named, schema)


def in_batches(
    rows: pa.Table, schema: pa.Schema, conditions: Iterable[Condition] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows in the form that Spark expects."""
    kept = all_hold(conditions, rows)
    if kept.num_rows:
        yield from kept.select(schema.names).cast(schema).to_batches(max_chunksize=_BATCH_ROWS)


def wanted_columns(reading: Reading, schema: StructType) -> pa.Schema:
    """The columns that a user's schema selects: some of the table's, with their types."""
    whole = spark_schema(reading.schema)
    known = {field.name: field.dataType for field in whole}
    for field in schema:
        if known.get(field.name) != field.dataType:
            kind = field.dataType.simpleString()
            raise LocalError(
                f"the table {reading.table} has no column {field.name} of type {kind}",
                rule="SP-4",
                hint=f"omit the schema, or select from {whole.simpleString()}",
            )
    return to_arrow_schema(schema, timezone="UTC")


def _rejecting(listing: Listing) -> list[InputPartition]:
    """A task for each node: the rejects of one do not depend on the others."""
    order = {table: number for number, table in enumerate((MESSAGES, *JOURNAL))}
    return [
        InputPartition((node, dict(sorted(tables.items(), key=lambda found: order[found[0]]))))
        for node, tables in listing.nodes.items()
    ]


def _rejects(root: str, work: tuple[str, dict[str, Any]]) -> list[Any]:
    node, files = work
    return list(FileData(root, Share(node, files), Wanted()).all_rejects())


def _strays(listing: Listing) -> list[Any]:
    return [
        (stray.table, None, stray.path, None, "it is not in a directory node=<name>")
        for stray in listing.strays
    ]


def _as_table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    if not rows:
        return schema.empty_table()
    columns = [pa.array(values, TEXT) for values in zip(*rows, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)
