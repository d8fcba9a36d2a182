"""What must not grow, looked at again and again."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

MARGIN: Final = 0.1
"""The share by which the last quarter may exceed the second."""

SLACK: Final[Mapping[str, float]] = {
    "rss_kb": 4_096,
    "descriptors": 4,
    "tasks": 8,
    "objects": 5_000,
}
"""How much more than that is no growth: what comes and goes."""


class Growth(Struct, frozen=True):
    """Something that grew."""

    what: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.what} grew from {self.before:,.0f} to {self.after:,.0f}"


class Watch:
    """Samples of several figures."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}

    def note(self, **figures: float) -> None:
        """Take a sample of each."""
        for what, value in figures.items():
            self.samples.setdefault(what, []).append(value)

    def grown(self) -> list[Growth]:
        """What is larger in the last quarter than in the second."""
        found = []
        for what, values in self.samples.items():
            quarter = len(values) // 4
            if not quarter:
                continue
            before = _median(values[quarter : 2 * quarter])
            after = _median(values[-quarter:])
            if after > before * (1 + MARGIN) + SLACK.get(what, 16):
                found.append(Growth(what, before, after))
        return found


def of_process() -> dict[str, float]:
    """The memory, descriptors and objects of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_kb": pages * 4,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "objects": len(gc.get_objects()),
    }


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
