"""Charts: pure functions from numbers and a width to an SVG picture.

Colours are CSS classes, so that the page defines them, for light and dark mode. Legends and
captions are part of the page as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log10
from typing import Final, TypeAlias

from markupsafe import Markup
from msgspec import Struct

from waystation.core.spoken import plural
from waystation.report.numbers import (
    count,
    duration,
    round_duration,
    round_ticks,
    share,
    short,
)
from waystation.report.svg import WHOLE, hint, named, picture, tag, text_width
from waystation.report.times import Bins, Tick, time_ticks

WIDE: Final = 1040
NARROW: Final = 350
"""A chart is drawn twice: for a laptop and for a phone. The font size is the same in both."""

_SMALL: Final = 600
_LETTER: Final = 12
_GAP: Final = 6
_WIDEST_BAR: Final = 44
_NARROWEST_BAND: Final = 3.0


Bar: TypeAlias = tuple[str, int, str]
"""The name, the number and the colour of a column."""


class Series(Struct, frozen=True):
    """A quantity that is counted over time."""

    name: str
    colour: str
    values: Sequence[int]


class Range(Struct, frozen=True):
    """A distribution of durations: name, colour, percentiles in microseconds, number."""

    name: str
    colour: str
    low: float
    high: float
    highest: float
    number: int


def stacked_bars(bins: Bins, series: Sequence[Series], width: int, label: str) -> Markup:
    """Stacked bars over time."""
    height = 260 if width > _SMALL else 220
    sums = [sum(part.values[number] for part in series) for number in range(bins.count)]
    ticks = round_ticks(max(sums, default=0), 4)
    left = max(text_width(short(tick)) for tick in ticks) + 2 * _GAP
    top, bottom = 10.0, height - 40.0
    scale = (bottom - top) / (ticks[-1] or 1)
    across = (width - left - 8) / bins.count

    def bars() -> Iterator[Markup]:
        for number in range(bins.count):
            parts = [(part, part.values[number]) for part in series if part.values[number]]
            if parts:
                yield tag("g", hint(_told(bins, number, parts)), *_pile(number, parts))

    def _pile(number: int, parts: list[tuple[Series, int]]) -> Iterator[Markup]:
        y = bottom
        gap = max(min(1.5, across * 0.2), across - _WIDEST_BAR)
        for part, value in parts:
            tall = max(value * scale, 0.6)
            y -= tall
            yield tag(
                "rect",
                x=left + number * across + gap / 2,
                y=y,
                width=max(across - gap, 0.7),
                height=tall,
                class_=f"fill {part.colour}",
            )

    content = [
        *_bands(bins, left, width - 8, top, bottom),
        *_levels(ticks, left, width - 8, lambda tick: bottom - tick * scale),
        *_time_axis(bins, left, width - 8, bottom),
        *bars(),
    ]
    return picture(width, height, label, content)


def _told(bins: Bins, number: int, parts: list[tuple[Series, int]]) -> str:
    lines = [f"{bins.said(number)} UTC", *(f"{part.name}: {count(n)}" for part, n in parts)]
    return "\n".join(lines)


def _levels(
    ticks: Sequence[float], left: float, right: float, y: Callable[[float], float]
) -> Iterator[Markup]:
    for tick in ticks:
        line = "axis" if tick == 0 else "level"
        yield tag("line", x1=left, x2=right, y1=y(tick), y2=y(tick), class_=line)
        yield tag("text", short(tick), x=left - _GAP, y=y(tick) + 4, text_anchor="end")


def _bands(bins: Bins, left: float, right: float, top: float, bottom: float) -> Iterator[Markup]:
    """What went wrong meanwhile, behind the figures; the shortest can still be seen."""
    scale = (right - left) / (bins.end - bins.start)
    for band in bins.bands:
        start, end = max(band.start, bins.start), min(band.end, bins.end)
        if start > end:
            continue
        wide = max((end - start) * scale, _NARROWEST_BAND)
        x = min(left + (start - bins.start) * scale, right - wide)
        yield tag(
            "rect", hint(band.text), x=x, y=top, width=wide, height=bottom - top, class_="band"
        )


def _time_axis(bins: Bins, left: float, right: float, y: float) -> Iterator[Markup]:
    for tick, x, anchor in _placed_ticks(bins, left, right):
        yield tag("line", x1=x, x2=x, y1=y, y2=y + 4, class_="axis")
        yield tag("text", tick.label, x=x, y=y + 17, text_anchor=anchor)
        if tick.day:
            yield tag("text", tick.day, x=x, y=y + 32, text_anchor=anchor, class_="faint")


def _placed_ticks(bins: Bins, left: float, right: float) -> list[tuple[Tick, float, str]]:
    """As many tick labels as there is room for, each with its position."""
    for most in range(max(int((right - left) // 60), 1), 0, -1):
        ends, placed = -float(_GAP), []
        for tick in time_ticks(bins.start, bins.end, most):
            x = left + (tick.at - bins.start) / (bins.end - bins.start) * (right - left)
            half = max(text_width(tick.day), text_width(tick.label)) / 2
            anchor, begin = "middle", x - half
            if begin < 0:
                anchor, begin = "start", x
            elif x + half > right + 8:
                anchor, begin = "end", x - 2 * half
            if begin < ends + _GAP:
                break
            ends = begin + 2 * half
            placed.append((tick, x, anchor))
        else:
            return placed
    return placed


def heat_map(
    bins: Bins, rows: Sequence[tuple[str, Sequence[tuple[int, int]]]], width: int, label: str
) -> Markup:
    """One row for each node: the share of its messages that was dropped in each bin."""
    most = 24 if width > _SMALL else 12
    tall = 22.0
    names = [named(name, most) for name, _ in rows]
    left = max(text_width(name) for name in names) + 2 * _GAP
    across = (width - left - 8) / bins.count
    bottom = tall * len(rows) + 2

    def row(number: int, name: str, cells: Sequence[tuple[int, int]]) -> Iterator[Markup]:
        y = number * tall
        yield tag(
            "text",
            hint(named(name, WHOLE)),
            names[number],
            x=left - _GAP,
            y=y + 15,
            text_anchor="end",
            class_="name",
        )
        for part, (dropped, messages) in enumerate(cells):
            if messages:
                told = (
                    f"{named(name)}\n{bins.said(part)} UTC\n"
                    f"{count(dropped)} of {count(messages)} dropped ({share(dropped, messages)})"
                )
                yield tag(
                    "rect",
                    hint(told),
                    x=left + part * across,
                    y=y + 1,
                    width=max(across - min(1.0, across * 0.2), 0.7),
                    height=tall - 2,
                    class_=f"fill {heat(dropped, messages)}",
                )

    content = [*_bands(bins, left, width - 8, 0.0, bottom)]
    content += [item for n, (name, cells) in enumerate(rows) for item in row(n, name, cells)]
    axis = _time_axis(bins, left, width - 8, bottom)
    return picture(width, bottom + 38, label, [*content, *axis])


HEATS: Final = (
    (0.0, "none"),
    (0.01, "under 1%"),
    (0.05, "1 to 5%"),
    (0.2, "5 to 20%"),
    (0.5, "20 to 50%"),
    (1.0, "over 50%"),
)
"""The steps of the heat map: the upper bound of each share, and its label."""


def heat(dropped: int, messages: int) -> str:
    """The colour for a share of losses.

    >>> heat(0, 10), heat(1, 1000), heat(10, 10)
    ('heat-0', 'heat-1', 'heat-5')
    """
    part = dropped / messages if messages else 0.0
    return f"heat-{next(step for step, (most, _) in enumerate(HEATS) if part <= most)}"


def ranges(rows: Sequence[Range], width: int, label: str) -> Markup:
    """Durations on a logarithmic scale: from the median to the slowest hundredth."""
    most = 26 if width > _SMALL else 15
    names = [named(row.name, most) for row in rows]
    told = [f"{duration(row.low)} · {duration(row.high)} · {duration(row.highest)}" for row in rows]
    left = max(text_width(name) for name in names) + 2 * _GAP
    side = max(text_width(text) for text in told) + 2 * _GAP if width > _SMALL else 14.0
    tall = 30.0 if width > _SMALL else 42.0
    lowest = min(row.low for row in rows)
    highest = max(row.highest for row in rows)
    decades = _decades(lowest, highest)
    right = width - side
    bottom = tall * len(rows) + 4

    def x(value: float) -> float:
        return left + _part(value, decades) * (right - left)

    def line(number: int, row: Range) -> Iterator[Markup]:
        y = number * tall + 16
        yield tag(
            "text",
            hint(named(row.name, WHOLE)),
            names[number],
            x=left - _GAP,
            y=y + 4,
            text_anchor="end",
            class_="name",
        )
        whole = f"{named(row.name)}: {told[number]} ({plural(row.number, 'time')})"
        yield tag(
            "g",
            hint(whole),
            tag("line", x1=x(row.low), x2=x(row.highest), y1=y, y2=y, class_=f"reach {row.colour}"),
            tag("line", x1=x(row.low), x2=x(row.high), y1=y, y2=y, class_=f"body {row.colour}"),
            tag("circle", cx=x(row.low), cy=y, r=5, class_=f"fill {row.colour}"),
            tag(
                "line",
                x1=x(row.highest),
                x2=x(row.highest),
                y1=y - 6,
                y2=y + 6,
                class_=f"end {row.colour}",
            ),
        )
        if width > _SMALL:
            yield tag("text", told[number], x=width - 2, y=y + 4, text_anchor="end", class_="value")
        else:
            yield tag(
                "text", told[number], x=width - 8, y=y + 20, text_anchor="end", class_="value"
            )

    content = []
    for number, mark in enumerate(_marks(decades)):
        at = x(mark)
        content.append(tag("line", x1=at, x2=at, y1=0, y2=bottom, class_="level"))
        if number % _every(decades, right - left) == 0:
            content.append(
                tag("text", round_duration(mark), x=at, y=bottom + 15, text_anchor="middle")
            )
    content += [item for number, row in enumerate(rows) for item in line(number, row)]
    return picture(width, bottom + 22, label, content)


def _decades(lowest: float, highest: float) -> list[float]:
    """Powers of ten from below the lowest to above the highest."""
    decades = [1.0]
    while decades[-1] < highest:
        decades.append(decades[-1] * 10)
    while len(decades) > 2 and decades[1] <= lowest:
        decades.pop(0)
    return decades if len(decades) > 1 else [1.0, 10.0]


def _marks(decades: Sequence[float]) -> list[float]:
    """Powers of ten; if there are few of them, also twice and five times these."""
    if len(decades) > 3:
        return list(decades)
    between = [digit * decade for decade in decades[:-1] for digit in (1, 2, 5)]
    return [*between, decades[-1]]


def _every(decades: Sequence[float], room: float) -> int:
    """Every how many marks there is room for a label."""
    marks = _marks(decades)
    widest = max(text_width(round_duration(mark)) for mark in marks) + _GAP
    nearest = room / (len(decades) - 1) * (1.0 if len(marks) == len(decades) else log10(2))
    every = -int(-widest // nearest)
    return every if every == 1 or len(marks) == len(decades) else 3


def _part(value: float, decades: Sequence[float]) -> float:
    """The position of a value between the first power of ten and the last."""
    return (log10(max(value, decades[0])) - log10(decades[0])) / (len(decades) - 1)


def columns(bars: Sequence[Bar], width: int, label: str) -> Markup:
    """Vertical bars with a name below and a number above: (name, number, colour)."""
    height, top, bottom = 200.0, 22.0, 174.0
    highest = max((number for _, number, _ in bars), default=0) or 1
    across = min(width / max(len(bars), 1), 110.0)
    left = 0.0 if across < 110.0 else 4.0

    def bar(place: int, name: str, number: int, colour: str) -> Markup:
        x = left + place * across
        tall = max(number / highest * (bottom - top), 1.0 if number else 0.0)
        middle = x + across / 2
        return tag(
            "g",
            hint(f"{name}: {count(number)}"),
            tag(
                "rect",
                x=x + across * 0.14,
                y=bottom - tall,
                width=across * 0.72,
                height=tall,
                rx=2,
                class_=f"fill {colour}",
            ),
            tag(
                "text",
                short(number),
                x=middle,
                y=bottom - tall - 6,
                text_anchor="middle",
                class_="value",
            ),
            tag("text", name, x=middle, y=bottom + 17, text_anchor="middle"),
        )

    axis = tag("line", x1=0, x2=left + across * len(bars), y1=bottom, y2=bottom, class_="axis")
    drawn = [bar(place, *one) for place, one in enumerate(bars)]
    return picture(width, height, label, [*drawn, axis])
