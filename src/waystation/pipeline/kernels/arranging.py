"""The steps of many messages as visits, in causal order: what traces are made of (SP-8).

Rows come in any order. They are brought into that of (message, length of the return route, time of
entry), in which following.py finds what each visit follows, and then into that of paths. Nearly all
messages are plain chains, for which the two are the same. No Spark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.outcome import Outcome
from waystation.pipeline.kernels.columns import (
    Flags,
    Longs,
    Words,
    are,
    codes,
    column,
    encoded,
    flags,
    longs,
    spread,
    word_codes,
)
from waystation.pipeline.kernels.evidence import Facts
from waystation.pipeline.kernels.following import NONE, Followed, Routes, Visits, follow


class Arranged:
    """Steps and visits in causal order, message by message."""

    def __init__(self, rows: pa.Table, facts: Facts) -> None:
        self.rows, self.facts = rows, facts
        self.high, self.low = words(rows, "high"), words(rows, "low")
        self._message = word_codes(self.high, self.low)
        texts = encoded(column(rows, "node"))
        by_name = np.asarray(pc.array_sort_indices(texts.dictionary))
        rank = np.empty(len(by_name), np.int64)
        rank[by_name] = np.arange(len(by_name))
        self.names = texts.dictionary.take(pa.array(by_name))
        self._node = rank[codes(texts)]
        self._received = longs(rows, "received_at")
        self._incarnation = longs(rows, "incarnation")
        self._ahead = facts.ahead(self.names, self._node, self._received)
        self._corrected = self._received - self._ahead
        self._back = Routes.of(encoded(column(rows, "back")))
        self._onward = Routes.of(encoded(column(rows, "onward")))
        order = self._sorted(self._back.lengths)
        visits = self._visits(order)
        found = follow(visits)
        self._put_in_order(order, visits, found)

    def _sorted(self, length: Longs) -> Longs:
        """The order by message, length of return route and time; of equal ones by the rest."""
        since = self._corrected - self._corrected.min()
        span, width = int(since.max()) + 1, int(length.max()) + 1
        if (int(self._message.max()) + 1) * span * width >= 2**63:
            return self._sorted_by_all(np.arange(len(since)), length)
        keys = (self._message * width + length) * span + since
        order: Longs = np.argsort(keys)
        keys = keys[order]
        same = keys[1:] == keys[:-1]
        if same.any():
            shared = np.flatnonzero(np.append(same, False) | np.append(False, same))
            order[shared] = self._sorted_by_all(order[shared], length)
        return order

    def _sorted_by_all(self, rows: Longs, length: Longs) -> Longs:
        keys = (
            longs(self.rows, "seq")[rows],
            self._received[rows],
            self._incarnation[rows],
            self._node[rows],
            self._corrected[rows],
            length[rows],
            self._message[rows],
        )
        return np.asarray(rows[np.lexsort(keys)])

    def _visits(self, order: Longs) -> Visits:
        """The visits of rows in this order."""
        rows = self.rows
        changed = np.zeros(len(order) - 1, np.bool_)
        for key in (self._message, self._node, self._incarnation, self._received):
            ordered = key[order]
            changed |= ordered[1:] != ordered[:-1]
        first = np.flatnonzero(np.append(True, changed))
        origin = order[first]
        outcome = column(rows, "outcome")
        forwarded = are(outcome, Outcome.FORWARDED)[order]
        delivered = are(outcome, Outcome.DELIVERED)[order]
        via, out = self.texts("via"), self.texts("out")
        leaves = self._to_broker(out)[order] & forwarded
        return Visits(
            message=self._message[origin],
            first=first,
            count=np.diff(np.append(first, len(order))),
            node=self._node[origin],
            incarnation=self._incarnation[origin],
            received=self._received[origin],
            corrected=self._corrected[origin],
            version=self.version[origin],
            from_global=flags(rows, "from_global")[origin],
            has_via=self.given("via")[origin],
            from_node=self._as_nodes("from_node")[origin],
            has_origin=self.given("origin")[origin],
            came_globally=self._to_broker(via)[origin],
            left_globally=_any_of(leaves, first),
            forwarded=_any_of(forwarded, first),
            delivered=_any_of(delivered, first),
            next_node=self._as_nodes("next_node")[order],
            is_forwarded=forwarded,
            back=self._back.at(origin),
            onward=self._onward.at(origin),
        )

    def _put_in_order(self, order: Longs, visits: Visits, found: Followed) -> None:
        """Keep rows and visits in causal order (SP-8); those of plain messages are in it."""
        self.first, self.count, self.depth = visits.first, visits.count, found.depth
        self.follows, self.rule, self.order = found.follows, found.rule, order
        visit = np.arange(len(visits))
        others = np.flatnonzero(~found.plain)
        if len(others):
            keys = (
                visits.received[others],
                visits.incarnation[others],
                visits.node[others],
                visits.corrected[others],
                found.depth[others],
                visits.message[others],
            )
            visit[others] = others[np.lexsort(keys)]
            place = np.empty(len(visit) + 1, np.int64)
            place[visit], place[-1] = np.arange(len(visit)), NONE
            self.follows = place[found.follows[visit]]
            self.rule, self.depth = found.rule[visit], found.depth[visit]
            _, rows = spread(visits.first[visit], visits.count[visit])
            self.order = order[rows]
            self.count = visits.count[visit]
            self.first = np.cumsum(self.count) - self.count
        origin = self.order[self.first]
        self.node, self.corrected = self._node[origin], self._corrected[origin]
        message = self._message[origin]
        begins = np.append(True, message[1:] != message[:-1])
        self.begin = np.flatnonzero(begins)  # the first visit of each message
        self.message = np.cumsum(begins) - 1  # of each visit, in order
        self.visit = np.repeat(np.arange(len(origin)), self.count)  # of each row
        self.ahead = self._ahead[self.order]
        self.at = longs(self.rows, "at")[self.order]

    # Columns of the rows as they came

    @property
    def version(self) -> Longs:
        """The version of each row's file."""
        return np.asarray(column(self.rows, "version")).astype(np.int64)

    def texts(self, name: str) -> pa.DictionaryArray | None:
        """A column of strings; None if all are null."""
        if name not in self.rows.column_names:
            return None
        return encoded(column(self.rows, name))

    def given(self, name: str) -> Flags:
        """Which rows have a value."""
        texts = self.texts(name)
        if texts is None:
            return np.zeros(self.rows.num_rows, np.bool_)
        return np.asarray(pc.is_valid(texts.indices))

    def coded(self, name: str) -> Longs:
        """A number for each distinct string of a column; -1 for null."""
        texts = self.texts(name)
        return np.full(self.rows.num_rows, NONE) if texts is None else codes(texts)

    def _as_nodes(self, name: str) -> Longs:
        """The nodes that a column names, as the nodes of visits; -1 for none of these."""
        texts = self.texts(name)
        if texts is None:
            return np.full(self.rows.num_rows, NONE)
        known = pc.fill_null(pc.index_in(texts.dictionary, value_set=self.names), NONE)
        return np.append(np.asarray(known).astype(np.int64), NONE)[codes(texts)]

    def next_nodes(self) -> Longs:
        """The next node of each row in order, as the nodes of visits; -1 for none of these."""
        return self._as_nodes("next_node")[self.order]

    def _to_broker(self, sessions: Any) -> Flags:
        if sessions is None:
            return np.zeros(self.rows.num_rows, np.bool_)
        return self.facts.to_broker(self.names, self._node, self._incarnation, sessions)

    def to_broker(self) -> Flags:
        """Which rows, in order, left over a session of role `global`."""
        return self._to_broker(self.texts("out"))[self.order]

    def lengths(self) -> Longs:
        """The length of each visit's return route."""
        return self._back.at(self.order[self.first]).lengths

    def onward(self) -> Longs:
        """The code of each visit's onward route."""
        return self._onward.code[self.order[self.first]]


def _any_of(rows: Flags, first: Longs) -> Flags:
    """Which visits have one of these rows."""
    if len(first) == len(rows):
        return rows
    return np.asarray(np.logical_or.reduceat(rows, first))


def words(rows: pa.Table, name: str) -> Words:
    """A column of ids' halves."""
    return np.asarray(column(rows, name))
