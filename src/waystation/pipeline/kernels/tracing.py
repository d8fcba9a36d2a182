"""The path of each message over all nodes, assembled from its rows: CONTRACT's `traces`.

Arrow in, Arrow out, by whole columns; all rows of a message must be in the same table. No Spark.
arranging.py brings the rows into causal order, fates.py tells what became of each copy, and
answering.py ties requests to their answers.

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

from waystation.core.losses import INTERNAL
from waystation.core.message import NO_ID
from waystation.core.outcome import Outcome, Reason
from waystation.core.visits import VANISHED as GONE
from waystation.journal.schema import INSTANT, TEXT
from waystation.pipeline.kernels.answering import ANSWERS, MADE, answers_in, tied, ways_of
from waystation.pipeline.kernels.arranging import Arranged, words
from waystation.pipeline.kernels.blobs import blobs_of, tables_of
from waystation.pipeline.kernels.columns import (
    Flags,
    Longs,
    Words,
    are,
    codes,
    column,
    days,
    encoded,
    flags,
    id_texts,
    id_words,
    instants,
    longs,
    pair_codes,
    picked,
    repeated_numbers,
)
from waystation.pipeline.kernels.evidence import FATES, NO_FACTS, Facts, last_names
from waystation.pipeline.kernels.fates import DELIVERED, DROPPED, LEFT, UNKNOWN, VANISHED, Fates
from waystation.pipeline.kernels.singly import told_one_by_one
from waystation.pipeline.schema import VERSION
from waystation.pipeline.tables import HOP, LOST

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
        "recipient": TEXT,
        "multicast_id": TEXT,
        "expiry": INSTANT,
        "from_global": pa.bool_(),
        "origin": TEXT,
        "answers": TEXT,
        "via": TEXT,
        "from_node": TEXT,
        "out": TEXT,
        "next_node": TEXT,
        "copy": pa.int32(),
        "sender": TEXT,
        "durable": pa.bool_(),
        "internal": pa.bool_(),
        VERSION: pa.int16(),
    }
)
"""The columns of `messages` that a trace is made of."""

_TEXTS: Final = tuple(
    field.name for field in STEPS if field.type == TEXT and field.name != "message_id"
)
_NEEDED: Final = ("outcome", "onward", "back", "node", "reason", "from_global", VERSION)
"""Columns that are in transit even if all their values are null."""

PACKED: Final = pa.schema({"part": pa.int32(), "steps": pa.binary()})
"""Steps in transit to the task that assembles their messages: many at a time, in Arrow's format."""

ROWS_AT_ONCE: Final = 262_144
"""About this many steps are packed together."""

TRACES_AT_ONCE: Final = 16_384
"""This many traces are packed together: with their paths they are large, and Java copies them."""

_TO_MEMBERS: Final = " 6#"  # how a route to a member of a group begins
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
    for name in _TEXTS:
        if name not in ("onward", "back"):
            columns[name] = encoded(column(messages, name))
    return _without_gossip(pa.table(columns).select(STEPS.names))


def _without_gossip(rows: pa.Table) -> pa.Table:
    """Steps without those of a gossip router, whose messages are for members of groups."""
    onward = column(rows, "onward")
    gossip = np.asarray(pc.starts_with(onward.dictionary, _TO_MEMBERS))
    if not gossip.any():
        return rows
    return rows.filter(pa.array(~np.append(gossip, False)[codes(onward)]))


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
            yield _packed(together(held), parts)
            held = []
    if held:
        yield _packed(together(held), parts)


def together(steps: list[pa.Table]) -> pa.Table:
    """Steps of several tables; columns that one of them lacks are null there."""
    return pa.concat_tables(steps, promote_options="default")


def _narrowed(rows: pa.Table, *, paths: bool) -> pa.Table:
    """Steps with ids as two numbers, and without the columns that only paths need."""
    high, low = id_words(column(rows, "message_id"))
    columns = {"high": pa.array(high), "low": pa.array(low)}
    for name in STEPS.names[1:]:
        values = rows.column(name)
        if (paths or name != "next_hop") and (name in _NEEDED or values.null_count < len(values)):
            columns[name] = values
    return pa.table(columns)


def _packed(rows: pa.Table, parts: int) -> pa.Table:
    rows = rows.combine_chunks()
    part = part_of_ids(words(rows, "high"), words(rows, "low"), parts)
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


