"""What a server holds for receivers that are slow: measured, kept within a budget (FL-1, FL-3).

Nothing is counted per message. Whoever has written something large to a receiver, or let something
wait for it, says so with `count_soon`; what is still there a moment later is measured then. (A
moment later, since some event loops write at the end of their turn.) Less than `FREE` bytes for one
receiver need not be said. The rules of core/shares.py say what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from waystation.core.shares import Shares

FREE: Final = 16 * 1024
"""So many bytes may wait for a receiver uncounted."""

REFRESH: Final = 0.05
"""Seconds between two measurements of everybody, when the budget is spent, and a last chance to
read for those who hold most."""

T = TypeVar("T")


class HeldBytes(Generic[T]):
    """The receivers for which bytes are held, and how many.

    `measure` says how many bytes are held for a receiver now; `give_up` lets go of them, and of the
    receiver. While `is_tight`, whoever holds much gets no more: ask `allows` then.
    """

    __slots__ = ("_due", "_give_up", "_measure", "_measured_at", "_relieving", "is_tight", "shares")

    def __init__(
        self, limit: int, measure: Callable[[T], int], give_up: Callable[[T], None]
    ) -> None:
        self.shares: Shares[T] = Shares(limit)
        self.is_tight = False
        self._measure = measure
        self._give_up = give_up
        self._due: dict[T, None] = {}
        self._measured_at = 0.0
        self._relieving = False  # some will be given up, unless they read in the next moment

    def count_soon(self, holder: T) -> None:
        """Measure what is held for somebody, a moment later."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._count_due)
        self._due[holder] = None

    def forget(self, holder: T) -> None:
        """Note that nothing is held for somebody any more."""
        self._due.pop(holder, None)
        self.shares.note(holder, 0)
        self.is_tight = self.shares.is_over

    def allows(self, holder: T, size: int) -> bool:
        """Whether somebody may hold this many bytes more."""
        if self.is_tight:
            self._refresh()
            self._note(holder)  # who has just read something holds nothing
        return self.shares.allows(holder, size)

    def limit_of(self, limit: int) -> int:
        """How much a receiver may hold now that may hold `limit` bytes otherwise."""
        if self.is_tight:
            self._refresh()
        return min(limit, max(FREE, self.shares.part)) if self.is_tight else limit

    def measure_all(self) -> None:
        """Measure again what is held; it may have become less."""
        for holder in self.shares.holders():
            self._note(holder)
        self.is_tight = self.shares.is_over

    def _count_due(self) -> None:
        due, self._due = self._due, {}
        for holder in due:
            self._note(holder)
        was_tight, self.is_tight = self.is_tight, self.shares.is_over
        if self.is_tight and not was_tight:
            self.measure_all()
        if self.is_tight and not self._relieving and self.shares.in_excess() is not None:
            self._relieving = True
            asyncio.get_running_loop().call_later(REFRESH, self._relieve)

    def _relieve(self) -> None:
        """Give up those who hold most, if that much is held in truth."""
        self._relieving = False
        self.measure_all()
        while (victim := self.shares.in_excess()) is not None:
            self.shares.note(victim, 0)
            self._give_up(victim)
        self.is_tight = self.shares.is_over

    def _note(self, holder: T) -> None:
        self.shares.note(holder, self._measure(holder))

    def _refresh(self) -> None:
        """See whether the budget is spent in truth, unless that was done a moment ago."""
        now = asyncio.get_running_loop().time()
        if now - self._measured_at >= REFRESH:
            self._measured_at = now
            self.measure_all()
