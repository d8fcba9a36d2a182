"""The path of each message over all nodes, assembled from its rows: CONTRACT's `traces`.

Arrow in, Arrow out, by whole columns; all rows of a message must be in the same table. No Spark.

A route is one string here, each address with a space in front of it: no address contains one, so a
route is the end of another exactly if its string is. Strings are dictionary-encoded where
possible, and ids are two numbers each, so that little has to be moved and compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.message import NO_ID
from waystation.core.outcome import Reason
from waystation.journal.schema import INSTANT, TEXT
from waystation.pipeline.blobs import blobs_of, tables_of
from waystation.pipeline.columns import (
    Flags,
    Longs,
    Words,
    are,
    codes,
    column,
    encoded,
    firsts,
    id_texts,
    id_words,
    instants,
    longs,
    number_codes,
    pair_codes,
    picked,
    repeated_numbers,
    spread,
    text_bounds,
    text_bytes,
    word_codes,
)
from waystation.pipeline.tables import BUILT, HOP

STEPS: Final = pa.schema(
    {
        "message_id": TEXT,
        "node": TEXT,
        "incarnation": pa.int64(),
        "seq": pa.int64(),
        "at": INSTANT,
        "received_at": INSTANT,
        "outcome": TEXT,
        "reason": TEXT,
        "next_hop": TEXT,
        "onward": TEXT,
        "back": TEXT,
    }
)
"""The columns of `messages` that a trace is made of."""

PACKED: Final = pa.schema({"part": pa.int32(), "steps": pa.binary()})
"""Steps in transit to the task that assembles their messages: many at a time, in Arrow's format."""

ROWS_AT_ONCE: Final = 262_144
"""About this many steps are packed together."""

_LAST_OUTCOMES: Final = pa.array(["DELIVERED", "DROPPED"])
_BITS_AT_ONCE: Final = 40
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


def steps(messages: pa.Table) -> pa.Table:
    """The steps for these rows of `messages` (with `node`); rows without an id have none."""
    return coded_steps(messages).cast(STEPS)


def coded_steps(messages: pa.Table) -> pa.Table:
    """The steps with dictionary-encoded strings, except the ids."""
    known = pc.not_equal(messages.column("message_id"), NO_ID)
    if not pc.all(known).as_py():
        messages = messages.filter(known)
    columns = {name: messages.column(name) for name in STEPS.names if name in messages.column_names}
    columns["onward"] = _routes_as_texts(column(messages, "onward"))
    columns["back"] = _routes_as_texts(column(messages, "return"))
    for name in ("node", "outcome", "reason", "next_hop"):
        columns[name] = encoded(column(messages, name))
    return pa.table(columns).select(STEPS.names)


def _routes_as_texts(routes: pa.Array) -> pa.DictionaryArray:
    """A string for each route; each distinct route is formatted once."""
    route = pa.array(_route_codes(routes)).dictionary_encode()
    which = codes(route)
    sample = np.zeros(len(route.dictionary), np.int64)
    sample[which] = np.arange(len(which))
    texts = _as_text(routes.take(pa.array(sample)).cast(pa.list_(TEXT)))
    return pa.DictionaryArray.from_arrays(route.indices, texts)


def _route_codes(routes: pa.Array) -> Longs:
    """A number for each distinct route: as many addresses as fit are packed into one number."""
    bounds = np.asarray(routes.offsets).astype(np.int64)
    lengths = np.diff(bounds)
    addresses = encoded(routes.values)
    address = codes(addresses) + 1  # 0 stands for none
    base = len(addresses.dictionary) + 1
    at_once = max(1, int(_BITS_AT_ONCE / math.log2(max(base, 2))))
    route = np.zeros(len(routes), np.int64)
    longest = int(lengths.max(initial=0))
    for first in range(0, longest, at_once):
        rows = np.flatnonzero(lengths > first)
        key = np.zeros(len(rows), np.int64)
        for place in range(min(first + at_once, longest) - 1, first - 1, -1):
            there = np.flatnonzero(lengths[rows] > place)
            key[there] = key[there] * base + address[bounds[rows[there]] + place]
        # The first addresses often identify a route by themselves; the rest is added.
        route[rows] = pair_codes(route[rows], key) + int(route.max()) + 1 if first else key + 1
    return route


def _as_text(routes: pa.Array) -> pa.Array:
    joined = pc.binary_join(routes, " ")
    empty = pc.equal(pc.list_value_length(routes), 0)
    return pc.if_else(empty, "", pc.binary_join_element_wise("", joined, " "))


# In transit


