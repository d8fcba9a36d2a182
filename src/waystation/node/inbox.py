"""A worker's inbox: bounded, in order, and without a task, future or lock per message (WK-5, WK-6).

A future is made only when somebody has to wait: the worker for an empty inbox, a sender for a full
one. Only queueing lives here; what is queued, and why, is the node's business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items for one reader, from many writers.

    Writers that had to wait come before those that come later, so that no sender overtakes itself.
    """

    __slots__ = ("_capacity", "_items", "_reader", "_waiting")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._waiting: deque[tuple[T, asyncio.Future[bool]]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: T) -> bool:
        """Put an item in, unless there is no room or somebody has been waiting for it."""
        waiting = self._waiting
        while waiting and waiting[0][1].done():  # gave up meanwhile
            waiting.popleft()
        if waiting or len(self._items) >= self._capacity:
            return False
        self._items.append(item)
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)
        return True

    def line_up(self, item: T, deadline: float | None) -> asyncio.Future[bool]:
        """Wait for room: the future says whether the item got in before the deadline.

        `deadline` is a time of the running loop's clock, or None. Cancelling the future withdraws
        the item.
        """
        loop = asyncio.get_running_loop()
        room: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((item, room))
        if deadline is not None:
            alarm = loop.call_at(deadline, _refuse, room)
            room.add_done_callback(lambda _: alarm.cancel())
        return room

    async def filled(self) -> None:
        """Return when there is something to take."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    def take(self) -> T:
        """Take the oldest item out, and let in who waits for its place."""
        item = self._items.popleft()
        if self._waiting:
            self._let_in()
        return item

    def empty(self) -> list[T]:
        """Take everything out for good, and turn away who waits for a place."""
        items = list(self._items)
        self._items.clear()
        while self._waiting:
            _refuse(self._waiting.popleft()[1])
        return items

    def _let_in(self) -> None:
        while self._waiting and len(self._items) < self._capacity:
            item, room = self._waiting.popleft()
            if not room.done():
                self._items.append(item)
                room.set_result(True)


def _refuse(room: asyncio.Future[bool]) -> None:
    if not room.done():
        room.set_result(False)
