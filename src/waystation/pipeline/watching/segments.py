"""A table of many immutable Parquet files: adding, removing and reading pieces.

A file is a segment, and a segment holds pieces one after the other: the rows of one node for one
range of time. Recomputing a piece removes the old one; the rest of its segment
moves to the new one. Small segments are merged when there are many, so that their number
grows with the logarithm of the rows. This runs in the executors; no rules of the domain, no Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from waystation.pipeline.schema import CODED
from waystation.pipeline.writing import parquet_options

FIRST: Final = -(2**63)
LAST: Final = 2**63 - 1

FAN_OUT: Final = 6
"""This many segments of about equal size are kept; one more, and they are merged."""

SMALLEST: Final = 4_096
LARGEST: Final = 2_000_000
"""Rows of a segment that is no longer merged with others."""


class Piece(Struct, frozen=True):
    """The number of rows of one node for a range of time, [low, high), in microseconds."""

    node: str
    low: int
    high: int
    rows: int

    def overlaps(self, low: int, high: int) -> bool:
        """Whether it may contain anything of that range."""
        return self.low < high and low < self.high


class Segment(Struct, frozen=True):
    """One file, and the pieces that it holds, in order."""

    name: str
    pieces: list[Piece]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(piece.rows for piece in self.pieces)


class _Placed(Struct, frozen=True):
    """A piece, and where its rows are: the segment and the first row."""

    piece: Piece
    segment: str
    first: int


class Shelf:
    """The segments of one table, while pieces are removed and added.

    Adjacent pieces of a node are merged when they are written together, up to `joined` rows:
    what must be recomputed together grows with that. With `loose` their ranges need not touch.
    """

    def __init__(
        self,
        directory: Path,
        segments: Iterable[Segment],
        schema: pa.Schema,
        *,
        joined: int,
        loose: bool = False,
    ) -> None:
        self._directory = directory
        self._schema = schema
        self._joined, self._loose = joined, loose
        self._segments = list(segments)
        self._touched: set[str] = set()
        self._new: dict[str, list[tuple[Piece, pa.Table]]] = {}
        self._read: dict[str, pa.Table] = {}
        self._kept: dict[str, list[_Placed]] = {}
        for segment in self._segments:
            first = 0
            for piece in segment.pieces:
                placed = _Placed(piece, segment.name, first)
                self._kept.setdefault(piece.node, []).append(placed)
                first += piece.rows

    def pieces(self, node: str) -> list[Piece]:
        """The pieces of a node, in the order of time."""
        kept = [placed.piece for placed in self._kept.get(node, ())]
        added = [piece for piece, _ in self._new.get(node, ())]
        return sorted([*kept, *added], key=lambda piece: (piece.low, piece.high))

    def read(self, node: str, low: int = FIRST, high: int = LAST) -> pa.Table:
        """The rows of the pieces of a node that may contain something of a range."""
        kept = [
            self._rows_of(placed)
            for placed in self._kept.get(node, ())
            if placed.piece.overlaps(low, high)
        ]
        added = [rows for piece, rows in self._new.get(node, ()) if piece.overlaps(low, high)]
        return pa.concat_tables([self._schema.empty_table(), *kept, *added])

    def take_out(self, node: str, low: int = FIRST, high: int = LAST) -> None:
        """Remove the pieces of a node that overlap a range."""
        kept = self._kept.get(node, [])
        out = [placed for placed in kept if placed.piece.overlaps(low, high)]
        self._touched |= {placed.segment for placed in out}
        self._kept[node] = [placed for placed in kept if not placed.piece.overlaps(low, high)]
        added = self._new.get(node, [])
        self._new[node] = [pair for pair in added if not pair[0].overlaps(low, high)]

    def add(self, node: str, low: int, high: int, rows: pa.Table) -> None:
        """Add a piece; one without rows is kept as well, for its range."""
        piece = Piece(node, low, high, rows.num_rows)
        self._new.setdefault(node, []).append((piece, rows.cast(self._schema)))

    def close(self, name: str) -> list[Segment]:
        """Write what changed to one new segment; returns all segments of the table."""
        held = [pair for pairs in self._new.values() for pair in pairs]
        if not self._touched and not held:
            return self._segments
        left: dict[str, list[_Placed]] = {segment.name: [] for segment in self._segments}
        for kept in self._kept.values():
            for placed in kept:
                left[placed.segment].append(placed)
        rest = [segment for segment in self._segments if segment.name not in self._touched]
        moved = [placed for name in self._touched for placed in left[name]]
        size = sum(piece.rows for piece, _ in held) + sum(placed.piece.rows for placed in moved)
        for segment in crowded(rest, size):
            rest.remove(segment)
            moved += left[segment.name]
        held += [(placed.piece, self._rows_of(placed)) for placed in moved]
        return [*rest, self._written(name, held)] if held else rest

    def _rows_of(self, placed: _Placed) -> pa.Table:
        if placed.segment not in self._read:
            self._read[placed.segment] = read_rows(self._directory / placed.segment, self._schema)
        return self._read[placed.segment].slice(placed.first, placed.piece.rows)

    def _written(self, name: str, held: list[tuple[Piece, pa.Table]]) -> Segment:
        held.sort(key=lambda pair: (pair[0].node, pair[0].low))
        pieces = _neighbours_joined([piece for piece, _ in held], self._joined, loose=self._loose)
        rows = pa.concat_tables([rows for _, rows in held]).unify_dictionaries()
        return Segment(write_rows(self._directory, name, rows), pieces)


def crowded(segments: list[Segment], size: int) -> list[Segment]:
    """The segments to merge with a new one of this size: those of a full tier, and so on."""
    chosen: list[Segment] = []
    while size < LARGEST:
        peers = [
            segment
            for segment in segments
            if segment not in chosen and _tier(segment.rows) <= _tier(size)
        ]
        if len(peers) < FAN_OUT:
            break
        chosen += peers
        size += sum(segment.rows for segment in peers)
    return chosen


def _tier(rows: int) -> int:
    tier, bound = 0, SMALLEST
    while rows > bound:
        tier, bound = tier + 1, bound * FAN_OUT
    return tier


def _neighbours_joined(pieces: list[Piece], limit: int, *, loose: bool) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if (
            last is not None
            and last.node == piece.node
            and (loose or (last.high == piece.low and piece.high < LAST))
            and last.rows + piece.rows <= limit
        ):
            high = max(last.high, piece.high)
            found[-1] = Piece(piece.node, last.low, high, last.rows + piece.rows)
        else:
            found.append(piece)
    return found


def write_rows(directory: Path, name: str, rows: pa.Table) -> str:
    """Write a Parquet file with a unique name; returns the name."""
    unique = f"{name}-{uuid.uuid4().hex[:12]}.parquet"
    directory.mkdir(parents=True, exist_ok=True)
    hidden = directory / f".{unique}"
    pq.write_table(rows, hidden, **parquet_options(rows.schema))
    hidden.rename(directory / unique)
    return unique


def read_rows(path: Path, schema: pa.Schema) -> pa.Table:
    """All rows of such a file; strings are dictionary-encoded where the schema says so."""
    coded = [field.name for field in schema if field.type == CODED]
    with pq.ParquetFile(path, read_dictionary=coded) as source:
        rows: Any = source.read(use_threads=False)  # Spark runs several tasks
    return rows.cast(schema)
