"""The contents of a fleet's tables and journal as plain values.

Only reading lives here: no conclusions, and no knowledge of injected faults. Times are microseconds
since the epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
from msgspec import Struct

from waystation.errors import LocalError
from waystation.journal.read import JournalReader, RowFilter
from waystation.journal.schema import MESSAGES

Row = dict[str, Any]

DELIVERED: Final = "DELIVERED"
DROPPED: Final = "DROPPED"
VANISHED: Final = "VANISHED"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL: Final = "0#"


class MessageOutcome(Struct, frozen=True):
    """One outcome of a message at a node; `recipient` is None for a multicast."""

    message_id: str
    node: str
    incarnation: int
    at: int
    outcome: str
    reason: str | None
    recipient: str | None
    multicast_id: str | None
    next_node: str | None = None  # where it was sent, or was to be sent


class Interval(Struct, frozen=True):
    """A routing entry with its period of validity, and what ended that."""

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
        """Whether the participant is local to that node itself."""
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
    """One incarnation of a node: its first and last record, and the start of the next one.

    A node that stops removes its routing entries one by one; those that the next incarnation had to
    close (`restart`) belong to a node that crashed.
    """

    node: str
    incarnation: int
    began: int
    last_word: int
    next_began: int | None
    is_cut_off: bool


class Evidence(Struct, frozen=True):
    """All that the tables and the journal say about a fleet."""

    outcomes: list[MessageOutcome]
    intervals: list[Interval]
    audit_rows: list[AuditRow]
    agreed: int  # rows of the audit that are `ok`
    losses: list[MessageOutcome]  # what `traces` counts as lost, one for each who went without
    unknown: int = 0  # copies that left for where the record does not reach

    def incarnations(self) -> list[Incarnation]:
        """The incarnations of all nodes that the tables show."""
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
    """Read the tables that the pipeline built, and the messages of their journal.

    What nodes say to each other is no loss to anybody.
    """
    messages = list(_messages(journal))
    internal = {row["message_id"] for row in messages if row["internal"]}
    audit = [row for row in _rows(tables / "audit") if row["message_id"] not in internal]
    traces = _rows(tables / "traces")
    return Evidence(
        outcomes=sorted(
            map(_message_outcome, messages),
            key=lambda message_outcome: message_outcome.at,
        ),
        losses=sorted(
            (loss for row in traces for loss in losses_in(row)), key=lambda loss: loss.at
        ),
        unknown=sum(row["unknown_copies"] for row in traces if not row["internal"]),
        intervals=sorted(
            (_interval(row) for row in _rows(tables / "route_history")),
            key=lambda interval: (interval.valid_from, interval.incarnation),
        ),
        audit_rows=[_audit_row(row) for row in audit if row["verdict"] != "ok"],
        agreed=sum(row["verdict"] == "ok" for row in audit),
    )


def losses_in(trace: Row) -> list[MessageOutcome]:
    """Where the copies ended that a row of `traces` tells as lost: one for each who went without.

    What nodes send for themselves is left out.
    """
    return [
        MessageOutcome(
            trace["message_id"],
            lost["node"],
            lost["incarnation"],
            _micros(lost["at"]),
            DROPPED,
            lost["reason"],
            lost["recipient"],
            trace["multicast_id"],
            lost["next_node"],
        )
        for lost in trace["lost"]
        if not lost["internal"]
    ]


def _messages(journal: Path) -> Iterator[Row]:
    """The rows of all messages, with times as numbers."""

    def complain(path: Path, problem: str) -> None:
        raise LocalError(
            f"{path} cannot be read: {problem}",
            rule="OB-4",
            hint="see what `waystation journal check` says of it",
        )

    wanted = RowFilter(tables=frozenset({MESSAGES}))
    for entry in JournalReader(journal, complain, wanted).entries():
        yield {"node": entry.node, **entry.fields}


def _message_outcome(row: Row) -> MessageOutcome:
    onward = row["onward"]
    first = onward[0] if onward else ""
    named = first.removeprefix(_LOCAL) if first.startswith(_LOCAL) else None
    return MessageOutcome(
        row["message_id"],
        row["node"],
        row["incarnation"],
        row["at"],
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
            f"missing table {directory}",
            rule="OB-4",
            hint="build the tables with `waystation pipeline build`",
        )
    found: list[Row] = (
        ds.dataset(directory, format="parquet", partitioning="hive").to_table().to_pylist()
    )
    return found


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
