"""Second copies of multicasts: those that reach a node again by another way (FL-6, MC-9).

A node knows its latest broadcasts by their ids, so within `REMEMBERED` a second copy must be
dropped. Later either is right, and the word of the node counts. What had expired when it came was
the first of none. Arrow in, numbers out; no Spark.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.core.outcome import Reason
from waystation.pipeline.kernels.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    codes,
    column,
    flags,
    id_words,
    longs,
    pair_codes,
    word_codes,
)
from waystation.pipeline.kernels.visits import entries, is_of_version_2

REMEMBERED: Final = 60_000_000
"""Microseconds in which a node must know a broadcast again."""

_NEVER: Final = np.iinfo(np.int64).min


class _Visits(Struct):
    """Visits of multicasts, as columns."""

    ids: pa.Array
    topics: pa.Array
    incarnation: Longs
    received: Longs
    outward: Flags  # not from a parent or a global transport
    alive: Flags  # it had not expired
    began: Flags  # it came over no session
    told: Flags  # the node dropped it as a second copy

    @classmethod
    def of(cls, messages: pa.Table, rows: Longs) -> _Visits:
        """Those that have these rows."""
        where = pa.array(rows)
        received = longs(messages, "received_at")[rows]
        return cls(
            column(messages, "message_id").take(where),
            column(messages, "multicast_id").take(where),
            longs(messages, "incarnation")[rows],
            received,
            ~flags(messages, "from_global")[rows],
            received < longs(messages, "expiry", NEVER)[rows],
            np.asarray(column(messages, "via").is_null())[rows],
            are(column(messages, "reason"), Reason.DUPLICATE)[rows],
        )

    def after(self, others: _Visits) -> _Visits:
        """Both together; the others are the first."""
        texts = [
            pa.concat_arrays([one.cast(pa.string()), other.cast(pa.string())])
            for one, other in ((others.ids, self.ids), (others.topics, self.topics))
        ]
        names = ("incarnation", "received", "outward", "alive", "began", "told")
        joined = [np.append(getattr(others, name), getattr(self, name)) for name in names]
        return _Visits(*texts, *joined)

    def groups(self) -> Longs:
        """A number for the visits of each multicast to each incarnation."""
        message = word_codes(*id_words(self.ids))
        return pair_codes(pair_codes(message, codes(self.topics)), self.incarnation)


def second_copies(
    messages: pa.Table, rows: Longs, before: pa.Table | None, hop_limit: int
) -> tuple[Flags, Flags]:
    """Which visits of multicasts must be dropped as second copies, and which of these still go up.

    `rows` has one row of each, below the hop limit; `before` has messages that came before all of
    these. What came only from above so far goes up once it comes from below.
    """
    visits = _Visits.of(messages, rows)
    known = 0
    if before is not None and before.num_rows:
        earlier = multicast_rows(before, hop_limit)
        known = len(earlier)
        visits = visits.after(_Visits.of(before, earlier))
    group = visits.groups()
    found = _Found(visits, group)
    doubtful = _may_be_sent_on(visits, group, found.any)
    if doubtful.any():
        tables = [messages] if before is None else [before, messages]
        _leave_out_sent_on(visits, group, found, doubtful, tables)
    second = found.near | (found.any & visits.told)
    still_up = visits.outward & ~np.where(found.near, found.near_up, found.any_up)
    return second[known:], (second & still_up)[known:]


def multicast_rows(messages: pa.Table, hop_limit: int) -> Longs:
    """One row of each visit of a multicast of version 2 that was below the hop limit."""
    rows = entries(messages)
    hops = np.asarray(pc.list_value_length(column(messages, "return")))[rows]
    wanted = are(column(messages, "kind"), "multicast")[rows] & is_of_version_2(messages)[rows]
    found: Longs = rows[wanted & (hops < hop_limit)]
    return found


def unexplained_ids(messages: pa.Table, before: pa.Table, hop_limit: int) -> set[str]:
    """The multicasts that the node dropped as second copies, and whose first is not known here."""
    rows = multicast_rows(messages, hop_limit)
    told = are(column(messages, "reason"), Reason.DUPLICATE)[rows]
    if not told.any():
        return set()
    visits = _Visits.of(messages, rows).after(_Visits.of(before, multicast_rows(before, hop_limit)))
    found = _Found(visits, visits.groups())
    lonely = np.flatnonzero(visits.told & ~found.near)
    return set(visits.ids.take(pa.array(lonely)).to_pylist())


class _Found:
    """For each visit: whether there is an earlier one, and whether one of these was to go up."""

    def __init__(self, visits: _Visits, group: Longs) -> None:
        count = len(group)
        self.any: Flags = np.zeros(count, np.bool_)
        self.near: Flags = np.zeros(count, np.bool_)
        self.any_up: Flags = np.zeros(count, np.bool_)
        self.near_up: Flags = np.zeros(count, np.bool_)
        order = np.lexsort((visits.received, group))
        number, received = group[order], visits.received[order]
        begins = np.append(True, number[1:] != number[:-1])[:count]
        # A visit whose rows are divided may be here twice; the former one is then the same visit.
        differs = begins | np.append(True, received[1:] != received[:-1])[:count]
        alive = visits.alive[order]
        last = _latest_before(received, differs, begins, alive)
        last_up = _latest_before(received, differs, begins, alive & visits.outward[order])
        self.any[order], self.any_up[order] = last > _NEVER, last_up > _NEVER
        since = received - REMEMBERED
        self.near[order], self.near_up[order] = last >= since, last_up >= since


def _latest_before(received: Longs, differs: Flags, begins: Flags, wanted: Flags) -> Longs:
    """When the last wanted visit of each row's group was, before the row's own; else `_NEVER`."""
    count = len(received)
    places = np.arange(count)
    starts = np.maximum.accumulate(np.where(begins, places, 0)) if count else places
    visit = np.maximum.accumulate(np.where(differs, places, 0)) if count else places
    latest = np.maximum.accumulate(np.where(wanted, places, -1)) if count else places
    found = np.append(latest, -1)[visit - 1]  # of the first row: the -1 at the end
    return np.where(found >= starts, received[found], _NEVER)


# What a worker sent on (rule 1 of CONTRACT-2) is no second copy of what the worker got.


def _may_be_sent_on(visits: _Visits, group: Longs, later: Flags) -> Flags:
    """Which visits are of a group in which something later began here: hardly any."""
    starts = visits.began & later
    if not starts.any():
        return starts
    found: Flags = np.isin(group, group[starts])
    return found


def _leave_out_sent_on(
    visits: _Visits, group: Longs, found: _Found, doubtful: Flags, tables: list[pa.Table]
) -> None:
    """Judge groups again in which a worker may have sent on what it got."""
    rows = np.flatnonzero(doubtful).tolist()
    ids = visits.ids.take(pa.array(rows)).to_pylist()
    routes = _routes(tables, set(ids))
    groups: dict[int, list[tuple[int, _Way]]] = {}
    for id, row in zip(ids, rows, strict=True):
        name = id, int(visits.incarnation[row]), int(visits.received[row])
        groups.setdefault(int(group[row]), []).append((row, routes[name]))
    received, outward = visits.received, visits.outward
    for members in groups.values():
        for row, way in members:
            before = [
                other
                for other, former in members
                if received[other] < received[row]
                and visits.alive[other]
                and not (visits.began[row] and _was_sent_on(former, way))
            ]
            near = [other for other in before if received[other] >= received[row] - REMEMBERED]
            found.any[row], found.near[row] = bool(before), bool(near)
            found.any_up[row], found.near_up[row] = outward[before].any(), outward[near].any()


class _Way(Struct):
    """The routes of a visit, and whether somebody here got it."""

    onward: list[str]
    back: list[str]
    delivered: bool = False


def _routes(tables: list[pa.Table], ids: set[str]) -> dict[tuple[str, int, int], _Way]:
    found: dict[tuple[str, int, int], _Way] = {}
    for table in tables:
        own = pc.is_in(column(table, "message_id"), pa.array(list(ids), pa.string()))
        rows = table.filter(own)
        columns: list[list[Any]] = [
            rows.column("message_id").to_pylist(),
            longs(rows, "incarnation").tolist(),
            longs(rows, "received_at").tolist(),
            rows.column("onward").to_pylist(),
            rows.column("return").to_pylist(),
            rows.column("outcome").to_pylist(),
        ]
        for id, incarnation, received, onward, back, outcome in zip(*columns, strict=True):
            way = found.setdefault((id, incarnation, received), _Way(onward, back))
            way.delivered |= outcome == "DELIVERED"
    return found


def _was_sent_on(former: _Way, way: _Way) -> bool:
    """Whether a worker that got the former sent on the other."""
    return (
        former.delivered
        and len(way.back) == len(former.back) + 1
        and way.back[1:] == former.back
        and bool(former.onward)
        and way.onward == former.onward[1:]
    )
