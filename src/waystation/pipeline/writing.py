"""A table from a frame to the disk, written by the tasks that made it.

What a step makes is in Arrow already, texts as numbers of distinct ones. Written from there it
never becomes rows of Spark, which would cost more than to make it. Each task writes one hidden
file, and tells its name when it is whole; only files that were told of are shown. So a task that is
tried twice, or runs on after all is done, adds nothing. Frames that are not made by our own tasks
are written by Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from waystation.pipeline.output import Place
from waystation.pipeline.schema import BUILT, CODED, INSTANT, TEXT
from waystation.pipeline.work import ended_by

ROW_GROUP: Final = 262_144
"""About so many rows are written together."""

_WRITTEN: Final = pa.schema({"file": TEXT, "rows": pa.int64()})
_HIDDEN: Final = "."


def write_table(frame: DataFrame, place: Place, table: str) -> int:
    """Write a frame that has the columns of a built table; tells how many rows it has.

    It takes its place when it is whole.
    """
    directory = Path(place.prepare())
    then = partial(written, directory=str(directory), table=table)
    parts = ended_by(frame, then, _WRITTEN)
    if parts is None:
        # By its full name: a cluster may have another default than the disk.
        frame.write.option("compression", "zstd").parquet(f"file://{directory}")
        rows = sum(int(pq.read_metadata(file).num_rows) for file in directory.glob("*.parquet"))
    else:
        directory.mkdir(parents=True)
        rows = _shown(directory, parts, table)
    place.replace()
    return rows


def _shown(directory: Path, parts: DataFrame, table: str) -> int:
    """Run the tasks, and show the files that they tell of."""
    told: dict[str, int] = {row["file"]: row["rows"] for row in parts.collect()}
    if not told:
        [empty] = written(iter([BUILT[table].empty_table()]), str(directory), table)
        told = {empty.column("file")[0].as_py(): 0}
    for name in told:
        (directory / name).rename(directory / name.removeprefix(_HIDDEN))
    for left in directory.glob(f"{_HIDDEN}*"):
        left.unlink(missing_ok=True)
    return sum(told.values())


def written(tables: Iterator[pa.Table], directory: str, table: str) -> Iterator[pa.Table]:
    """Write all tables of a task to one file; its name, and how many rows it has."""
    schema = _as_written(table)
    first = next(tables, None)
    if first is None:
        return
    name = f"{_HIDDEN}part-{uuid.uuid4().hex}.parquet"
    rows = 0
    with pq.ParquetWriter(f"{directory}/{name}", schema, **_options(schema)) as writer:
        for group in _row_groups(first, tables, schema):
            writer.write_table(group, row_group_size=2 * ROW_GROUP)
            rows += group.num_rows
    yield pa.table({"file": [name], "rows": [rows]}, schema=_WRITTEN)


def _row_groups(
    first: pa.Table, others: Iterator[pa.Table], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Tables put together until they are worth a row group."""
    held = [first.cast(schema)]
    for found in others:
        if sum(part.num_rows for part in held) >= ROW_GROUP:
            yield pa.concat_tables(held).combine_chunks()
            held = []
        held.append(found.cast(schema))
    yield pa.concat_tables(held).combine_chunks()


def _as_written(table: str) -> pa.Schema:
    """The columns of a table, with texts as numbers, but for ids, which hardly repeat."""
    return pa.schema(
        [
            field.with_type(CODED) if field.type == TEXT and field.name != "message_id" else field
            for field in BUILT[table]
        ]
    )


def _options(schema: pa.Schema) -> dict[str, Any]:
    rising = [field.name for field in schema if field.type == INSTANT]
    repeating = [field.name for field in schema if field.type == CODED]
    hops = [
        f"path.list.element.{part.name}" for part in BUILT["traces"].field("path").type.value_type
    ]
    texts = [name for name in hops if not name.endswith(".at")] if "path" in schema.names else []
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [*repeating, *texts],
        "column_encoding": dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        "store_schema": False,  # the types of Parquet say it all
    }
