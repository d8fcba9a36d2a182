"""The paths of messages as arrays, and the node to which each copy went.

A FORWARDED row has the address that a copy went to, not the node. The node is found by, in this
order: its name in the address; messages that only two nodes saw, with one copy; the node that most
messages to that address arrived at; and otherwise, for messages with very many copies, the order
in which copies were sent and arrived.

Rows of a path are in the order of time, and a node records what it sent after that has left. So the
next node may be first, and only what agrees with the above counts as a hop.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from waystation.core.multicast import ADDRESS_TYPE
from waystation.pipeline.report.arrays import (
    BROADCAST,
    ELSEWHERE,
    Array,
    elected,
    holds,
    longs,
    looked_up,
    numbered,
    ranks,
)

_FEW: Final = 64  # with more copies times nodes, a message says little about where one went


class Paths:
    """The paths of a batch of traces, concatenated: an array for each column."""

    def __init__(self, batch: Any, nodes: dict[str, int]) -> None:
        self._nodes = nodes
        self._ids = batch.column("message_id")
        self._batch = batch
        paths = batch.column("path")
        lengths = pc.fill_null(pc.list_value_length(paths), 0).to_numpy(zero_copy_only=False)
        self._empty = int(np.count_nonzero(lengths == 0))
        steps = pc.list_flatten(paths)
        self._steps = steps
        self._trace = np.repeat(np.arange(len(lengths)), lengths)
        self._begin = np.repeat(np.cumsum(lengths) - lengths, lengths)  # where its trace begins
        self._node = numbered(steps.field("node"), nodes)
        self._at = longs(steps.field("at"))
        outcome = steps.field("outcome")
        self._outcome = outcome
        self._forwarded = holds(pc.equal(outcome, "FORWARDED"))
        self._delivered = holds(pc.equal(outcome, "DELIVERED"))
        self._ended = self._delivered | holds(pc.equal(outcome, "DROPPED"))
        self._goes_on = np.zeros(len(self._trace), bool)
        self._goes_on[:-1] = self._trace[1:] == self._trace[:-1]

    # Where copies arrived

    @cached_property
    def _next_node(self) -> Array:
        return np.append(self._node[1:], ELSEWHERE)

    @cached_property
    def _plain(self) -> Array:
        """Rows that sent a copy, and whose next row is at another node: one copy at a time."""
        stays = self._forwarded & self._goes_on & (self._next_node == self._node)
        single = np.ones(len(self._ids), bool)
        single[self._trace[stays]] = False
        leaves: Array = self._forwarded & self._goes_on & ~stays & single[self._trace]
        return leaves

    @cached_property
    def _sure(self) -> Array:
        """Rows that sent the only copy of a message that two nodes saw."""
        once = self._per_trace(self._forwarded) == 1
        two = (self._lowest != self._highest) & (
            (self._node == self._lowest) | (self._node == self._highest)
        )
        more = np.zeros(len(self._ids), bool)
        more[self._trace[~two]] = True
        sure: Array = self._forwarded & (once & ~more)[self._trace]
        return sure

    @cached_property
    def _lowest(self) -> Array:
        """The lowest code of a node in the same trace."""
        return self._of_trace(np.minimum)

    @cached_property
    def _highest(self) -> Array:
        return self._of_trace(np.maximum)

    def _of_trace(self, choose: np.ufunc) -> Array:
        begins = np.flatnonzero(self._begin == np.arange(len(self._begin)))
        found: Array = choose.reduceat(self._node, begins)
        return np.repeat(found, np.diff(np.append(begins, len(self._node))))

    @cached_property
    def _hop_codes(self) -> tuple[Array, list[str]]:
        encoded = pc.fill_null(self._steps.field("next_hop"), "").dictionary_encode()
        return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()

    @cached_property
    def _to(self) -> Array:
        """The node to which each row sent its copy."""
        codes, texts = self._hop_codes
        _, place = np.unique(self._node * np.int64(len(texts) + 1) + codes, return_inverse=True)
        to = np.array([self._named(text) for text in texts], dtype=np.int64)[codes]
        to[to == self._node] = ELSEWHERE
        to = np.where(to == ELSEWHERE, self._surely(place), to)
        to = np.where(to == ELSEWHERE, self._likely(place, to), to)
        return np.where((to == ELSEWHERE) & ~self._few, self._in_order, to)

    def _surely(self, place: Array) -> Array:
        """Where copies to an address went, according to messages that two nodes saw."""
        other = self._lowest + self._highest - self._node
        votes = np.ones(int(np.count_nonzero(self._sure)))
        return looked_up(place, *elected(place[self._sure], other[self._sure], votes))

    def _likely(self, place: Array, to: Array) -> Array:
        """Where copies to an address went, according to where most of their messages arrived.

        Nodes to which other copies of the message went do not count. The order of arrival
        decides between nodes that occur equally often.
        """
        sent, came = self._meetings(self._forwarded & (to == ELSEWHERE))
        explained = self._keyed(to)[self._forwarded & (to >= 0)]  # by another copy
        possible = self._node[sent] != self._node[came]
        possible &= ~np.isin(self._keyed(self._node)[came], explained)
        sent, came = sent[possible], came[possible]
        votes = 10.0 + (self._in_order[sent] == self._node[came])
        copies = np.bincount(place[self._forwarded & self._few], minlength=int(place.max()) + 1)
        known, nodes = elected(place[sent], self._node[came], votes, least=copies * 5.0)
        return looked_up(place, known, nodes)

    def _meetings(self, chosen: Array) -> tuple[Array, Array]:
        """Each of these rows with each row by which its message entered a node."""
        came = np.flatnonzero(self._arrived)
        sent = np.flatnonzero(chosen & self._few)
        number = self._per_trace(self._arrived)[self._trace[sent]]
        first = np.searchsorted(self._trace[came], self._trace[sent])
        begin = np.repeat(first - (np.cumsum(number) - number), number)
        return np.repeat(sent, number), came[begin + np.arange(number.sum())]

    @cached_property
    def _few(self) -> Array:
        """Rows of messages with so few copies and nodes that all pairs can be considered."""
        size = self._per_trace(self._arrived) * self._per_trace(self._forwarded)
        few: Array = (size <= _FEW)[self._trace]
        return few

    def _per_trace(self, chosen: Array) -> Array:
        return np.bincount(self._trace[chosen], minlength=len(self._ids))

    def _named(self, address: str) -> int:
        """The node that an address names: as a participant, in a group, or by its topic."""
        type, mark, data = address.rpartition("#")
        if mark and type == str(ADDRESS_TYPE):
            return BROADCAST
        return self._nodes.get(data.rpartition("/")[2], ELSEWHERE)

    @cached_property
    def _arrived(self) -> Array:
        """Rows with which a message enters a node from another one."""
        changed = np.append(False, self._node[1:] != self._node[:-1])
        arrived: Array = changed & np.append(False, self._goes_on[:-1])
        return arrived

    @cached_property
    def _opening(self) -> Array:
        """Rows of the node where a path begins, up to where it leaves that node."""
        opening: Array = ranks(self._arrived, self._begin) == 0
        return opening

    @cached_property
    def _early(self) -> Array:
        """Traces that begin where the message ended: it cannot have been sent on from there."""
        begins_on = np.zeros(len(self._ids), bool)
        begins_on[self._trace[self._opening & ~self._ended]] = True
        goes_on = np.zeros(len(self._ids), bool)
        goes_on[self._trace[self._arrived]] = True
        early: Array = goes_on & ~begins_on
        return early

    @cached_property
    def _came_next(self) -> Array:
        """Rows whose copy arrived in the next row."""
        came: Array = self._plain & (self._to == self._next_node)
        return came

    @cached_property
    def _in_order(self) -> Array:
        """The n-th copy of a message arrived at the n-th node that it entered."""
        sent_key = self._keyed(ranks(self._forwarded, self._begin))
        come_key = self._keyed(ranks(self._arrived, self._begin))[self._arrived]
        found = looked_up(sent_key, come_key, self._node[self._arrived])
        found[~self._forwarded | (found == self._node)] = ELSEWHERE
        return found

    def _keyed(self, numbers: Array) -> Array:
        """A distinct number for each pair of trace and number."""
        keys: Array = self._trace * np.int64(1 << 32) + numbers
        return keys
