"""Finds the rows of a journal that are about one message and its recipients.

Little is read: row groups whose bounds or Bloom filter rule the message out are skipped, and in the
others the column of ids is read first. Files that cannot be read are reported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import convert

from waystation.core.corrections import Link, Measured
from waystation.core.coverage import Life, NodeRow, lives_of
from waystation.journal.layout import SEALED, all_nodes, files_in, table_directory, tails_in
from waystation.journal.read import (
    UNREADABLE,
    TableReader,
    TailContent,
    error_text,
    find_in_sealed,
    instants_as_integers,
    read_sealed,
    read_tail,
    record_bounds,
)
from waystation.journal.schema import (
    CLAIMS,
    MESSAGES,
    NODES,
    ROUTES,
    SCHEMAS,
    SESSIONS,
    SUBSCRIPTIONS,
    conform,
    version_in,
)

if TYPE_CHECKING:
    from waystation.pipeline.traffic import Traffic

Row = dict[str, Any]


_MEASURED: Final = pa.schema(
    [
        SCHEMAS[SESSIONS].field(name)
        for name in ("kind", "at", "session", "peer", "offset_us", "rtt_us")
    ]
)
"""The columns of `sessions` that tell of clocks."""


class MessageLookup:
    """Looks up rows about one message in a journal."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.nodes = all_nodes(journal)
        self.problems: list[str] = []
        self._sessions: dict[str, list[Row]] = {}
        self._traffic: Traffic | None = None

    def message(self, id: str) -> list[Row]:
        """Every row about a message, with the version of its file, by (at, node, seq)."""
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # Arrow releases the GIL
            found = list(threads.map(lambda node: list(self._of_node(node, id)), self.nodes))
        self.problems.sort()
        rows = [row for of_node in found for row in of_node]
        return sorted(rows, key=lambda row: (row["at"], row["node"], row["seq"]))

    def answers(self, node: str, id: str, since: int) -> set[str]:
        """The ids of the messages that answer this one, and began at a node since then."""
        return {row["message_id"] for row in self._of_node(node, id, "answers", since)}

    def route_events(self, node: str, incarnation: int, participants: set[str]) -> list[Row]:
        """The route changes of some participants, in order."""
        wanted = pc.field("participant").isin(sorted(participants))
        return self._rows(ROUTES, node, incarnation, wanted)

    def participants(self, node: str, incarnation: int) -> set[str]:
        """All participants that a node ever had a routing entry for."""
        return {row["participant"] for row in self._rows(ROUTES, node, incarnation, None)}

    def subscription_events(self, node: str, incarnation: int) -> list[Row]:
        """The subscription changes, in order."""
        return self._rows(SUBSCRIPTIONS, node, incarnation, None)

    def claim_events(self, node: str, incarnation: int | None, participants: set[str]) -> list[Row]:
        """What became of the claims to some participants, in order."""
        wanted = pc.field("participant").isin(sorted(participants))
        return self._rows(CLAIMS, node, incarnation, wanted)

    def sessions(self, node: str) -> list[Row]:
        """The sessions of a node, and what they measured, in order; read once."""
        if node not in self._sessions:
            self._sessions[node] = self._rows(SESSIONS, node, None, None)
        return self._sessions[node]

    def measured(self) -> list[Measured]:
        """What all nodes measured of the clocks of their peers.

        That is in many small files, so each is read once, and only what is needed of it. A row that
        is in two of them changes nothing.
        """
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            parts = list(threads.map(self._sessions_of, self.nodes))
        names = [
            node for node, part in zip(self.nodes, parts, strict=True) for _ in range(len(part))
        ]
        rows = instants_as_integers(pa.concat_tables(parts)) if parts else _MEASURED.empty_table()
        kinds, *columns = (column.to_pylist() for column in rows.columns)
        told = zip(names, kinds, *columns, strict=True)
        return [Measured(node, *values) for node, kind, *values in told if kind == "clock"]

    def _sessions_of(self, node: str) -> pa.Table:
        """Some columns of what a node recorded of its sessions, in order."""
        directory = table_directory(self._journal, SESSIONS, node)
        tails = tails_in(directory)
        found: list[pa.RecordBatch] = []
        for stem in sorted({*tails, *files_in(directory, SEALED)}):
            path = directory / stem.sealed
            try:
                if stem in tails and not path.exists():
                    found += map(_as_measured, self._tail_batches(tails[stem]))
                    continue
                for batch in read_sealed(path, _MEASURED.names):
                    found.append(_as_measured(batch))
            except FileNotFoundError:
                continue  # sealed, compacted or removed meanwhile
            except UNREADABLE as error:
                self._report(path, error)
        return pa.Table.from_batches(found, _MEASURED)

    def estimates(self, measured: Mapping[int, list[Link]], hour: int) -> list[Link]:
        """What the traffic of an hour tells of clocks that these measurements do not connect."""
        # It is needed for few journals, and takes long to import.
        from waystation.pipeline.traffic import Traffic  # noqa: PLC0415

        if self._traffic is None:
            self._traffic = Traffic(str(self._journal), measured)
        return self._traffic.links(hour)

    def lives(self, node: str) -> list[Life]:
        """The incarnations of a node, and what is on record of them."""
        told = [convert(row, NodeRow) for row in self.life(node)]
        return lives_of(record_bounds(self._journal, node), told, partial(self._before, node))

    def _before(self, node: str, incarnation: int, seq: int) -> int:
        """When the record before this one was made."""
        latest = 0
        for table in SCHEMAS:
            for batch in TableReader(self._journal, table, node, self._report).batches():
                wanted = (pc.field("incarnation") == incarnation) & (pc.field("seq") < seq)
                at = pc.max(batch.filter(wanted).column("at").cast(pa.int64())).as_py()
                latest = max(latest, at or 0)
        return latest

    def life(self, node: str) -> list[Row]:
        """The starts and stops of a node, and the losses of its journal."""
        return self._rows(NODES, node, None, None)

    def _of_node(
        self, node: str, id: str, column: str = "message_id", since: int | None = None
    ) -> Iterator[Row]:
        directory = table_directory(self._journal, MESSAGES, node)
        seen: set[tuple[int, int]] = set()
        for batch, version in self._batches_with(directory, id, column, since):
            for row in instants_as_integers(conform(batch, MESSAGES)).to_pylist():
                position = (row["incarnation"], row["seq"])
                if position not in seen:  # a compacted file may exist beside its sources
                    seen.add(position)
                    yield {"node": node, "version": version, **row}

    def _batches_with(
        self, directory: Path, id: str, column: str, since: int | None
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The rows with an id in a column, and the version of their file."""
        for tail in tails_in(directory).values():
            yield from self._in_tail(tail, id, column)
        for stem in files_in(directory, SEALED):
            try:
                for batch in find_in_sealed(directory / stem.sealed, column, id, since):
                    yield batch, version_in(batch.schema.metadata)
            except FileNotFoundError:
                continue  # compacted or removed meanwhile
            except UNREADABLE as error:
                self._report(directory / stem.sealed, error)

    def _tail_batches(self, tail: Path) -> list[pa.RecordBatch]:
        content = self._tail_content(tail)
        return [] if content is None else content.batches

    def _tail_content(self, tail: Path) -> TailContent | None:
        try:
            content = read_tail(tail)
        except FileNotFoundError:
            return None  # sealed meanwhile
        except UNREADABLE as error:
            self._report(tail, error)
            return None
        for damage in content.damaged:
            self._report(tail, str(damage))
        return content

    def _in_tail(self, tail: Path, id: str, column: str) -> Iterator[tuple[pa.RecordBatch, int]]:
        content = self._tail_content(tail)
        if content is None:
            return
        for batch in content.batches:
            if column in batch.schema.names:
                yield batch.filter(pc.field(column) == id), content.version

    def _rows(
        self, table: str, node: str, incarnation: int | None, wanted: pc.Expression | None
    ) -> list[Row]:
        reader = TableReader(self._journal, table, node, self._report)
        rows: list[Row] = []
        for batch in reader.batches():
            chosen = batch if wanted is None else batch.filter(wanted)
            if incarnation is not None:
                chosen = chosen.filter(pc.field("incarnation") == incarnation)
            rows += instants_as_integers(chosen).to_pylist()
        return sorted(rows, key=lambda row: (row["incarnation"], row["seq"]))

    def _report(self, path: Path, problem: BaseException | str) -> None:
        what = problem if isinstance(problem, str) else error_text(problem)
        if f"{path}: {what}" not in self.problems:
            self.problems.append(f"{path}: {what}")


def _as_measured(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that tell of clocks; raises KeyError if one is missing."""
    columns = [batch.column(name) for name in _MEASURED.names]
    return pa.RecordBatch.from_arrays(columns, names=_MEASURED.names).cast(_MEASURED)
