"""The paths of messages as arrays: their visits, which follows which, and where each copy went.

A path has the steps of each visit together, and a visit never stands before the one that it
follows. Who is at the other end of a session its node knows, and writes beside every copy. Rows of
version 1 name only the address that a copy went to: there that stands for whoever has it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc

from waystation.core.multicast import ADDRESS_TYPE
from waystation.core.visits import Fate
from waystation.report.arrays import (
    BROADCAST,
    ELSEWHERE,
    PLACES,
    Array,
    holds,
    longs,
    numbered,
)


class Paths:
    """The paths of a batch of traces, concatenated: an array for each column."""

    def __init__(self, batch: Any, nodes: dict[str, int], places: dict[str, int]) -> None:
        self._nodes = nodes
        self._places = places
        self._ids = batch.column("message_id")
        self._batch = batch
        paths = batch.column("path")
        lengths = pc.fill_null(pc.list_value_length(paths), 0).to_numpy(zero_copy_only=False)
        self._empty = int(np.count_nonzero(lengths == 0))
        steps = pc.list_flatten(paths)
        self._steps = steps
        self._trace = np.repeat(np.arange(len(lengths)), lengths)
        self._node = numbered(steps.field("node"), nodes)
        self._at = longs(steps.field("at"))
        outcome = steps.field("outcome")
        self._outcome = outcome
        self._forwarded = holds(pc.equal(outcome, "FORWARDED"))
        self._delivered = holds(pc.equal(outcome, "DELIVERED"))

    # Visits

    @cached_property
    def _received_at(self) -> Array:
        return longs(self._steps.field("received_at"))

    @cached_property
    def _first(self) -> Array:
        """The steps with which visits begin."""
        same = np.zeros(len(self._trace), bool)
        incarnation = pc.fill_null(self._steps.field("incarnation"), 0).to_numpy()
        columns = (self._trace, self._node, incarnation, self._received_at)
        same[1:] = np.all([column[1:] == column[:-1] for column in columns], axis=0)
        return np.flatnonzero(~same)

    @cached_property
    def _visit(self) -> Array:
        """The number of each step's visit."""
        begins = np.zeros(len(self._trace), np.int64)
        begins[self._first] = 1
        visit: Array = np.cumsum(begins) - 1
        return visit

    @cached_property
    def _follows(self) -> Array:
        """For each visit, the one that it follows; -1 if it is the first."""
        within = pc.fill_null(self._steps.field("follows"), -1).to_numpy(zero_copy_only=False)
        within = within[self._first]
        trace = self._trace[self._first]
        base = np.searchsorted(trace, trace)  # the first visit of the same trace
        follows: Array = np.where(within < 0, -1, base + within)
        return follows

    # Where copies went

    @cached_property
    def _hop_codes(self) -> tuple[Array, list[str]]:
        encoded = pc.fill_null(self._steps.field("next_hop"), "").dictionary_encode()
        return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()

    @cached_property
    def _to(self) -> Array:
        """Where each step sent its copy: a node, or an address that no node told to be its peer."""
        told = self._steps.field("next_node")
        known = pc.is_valid(told).to_numpy(zero_copy_only=False)
        to = numbered(told, self._nodes, skip=True)
        codes, texts = self._hop_codes
        unknown = np.flatnonzero(self._forwarded & ~known)
        places = {code: self._place(texts[code]) for code in np.unique(codes[unknown]).tolist()}
        to[unknown] = [places[code] for code in codes[unknown].tolist()]
        return to

    def _place(self, address: str) -> int:
        """A number for an address."""
        if not address:
            return ELSEWHERE
        if address.partition("#")[0] == str(ADDRESS_TYPE):
            return BROADCAST
        return PLACES - self._places.setdefault(address, len(self._places))

    @cached_property
    def _copies(self) -> Array:
        """The steps that sent a copy; what several receivers share counts once."""
        sent = np.flatnonzero(self._forwarded)
        keys = (self._at[sent], self._to[sent], self._visit[sent])
        order = np.lexsort(keys)
        new = np.ones(len(sent), bool)
        new[1:] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
        return np.sort(sent[order[new]])

    @cached_property
    def _vanished(self) -> Array:
        """Whether the copy of each step left, and the record shows that it did not arrive."""
        return holds(pc.equal(pc.list_flatten(self._batch.column("fates")), Fate.VANISHED.value))

    def _per_trace(self, chosen: Array) -> Array:
        return np.bincount(self._trace[chosen], minlength=len(self._ids))
