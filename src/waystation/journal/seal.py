"""Sealing: whole rows to a Parquet file that appears all at once.

The file is written under a hidden name and then renamed, so that whoever sees it sees all of it.
What lies in it and how it is encoded is decided here, for sealed and for compacted files alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from waystation.journal.files import sync, sync_directory
from waystation.journal.layout import SEALING, Stem
from waystation.journal.schema import SCHEMAS, conforming
from waystation.journal.sealed import LAST_SEQ, read_footer
from waystation.journal.tail import UNREADABLE, TailContent, read_tail

ROW_GROUP: Final = 131_072
"""Rows in a row group: some megabytes, which a reader can skip by the statistics of seq and at."""

_RISING: Final = ("seq", "at", "received_at", "expiry")
_DIGITS: Final = ("message_id",)
_MISTAKES: Final = 0.05  # how often a Bloom filter lets an id pass that is not there: a byte an id


def write_sealed(
    directory: Path,
    table: str,
    stem: Stem,
    batches: Iterable[pa.RecordBatch],
    *,
    fsync: bool,
    suffix: str = SEALING,
) -> Path:
    """Write rows, which must be in the order of seq, to the sealed file of this stem."""
    temporary = directory / stem.temporary(suffix)
    try:
        _write_parquet(temporary, SCHEMAS[table], batches)
        if fsync:
            sync(temporary)
        sealed = temporary.rename(directory / stem.sealed)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if fsync:
        sync_directory(directory)
    return sealed


def seal_tail(directory: Path, table: str, stem: Stem, *, fsync: bool) -> TailContent:
    """Seal what is whole of a tail, then remove the tail; says what it held.

    Whatever instant a crash chooses, every row is in the tail or in the sealed file: when both are
    there, the sealed file is taken only if it can be read and goes as far as the tail.
    """
    path = directory / stem.tail
    content = read_tail(path)
    if content.batches and not _sealed_already(directory / stem.sealed, content.batches[-1]):
        write_sealed(directory, table, stem, content.batches, fsync=fsync)
    path.unlink()
    return content


def _sealed_already(path: Path, last: pa.RecordBatch) -> bool:
    if not path.exists():
        return False
    try:
        reached = read_footer(path).last
    except UNREADABLE:
        return False
    return bool(reached >= last.column("seq")[-1].as_py())


def _write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    last = -1
    groups = _row_groups(schema, batches)
    first = next(groups, schema.empty_table())  # no later one has more rows
    with pq.ParquetWriter(path, schema, **_options(schema, first.num_rows)) as writer:
        for group in chain([first] if first.num_rows else [], groups):
            writer.write_table(group, row_group_size=ROW_GROUP)
            last = group.column("seq")[-1].as_py()
        writer.add_key_value_metadata({LAST_SEQ.decode(): str(last)})


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows, so many at a time: no more than a row group is held in memory."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        rest = conforming(batch, schema)
        while rows + rest.num_rows >= ROW_GROUP:
            yield pa.Table.from_batches([*held, rest[: ROW_GROUP - rows]], schema)
            rest = rest[ROW_GROUP - rows :]
            held, rows = [], 0
        held.append(rest)
        rows += rest.num_rows
    if rows:
        yield pa.Table.from_batches(held, schema)


def _options(schema: pa.Schema, rows: int) -> dict[str, Any]:
    encodings = {name: "DELTA_BINARY_PACKED" for name in _RISING if name in schema.names}
    encodings |= {name: "DELTA_LENGTH_BYTE_ARRAY" for name in _DIGITS if name in schema.names}
    ids = [name for name in _DIGITS if name in schema.names]
    repeating = [
        f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
        for field in schema
        if field.name not in encodings and not pa.types.is_boolean(field.type)
    ]
    return {
        "compression": "zstd",
        "use_dictionary": repeating,
        "column_encoding": encodings,
        "bloom_filter_options": {name: {"ndv": max(rows, 1), "fpp": _MISTAKES} for name in ids},
        "sorting_columns": [pq.SortingColumn(schema.get_field_index("seq"))],
        "store_schema": False,  # the types of Parquet say it all
        "write_page_checksum": True,
    }
