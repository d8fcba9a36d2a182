"""What became of each copy of many messages at once, as core/visits.py tells it of one.

Some messages are not told here, but one by one: those that wait or waited for somebody and entered
their node again, that have several origins, or steps of several days, and those whose copies
cannot be told apart by their next nodes. They are few. No Spark.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from waystation.core.outcome import Outcome
from waystation.core.visits import DAY, Fate
from waystation.pipeline.kernels.arranging import Arranged
from waystation.pipeline.kernels.columns import (
    Flags,
    Longs,
    are,
    codes,
    column,
    encoded,
    id_texts,
    number_codes,
    pair_codes,
    picked,
    ranks,
    spread,
)
from waystation.pipeline.kernels.evidence import FATES, last_names

DELIVERED, DROPPED, PASSED_ON, VANISHED, UNKNOWN, LEFT, SETTLED = (
    FATES.index(fate)
    for fate in (
        *(Fate.DELIVERED, Fate.DROPPED, Fate.PASSED_ON, Fate.VANISHED, Fate.UNKNOWN, Fate.LEFT),
        Fate.SETTLED,
    )
)
NOBODY: Final = -1

_IN_TURN: Final = 16  # so many visits that follow one take their copies in turn, by whole columns


class Fates:
    """What became of the copies of arranged messages: for each row, in order."""

    def __init__(self, arranged: Arranged) -> None:
        self._all = arranged
        outcome = column(arranged.rows, "outcome")
        order = arranged.order
        self.forwarded = are(outcome, Outcome.FORWARDED)[order]
        self.delivered = are(outcome, Outcome.DELIVERED)[order]
        self.dropped = are(outcome, Outcome.DROPPED)[order]
        self.version = arranged.version[order]
        self.fate = np.select([self.delivered, self.dropped], [DELIVERED, DROPPED], SETTLED).astype(
            np.int64
        )
        self.copy = np.arange(len(order))  # a number for each copy; rows that left as one share it
        self.doubtful = np.zeros(len(arranged.begin), np.bool_)  # messages to be told one by one
        self.is_open = self.doubtful.copy()  # messages with a copy under way
        self._doubt_waiting()
        self._doubt_origins()
        self._doubt_days()
        self._tell_who_left()

    # Doubts

    def _doubt(self, visits: Longs) -> None:
        self.doubtful[self._all.message[visits]] = True

    def _doubt_waiting(self) -> None:
        """A message that waits, or waited for several receivers."""
        queued = ~(self.forwarded | self.delivered | self.dropped)
        if not queued.any():
            return
        arranged = self._all
        last = arranged.first + arranged.count - 1
        still = queued[last]
        rows = np.flatnonzero(queued)
        several = rows[arranged.given("multicast_id")[arranged.order[rows]]]
        self._doubt(np.flatnonzero(still))
        self._doubt(arranged.visit[several])

    def _doubt_origins(self) -> None:
        """A message that entered the fleet in several places."""
        arranged = self._all
        if arranged.texts("origin") is None:
            return
        roots = np.flatnonzero(arranged.follows < 0)
        origin = arranged.coded("origin")[arranged.order[arranged.first[roots]]]
        roots, origin = roots[origin >= 0], origin[origin >= 0]
        message = arranged.message[roots]
        known = np.full(len(arranged.begin), NOBODY)
        known[message] = origin
        self.doubtful[message[known[message] != origin]] = True

    def _doubt_days(self) -> None:
        arranged = self._all
        if int(arranged.at.max()) - int(arranged.at.min()) <= DAY:
            return
        rows = arranged.first[arranged.begin]
        spans = np.maximum.reduceat(arranged.at, rows) - np.minimum.reduceat(arranged.at, rows)
        self.doubtful |= spans > DAY

    # Copies

    def _tell_who_left(self) -> None:
        leaving = self.forwarded | self.delivered & (self.version < 2)
        taken = self._taken(leaving)
        self.fate[taken] = PASSED_ON
        lost = np.flatnonzero(self.forwarded & ~taken)
        if not len(lost):
            return
        arranged = self._all
        origin = arranged.order[lost]
        next_node = arranged.texts("next_node")
        there, names = np.full(len(lost), NOBODY), pa.array([], pa.string())
        if next_node is not None:
            there, names = codes(next_node)[origin], next_node.dictionary
        self.fate[lost], under_way = arranged.facts.fates_of_left(
            names,
            there,
            arranged.at[lost] - arranged.ahead[lost],
            self.version[lost],
            id_texts(arranged.high[origin], arranged.low[origin]),
        )
        self.is_open[arranged.message[arranged.visit[lost[under_way]]]] = True

    def _taken(self, leaving: Flags) -> Flags:
        """Which of the rows that may have left are of a copy that a visit follows."""
        arranged = self._all
        taken = np.zeros(len(leaving), np.bool_)
        counts = np.bincount(arranged.visit[leaving], minlength=len(arranged.first))
        followers = np.flatnonzero(arranged.rule > 1)
        followed = np.bincount(arranged.follows[followers], minlength=len(arranged.first)) > 0
        of_row = counts[arranged.visit]
        taken[leaving & (of_row == 1)] = followed[arranged.visit[leaving & (of_row == 1)]]
        rows = np.flatnonzero(leaving & (of_row > 1))
        if len(rows):
            self._number_copies(rows)
            rows = rows[followed[arranged.visit[rows]]]
            mine = np.zeros(len(arranged.first), np.bool_)
            mine[arranged.visit[rows]] = True
            followers = followers[mine[arranged.follows[followers]]]
            self._take_some(rows, followers, taken)
        return taken

    def _number_copies(self, rows: Longs) -> None:
        """Give rows that left as one copy the same number: that of the first."""
        arranged = self._all
        out = arranged.coded("out")[arranged.order[rows]]
        shared = rows[(out >= 0) & self.forwarded[rows]]
        if not len(shared):
            return
        number = np.zeros(len(shared), np.int64)
        if "copy" in arranged.rows.column_names:
            copies = column(arranged.rows, "copy").fill_null(NOBODY)
            number = np.asarray(copies).astype(np.int64)[arranged.order[shared]]
        key = pair_codes(arranged.visit[shared], arranged.coded("out")[arranged.order[shared]])
        key = pair_codes(pair_codes(key, number_codes(arranged.at[shared])), number)
        first = np.zeros(int(key.max()) + 1, np.int64)
        first[key[::-1]] = shared[::-1]
        self.copy[shared] = first[key]
        there = arranged.coded("next_node")[arranged.order]
        self._doubt(arranged.visit[shared[there[shared] != there[self.copy[shared]]]])

    def _take_some(self, rows: Longs, followers: Longs, taken: Flags) -> None:
        """Find the copies that visits follow, where several left."""
        arranged = self._all
        rule = arranged.rule[followers]
        brokers = followers[rule == 3]
        if len(brokers):
            reached = np.isin(arranged.visit[rows], arranged.follows[brokers])
            taken[rows[reached & arranged.to_broker()[rows]]] = True
        told, guessed = followers[rule == 2], followers[rule == 4]
        others = np.append(arranged.follows[told], arranged.follows[brokers])
        self._doubt(np.intersect1d(others, arranged.follows[guessed]))
        self._take_told(rows, told, taken)
        if len(guessed):
            self._take_guessed(
                rows[np.isin(arranged.visit[rows], arranged.follows[guessed])], guessed, taken
            )

    def _take_told(self, rows: Longs, followers: Longs, taken: Flags) -> None:
        """Of the copies for one node, all are taken if as many visits there follow, or more."""
        arranged = self._all
        if not len(followers):
            return
        width = len(arranged.names) + 1
        next_node = arranged.next_nodes()[rows]
        there = rows[(next_node >= 0) & self.forwarded[rows]]
        key = arranged.visit[there] * width + arranged.next_nodes()[there]
        came = arranged.follows[followers] * width + arranged.node[followers]
        ways = np.unique(came)
        visits = np.bincount(np.searchsorted(ways, came), minlength=len(ways))
        place = np.minimum(np.searchsorted(ways, key), len(ways) - 1)
        known = ways[place] == key
        alone = self.copy[there] == there  # each copy once
        left = np.bincount(place[known & alone], minlength=len(ways))
        taken[there[known]] = True
        self._doubt(ways[visits < left] // width)

    def _take_guessed(self, rows: Longs, followers: Longs, taken: Flags) -> None:
        """Copies of which only routes tell: each visit takes one, by the names of recipients."""
        arranged = self._all
        self._doubt(arranged.visit[rows[arranged.given("next_node")[arranged.order[rows]]]])
        alone = self.copy[rows] == rows
        self._doubt(arranged.visit[rows[~alone]])
        whom = self.for_whom + 1
        width = int(whom.max()) + 1
        key = arranged.visit[rows] * width + whom[rows]
        parent = arranged.follows[followers]
        count = np.bincount(parent, minlength=len(arranged.first))
        by_parent = np.argsort(parent, kind="stable")
        for visit in np.flatnonzero(count > _IN_TURN).tolist():
            mine, theirs = (
                slice(*np.searchsorted(whose, [visit, visit + 1]).tolist())
                for whose in (arranged.visit[rows], parent[by_parent])
            )
            self._take_in_order(rows[mine], followers[by_parent[theirs]], taken)
        followers = followers[count[parent] <= _IN_TURN]
        rows, key = (values[count[arranged.visit[rows]] <= _IN_TURN] for values in (rows, key))
        parent = arranged.follows[followers]
        turn = ranks(number_codes(parent))  # followers of a visit, in causal order
        for now in range(int(turn.max(initial=NOBODY)) + 1):
            here = np.flatnonzero(count[arranged.visit[rows]] > now)
            rows, key, mine = rows[here], key[here], turn == now
            first = arranged.first[followers[mine]]
            which, steps = spread(first, arranged.count[followers[mine]])
            names = parent[mine][which] * width + whom[steps]
            faults = [~np.isin(key, names), ~self.forwarded[rows], taken[rows]]
            taken[_best_of(rows, arranged.visit[rows], faults)] = True

    def _take_in_order(self, rows: Longs, followers: Longs, taken: Flags) -> None:
        """The same for one visit that very many follow: each takes from a queue."""
        arranged, whom = self._all, self.for_whom
        queues: dict[tuple[int | None, bool], deque[int]] = {}
        for row in rows.tolist():
            for name in (int(whom[row]), None):
                queues.setdefault((name, bool(self.forwarded[row])), deque()).append(row)
        for follower in followers.tolist():
            first = arranged.first[follower]
            names = set(whom[first : first + arranged.count[follower]].tolist())
            ways = [(names, True), (names, False), ({None}, True), ({None}, False)]
            chosen = ([queues[n, left] for n in ns if (n, left) in queues] for ns, left in ways)
            best = next(found for found in chosen if found)
            for queue in best:
                while queue and taken[queue[0]]:
                    queue.popleft()
            heads = [queue[0] for queue in best if queue]
            if heads:
                taken[min(heads)] = True

    # Recipients

    @cached_property
    def for_whom(self) -> Longs:
        """A number for who is to get each row's copy; NOBODY where no name is known."""
        return self._whom[0]

    def names(self, rows: Longs) -> pa.Array:
        """Who is to get the copies of these rows; null where no name is known."""
        whom, names = self._whom
        return picked(names, whom[rows])

    @cached_property
    def _whom(self) -> tuple[Longs, pa.Array]:
        """For whom each row's copy is, as numbers, and the names that these stand for."""
        arranged = self._all
        rows = arranged.rows
        recipients = arranged.texts("recipient")
        names = last_names(encoded(column(rows, "onward")).dictionary)
        if recipients is None:
            recipients = pa.array([None] * rows.num_rows, pa.string()).dictionary_encode()
        found = encoded(recipients)
        from_routes = np.asarray(arranged.version == 1) & ~arranged.given("recipient")
        from_routes &= ~arranged.given("multicast_id")
        texts = pa.concat_arrays([found.dictionary, names]).dictionary_encode()
        number = np.append(codes(texts), NOBODY)
        count = len(found.dictionary)
        code = codes(found)
        told = np.where(code >= 0, number[code], NOBODY)
        guessed = number[count + codes(encoded(column(rows, "onward")))]
        return np.where(from_routes, guessed, told)[arranged.order], texts.dictionary


def _best_of(rows: Longs, visits: Longs, faults: list[Flags]) -> Longs:
    """Of the rows of each visit, the first with the least faults, which are in order of weight."""
    weight = np.zeros(len(rows), np.int64)
    for fault in faults:
        weight = weight * 2 + fault
    begins = np.flatnonzero(np.append(True, visits[1:] != visits[:-1]))
    least: Longs = np.minimum.reduceat(weight * len(rows) + np.arange(len(rows)), begins)
    return np.asarray(rows[least % len(rows)])
