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
from waystation.journal.schema import MESSAGES
from waystation.pipeline.kernels.columns import repeated
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.listing import Listing, Wanted, list_journal
from waystation.pipeline.schema import JOURNAL, spark_schema
from waystation.pipeline.source.filters import Condition, all_hold, condition_of
from waystation.pipeline.source.options import Reading
from waystation.pipeline.source.pieces import Piece, PieceData, decoded, encoded, plan
from waystation.pipeline.tables import BY_NAME, Table, maker, table_of

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
        if reading.is_built:
            return _making(listing, BY_NAME[reading.table])
        pieces = plan(listing, reading.table, self.conditions, reading.partition_bytes)
        return [InputPartition(encoded(bundle)) for bundle in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces."""
        if partition.value is None:  # there are none
            return
        reading, value = self.reading, partition.value
        if reading.is_built:
            made = [value] if isinstance(value, pa.Table) else _made(reading, value)
            for rows in made:
                plain = rows.cast(reading.schema)
                yield from in_batches(plain, self.schema, self.conditions)
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


def _making(listing: Listing, table: Table) -> list[InputPartition]:
    """A task for each node, as its rows do not depend on the others; then what belongs to none."""
    order = {name: number for number, name in enumerate((MESSAGES, *JOURNAL))}
    parts = [
        InputPartition((node, dict(sorted(files.items(), key=lambda found: order[found[0]]))))
        for node, files in listing.of(table.inputs).items()
    ]
    return [*parts, InputPartition(maker(table.beside)(listing))] if table.beside else parts


def _made(reading: Reading, work: tuple[str, dict[str, Any]]) -> Iterator[pa.Table]:
    """The rows of a built table for one node."""
    table, (node, files) = BY_NAME[reading.table], work
    data = FileData(reading.path, Share(node, files), Wanted())
    for rows in maker(table.made_by)(data, {table.name}):
        if table_of(rows) == table.name:
            yield rows
