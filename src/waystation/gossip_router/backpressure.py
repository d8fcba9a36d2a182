"""How long senders are held back for a receiver that is slow: briefly, and rarely in vain (GR-10).

A receiver whose queue is half full gets a moment to catch up, in which nothing more is read from
those who send to it: so a burst costs nobody a message. One that does not catch up in that moment
is not waited for again until it has, and even then not for twenty times as long, the next time for
twice that, and so on. So one that is stuck costs the others one moment, and one that is stuck again
and again less than a twentieth of their time.

    READY --hold_back--> HOLDING --caught up--> READY
    HOLDING --moment over--> GIVEN_UP --caught up--> READY, after a while
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import Enum
from typing import Final, Protocol

_PENALTY: Final = 20  # moments for which nobody waits for a receiver that did not catch up
_LONGEST_PENALTY: Final = 600.0


class Sender(Protocol):
    """Whoever can be held back."""

    def hold(self) -> None:
        """Read no more from it; called once for each receiver that it waits for."""

    def release(self) -> None:
        """Read again, unless it waits for another receiver."""


class HoldState(Enum):
    """Whether senders wait for a receiver."""

    READY = "ready"
    HOLDING = "holding"
    GIVEN_UP = "given up"


class SenderHold:
    """Holds the senders of one receiver back, for at most `seconds` at a time (0: never)."""

    __slots__ = ("_counts", "_loop", "_not_before", "_penalty", "_seconds", "_senders", "_state",
                 "_timer")  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, counts: Counter[str]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._counts = counts
        self._state = HoldState.READY if seconds else HoldState.GIVEN_UP
        self._senders: dict[Sender, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._penalty = _PENALTY * seconds
        self._not_before = 0.0  # nobody is held back before this time

    def hold_back(self, sender: Sender) -> None:
        """Hold back a sender that has put something into a queue that is more than half full."""
        if self._state is HoldState.GIVEN_UP or sender in self._senders:
            return
        if self._state is HoldState.READY:
            if self._loop.time() < self._not_before:
                return
            self._state = HoldState.HOLDING
            self._timer = self._loop.call_later(self._seconds, self._give_up)
        self._senders[sender] = None
        sender.hold()

    def caught_up(self) -> None:
        """Note that the queue is nearly empty again."""
        if self._state is HoldState.HOLDING:
            self._counts["caught up"] += 1
            self._penalty = _PENALTY * self._seconds
        elif self._state is HoldState.GIVEN_UP and self._seconds:
            self._not_before = self._loop.time() + self._penalty
            self._penalty = min(2 * self._penalty, _LONGEST_PENALTY)
            self._state = HoldState.READY
        self.release_all()

    def release_all(self) -> None:
        """Hold nobody back any longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._state is HoldState.HOLDING:
            self._state = HoldState.READY
        senders, self._senders = self._senders, {}
        for sender in senders:
            sender.release()

    def _give_up(self) -> None:
        self._state = HoldState.GIVEN_UP
        self._counts["in vain"] += 1
        self.release_all()
