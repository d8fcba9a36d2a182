"""Losses and incidents of a watched journal: found again after each batch, from the other tables.

What is lost is few. Of each file of the store the losses are read once, and remembered: such files
never change. The core explains them, as for a small journal (inprocess.py). No Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waystation.core.incidents import Covered, Entry, Incident, Loss, Past, Session, found_in
from waystation.journal.schema import MEMBERS, MESSAGES
from waystation.pipeline.inprocess import (
    corrections_of,
    covered_of,
    entry_of,
    gaps_of,
    incident_table,
    loss_table,
    losses_in,
    plain_rows,
    session_of,
)
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.kernels.gossip import gossip_losses
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.listing import Listing, Wanted
from waystation.pipeline.watching.segments import write_rows
from waystation.pipeline.watching.store import Manifest, Store

_OF_TRACE: Final = ["message_id", "origin", "sender", "multicast_id", "day", "lost"]
_BUCKET: Final = 0  # one file for the whole fleet


class LossKeeper:
    """Keeps `losses` and `incidents` up to date."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lost: dict[str, list[Loss]] = {}  # by file of `traces`
        self._gossip: dict[str, list[Loss]] = {}  # by file of the journal

    def take(self, manifest: Manifest, listing: Listing) -> list[Incident]:
        """Find and write the losses and incidents of a batch, whose other tables are written."""
        lost = [*self._lost_in_traces(manifest), *self._lost_by_gossip(listing)]
        found = found_in(lost, self._past(manifest, lost))
        for table, rows in (
            ("losses", loss_table(found.losses)),
            ("incidents", incident_table(found.incidents)),
        ):
            name = write_rows(self._store.shelf(table), "all", rows)
            manifest.files[table] = {_BUCKET: [f"{table}/{name}"]}
        return found.incidents

    def _lost_in_traces(self, manifest: Manifest) -> Iterator[Loss]:
        names = manifest.of_table("traces")
        self._lost = {name: self._lost[name] for name in names if name in self._lost}
        for name in names:
            if name not in self._lost:
                rows = pq.read_table(self._store.root / name, columns=_OF_TRACE)
                self._lost[name] = losses_in(rows)
            yield from self._lost[name]

    def _lost_by_gossip(self, listing: Listing) -> Iterator[Loss]:
        seen: set[tuple[str, str, int]] = set()
        for node, files in listing.nodes.items():
            if MEMBERS not in files:
                continue
            for file in files.get(MESSAGES, ()):
                if file.path not in self._gossip:
                    share = Share(node, {MEMBERS: files[MEMBERS], MESSAGES: [file]})
                    data = FileData(listing.root, share, Wanted())
                    lost = [loss for rows in gossip_losses(data) for loss in losses_in(rows)]
                    self._gossip[file.path] = lost
                for loss in self._gossip[file.path]:  # a compacted file repeats its sources
                    key = loss.message_id, loss.lost.node, loss.lost.at
                    if key not in seen:
                        seen.add(key)
                        yield loss

    def _past(self, manifest: Manifest, lost: list[Loss]) -> Past:
        names = sorted({loss.lost.recipient for loss in lost if loss.lost.recipient is not None})
        known = Known()
        if manifest.known is not None:
            known = Known.decoded(self._store.read_state(manifest.known))
        entries: list[Entry] = []
        if names:
            wanted = pc.field("participant").isin(names)
            entries = [entry_of(row) for row in self._rows(manifest, "route_history", wanted)]
        sessions: list[Session] = [
            session_of(row) for row in self._rows(manifest, "session_history")
        ]
        covered: list[Covered] = [covered_of(row) for row in self._rows(manifest, "coverage")]
        return Past(entries, sessions, covered, list(gaps_of(known)), corrections_of(known))

    def _rows(
        self, manifest: Manifest, table: str, wanted: pc.Expression | None = None
    ) -> Iterator[dict[str, Any]]:
        for name in manifest.of_table(table):
            rows: pa.Table = pq.read_table(Path(self._store.root / name), filters=wanted)
            yield from plain_rows(rows)
