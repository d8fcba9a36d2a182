"""Durations for people."""

from __future__ import annotations

from typing import Final

_SECOND: Final = 1_000_000
_HOUR: Final = 3_600 * _SECOND
_DAY: Final = 24 * _HOUR


def span(microseconds: int) -> str:
    """A duration in the unit that suits it.

    >>> span(1_200_000), span(850), span(90_000_000)
    ('1.2 s', '0.85 ms', '90 s')
    >>> span(4 * 3_600_000_000), span(30 * 86_400_000_000)
    ('4 h', '30 days')
    """
    if microseconds >= 2 * _DAY:
        return f"{microseconds / _DAY:.4g} days"
    if microseconds >= 2 * _HOUR:
        return f"{microseconds / _HOUR:.4g} h"
    if microseconds >= _SECOND:
        return f"{microseconds / _SECOND:.4g} s"
    return f"{microseconds / 1000:.3g} ms"


def signed(microseconds: int) -> str:
    """A difference of two clocks.

    >>> signed(-180_000_000)
    '-180 s'
    """
    return f"{'-' if microseconds < 0 else '+'}{span(abs(microseconds))}"
