"""Spans of time, [low, high) in microseconds: which of them instants fall into, and which rows.

Only that; no rule of the domain lives here.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from waystation.pipeline.columns import Flags, Longs, longs

_FEW: Final = 4


def meets(bounds: tuple[int, int], low: int, high: int) -> bool:
    """Whether a span may hold a value from the least to the greatest."""
    return bounds[0] < high and low <= bounds[1]


def from_to(rows: pa.Table, name: str, low: int, high: int) -> pa.Table:
    """The rows with an instant of a span, one by one."""
    instants = longs(rows, name)
    return rows.filter(pa.array((instants >= low) & (instants < high)))


def within(rows: pa.Table, name: str, low: int, high: int, plain: pa.Schema) -> pa.Table:
    """The rows with an instant of a span, in one piece, or as `plain` has them if they are few.

    Rows come nearly in the order of time, so most of them are one stretch, which is not looked at
    row by row: that takes much longer where there are lists and texts.
    """
    instants = longs(rows, name)
    inside = (instants >= low) & (instants < high)
    found = np.flatnonzero(inside)
    if len(found) == rows.num_rows:
        return rows
    if len(found) * _FEW < rows.num_rows:
        # Texts are written out: the distinct ones of all rows are too many for so few.
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
    """Which of these spans, one after the other, hold one of the instants."""
    found = np.zeros(len(spans), np.bool_)
    lows = np.array([low for low, _ in spans], np.int64)
    found[np.unique(np.searchsorted(lows, instants, "right") - 1)] = True
    return found


def runs_of(spans: list[tuple[int, int]], reached: Flags) -> list[tuple[int, int]]:
    """Neighbouring spans that were reached, put together."""
    found: list[tuple[int, int]] = []
    for (low, high), is_reached in zip(spans, reached.tolist(), strict=True):
        if is_reached and found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        elif is_reached:
            found.append((low, high))
    return found
