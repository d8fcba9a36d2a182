"""Ranges of time, [low, high) in microseconds: which of them contain which times and rows.

No rules of the domain are here.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from waystation.pipeline.kernels.columns import Flags, Longs, longs

_FEW: Final = 4


def meets(bounds: tuple[int, int], low: int, high: int) -> bool:
    """Whether a range may contain a value between the minimum and the maximum."""
    return bounds[0] < high and low <= bounds[1]


def from_to(rows: pa.Table, name: str, low: int, high: int) -> pa.Table:
    """The rows with a time in a range, one by one."""
    instants = longs(rows, name)
    return rows.filter(pa.array((instants >= low) & (instants < high)))


def within(rows: pa.Table, name: str, low: int, high: int, plain: pa.Schema) -> pa.Table:
    """The rows with a time in a range, as one slice, or as in `plain` if they are few.

    Rows are nearly in the order of time, so most of them are one slice, which needs no check row
    by row: that takes much longer with lists and strings.
    """
    instants = longs(rows, name)
    inside = (instants >= low) & (instants < high)
    found = np.flatnonzero(inside)
    if len(found) == rows.num_rows:
        return rows
    if len(found) * _FEW < rows.num_rows:
        # Plain strings: the dictionary of all rows is too large for so few.
        return rows.take(pa.array(found)).cast(plain)
    outside = np.flatnonzero(~inside)
    edges = np.concatenate([[-1], outside, [len(inside)]])
    longest = int(np.argmax(np.diff(edges)))
    begin, end = int(edges[longest]) + 1, int(edges[longest + 1])
    parts = [
        rows.take(pa.array(found[found < begin])),
        rows.slice(begin, end - begin),
        rows.take(pa.array(found[found >= end])),
    ]
    return pa.concat_tables([part for part in parts if part.num_rows]).combine_chunks()


def reached_by(spans: list[tuple[int, int]], instants: Longs) -> Flags:
    """Which of these consecutive ranges contain one of the times."""
    found = np.zeros(len(spans), np.bool_)
    lows = np.array([low for low, _ in spans], np.int64)
    found[np.unique(np.searchsorted(lows, instants, "right") - 1)] = True
    return found


def runs_of(spans: list[tuple[int, int]], reached: Flags) -> list[tuple[int, int]]:
    """Adjacent ranges that were reached, merged."""
    found: list[tuple[int, int]] = []
    for (low, high), is_reached in zip(spans, reached.tolist(), strict=True):
        if is_reached and found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        elif is_reached:
            found.append((low, high))
    return found
