"""Fold the events of a node's sessions into intervals: who was connected, when, and how it ended.

A fold goes through the events of one (incarnation, session) in the order of seq; as in the other
histories, time never goes back in it, an interval ends with its incarnation, and an empty one is
left out. Arrow in, Arrow out; no Spark. A node has few sessions, so rows are taken one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from waystation.core.visits import DAY
from waystation.journal.schema import INSTANT, SESSIONS
from waystation.pipeline.kernels.columns import longs
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.schema import plain_schema
from waystation.pipeline.tables import BUILT, part_of

NAME: Final = "session_history"

_EVENT: Final = (
    *("incarnation", "seq", "at", "kind", "session", "role", "transport", "place", "peer"),
    *("identity", "reason"),
)


class Interval(Struct):
    """A session from its opening on; times in microseconds."""

    incarnation: int
    session: str
    role: str | None
    transport: str | None
    place: str | None
    peer: str | None
    identity: str | None
    opened_at: int
    closed_at: int | None = None
    closed_by: str | None = None
    reason: str | None = None

    def close(self, at: int, why: str, reason: str | None = None) -> None:
        """End it."""
        self.closed_at, self.closed_by, self.reason = at, why, reason

    def learn(self, role: str | None, peer: str | None, identity: str | None) -> None:
        """Take what a later row tells: a peer becomes a leaf when it has announced somebody."""
        self.role = role or self.role
        self.peer = peer or self.peer
        self.identity = identity or self.identity


def session_history(data: FileData, asked: Collection[str] = ()) -> Iterator[pa.Table]:
    """The sessions of a node, and when they were open."""
    del asked  # it makes one table
    if data.has(SESSIONS):
        yield part_of(NAME, sessions_of(data))


def sessions_of(data: FileData) -> pa.Table:
    """The sessions of a node, as rows of their history."""
    if not data.has(SESSIONS):
        return BUILT[NAME].empty_table()
    return fold_sessions(data.node, data.small_table(SESSIONS), data.lifetimes().ends())


def fold_sessions(node: str, events: pa.Table, ends: Mapping[int, tuple[int, bool]]) -> pa.Table:
    """The history of one node; `ends` says when incarnations ended, and whether by a stop."""
    found = [interval for interval in _intervals(events) if _is_left(interval, ends)]
    found.sort(key=lambda interval: (interval.incarnation, interval.session, interval.opened_at))
    columns = {name: [getattr(each, name) for each in found] for name in Interval.__struct_fields__}
    columns["node"] = [node] * len(found)
    columns["day"] = [each.opened_at // DAY for each in found]
    return pa.table([_array(columns[f.name], f.type) for f in BUILT[NAME]], schema=BUILT[NAME])


def _array(values: list[object], type: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).view(type) if type == INSTANT else pa.array(values, type)


def _intervals(events: pa.Table) -> list[Interval]:
    """What happened to the sessions, as far as they themselves tell."""
    done: list[Interval] = []
    current: dict[tuple[int, str], Interval] = {}
    latest: dict[tuple[int, str], int] = {}
    for row in _in_order(events):
        incarnation, _, at, kind, session, role, transport, place, peer, identity, reason = row
        fold = incarnation, session
        now = latest[fold] = max(at, latest.get(fold, at))
        held = current.get(fold)
        if held is not None and kind in ("close", "clock"):
            held.learn(role, peer, identity)
        if held is not None and kind == "close":
            held.close(now, "closed" if reason is None else "lost", reason)
        if held is not None and kind == "open":
            held.close(now, "lost")  # the record of its end is missing
        if held is not None and kind in ("open", "close"):
            done.append(current.pop(fold))
        if kind == "open":
            current[fold] = Interval(
                incarnation, session, role, transport, place, peer, identity, now
            )
    return [*done, *current.values()]


def _in_order(
    events: pa.Table,
) -> Iterator[tuple[Any, ...]]:
    """The rows by incarnation and seq, with times as numbers."""
    incarnations, seqs = longs(events, "incarnation"), longs(events, "seq")
    later, same = np.diff(incarnations) > 0, np.diff(incarnations) == 0
    if not (later | (same & (np.diff(seqs) > 0))).all():
        events = events.take(pa.array(np.lexsort((seqs, incarnations))))
    columns = [events.column(name) for name in _EVENT]
    columns[2] = columns[2].cast(pa.int64())
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _is_left(interval: Interval, ends: Mapping[int, tuple[int, bool]]) -> bool:
    """Cut an interval at the end of its incarnation; whether anything is left of it."""
    end = ends.get(interval.incarnation)
    if end is not None and (interval.closed_at is None or end[0] < interval.closed_at):
        interval.close(end[0], "stopped" if end[1] else "restart")
    return interval.closed_at is None or interval.opened_at < interval.closed_at


def as_openings(history: pa.Table) -> pa.Table:
    """Open intervals as the events that lead to them, so that a fold can continue from there."""
    count = history.num_rows
    schema = plain_schema(SESSIONS)
    given = {
        "seq": pa.array([-1] * count, pa.int64()),  # before all recorded ones
        "at": history.column("opened_at"),
        "kind": pa.array(["open"] * count, pa.string()),
    }
    columns = [
        given.get(f.name)
        or (history.column(f.name) if f.name in history.column_names else pa.nulls(count, f.type))
        for f in schema
    ]
    return pa.table(columns, schema=schema)
