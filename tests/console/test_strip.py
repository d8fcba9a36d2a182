"""Incidents over time: each has its band, and none covers another that it has room beside."""

from __future__ import annotations

from dataclasses import dataclass

from waystation.console.strip import LANE, MAX_LANES, NARROWEST, WIDTH, strip


@dataclass
class Happened:
    id: str
    started: int
    ended: int | None
    last: int = 0


def test_one_incident_needs_no_strip() -> None:
    assert strip([]) is None
    assert strip([Happened("a", 0, 10)]) is None


def test_bands_are_where_and_as_long_as_what_happened() -> None:
    drawn = strip([Happened("b", 600, 1_000), Happened("a", 0, 500)])
    assert drawn is not None
    assert (drawn.first, drawn.last, drawn.height) == (0, 1_000, LANE)
    assert [(band.id, band.x, band.width) for band in drawn.bands] == [
        ("a", 0, WIDTH / 2), ("b", 600, 400),
    ]  # fmt: skip


def test_what_happened_at_once_is_in_lanes() -> None:
    drawn = strip([Happened(str(number), number, 1_000) for number in range(MAX_LANES + 3)])
    assert drawn is not None
    assert [band.y // LANE for band in drawn.bands] == [*range(MAX_LANES), *[MAX_LANES - 1] * 3]


def test_what_took_no_time_or_has_no_end_is_seen_and_inside() -> None:
    drawn = strip([Happened("a", 0, 1_000), Happened("b", 1_000, None, last=1_000)])
    assert drawn is not None
    assert drawn.bands[1].width == NARROWEST
    assert drawn.bands[1].x + NARROWEST == WIDTH
