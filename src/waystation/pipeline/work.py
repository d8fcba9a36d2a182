"""How work reaches the executors: node by node from files, or from frames after one shuffle.

The rules are local to a node, and the journal is stored by node. So the driver distributes nodes,
and a task reads and processes its nodes' files: no shuffle. Frames that a user filtered or
read have lost that order; their rows are packed, shuffled by node, and processed by
the same functions.

No rules of the domain are here, and nothing that only a classic session has: no SparkContext.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from waystation.errors import LocalError
from waystation.journal.filesystems import adopt_settings, settings_here
from waystation.journal.pruning import instant_bounds
from waystation.journal.read import parquet_footer
from waystation.journal.schema import MESSAGES, TEXT
from waystation.pipeline.kernels.blobs import blobs_of, tables_of
from waystation.pipeline.kernels.columns import codes, column, repeated
from waystation.pipeline.kernels.node_data import (
    UNREADABLE,
    FileData,
    FrameData,
    Share,
    may_hold_wanted,
)
from waystation.pipeline.kernels.normal import UnfitError, check_built, check_columns
from waystation.pipeline.listing import EVERYTHING, File, Listing, Wanted, locate
from waystation.pipeline.schema import JOURNAL, spark_schema
from waystation.pipeline.spark_session import ship
from waystation.pipeline.tables import BUILT, TAKEN

SPLIT_BYTES: Final = 4 * 2**20
"""If a node's tables are larger than this, their footers are read, to see if one task is enough."""

ROWS_PER_SHARE: Final = 500_000
"""A node with more messages than this is split into several shares, as far as its files allow."""

EVENTS_PER_SHARE: Final = 8_000_000
"""The limit for events of other tables, which take less memory; each share reads all of them."""

BYTES_PER_TASK: Final = 32 * 2**20
"""Maximum number of bytes for a task, approximately."""

BYTES_WORTH_A_TASK: Final = 2 * 2**20
"""More tasks than Spark's default are created only while each has this many bytes."""

_FINER: Final = 4
_BYTES_WORTH_A_FILE: Final = 16 * 2**10  # bytes read in the time of opening a file
PIECES: Final = pa.schema({"node": TEXT, "name": TEXT, "rows": pa.binary()})
"""Rows of any table in transit to the task of their node, many at a time."""

_FRUGAL: Final = 4
_MADE: Final = "_waystation_made"
_BATCH_ROWS: Final = 65_536

FromFiles: TypeAlias = Callable[[FileData], Iterable[pa.Table]]
FromFrames: TypeAlias = Callable[[FrameData], Iterable[pa.Table]]
FromBatches: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.Table]]
Through: TypeAlias = Callable[[Iterator[pa.Table]], Iterator[pa.Table]]
"""A function of all results of the nodes of one task."""


