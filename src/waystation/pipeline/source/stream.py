"""A journal as a Spark stream: the reader behind `spark.readStream.format("waystation")`.

Sealed files are read as they appear, in whatever order. How far the stream has read is in Spark's
checkpoint (source_offsets.py), so that a restarted query continues without gaps or duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from waystation.errors import LocalError
from waystation.pipeline.listing import File, Wanted, list_journal, locate
from waystation.pipeline.source.offsets import Mark, Offset, Place, name_of
from waystation.pipeline.source.options import Reading
from waystation.pipeline.source.pieces import (
    Group,
    Piece,
    bundled,
    cut,
    decoded,
    encoded,
    footer_of,
    place_of_file,
)
from waystation.pipeline.source.reader import rows_of, wanted_columns
from waystation.pipeline.source.spans import Spans, common_spans, new_spans

_Files: TypeAlias = dict[str, list[File]]
"""The files of the table, by node."""


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the files of one table of a journal as they are sealed."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        if reading.is_built:
            raise LocalError(
                f"{reading.table} cannot be read as a stream",
                rule="SP-5",
                hint="read it with spark.read",
            )
        self.reading = reading
        self.schema = wanted_columns(reading, schema)
        self._looked_at: dict[tuple[str, int], tuple[Place | None, int]] = {}  # range, rows
        self._target: set[tuple[str, int]] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The offset before anything was read."""
        return Offset(self.reading.table).written()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit that the options set."""
        if self.reading.most_files is not None:
            return ReadMaxFiles(self.reading.most_files)
        if self.reading.most_bytes is not None:
            return ReadMaxBytes(self.reading.most_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the existing files as all that this run reads."""
        found = chain.from_iterable(self._listed().values())
        self._target = {(file.path, file.size) for file in found}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The latest offset, within the limit, from `start` on."""
        offset = Offset.read(start, self.reading.table)
        listed = self._listed()
        new = {
            node: [file for file in files if self._is_new(offset.mark(node), file)]
            for node, files in listed.items()
        }
        taken: dict[str, dict[str, tuple[int, Place | None]]] = {}
        room = _room(limit)
        for node, file in _in_turns(new):
            place, rows = self._look_at(file)
            if not room(file, rows) and taken:
                break
            taken.setdefault(node, {})[name_of(file)] = (file.size, place)
        if not taken:
            return start
        nodes = dict(offset.nodes)
        for node, files in taken.items():
            nodes[node] = offset.mark(node).advanced(files, map(name_of, listed[node]))
        return Offset(self.reading.table, nodes).written()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The partitions, lists of pieces, for the rows between two offsets."""
        table = self.reading.table
        begin, finish = Offset.read(start, table), Offset.read(end, table)
        listed = self._listed()
        weighed: list[tuple[Piece, int]] = []
        for node, mark in finish.nodes.items():
            if mark != begin.mark(node):
                weighed += self._pieces(node, begin.mark(node), mark, listed.get(node, []))
        bundles = bundled(weighed, self.reading.partition_bytes)
        return [InputPartition(encoded(bundle)) for bundle in bundles]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces."""
        for piece in decoded(partition.value):
            yield from rows_of(self.reading, piece, self.schema, must_be_there=True)

    def _pieces(
        self, node: str, begin: Mark, finish: Mark, listed: list[File]
    ) -> Iterator[tuple[Piece, int]]:
        whole = {name for name, _ in finish.whole_files() - begin.whole_files()}
        alone = [file for file in listed if name_of(file) in whole]
        if alone:
            yield Piece(node, alone), sum(file.size for file in alone)
        spans = new_spans(finish.spans(), begin.spans())
        placed = list(self._placed(finish, listed, spans))
        groups = [Group(*place, file.size, number) for number, (file, place) in enumerate(placed)]
        everything = Piece(node, [file for file, _ in placed])
        for piece, size in cut(everything, sorted(groups), self.reading.partition_bytes):
            wanted = common_spans(spans, piece.spans or {})
            if wanted:
                yield Piece(node, piece.files, wanted), size

    def _placed(self, mark: Mark, listed: list[File], spans: Spans) -> Iterator[tuple[File, Place]]:
        """The files that contain rows of these ranges, with the range of each."""
        known = mark.places()
        for file in listed:
            name = name_of(file)
            if name in known and mark.knows(file):
                place: Place | None = known[name]
            else:  # it was compacted meanwhile
                place, _ = self._look_at(file)
            if place is not None and common_spans(spans, {place[0]: [place[1:]]}):
                yield file, place

    def _is_new(self, mark: Mark, file: File) -> bool:
        if self._target is not None and (file.path, file.size) not in self._target:
            return False
        return not mark.knows(file)

    def _look_at(self, file: File) -> tuple[Place | None, int]:
        """The range of a file's rows, if known, and their number."""
        key = (file.path, file.size)
        found = self._looked_at.get(key)
        if found is None:
            system, directory = locate(self.reading.path)
            footer = footer_of(system, f"{directory}/{file.path}")
            place = None if footer is None else place_of_file(footer)
            found = self._looked_at[key] = (place, 0 if footer is None else footer.num_rows)
        return found

    def _listed(self) -> _Files:
        table = self.reading.table
        listing = list_journal(self.reading.path, Wanted())
        found = {node: tables[table] for node, tables in listing.of([table]).items()}
        there = {(file.path, file.size) for files in found.values() for file in files}
        self._looked_at = {key: seen for key, seen in self._looked_at.items() if key in there}
        return found


def _in_turns(files: _Files) -> Iterator[tuple[str, File]]:
    """The files of all nodes, taking turns, so that no node waits for another."""
    waiting = [(node, iter(found)) for node, found in files.items()]
    while waiting:
        going_on = []
        for node, rest in waiting:
            file = next(rest, None)
            if file is not None:
                yield node, file
                going_on.append((node, rest))
        waiting = going_on


def _room(limit: ReadLimit) -> Callable[[File, int], bool]:
    """A function that counts files, and says for each whether it is within the limit."""
    used = 0

    def has_room(file: File, rows: int) -> bool:
        nonlocal used
        if isinstance(limit, ReadMaxFiles):
            used += 1
            return used <= limit.max_files
        if isinstance(limit, ReadMaxBytes):
            used += file.size
            return used <= limit.max_bytes
        if isinstance(limit, ReadMaxRows):
            used += rows
            return used <= limit.max_rows
        return True

    return has_room
