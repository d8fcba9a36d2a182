"""Bounded queues without a task, future or lock per message (WK-5, WK-6).

A future is made only when somebody has to wait: a worker for an empty inbox, a sender for a full
one. Only queueing lives here; what is queued, and why, is the node's business.

How an inbox of messages counts the bytes in it stands in `counting`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

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


class Ticket(Protocol):
    """What stands in a line for a message: a `Pending`, or a `Held` that nobody waits for."""

    def done(self) -> bool:
        """Whether the message waits no longer."""

    def set_result(self, verdict: Verdict, /) -> None:
        """Tell that the message was taken."""

    def reject(self) -> None:
        """Tell that whoever the message waits for will not take it."""

    def give_up(self) -> None:
        """Tell that the message waits no longer, whoever it waits for."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Have a function called when it gives up by itself."""

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> object:
        """Have it called no more."""


class WaitingLine(Generic[T]):
    """Items that wait for room, in order, each with what its sender waits for."""

    __slots__ = ("_gone", "line", "moves")

    def __init__(self) -> None:
        self.line: deque[tuple[T, Ticket]] = deque()
        self.moves = 0  # how often something was taken out
        self._gone = 0  # how many in the line have given up, at least

    def waiting(self) -> int:
        """How many wait, with some that gave up meanwhile."""
        return len(self.line)

    def join(self, item: T, ticket: Ticket) -> None:
        """Let an item wait behind the others."""
        self.line.append((item, ticket))
        ticket.add_done_callback(self._leave)

    def first(self) -> tuple[T, Ticket] | None:
        """The first that still waits."""
        line = self.line
        while line:
            first = line[0]
            if not first[1].done():  # or it gave up meanwhile
                return first
            line.popleft()
        return None

    def next(self) -> tuple[T, Ticket] | None:
        """Take out the first that still waits."""
        first = self.first()
        if first is not None:
            self.take_out(first[1])
        return first

    def take_out(self, first: Ticket) -> None:
        """Take out the first, whose ticket this is."""
        self.moves += 1
        self.line.popleft()
        first.remove_done_callback(self._leave)

    def remove(self, tickets: Iterable[Ticket]) -> list[tuple[T, Ticket]]:
        """Take these out, wherever they stand; returns them in order."""
        gone = set(map(id, tickets))
        found = [one for one in self.line if id(one[1]) in gone]
        stay = [one for one in self.line if id(one[1]) not in gone]
        self.line.clear()
        self.line.extend(stay)
        for _, ticket in found:
            ticket.remove_done_callback(self._leave)
        return found

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

    An item may be appended to `items` without a call while there are fewer than `mark` of them. It
    may be taken out without a call, but while `slow` is set, whoever does has to count `left` down,
    and to call `taken` at 0.
    """

    __slots__ = ("_half", "capacity", "items", "left", "line", "mark", "reader", "slow", "waiting")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._half = capacity // 2
        self.mark = capacity
        self.slow = False
        self.left = 1
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
        if not self.admits(item):
            return False
        items.append(item)
        if self.reader is not None:
            self.wake_reader()
        return True

    def join(self, item: T, verdict: Verdict, ticket: Ticket) -> None:
        """Let an item wait for room; the verdict holds when it has it."""
        is_first = not self.line
        self.mark = 0
        self.slow = True
        self.waiting.join((item, verdict), ticket)
        if is_first:
            self.look_ahead()

    async def filled(self) -> None:
        """Return when there is something to take."""
        while not self.items:
            await self.woken()

    async def woken(self) -> None:
        """Return when somebody wakes the reader, which has taken everything."""
        self.drained()
        self.reader = asyncio.get_running_loop().create_future()
        await self.reader

    def take(self) -> T:
        """Take the oldest item out, and let in what waits for room."""
        item = self.items.popleft()
        if self.slow:
            self.left -= 1
            if self.left <= 0:
                self.taken()
        return item

    def look_ahead(self) -> None:
        """Have `taken` called when half of the inbox is free, for those who wait."""
        self.left = max(1, len(self.items) - self._half)

    def taken(self) -> None:
        """Let in what waits for room, if half of the inbox is free."""
        if self.line and len(self.items) <= self._half:
            self._let_in()
        if not self.line:
            self.relax()
        self.look_ahead()

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

    # What a subclass counts

    def admits(self, item: T) -> bool:  # noqa: ARG002
        """Whether there is room for an item, beside the number of them; if so it is put in next."""
        self.relax()
        return True

    def lets_in(self, item: T, ticket: Ticket) -> bool:  # noqa: ARG002
        """Whether there is room for an item that waited; if so it is put in next."""
        return True

    def drained(self) -> None:
        """Note that there is nothing in it."""

    def relax(self) -> None:
        """Return to the fast way, since nobody waits."""
        self.mark = self.capacity
        self.slow = False

    def _let_in(self) -> bool:
        """Let in who waits; says whether there is no room left for anybody else."""
        while len(self.items) < self.capacity:
            first = self.waiting.first()
            if first is None:
                return False
            (item, verdict), ticket = first
            if not self.lets_in(item, ticket):
                return True
            self.waiting.take_out(ticket)
            self.items.append(item)
            self.wake_reader()
            ticket.set_result(verdict)
        return True
