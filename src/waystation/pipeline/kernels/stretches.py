"""Running values within stretches of rows: the folds of a node, and the lives within them.

A stretch is a run of adjacent rows; the functions here compute what held so far in each. No
rules of the domain are here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from waystation.pipeline.kernels.columns import Flags, Longs, longs, numbered, stable_order

FOLDED_AT_ONCE: Final = 65_536
"""About this many events are folded together: few enough to fit into a core's cache."""


class Portion(NamedTuple):
    """Some complete folds: rows in the order of (key, incarnation, seq), and where folds begin.

    `order` leads back to the events.
    """

    order: Longs
    first: Flags
    incarnation: Longs
    key: Longs


def portions(events: pa.Table, key: Longs, at_once: int) -> Iterator[Portion]:
    """All folds of a node by key and incarnation, about `at_once` rows at a time."""
    seq = longs(events, "seq")
    numbers, lives = numbered(longs(events, "incarnation"))
    in_order = bool((np.diff(lives) >= 0).all() and _rises(seq, lives))
    fold = key * len(numbers) + lives
    order = stable_order(fold) if in_order else np.lexsort((seq, fold))
    fold = fold[order]
    first = np.append(True, fold[1:] != fold[:-1])
    for low, high in pairwise(_cuts(first, at_once)):
        own, life = np.divmod(fold[low:high], len(numbers))
        yield Portion(order[low:high], first[low:high], numbers[life], own)


def _cuts(first: Flags, at_once: int) -> list[int]:
    """The beginning of a fold about every `at_once` rows, and the end of all."""
    begins = np.flatnonzero(first)
    wanted = np.arange(0, len(first), at_once)
    cuts = np.unique(begins[np.searchsorted(begins, wanted, "right") - 1])
    return [*cuts.tolist(), len(first)]


def _rises(seq: Longs, lives: Longs) -> bool:
    return bool(((seq[1:] > seq[:-1]) | (lives[1:] > lives[:-1])).all())


def latest_so_far(at: Longs, first: Flags) -> Longs:
    """The latest time so far in each fold: within a fold, time never goes backwards."""
    if bool(((at[1:] >= at[:-1]) | first[1:]).all()):
        return at
    return running_max(at, first)


def running_max(values: Longs, begins: Flags) -> Longs:
    """The maximum since the last beginning."""
    distinct, rank = np.unique(values, return_inverse=True)
    found: Longs = distinct[running_rank(rank, np.cumsum(begins), len(distinct))]
    return found


def running_rank(rank: Longs, life: Longs, ranks: int) -> Longs:
    """The highest rank so far in each life; life numbers increase, and ranks are below `ranks`."""
    floor = life * ranks  # each life is above all before it
    found: Longs = np.maximum.accumulate(floor + rank) - floor
    return found


def running_any(flags: Flags, life: Longs) -> Flags:
    """Whether any row was true so far in each life."""
    if not flags.any():
        return flags.copy()
    return running_rank(flags.astype(np.int64), life, 2).astype(np.bool_)


def before(values: Any) -> Any:
    """The previous row of each row; the first has itself."""
    return np.append(values[:1], values[:-1])


def after(values: Any) -> Any:
    """The next row of each row; the last has itself."""
    return np.append(values[1:], values[-1:])
