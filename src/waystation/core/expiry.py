"""Expiry times: the value NEVER, and a collection of deadlines.

Only times live here, no entries and no rules about them. A time is a whole number of milliseconds
since the epoch.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Final, Generic, TypeAlias, TypeVar

from waystation.errors import LocalError, quote

Expiry: TypeAlias = float
"""Milliseconds since the epoch, a whole number, or NEVER. Dead from that very time on."""

NEVER: Final[Expiry] = math.inf
"""The expiry of what does not expire (RE-16): later than any time, and sums do not overflow.

>>> NEVER + 30_000 == NEVER
True
"""

LAST_INSTANT: Final = 253_402_300_799_999
"""The end of the year 9999, the last time that the journal and Spark can represent."""


def check_expiry(expiry: Expiry, *, rule: str) -> Expiry:
    """Return the expiry; raise a LocalError if it is invalid.

    >>> check_expiry(-5, rule="RE-1")
    Traceback (most recent call last):
    waystation.errors.LocalError: invalid expiry -5; give ... or NEVER
    """
    if expiry == NEVER or (type(expiry) is int and 0 <= expiry <= LAST_INSTANT):
        return expiry
    raise LocalError(
        f"invalid expiry {quote(expiry)}",
        rule=rule,
        hint=f"give whole milliseconds since the epoch, 0 to {LAST_INSTANT}, or NEVER",
    )


def expiry_after(start: Expiry, milliseconds: Expiry) -> Expiry:
    """The time `milliseconds` after `start`; NEVER if that is after LAST_INSTANT (RE-16).

    >>> expiry_after(1_000, 500), expiry_after(NEVER, 500), expiry_after(1_000, 10**18)
    (1500, inf, inf)
    """
    end = start + milliseconds
    return end if end <= LAST_INSTANT else NEVER


T = TypeVar("T")


class Deadlines(Generic[T]):
    """Items with deadlines; taking the due ones does not touch the others (RE-17).

    Items cannot be removed early: the caller must recognise those that are obsolete when they come
    out. Deadlines share slots of some seconds, and only slots that are completely past come out: an
    item is late by at most a slot, and never early. This suits jobs that free memory; compare the
    time itself where it must be exact.

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
        """Add an item with its deadline, which must not be NEVER."""
        number = due // self.SLOT_MS
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = [item]
            heappush(self._order, number)
        else:
            slot.append(item)

    def take_due(self, now: Expiry) -> list[T]:
        """Remove and return the items of all slots that are completely past."""
        current = now // self.SLOT_MS
        due: list[T] = []
        while self._order and self._order[0] < current:
            due += self._slots.pop(heappop(self._order))
        return due
