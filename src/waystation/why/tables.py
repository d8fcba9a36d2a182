"""Explains a message from the tables that the pipeline built, instead of the journal.

A row of `traces` has the visits in causal order, what each follows, what became of each copy, and
who went without: whoever made it decided that, and nothing is decided again here. It does not have
the routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from msgspec.structs import replace

from waystation.core.corrections import hour_of
from waystation.core.coverage import Life
from waystation.core.visits import Evidence, Fate, Loss, Step, Trace, Visit, in_order, trace_of
from waystation.errors import LocalError
from waystation.why.claims import ClaimsThen
from waystation.why.explanation import Decision, Explanation
from waystation.why.finished import StoredTables
from waystation.why.source import Interval, Row, Subscribed, answer_among, held_since
from waystation.why.story import explained

_OF_STEP: Final = (
    *("node", "incarnation", "at", "received_at", "outcome", "reason", "next_hop", "recipient"),
    *("via", "from_node", "out", "next_node"),
)
_OF_LOST: Final = ("node", "incarnation", "at", "received_at", "outcome", "out", "next_node")
_OF_TRACE: Final = (
    *("outcome", "reason", "started", "ended", "looped", "internal", "durable", "sender"),
    *("recipient", "answers", "answered_by", "legs", "symmetric"),
    *("delivered", "lost_copies", "unknown_copies", "left_fleet", "waiting"),
)


def explain_from_tables(tables: str | Path, message_id: str) -> Explanation:
    """Explain a message from built tables; raises LocalError if they do not have it."""
    stored = TableLookup(tables)
    found = stored.traces(message_id)
    if not found:
        raise LocalError(
            f"the traces in {tables} have no message {message_id}",
            rule="OB-4",
            hint="check the id, and that the tables were built from the right journal",
        )
    return explained(TableSource(stored, message_id, found), message_id)


class TableLookup:
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
        if any("fates" not in row for row in rows):
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

    has_routes = False

    def __init__(self, tables: TableLookup, message_id: str, rows: list[Row]) -> None:
        self._tables = tables
        self._id = message_id
        self.evidence = Evidence(
            correction=self._correction,
            role=self._role,
            lives={node: list(_lives_of(lives)) for node, lives in self._coverage.items()},
        )
        self.traces: Sequence[Trace] = in_order(map(self._trace, rows))

    # The way

    def _trace(self, row: Row) -> Trace:
        """The trace of a row; what the row says counts."""
        visits = _visits(row, self.evidence)
        told = trace_of(row["origin"], visits, _losses(row, visits))
        latency = round(row["latency_ms"] * 1_000)
        return replace(told, **{name: row[name] for name in _OF_TRACE}, latency=latency)

    def answer(self, trace: Trace) -> Trace | None:
        """The answer to a request, if it is known."""
        if trace.answered_by is None:
            return None
        return answer_among(map(self._trace, self._tables.traces(trace.answered_by)), self._id)

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
            None if entry is None else held_since(held, visit.received_at, entry.address),
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


def _lives_of(rows: list[Row]) -> Iterator[Life]:
    """The incarnations of a node; when records were lost, no table tells."""
    following: list[Any] = [*rows[1:], None]
    for row, later in zip(rows, following, strict=True):
        stopped = row["ended_by"] == "stop"
        ends = row["to_time"] if stopped else None if later is None else later["from_time"]
        yield Life(
            row["incarnation"],
            row["from_time"],
            row["to_time"],
            ends,
            row["sample"],
            stopped=stopped,
        )


def _visits(row: Row, evidence: Evidence) -> list[Visit]:
    """The visits of a row, in order."""
    groups: list[list[tuple[Row, str]]] = []
    for element, fate in zip(row["path"], row["fates"], strict=True):
        if not groups or _visit_of(element) != _visit_of(groups[-1][-1][0]):
            groups.append([])
        groups[-1].append((element, fate))
    return [_visit(row, group, evidence) for group in groups]


def _visit(row: Row, group: list[tuple[Row, str]], evidence: Evidence) -> Visit:
    first = group[0][0]
    ahead = evidence.correction(first["node"], first["received_at"])
    return Visit(
        *_visit_of(first),
        first["received_at"] - ahead,
        ahead,
        tuple(_step(row, element, seq) for seq, (element, _) in enumerate(group)),
        first["follows"],
        first["depth"],
        fates=tuple(Fate(fate) for _, fate in group),
    )


def _visit_of(element: Row) -> tuple[str, int, int]:
    return element["node"], element["incarnation"], element["received_at"]


def _step(row: Row, element: Row, seq: int) -> Step:
    lost = next((lost for lost in row["lost"] or () if _is_step(lost, element)), None)
    more = {} if lost is None else {"expiry": lost["expiry"], "onward": _route(lost["onward"])}
    told = {name: element[name] for name in _OF_STEP}
    sender = row["sender"] if _visit_of(element) == _visit_of(row["path"][0]) else None
    return Step(seq=seq, multicast_id=row["multicast_id"], sender=sender, **told, **more)


def _losses(row: Row, visits: list[Visit]) -> list[Loss]:
    """What somebody went without, and at which step."""
    found = []
    for lost in row["lost"] or ():
        visit, step = next(
            (number, place)
            for number, visit in enumerate(visits)
            for place, step in enumerate(visit.steps)
            if _is_step(lost, structs.asdict(step))
        )
        found.append(Loss(visit, step, lost["recipient"], lost["reason"]))
    return found


def _is_step(lost: Row, element: Row) -> bool:
    """Whether somebody went without by a step; rows of version 1 name no recipient."""
    same = all(lost[name] == element[name] for name in _OF_LOST)
    return same and element["recipient"] in (None, lost["recipient"])


def _route(addresses: str) -> tuple[str, ...]:
    return tuple(addresses.split())
