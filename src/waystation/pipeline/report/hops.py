"""Statistics over the paths of all messages: who sent to whom, how long it took, what was lost.

The table `traces` is read once, in batches. paths.py finds where each copy went; this module
counts.
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
from waystation.pipeline.report.arrays import (
    Array,
    distinct,
    holds,
    numbered,
    ranks,
)
from waystation.pipeline.report.numbers import buckets_of
from waystation.pipeline.report.paths import Paths
from waystation.pipeline.report.reading import Tables
from waystation.pipeline.report.suspects import Suspects
from waystation.pipeline.report.times import Bins, positions

MOST_HOPS: Final = 8
WIDEST: Final = 10

_COLUMNS: Final = ["message_id", "path", "latency_ms", "outcome", "complete"]
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
    types: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    sent: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # from, to, type
    vanished: Counter[tuple[int, int]] = field(default_factory=Counter)
    travel: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # type, hop, bucket
    early: int = 0  # messages that ended before they were sent on
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

    `nodes` are the known ones, so that addresses which name them are recognised.
    """
    hops = Hops({name: number for number, name in enumerate(sorted(nodes))})
    for batch in tables.batches("traces", _COLUMNS):
        _Counts(batch, hops).count(bins)
    return hops


class _Counts(Paths):
    """The paths of a batch, to be added to the earlier counts."""

    def __init__(self, batch: Any, hops: Hops) -> None:
        super().__init__(batch, hops.nodes)
        self._hops = hops
        hops.without_path += self._empty

    def count(self, bins: Bins | None) -> None:
        """Add all counts of the batch."""
        self._count_latency()
        self._count_deliveries()
        if len(self._trace):
            self._count_links()
            self._count_travel()
            self._count_suspects()
            self._hops.early += int(np.count_nonzero(self._early))
        if bins is not None:
            self._count_flow(bins)

    @cached_property
    def _types(self) -> Array:
        codes, texts = self._hop_codes
        known = self._hops.types
        numbers = [known.setdefault(type_of(text), len(known)) for text in texts]
        return np.array(numbers or [0], dtype=np.int64)[codes]

    def _count_links(self) -> None:
        """Count the copies that were sent, and those that arrived nowhere.

        That a message began at a node does not show that a copy arrived there; that it ended does.
        It began elsewhere if no copy went to some node: that one recorded its part late.
        """
        sent = np.flatnonzero(self._forwarded)
        self._add(self._hops.sent, sent, self._node, self._to, self._types)
        here, there = self._keyed(self._node), self._keyed(self._to)[sent]
        came = np.isin(there, here[~self._opening | self._ended])
        beginner = self._node == self._node[self._begin]
        elsewhere = self._per_trace(~beginner & ~np.isin(here, there)) > 0
        lost = ~came & (~elsewhere[self._trace[sent]] | ~np.isin(there, here))
        self._add(self._hops.vanished, sent[lost & (self._to[sent] >= 0)], self._node, self._to)

    def _count_travel(self) -> None:
        rows = np.flatnonzero(self._came_next)
        taken = self._at[rows + 1] - self._at[rows]
        hop = np.minimum(ranks(self._forwarded, self._begin)[rows], MOST_HOPS)
        columns = (self._types[rows], hop, buckets_of(taken))
        self._add(self._hops.travel, np.arange(len(rows)), *columns)

    def _count_suspects(self) -> None:
        """Copies that arrived at a node which did not know the name."""
        dropped = holds(pc.equal(self._steps.field("reason"), "NO_ROUTE")) & ~self._forwarded
        rows = np.flatnonzero(self._came_next & np.append(dropped[1:], False))
        ids = self._ids.take(pa.array(self._trace[rows]))
        self._hops.suspects.add(ids, self._node[rows], self._next_node[rows])

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
        """From the first row of a message to the last, by its outcome."""
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
