"""Bounded queues without a task, future or lock per message (WK-5, WK-6).

A future is made only when somebody has to wait: a worker for an empty inbox, a sender for a full
one. Only queueing lives here; what is queued, and why, is the node's business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from waystation.core.outcome import Verdict

T = TypeVar("T")


class Pending(asyncio.Future[Verdict | None]):
    """What somebody waits for: the verdict once a message was taken, None if it never was.

    Cancelling it withdraws the message.
    """

    _alarm: asyncio.TimerHandle

    def reject(self) -> None:
        """Tell that whoever the message waits for will not take it."""
        self.give_up()

    def give_up(self) -> None:
        """Wait no longer, whoever the message waits for."""
        if not self.done():
            self.set_result(None)

    def expire_after(self, seconds: float, more: Callable[[], float] = lambda: 0.0) -> None:
        """Give up by itself when this time is over, and `more` grants no more seconds."""
        self._alarm = self.get_loop().call_later(seconds, self._expire, more)
        self.add_done_callback(lambda _: self._alarm.cancel())

    def _expire(self, more: Callable[[], float]) -> None:
        if (left := more()) > 0:
            self._alarm = self.get_loop().call_later(left, self._expire, more)
        else:
            self.give_up()


class WaitingLine(Generic[T]):
    """Items that wait for room, in order, each with what its sender waits for."""

    __slots__ = ("_gone", "line")

    def __init__(self) -> None:
        self.line: deque[tuple[T, Pending]] = deque()
        self._gone = 0  # how many in the line have given up, at least

    def waiting(self) -> int:
        """How many wait, with some that gave up meanwhile."""
        return len(self.line)

    def join(self, item: T, pending: Pending) -> None:
        """Let an item wait behind the others."""
        self.line.append((item, pending))
        pending.add_done_callback(self._leave)

    def next(self) -> tuple[T, Pending] | None:
        """Take out the first that still waits."""
        line = self.line
        while line:
            first = line.popleft()
            if not first[1].done():  # or it gave up meanwhile
                first[1].remove_done_callback(self._leave)
                return first
        return None

    def reject_all(self) -> None:
        """Tell everybody that there will be no room."""
        while (first := self.next()) is not None:
            first[1].reject()

    def _leave(self, pending: asyncio.Future[Verdict | None]) -> None:  # noqa: ARG002
        """Remove those who gave up, as soon as that is every second one."""
        line = self.line
        self._gone += 1
        if 2 * self._gone > len(line):
            self._gone = 0
            waiting = [one for one in line if not one[1].done()]
            line.clear()
            line.extend(waiting)


class Inbox(Generic[T]):
    """Items for one reader, from many writers.

    Writers that had to wait come before those that come later, so that no sender overtakes itself.
    They wait until half of the inbox is free: letting them in one by one would wake them up for
    every single message.
    """

    __slots__ = ("_half", "capacity", "items", "line", "reader", "waiting")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._half = capacity // 2
        self.reader: asyncio.Future[None] | None = None
        self.items: deque[T] = deque()
        self.waiting: WaitingLine[tuple[T, Verdict]] = WaitingLine()
        self.line = self.waiting.line

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_read(self) -> bool:
        """Whether somebody waits for an item."""
        return self.reader is not None and not self.reader.done()

    def offer(self, item: T) -> bool:
        """Put an item in, unless there is no room or somebody has been waiting for it."""
        items = self.items
        crowded = self.line or len(items) >= self.capacity
        if crowded and (len(items) > self._half or self._let_in()):
            return False
        items.append(item)
        if self.reader is not None:
            self.wake_reader()
        return True

    async def filled(self) -> None:
        """Return when there is something to take."""
        while not self.items:
            await self.woken()

    async def woken(self) -> None:
        """Return when somebody wakes the reader."""
        self.reader = asyncio.get_running_loop().create_future()
        await self.reader

    def take(self) -> T:
        """Take the oldest item out, and let in what waits for room."""
        item = self.items.popleft()
        if self.line and len(self.items) <= self._half:
            self._let_in()
        return item

    def empty(self) -> list[T]:
        """Take everything out for good, and reject what waits for room."""
        items = list(self.items)
        self.items.clear()
        self.waiting.reject_all()
        return items

    def wake_reader(self) -> None:
        """Let the reader go on: there is something to take."""
        reader, self.reader = self.reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _let_in(self) -> bool:
        """Let in who waits; says whether there is no room left for anybody else."""
        while len(self.items) < self.capacity:
            first = self.waiting.next()
            if first is None:
                return False
            (item, verdict), pending = first
            self.items.append(item)
            self.wake_reader()
            pending.set_result(verdict)
        return True