def packed(
    found: Iterator[pa.Table], parts: int, *, paths: bool, at_once: int = ROWS_AT_ONCE
) -> Iterator[pa.Table]:
    """Coded steps as rows of PACKED: all steps of a message go to the same of the `parts`."""
    held: list[pa.Table] = []
    for table in found:
        held.append(_narrowed(table, paths=paths))
        if sum(part.num_rows for part in held) >= at_once:
            yield _packed(pa.concat_tables(held), parts)
            held = []
    if held:
        yield _packed(pa.concat_tables(held), parts)


def _narrowed(rows: pa.Table, *, paths: bool) -> pa.Table:
    """Steps with ids as two numbers, and without the columns that only paths need."""
    high, low = id_words(column(rows, "message_id"))
    columns = {"high": pa.array(high), "low": pa.array(low)}
    for name in STEPS.names[1:]:
        if paths or name != "next_hop":
            columns[name] = rows.column(name)
    return pa.table(columns)


def _packed(rows: pa.Table, parts: int) -> pa.Table:
    rows = rows.combine_chunks()
    mixed = (_words(rows, "high") ^ _words(rows, "low")) * _MIX >> np.uint64(33)
    part = (mixed % np.uint64(parts)).astype(np.uint16)
    order = np.argsort(part, kind="stable")
    ordered = rows.take(pa.array(order))
    present, counts = np.unique(part, return_counts=True)
    ends = np.cumsum(counts)
    parts_of = (
        _alone(ordered.slice(end - count, count))
        for end, count in zip(ends.tolist(), counts.tolist(), strict=True)
    )
    columns = [pa.array(present.astype(np.int32)), blobs_of(parts_of)]
    return pa.Table.from_arrays(columns, schema=PACKED)


def _alone(rows: pa.Table) -> pa.Table:
    """Rows with dictionaries of their own."""
    return pa.table({name: _own_texts(column(rows, name)) for name in rows.column_names})


def _own_texts(values: pa.Array) -> pa.Array:
    """Remove strings that only other rows use, if these would be most of what is written."""
    if pa.types.is_dictionary(values.type) and len(values.dictionary) > len(values):
        return values.dictionary_decode().dictionary_encode()
    return values


def unpacked(blobs: pa.Array) -> list[pa.Table]:
    """The steps in some rows of PACKED."""
    return list(tables_of(blobs))


def _words(rows: pa.Table, name: str) -> Words:
    return np.asarray(column(rows, name))


# Assembly


def trace(rows: pa.Table, *, paths: bool) -> pa.Table:
    """The `traces` of the messages with these steps."""
    if not rows.num_rows:
        return BUILT["traces"].empty_table()
    if "message_id" in rows.column_names:
        rows = _narrowed(rows, paths=True)
    return _Traces(rows.combine_chunks()).table(paths=paths)


