"""When things end: the value NEVER, and deadlines that are found without looking at the rest.

Only instants live here, no entries and no rules about them. An instant is a whole number of
milliseconds since the epoch.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Final, Generic, TypeAlias, TypeVar

from waystation.errors import LocalError, quote

Expiry: TypeAlias = float
"""A whole number of milliseconds since the epoch, or NEVER. Dead from the instant itself on."""

NEVER: Final[Expiry] = math.inf
"""The expiry of what does not expire (RE-16): later than every instant, and no sum overflows it.

>>> NEVER + 30_000 == NEVER
True
"""

LAST_INSTANT: Final = 253_402_300_799_999
"""The end of the year 9999, the last instant that the journal and Spark can write down."""


def check_expiry(expiry: Expiry, *, rule: str) -> Expiry:
    """Return the expiry, or raise the LocalError that says what is wrong with it.

    >>> check_expiry(-5, rule="RE-1")
    Traceback (most recent call last):
    waystation.errors.LocalError: expiry -5 is no instant; give ... or NEVER
    """
    if expiry == NEVER or (type(expiry) is int and 0 <= expiry <= LAST_INSTANT):
        return expiry
    raise LocalError(
        f"expiry {quote(expiry)} is no instant",
        rule=rule,
        hint=f"give whole milliseconds since the epoch, 0 to {LAST_INSTANT}, or NEVER",
    )


def expiry_after(start: Expiry, milliseconds: Expiry) -> Expiry:
    """The instant `milliseconds` after `start`; past the last instant it is NEVER (RE-16).

    >>> expiry_after(1_000, 500), expiry_after(NEVER, 500), expiry_after(1_000, 10**18)
    (1500, inf, inf)
    """
    end = start + milliseconds
    return end if end <= LAST_INSTANT else NEVER


T = TypeVar("T")


class Deadlines(Generic[T]):
    """Items filed under the instant they are due; taking the due ones touches no other (RE-17).

    Nothing is taken back before its time: who no longer needs an item must recognise that when it
    comes out. Instants share slots of some seconds, and only slots that are wholly past come out:
    an item comes late by a slot at most, never early. That suits a job that frees memory; whoever
    must be exact compares the instant itself.

    >>> deadlines = Deadlines()
    >>> deadlines.file("truck-7", 1_500)
    >>> deadlines.take_due(1_500), deadlines.take_due(60_000)
    ([], ['truck-7'])
    """

    SLOT_MS: Final = 8_192

    def __init__(self) -> None:
        self._slots: dict[float, list[T]] = {}
        self._order: list[float] = []  # a heap of the keys of _slots

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def file(self, item: T, due: Expiry) -> None:
        """File an item under an instant, which must not be NEVER."""
        number = due // self.SLOT_MS
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = [item]
            heappush(self._order, number)
        else:
            slot.append(item)

    def take_due(self, now: Expiry) -> list[T]:
        """Take out the items of all slots that lie wholly in the past."""
        current = now // self.SLOT_MS
        due: list[T] = []
        while self._order and self._order[0] < current:
            due += self._slots.pop(heappop(self._order))
        return due
