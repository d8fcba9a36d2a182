"""Of what a node's journal can tell: whether something that is not on it did not happen.

A node covers an instant if a record of the incarnation that ran then, or of a later one, lies five
seconds after it or later, no known loss of records spans it, and the message is among those that
the node kept. Before its first incarnation a node covers nothing.

A row `lost` spans the time from the record before it; one about an earlier incarnation, which its
successor wrote, spans the last moments of that one. A row `corrupt` spans all before it: nobody
knows where the damaged records were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias
from zlib import crc32

from msgspec import Struct

MARGIN: Final = 5_000_000
"""Microseconds: records this much later show that those before them were written."""

_LAST: Final = 2**63 - 1
_SAMPLE: Final = re.compile(r"\bsample=([0-9]*\.?[0-9]+)")
_ABOUT: Final = re.compile(r"incarnation ([0-9]{1,18}):")

Gap: TypeAlias = tuple[int, int]


class Life(Struct, frozen=True):
    """An incarnation of a node, as far as its records tell; times are microseconds."""

    incarnation: int
    begins: int
    latest: int  # its last record
    ends: int | None = None  # when it stopped, or the next began; None while it may run
    sample: float = 1.0  # the share of messages that it kept
    gaps: tuple[Gap, ...] = ()  # when records were lost
    stopped: bool = False  # whether it says that it ended


class NodeRow(Struct, frozen=True):
    """A row of `nodes`: what a journal tells about itself."""

    incarnation: int
    seq: int
    at: int
    kind: str
    detail: str | None = None


def is_sampled(message_id: str, share: float) -> bool:
    """Whether a node that keeps this share of messages keeps this one.

    >>> is_sampled("0" * 32, 1.0), is_sampled("0" * 32, 0.0)
    (True, False)
    """
    return crc32(message_id.encode()) < round(share * 2**32)


def covers(lives: Sequence[Life], at: int, message_id: str) -> bool:
    """Whether a node with these incarnations, in order, would have this message at this instant."""
    begun = [life for life in lives if life.begins <= at]
    if not begun:
        return False
    current = begun[-1]
    reached = max(life.latest for life in lives[len(begun) - 1 :])
    return (
        reached >= at + MARGIN
        and not any(since <= at <= until for since, until in current.gaps)
        and is_sampled(message_id, current.sample)
    )


def lives_of(
    records: Mapping[int, Gap], rows: Iterable[NodeRow], before: Callable[[int, int], int]
) -> list[Life]:
    """The incarnations of a node, in order.

    `records` are the first and the last record of each, whatever their table; `before` tells when
    the record before another was made, by its incarnation and seq.
    """
    told = sorted(rows, key=lambda row: (row.incarnation, -row.seq))  # the first of a kind counts
    starts = {row.incarnation: row for row in told if row.kind == "start"}
    stops = {row.incarnation: row.at for row in told if row.kind == "stop"}
    numbers = sorted(records)
    begins = {n: starts[n].at if n in starts else records[n][0] for n in numbers}
    gaps: dict[int, list[Gap]] = {}
    for row in told:
        whose = _about(row, begins)
        if row.kind == "lost" and whose == row.incarnation:
            gaps.setdefault(whose, []).append((before(whose, row.seq), row.at))
        elif row.kind == "lost":
            gaps.setdefault(whose, []).append((records[whose][1] - MARGIN, row.at))
        elif row.kind == "corrupt":
            gaps.setdefault(whose, []).append((begins[whose], row.at))
    return [
        Life(
            number,
            begins[number],
            max(begins[number], records[number][1]),
            stops.get(number, begins.get(following)),
            _sample(starts.get(number)),
            tuple(sorted(gaps.get(number, ()))),
            number in stops,
        )
        for number, following in pairwise([*numbers, -1])
    ]


def damages(records: Mapping[int, Gap], damaged: Iterable[int]) -> list[NodeRow]:
    """What will be told of incarnations with damaged records once these are sealed.

    >>> damages({3: (100, 200)}, [3, 4])
    [NodeRow(incarnation=3, seq=9223372036854775807, at=200, kind='corrupt', detail=None)]
    """
    return [
        NodeRow(number, _LAST, records[number][1], "corrupt")
        for number in damaged
        if number in records
    ]


def _about(row: NodeRow, known: Mapping[int, int]) -> int:
    """The incarnation that a row is about: the next tells what a crash left incomplete."""
    told = _ABOUT.match(row.detail or "")
    return int(told[1]) if told and int(told[1]) in known else row.incarnation


def _sample(start: NodeRow | None) -> float:
    told = _SAMPLE.search(start.detail or "") if start is not None else None
    return float(told[1]) if told else 1.0
