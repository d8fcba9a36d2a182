"""The open tails of a node, one for each table that has had a record.

Only the writer's thread calls this. What is full, old or broken is retired: closed and handed on
to be sealed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from waystation.journal.layout import Stem, table_directory
from waystation.journal.losses import Losses
from waystation.journal.tail import Tail


class Tails:
    """Where batches go. `retire` hears of each tail that is finished."""

    def __init__(
        self,
        journal: Path,
        node: str,
        *,
        seal_bytes: int,
        seal_seconds: float,
        sync: bool,
        losses: Losses,
        retire: Callable[[Tail], None],
    ) -> None:
        self._journal = journal
        self._node = node
        self._seal_bytes = seal_bytes
        self._seal_seconds = seal_seconds
        self._sync = sync
        self._losses = losses
        self._retire = retire
        self._open: dict[str, Tail] = {}

    def append(self, table: str, batch: pa.RecordBatch) -> None:
        """Write a batch, wholly or not at all; raises OSError."""
        tail = self._open.get(table)
        if tail is not None and not tail.in_place():
            self._abandon(tail)
            tail = None
        if tail is None:
            tail = self._open[table] = self._new(table, batch)
        try:
            tail.append(batch)
        except OSError:
            if tail.broken:
                self._finish(tail)
            raise
        if tail.size >= self._seal_bytes:
            self._finish(tail)

    def _new(self, table: str, batch: pa.RecordBatch) -> Tail:
        stem = Stem(batch.column("incarnation")[0].as_py(), batch.column("seq")[0].as_py())
        return Tail(table_directory(self._journal, table, self._node), table, stem)

    def flushed(self) -> None:
        """A round of appends is over: sync if asked for, and retire what is old."""
        now = time.monotonic()
        for tail in list(self._open.values()):
            if self._sync:
                tail.sync()
            if now - tail.opened >= self._seal_seconds:
                self._finish(tail)

    def finish_all(self) -> None:
        """Retire every tail."""
        for tail in list(self._open.values()):
            self._finish(tail)

    def _finish(self, tail: Tail) -> None:
        del self._open[tail.table]
        tail.close()
        self._retire(tail)

    def _abandon(self, tail: Tail) -> None:
        """Somebody removed the file under us: what it held is gone."""
        del self._open[tail.table]
        tail.close()
        self._losses.add(tail.rows, f"{tail.table}/{tail.path.name.removeprefix('.')} vanished")
