"""Arithmetic on columns: codes for names, ranks, lookups, counts. Arrow and numpy, no tables."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.journal.schema import INSTANT

Array: TypeAlias = npt.NDArray[Any]

ELSEWHERE: Final = -1
"""Stands for no node: no journal shows where a copy arrived."""

BROADCAST: Final = -2
"""Stands for no node: a copy was published on a broker."""


class Found(Struct):
    """The number of messages that something happened to, and two examples."""

    messages: int = 0
    first: str | None = None
    last: str | None = None

    def add(self, messages: int, first: str | None, last: str | None) -> None:
        """Count more messages."""
        self.messages += messages
        known = [id for id in (self.first, self.last, first, last) if id is not None]
        if known:
            self.first, self.last = min(known), max(known)

    @property
    def examples(self) -> list[str]:
        """Up to two ids."""
        return sorted({id for id in (self.first, self.last) if id is not None})


def numbered(names: Any, known: dict[str, int]) -> Array:
    """Codes for names, the same in every batch."""
    encoded = pc.fill_null(names, "").dictionary_encode()
    numbers = [known.setdefault(name, len(known)) for name in encoded.dictionary.to_pylist()]
    found: Array = np.array(numbers or [0], dtype=np.int64)[encoded.indices.to_numpy()]
    return found


def longs(instants: Any) -> Array:
    """Timestamps as microseconds since the epoch."""
    at = instants.cast(INSTANT, safe=False).cast(pa.int64())
    numbers: Array = pc.fill_null(at, 0).to_numpy(zero_copy_only=False)
    return numbers


def holds(flags: Any) -> Array:
    """Booleans as a mask; null is false."""
    mask: Array = pc.fill_null(flags, False).to_numpy(zero_copy_only=False)
    return mask


def ranks(chosen: Array, begin: Array) -> Array:
    """The number of selected rows so far, counted from the row that `begin` gives."""
    total = np.append(0, np.cumsum(chosen))
    ranks: Array = total[1:] - total[begin]
    return ranks


def elected(
    place: Array, node: Array, votes: Array, least: Array | None = None
) -> tuple[Array, Array]:
    """The node with the most votes for each place, at `least` this many; sorted by place."""
    if not len(place):
        return place, node
    key = place * (int(node.max()) + 1) + node
    _, index, pairs = np.unique(key, return_index=True, return_inverse=True)
    places, nodes, votes = place[index], node[index], np.bincount(pairs, votes)
    if least is not None:
        enough = votes >= least[places]
        places, nodes, votes = places[enough], nodes[enough], votes[enough]
    order = np.lexsort((-nodes, votes, places))
    last = np.append(places[order][1:] != places[order][:-1], True)[: len(order)]
    return places[order][last], nodes[order][last]


def distinct(*columns: Array) -> tuple[Array, Array]:
    """The first row of each combination of values, and how often it occurs.

    One number stands for a combination: sorting numbers is much faster than sorting rows.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max()) + 3) + column + 2
    _, index, numbers = np.unique(key, return_index=True, return_counts=True)
    return index, numbers


def looked_up(keys: Array, known: Array, values: Array) -> Array:
    """The value of each key; `known` is sorted."""
    if not len(known):
        return np.full(len(keys), ELSEWHERE, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    found: Array = np.where(known[at] == keys, values[at], ELSEWHERE)
    return found
