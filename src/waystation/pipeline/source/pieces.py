"""The partitions of a read: several small nodes together, or a part of a large one.

A large node is split by seq, at row groups: a row has one seq, whatever file it is in, so
rows that are in two files still come out once. Row groups and files that cannot contain wanted
rows are left out before anything is sent to a task. Planning runs at the driver, reading in
the executors; neither knows of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from waystation.errors import WaystationError
from waystation.journal.pruning import bounds_of
from waystation.journal.read import parquet_footer
from waystation.pipeline.kernels.columns import Flags, longs
from waystation.pipeline.kernels.node_data import UNREADABLE, FileData, Share
from waystation.pipeline.listing import File, Listing, Wanted, locate
from waystation.pipeline.source.filters import Condition, all_hold
from waystation.pipeline.source.spans import FIRST, LAST, Spans

BYTES_PER_PARTITION: Final = 8 * 2**20
"""Compressed Parquet: some hundred thousand rows."""


class Piece(Struct, frozen=True):
    """What a task reads of one node: these files, and of them the rows in these ranges (or all)."""

    node: str
    files: list[File]
    spans: Spans | None = None


class GoneError(WaystationError):
    """A file was removed while it was read, by compaction or retention."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was removed while it was read; start the query again")


class PieceData(FileData):
    """The valid rows of a piece that satisfy all conditions."""

    def __init__(
        self,
        root: str,
        table: str,
        piece: Piece,
        conditions: Iterable[Condition] = (),
        *,
        must_be_there: bool = False,
    ) -> None:
        super().__init__(root, Share(piece.node, {table: piece.files}), Wanted())
        self._spans = piece.spans
        self._conditions = tuple(conditions)
        self._must_be_there = must_be_there

    def _may_hold_wanted(self, table: str, group: Any) -> bool:  # noqa: ARG002 - one table only
        if not all(condition.may_hold(group) for condition in self._conditions):
            return False
        found = _place_of(group)
        if self._spans is None or found is None:
            return True
        incarnation, low, high = found
        spans = self._spans.get(incarnation, [])
        return any(low <= end and begin <= high for begin, end in spans)

    def _wanted_rows(self, table: str, rows: pa.Table) -> pa.Table:  # noqa: ARG002 - one only
        if self._spans is not None:
            rows = rows.filter(pa.array(_inside(rows, self._spans)))
        return all_hold(self._conditions, rows)

    def _reject(self, table: str, file: File, row: str | None, problem: str) -> None:
        if row is None and self._must_be_there and not self._is_there(file):
            raise GoneError(file.path)
        super()._reject(table, file, row, problem)

    def _is_there(self, file: File) -> bool:
        info = self._system.get_file_info(f"{self._directory}/{file.path}")
        return bool(info.is_file)


def encoded(pieces: list[Piece]) -> bytes:
    """Serialize pieces for a task."""
    return msgspec.msgpack.encode(pieces)


def decoded(data: bytes) -> list[Piece]:
    """Deserialize pieces."""
    return msgspec.msgpack.decode(data, type=list[Piece])


def plan(
    listing: Listing, table: str, conditions: Iterable[Condition], size: int
) -> list[list[Piece]]:
    """The pieces of each task, about this many bytes in each."""
    wanted = tuple(conditions)
    system, directory = locate(listing.root)
    weighed: list[tuple[Piece, int]] = []
    for node in _nodes_that_hold(wanted, listing.nodes):
        files = _files_that_hold(wanted, listing.nodes[node].get(table, []))
        total = sum(file.size for file in files)
        within = tuple(condition for condition in wanted if condition.column != "node")
        if total <= size:
            weighed += [(Piece(node, files), total)] if files else []
        else:
            weighed += _cut_large(system, directory, Piece(node, files), within, size)
    return list(bundled(weighed, size))


def bundled(weighed: Iterable[tuple[Piece, int]], size: int) -> Iterator[list[Piece]]:
    """Pieces in bundles of about this size, in order."""
    bundle: list[Piece] = []
    held = 0
    for piece, weight in weighed:
        if bundle and held + weight > size:
            yield bundle
            bundle, held = [], 0
        bundle.append(piece)
        held += weight
    if bundle:
        yield bundle


def footer_of(system: Any, path: str) -> Any:
    """The footer of a file, or None if it cannot be read."""
    try:
        return parquet_footer(system, path)
    except UNREADABLE:
        return None  # its reader reports it as a reject


