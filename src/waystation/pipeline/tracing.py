"""The way of each message over all nodes, put together from its rows: CONTRACT's `traces`.

Arrow in, Arrow out, by whole columns; all rows of a message must be in the same table. No Spark.

A route is one text here, each address with a space in front of it: no address holds one, so a route
is the end of another exactly if its text is.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.message import NO_ID
from waystation.pipeline.columns import Flags, Longs, codes, column, instants, longs, taken
from waystation.pipeline.schema import BUILT, HOP, INSTANT, TEXT

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
"""What of a row of `messages` a trace is made of."""


def steps(messages: pa.Table) -> pa.Table:
    """The steps that these rows of `messages` (with `node`) are; none without an id."""
    known = pc.not_equal(messages.column("message_id"), NO_ID)
    if not pc.all(known).as_py():
        messages = messages.filter(known)
    columns = {name: messages.column(name) for name in STEPS.names if name in messages.column_names}
    columns["onward"] = _as_text(column(messages, "onward"))
    columns["back"] = _as_text(column(messages, "return"))
    return pa.table(columns).select(STEPS.names)


def _as_text(routes: pa.Array) -> pa.Array:
    joined = pc.binary_join(routes, " ")
    empty = pc.equal(pc.list_value_length(routes), 0)
    return pc.if_else(empty, "", pc.binary_join_element_wise("", joined, " "))


def trace(rows: pa.Table, *, paths: bool) -> pa.Table:
    """The `traces` of the messages whose steps these are."""
    if not rows.num_rows:
        return BUILT["traces"].empty_table()
    message = codes(column(rows, "message_id"))
    at = longs(rows, "at")
    node = _ranks_of(column(rows, "node"))
    incarnation, seq = longs(rows, "incarnation"), longs(rows, "seq")
    order = np.lexsort((seq, incarnation, node, at, message))
    message = message[order]
    first = np.append(True, message[1:] != message[:-1])
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(order)) - 1
    place = np.cumsum(first) - 1
    entered = _entered(place, node[order], incarnation[order], longs(rows, "received_at")[order])
    last = order[ends]
    outcome = taken(rows, "outcome", last)
    started, ended = at[order[starts]], at[last]
    columns = [
        taken(rows, "message_id", last),
        instants(started),
        instants(ended),
        pa.array((ends - starts + 1).astype(np.int32)),
        _paths(rows, order, starts) if paths else pa.nulls(len(starts), pa.list_(HOP)),
        outcome,
        taken(rows, "reason", last),
        pa.array((ended - started) / 1_000),
        pc.is_in(outcome, pa.array(["DELIVERED", "DROPPED"])),
        pa.array(_symmetric(place[entered], taken(rows, "back", order[entered]), len(starts))),
        pa.array(_looped(place[entered], node[order[entered]], rows, order[entered], len(starts))),
    ]
    return pa.Table.from_arrays(columns, schema=BUILT["traces"])


def _ranks_of(texts: pa.Array) -> Longs:
    """A number for each text, in the order of the texts."""
    encoded = texts.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[np.asarray(pc.array_sort_indices(encoded.dictionary))] = np.arange(len(rank))
    return rank[codes(encoded)]


def _joined(*keys: Longs) -> Longs:
    """One number for each distinct combination."""
    whole = keys[0]
    for key in keys[1:]:
        _, part = np.unique(key, return_inverse=True)
        _, whole = np.unique(whole * (int(part.max(initial=0)) + 1) + part, return_inverse=True)
    return whole


def _entered(place: Longs, node: Longs, incarnation: Longs, received: Longs) -> Longs:
    """The first row of each entry into a node: several rows may tell how one entry ended."""
    alone = np.append(True, place[1:] != place[:-1])
    if alone.all():
        return np.arange(len(place))
    _, firsts = np.unique(_joined(place, node, incarnation, received), return_index=True)
    return np.sort(firsts)


def _symmetric(place: Longs, back: pa.Array, count: int) -> Flags:
    """Whether each entry's return route is the former's with more in front of it."""
    follows = np.flatnonzero(place[1:] == place[:-1])
    encoded = back.dictionary_encode()
    which, texts = codes(encoded), encoded.dictionary.to_pylist()
    width = len(texts)
    pairs, of_row = np.unique(which[follows] * width + which[follows + 1], return_inverse=True)
    grown = np.array(
        [_grew(texts[pair // width], texts[pair % width]) for pair in pairs.tolist()], np.bool_
    )
    found = np.ones(count, np.bool_)
    found[place[follows[~grown[of_row]]]] = False
    return found


def _grew(former: str, later: str) -> bool:
    return len(later) > len(former) and later.endswith(former)


def _looped(place: Longs, node: Longs, rows: pa.Table, origin: Longs, count: int) -> Flags:
    """Whether a node was entered twice with the same onward route."""
    found = np.zeros(count, np.bool_)
    if len(place) == count:
        return found
    keys = _joined(place, node, codes(taken(rows, "onward", origin)))
    _, which, counts = np.unique(keys, return_index=True, return_counts=True)
    found[place[which[counts > 1]]] = True
    return found


def _paths(rows: pa.Table, order: Longs, starts: Longs) -> pa.Array:
    fields = [taken(rows, field.name, order) for field in HOP]
    hops = pa.StructArray.from_arrays(fields, fields=list(HOP))
    offsets = pa.array(np.append(starts, len(order)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, hops)
