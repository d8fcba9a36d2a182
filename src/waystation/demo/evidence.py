"""What the tables and the journal of a fleet say, as plain values for the story.

Only reading lives here: nothing is concluded, and nothing is known of what was done on purpose.
Instants are microseconds since the epoch.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
from msgspec import Struct

from waystation.errors import LocalError

Row = dict[str, Any]

DELIVERED: Final = "DELIVERED"
DROPPED: Final = "DROPPED"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL: Final = "0#"


class MessageOutcome(Struct, frozen=True):
    """One outcome of a message at a node; `recipient` is whom it was for, if it was for one."""

    message_id: str
    node: str
    incarnation: int
    at: int
    outcome: str
    reason: str | None
    recipient: str | None
    multicast_id: str | None


class Interval(Struct, frozen=True):
    """A routing entry, from when to when it was as it was, and what ended that."""

    node: str
    incarnation: int
    participant: str
    address: str
    local: bool
    valid_from: int
    valid_to: int | None
    closed_by: str | None

    @property
    def is_own(self) -> bool:
        """Whether the participant lives in that very node."""
        return self.local and self.address == f"{_LOCAL}{self.participant}"


class AuditRow(Struct, frozen=True):
    """A row of the audit that is not `ok`."""

    message_id: str | None
    node: str
    verdict: str
    expected: str | None
    actual: str | None
    reason: str | None


class Incarnation(Struct, frozen=True):
    """One incarnation of a node: its first and last word, and when the next one began.

    A node that stops takes its routing entries back one by one; what a new life had to cut off
    (`restart`) is what a node had that ended without a word.
    """

    node: str
    incarnation: int
    began: int
    last_word: int
    next_began: int | None
    is_cut_off: bool


class Evidence(Struct, frozen=True):
    """All that is known of a fleet."""

    outcomes: list[MessageOutcome]
    intervals: list[Interval]
    audit_rows: list[AuditRow]
    agreed: int  # rows of the audit that are `ok`

    @property
    def drops(self) -> list[MessageOutcome]:
        """What was dropped, in the order of time."""
        return [
            message_outcome
            for message_outcome in self.outcomes
            if message_outcome.outcome == DROPPED
        ]

    def incarnations(self) -> list[Incarnation]:
        """The incarnations of all nodes, as far as the tables show them."""
        words: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        cut_off: set[tuple[str, int]] = set()
        for interval in self.intervals:
            key = (interval.node, interval.incarnation)
            words[key].append(interval.valid_from)
            if interval.closed_by == "restart":
                cut_off.add(key)
            elif interval.valid_to is not None and interval.closed_by in ("removed", "stopped"):
                words[key].append(interval.valid_to)
        for message_outcome in self.outcomes:
            words[message_outcome.node, message_outcome.incarnation].append(message_outcome.at)
        lives: list[Incarnation] = []
        for key, heard in sorted(words.items(), reverse=True):
            node, incarnation = key
            after = lives[-1].began if lives and lives[-1].node == node else None
            lives.append(
                Incarnation(node, incarnation, min(heard), max(heard), after, key in cut_off)
            )
        return lives[::-1]


def read_evidence(tables: Path, journal: Path) -> Evidence:
    """Read what a pipeline built, and the messages of the journal that it was built from."""
    audit = _rows(tables / "audit")
    return Evidence(
        outcomes=sorted(
            (_message_outcome(row) for row in _rows(journal / "messages")),
            key=lambda message_outcome: message_outcome.at,
        ),
        intervals=sorted(
            (_interval(row) for row in _rows(tables / "route_history")),
            key=lambda interval: (interval.valid_from, interval.incarnation),
        ),
        audit_rows=[_audit_row(row) for row in audit if row["verdict"] != "ok"],
        agreed=sum(row["verdict"] == "ok" for row in audit),
    )


def _message_outcome(row: Row) -> MessageOutcome:
    onward = row["onward"]
    first = onward[0] if onward else ""
    named = first.removeprefix(_LOCAL) if first.startswith(_LOCAL) else None
    return MessageOutcome(
        row["message_id"],
        row["node"],
        row["incarnation"],
        _micros(row["at"]),
        row["outcome"],
        row["reason"],
        row["recipient"] or named,
        row["multicast_id"],
    )


def _interval(row: Row) -> Interval:
    ended = row["valid_to"]
    return Interval(
        row["node"],
        row["incarnation"],
        row["participant"],
        row["address"],
        row["local"],
        _micros(row["valid_from"]),
        None if ended is None else _micros(ended),
        row["closed_by"],
    )


def _audit_row(row: Row) -> AuditRow:
    return AuditRow(**{name: row[name] for name in AuditRow.__struct_fields__})


def _rows(directory: Path) -> list[Row]:
    if not directory.is_dir():
        raise LocalError(
            f"there is no table {directory}",
            rule="OB-4",
            hint="build the tables with `waystation pipeline build`",
        )
    found: list[Row] = (
        ds.dataset(directory, format="parquet", partitioning="hive").to_table().to_pylist()
    )
    return found


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