def part_of_ids(high: Words, low: Words, parts: int) -> Any:
    """The part of each message: the same wherever it is asked for."""
    mixed = (high ^ low) * _MIX >> np.uint64(33)
    return (mixed % np.uint64(parts)).astype(np.uint16)


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


def sent_to_requests(made: pa.Table, parts: int) -> Iterator[pa.Table]:
    """Traces and the answers among them as rows of PACKED: answers go where their requests are."""
    answers = answers_in(made)
    part_of = part_of_ids(*id_words(column(made, "message_id")), parts)
    asked = part_of_ids(*id_words(column(answers, "request")), parts)
    for rows, where in ((made, part_of), (answers, asked)):
        for part in np.unique(where).tolist():
            found = rows.filter(pa.array(where == part))
            for first in range(0, found.num_rows, TRACES_AT_ONCE):
                some = found.slice(first, TRACES_AT_ONCE).combine_chunks()
                columns = [pa.array([part], pa.int32()), blobs_of([some])]
                yield pa.Table.from_arrays(columns, schema=PACKED)


def received_from_answers(held: list[pa.Table]) -> tuple[pa.Table, pa.Table]:
    """The traces and the answers that such rows contain."""
    made = [table for table in held if table.schema.names == MADE.names]
    answers = [table for table in held if table.schema.names == ANSWERS.names]
    return (
        pa.concat_tables([MADE.empty_table(), *made]),
        pa.concat_tables([ANSWERS.empty_table(), *answers]),
    )


# Assembly


def trace(rows: pa.Table, *, paths: bool, facts: Facts = NO_FACTS) -> pa.Table:
    """The `traces` of the messages with these steps; answers are among them, if there are any."""
    made = assembled(rows, facts)
    return tied(made, answers_in(made), paths=paths)


def assembled(rows: pa.Table, facts: Facts = NO_FACTS, *, paths: bool = True) -> pa.Table:
    """The traces of the messages with these steps, which do not know their answers yet."""
    if not rows.num_rows:
        return MADE.empty_table()
    if "message_id" in rows.column_names:
        rows = _narrowed(rows, paths=True)
    return _Traces(rows.combine_chunks(), facts).table(paths=paths)


