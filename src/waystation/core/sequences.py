"""Messages between members, each once and in order, over routes that may fail. No sockets.

The sender numbers its messages and keeps each until the receiver has acknowledged it; after a
change of route, or a timeout, it sends them again. The receiver accepts only the next number. So
what was lost with a router or an interface is sent over the next one, and duplicates are
ignored (GR-12, LA-10). The receiver also reports how many more messages it has room for.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from waystation.core.expiry import NEVER, Expiry
from waystation.core.identity import Uuid
from waystation.core.outcome import Reason

BUNDLE: Final = 60_000
"""Messages of one turn share a packet up to this many bytes."""

FIRST_TIMEOUT: Final = 0.3
LONGEST_TIMEOUT: Final = 5.0
"""Seconds without an acknowledgement after which the oldest are sent again: doubling."""

RESTART: Final = 1 << 16
"""A jump by this much is not a loss: the sender had forgotten us and started over."""


def first_number(now_ms: int) -> int:
    """The first number of a sender: higher than any that it used before it forgot a receiver.

    >>> first_number(2) - first_number(1) == RESTART
    True
    """
    return now_ms * RESTART + 1


OnEnd: TypeAlias = Callable[[Reason | None], None]
"""Called when a message has arrived, or with the reason why it was dropped."""

Item: TypeAlias = tuple[bytes | None, Expiry, OnEnd | None]
"""A message that is kept until it is acknowledged: payload, expiry, and a callback for its end."""


class Bundle(NamedTuple):
    """Messages for one packet: the number of the first, and their payloads."""

    first: int
    payloads: list[bytes | None]


def bundles(first: int, payloads: Iterable[bytes | None]) -> Iterator[Bundle]:
    """Messages with numbers from `first` on, in packets of limited size.

    >>> [len(bundle.payloads) for bundle in bundles(1, [b"x" * 40_000] * 3)]
    [1, 1, 1]
    """
    chosen: list[bytes | None] = []
    size = 0
    for payload in payloads:
        more = 4 + (0 if payload is None else len(payload))
        if chosen and size + more > BUNDLE:
            yield Bundle(first, chosen)
            first += len(chosen)
            chosen, size = [], 0
        chosen.append(payload)
        size += more
    if chosen:
        yield Bundle(first, chosen)


class Outgoing:
    """What is sent to a member, or to all: numbered, and kept until it is acknowledged.

    >>> stream = Outgoing(credit=2)
    >>> stream.push(b"a"), stream.push(b"b"), stream.push(b"c")
    (1, 2, 3)
    >>> stream.take_fresh()  # there is room for two
    [Bundle(first=1, payloads=[b'a', b'b'])]
    >>> [item[0] for item in stream.acknowledge(2)], stream.take_fresh()
    ([b'a', b'b'], [Bundle(first=3, payloads=[b'c'])])
    """

    __slots__ = (
        "_expires",
        "_items",
        "base",
        "credit",
        "due",
        "expired",
        "mark",
        "next",
        "size",
        "timeout",
        "unsent",
    )

    def __init__(self, credit: int, start: int = 1) -> None:
        self.base = start  # the oldest unacknowledged number
        self.next = start
        self.unsent = start  # the oldest number that was not sent yet
        self.credit = credit  # this many from the base on may be in flight
        self.size = 0  # bytes that are kept
        self.mark = 0  # from this size on, the owner counts again before it adds more
        self.due = NEVER  # when to send again
        self.timeout = FIRST_TIMEOUT
        self.expired: list[Item] = []  # not sent in time, for those who want to know
        self._items: deque[Item] = deque()
        self._expires = False  # some of them expire

    def __len__(self) -> int:
        return len(self._items)

    def push(self, payload: bytes, expiry: Expiry = NEVER, on_end: OnEnd | None = None) -> int:
        """Keep a message to be sent; returns its number."""
        number = self.next
        self._items.append((payload, expiry, on_end))
        if expiry != NEVER:
            self._expires = True
        self.next = number + 1
        self.size += len(payload)
        return number

    def take_fresh(self, now_ms: Expiry = 0, *, most: int | None = None) -> list[Bundle]:
        """The unsent messages that may be sent now; an expired one is sent as None.

        With `most`, only the first `most` packets of them.
        """
        first = self.unsent
        end = min(self.next, self.base + self.credit)
        if first >= end:
            return []
        payloads = self._living(first - self.base, end - self.base, now_ms)
        chosen = list(islice(bundles(first, payloads), most))
        self.unsent = chosen[-1].first + len(chosen[-1].payloads)
        return chosen

    def take_again(self, now_ms: Expiry, *, most: int | None = None) -> list[Bundle]:
        """The unacknowledged messages, or the first `most` packets of them."""
        payloads = self._living(0, self.unsent - self.base, now_ms)
        return list(islice(bundles(self.base, payloads), most))

    def _living(self, start: int, stop: int, now_ms: Expiry) -> list[bytes | None]:
        chosen = list(islice(self._items, start, stop))
        if self._expires:
            for index, item in enumerate(chosen, start):
                if item[1] <= now_ms and item[0] is not None:
                    self.expired.append(item)
                    self._items[index] = (None, item[1], None)
                    self.size -= len(item[0])
                    chosen[index - start] = self._items[index]
        return [item[0] for item in chosen]

    def acknowledge(self, number: int) -> list[Item]:
        """Everything up to this number has arrived; returns those messages.

        A message that was not sent cannot have arrived, whatever the receiver says.
        """
        return self._take(min(number + 1, self.unsent) - self.base)

    def give_up(self) -> list[Item]:
        """Forget all kept messages; returns them."""
        return self._take(len(self._items))

    def _take(self, count: int) -> list[Item]:
        if count <= 0:
            return []
        pop = self._items.popleft
        done = [pop() for _ in range(count)]
        self.base += count
        self.unsent = max(self.unsent, self.base)
        self.size -= sum([len(item[0] or b"") for item in done])
        self.timeout = FIRST_TIMEOUT
        self.due = NEVER
        return done

    def is_overdue(self, now: float) -> bool:
        """Whether to send again; the time until the next retry doubles.

        Also if everything waits for room: the packet that reports room may have been lost.
        """
        if not self._items:
            self.due = NEVER
            return False
        if self.due == NEVER:
            self.due = now + self.timeout
            return False
        if now < self.due:
            return False
        self.timeout = min(2 * self.timeout, LONGEST_TIMEOUT)
        self.due = now + self.timeout
        return True


class Incoming:
    """What comes from a member, to us or to all: each number once, and in order.

    >>> stream = Incoming()
    >>> stream.accept(4, 4, [b"d"]), stream.accept(4, 4, [b"d", b"e"]), stream.expected
    ([b'd'], [b'e'], 6)
    >>> stream.accept(9, 4, [b"i"]), stream.gap
    ((), True)
    """

    __slots__ = ("expected", "gap", "lost")

    def __init__(self) -> None:
        self.expected = 0  # nothing is known about the sender's numbers
        self.gap = False
        self.lost = 0  # this many will never come

    def accept(
        self, first: int, base: int, payloads: Sequence[bytes | None]
    ) -> Sequence[bytes | None]:
        """The messages that are new and next in order; `expected` is the number after them."""
        expected = self.expected
        if not expected:
            expected = base
        elif base > expected:
            self.lost += base - expected if base - expected < RESTART else 0
            expected = base
        self.expected = expected
        if not expected or first > expected:
            self.gap = bool(expected)
            return ()
        new = payloads if first == expected else payloads[expected - first :]
        if new:
            self.expected = first + len(payloads)
            self.gap = False
        return new


class ToAll(Outgoing):
    """What is sent to all members at once, kept until each has acknowledged it.

    A member that cannot keep up is waited for, but only for a limited time: then it loses messages.
    """

    __slots__ = ("_last", "acked")

    def __init__(self, credit: int) -> None:
        super().__init__(credit)
        self.acked: dict[Uuid, int] = {}  # by member: everything up to this has arrived there
        self._last = 0  # how many of them have acknowledged the least; 0: to be counted

    def join(self, uuid: Uuid) -> int:
        """Add a member, which gets everything from now on; returns the next number."""
        self.acked[uuid] = self.next - 1
        self._last = 0
        return self.next

    def leave(self, uuid: Uuid) -> list[Item]:
        """Remove a member; returns the messages that have now arrived everywhere."""
        if self.acked.pop(uuid, None) is None:
            return []
        return self._settle()

    def acknowledge_from(self, uuid: Uuid, number: int) -> list[Item]:
        """A member has everything up to this number; returns what has now arrived everywhere."""
        before = self.acked.get(uuid)
        if before is None or number <= before:
            return []
        self.acked[uuid] = min(number, self.unsent - 1)
        if before + 1 == self.base and self._last > 1:
            self._last -= 1  # others are equally far behind
            return []
        return self._settle() if before + 1 <= self.base else []

    def behind(self) -> list[Uuid]:
        """The members that have not acknowledged everything."""
        end = self.unsent - 1
        return [uuid for uuid, number in self.acked.items() if number < end]

    def last_ones(self) -> list[Uuid]:
        """The members that have not acknowledged the oldest kept message."""
        return [uuid for uuid, number in self.acked.items() if number < self.base]

    def missing(self, uuid: Uuid, now_ms: Expiry, *, most: int | None = None) -> list[Bundle]:
        """The messages that a member has not acknowledged, in packets."""
        start = max(self.acked[uuid] + 1, self.base)
        kept = islice(self._items, start - self.base, self.unsent - self.base)
        payloads = [None if expiry <= now_ms else payload for payload, expiry, _ in kept]
        return list(islice(bundles(start, payloads), most))

    def _settle(self) -> list[Item]:
        if not self.acked:
            return self.give_up()  # no member is left to get it
        least = min(self.acked.values())
        self._last = sum(1 for number in self.acked.values() if number == least)
        return self.acknowledge(least)


class Arrivals:
    """What comes from one member: to us alone, and to all."""

    __slots__ = ("all", "held", "is_held", "one", "unacknowledged", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.one = Incoming()
        self.all = Incoming()
        self.held: deque[tuple[Sequence[bytes | None], int, bool]] = deque()
        self.waiting = self.waiting_bytes = 0  # messages in those, and their size
        self.is_held = False  # whether delivery is paused
        self.unacknowledged = 0
