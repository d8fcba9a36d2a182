"""Inboxes that count the bytes in them, without a cost for each small message (FL-1).

Payloads of up to 8 KiB are bounded by their number. They are counted for the node's budget alone,
many at once: from the 16th on, and then every 64, or fewer if they are not that small. Larger ones
are counted in the room of the receiver, so that whoever brings too many of them is asked to wait:
one by one, or as soon as 64 KiB of them have come. One of more than 64 KiB is counted for whoever
brought it until it is handled, since any number of workers may have one in hand.

Most inboxes that get so much are empty a moment later. So as long as the node holds less than a
quarter of its budget, an inbox first sets a part of that aside, until it is empty, and counts only
what does not fit in: more than 64 small messages, or 480 KiB of large ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Final, TypeAlias

from waystation.core.address import Route
from waystation.core.budget import OVERHEAD, Account
from waystation.core.message import Arrival
from waystation.node.flow import LARGE, NodeFlow, Origin, Room
from waystation.node.inbox import Inbox, Pending, Ticket

_FIRST_COUNT: Final = 16
_NEXT_COUNT: Final = 64  # if they are small enough
UNCOUNTED: Final = 64 * 1024
"""Bytes that an inbox, or its worker, should not have without counting them."""
_SET_ASIDE: Final = 1024 * 1024  # bytes
_LOOSE: Final = _SET_ASIDE - _NEXT_COUNT * (LARGE + OVERHEAD)  # what is left of that for large ones


_Large: TypeAlias = "dict[Origin | None, tuple[int, int]]"
"""Of large items, by their origin: bytes, and how many."""

_Counted: TypeAlias = "tuple[int, int, _Large]"
"""Items of an inbox that were counted together.

