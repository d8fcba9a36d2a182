"""Inboxes that count the bytes in them, without a cost for each small message (FL-1).

Payloads of up to 8 KiB are bounded by their number. They are counted for the node's budget alone,
many at once: from the 16th on, and then every 64, or fewer if they are not that small. Larger ones
are counted one by one in the room of the receiver, so that whoever brings too many of them is asked
to wait.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final, NamedTuple

from waystation.core.budget import OVERHEAD
from waystation.core.message import Arrival
from waystation.node.flow import NodeFlow, Origin, Room
from waystation.node.inbox import Inbox, Pending, Ticket

LARGE: Final = 8 * 1024
"""Payloads of more bytes are counted one by one."""

_FIRST_COUNT: Final = 16
_NEXT_COUNT: Final = 64  # if they are small enough
_UNCOUNTED: Final = 64 * 1024  # bytes that an inbox should not have without counting them


class _Counted(NamedTuple):
    """Items of an inbox that were counted together: one large, or many small ones."""

    end: int  # the number of items that are taken when the last of them is
    size: int
    is_large: bool
    origin: Origin | None


class MessageInbox(Inbox[Arrival]):
    """An inbox that counts the bytes in it: large messages in a room, the small in the budget.

    What is counted are always the oldest items.
    """

    __slots__ = ("_counted", "_due", "_flow", "_step", "room")

    def __init__(self, flow: NodeFlow, capacity: int, name: str) -> None:
        super().__init__(capacity)
        self._flow = flow
        self.room = Room(flow, self.waiting, name, moves=lambda: self._taken + self.waiting.moves)
        self._counted: deque[_Counted] = deque()
        self._due = 1  # the number of taken items at which `taken` is called
        self._step = _NEXT_COUNT  # how many more small items are counted together
        self.relax()

    def admits(self, item: Arrival) -> bool:
        """Count a large message, or the small ones that came since the last time."""
        large = len(item.message.payload) > LARGE
        if self._flow.sheds:
            self._flow.shed += 1
            return False
        if large and not self.room.account.has_room(len(item.message.payload) + OVERHEAD):
            return False
        self._count(item, large)
        return True

    def lets_in(self, item: Arrival, ticket: Ticket) -> bool:
        """Count what waited; with a `Held` it has room already, which it gives back then."""
        size = len(item.message.payload)
        large = size > LARGE
        has_room = not self.items or self.room.account.has_room(size + OVERHEAD)
        if large and isinstance(ticket, Pending) and not has_room:
            return False
        self._count(item, large)
        return True

    def look_ahead(self) -> None:
        """Have `taken` called when something is to be given back, or somebody let in."""
        taken, counted = self._taken, self._counted
        if not self.line and counted:
            self.left = counted[0].end - taken
        else:
            super().look_ahead()
            if counted:
                self.left = min(self.left, counted[0].end - taken)
        self._due = taken + self.left

    def taken(self) -> None:
        """Give back what was counted, as soon as all that was counted together is taken."""
        counted, taken = self._counted, self._taken
        while counted and counted[0].end <= taken:
            self._give_back(counted.popleft())
        super().taken()

    def empty(self) -> list[Arrival]:
        """Take everything out for good, and reject what waits for room."""
        while self._counted:
            self._give_back(self._counted.popleft())
        return super().empty()

    @property
    def _taken(self) -> int:
        """How many items were taken, since there is anything to count."""
        return self._due - self.left

    def relax(self) -> None:
        """Return to the fast way, as far as nothing is counted."""
        self._set_mark()
        if not self._counted:
            self.slow = False

    def _count(self, item: Arrival, large: bool) -> None:
        """Count a large message that is put in next, and all small ones that are not counted yet.

        A small one that is put in next is not counted: it is among those of the next time.
        """
        items, taken = self.items, self._taken
        counted = self._counted
        is_first = not counted
        end = taken + len(items)
        start = 0 if is_first else counted[-1].end - taken
        number = len(items) - start
        if number >= (1 if large else min(self._step, _FIRST_COUNT)):
            found = islice(items, start, None)
            size = sum([len(one.message.payload) for one in found]) + OVERHEAD * number
            self._flow.account.take(size)
            counted.append(_Counted(end, size, False, None))
            self._step = min(_NEXT_COUNT, max(1, number * _UNCOUNTED // size))
        if large:
            message = item.message
            size = len(message.payload) + OVERHEAD
            origin = None if item.multicast_id is not None else self._flow.origin_of(message)
            self.room.add(size, origin)
            counted.append(_Counted(end + 1, size, True, origin))
        if counted:
            self.slow = True
            if is_first:
                self.look_ahead()
        self._set_mark()

    def _set_mark(self) -> None:
        """Count again when there are so many more small items."""
        if self.line:
            self.mark = 0
        elif not self._counted:
            self.mark = min(self.capacity, self._step, _FIRST_COUNT)
        else:
            ahead = self._counted[-1].end - self._taken
            self.mark = min(self.capacity, ahead + self._step)

    def _give_back(self, counted: _Counted) -> None:
        if counted.is_large:
            self.room.remove(counted.size, counted.origin)
        else:
            self._flow.account.give_back(counted.size)
