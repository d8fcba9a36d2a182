"""Arithmetic on columns: codes for names, and counts. Arrow and numpy, no tables."""

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
"""Stands for no node: no record says where a copy went."""

BROADCAST: Final = -2
"""Stands for no node: a copy was published on a broker."""

PLACES: Final = -3
"""And below: addresses of which no record says whose they are."""


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


def numbered(names: Any, known: dict[str, int], *, skip: bool = False) -> Array:
    """Codes for names, the same in every batch; null is one too, or with `skip` ELSEWHERE."""
    encoded = pc.fill_null(names, "").dictionary_encode()
    numbers = [
        ELSEWHERE if skip and not name else known.setdefault(name, len(known))
        for name in encoded.dictionary.to_pylist()
    ]
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


def distinct(*columns: Array) -> tuple[Array, Array]:
    """The first row of each combination of values, and how often it occurs.

    One number stands for a combination: sorting numbers is much faster than sorting rows.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        low = int(column.min())
        key = key * (int(column.max()) - low + 1) + column - low
    _, index, numbers = np.unique(key, return_index=True, return_counts=True)
    return index, numbers
