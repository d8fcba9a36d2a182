"""Draw how the pipeline's steps grow with the rows, beside DuckDB and Polars, from the results.

    python scripts/growth_plot.py    writes docs/explanation/pipeline-growth.svg

One panel for each step, both axes logarithmic: what grows with the rows is a straight line that
rises like the dashed one. The figures are those of benchmarks/results/pipeline.json.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/pipeline.json"
PICTURE = ROOT / "docs/explanation/pipeline-growth.svg"

CASE = re.compile(r"(?P<step>[\w ]+), (?P<rows>[\d.]+) M rows, warm")
COLOURS = {"waystation": "#0b6e4f", "DuckDB": "#c2571a", "Polars": "#3a5a9b"}
WIDE, HIGH, LEFT, TOP, GAP = 230, 220, 52, 44, 58

Points = dict[str, list[tuple[float, float]]]
"""Rows and seconds, by subject."""


def points_of(results: list[dict[str, Any]]) -> dict[str, Points]:
    """What was measured of each step."""
    found: dict[str, Points] = {}
    for row in results:
        case = CASE.fullmatch(row["case"])
        if case is not None and row["unit"] == "s":
            subjects = found.setdefault(case["step"], {})
            point = float(case["rows"]) * 1e6, float(row["value"])
            subjects.setdefault(row["subject"], []).append(point)
    return {
        step: {name: sorted(own) for name, own in subjects.items()}
        for step, subjects in found.items()
    }


class Scale:
    """A logarithmic axis, from a length of the picture to another."""

    def __init__(self, values: list[float], first: float, last: float) -> None:
        self.low = 10 ** math.floor(math.log10(min(values)))
        self.high = 10 ** math.ceil(math.log10(max(values) * 1.001))
        self._first, self._last = first, last

    def place(self, value: float) -> float:
        """Where a value stands."""
        part = math.log10(value / self.low) / math.log10(self.high / self.low)
        return self._first + part * (self._last - self._first)

    def ticks(self) -> list[float]:
        """The powers of ten."""
        count = round(math.log10(self.high / self.low))
        return [self.low * 10**power for power in range(count + 1)]


def drawn(steps: dict[str, Points]) -> str:
    """The whole picture."""
    every = [point for points in steps.values() for own in points.values() for point in own]
    width = LEFT + len(steps) * (WIDE + GAP)
    height = TOP + HIGH + 62
    view = f'viewBox="0 0 {width} {height}" role="img" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view}>',
        "<title>Seconds that each step takes, by the number of rows</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (step, points) in enumerate(steps.items()):
        left = LEFT + number * (WIDE + GAP)
        across = Scale([rows for rows, _ in every], left, left + WIDE)
        up = Scale([seconds for _, seconds in every], TOP + HIGH, TOP)
        parts += panel(step, points, across, up)
    parts += legend(height - 12)
    return "\n".join([*parts, "</svg>", ""])


def panel(step: str, points: Points, across: Scale, up: Scale) -> Iterator[str]:
    """One step."""
    left, bottom = across.place(across.low), up.place(up.low)
    yield f'<text x="{left}" y="{TOP - 16}" font-weight="bold">{escape(step)}</text>'
    for tick in up.ticks():
        y = up.place(tick)
        yield line(left, y, left + WIDE, y, "#e4e4e4")
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g} s</text>'
    for tick in across.ticks():
        x = across.place(tick)
        yield line(x, TOP, x, bottom, "#e4e4e4")
        label = f"{tick / 1e6:g} M"
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
    for name, own in points.items():
        colour = COLOURS.get(name, "#555555")
        places = [(across.place(rows), up.place(seconds)) for rows, seconds in own]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for (x, y), (rows, seconds) in zip(places, own, strict=True):
            told = f"{name}: {rows / 1e6:g} M rows, {seconds:.3g} s"
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">'
                f"<title>{escape(told)}</title></circle>"
            )
    yield from in_proportion(points, across, up)


def in_proportion(points: Points, across: Scale, up: Scale) -> Iterator[str]:
    """What exactly proportional growth from the first of our own points would be."""
    own = points.get("waystation", [])
    if len(own) > 1:
        (rows, seconds), (most, _) = own[0], own[-1]
        ends = across.place(most), up.place(min(seconds * most / rows, up.high))
        yield (
            f'<line x1="{across.place(rows):.1f}" y1="{up.place(seconds):.1f}" x2="{ends[0]:.1f}" '
            f'y2="{ends[1]:.1f}" stroke="#888888" stroke-dasharray="3 3"/>'
        )


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def legend(y: float) -> Iterator[str]:
    """The legend of the colours."""
    x = float(LEFT)
    for name, colour in COLOURS.items():
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 15}" y="{y}">{escape(name)}</text>'
        x += 105
    yield f'<text x="{x}" y="{y}" fill="#666666">dashed: in proportion to the rows</text>'


def picture() -> str | None:
    """The picture of the newest results, if there are any."""
    if not RESULTS.exists():
        return None
    steps = points_of(json.loads(RESULTS.read_text("utf-8")))
    return drawn(steps) if steps else None


def main() -> int:
    """Write the picture."""
    found = picture()
    if found is None:
        print("no results yet; run `make bench ONLY=pipeline`", file=sys.stderr)
        return 1
    PICTURE.write_text(found, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
