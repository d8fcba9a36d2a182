"""The clock: the only place that reads the wall clock (TM-2).

It is the system's clock, unless the context says otherwise: so every part of a simulated program
has the clock of its own machine, and nobody has to pass it on. Who asks for every message keeps
`current_clock()` when it is made; everybody else calls `now_ns`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Gives nanoseconds since the epoch."""

_clock: Final[ContextVar[Clock]] = ContextVar("waystation clock", default=time.time_ns)


def current_clock() -> Clock:
    """The clock of whatever runs now.

    >>> current_clock()() > 1_700_000_000_000_000_000
    True
    """
    return _clock.get()


def now_ns() -> int:
    """The instant, in nanoseconds since the epoch."""
    return _clock.get()()


def use_clock(clock: Clock) -> None:
    """Let whatever is made in this context from now on have another clock."""
    _clock.set(clock)
