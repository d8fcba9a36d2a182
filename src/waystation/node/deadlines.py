"""One timer of the event loop for all who wait no longer than some time.

A timer for each of them would cost more than the rest of a request: hardly one of them ever ends by
it. Who has what it waited for is only marked, and taken out when most of them are.
"""

from __future__ import annotations

import asyncio
import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol

_FEW: Final = 64  # that need not wait any more, and may stay


class Expiring(Protocol):
    """Something that ends by itself after a time."""

    deadline: int
    """The number of its deadline; 0 if it has none."""

    def give_up(self) -> None:
        """End: the time is over."""


class Deadlines:
    """The deadlines of one node."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._line: list[tuple[float, int, Expiring]] = []  # a heap
        self._gone = 0  # how many in it do not wait any more
        self._due = math.inf  # when the timer ends
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line) - self._gone

    @property
    def held(self) -> int:
        """How many are held, with some that do not wait any more."""
        return len(self._line)

    def start(self, one: Expiring, seconds: float) -> None:
        """Let something end after this time, unless `stop` is called before."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        one.deadline = number = next(self._numbers)
        heappush(self._line, (at, number, one))
        if at < self._due:
            self._set_timer(loop, at)

    def stop(self, one: Expiring) -> None:
        """Let something not end any more, if it has not."""
        if one.deadline:
            one.deadline = 0
            self._gone += 1
            if self._gone > _FEW and 2 * self._gone > len(self._line):
                self._line = [each for each in self._line if each[2].deadline == each[1]]
                heapify(self._line)
                self._gone = 0

    def close(self) -> None:
        """Let nothing end any more."""
        for _, _, one in self._line:
            one.deadline = 0
        self._line.clear()
        self._gone = 0
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = at
        self._timer = loop.call_at(at, self._look)

    def _look(self) -> None:
        """End whose time is over, and set the timer for the next."""
        loop = asyncio.get_running_loop()
        now = max(loop.time(), self._due)  # a loop may be a little early
        self._timer, self._due = None, math.inf
        while self._line and (self._line[0][0] <= now or not self._waits(self._line[0])):
            first = heappop(self._line)
            if self._waits(first):
                first[2].deadline = 0
                first[2].give_up()
            else:
                self._gone -= 1
        if self._line and self._line[0][0] < self._due:
            self._set_timer(loop, self._line[0][0])

    @staticmethod
    def _waits(each: tuple[float, int, Expiring]) -> bool:
        return each[2].deadline == each[1]
