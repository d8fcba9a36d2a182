"""The journal's write side without threads, and what the pipeline's kernels say of it.

Records are flushed by the loop, so that a crash loses what was not; what was flushed stays on the
simulated disk. After the run it is written as sealed files, which the pipeline reads as any others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from waystation.core.clock import current_clock
from waystation.core.record import Record
from waystation.journal.convert import Converter
from waystation.journal.layout import table_directory
from waystation.journal.schema import VERSION_KEY, WRITTEN_VERSION, NodeKind, NodeRecord

_VERSION: Final = {VERSION_KEY: str(WRITTEN_VERSION)}

FLUSH: Final = 1.0
"""Seconds between flushes: what a crash loses at most."""


class SimulatedDisk:
    """What the journals of a fleet have flushed: records by node and incarnation."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], list[Record | NodeRecord]] = {}
        self._incarnations: dict[str, int] = {}
        self._last: dict[str, int] = {}  # instants of the nodes' last records

    def next_incarnation(self, node: str, at_least: int) -> int:
        """The number of a new incarnation: the time, or more if an earlier one had that."""
        latest = self._incarnations.get(node, 0)
        self._incarnations[node] = max(at_least, latest + 1)
        return self._incarnations[node]

    def last_instant(self, node: str) -> int:
        """When the last record of a node was made, in microseconds; 0 if there is none."""
        return self._last.get(node, 0)

    def append(self, node: str, incarnation: int, records: list[Record | NodeRecord]) -> None:
        """Keep records for good."""
        self._records.setdefault((node, incarnation), []).extend(records)
        self._last[node] = records[-1].at

    def seal(self, directory: Path) -> None:
        """Write everything as sealed files of a journal."""
        for (node, incarnation), records in self._records.items():
            seq = 0
            for table, batch in Converter(node, incarnation).convert(records, 0):
                folder = table_directory(directory, table, node)
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{incarnation}-{seq}.parquet"
                written = pa.Table.from_batches([batch]).replace_schema_metadata(_VERSION)
                pq.write_table(written, path)
                seq += batch.num_rows


class SimulatedJournal:
    """The journal of one life of a node; pass `note` to `node.observe`."""

    def __init__(self, disk: SimulatedDisk, node: str) -> None:
        clock = current_clock()
        clock.not_before((disk.last_instant(node) + 1) * 1000)
        self._disk = disk
        self._node = node
        self._incarnation = disk.next_incarnation(node, clock() // 1_000_000)
        self._waiting: list[Record | NodeRecord] = [
            NodeRecord(NodeKind.START, "simulated", clock() // 1000)
        ]
        self._loop = asyncio.get_running_loop()
        self._flush()

    def note(self, record: Record) -> None:
        """Take a record."""
        self._waiting.append(record)

    def close(self) -> None:
        """Note that the node was stopped, and write what there is."""
        self._waiting.append(NodeRecord(NodeKind.STOP, "", current_clock()() // 1000))
        self._flush()

    def _flush(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._disk.append(self._node, self._incarnation, waiting)
        self._loop.call_later(FLUSH, self._flush)


IN_HAND: Final = timedelta(seconds=35)
"""How long a message may wait for a link, or be with one that is blocked, before that is told."""

FOREVER: Final = datetime.max.replace(tzinfo=UTC)

BEYOND_THE_RULES: Final = frozenset(
    {"EXPIRED", "MALFORMED", "QUEUE_FULL", "REFUSED", "TRANSPORT_DOWN"}
)
"""Why a message may end otherwise than the tables say: it waited, and nothing came of that.

Or it was not granted, or cannot be said in joynr's protocol: the tables do not tell.
"""


def audit(directory: Path) -> Iterator[str]:
    """Where the journals of a fleet disagree with the rules, by the pipeline's own kernels."""
    for about_messages, sentence in judged(directory):
        del about_messages
        yield sentence


def judged(directory: Path) -> Iterator[tuple[bool, str]]:
    """The same; whether it is about a message, or about a change of a routing table."""
    from waystation.pipeline.kernels import node_tables  # noqa: PLC0415 - only who audits needs it
    from waystation.pipeline.kernels.node_data import FileData, Share  # noqa: PLC0415
    from waystation.pipeline.listing import Wanted, list_journal  # noqa: PLC0415
    from waystation.pipeline.tables import BUILT, table_of  # noqa: PLC0415

    for node in list_journal(str(directory), Wanted()).nodes.items():
        data = FileData(str(directory), Share(*node), Wanted())
        judged = [rows for rows in node_tables.judged(data, {"audit"}) if table_of(rows) == "audit"]
        found = [rows.cast(BUILT["audit"]) for rows in judged]
        rows = pa.concat_tables(found).to_pylist()
        ends = _ends(rows)
        for row in rows:
            # Copies upward have no recipient, and `expected` does not have them.
            excused = row["reason"] in BEYOND_THE_RULES and (
                row["verdict"] == "different" or row["recipient"] is None
            )
            excused |= row["actual"] == "QUEUED"  # and the node was killed before more came of it
            excused |= row["verdict"] == "missing" and row["received_at"] >= ends(row)
            if row["verdict"] != "ok" and not excused:
                sentence = (
                    f"{row['node']}: message {row['message_id']} for {row['recipient']}: expected "
                    f"{row['expected']}, found {row['actual']} ({row['verdict']}, {row['reason']})"
                )
                yield row["message_id"] is not None, sentence


def _ends(rows: list[dict[str, Any]]) -> Callable[[dict[str, Any]], datetime]:
    """From when on a life of a node may have had something in hand when it was killed."""
    latest: dict[int, datetime] = {}
    for row in rows:
        life, at = row["incarnation"], row["received_at"]
        latest[life] = max(at, latest.get(life, at))
    last = max(latest, default=0)

    def end(row: dict[str, Any]) -> datetime:
        life = row["incarnation"]
        return FOREVER if life == last else latest[life] - IN_HAND

    return end
