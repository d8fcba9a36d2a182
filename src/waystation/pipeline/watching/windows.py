"""The rows of `health` for some messages of one node: the same sums that Spark makes in steps.py.

Messages are tallied first: how many took how long, of each kind. A tally is small, since the same
few durations come again and again, and tallies can be added up; percentiles follow from it exactly,
and are those of Spark's `percentile` to the last bit. Arrow in, Arrow out; no Spark.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waystation.pipeline.columns import (
    Flags,
    Longs,
    coded_name,
    codes,
    column,
    instants,
    longs,
    repeated,
    taken,
)
from waystation.pipeline.health import sample
from waystation.pipeline.schema import BUILT, INSTANT, TEXT

Doubles: TypeAlias = npt.NDArray[np.float64]

WINDOW: Final = 60_000_000
"""Microseconds, as `health` has them by default."""

_KINDS: Final = ("outcome", "reason", "address_type")
_SUMS: Final = ("messages", "bytes")
TALLY: Final = pa.schema(
    {
        "window_start": INSTANT,
        **dict.fromkeys(_KINDS, TEXT),
        "milliseconds": pa.float64(),
        "messages": pa.int64(),
        "bytes": pa.int64(),
    }
)


def window_of(at: int) -> int:
    """When the window began that holds an instant."""
    return at - at % WINDOW


def tally(messages: pa.Table) -> pa.Table:
    """How many of these rows of `messages` took how long, by window and kind."""
    if not messages.num_rows:
        return TALLY.empty_table()
    samples = sample(messages.append_column("node", coded_name("", messages.num_rows)))
    at = longs(samples, "at")
    columns = {
        "window_start": instants(at - at % WINDOW),
        **{name: samples.column(name) for name in (*_KINDS, "milliseconds", "bytes")},
        "messages": pa.array(np.ones(len(at), np.int64)),
    }
    return added_up(pa.table(columns).select(TALLY.names))


def added_up(tallies: pa.Table) -> pa.Table:
    """Several tallies as one."""
    if not tallies.num_rows:
        return TALLY.empty_table()
    order, kinds, same = _sorted(tallies)
    starts = np.flatnonzero(kinds | ~same)
    firsts = order[starts]
    sums = [np.add.reduceat(longs(tallies, name)[order], starts) for name in _SUMS]
    columns = [taken(tallies, name, firsts) for name in TALLY.names if name not in _SUMS]
    columns += map(pa.array, sums)
    return pa.Table.from_arrays(columns, schema=TALLY)


def health_of(node: str, tallies: pa.Table) -> pa.Table:
    """The rows of `health` that these tallies come to."""
    if not tallies.num_rows:
        return BUILT["health"].empty_table()
    order, kinds, _ = _sorted(tallies)
    starts = np.flatnonzero(kinds)
    took = np.asarray(column(tallies, "milliseconds"))[order]
    counts = longs(tallies, "messages")[order]
    firsts, total = order[starts], np.add.reduceat(counts, starts)
    columns = [
        repeated(node, len(starts)),
        taken(tallies, "window_start", firsts),
        *(taken(tallies, name, firsts) for name in _KINDS),
        pa.array(total),
        pa.array(np.add.reduceat(longs(tallies, "bytes")[order], starts)),
        *(pa.array(_percentile(took, counts, total, share)) for share in (0.5, 0.99)),
    ]
    return pa.Table.from_arrays(columns, schema=BUILT["health"])


def _sorted(tallies: pa.Table) -> tuple[Longs, Flags, Flags]:
    """The order of (window, kind, duration), where each kind begins, and each equal duration."""
    keys = [longs(tallies, "window_start"), *(codes(column(tallies, name)) for name in _KINDS)]
    took = np.asarray(column(tallies, "milliseconds"))
    order = np.lexsort((took, *reversed(keys)))
    begins = np.zeros(len(order), np.bool_)
    begins[0] = True
    for key in keys:
        begins[1:] |= key[order][1:] != key[order][:-1]
    same = np.append(False, took[order][1:] == took[order][:-1])
    return order, begins, same


def _percentile(took: Doubles, counts: Longs, total: Longs, share: float) -> Doubles:
    """The percentile of each group: `took` stands `counts` times, `total` are those of a group."""
    upto, before = np.cumsum(counts), np.cumsum(total) - total
    position = (total - 1).astype(np.float64) * share
    lower, higher = np.floor(position), np.ceil(position)
    low = took[np.searchsorted(upto, before + lower.astype(np.int64), "right")]
    high = took[np.searchsorted(upto, before + higher.astype(np.int64), "right")]
    between = (higher - position) * low + (position - lower) * high
    return np.where((lower == higher) | (low == high), low, between)
