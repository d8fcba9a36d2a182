"""Write the tables of frames to their store, in the tasks that made them.

The results of a step are already in Arrow, with dictionary-encoded strings. Written from there,
they never become Spark rows, which would cost more than computing them. Each task writes one hidden
file per table and returns its name when it is complete; only returned files become visible. So a
task that runs twice, or continues after the end, adds nothing.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, field
from pyspark.sql import DataFrame, SparkSession

from waystation.journal.filesystems import file_system
from waystation.journal.schema import INSTANT, TEXT
from waystation.locations import is_remote
from waystation.pipeline.days import Days
from waystation.pipeline.delta_stats import delta_stats
from waystation.pipeline.schema import CODED, spark_schema
from waystation.pipeline.store import PartFile, Store
from waystation.pipeline.tables import ROWS_READ, STORED, part_of, table_of
from waystation.pipeline.work import Through, ended_by, mapped

ROW_GROUP: Final = 262_144
"""About this many rows are written together."""

_WRITTEN: Final = pa.schema(
    {"table": TEXT, "file": TEXT, "rows": pa.int64(), "size": pa.int64(), "stats": TEXT}
)
_HIDDEN: Final = "."
_SEARCHED: Final = ("message_id", "recipient")  # columns with a Bloom filter
_FALSE_POSITIVES: Final = 0.05  # of a Bloom filter, which then takes about a byte per value


class Written(Struct):
    """The files of each table, and how many rows each table of the journal had, if tasks told."""

    files: dict[str, list[PartFile]]
    read: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each table."""
        return {table: sum(file.rows for file in files) for table, files in self.files.items()}


def write_tables(
    frame: DataFrame,
    store: Store,
    tables: Iterable[str],
    beside: Mapping[str, pa.Table] | None = None,
) -> Written:
    """Write the tables that a frame is made of; they are published later.

    `beside` are rows that no task makes.
    """
    places = {table: store.prepare(table) for table in tables}
    done = _collected(frame, places, partial(written, places))
    for table, place in places.items():
        more = (beside or {}).get(table, STORED[table].empty_table())
        if more.num_rows or not done.files[table]:
            done.files[table] += _written_here(table, written({table: place}, _only(table, more)))
        store.keep(table, done.files[table])
    return done


def write_days(
    frame: DataFrame,
    places: Mapping[str, str],
    wanted: Mapping[str, Days],
    beside: Mapping[str, pa.Table] | None = None,
) -> Written:
    """Write the days of the tables that a frame is made of; they are kept and published later."""
    done = _collected(frame, places, partial(written_by_day, dict(places), dict(wanted)))
    for table, more in (beside or {}).items():
        if more.num_rows:
            found = written_by_day(places, wanted, _only(table, more))
            done.files[table] += _written_here(table, found)
    return done


def write_empty(table: str, place: str, day: str) -> list[PartFile]:
    """A file without rows, which tells the columns of a table that has none on a day."""
    with _File(place, table, day) as file:
        file.add(STORED[table].empty_table())
    return [PartFile(file.name, 0, file.size, file.stats)]


def _collected(frame: DataFrame, tables: Iterable[str], write: Through) -> Written:
    """What the tasks that write the tables of a frame tell."""
    parts = ended_by(frame, write, _WRITTEN)
    if parts is None:  # it is not made by our own tasks
        [table] = tables
        ours = mapped(frame, _as_tables, STORED[table])
        parts = ended_by(ours, write, _WRITTEN)
        assert parts is not None
    files: dict[str, list[PartFile]] = {table: [] for table in tables}
    read: Counter[str] = Counter()
    for row in parts.collect():
        if row["file"] is None:
            read[row["table"]] += row["rows"]
        else:
            part = PartFile(row["file"], row["rows"], row["size"], row["stats"])
            files[row["table"]].append(part)
    return Written(files, dict(read))


def _only(table: str, rows: pa.Table) -> Iterator[pa.Table]:
    yield part_of(table, rows)


def _written_here(table: str, told: Iterator[pa.Table]) -> list[PartFile]:
    """The files of a table that this process wrote."""
    rows = [row for found in told for row in found.to_pylist() if row.pop("table") == table]
    return [PartFile(row["file"], row["rows"], row["size"], row["stats"]) for row in rows]


def read_back(
    spark: SparkSession, store: Store, table: str, files: Iterable[PartFile]
) -> DataFrame:
    """The rows of a table that is written, but not published yet."""
    paths = store.written(table, files)
    if not is_remote(store.out):
        schema = spark_schema(STORED[table])
        return spark.read.schema(schema).parquet(*(f"file://{path}" for path in paths))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                system, path = file_system(paths[number])
                with system.open_input_file(path) as file:
                    for rows in pq.ParquetFile(file).iter_batches():
                        yield pa.Table.from_batches([rows])

    return mapped(spark.range(0, len(paths), 1, max(len(paths), 1)), read, STORED[table])


def _as_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    for batch in batches:
        yield pa.Table.from_batches([batch])


