"""Inboxes that count the bytes in them, without a cost for each small message (FL-1).

Payloads of up to 8 KiB are bounded by their number. They are counted for the node's budget alone,
many at once: from the 16th on, and then every 64, or fewer if they are not that small. Larger ones
are counted in the room of the receiver, so that whoever brings too many of them is asked to wait:
one by one, or as soon as 64 KiB of them have come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain, islice
from typing import Final, NamedTuple

from waystation.core.budget import OVERHEAD
from waystation.core.message import Arrival
from waystation.node.flow import NodeFlow, Origin, Room
from waystation.node.inbox import Inbox, Pending, Ticket

LARGE: Final = 8 * 1024
"""Payloads of more bytes are counted in the room of the receiver."""

_FIRST_COUNT: Final = 16
_NEXT_COUNT: Final = 64  # if they are small enough
_UNCOUNTED: Final = 64 * 1024  # bytes that an inbox should not have without counting them


class _Counted(NamedTuple):
    """Items of an inbox that were counted together: the small ones, and the large by origin."""

    end: int  # the number of items that are taken when the last of them is
    small: int  # bytes
    large: dict[Origin | None, tuple[int, int]]  # bytes, and how many


class MessageInbox(Inbox[Arrival]):
    """An inbox that counts the bytes in it: large messages in a room, the small in the budget.

    What is counted are always the oldest items.
    """

    __slots__ = ("_counted", "_due", "_flow", "_loose", "_most_loose", "_step", "room")

    def __init__(self, flow: NodeFlow, capacity: int, name: str) -> None:
        super().__init__(capacity)
        self._flow = flow
        self.room = Room(flow, self.waiting, name, moves=lambda: self._taken + self.waiting.moves)
        self._counted: deque[_Counted] = deque()
        self._due = 1  # the number of taken items at which `taken` is called
        self._loose = 0  # bytes of large items that are not counted
        self._most_loose = min(_UNCOUNTED, self.room.account.limit // 16)
        self._step = _NEXT_COUNT  # how many more small items are counted together
        self.relax()

    def admits(self, item: Arrival) -> bool:
        """Count what came since the last time, unless it is little."""
        size = len(item.message.payload) + OVERHEAD
        large = size > LARGE + OVERHEAD
        if self._flow.sheds:
            self._flow.shed += 1
            return False
        if large:
            if not self.items:
                self._loose = 0
            loose = self._loose + size
            if not self.room.account.has_room(loose):
                return False
            if loose < self._most_loose and len(self.items) < self.mark:
                self._loose = loose
                return True
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
        """Count a large message that is put in next, and all that are not counted yet.

        A small one that is put in next is not counted: it is among those of the next time.
        """
        items, taken, counted = self.items, self._taken, self._counted
        is_first = not counted
        start = 0 if is_first else counted[-1].end - taken
        number = len(items) - start
        if large or number >= min(self._step, _FIRST_COUNT):
            found = islice(items, start, None)
            by_origin: dict[Origin | None, tuple[int, int]] = {}
            if large or self._loose:
                small = self._sort(chain(found, (item,)) if large else found, by_origin)
            else:
                small = sum([len(one.message.payload) for one in found]) + OVERHEAD * number
                self._step = min(_NEXT_COUNT, max(1, number * _UNCOUNTED // small))
            self._loose = 0
            self._flow.account.take(small)
            for origin, (size, messages) in by_origin.items():
                self.room.add(size, origin, messages)
            counted.append(_Counted(taken + len(items) + large, small, by_origin))
            self.slow = True
            if is_first:
                self.look_ahead()
        self._set_mark()

    def _sort(
        self, found: Iterable[Arrival], by_origin: dict[Origin | None, tuple[int, int]]
    ) -> int:
        """Add up large messages by their origin; returns the bytes of the small ones."""
        small = 0
        for arrival in found:
            message = arrival.message
            size = len(message.payload) + OVERHEAD
            if size <= LARGE + OVERHEAD:
                small += size
                continue
            origin = None if arrival.multicast_id is not None else self._flow.origin_of(message)
            bytes_so_far, messages = by_origin.get(origin, (0, 0))
            by_origin[origin] = (bytes_so_far + size, messages + 1)
        return small

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
        self._flow.account.give_back(counted.small)
        for origin, (size, messages) in counted.large.items():
            self.room.remove(size, origin, messages)
