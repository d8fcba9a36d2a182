"""Explains a message from the tables that the pipeline built, instead of the journal."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from waystation.core.outcome import Outcome
from waystation.errors import LocalError
from waystation.why.explain import REASONS, span, summary
from waystation.why.explanation import Decision, Explanation, Hop, Step

Row = dict[str, Any]


def explain_from_tables(tables: Path, message_id: str) -> Explanation:
    """Explain a message from built tables; raises LocalError if they do not have it."""
    found = _rows(tables, "traces", pc.field("message_id") == message_id)
    if not found:
        raise LocalError(
            f"the traces in {tables} have no message {message_id}",
            rule="OB-4",
            hint="check the id, and that the tables were built from the right journal",
        )
    expected = _rows(tables, "expected", pc.field("message_id") == message_id)
    judged = _rows(tables, "audit", pc.field("message_id") == message_id)
    told = [
        _Hop(tables, node, list(path), expected, judged).described()
        for node, path in groupby(found[0]["path"], key=lambda step: step["node"])
    ]
    # A node may record an outcome after the next node has recorded its own.
    hops = tuple(sorted(told, key=lambda hop: hop.received_at))
    return Explanation(message_id, hops, summary(hops), tuple(_remarks(found[0], hops)))


class _Hop:
    """One arrival of the message at one node, from the tables."""

    def __init__(
        self, tables: Path, node: str, path: list[Row], expected: list[Row], judged: list[Row]
    ) -> None:
        self._tables = tables
        self._node = node
        self._path = path
        last = path[-1]["at"]
        here = [row for row in expected if row["node"] == node and row["at"] <= last]
        latest = max((row["at"] for row in here), default=path[0]["at"])
        self._received: int = latest
        self._expected = [row for row in here if row["at"] == latest]
        self._judged = [row for row in judged if row["node"] == node]

    def described(self) -> Hop:
        steps = tuple(
            Step(step["at"], step["outcome"], step["reason"], step["next_hop"], None)
            for step in self._path
        )
        return Hop(
            self._node,
            0,
            self._received,
            (),
            (),
            None,
            0,
            None,
            steps,
            tuple(self._decision(row) for row in self._expected),
            all(row["verdict"] == "ok" for row in self._judged),
            self._explanation(steps[-1]),
        )

    def _decision(self, row: Row) -> Decision:
        entry = self._entry(row["recipient"]) if row["recipient"] else None
        return Decision(
            row["outcome"],
            row["reason"],
            row["recipient"],
            row["address"],
            None if entry is None else entry["address"],
            None if entry is None else entry["local"],
            None if entry is None else entry["valid_from"],
            None if entry is None else entry["expiry"],
        )

    def _history(self, participant: str) -> list[Row]:
        wanted = (pc.field("node") == self._node) & (pc.field("participant") == participant)
        rows = _rows(self._tables, "route_history", wanted)
        return sorted(rows, key=lambda row: row["valid_from"])

    def _entry(self, participant: str) -> Row | None:
        for row in self._history(participant):
            until = row["valid_to"]
            if row["valid_from"] <= self._received and (until is None or self._received < until):
                return row
        return None

    def _explanation(self, step: Step) -> str | None:
        if step.reason is None:
            return None
        names = [row["recipient"] for row in self._expected if row["recipient"]]
        if step.reason != "NO_ROUTE" or not names:
            return REASONS.get(step.reason)
        history = self._history(names[0])
        before = [row for row in history if row["valid_to"] and row["valid_to"] <= self._received]
        after = [row for row in history if row["valid_from"] > self._received]
        later = ""
        if after:
            later = f"; it was there {span(after[0]['valid_from'] - self._received)} later"
        if not before:
            return f"{self._node} did not know {names[0]}{later}"
        ended = span(self._received - before[-1]["valid_to"])
        how = {"expired": "had expired", "removed": "had left"}
        verb = how.get(before[-1]["closed_by"], "was gone")
        return f"{names[0]} {verb} {ended} before{later}"


def _rows(tables: Path, table: str, wanted: pc.Expression) -> list[Row]:
    directory = tables / table
    if not directory.is_dir():
        raise LocalError(
            f"{tables} has no table {table}",
            rule="OB-4",
            hint="build the tables with `waystation pipeline build`",
        )
    try:
        found = ds.dataset(directory, format="parquet").to_table(filter=wanted)
    except (pa.ArrowException, OSError) as error:
        raise LocalError(
            f"the table {table} in {tables} cannot be read: {error}",
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


def _remarks(trace: Row, hops: tuple[Hop, ...]) -> list[str]:
    remarks = []
    ended = hops[-1].steps[-1].outcome in (Outcome.DELIVERED, Outcome.DROPPED)
    if trace["looped"]:
        remarks.append("it arrived twice at the same node along the same route: a loop")
    if not trace["complete"] and not ended:
        remarks.append("no node recorded a final outcome")
    return remarks
