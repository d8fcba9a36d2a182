"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Waits between attempts to connect, in seconds, until one succeeds.

    They double from `first` to `most`. Half of a wait is certain, so that a fleet does not hammer;
    half is chance, so that it does not come back all at once.

    >>> backoff = Backoff(first=0.1, most=1.0, chance=lambda: 1.0)
    >>> [round(backoff.next(), 1) for _ in range(6)]
    [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    >>> backoff.reset()
    >>> backoff.next()
    0.1
    """

    __slots__ = ("_attempts", "_chance", "_first", "_most")

    def __init__(
        self,
        *,
        first: float = 0.1,
        most: float = 5.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._most = most
        self._chance = chance
        self._attempts = 0

    def next(self) -> float:
        """The seconds to wait now."""
        wait = min(self._most, self._first * 2.0 ** min(self._attempts, 32))
        self._attempts += 1
        return wait / 2 + wait / 2 * self._chance()

    def reset(self) -> None:
        """Begin anew: an attempt succeeded."""
        self._attempts = 0
