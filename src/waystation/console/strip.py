"""Incidents over time, as bands: values in, positions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

WIDTH: Final = 1000
NARROWEST: Final = 8
LANE: Final = 12
MAX_LANES: Final = 8
"""Sizes in units of the drawing; what happens at the same time is drawn in lanes of its own."""


class Happened(Protocol):
    """What is drawn; times in microseconds."""

    @property
    def id(self) -> str:
        """By which it is linked."""

    @property
    def started(self) -> int:
        """When it began."""

    @property
    def ended(self) -> int | None:
        """When it ended; None if that is not on record."""

    @property
    def last(self) -> int:
        """The latest of its losses."""


class Band(Struct, frozen=True):
    """Where something that happened is drawn."""

    id: str
    x: float
    y: int
    width: float


class Strip(Struct, frozen=True):
    """Bands between two times in microseconds."""

    first: int
    last: int
    bands: list[Band]
    height: int


def strip(happened: Sequence[Happened]) -> Strip | None:
    """A strip of what happened; None if that is not even two."""
    if len(happened) < 2:
        return None
    first = min(one.started for one in happened)
    last = max(_end(one) for one in happened)
    scale = WIDTH / max(1, last - first)
    ends = [-1.0] * MAX_LANES  # where each lane is free
    bands = []
    for one in sorted(happened, key=lambda one: one.started):
        width = max(NARROWEST, (_end(one) - one.started) * scale)
        x = min((one.started - first) * scale, WIDTH - width)
        free = [lane for lane in range(MAX_LANES) if ends[lane] <= x]
        lane = free[0] if free else MAX_LANES - 1
        ends[lane] = x + width
        bands.append(Band(one.id, round(x, 1), lane * LANE, round(width, 1)))
    return Strip(first, last, bands, max(band.y for band in bands) + LANE)


def _end(one: Happened) -> int:
    return max(one.ended if one.ended is not None else one.last, one.started)