class _Traces:
    """Traces of steps: by whole columns, and those of some messages one by one."""

    def __init__(self, rows: pa.Table, facts: Facts) -> None:
        self._rows, self._facts = rows, facts
        self._all = Arranged(rows, facts)
        self._fates = Fates(self._all)
        self._row = self._all.first[self._all.begin]  # the first of each message

    def table(self, *, paths: bool) -> pa.Table:
        doubtful = self._fates.doubtful
        made = self._together()
        if not doubtful.any():
            return self._with_paths(made) if paths else made
        of_row = doubtful[self._all.message[self._all.visit]]
        alone = told_one_by_one(self._rows.take(pa.array(self._all.order[of_row])), self._facts)
        made = made.filter(pa.array(~doubtful))
        if paths:
            made = self._with_paths(made, ~of_row)
        return pa.concat_tables([made, alone])

    def _with_paths(self, made: pa.Table, kept: Flags | None = None) -> pa.Table:
        """Traces with their paths, of all rows or those `kept`, and what became of each step."""
        every = self._all
        rows = np.arange(len(every.order)) if kept is None else np.flatnonzero(kept)
        message = every.message[every.visit[rows]]
        begins = np.append(True, message[1:] != message[:-1])[: len(rows)]
        offsets = pa.array(np.append(np.flatnonzero(begins), len(rows)).astype(np.int32))
        for name, steps in (("path", self._hops(rows)), ("fates", self._fates_of(rows))):
            place = made.schema.get_field_index(name)
            found = pa.ListArray.from_arrays(offsets, steps)
            made = made.set_column(place, MADE.field(place), found)
        return made

    def _together(self) -> pa.Table:
        """The traces of all messages, without their paths."""
        every, fates = self._all, self._fates
        count = len(every.begin)
        origin = every.order[self._row]
        at = every.at - every.ahead
        started = every.corrected[every.begin]
        ended = np.maximum.reduceat(at, self._row)
        delivered = fates.fate == DELIVERED
        arrived = np.maximum.reduceat(np.where(delivered, at, _LONG_AGO), self._row)
        deliveries = self._counted(delivered)
        losses = self._losses(at)
        lost, outcome, reason = self._outcomes(losses)
        unknown, left = (self._copies(fates.fate == fate) for fate in (UNKNOWN, LEFT))
        visits = np.diff(np.append(every.begin, len(every.first)))
        complete = pa.array((lost == 0) & (unknown == 0))
        looped = pa.array(self._looped(count))
        columns = {
            "message_id": id_texts(every.high[origin], every.low[origin]),
            "started": instants(started),
            "ended": instants(ended),
            "hops": _ints(visits - 1),
            "path": pa.nulls(count, pa.list_(HOP)),
            "outcome": outcome,
            "reason": reason,
            "latency_ms": pa.array((np.where(deliveries > 0, arrived, ended) - started) / 1_000),
            "complete": complete,
            "symmetric": pa.nulls(count, pa.bool_()),
            "looped": looped,
            "origin": self._origins(count),
            "sender": self._taken("sender", origin),
            "recipient": self._recipients(origin),
            "multicast_id": self._taken("multicast_id", origin),
            "answers": self._answers(count),
            "answered_by": pa.nulls(count, TEXT),
            "legs": pa.array(np.ones(count, np.int32)),
            "delivered": _ints(deliveries),
            "lost_copies": _ints(lost),
            "unknown_copies": _ints(unknown),
            "left_fleet": _ints(left),
            "internal": pa.array(self._any("internal")),
            "is_complete": complete,
            "is_symmetric": pa.nulls(count, pa.bool_()),
            "is_looped": looped,
            "lost": self._lost(losses[0], count),
            "fates": pa.nulls(count, pa.list_(TEXT)),
            "waiting": _ints(np.zeros(count, np.int64)),  # those that wait are told one by one
            "durable": pa.array(self._any("durable")),
            "day": days(longs(self._rows, "received_at")[origin]),
            **self._ways(count),
            "is_open": pa.array(fates.is_open),
        }
        return pa.table(columns, schema=MADE)

    def _counted(self, rows: Flags) -> Longs:
        """How many of these rows each message has."""
        return np.add.reduceat(rows.astype(np.int64), self._row)

    def _copies(self, rows: Flags) -> Longs:
        """How many copies of these rows each message has."""
        found = np.flatnonzero(rows)
        found = found[self._fates.copy[found] == found]
        return np.bincount(self._messages(found), minlength=len(self._row))

    def _messages(self, rows: Longs) -> Longs:
        return np.asarray(self._all.message[self._all.visit[rows]])

    # Outcomes

    def _outcomes(self, losses: tuple[Longs, Longs]) -> tuple[Longs, pa.Array, pa.Array]:
        """The number of losses, the outcome, and the reason of each message."""
        every, fates = self._all, self._fates
        count = len(self._row)
        rank = _RANKS[fates.fate]
        best = np.maximum.reduceat(rank, self._row)
        message = every.message[every.visit]
        told = np.flatnonzero(rank == best[message])
        last = np.zeros(count, np.int64)
        last[message[told]] = told  # the last of the best counts
        outcomes = encoded(column(self._rows, "outcome"))
        outcome = picked(outcomes, every.order[last])
        vanished = fates.fate[last] == VANISHED
        outcome = pc.if_else(pa.array(vanished), Outcome.DROPPED.value, outcome)
        reasons = encoded(column(self._rows, "reason"))
        reason = picked(reasons, every.order[last])
        rows, numbers = losses
        if not len(rows):
            return np.zeros(count, np.int64), outcome, reason
        lost = np.bincount(self._messages(rows), minlength=count)
        is_lost = np.zeros(count, np.bool_)
        is_lost[self._messages(numbers)] = True
        place = np.zeros(count, np.int64)
        place[self._messages(numbers)] = numbers
        why = pc.if_else(
            pa.array(fates.fate[place] == VANISHED), GONE, picked(reasons, every.order[place])
        )
        flag = pa.array(is_lost)
        return (
            lost,
            pc.if_else(flag, Outcome.DROPPED.value, outcome),
            pc.if_else(flag, why, reason),
        )

    def _losses(self, at: Longs) -> tuple[Longs, Longs]:
        """The last loss of each who went without, and of each message the one that ended last."""
        every, fates = self._all, self._fates
        lost = fates.dropped | (fates.fate == VANISHED)
        rows = np.flatnonzero(
            lost & ~are(column(self._rows, "reason"), Reason.DUPLICATE)[every.order]
        )
        if not len(rows):
            return rows, rows
        whom = fates.for_whom
        width = int(whom.max(initial=0)) + 2
        message = every.message[every.visit]
        suffers = np.zeros(len(self._row), np.bool_)
        suffers[message[rows]] = True
        got = np.flatnonzero((fates.fate == DELIVERED) & suffers[message])
        heard = self._may_be_heard(message)
        heard[message[got]] = True
        key, had = (message[found] * width + whom[found] + 1 for found in (rows, got))
        unheard = are(column(self._rows, "reason"), Reason.NO_SUBSCRIBER)[every.order[rows]]
        upward = fates.forwarded & (whom < 0)
        ways = np.bincount(every.visit[upward], minlength=len(every.first))
        others = ways[every.visit[rows]] - upward[rows]
        without = np.where(whom[rows] >= 0, ~np.isin(key, had), others == 0)
        chosen = np.where(unheard, ~heard[message[rows]], without)
        rows, key = rows[chosen], key[chosen]
        _, back = np.unique(key[::-1], return_index=True)
        rows = np.sort(rows[len(rows) - 1 - back])  # the last of each recipient
        order = rows[np.lexsort((rows, at[rows], message[rows]))]
        ends = np.append(message[order][1:] != message[order][:-1], True)[: len(order)]
        return rows, order[ends]

    def _may_be_heard(self, message: Longs) -> Flags:
        """Whether somebody may have got each message where the record does not reach."""
        found = np.logical_or.reduceat(self._gaps(), self._all.begin)
        elsewhere = np.isin(self._fates.fate, (UNKNOWN, LEFT))
        found[message[elsewhere]] = True
        return found

    def _gaps(self) -> Flags:
        """The visits before which a node without a journal lies."""
        every = self._all
        length = every.lengths()
        grown = length - length[every.follows]
        from_elsewhere = every.given("from_node")[every.order[every.first]] & (every.follows < 0)
        gaps: Flags = from_elsewhere | ((every.rule == 4) & (grown != 1))
        return gaps

    def _lost(self, rows: Longs, count: int) -> pa.Array:
        """The steps of each message by which somebody went without."""
        every, fates = self._all, self._fates
        origin = every.order[rows]
        reasons = picked(encoded(column(self._rows, "reason")), origin)
        onward, back = (encoded(column(self._rows, name)) for name in ("onward", "back"))
        internal = np.zeros(len(rows), np.bool_)
        for routes in (onward, back):
            ours = np.asarray(pc.match_substring(routes.dictionary, f" {INTERNAL}"))
            internal |= ours[codes(routes)[origin]]
        computed = {
            "recipient": fates.names(rows),
            "reason": pc.if_else(pa.array(fates.fate[rows] == VANISHED), GONE, reasons),
            "onward": pc.utf8_ltrim(picked(onward, origin), " "),
            "internal": pa.array(internal),
        }
        fields = [
            computed[field.name] if field.name in computed else self._picked(field, origin)
            for field in LOST
        ]
        offsets = np.searchsorted(self._messages(rows), np.arange(count + 1)).astype(np.int32)
        steps = pa.StructArray.from_arrays(fields, fields=list(LOST))
        return pa.ListArray.from_arrays(pa.array(offsets), steps)

    # Columns

    def _picked(self, field: pa.Field, rows: Longs) -> pa.Array:
        """A column at some rows; it may not be there if all of it is null."""
        if field.name not in self._rows.column_names:
            return pa.nulls(len(rows), field.type)
        return picked(column(self._rows, field.name), rows)

    def _taken(self, name: str, rows: Longs) -> pa.Array:
        texts = self._all.texts(name)
        return pa.nulls(len(rows), TEXT) if texts is None else picked(texts, rows)

    def _origins(self, count: int) -> pa.Array:
        """The origin of each message: that of a visit that follows none."""
        texts = self._all.texts("origin")
        if texts is None:
            return pa.nulls(count, TEXT)
        every = self._all
        roots = np.flatnonzero(every.follows < 0)
        code = codes(texts)[every.order[every.first[roots]]]
        found = np.full(count, -1)
        found[every.message[roots[code >= 0]]] = code[code >= 0]
        return picked(texts.dictionary, found)

    def _recipients(self, origin: Longs) -> pa.Array:
        """Whom messages are for: the last name in the onward route, else the recipient."""
        onward = encoded(column(self._rows, "onward"))
        names = picked(last_names(onward.dictionary), codes(onward)[origin])
        names = pc.coalesce(names, self._taken("recipient", origin))
        several = self._all.given("multicast_id")[origin]
        return pc.if_else(pa.array(several), pa.scalar(None, TEXT), names)

    def _any(self, name: str) -> Flags:
        """Whether a step of each message has a flag."""
        if name not in self._rows.column_names:
            return np.zeros(len(self._row), np.bool_)
        return self._counted(flags(self._rows, name)[self._all.order]) > 0

    def _answers(self, count: int) -> pa.Array:
        """The message that each answers, by its first step that tells."""
        texts = self._all.texts("answers")
        if texts is None:
            return pa.nulls(count, TEXT)
        code = codes(texts)[self._all.order]
        rows = np.flatnonzero(code >= 0)[::-1]
        found = np.full(count, -1)
        found[self._messages(rows)] = code[rows]  # the first is the last to be put
        return picked(texts.dictionary, found)

    def _looped(self, count: int) -> Flags:
        """Whether a node was entered twice with the same onward route."""
        every = self._all
        found = np.zeros(count, np.bool_)
        copy = are(column(self._rows, "reason"), Reason.DUPLICATE)[every.order[every.first]]
        entered = np.flatnonzero(~copy) if copy.any() else np.arange(len(every.first))
        message, count = every.message[entered], len(every.names)
        again = repeated_numbers(message * count + every.node[entered]) // count
        if not len(again):
            return found
        found[again] = True  # a node was entered twice; now the routes count as well
        entered = entered[found[message]]
        found[again] = False
        message = every.message[entered]
        way = pair_codes(every.node[entered], every.onward()[entered])
        ways = int(way.max()) + 1
        found[repeated_numbers(message * ways + way) // ways] = True
        return found

    def _ways(self, count: int) -> dict[str, pa.Array]:
        """The ways of messages as hashes, if any message may have an answer."""
        if not self._facts.known.has_answers and self._all.texts("answers") is None:
            return {name: pa.nulls(count, MADE.field(name).type) for name in MADE.names[-6:-1]}
        every = self._all
        again = (every.node[1:] == every.node[:-1]) & (every.message[1:] == every.message[:-1])
        visits = np.flatnonzero(~np.append(False, again))
        way, way_back = ways_of(every.names, every.node[visits], every.message[visits])
        has_gap = np.logical_or.reduceat(self._gaps(), every.begin)
        return {
            "way": pa.array(way),
            "way_back": pa.array(way_back),
            "has_gap": pa.array(has_gap),
            "first_node": picked(every.names, every.node[every.begin]),
            "nodes": pa.nulls(count, pa.list_(TEXT)),
        }

    def _hops(self, rows: Longs) -> pa.Array:
        """The steps of some rows, as paths have them."""
        every = self._all
        origin, visit = every.order[rows], every.visit[rows]
        at = picked(column(self._rows, "at"), origin)
        follows = every.follows[visit]
        computed = {
            "at": at,
            "left_at": pc.if_else(
                pa.array(self._fates.forwarded[rows]), at, pa.scalar(None, INSTANT)
            ),
            "follows": _ints(follows - every.begin[every.message[visit]], follows < 0),
            "depth": _ints(every.depth[visit]),
        }
        fields = [
            computed[field.name] if field.name in computed else self._picked(field, origin)
            for field in HOP
        ]
        return pa.StructArray.from_arrays(fields, fields=list(HOP))

    def _fates_of(self, rows: Longs) -> pa.Array:
        """What became of the copies of some rows."""
        return _FATES.take(pa.array(self._fates.fate[rows]))


_FATES: Final = pa.array([fate.value for fate in FATES], TEXT)
_LONG_AGO: Final = -(2**62)
_RANKS: Final = np.zeros(len(FATES), np.int64)
"""Of several fates of a message without losses, that of the highest rank is its outcome."""
for _fate, _rank in (*((DELIVERED, 4), (UNKNOWN, 3), (LEFT, 3), (DROPPED, 1), (VANISHED, 1)),):
    _RANKS[_fate] = _rank


def _ints(values: Longs, missing: Flags | None = None) -> pa.Array:
    return pa.array(values.astype(np.int32), mask=missing)
