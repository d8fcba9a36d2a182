"""Explains a message from the tables that the pipeline built, instead of the journal.

A row of `traces` has the visits in causal order and what each follows, but not the routes, nor what
became of each copy. The latter is found again as for a journal. What the row does not tell, which
records are missing in a gap and of which version a step is, is read so that the counts agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from waystation.core.corrections import hour_of
from waystation.core.coverage import Life
from waystation.core.outcome import Outcome
from waystation.core.visits import Evidence, Step, Trace, Visit, retold
from waystation.errors import LocalError
from waystation.why.claims import ClaimsThen
from waystation.why.explanation import Decision, Explanation
from waystation.why.finished import StoredTables
from waystation.why.source import Interval, Row, Subscribed
from waystation.why.story import explained

_WAY: Final = ("via", "from_node", "out", "next_node")  # which rows of version 1 do not tell
_SAME: Final = (
    *("node", "incarnation", "at", "received_at", "outcome", "reason"),
    *("next_hop", *_WAY),
)
_COUNTS: Final = ("delivered", "lost_copies", "unknown_copies", "left_fleet")


def explain_from_tables(tables: str | Path, message_id: str) -> Explanation:
    """Explain a message from built tables; raises LocalError if they do not have it."""
    stored = _Tables(tables)
    found = stored.traces(message_id)
    if not found:
        raise LocalError(
            f"the traces in {tables} have no message {message_id}",
            rule="OB-4",
            hint="check the id, and that the tables were built from the right journal",
        )
    return explained(TableSource(stored, message_id, found), message_id)


class _Tables:
    """Reads built tables; only `traces` must be there."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = directory
        self._stored = StoredTables(directory)

    def traces(self, message_id: str) -> list[Row]:
        """The rows about a message."""
        if self._stored.files("traces") is None:
            raise LocalError(
                f"{self._directory} has no table traces",
                rule="OB-4",
                hint="build the tables with `waystation pipeline build`",
            )
        rows = self.rows("traces", pc.field("message_id") == message_id)
        if any("internal" not in row for row in rows):
            raise LocalError(
                f"the tables in {self._directory} are of an earlier version",
                rule="OB-4",
                hint="build them again with `waystation pipeline build`",
            )
        return rows

    def rows(self, table: str, wanted: pc.Expression | None = None) -> list[Row]:
        """The rows of a table that fulfil a condition; none if the table is not there."""
        try:
            dataset = self._stored.dataset(table)
            if dataset is None:
                return []
            found = dataset.to_table(filter=wanted)
        except (pa.ArrowException, OSError) as error:
            raise LocalError(
                f"the table {table} in {self._directory} cannot be read: {error}",
                rule="OB-4",
                hint="build the tables again with `waystation pipeline build`",
            ) from error
        for unit in (pa.timestamp("us", "UTC"), pa.int64()):  # Spark may have written nanoseconds
            found = found.cast(_with_instants(found.schema, unit))
        rows: list[Row] = found.to_pylist()
        return rows


def _with_instants(schema: pa.Schema, unit: pa.DataType) -> pa.Schema:
    """The schema with another timestamp type, also within lists."""
    return pa.schema([pa.field(field.name, _retyped(field.type, unit)) for field in schema])


def _retyped(type: pa.DataType, unit: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type):
        return unit
    if pa.types.is_list(type):
        return pa.list_(_retyped(type.value_type, unit))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _retyped(field.type, unit)) for field in type])
    return type


