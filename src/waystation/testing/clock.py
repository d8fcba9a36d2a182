"""A clock that goes when it is told to."""

from __future__ import annotations


class ManualClock:
    """Give it to a Node as `clock`: time passes when a test says so.

    >>> clock = ManualClock(start=1_000.0)
    >>> clock.advance(2.5)
    >>> clock() == 1_002_500_000_000
    True
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = round(start * 1e9)

    def __call__(self) -> int:
        """The instant, in nanoseconds since the epoch, as `time.time_ns` gives it."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass. It may also go back, as a real clock does when somebody sets it."""
        self._now += round(seconds * 1e9)