def written(places: Mapping[str, str], tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Write each table of a task to a file; returns what is known of the files.

    Numbers of rows that were read are passed on, without a file.
    """
    with ExitStack() as open_files:
        files: dict[str, _File] = {}
        for found in tables:
            table = _whose(found, places)
            if table == ROWS_READ:
                yield _without_file(found)
                continue
            if table not in files:
                files[table] = open_files.enter_context(_File(places[table], table))
            files[table].add(found)
    told = [(file.table, file.name, file.rows, file.size, file.stats) for file in files.values()]
    if told:
        columns = zip(*told, strict=True)
        yield pa.Table.from_arrays(list(map(pa.array, columns)), schema=_WRITTEN)


def written_by_day(
    places: Mapping[str, str], wanted: Mapping[str, Days], tables: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """The same for days of tables: a file for each, and one for rows that may still change."""
    with ExitStack() as open_files:
        files: dict[tuple[str, str, bool], _File] = {}
        for found in tables:
            table = _whose(found, places)
            if table == ROWS_READ:
                continue
            for day, is_open, rows in wanted[table].parts(table, found):
                key = (table, day, is_open)
                if key not in files:
                    new = _File(places[table], table, day, is_open=is_open)
                    files[key] = open_files.enter_context(new)
                files[key].add(rows)
    told = [(file.table, file.name, file.rows, file.size, file.stats) for file in files.values()]
    if told:
        columns = zip(*told, strict=True)
        yield pa.Table.from_arrays(list(map(pa.array, columns)), schema=_WRITTEN)


def _without_file(counted: pa.Table) -> pa.Table:
    found = counted.add_column(1, "file", pa.nulls(counted.num_rows, TEXT))
    for name in ("size", "stats"):
        found = found.append_column(name, pa.nulls(counted.num_rows, _WRITTEN.field(name).type))
    return found


def _whose(rows: pa.Table, directories: Mapping[str, str]) -> str:
    return table_of(rows) or next(iter(directories))


class _File:
    """One file of a table; rows are held until there are enough for a row group.

    In a hidden directory, which becomes the table as it is, the file is hidden as well. Any other
    is that of a Delta table. The name of the directory of a day tells the day, so that the file
    need not.
    """

    def __init__(self, place: str, table: str, day: str = "", *, is_open: bool = False) -> None:
        self.table = table
        self._is_delta = not place.rpartition("/")[2].startswith(_HIDDEN)
        hidden = "" if self._is_delta else _HIDDEN
        kind = "open" if is_open else "part"
        self.name = f"{day}{'/' * bool(day)}{hidden}{kind}-{uuid.uuid4().hex}.parquet"
        self.rows = self.size = 0
        self.stats = ""
        self._schema = written_schema(table, with_day=not day)
        self._place = place
        self._footers: list[Any] = []
        self._held: list[pa.Table] = []
        self._stream: Any = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        if sum(part.num_rows for part in self._held) >= ROW_GROUP:
            self._write()
        self._held.append(rows.select(self._schema.names).cast(self._schema))
        self.rows += rows.num_rows

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            return  # nobody is told of the file
        self._write()
        self._writer.close()
        self.size = self._stream.tell()
        self._stream.close()
        if self._is_delta:
            self.stats = delta_stats(self._footers[0], self._schema)

    def _write(self) -> None:
        rows = pa.concat_tables(self._held).combine_chunks()
        if self._writer is None:
            self._open(rows)
        for first in range(0, rows.num_rows, 2 * ROW_GROUP):
            group = _trimmed(rows.slice(first, 2 * ROW_GROUP))
            self._writer.write_table(group, row_group_size=group.num_rows)
        self._held = []

    def _open(self, first: pa.Table) -> None:
        """Open the file when its first rows are known: their number sizes the Bloom filters."""
        system, directory = file_system(self._place)
        self._stream = system.open_output_stream(f"{directory}/{self.name}")
        options = parquet_options(self._schema) | {"bloom_filter_options": _blooms(first)}
        if self._is_delta:  # deltalake reads no row of a file if a column has no bounds there
            options["write_statistics"] = [
                field.name for field in self._schema if not pa.types.is_nested(field.type)
            ]
        self._writer = pq.ParquetWriter(
            self._stream, self._schema, metadata_collector=self._footers, **options
        )


def _blooms(rows: pa.Table) -> dict[str, dict[str, float]]:
    """Filters for the columns that people search; they cost nothing where there are no rows."""
    first = rows.slice(0, 2 * ROW_GROUP)
    searched = [name for name in _SEARCHED if name in first.column_names and first.num_rows]
    return {name: {"ndv": _distinct(first, name), "fpp": _FALSE_POSITIVES} for name in searched}


def _distinct(rows: pa.Table, name: str) -> int:
    """About how many values of a column differ."""
    if name == "message_id":  # counting would take longer than writing
        return int(rows.num_rows)
    return len(rows.column(name).unique())


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


def written_schema(table: str, *, with_day: bool = True) -> pa.Schema:
    """The schema of a table with dictionary-encoded strings, except ids, which hardly repeat."""
    return pa.schema(
        [
            field.with_type(CODED) if field.type == TEXT and field.name != "message_id" else field
            for field in STORED[table]
            if with_day or field.name != "day"
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
        "write_statistics": [
            *("node", "recipient"),
            *(field.name for field in schema if _is_asked_for(field)),
        ],
        "store_schema": False,  # the Parquet types are enough
    }