def place_of_file(footer: Any) -> tuple[int, int, int] | None:
    """The incarnation, the lowest and the highest seq of a file of one incarnation, if known."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    places = [_place_of(group) for group in groups if group.num_rows]
    found = [place for place in places if place is not None]
    if not found or len(found) < len(places) or len({place[0] for place in found}) > 1:
        return None
    return found[0][0], min(place[1] for place in found), max(place[2] for place in found)


class Group(Struct, frozen=True, order=True):
    """A row group of a large node, in the order of rows."""

    incarnation: int
    low: int
    high: int
    size: int
    file: int  # its number


def _cut_large(
    system: Any, directory: str, whole: Piece, conditions: tuple[Condition, ...], size: int
) -> list[tuple[Piece, int]]:
    """A large node in pieces of about this size, without what cannot satisfy the conditions."""
    groups: list[Group] = []
    for number, file in enumerate(whole.files):
        footer = footer_of(system, f"{directory}/{file.path}")
        for index in range(0 if footer is None else footer.num_row_groups):
            group = footer.row_group(index)
            place = _place_of(group)
            if place is None:  # its rows are unknown
                return [(whole, sum(file.size for file in whole.files))]
            if all(condition.may_hold(group) for condition in conditions):
                taken = file.size * group.num_rows // max(footer.num_rows, 1)
                groups.append(Group(*place, taken, number))
    return list(cut(whole, sorted(groups), size))


def cut(whole: Piece, groups: list[Group], size: int) -> Iterator[tuple[Piece, int]]:
    """One piece for each run of row groups, in order; no seq is in two of them."""
    runs = list(_runs(groups, size))
    for number, run in enumerate(runs):
        before = runs[number - 1][-1] if number else None
        after = runs[number + 1][0] if number + 1 < len(runs) else None
        spans = _spans_of(run, before, after)
        reached = {group.file for group in groups if _reaches(group, spans)}
        files = [whole.files[number] for number in sorted(reached)]
        yield Piece(whole.node, files, spans), sum(group.size for group in run)


def _runs(groups: list[Group], size: int) -> Iterator[list[Group]]:
    """Adjacent row groups, of about this size together."""
    run: list[Group] = []
    held = 0
    for group in groups:
        # Two row groups that begin with the same seq cannot be separated.
        is_border = bool(run) and (run[-1].incarnation, run[-1].low) < (
            group.incarnation,
            group.low,
        )
        if is_border and held + group.size > size:
            yield run
            run, held = [], 0
        run.append(group)
        held += group.size
    if run:
        yield run


def _spans_of(run: list[Group], before: Group | None, after: Group | None) -> Spans:
    """From the beginning of a run to that of the next one, within its incarnations."""
    first, last = run[0], run[-1]
    spans: Spans = {group.incarnation: [(FIRST, LAST)] for group in run}
    if before is not None and before.incarnation == first.incarnation:
        spans[first.incarnation] = [(first.low, LAST)]
    if after is not None and after.incarnation == last.incarnation:
        begin, _ = spans[last.incarnation][0]
        spans[last.incarnation] = [(begin, after.low - 1)]
    return spans


def _reaches(group: Group, spans: Spans) -> bool:
    return any(
        group.low <= end and begin <= group.high for begin, end in spans.get(group.incarnation, [])
    )


def _place_of(group: Any) -> tuple[int, int, int] | None:
    """The incarnation, the lowest and the highest seq of a row group of one incarnation."""
    incarnations, seqs = bounds_of(group, "incarnation"), bounds_of(group, "seq")
    if incarnations is None or seqs is None or incarnations[0] != incarnations[1]:
        return None
    if not all(isinstance(number, int) for number in (*incarnations, *seqs)):
        return None  # it is a reject anyway
    return incarnations[0], seqs[0], seqs[1]


def _inside(rows: pa.Table, spans: Spans) -> Flags:
    """Which rows are in these ranges."""
    incarnations, seqs = longs(rows, "incarnation", -1), longs(rows, "seq", -1)
    inside: Flags = np.zeros(rows.num_rows, np.bool_)
    for incarnation, found in spans.items():
        own = incarnations == incarnation
        if not own.any():
            continue
        begins = np.array([begin for begin, _ in found], np.int64)
        ends = np.array([end for _, end in found], np.int64)
        place = np.searchsorted(begins, seqs, "right") - 1
        inside |= own & (place >= 0) & (seqs <= ends[np.maximum(place, 0)])
    return inside


def _nodes_that_hold(conditions: tuple[Condition, ...], nodes: Iterable[str]) -> list[str]:
    names = pa.table({"node": pa.array(list(nodes), pa.string())})
    asked = [condition for condition in conditions if condition.column == "node"]
    found: list[str] = all_hold(asked, names).column("node").to_pylist()
    return found


def _files_that_hold(conditions: tuple[Condition, ...], files: list[File]) -> list[File]:
    """The files that, by their names, may contain rows of a wanted incarnation."""
    asked = [condition for condition in conditions if condition.column == "incarnation"]
    if not asked:
        return files
    distinct = sorted({file.incarnation for file in files})
    numbers = pa.table({"incarnation": pa.array(distinct, pa.int64())})
    kept = {-1, *all_hold(asked, numbers).column("incarnation").to_pylist()}
    return [file for file in files if file.incarnation in kept]
