"""Follows a few messages in the newest part of a journal while they are in flight.

Only tails and recently sealed files are read, each from where the last read ended: a message that
was just sent cannot be elsewhere. `waystation.why` explains older messages. This module needs
pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.journal.layout import SEALED, files_in, nodes_of, table_directory, tails_in
from waystation.journal.read import UNREADABLE, instants_as_integers, read_sealed, read_tail
from waystation.journal.schema import MESSAGES, conform

_SLACK: Final = 5.0
"""Seconds by which file times and the clock of this process may differ."""


class MessageRow(Struct, frozen=True):
    """A journal row of a message at one node; times in microseconds."""

    message_id: str
    node: str
    incarnation: int
    seq: int
    at: int
    received_at: int
    outcome: str
    reason: str | None
    next_hop: str | None
    recipient: str | None
    next_node: str | None  # what the next hop calls itself, if it is known


_COLUMNS: Final = [name for name in MessageRow.__struct_fields__ if name != "node"]


class JournalFollower:
    """Follows messages in a journal from a time on, in seconds since the epoch."""

    def __init__(self, journal: Path, since: float) -> None:
        self._journal = journal
        self._since = since - _SLACK
        self._ids: frozenset[str] = frozenset()
        self._tails: dict[Path, tuple[int, pa.Schema]] = {}  # where the last read of each ended
        self._sealed: set[Path] = set()

    def look(self, ids: frozenset[str]) -> list[MessageRow]:
        """New rows of these messages; all rows if the ids have changed."""
        if ids != self._ids:
            self._ids = ids
            self._tails.clear()
            self._sealed.clear()
        return [
            sighting
            for node in nodes_of(self._journal, MESSAGES)
            for sighting in self._at_node(node)
        ]

    def _at_node(self, node: str) -> Iterator[MessageRow]:
        directory = table_directory(self._journal, MESSAGES, node)
        wanted = pc.field("message_id").isin(sorted(self._ids))
        for batch in self._batches(directory):
            yield from _message_rows(node, batch.filter(wanted))

    def _batches(self, directory: Path) -> Iterator[pa.RecordBatch]:
        for tail in tails_in(directory).values():
            try:
                yield from self._new_in_tail(tail)
            except UNREADABLE:
                continue  # sealed meanwhile, or damaged: `waystation journal check` reports that
        for stem in files_in(directory, SEALED):
            path = directory / stem.sealed
            try:
                if path not in self._sealed and path.stat().st_mtime >= self._since:
                    self._sealed.add(path)
                    yield from read_sealed(path)
            except UNREADABLE:
                continue

    def _new_in_tail(self, path: Path) -> Iterator[pa.RecordBatch]:
        start, schema = self._tails.get(path, (0, None))
        content = read_tail(path, start, schema)
        if content.schema is not None:
            self._tails[path] = content.end, content.schema
        yield from content.batches


def _message_rows(node: str, batch: pa.RecordBatch) -> Iterator[MessageRow]:
    for row in instants_as_integers(conform(batch, MESSAGES).select(_COLUMNS)).to_pylist():
        yield MessageRow(node=node, **row)