class _Traces:
    """Steps in the order of (message, at, node, incarnation, seq)."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._high, self._low = _words(rows, "high"), _words(rows, "low")
        message = word_codes(self._high, self._low)
        at = longs(rows, "at")
        self._node = _ranks_of(column(rows, "node"))
        self._order = order = self._sorted(message, at)
        self._at, message = at[order], message[order]
        first = np.append(True, message[1:] != message[:-1])
        self._starts = np.flatnonzero(first)
        self._ends = np.append(self._starts[1:], len(order)) - 1
        self._place = np.cumsum(first) - 1

    def _sorted(self, message: Longs, at: Longs) -> Longs:
        """The order by message and time, and for equal ones by the remaining columns."""
        since = at - at.min()
        span = int(since.max()) + 1
        if (int(message.max()) + 1) * span >= 2**63:
            return self._sorted_by_all(np.arange(len(at)), message, at)
        keys = message * span + since
        order = np.argsort(keys)
        keys = keys[order]
        same = keys[1:] == keys[:-1]
        if same.any():
            shared = np.flatnonzero(np.append(same, False) | np.append(False, same))
            order[shared] = self._sorted_by_all(order[shared], message, at)
        return np.asarray(order)

    def _sorted_by_all(self, rows: Longs, message: Longs, at: Longs) -> Longs:
        seq, incarnation = longs(self._rows, "seq")[rows], longs(self._rows, "incarnation")[rows]
        keys = (seq, incarnation, self._node[rows], at[rows], message[rows])
        return np.asarray(rows[np.lexsort(keys)])

    def table(self, *, paths: bool) -> pa.Table:
        rows, count = self._rows, len(self._starts)
        is_copy = are(column(rows, "reason"), Reason.DUPLICATE)[self._order]
        last = self._last(is_copy)
        outcome = encoded(column(rows, "outcome"))
        ended_well = np.asarray(pc.is_in(outcome.dictionary, _LAST_OUTCOMES))
        started, ended = self._at[self._starts], self._at[self._ends]
        entered = self._entered()
        entered = entered[~is_copy[entered]]
        place, origin = self._place[entered], self._order[entered]
        columns = [
            id_texts(self._high[last], self._low[last]),
            instants(started),
            instants(ended),
            pa.array((self._ends - self._starts + 1).astype(np.int32)),
            self._paths() if paths else pa.nulls(count, pa.list_(HOP)),
            picked(outcome, last),
            picked(column(rows, "reason"), last),
            pa.array((ended - started) / 1_000),
            pa.array(ended_well[codes(outcome)[last]]),
            pa.array(_symmetric(place, encoded(column(rows, "back")), origin, count)),
            pa.array(self._looped(place, origin, count)),
        ]
        return pa.Table.from_arrays(columns, schema=BUILT["traces"])

    def _last(self, is_copy: Flags) -> Longs:
        """The row that tells how each message ended: the last that is not of a second copy."""
        if not is_copy.any():
            return np.asarray(self._order[self._ends])
        told = np.where(is_copy, -1, np.arange(len(is_copy)))
        latest = np.maximum.reduceat(told, self._starts)
        return np.asarray(self._order[np.where(latest < 0, self._ends, latest)])

    def _entered(self) -> Longs:
        """The first row of each entry into a node: one entry may have several outcomes."""
        life = pair_codes(self._node, longs(self._rows, "incarnation"))
        lives = int(life.max()) + 1
        visit = self._place * lives + life[self._order]
        again = repeated_numbers(visit)
        if not len(again):
            return np.arange(len(visit))
        several = np.zeros(len(self._starts), np.bool_)
        several[again // lives] = True
        doubtful = np.flatnonzero(several[self._place])
        received = longs(self._rows, "received_at")[self._order[doubtful]]
        kept = np.ones(len(visit), np.bool_)
        kept[doubtful[~firsts(pair_codes(number_codes(visit[doubtful]), received))]] = False
        return np.flatnonzero(kept)

    def _looped(self, place: Longs, origin: Longs, count: int) -> Flags:
        """Whether a node was entered twice with the same onward route."""
        found = np.zeros(count, np.bool_)
        if (place[1:] != place[:-1]).all():
            return found
        way = pair_codes(self._node[origin], codes(column(self._rows, "onward"))[origin])
        ways = int(way.max()) + 1
        found[repeated_numbers(place * ways + way) // ways] = True
        return found

    def _paths(self) -> pa.Array:
        fields = [picked(column(self._rows, field.name), self._order) for field in HOP]
        hops = pa.StructArray.from_arrays(fields, fields=list(HOP))
        offsets = pa.array(np.append(self._starts, len(self._order)).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, hops)


def _ranks_of(texts: pa.Array) -> Longs:
    """A number for each string, in the order of the strings."""
    coded = encoded(texts)
    rank = np.empty(len(coded.dictionary), np.int64)
    rank[np.asarray(pc.array_sort_indices(coded.dictionary))] = np.arange(len(rank))
    return rank[codes(coded)]


def _symmetric(place: Longs, back: pa.DictionaryArray, origin: Longs, count: int) -> Flags:
    """Whether each entry's return route is the previous one with more in front of it."""
    found = np.ones(count, np.bool_)
    follows = np.flatnonzero(place[1:] == place[:-1])
    if not len(follows):
        return found
    route = codes(back)[origin]
    former, later = route[follows], route[follows + 1]
    pair = pair_codes(former, later)
    sample = np.zeros(int(pair.max()) + 1, np.int64)
    sample[pair] = np.arange(len(pair))
    grown = _grew(back.dictionary, former[sample], later[sample])
    found[place[follows[~grown[pair]]]] = False
    return found


def _grew(texts: Any, former: Longs, later: Longs) -> Flags:
    """Which strings are longer than the previous one and end with it."""
    bounds, bytes = text_bounds(texts).astype(np.int64), text_bytes(texts)
    bounds -= bounds[0]
    length, longer = np.diff(bounds)[former], np.diff(bounds)[later]
    grown: Flags = longer > length
    asked = np.flatnonzero(grown & (length > 0))
    which, here = spread(bounds[former[asked]], length[asked])
    _, there = spread(bounds[later[asked] + 1] - length[asked], length[asked])
    grown[asked[which[bytes[here] != bytes[there]]]] = False
    return grown