def from_files(
    spark: SparkSession,
    listing: Listing,
    wanted: Wanted,
    tables: tuple[str, ...],
    work: FromFiles,
    schema: pa.Schema,
    *,
    split: bool = True,
    frugal: bool = False,
    through: Through | None = None,
) -> DataFrame:
    """A frame with the results of `work` for each node, and then of `through` for each task.

    If a node has too much of the first of `tables`, `work` is called for several shares of it,
    unless it must not be `split`; a `frugal` function gets larger shares of messages.
    """
    tasks = int(str(spark.conf.get("spark.sql.shuffle.partitions", "200")))
    shares = plan_shares(listing, tables, split=split, tasks=tasks, frugal=frugal, wanted=wanted)
    bundles = [
        zlib.compress(msgspec.msgpack.encode(bundle), 1)
        for bundle in _bundled(shares, tables, _tasks(tasks, shares, tables))
    ]
    root = listing.root

    def done(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                decoded = msgspec.msgpack.decode(zlib.decompress(bundles[number]), type=list[Share])
                for share in decoded:
                    yield from work(FileData(root, share, wanted))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        found = done(batches)
        return found if through is None else through(found)

    return mapped(spark.range(0, len(bundles), 1, max(len(bundles), 1)), run, schema)


def from_frames(frames: Mapping[str, DataFrame], work: FromFrames, schema: pa.Schema) -> DataFrame:
    """A frame of results for frames with the columns of their tables, shuffled by node."""
    packed: DataFrame | None = None
    for name, frame in frames.items():
        piece = _packed(name, frame)
        packed = piece if packed is None else packed.unionAll(piece)
    assert packed is not None  # every step has a table

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for node, tables in gathered(batches):
            yield from work(FrameData(node, tables))

    return mapped(packed.repartition("node").sortWithinPartitions("node"), run, schema)


def mapped(frame: DataFrame, work: FromBatches, schema: pa.Schema) -> DataFrame:
    """A frame with the results of `work` for the batches of another, in each task."""
    ship(frame.sparkSession)
    settings = settings_here()

    def made(then: Through | None, schema: pa.Schema) -> DataFrame:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            adopt_settings(settings)
            found = work(batches)
            yield from _batches(found if then is None else then(found), schema)

        return frame.mapInArrow(run, spark_schema(schema))

    found = made(None, schema)
    setattr(found, _MADE, made)
    return found


def ended_by(frame: DataFrame, then: Through, schema: pa.Schema) -> DataFrame | None:
    """A frame with the results of `then`, in each task, for the tables that another is made of.

    None for a frame that is not made by our own tasks.
    """
    made: Callable[[Through, pa.Schema], DataFrame] | None = frame.__dict__.get(_MADE)
    return None if made is None else made(then, schema)


def _batches(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Tables in the form that Spark accepts, with plain strings."""
    for table in tables:
        if table.num_rows:
            yield from table.cast(schema).to_batches(max_chunksize=_BATCH_ROWS)


def checked(name: str, frame: DataFrame) -> DataFrame:
    """The frame; raises a LocalError that says how it differs from its table."""
    try:
        found = to_arrow_schema(frame.schema, timezone="UTC")
        if name in BUILT:
            check_built(name, found)
        else:
            check_columns(name, found, node=True)
    except UnfitError as error:
        raise LocalError(
            f"invalid frame for {name}: {error}",
            rule="SP-1",
            hint="give the columns and types that docs/reference/tables.md lists",
        ) from None
    return frame


def _packed(name: str, frame: DataFrame) -> DataFrame:
    """Rows of any frame as (node, table, bytes), a piece for each node of each batch."""
    if name in BUILT:
        kept = [column for column in TAKEN[name].names if column in frame.columns]
    else:
        kept = ["node", *(column for column in JOURNAL[name] if column in frame.columns)]

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield pieces(name, pa.Table.from_batches([batch]))

    return checked(name, frame).select(*kept).mapInArrow(pack, spark_schema(PIECES))


def pieces(name: str, table: pa.Table) -> pa.RecordBatch:
    """Rows of a table as PIECES, one for each node."""
    table = table.filter(pc.is_valid(table.column("node")))
    encoded = column(table, "node").dictionary_encode()
    which = codes(encoded)
    order = np.argsort(which, kind="stable")
    ordered = table.take(pa.array(order))
    bounds = np.searchsorted(which[order], np.arange(len(encoded.dictionary) + 1)).tolist()
    blobs = blobs_of(
        ordered.slice(low, high - low).combine_chunks() for low, high in pairwise(bounds)
    )
    columns = [encoded.dictionary, repeated(name, len(blobs)), blobs]
    return pa.RecordBatch.from_arrays(columns, ["node", "name", "rows"])


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, dict[str, pa.Table]]]:
    """The tables of each node in turn; pieces are sorted by node."""
    current: str | None = None
    pieces: dict[str, list[pa.Table]] = {}
    for batch in batches:
        nodes, names = (column.to_pylist() for column in batch.columns[:2])
        for node, name, rows in zip(nodes, names, tables_of(batch.column(2)), strict=True):
            if node != current:
                if current is not None:
                    yield current, _put_together(pieces)
                current, pieces = node, {}
            pieces.setdefault(name, []).append(rows)
    if current is not None:
        yield current, _put_together(pieces)


def _put_together(pieces: dict[str, list[pa.Table]]) -> dict[str, pa.Table]:
    tables = {}
    for name, parts in pieces.items():
        whole = pa.concat_tables(parts)
        tables[name] = whole.select(TAKEN[name].names).cast(TAKEN[name]) if name in TAKEN else whole
    return tables


# Distribution over tasks


def plan_shares(
    listing: Listing,
    tables: tuple[str, ...],
    *,
    split: bool,
    tasks: int = 1,
    frugal: bool = False,
    wanted: Wanted = EVERYTHING,
) -> list[Share]:
    """All work for a step on these tables, node by node.

    A node is split into several shares if what is wanted of it is too much for one, or most of the
    work for this number of tasks.
    """
    shares = []
    nodes = listing.of(tables)
    total = sum(_size(files, tables) for files in nodes.values())
    for node, files in nodes.items():
        size = _size(files, tables[:1])
        whole = Share(node, files, unsealed=listing.unsealed.get(node, []))
        if not split or size <= SPLIT_BYTES:
            shares.append(whole)
        else:
            count = round(tasks * size / total)
            shares += _shares(listing.root, whole, tables[0], count, wanted, frugal=frugal)
    return shares


def _shares(
    root: str, whole: Share, table: str, shares: int, wanted: Wanted, *, frugal: bool
) -> list[Share]:
    """A large node in this many shares, or in more if these would be too large."""
    groups = [
        group
        for footer in _footers(*locate(root), whole.files[table])
        for group in map(footer.row_group, range(footer.num_row_groups))
        if may_hold_wanted(wanted, table, group)
    ]
    rows = sum(group.num_rows for group in groups)
    if table == MESSAGES:
        most = ROWS_PER_SHARE * (_FRUGAL if frugal else 1)
        spans = _spans(groups, min(most, -(-rows // max(shares, 1))))
        count = len(spans)
        return [Share(whole.node, whole.files, received=span, spans=count) for span in spans]
    parts = max(1, shares, -(-rows // EVENTS_PER_SHARE))
    return [Share(whole.node, whole.files, part, parts) for part in range(parts)]


def _size(files: Mapping[str, list[File]], tables: tuple[str, ...]) -> int:
    return sum(file.size for table in tables for file in files.get(table, ()))


def _footers(system: Any, directory: str, files: list[File]) -> Iterator[Any]:
    for file in files:
        try:
            yield parquet_footer(system, f"{directory}/{file.path}")
        except UNREADABLE:
            continue  # its reader reports it as a reject


def _spans(groups: list[Any], wanted: int) -> list[tuple[int, int] | None]:
    """Ranges of received_at with about this many rows of these row groups each."""
    begins = []
    for group in groups:
        bounds = instant_bounds(group, "received_at")
        if bounds is None:
            return [None]
        begins.append((bounds[0], group.num_rows))
    cuts, rows = [], 0
    for low, count in sorted(begins):
        if rows >= wanted:
            cuts.append(low)
            rows = 0
        rows += count
    edges = [-(2**63), *sorted(set(cuts)), 2**63 - 1]
    return list(pairwise(edges))


def _tasks(wanted: int, shares: list[Share], tables: tuple[str, ...]) -> int:
    """The wanted number of tasks, or more: with smaller tasks, cores finish at the same time."""
    size = sum(_cost(share, tables) for share in shares)
    finer = min(_FINER * wanted, size // BYTES_WORTH_A_TASK)
    count = max(wanted, finer, size // BYTES_PER_TASK)
    return max(1, min(len(shares), count))


def _cost(share: Share, tables: tuple[str, ...]) -> int:
    size = _size(share.files, tables[:1]) // share.spans + _size(share.files, tables[1:])
    files = sum(len(share.files.get(table, ())) for table in tables) + 1
    return size // share.parts + files * _BYTES_WORTH_A_FILE


def _bundled(shares: list[Share], tables: tuple[str, ...], count: int) -> list[list[Share]]:
    """The shares in bundles of neighbours with about equal cost; the most expensive first."""
    if not shares:
        return []
    costs = np.array([_cost(share, tables) for share in shares])
    ends = np.cumsum(costs)
    bundle = (ends - 1) * count // ends[-1]
    _, which = np.unique(bundle, return_inverse=True)
    sums = np.bincount(which, costs)
    return [
        [shares[number] for number in np.flatnonzero(which == found).tolist()]
        for found in np.argsort(-sums, kind="stable").tolist()
    ]
