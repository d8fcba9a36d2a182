"""The traffic of a node as sparklines: numbers in, SVG points out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from waystation.console.fleet import HISTORY

WIDTH: Final = 120
HEIGHT: Final = 24


class Sparklines(Struct, frozen=True):
    """Two lines over the same seconds and with the same scale."""

    messages: str
    drops: str  # empty when there were none


def sparklines(traffic: Sequence[tuple[float, float]]) -> Sparklines:
    """The lines of (messages, drops) per second; the latest value is at the right edge.

    >>> sparklines([(0, 0), (10, 5)])
    Sparklines(messages='118,24 120,0', drops='118,24 120,12')
    """
    most = max((all for all, _ in traffic), default=0)
    drops = [bad for _, bad in traffic]
    return Sparklines(
        _line([all for all, _ in traffic], most), _line(drops, most) if any(drops) else ""
    )


def _line(values: Sequence[float], most: float) -> str:
    step = WIDTH / HISTORY
    first = WIDTH - step * (len(values) - 1)
    scale = HEIGHT / most if most else 0
    return " ".join(
        f"{first + step * number:g},{round(HEIGHT - value * scale, 1):g}"
        for number, value in enumerate(values)
    )
