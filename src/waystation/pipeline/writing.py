"""Write the tables of frames to disk, in the tasks that made them.

The results of a step are already in Arrow, with dictionary-encoded strings. Written from there,
they never become Spark rows, which would cost more than computing them. Each task writes one hidden
file per table and returns its name when it is complete; only returned files become visible. So a
task that runs twice, or continues after the end, adds nothing. Frames that are not made by
our own tasks are written by Spark.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, field
from pyspark.sql import DataFrame

from waystation.journal.schema import INSTANT, TEXT
from waystation.pipeline.output import Place
from waystation.pipeline.schema import CODED
from waystation.pipeline.tables import BUILT, ROWS_READ, part_of, table_of
from waystation.pipeline.work import ended_by

ROW_GROUP: Final = 262_144
"""About this many rows are written together."""

_WRITTEN: Final = pa.schema({"table": TEXT, "file": TEXT, "rows": pa.int64()})
_HIDDEN: Final = "."


class Written(Struct):
    """How many rows each table has, and how many each table of the journal had, if tasks told."""

    rows: dict[str, int]
    read: dict[str, int] = field(default_factory=dict)


def write_tables(
    frame: DataFrame, places: Mapping[str, Place], beside: Mapping[str, pa.Table] | None = None
) -> Written:
    """Write the tables that a frame is made of.

    `beside` are rows that no task makes. A table is replaced when it is complete.
    """
    directories = {table: place.prepare() for table, place in places.items()}
    parts = ended_by(frame, partial(written, directories), _WRITTEN)
    if parts is not None:
        return _shown(parts, places, beside or {})
    [(table, place)] = places.items()  # only our tasks make several
    # An absolute URI: a cluster's default file system may be another one.
    frame.write.option("compression", "zstd").parquet(f"file://{place.hidden}")
    rows = sum(int(pq.read_metadata(file).num_rows) for file in place.hidden.glob("*.parquet"))
    place.replace()
    return Written({table: rows})


def _shown(
    parts: DataFrame, places: Mapping[str, Place], beside: Mapping[str, pa.Table]
) -> Written:
    """Run the tasks, make the files that they return visible, and replace the tables."""
    for place in places.values():
        place.hidden.mkdir(parents=True, exist_ok=True)
    told: dict[str, dict[str, int]] = {table: {} for table in places}
    read: Counter[str] = Counter()
    for row in parts.collect():
        if row["file"] is None:
            read[row["table"]] += row["rows"]
        else:
            told[row["table"]][row["file"]] = row["rows"]
    for table, place in places.items():
        more = beside.get(table, BUILT[table].empty_table())
        if more.num_rows or not told[table]:
            [file] = written({table: str(place.hidden)}, iter([part_of(table, more)]))
            told[table][file.column("file")[0].as_py()] = more.num_rows
        for name in told[table]:
            (place.hidden / name).rename(place.hidden / name.removeprefix(_HIDDEN))
        for left in place.hidden.glob(f"{_HIDDEN}*"):
            left.unlink(missing_ok=True)
        place.replace()
    return Written({table: sum(files.values()) for table, files in told.items()}, dict(read))


def written(directories: Mapping[str, str], tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Write each table of a task to a file; returns their names and numbers of rows.

    Numbers of rows that were read are passed on, without a file.
    """
    with ExitStack() as open_files:
        files: dict[str, _File] = {}
        for found in tables:
            table = _whose(found, directories)
            if table == ROWS_READ:
                yield found.add_column(1, "file", pa.nulls(found.num_rows, TEXT))
                continue
            if table not in files:
                files[table] = open_files.enter_context(_File(directories[table], table))
            files[table].add(found)
    columns = zip(*((file.table, file.name, file.rows) for file in files.values()), strict=True)
    if files:
        yield pa.Table.from_arrays(list(map(pa.array, columns)), schema=_WRITTEN)


def _whose(rows: pa.Table, directories: Mapping[str, str]) -> str:
    return table_of(rows) or next(iter(directories))


class _File:
    """One hidden file of a table; rows are held until there are enough for a row group."""

    def __init__(self, directory: str, table: str) -> None:
        self.table = table
        self.name = f"{_HIDDEN}part-{uuid.uuid4().hex}.parquet"
        self.rows = 0
        self._schema = written_schema(table)
        options = parquet_options(self._schema)
        self._writer = pq.ParquetWriter(f"{directory}/{self.name}", self._schema, **options)
        self._held: list[pa.Table] = []

    def __enter__(self) -> Self:
        return self

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        if sum(part.num_rows for part in self._held) >= ROW_GROUP:
            self._write()
        self._held.append(rows.cast(self._schema))
        self.rows += rows.num_rows

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        rows = pa.concat_tables(self._held).combine_chunks()
        for first in range(0, rows.num_rows, 2 * ROW_GROUP):
            group = _trimmed(rows.slice(first, 2 * ROW_GROUP))
            self._writer.write_table(group, row_group_size=group.num_rows)
        self._held = []


def _trimmed(rows: pa.Table) -> pa.Table:
    """Remove strings at both ends of a dictionary that none of the rows uses.

    Each string in a dictionary is written, and costs more than many rows.
    """
    for place, each in enumerate(rows.schema):
        if each.type == CODED:
            rows = rows.set_column(place, each, _without_ends(rows.column(place).chunk(0)))
    return rows


def _without_ends(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    bounds = pc.min_max(texts.indices)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or high - low + 1 == len(texts.dictionary):
        return texts
    indices = pc.subtract(texts.indices, pa.scalar(low, texts.indices.type))
    return pa.DictionaryArray.from_arrays(indices, texts.dictionary.slice(low, high - low + 1))


def written_schema(table: str) -> pa.Schema:
    """The schema of a table with dictionary-encoded strings, except ids, which hardly repeat."""
    return pa.schema(
        [
            field.with_type(CODED) if field.type == TEXT and field.name != "message_id" else field
            for field in BUILT[table]
        ]
    )


def _texts_of(field: pa.Field) -> list[str]:
    """The paths of all string columns, as Parquet names them."""
    if field.type in (TEXT, CODED):
        return [field.name]
    if not pa.types.is_list(field.type):
        return []
    element = field.type.value_type
    if not pa.types.is_struct(element):
        return [f"{field.name}.list.element"] if element in (TEXT, CODED) else []
    return [f"{field.name}.list.element.{part.name}" for part in element if part.type == TEXT]


def _is_asked_for(field: pa.Field) -> bool:
    """Whether statistics of a column are worth their cost, which is high for strings."""
    return bool(pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type))


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How the columns of a built table are encoded: ids hardly repeat, other strings do."""
    encodings = {f.name: "DELTA_BINARY_PACKED" for f in schema if f.type == INSTANT}
    if "message_id" in schema.names:
        encodings["message_id"] = "DELTA_LENGTH_BYTE_ARRAY"  # all are of the same length
    texts = [leaf for field in schema if field.name != "message_id" for leaf in _texts_of(field)]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": texts,
        "column_encoding": encodings,
        "write_statistics": ["node", *(field.name for field in schema if _is_asked_for(field))],
        "store_schema": False,  # the Parquet types are enough
    }
