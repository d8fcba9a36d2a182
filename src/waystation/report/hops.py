"""Statistics over the paths of all messages: who sent to whom, how long it took, what was lost.

The table `traces` is read once, in batches. paths.py tells visits and copies apart; this module
counts. Messages between nodes themselves are counted as traffic, but not as losses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from waystation.core.address_types import USUAL_TYPES
from waystation.core.multicast import ADDRESS_TYPE
from waystation.report.arrays import Array, distinct, holds, numbered
from waystation.report.clocks import Corrections
from waystation.report.numbers import buckets_of
from waystation.report.paths import Paths
from waystation.report.reading import Tables
from waystation.report.suspects import Suspects
from waystation.report.times import Bins, positions

MOST_HOPS: Final = 8
WIDEST: Final = 10

_COLUMNS: Final = [
    *("message_id", "path", "fates", "latency_ms", "outcome", "reason", "complete"),
    *("lost_copies", "unknown_copies", "internal"),
]
_NAMES: Final = {str(number): name for name, number in USUAL_TYPES.items()} | {
    "0": "local",
    str(ADDRESS_TYPE): "multicast",
}


class Flow(NamedTuple):
    """The counts for the charts over time."""

    part: int
    node: str
    outcome: str
    reason: str | None


class Hops(Struct, dict=True):
    """All counts from the paths; nodes, types and outcomes by code."""

    nodes: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)  # addresses of unknown nodes
    journals: set[int] = field(default_factory=set)  # nodes with a step of their own
    types: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    sent: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # from, to, type
    vanished: Counter[tuple[int, int]] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)  # recipients that went without, by reason
    unknown: int = 0  # copies that left for where the record does not reach
    internal: int = 0  # losses of messages between nodes themselves
    travel: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # type, hop, bucket
    suspects: Suspects = field(default_factory=Suspects)
    deliveries: Counter[int] = field(default_factory=Counter)
    widest: list[tuple[int, str]] = field(default_factory=list)
    latency: Counter[tuple[int, int]] = field(default_factory=Counter)  # outcome, bucket
    flow: Counter[Flow] = field(default_factory=Counter)
    without_path: int = 0

    @cached_property
    def names(self) -> list[str]:
        """The names of the nodes, by code."""
        return list(self.nodes)


def follow(tables: Tables, nodes: Iterable[str], bins: Bins | None) -> Hops:
    """Read all traces; `bins` says whether and how outcomes are counted over time.

    `nodes` are those that are known to keep a journal.
    """
    hops = Hops({name: number for number, name in enumerate(sorted(nodes))})
    hops.journals.update(hops.nodes.values())
    clocks = Corrections.of(tables, hops.nodes)
    for batch in tables.batches("traces", _COLUMNS):
        _Counts(batch, hops, clocks).count(bins)
    return hops


class _Counts(Paths):
    """The paths of a batch, to be added to the earlier counts."""

    def __init__(self, batch: Any, hops: Hops, clocks: Corrections) -> None:
        super().__init__(batch, hops.nodes, hops.places)
        self._hops = hops
        self._clocks = clocks
        hops.without_path += self._empty

    def count(self, bins: Bins | None) -> None:
        """Add all counts of the batch."""
        self._count_latency()
        self._count_losses()
        self._count_deliveries()
        if len(self._trace):
            self._hops.journals.update(np.unique(self._node).tolist())
            self._count_links()
            self._count_travel()
            self._count_suspects()
        if bins is not None:
            self._count_flow(bins)

    @cached_property
    def _types(self) -> Array:
        codes, texts = self._hop_codes
        known = self._hops.types
        numbers = [known.setdefault(type_of(text), len(known)) for text in texts]
        return np.array(numbers or [0], dtype=np.int64)[codes]

    def _count_links(self) -> None:
        """Count the copies that were sent, and those that the record shows not to have arrived."""
        self._add(self._hops.sent, self._copies, self._node, self._to, self._types)
        lost = (self._numbers("lost_copies") > 0) & ~self._internal
        gone = self._copies[self._vanished[self._copies]]
        self._add(self._hops.vanished, gone[lost[self._trace[gone]]], self._node, self._to)

    def _numbers(self, name: str) -> Array:
        numbers: Array = pc.fill_null(self._batch.column(name), 0).to_numpy(zero_copy_only=False)
        return numbers

    @cached_property
    def _internal(self) -> Array:
        """Messages of nodes for themselves."""
        return holds(self._batch.column("internal"))

    def _count_losses(self) -> None:
        """As `traces` counts them: recipients that went without, by the reason of the last."""
        lost, internal = self._numbers("lost_copies"), self._internal
        self._hops.unknown += int(self._numbers("unknown_copies")[~internal].sum())
        self._hops.internal += int(lost[internal].sum())
        reasons: dict[str, int] = {}
        codes = numbered(self._batch.column("reason"), reasons)
        sums = np.bincount(codes[~internal], lost[~internal], minlength=len(reasons))
        for reason, number in zip(reasons, sums.tolist(), strict=True):
            if number:
                self._hops.lost[reason or "unknown"] += int(number)

    def _count_travel(self) -> None:
        """From a node to the next, from arrival to arrival, by corrected clocks."""
        later = np.flatnonzero(self._follows >= 0)
        here, former = self._first[later], self._first[self._follows[later]]
        taken = self._corrected(here) - self._corrected(former)
        depth = pc.fill_null(self._steps.field("depth"), 1).to_numpy(zero_copy_only=False)
        hop = np.minimum(np.maximum(depth[here], 1), MOST_HOPS)
        columns = (self._types_of_visits[self._follows[later]], hop, buckets_of(taken))
        self._add(self._hops.travel, np.arange(len(later)), *columns)

    def _corrected(self, rows: Array) -> Array:
        received = self._received_at[rows]
        return received - self._clocks.ahead(self._node[rows], received)

    @cached_property
    def _types_of_visits(self) -> Array:
        """The type of address that the first copy of each visit went to."""
        types = np.zeros(len(self._first), np.int64)
        types[self._visit[self._copies[::-1]]] = self._types[self._copies[::-1]]
        return types

    def _count_suspects(self) -> None:
        """Copies that arrived at a node which did not know the name."""
        dropped = holds(pc.equal(self._steps.field("reason"), "NO_ROUTE")) & ~self._forwarded
        visits = np.unique(self._visit[dropped])
        visits = visits[self._follows[visits] >= 0]
        here, former = self._first[visits], self._first[self._follows[visits]]
        ids = self._ids.take(pa.array(self._trace[here]))
        self._hops.suspects.add(ids, self._node[former], self._node[here])

    def _count_deliveries(self) -> None:
        each = self._per_trace(self._delivered)
        values, numbers = np.unique(each, return_counts=True)
        self._hops.deliveries.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
        largest = np.flatnonzero(each >= max(2, np.sort(each)[-WIDEST:][0]))
        named = self._ids.take(pa.array(largest)).to_pylist()
        wide = zip(each[largest].tolist(), named, strict=True)
        self._hops.widest = sorted(
            [*self._hops.widest, *wide], key=lambda item: (-item[0], item[1])
        )[:WIDEST]

    def _count_latency(self) -> None:
        """From the first arrival of a message to its last delivery, by its outcome."""
        complete = np.flatnonzero(holds(self._batch.column("complete")))
        latency = pc.fill_null(self._batch.column("latency_ms"), 0.0)
        taken = latency.to_numpy(zero_copy_only=False) * 1_000
        outcomes = numbered(self._batch.column("outcome"), self._hops.outcomes)
        self._add(self._hops.latency, complete, outcomes, buckets_of(taken))

    @staticmethod
    def _add(counter: Counter[Any], rows: Array, *columns: Array) -> None:
        """Count these rows by the values of the columns."""
        if not len(rows):
            return
        chosen = [column[rows] for column in columns]
        index, numbers = distinct(*chosen)
        keys = zip(*(column[index].tolist() for column in chosen), strict=True)
        for key, number in zip(keys, numbers.tolist(), strict=True):
            counter[key] += number

    def _count_flow(self, bins: Bins) -> None:
        grouped = (
            pa.table(
                {
                    "part": positions(bins, self._at),
                    "node": self._steps.field("node"),
                    "outcome": self._outcome,
                    "reason": self._steps.field("reason"),
                }
            )
            .group_by(["part", "node", "outcome", "reason"])
            .aggregate([([], "count_all")])
        )
        for row in grouped.to_pylist():
            key = Flow(row["part"], row["node"], row["outcome"], row["reason"])
            self._hops.flow[key] += row["count_all"]


def type_of(address: str) -> str:
    """The type of an address, by its usual name if it has one.

    >>> type_of("1#10.0.0.1:4000"), type_of("7#broker"), type_of("echo"), type_of("99#x")
    ('tcp', 'mqtt', 'local', '99')
    """
    type, mark, _ = address.partition("#")
    return type_named(type if mark else "0") if address else "none"


def type_named(type: str) -> str:
    """A type by its usual name; others are unchanged."""
    return _NAMES.get(type, type)
