"""Custody of durable messages: their numbers, what was handled, and in which order they go (DU).

Whoever sends a durable message numbers it for its pair: the store that it was first written to, the
name that it was sent by, and its receiver. The node of the receiver remembers which numbers of each
pair have ended there, so it knows a repetition whichever way that comes (DU-3). What it remembers
grows with the pairs, and not with the messages: numbers end mostly in order, and a message that
will never come leaves a gap only until its life is over, since each message tells the lowest number
of its pair that may still be alive.

Pure: no disk, no clock. `waystation.node.custody` keeps the messages and gives them on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from waystation.core.budget import OVERHEAD
from waystation.core.expiry import Expiry
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Reason

GRACE: Final = 600_000
"""Milliseconds that a message counts as alive beyond its expiry: clocks of nodes differ."""

STRETCHES: Final = 32
"""Maximum number of stretches of numbers whose expiry is remembered."""

LONGEST_PAUSE: Final = 60.0
"""Seconds between two attempts, at most."""

WINDOW: Final = 64
"""Messages of one pair that are held in memory, at most; the others stay on disk."""

WINDOW_BYTES: Final = 256 * 1024
"""Bytes of them, unless a single one is larger."""

Stretch: TypeAlias = tuple[int, int]
"""Two numbers: what they mean stands where they are used."""


class Pair(NamedTuple):
    """Who numbers messages, and to whom: the order of a pair is kept (DU-4)."""

    store: str
    sender: str
    receiver: str

    @property
    def participant(self) -> str:
        """Who receives it.

        >>> Pair("store", "hub", "truck-7").of_copy("subscriber-1").participant
        'subscriber-1'
        """
        return self.receiver.partition("\n")[0]

    def of_copy(self, subscriber: str) -> Pair:
        """The pair of the copies for a subscriber: they have the numbers of what was published."""
        return Pair(self.store, self.sender, f"{subscriber}\n{self.receiver}")

    def of_retries(self) -> Pair:
        r"""The pair of dead letters that are sent again: copies get numbers of their own then.

        >>> Pair("store", "hub", "topic").of_copy("subscriber-1").of_retries().receiver
        'subscriber-1\n'
        """
        subscriber, end, _ = self.receiver.partition("\n")
        return Pair(self.store, self.sender, subscriber + end)


class Letter(Struct, frozen=True, gc=False):
    """A durable message, as a node has it in custody.

    `attempt` is how often it may have been handled before, and `failures` how often its handler
    raised. `received_at`, `via` and `sender` tell how this process came by it, as in an `Arrival`.
    """

    number: int
    message: Message
    queued_at: int  # microseconds: when it was first on a disk, anywhere
    attempt: int = 0
    failures: int = 0
    received_at: int = 0
    via: str | None = None
    sender: str | None = None

    @property
    def size(self) -> int:
        """The bytes that it counts for."""
        return len(self.message.payload) + OVERHEAD


Settled: TypeAlias = Callable[[Reason | None, BaseException | None], None]
"""Told what became of a message at its worker: None as the reason if its handler returned."""


class CustodyArrival(Arrival, frozen=True, gc=False):
    """A durable message at a node, for its records: which attempt, and who took custody.

    The `custodian` is the node that did, or `ended` if nobody had to: it had ended already, or it
    went to a stranger, who takes no custody (DU-6).
    """

    attempt: int | None = None
    custodian: str | None = None
    late: bool = False
    settled: Settled | None = None

    def settle(self, reason: Reason | None, error: BaseException | None = None) -> None:
        """Tell the custodian that a handler has returned, or why the message was not handled."""
        assert self.settled is not None
        self.settled(reason, error)


ENDED: Final = "ended"


def pause_after(failures: int, longest: float = LONGEST_PAUSE) -> float:
    """Seconds until the next attempt, after this many that failed: 1, 2, 4 … (DU-7).

    >>> [pause_after(failures) for failures in (1, 2, 3, 7, 100)]
    [1.0, 2.0, 4.0, 60.0, 60.0]
    """
    return min(longest, 2.0 ** min(failures - 1, 16))


class Numbers:
    """The numbers of a pair, where it sends: the next one, and which may still be alive.

    Numbers are remembered in stretches, each with the latest expiry in it. When there are too many,
    neighbours become one; so a number may count as alive for longer than it is, never shorter.

    >>> numbers = Numbers()
    >>> numbers.draw(expiry=1_000), numbers.draw(expiry=900_000), numbers.lowest(now=0)
    (1, 2, 1)
    >>> numbers.lowest(now=1_000 + GRACE), numbers.lowest(now=900_000 + GRACE)
    (2, 3)
    """

    __slots__ = ("_stretches", "next")

    def __init__(self, next: int = 1, stretches: Iterable[tuple[int, Expiry]] = ()) -> None:
        self.next = next
        self._stretches: list[tuple[int, Expiry]] = [(first, ends) for first, ends in stretches]

    def draw(self, expiry: Expiry) -> int:
        """The number for a message that lives until then."""
        number, stretches = self.next, self._stretches
        self.next += 1
        if not stretches or stretches[-1][1] < expiry:
            stretches.append((number, expiry))
            if len(stretches) > STRETCHES:
                self._merge()
        return number

    def lowest(self, now: Expiry) -> int:
        """The lowest number that may be alive; the next one if none is."""
        stretches = self._stretches
        while stretches and now >= stretches[0][1] + GRACE:
            del stretches[0]
        return stretches[0][0] if stretches else self.next

    def stretches(self) -> list[tuple[int, Expiry]]:
        """What is to be kept on disk beside the next number: first numbers, and latest expiries."""
        return list(self._stretches)

    def _merge(self) -> None:
        old = self._stretches
        self._stretches = [
            (old[index][0], max(expiry for _, expiry in old[index : index + 2]))
            for index in range(0, len(old), 2)
        ]


class Handled:
    """The numbers of a pair that have ended at its receiver: the last, and the gaps below it.

    >>> handled = Handled()
    >>> for number in (1, 2, 5): handled.note(number)
    >>> handled.knows(2), handled.knows(4), handled.is_late(4), handled.gaps()
    (True, False, True, [(3, 4)])
    >>> handled.close_below(4)
    >>> handled.knows(3), handled.knows(4), handled.gaps()
    (True, False, [(4, 4)])
    """

    __slots__ = ("_gaps", "last")

    def __init__(self, last: int = 0, gaps: Iterable[Stretch] = ()) -> None:
        self.last = last
        self._gaps: list[Stretch] = [(first, final) for first, final in gaps]  # in order

    def gaps(self) -> list[Stretch]:
        """First and last numbers of the gaps, in order."""
        return list(self._gaps)

    def knows(self, number: int) -> bool:
        """Whether a message with this number has ended here, so that this is a repetition."""
        return number <= self.last and self._gap_with(number) is None

    def is_late(self, number: int) -> bool:
        """Whether a later message came first: that happens when the route changed (DU-4)."""
        return number < self.last

    def note(self, number: int) -> None:
        """Remember that a message has ended."""
        if number > self.last:
            if number > self.last + 1:
                self._gaps.append((self.last + 1, number - 1))
            self.last = number
            return
        index = self._gap_with(number)
        if index is not None:
            first, final = self._gaps[index]
            parts = [(first, number - 1), (number + 1, final)]
            self._gaps[index : index + 1] = [part for part in parts if part[0] <= part[1]]

    def close_below(self, lowest: int) -> None:
        """Forget gaps below this number: what was to come there is not alive any more."""
        self.last = max(self.last, lowest - 1)
        if self._gaps and self._gaps[0][0] < lowest:
            rest = [(max(first, lowest), final) for first, final in self._gaps]
            self._gaps = [gap for gap in rest if gap[0] <= gap[1]]

    def _gap_with(self, number: int) -> int | None:
        index = bisect_left(self._gaps, number, key=lambda gap: gap[1])
        if index < len(self._gaps) and self._gaps[index][0] <= number:
            return index
        return None


def _number_of(letter: Letter) -> int:
    return letter.number


class Lane:
    """What one node has in custody of one pair: the first of it in memory, all of it on disk.

    Letters are taken in the order of their numbers, and those in hand go before the others.

    >>> from waystation.core.address import Route
    >>> message = Message(Route.parse("truck-7"), Route(), b"hello")
    >>> lane = Lane(Pair("store", "hub", "truck-7"))
    >>> [lane.add(Letter(number, message, 0)) for number in (2, 1, 3)]
    [True, True, True]
    >>> [letter.number for letter in lane.take(2, 10_000)], lane.messages
    ([1, 2], 3)
    >>> done = lane.settle([1])
    >>> lane.give_back()
    >>> [letter.number for letter in lane.take(9, 10_000)], lane.messages
    ([2, 3], 2)
    """

    __slots__ = ("_loaded", "bytes", "in_hand", "messages", "more", "pair")

    def __init__(self, pair: Pair, messages: int = 0, size: int = 0) -> None:
        self.pair = pair
        self.messages = messages
        self.bytes = size
        self.more = messages > 0  # whether there are others on disk, behind those in memory
        self.in_hand: tuple[Letter, ...] = ()
        self._loaded: list[Letter] = []  # in order

    @property
    def needs_load(self) -> bool:
        """Whether all that it has is on disk."""
        return self.more and not self._loaded and not self.in_hand

    @property
    def is_idle(self) -> bool:
        """Whether the next letter can be taken."""
        return bool(self._loaded) and not self.in_hand

    def first(self) -> Letter:
        """The letter that goes next, of those in memory."""
        return self._loaded[0]

    def add(self, letter: Letter) -> bool:
        """Count a letter that is on disk now; returns whether it is in memory too."""
        self.messages += 1
        self.bytes += letter.size
        loaded = self._loaded
        is_last = not loaded or letter.number > loaded[-1].number
        if is_last and (self.more or self._is_full()):
            self.more = True
            return False
        insort(loaded, letter, key=_number_of)
        return True

    def _is_full(self) -> bool:
        loaded = self._loaded
        return len(loaded) >= WINDOW or sum(one.size for one in loaded) >= WINDOW_BYTES

    def unload(self) -> None:
        """Keep nothing in memory: nobody can have it for a while."""
        self._loaded = []
        self.more = self.messages > 0

    def load(self, letters: Sequence[Letter], *, more: bool) -> None:
        """Take the first letters that are on disk into memory."""
        self._loaded = sorted(letters, key=_number_of)
        self.more = more

    def take(self, most: int, size: int) -> tuple[Letter, ...]:
        """Take the first letters in hand: at most so many, of at most so many bytes, at least one.

        All of them have the same route.
        """
        chosen: list[Letter] = []
        for letter in self._loaded[:most]:
            size -= letter.size
            routes_differ = chosen and (
                letter.message.onward_route != chosen[0].message.onward_route
            )
            if routes_differ or (chosen and size < 0):
                break
            chosen.append(letter)
        del self._loaded[: len(chosen)]
        self.in_hand = tuple(chosen)
        return self.in_hand

    def settle(self, numbers: Iterable[int]) -> list[Letter]:
        """Forget letters that are no longer in custody here; returns them."""
        gone = set(numbers)
        found = [one for one in (*self.in_hand, *self._loaded) if one.number in gone]
        self.in_hand = tuple(one for one in self.in_hand if one.number not in gone)
        self._loaded = [one for one in self._loaded if one.number not in gone]
        self.discount(len(found), sum(one.size for one in found))
        return found

    def discount(self, messages: int, size: int) -> None:
        """Count no longer what has left the disk."""
        self.messages -= messages
        self.bytes -= size

    def give_back(self, *changed: Letter) -> None:
        """Let what is in hand wait again, some of it with another count of attempts."""
        anew = {letter.number: letter for letter in changed}
        back = [anew.get(letter.number, letter) for letter in self.in_hand]
        self._loaded = sorted([*back, *self._loaded], key=_number_of)
        self.in_hand = ()
