"""Finds the rows of a journal that are about one message and its recipients.

Little is read: row groups whose bounds or Bloom filter rule the message out are skipped, and in the
others the column of ids is read first. Files that cannot be read are reported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waystation.journal.layout import SEALED, all_nodes, files_in, table_directory, tails_in
from waystation.journal.read import (
    UNREADABLE,
    TableReader,
    error_text,
    find_in_sealed,
    instants_as_integers,
    read_tail,
)
from waystation.journal.schema import (
    CLAIMS,
    MESSAGES,
    NODES,
    ROUTES,
    SESSIONS,
    SUBSCRIPTIONS,
    conform,
)

Row = dict[str, Any]


class MessageLookup:
    """Looks up rows about one message in a journal."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.problems: list[str] = []

    def message(self, id: str) -> list[Row]:
        """Every row about a message, in the order of (at, node, seq)."""
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # Arrow releases the GIL
            found = list(
                threads.map(lambda node: list(self._of_node(node, id)), all_nodes(self._journal))
            )
        self.problems.sort()
        rows = [row for of_node in found for row in of_node]
        return sorted(rows, key=lambda row: (row["at"], row["node"], row["seq"]))

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

    def clocks(self, node: str, incarnation: int) -> list[Row]:
        """What a node measured of the clocks of its peers, in order."""
        return self._rows(SESSIONS, node, incarnation, pc.field("kind") == "clock")

    def life(self, node: str) -> list[Row]:
        """The starts and stops of a node, and the losses of its journal."""
        return self._rows(NODES, node, None, None)

    def _of_node(self, node: str, id: str) -> Iterator[Row]:
        directory = table_directory(self._journal, MESSAGES, node)
        seen: set[tuple[int, int]] = set()
        for batch in self._batches_with(directory, id):
            for row in instants_as_integers(conform(batch, MESSAGES)).to_pylist():
                position = (row["incarnation"], row["seq"])
                if position not in seen:  # a compacted file may exist beside its sources
                    seen.add(position)
                    yield {"node": node, **row}

    def _batches_with(self, directory: Path, id: str) -> Iterator[pa.RecordBatch]:
        wanted = pc.field("message_id") == id
        for tail in tails_in(directory).values():
            try:
                content = read_tail(tail)
                for damage in content.damaged:
                    self._report(tail, str(damage))
                for batch in content.batches:
                    yield batch.filter(wanted)
            except FileNotFoundError:
                continue  # sealed meanwhile
            except UNREADABLE as error:
                self._report(tail, error)
        for stem in files_in(directory, SEALED):
            try:
                yield from find_in_sealed(directory / stem.sealed, "message_id", id)
            except FileNotFoundError:
                continue  # compacted or removed meanwhile
            except UNREADABLE as error:
                self._report(directory / stem.sealed, error)

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
        self.problems.append(f"{path}: {what}")
