"""Which visit of a message follows which, for many messages at once: CONTRACT's rules (1) to (4).

A visit is one entry of a message into a node. Visits are arrays here, in the order of (message,
length of the return route, corrected time of entry, node, incarnation), and a visit follows one
that stands before it, or none: -1. Nearly all messages are plain chains, in which each visit has a
longer return route than the one before it; then that one is the only candidate. The visits of the
others find each other by what must be equal, not pair by pair. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.pipeline.kernels.columns import (
    Flags,
    Longs,
    codes,
    pair_codes,
    spread,
    text_bounds,
    text_bytes,
)

NONE: Final = -1
_SPACE: Final = ord(" ")


class Texts:
    """Distinct routes as texts, each address with a space in front, by code.

    An end of a route is an end of its text. Of each is known the longest end of it that is a route
    here as well: so whether one ends with another takes no look at the texts.
    """

    def __init__(self, texts: Any) -> None:
        self._texts = texts
        counts = pc.count_substring(texts, " ")
        self.lengths: Longs = np.append(np.asarray(counts).astype(np.int64), NONE)

    @cached_property
    def shorter(self) -> Longs:
        """The code of the longest proper end of each that is here; NONE if there is none."""
        lengths = self.lengths[:-1]
        found = np.full(len(lengths) + 1, NONE)
        present = np.unique(lengths)
        place = np.searchsorted(present, lengths) - 1
        open = np.flatnonzero(place >= 0)
        while len(open):
            ends = self._ends(open, present[place[open]])
            known = pc.fill_null(pc.index_in(ends, value_set=self._texts), NONE)
            found[open] = np.asarray(known)
            place[open] -= 1
            open = open[(found[open] == NONE) & (place[open] >= 0)]
        return found

    def _ends(self, which: Longs, lengths: Longs) -> pa.Array:
        """The last addresses of some of the routes: so many of each."""
        bounds, bytes = self._bounds, text_bytes(self._texts)
        until = bounds[which + 1]
        past = np.searchsorted(self._spaces, until)
        begins = np.append(self._spaces, len(bytes))[past - lengths]
        since = np.where(lengths > 0, begins, until)
        _, place = spread(since, until - since)
        offsets = np.append(0, np.cumsum(until - since)).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bytes[place])]
        return pa.Array.from_buffers(pa.string(), len(which), buffers)

    @cached_property
    def _bounds(self) -> Longs:
        bounds = text_bounds(self._texts).astype(np.int64)
        return np.asarray(bounds - bounds[0])

    @cached_property
    def _spaces(self) -> Longs:
        return np.flatnonzero(text_bytes(self._texts) == _SPACE)

    def without_first(self, routes: Longs) -> Longs:
        """Routes without their first address; NONE if that is not a route here."""
        ends = self.shorter[routes]
        fits = self.lengths[ends] == self.lengths[routes] - 1
        return np.where(fits & (ends >= 0), ends, NONE)

    def end_with(self, wholes: Longs, ends: Longs) -> Flags:
        """Which routes end with others, or are equal."""
        found, wanted = wholes.copy(), self.lengths[ends]
        open = np.flatnonzero(self.lengths[found] > wanted)
        while len(open):
            found[open] = self.shorter[found[open]]
            open = open[self.lengths[found[open]] > wanted[open]]
        return np.asarray(found == ends)


class Routes:
    """The routes of rows."""

    def __init__(self, texts: Texts, code: Longs) -> None:
        self.texts, self.code = texts, code

    @classmethod
    def of(cls, routes: pa.DictionaryArray) -> Routes:
        """From a column."""
        return cls(Texts(routes.dictionary), codes(routes))

    def at(self, rows: Longs) -> Routes:
        """The routes of these rows."""
        return Routes(self.texts, self.code[rows])

    @property
    def lengths(self) -> Longs:
        """The number of addresses in each."""
        return self.texts.lengths[self.code]


class Visits(Struct):
    """Visits of some messages, and the rows (steps) that each consists of, which are adjacent."""

    message: Longs
    first: Longs  # its first row
    count: Longs  # of its rows
    node: Longs
    incarnation: Longs
    received: Longs  # as recorded
    corrected: Longs
    version: Longs
    from_global: Flags
    has_via: Flags
    from_node: Longs  # as `node`; negative if there is none, or none of these
    has_origin: Flags
    came_globally: Flags  # over a session of role `global`
    left_globally: Flags
    forwarded: Flags
    delivered: Flags
    back: Routes
    onward: Routes
    next_node: Longs  # of each row, as `node`
    is_forwarded: Flags  # each row

    def __len__(self) -> int:
        return len(self.message)

    @property
    def left(self) -> Flags:
        """Which visits the message left again, for another node."""
        found: Flags = self.forwarded | self.delivered & (self.version < 2)
        return found


class Followed(Struct):
    """The results: what each visit follows, its depth, and its root."""

    follows: Longs
    rule: Longs  # by which rule; 0 for none
    depth: Longs
    plain: Flags  # whether the message is a chain of one root, in the order of its visits


def follow(visits: Visits) -> Followed:
    """What each visit follows."""
    count = len(visits)
    places = np.arange(count)
    length = visits.back.lengths
    begins = np.append(True, visits.message[1:] != visits.message[:-1])[:count]
    later = np.flatnonzero(~begins)
    rule = np.zeros(count, np.int64)
    asked = later[length[later] > length[later - 1]]
    rule[asked] = _rule_of_chain(visits, length, asked)
    number = np.cumsum(begins) - 1
    is_plain = np.ones(int(number[-1]) + 1, np.bool_)
    is_plain[number[later[rule[later] == 0]]] = False
    plain = is_plain[number]
    follows = np.where(plain & ~begins, places - 1, NONE)
    found = Followed(follows, rule, places - places[begins][number], plain)
    if not plain.all():
        _follow_others(visits, np.flatnonzero(~plain), found)
    return found


# Plain chains


def _rule_of_chain(visits: Visits, length: Longs, later: Longs) -> Longs:
    """By which rule visits follow the one before them, which is the only candidate; 0 for none."""
    former = later - 1
    sent_on = _sent_on_here(visits, length, former, later)
    fits = visits.left[former] & ~visits.has_origin[later] | sent_on
    fits &= _continue(visits, former, later)
    told = (length[later] == length[former] + 1) & (visits.from_node[later] == visits.node[former])
    row = visits.first[former]
    is_there = visits.is_forwarded[row] & (visits.next_node[row] == visits.node[later])
    several = np.flatnonzero(told & fits & ~is_there & (visits.count[former] > 1))
    is_there[several] = _went_there(visits, former[several], later[several])
    return np.where(fits, np.select([sent_on, told & is_there], [1, 2], 4), 0)


def _sent_on_here(visits: Visits, length: Longs, former: Longs, later: Longs) -> Flags:
    """Rule 1, but for what the routes contain: a worker had it, and sent it on."""
    found: Flags = visits.delivered[former] & ~visits.has_via[later]
    found &= visits.node[former] == visits.node[later]
    found &= visits.incarnation[former] == visits.incarnation[later]
    if not found.any():
        return found
    onward = visits.onward.lengths
    found &= (length[later] == length[former] + 1) & (onward[later] == onward[former] - 1)
    return found


def _continue(visits: Visits, former: Longs, later: Longs) -> Flags:
    """Whether return routes grew, and onward routes lost only addresses in front, if any."""
    back, onward = visits.back, visits.onward
    grown = back.texts.end_with(back.code[later], back.code[former])
    return grown & onward.texts.end_with(onward.code[former], onward.code[later])


def _went_there(visits: Visits, former: Longs, later: Longs) -> Flags:
    """Whether a copy went from one to the node of the other."""
    pair, row = spread(visits.first[former], visits.count[former])
    there = visits.is_forwarded[row] & (visits.next_node[row] == visits.node[later[pair]])
    return np.bincount(pair[there], minlength=len(former)) > 0


# All others


class _Candidates:
    """Visits that others may follow, by numbers that must be equal, in the order of their time."""

    def __init__(self, visits: Visits, asked: Longs) -> None:
        self._rank = np.full(len(visits), NONE)
        times, rank = np.unique(visits.corrected[asked], return_inverse=True)
        self._rank[asked] = rank
        self._width = len(times)

    def nearest(
        self, formers: Longs, keys: Sequence[Longs], laters: Longs, wanted: Sequence[Longs]
    ) -> Longs:
        """For each later visit the former one with its key that is nearest; NONE if there is none.

        That is the latest before it, else the earliest; of those at one time the first.
        """
        if not len(formers) or not len(laters):
            return np.full(len(laters), NONE)
        code = np.zeros(len(formers) + len(laters), np.int64)
        for some, others in zip(keys, wanted, strict=True):
            code = pair_codes(code, np.concatenate([some, others]))
        key, mine = code[: len(formers)], code[len(formers) :]
        # Visits are in the order of time where messages and return routes are equal.
        order = np.lexsort((formers, key))
        formers, key = formers[order], key[order]
        places = key * self._width + self._rank[formers]
        before = np.searchsorted(places, mine * self._width + self._rank[laters], "right") - 1
        in_time = (before >= 0) & (key[before] == mine)
        first = np.searchsorted(places, np.where(in_time, places[before], mine * self._width))
        first = np.minimum(first, len(formers) - 1)
        return np.where(key[first] == mine, formers[first], NONE)


def _follow_others(visits: Visits, asked: Longs, found: Followed) -> None:
    """Find what the visits of other messages follow, by each rule in turn."""
    candidates = _Candidates(visits, asked)
    found.rule[asked] = 0
    open = asked
    for rule, finds in _RULES.items():
        if rule == 2:
            open = open[~visits.has_origin[open]]
        for later, former in finds(visits, candidates, asked, open):
            known = former != NONE
            found.follows[later[known]], found.rule[later[known]] = former[known], rule
        open = open[found.follows[open] == NONE]
    _measure(asked, found)


def _by_worker(
    visits: Visits, candidates: _Candidates, asked: Longs, open: Longs
) -> Iterator[tuple[Longs, Longs]]:
    back, onward = visits.back, visits.onward
    former, later = asked[visits.delivered[asked]], open[~visits.has_via[open]]
    rest = onward.texts.without_first(onward.code[former])
    former, rest = former[rest != NONE], rest[rest != NONE]
    same = [visits.message, visits.node, visits.incarnation]
    keys = [*(column[former] for column in same), back.code[former], rest]
    before = back.texts.without_first(back.code[later])
    wanted = [*(column[later] for column in same), before, onward.code[later]]
    yield later, candidates.nearest(former, keys, later, wanted)


def _by_session(
    visits: Visits, candidates: _Candidates, asked: Longs, open: Longs
) -> Iterator[tuple[Longs, Longs]]:
    back = visits.back
    later = open[visits.from_node[open] >= 0]
    which, row = spread(visits.first[asked], visits.count[asked])
    told = visits.is_forwarded[row] & (visits.next_node[row] >= 0)
    former, next_node = asked[which[told]], visits.next_node[row[told]]
    which, rest = _ends_of(visits.onward, former)
    former, next_node = former[which], next_node[which]
    keys = [visits.message[former], visits.node[former], next_node, back.code[former], rest]
    wanted = [
        *(visits.message[later], visits.from_node[later], visits.node[later]),
        *(back.texts.without_first(back.code[later]), visits.onward.code[later]),
    ]
    yield later, candidates.nearest(former, keys, later, wanted)


def _by_broker(
    visits: Visits, candidates: _Candidates, asked: Longs, open: Longs
) -> Iterator[tuple[Longs, Longs]]:
    former = asked[visits.left_globally[asked] & ~visits.from_global[asked]]
    later = open[visits.came_globally[open] & visits.from_global[open]]
    same = [visits.message, visits.back.code, visits.onward.code]
    keys, wanted = ([column[chosen] for column in same] for chosen in (former, later))
    yield later, candidates.nearest(former, keys, later, wanted)


def _by_routes(
    visits: Visits, candidates: _Candidates, asked: Longs, open: Longs
) -> Iterator[tuple[Longs, Longs]]:
    back, onward = visits.back, visits.onward
    former = asked[visits.left[asked]]
    which, rest = _ends_of(onward, former)
    former = former[which]
    keys = [visits.message[former], back.code[former], rest]
    later, before = open, back.texts.shorter[back.code[open]]
    while len(later):  # the longest return route first
        later, before = later[before != NONE], before[before != NONE]
        wanted = [visits.message[later], before, onward.code[later]]
        chosen = candidates.nearest(former, keys, later, wanted)
        yield later, chosen
        later, before = later[chosen == NONE], back.texts.shorter[before[chosen == NONE]]


def _ends_of(routes: Routes, visits: Longs) -> tuple[Longs, Longs]:
    """The routes of visits and all ends of them that are routes: whose, and which."""
    which, code = np.arange(len(visits)), routes.code[visits]
    found = [(which, code)]
    while len(which):
        code = routes.texts.shorter[code]
        which, code = which[code != NONE], code[code != NONE]
        found.append((which, code))
    whose, ends = zip(*found, strict=True)
    return np.concatenate(whose), np.concatenate(ends)


_RULES: Final = {1: _by_worker, 2: _by_session, 3: _by_broker, 4: _by_routes}


def _measure(asked: Longs, found: Followed) -> None:
    """The depth of visits: each knows that of twice as many before it in every round."""
    depth, former = found.depth, found.follows.copy()
    depth[asked] = former[asked] != NONE
    open = asked[former[asked] != NONE]
    while len(open):
        before = former[open]
        depth[open] += depth[before]
        former[open] = former[before]
        open = open[former[open] != NONE]
