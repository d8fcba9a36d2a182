"""Ranges of seq: which rows of a node were read, and which are to be read.

Sets of integers, kept as sorted, separate intervals that include both ends;
each incarnation of a node has a set of its own. Arithmetic only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

FIRST: Final = -(2**63)
LAST: Final = 2**63 - 1

Set: TypeAlias = list[tuple[int, int]]
Spans: TypeAlias = dict[int, Set]
"""Seqs by incarnation."""


def united(intervals: Iterable[tuple[int, int]]) -> Set:
    """The union of these intervals.

    >>> united([(5, 9), (1, 2), (3, 3), (8, 12)])
    [(1, 3), (5, 12)]
    """
    found: Set = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def common(one: Set, other: Set) -> Set:
    """The intersection of two sets.

    >>> common([(1, 5), (8, 9)], [(4, 8)])
    [(4, 5), (8, 8)]
    """
    found: Set = []
    here = there = 0
    while here < len(one) and there < len(other):
        (low, high), (begin, end) = one[here], other[there]
        if low <= end and begin <= high:
            found.append((max(low, begin), min(high, end)))
        if high < end:
            here += 1
        else:
            there += 1
    return found


def without(one: Set, other: Set) -> Set:
    """The first set without the second.

    >>> without([(1, 9)], [(0, 1), (4, 5)])
    [(2, 3), (6, 9)]
    """
    gaps: Set = []
    begin = FIRST
    for low, high in other:
        if begin < low:
            gaps.append((begin, low - 1))
        begin = high + 1
    if begin <= LAST:
        gaps.append((begin, LAST))
    return common(one, gaps)


def by_incarnation(places: Iterable[tuple[int, int, int]]) -> Spans:
    """Sets from intervals, each with its incarnation in front."""
    found: dict[int, list[tuple[int, int]]] = {}
    for incarnation, low, high in places:
        found.setdefault(incarnation, []).append((low, high))
    return {incarnation: united(intervals) for incarnation, intervals in sorted(found.items())}


def new_spans(end: Spans, start: Spans) -> Spans:
    """The difference of two sets, incarnation by incarnation."""
    found = {number: without(spans, start.get(number, [])) for number, spans in end.items()}
    return {number: spans for number, spans in found.items() if spans}


def common_spans(one: Spans, other: Spans) -> Spans:
    """The intersection of two sets, incarnation by incarnation."""
    found = {number: common(spans, other.get(number, [])) for number, spans in one.items()}
    return {number: spans for number, spans in found.items() if spans}