class TableSource:
    """The rows of built tables that are about one message."""

    def __init__(self, tables: _Tables, message_id: str, rows: list[Row]) -> None:
        self._tables = tables
        self._id = message_id
        self.evidence = self._evidence(gaps=False)
        self._cautious = self._evidence(gaps=True)
        self.traces: Sequence[Trace] = [self._trace(message_id, row) for row in rows]

    # The way

    def _trace(self, id: str, row: Row) -> Trace:
        """The trace of a row; what the row says counts."""
        readings = [
            _retold(id, row, evidence, old=old)
            for old in (False, True)
            for evidence in (self.evidence, self._cautious)
        ]
        told = next((trace for trace in readings if _counts_agree(trace, row)), readings[0])
        return replace(
            told,
            **{name: row[name] for name in _COUNTS},
            outcome=row["outcome"],
            reason=row["reason"],
            started=row["started"],
            ended=row["ended"],
            latency=round(row["latency_ms"] * 1_000),
            looped=row["looped"],
            internal=row["internal"],
            sender=row["sender"],
            recipient=row["recipient"],
            answers=row["answers"],
            answered_by=row["answered_by"],
            legs=row["legs"],
            symmetric=row["symmetric"],
        )

    def answer(self, trace: Trace) -> Trace | None:
        """The answer to a request, if it is known."""
        if trace.answered_by is None:
            return None
        rows = self._tables.traces(trace.answered_by)
        return self._trace(trace.answered_by, rows[0]) if rows else None

    def _evidence(self, *, gaps: bool) -> Evidence:
        return Evidence(correction=self._correction, role=self._role, lives=self._lives(gaps=gaps))

    def _correction(self, node: str, at: int) -> int:
        return self._corrections.get((node, hour_of(at)), 0)

    @cached_property
    def _corrections(self) -> dict[tuple[str, int], int]:
        """How far each node's clock was ahead in each hour; a peer's follows from who measured."""
        rows = sorted(self._tables.rows("clocks"), key=lambda row: -row["rtt_us"])
        peers = {
            (row["peer"], row["from_time"]): row["correction_us"] + row["offset_us"] for row in rows
        }
        return peers | {(row["node"], row["from_time"]): row["correction_us"] for row in rows}

    def _role(self, node: str, incarnation: int, session: str) -> str | None:
        return self._roles.get((node, incarnation, session))

    @cached_property
    def _roles(self) -> dict[tuple[str, int, str], str]:
        rows = self._tables.rows("session_history", pc.field("role") == "global")
        return {(row["node"], row["incarnation"], row["session"]): row["role"] for row in rows}

    @cached_property
    def _coverage(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        rows = self._tables.rows("coverage")
        for row in sorted(rows, key=lambda row: (row["node"], row["incarnation"])):
            found.setdefault(row["node"], []).append(row)
        return found

    def _lives(self, *, gaps: bool) -> dict[str, list[Life]]:
        return {node: list(_lives_of(rows, gaps=gaps)) for node, rows in self._coverage.items()}

    # What the rules say

    @cached_property
    def _expected(self) -> list[Row]:
        return self._tables.rows("expected", pc.field("message_id") == self._id)

    @cached_property
    def _judged(self) -> list[Row]:
        return self._tables.rows("audit", pc.field("message_id") == self._id)

    def decisions(self, visit: Visit) -> tuple[Decision, ...]:
        """What the rules require at a visit."""
        rows = [row for row in self._expected if _is_of(row, visit)]
        return tuple(self._decision(visit, row) for row in rows)

    def agrees(self, visit: Visit, decisions: tuple[Decision, ...]) -> bool:
        """Whether that is what happened."""
        del decisions  # the audit has compared them
        return all(row["verdict"] == "ok" for row in self._judged if _is_of(row, visit))

    def _decision(self, visit: Visit, row: Row) -> Decision:
        held = self.entries(visit, row["recipient"]) if row["recipient"] else []
        entry = next((entry for entry in held if _holds(entry, visit.received_at)), None)
        return Decision(
            row["outcome"],
            row["reason"],
            row["recipient"],
            row["address"],
            None if entry is None else entry.address,
            None if entry is None else entry.local,
            None if entry is None else entry.since,
            None if entry is None else entry.expiry,
        )

    # What the node knew

    def entries(self, visit: Visit, name: str) -> list[Interval]:
        """The routing entries of a name in that incarnation of the node, in order."""
        wanted = _at(visit) & (pc.field("participant") == name)
        columns = ("address", "local", "valid_from", "valid_to", "closed_by", "expiry")
        rows = self._tables.rows("route_history", wanted)
        found = [Interval(*(row[column] for column in columns)) for row in rows]
        return sorted(found, key=lambda entry: entry.since)

    def names(self, visit: Visit) -> set[str]:
        """All names that this incarnation of the node had a routing entry for."""
        return {row["participant"] for row in self._tables.rows("route_history", _at(visit))}

    def subscriptions(self, visit: Visit) -> list[Subscribed]:
        """The subscriptions in that incarnation of the node."""
        rows = self._tables.rows("subscription_history", _at(visit))
        found = [Subscribed(row["pattern"], row["valid_from"], row["valid_to"]) for row in rows]
        return sorted(found, key=lambda one: one.since)

    def claims(self, visit: Visit, name: str) -> ClaimsThen | None:
        """None: no table has the claims."""
        del visit, name
        return None

    def claims_at(self, node: str, name: str) -> list[Row]:
        """None: no table has the claims."""
        del node, name
        return []

    def remarks(self, nodes: Iterable[str]) -> Iterator[str]:
        """What may be missing in the records of these nodes."""
        for node in nodes:
            lost = sum(row["lost"] or 0 for row in self._coverage.get(node, ()))
            if lost:
                yield f"the journal of {node} lost {lost} records, so this may be incomplete"


def _at(visit: Visit) -> pc.Expression:
    return (pc.field("node") == visit.node) & (pc.field("incarnation") == visit.incarnation)


def _is_of(row: Row, visit: Visit) -> bool:
    """Whether a row of `expected` or `audit` is about a visit."""
    when = row.get("received_at", row.get("at"))
    incarnation = row.get("incarnation", visit.incarnation)
    return (
        row["node"] == visit.node
        and incarnation == visit.incarnation
        and when in (None, visit.received_at)
    )


def _holds(entry: Interval, at: int) -> bool:
    return entry.since <= at and (entry.until is None or at < entry.until)


def _lives_of(rows: list[Row], *, gaps: bool) -> Iterator[Life]:
    """The incarnations of a node; with `gaps`, nothing is certain where records are missing."""
    following: list[Any] = [*rows[1:], None]
    for row, later in zip(rows, following, strict=True):
        stopped = row["ended_by"] == "stop"
        ends = row["to_time"] if stopped else None if later is None else later["from_time"]
        until = row["to_time"] if later is None else later["from_time"]
        missing = gaps and row["lost"]
        yield Life(
            row["incarnation"],
            row["from_time"],
            row["to_time"],
            ends,
            row["sample"],
            ((row["from_time"], until),) if missing else (),
            stopped,
        )


def _counts_agree(trace: Trace, row: Row) -> bool:
    return all(getattr(trace, count) == row[count] for count in _COUNTS)


def _retold(id: str, row: Row, evidence: Evidence, *, old: bool) -> Trace:
    """The trace of a row, with what became of each copy."""
    [trace] = retold(id, _visits(row, evidence, old=old), evidence)
    return trace


def _visits(row: Row, evidence: Evidence, *, old: bool) -> list[Visit]:
    """The visits of a row, in order; with `old`, as if all were of version 1."""
    groups: list[list[Row]] = [row["path"][:1]]
    for former, element in pairwise(row["path"]):
        if _visit_of(element) != _visit_of(former):
            groups.append([])
        groups[-1].append(element)
    found: list[Visit] = []
    for elements in groups:
        first = elements[0]
        before = None if first["follows"] is None else found[first["follows"]]
        ahead = evidence.correction(first["node"], first["received_at"])
        back = (first["via"] or "", *(before.first.back if before is not None else ()))
        tells = first["follows"] is None and row["origin"] is not None
        tells = tells or any(element[name] is not None for element in elements for name in _WAY)
        version = 2 if tells and not old else 1
        steps = [_step(row, element, seq, back, version) for seq, element in enumerate(elements)]
        visit = Visit(
            *_visit_of(first),
            first["received_at"] - ahead,
            ahead,
            tuple(steps),
            first["follows"],
            first["depth"],
        )
        found.append(replace(visit, rule=_rule(before, visit, evidence)))
    return found


def _visit_of(element: Row) -> tuple[str, int, int]:
    return element["node"], element["incarnation"], element["received_at"]


def _step(row: Row, element: Row, seq: int, back: tuple[str, ...], version: int) -> Step:
    handed_on = element["outcome"] == Outcome.DELIVERED and element["out"] is not None
    recipient = element["recipient"]
    if recipient is None and row["multicast_id"] is None:
        recipient = row["recipient"]
    return Step(
        seq=seq,
        recipient=recipient,
        back=back,
        multicast_id=row["multicast_id"],
        origin=row["origin"] if element["follows"] is None else None,
        version=1 if handed_on else version,  # which only the first version called delivered
        **{name: element[name] for name in _SAME},
    )


def _rule(before: Visit | None, visit: Visit, evidence: Evidence) -> int:
    """By which rule a visit follows another."""
    if before is None:
        return 0
    row = visit.first
    same = (before.node, before.incarnation) == (visit.node, visit.incarnation)
    if same and row.via is None:
        return 1
    told = any(step.next_node == visit.node for step in before.steps)
    if row.from_node == before.node and told:
        return 2
    via = row.via
    over_broker = via and evidence.role(visit.node, visit.incarnation, via) == "global"
    return 3 if over_broker else 4
