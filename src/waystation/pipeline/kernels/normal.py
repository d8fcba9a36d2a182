"""Convert journal files of any version to the current columns (docs: schema-evolution).

A missing column gets its default, an unknown column is not read, a compatible
type is converted; anything else makes the file a reject. No files are opened here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waystation.pipeline.schema import CODED, JOURNAL, Column, coded_schema, plain_schema
from waystation.pipeline.tables import TAKEN


class UnfitError(Exception):
    """A file or frame does not have the columns of its table."""


def check_columns(table: str, schema: pa.Schema, *, node: bool = False) -> list[str]:
    """The columns to read; raises UnfitError if these are not the columns of the table.

    A frame must also have the column `node`, which for files is in the path.
    """
    if node and "node" not in schema.names:
        raise UnfitError("it has no column node")
    for name, column in JOURNAL[table].items():
        if column.of_the_file and not node:
            continue  # a column of that name is somebody else's
        if schema.names.count(name) > 1:
            raise UnfitError(f"it has the column {name} twice")
        if name not in schema.names:
            if column.required:
                raise UnfitError(f"it has no column {name}")
        elif not _kindred(schema.field(name).type, column.type):
            raise UnfitError(f"its column {name} is {schema.field(name).type}, not {column.type}")
    return [
        name
        for name, column in JOURNAL[table].items()
        if name in schema.names and (node or not column.of_the_file)
    ]


def check_built(table: str, schema: pa.Schema) -> None:
    """Raise an UnfitError if these are not the columns of a built table."""
    for field in TAKEN[table]:
        if field.name not in schema.names:
            raise UnfitError(f"it has no column {field.name}")
        if not _kindred(schema.field(field.name).type, field.type):
            raise UnfitError(f"its column {field.name} is {schema.field(field.name).type}")


def normal(table: str, rows: pa.Table) -> pa.Table:
    """The rows as steps read them; raises Arrow's error for values that do not fit."""
    return _brought(table, rows, plain_schema(table))


def coded(
    table: str, rows: pa.Table, plain: Collection[str] = (), *, every: bool = False
) -> pa.Table:
    """The rows with the current columns and dictionary-encoded strings, as in `coded_schema`."""
    return _brought(table, rows, coded_schema(table, plain, every=every))


def _brought(table: str, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns: dict[str, Any] = {}
    for field in schema:
        name, column = field.name, JOURNAL[table][field.name]
        if name in rows.column_names:
            columns[name] = converted(rows.column(name), field.type)
        elif column.same_as is not None:
            columns[name] = columns[column.same_as]
        else:
            columns[name] = _defaults(column, rows.num_rows).cast(field.type)
    return pa.table(columns)


def _defaults(column: Column, count: int) -> Any:
    if column.default is None:
        return pa.nulls(count, column.type)
    return pa.repeat(pa.scalar(column.default, column.type), count)


def _kindred(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every valid value of one type can be converted to the other."""
    types = pa.types
    if types.is_dictionary(found):
        found = found.value_type
    if types.is_null(found):
        return True
    if types.is_integer(wanted):
        return bool(types.is_integer(found))
    if types.is_string(wanted):
        return bool(types.is_string(found) or types.is_large_string(found))
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(found))
    if types.is_list(wanted):
        listed = types.is_list(found) or types.is_large_list(found)
        return bool(listed and _kindred(found.value_type, wanted.value_type))
    return bool(found == wanted)


def converted(values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """A column with another type; raises Arrow's error for values that do not fit."""
    if values.type == wanted:
        return values
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(values.type):
        if values.type.unit == "ns":  # a time between two microseconds is rounded down
            values = pc.floor_temporal(values, unit="microsecond")
        naive = values.cast(pa.timestamp("us", values.type.tz))
        return naive.cast(wanted) if values.type.tz else pc.assume_timezone(naive, "UTC")
    if wanted == CODED:
        return values.cast(CODED.value_type).cast(wanted)
    if pa.types.is_list(wanted):
        return values.cast(pa.list_(CODED.value_type)).cast(wanted)
    return values.cast(wanted)