The number of items that are taken when the last of them is, the bytes of the small ones, and the
large ones.
"""


class MessageInbox(Inbox[Arrival]):
    """An inbox that counts the bytes in it: large messages in a room, the small in the budget.

    What is counted are always the oldest items.
    """

    __slots__ = (
        *("_account", "_aside", "_budget", "_counted", "_due", "_flow", "_step", "has_huge"),
        *("in_hand", "loose", "most_loose", "room", "step"),
    )

    def __init__(self, flow: NodeFlow, capacity: int, name: str) -> None:
        super().__init__(capacity)
        self._flow = flow
        self.room = Room(flow, self.waiting, name, moves=lambda: self._taken + self.waiting.moves)
        self._budget = flow.account
        self._account = self.room.account
        self._counted: deque[_Counted] = deque()
        self.in_hand: tuple[Account, int] | None = None  # of the message that is being handled
        self.has_huge = False  # one of those counted is to be counted while it is handled
        self._due = 1  # the number of taken items at which `taken` is called
        self._aside = 0  # bytes of the budget that are set aside
        self.loose = 0  # bytes of large items that are not counted
        self.most_loose = 0
        self.step: Callable[[], None] | None = None  # has the reader handle what is in it at once
        self._step = _NEXT_COUNT  # how many more small items are counted together
        self.relax()

    def wake_reader(self) -> None:
        """Let the reader go on, or begin at the end of what is delivered at the moment."""
        steps = self._flow.steps
        if steps is None or self.step is None:
            super().wake_reader()
        else:
            steps.append(self.step)

    def admits(self, item: Arrival) -> bool:
        """Count what came since the last time, unless it is little."""
        flow = self._flow
        if flow.sheds:
            flow.shed += 1
            return False
        if flow.looks and flow.sheds_from(flow.origin_of(item.message)):
            return False  # whoever lets it wait drops it
        if not self.items:
            self.drained()
        size = len(item.message.payload) + OVERHEAD
        large = size > LARGE + OVERHEAD
        loose = self.loose + size
        if large and not self._account.has_room(loose):
            return False
        if self._sets_aside() and not (large and loose > self.most_loose):
            self.loose = loose if large else self.loose
        else:
            self._count(item, large)
        return True

    def drained(self) -> None:
        """Give back what was set aside, since there is nothing in it."""
        self.loose = 0
        if self._aside:
            self._set_aside(-self._aside)
            self._set_mark()

    def lets_in(self, item: Arrival, ticket: Ticket) -> bool:
        """Count what waited; with a `Held` it has room already, which it gives back then."""
        size = len(item.message.payload)
        if size <= LARGE:
            if self._uncounted() >= min(self._step, _FIRST_COUNT):
                self._count(item, large=False)
            return True
        has_room = not self.items or self._account.has_room(size + OVERHEAD)
        if isinstance(ticket, Pending) and not has_room:
            return False
        self._count(item, large=True)
        return True

    def look_ahead(self) -> None:
        """Have `taken` called when something is to be given back, or somebody let in."""
        taken, counted = self._taken, self._counted
        if not self.line and counted:
            self.left = counted[0][0] - taken
        else:
            super().look_ahead()
            if counted:
                self.left = min(self.left, counted[0][0] - taken)
        self._due = taken + self.left

    def taken(self) -> None:
        """Give back what was counted, as soon as all that was counted together is taken."""
        counted, taken = self._counted, self._due - self.left
        while counted and counted[0][0] <= taken:
            self._give_back(counted.popleft())
        if self.line or not counted:
            super().taken()
        else:  # the same, without the calls
            step = _NEXT_COUNT if self._aside else self._step
            self.mark = min(self.capacity, counted[-1][0] - taken + step)
            self.left = left = counted[0][0] - taken
            self._due = taken + left

    def keep_in_hand(self, arrival: Arrival) -> None:
        """Go on counting a message that was taken, if it is so large, instead of the one before.

        It takes no room of the receiver any more. It counts until the next is taken, or `let_go`.
        """
        self.let_go()
        message = arrival.message
        if len(message.payload) > UNCOUNTED:
            origin = None if arrival.multicast_id is not None else self._flow.origin_of(message)
            account = self._flow.account if origin is None else origin[0].account
            self.in_hand = account, len(message.payload) + OVERHEAD
            account.take(self.in_hand[1])

    def let_go(self) -> None:
        """Count the message no more that was in hand."""
        if self.in_hand is not None:
            account, size = self.in_hand
            self.in_hand = None
            account.give_back(size)

    def empty(self) -> list[Arrival]:
        """Take everything out for good, and reject what waits for room."""
        self.drained()
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
        if not self._counted and self.in_hand is None:
            self.slow = self.has_huge = False

    def _count(self, item: Arrival, large: bool) -> None:
        """Count a large message that is put in next, and all that are not counted yet.

        A small one that is put in next is not counted: it is among those of the next time.
        """
        items, taken, counted = self.items, self._due - self.left, self._counted
        number = self._uncounted()
        if large or number >= min(self._step, _FIRST_COUNT):
            found = islice(reversed(items), number)  # the newest
            by_origin: _Large = {}
            if large or self.loose:
                small = self._sort(chain(found, (item,)) if large else found, by_origin)
            else:
                small = sum([len(one.message.payload) for one in found]) + OVERHEAD * number
                self._step = min(_NEXT_COUNT, max(1, number * UNCOUNTED // small))
            self.loose = 0
            self._budget.take(small)
            for origin, (size, messages) in by_origin.items():
                self.room.add(size, origin, messages)
            counted.append((taken + len(items) + large, small, by_origin))
            self.slow = True
            if len(counted) == 1:
                self.look_ahead()
        self._set_mark()

    def _uncounted(self) -> int:
        """How many items in it are not counted yet."""
        counted = self._counted
        return len(self.items) - (counted[-1][0] - self._due + self.left if counted else 0)

    def _sort(self, found: Iterable[Arrival], by_origin: _Large) -> int:
        """Add up large messages by their origin; returns the bytes of the small ones."""
        small = total = messages = 0
        onward: Route | None = None
        back: Route | None = None
        origin: Origin | None = None
        for arrival in found:
            message = arrival.message
            size = len(message.payload) + OVERHEAD
            if size <= LARGE + OVERHEAD:
                small += size
                continue
            if size > UNCOUNTED + OVERHEAD:
                self.has_huge = True
            if arrival.multicast_id is not None:
                _add(by_origin, None, size, 1)
                continue
            # What comes by the same way to the same receiver mostly has the very same routes.
            if message.return_route is not back or message.onward_route is not onward:
                _add(by_origin, origin, total, messages)
                total = messages = 0
                onward, back = message.onward_route, message.return_route
                origin = self._flow.origin_of(message)
            total += size
            messages += 1
        _add(by_origin, origin, total, messages)
        return small

    def _sets_aside(self) -> bool:
        """Set a part of the budget aside, unless that was done, or the node holds too much."""
        budget = self._budget
        if self._aside or self._counted or self.line:
            return False
        if 4 * (budget.used + _SET_ASIDE) > budget.limit:
            return False
        self._set_aside(_SET_ASIDE)
        self._set_mark()
        return True

    def _set_aside(self, size: int) -> None:
        self._aside += size
        self._flow.aside += size
        self._budget.take(size)

    def _set_mark(self) -> None:
        """Count again when there are so many more small items, or bytes of large ones."""
        aside, account = self._aside, self._account
        most = min(_LOOSE if aside else UNCOUNTED, account.limit // 16)
        self.most_loose = min(most, account.limit - account.used)
        if self.line:
            self.mark = 0
        elif not self._counted:
            first = _NEXT_COUNT if aside else min(self._step, _FIRST_COUNT)
            self.mark = min(self.capacity, first)
        else:
            ahead = self._counted[-1][0] - self._due + self.left
            self.mark = min(self.capacity, ahead + (_NEXT_COUNT if aside else self._step))

    def _give_back(self, counted: _Counted) -> None:
        _, small, large = counted
        self._budget.take(-small)
        for origin, (size, messages) in large.items():
            self.room.remove(size, origin, messages)


def _add(by_origin: _Large, origin: Origin | None, size: int, messages: int) -> None:
    """Add to what an origin has brought."""
    if messages:
        size_so_far, messages_so_far = by_origin.get(origin, (0, 0))
        by_origin[origin] = (size_so_far + size, messages_so_far + messages)
