"""Time axes: how a time range is divided into equal bins, and the labels of the axis.

Microseconds since the epoch in, UTC out; the clock of this machine is never used.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow.compute as pc
from msgspec import Struct

from waystation.report.reading import Expression, micros

MILLISECOND: Final = 1_000
SECOND: Final = 1_000 * MILLISECOND
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

MOST_BINS: Final = 60

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STEPS: Final = (
    *(number * MILLISECOND for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(number * SECOND for number in (1, 2, 5, 10, 15, 30)),
    *(number * MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * HOUR for number in (1, 2, 3, 6, 12)),
    *(number * DAY for number in (1, 2, 7, 14, 28, 91, 364, 3_640, 36_400, 364_000)),
)


class Band(Struct, frozen=True):
    """A stretch of time in which something went wrong, and what."""

    start: int
    end: int
    text: str


class Bins(Struct, frozen=True):
    """Equal bins of a time range: `[start, start + width)` and so on, `count` of them.

    >>> bins = Bins.over(0, 3_599 * SECOND)
    >>> bins.count, bins.width == MINUTE
    (60, True)
    """

    start: int
    width: int
    count: int
    bands: tuple[Band, ...] = ()  # what charts over this time show behind their figures

    @classmethod
    def over(cls, first: int, last: int, *, at_least: int = 0, fewest: int = 1) -> Bins:
        """At most as many bins as a chart can show, of a common width."""
        for width in _STEPS:
            start = first - first % width
            count = (last - start) // width + 1
            if width >= at_least and count <= MOST_BINS:
                return cls(start, width, max(count, fewest))
        return cls(first, last - first + 1, 1)

    @property
    def end(self) -> int:
        """The end of the last bin."""
        return self.start + self.width * self.count

    def number(self, column: str) -> Expression:
        """The bin of each time in a column; only for those `within`."""
        return pc.divide(pc.subtract(micros(column), pc.scalar(self.start)), pc.scalar(self.width))

    def within(self, column: str) -> Expression:
        """Whether the times of a column are in the range."""
        instant = micros(column)
        return (instant >= pc.scalar(self.start)) & (instant < pc.scalar(self.end))

    def said(self, number: int) -> str:
        """When a bin begins, as precisely as its width requires."""
        return clock(self.start + number * self.width, self.width)


class Tick(Struct, frozen=True):
    """A tick of a time axis: its position, its label, and the day, if one begins."""

    at: int
    label: str
    day: str


def time_ticks(start: int, end: int, most: int) -> list[Tick]:
    """Ticks at round times, no more than there is room for."""
    span = max(end - start, 1)
    step = next((step for step in _STEPS if span / step <= most), span)
    first = start + -start % step
    ticks: list[Tick] = []
    for at in range(first, end + 1, step):
        day = moment(at)[:10]
        new = not ticks or moment(ticks[-1].at)[:10] != day
        label = day[5:] if step >= DAY else clock(at, step)
        ticks.append(Tick(at, label, (day[:4] if step >= DAY else day) if new else ""))
    return ticks


def clock(at: int, step: int) -> str:
    """The time of day, or the day, as precisely as the step requires."""
    told = _EPOCH + timedelta(microseconds=at)
    if step >= DAY:
        return f"{told:%Y-%m-%d}"
    if step >= MINUTE:
        return f"{told:%H:%M}"
    if step >= SECOND:
        return f"{told:%H:%M:%S}"
    return f"{told:%H:%M:%S.%f}"[:-3]


def moment(at: int) -> str:
    """A time to the second.

    >>> moment(1_767_225_600_000_000)
    '2026-01-01 00:00:00'
    """
    return f"{_EPOCH + timedelta(microseconds=at):%Y-%m-%d %H:%M:%S}"


def span_said(first: int, last: int) -> str:
    """A time range, with the day once if it is one day."""
    begin, end = moment(first), moment(last)
    return f"{begin} to {end[11:] if begin[:10] == end[:10] else end} UTC"


def width_said(microseconds: int) -> str:
    """A round width in words.

    >>> width_said(5 * MINUTE), width_said(DAY)
    ('5 minutes', 'day')
    """
    units: tuple[tuple[int, str], ...] = (
        (DAY, "day"),
        (HOUR, "hour"),
        (MINUTE, "minute"),
        (SECOND, "second"),
        (MILLISECOND, "millisecond"),
    )
    for unit, name in units:
        if microseconds % unit == 0 and microseconds >= unit:
            number = microseconds // unit
            return name if number == 1 else f"{number} {name}s"
    return f"{microseconds} microseconds"


def positions(bins: Bins, instants: Any) -> Any:
    """The bin of each time in an array; -1 outside."""
    inside = (instants >= bins.start) & (instants < bins.end)
    return ((instants - bins.start) // bins.width) * inside - ~inside
