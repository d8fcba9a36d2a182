"""How long senders are held back for the sake of one receiver: shortly, and rarely in vain (GR-10).

A receiver whose queue is half full is given a moment to catch up, in which nothing more is read
from those who send to it: so a burst costs nobody a message. One that does not catch up in that
moment is not waited for again until it has, and then not for twenty times as long, and the next
time for twice that, and so on. So one that is stuck costs the others one moment, and one that is
stuck again and again less than a twentieth of their time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Protocol

_TRUST: Final = 20
_LONGEST: Final = 600.0


class Sender(Protocol):
    """Whoever can be held back."""

    def hold(self) -> None:
        """Read no more from it; once more for each receiver that it waits for."""

    def release(self) -> None:
        """Read again, when it waits for nobody else."""


class Patience:
    """With one receiver."""

    __slots__ = (
        "_alarm",
        "_counts",
        "_distrust",
        "_given_up",
        "_loop",
        "_seconds",
        "_until",
        "_waiting",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, counts: Counter[str]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._counts = counts
        self._waiting: dict[Sender, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._distrust = _TRUST * seconds
        self._given_up = not seconds  # until it has caught up
        self._until = 0.0  # nobody waits for it before this time

    def wait(self, sender: Sender) -> None:
        """A sender has put something into a queue that is more than half full."""
        if self._given_up or sender in self._waiting or self._loop.time() < self._until:
            return
        self._waiting[sender] = None
        sender.hold()
        if self._alarm is None:
            self._alarm = self._loop.call_later(self._seconds, self._give_up)

    def caught_up(self) -> None:
        """The queue is nearly empty again."""
        if self._alarm is not None:
            self._counts["caught up"] += 1
            self._distrust = _TRUST * self._seconds
        elif self._given_up and self._seconds:
            self._given_up = False
            self._until = self._loop.time() + self._distrust
            self._distrust = min(2 * self._distrust, _LONGEST)
        self.end()

    def end(self) -> None:
        """Nobody need wait any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        waiting, self._waiting = self._waiting, {}
        for sender in waiting:
            sender.release()

    def _give_up(self) -> None:
        self._alarm = None
        self._counts["in vain"] += 1
        self._given_up = True
        self.end()
