"""Who holds how much of one budget, and who has to do with less when it is spent (FL-1, FL-3).

A server holds bytes for many receivers. Each may hold up to a limit of its own; together they may
hold the budget. When that is spent, nobody gets more than an equal part of it, and when it is spent
by a quarter more, the one that holds most is to be given up. So the total is bounded, and who reads
what it gets holds nothing and does not notice.

Sizes are noted now and then, not with every message, and each replaces the one before. Pure.
"""

from __future__ import annotations

from heapq import nlargest
from typing import Generic, TypeVar

from waystation.core.budget import Account

T = TypeVar("T")


class Shares(Generic[T]):
    """The sizes that were noted, and what follows from them.

    >>> shares = Shares(100)
    >>> shares.note("slow", 90), shares.note("slower", 20)
    (None, None)
    >>> shares.is_over, shares.part
    (True, 50)
    >>> [shares.allows(holder, 30) for holder in ("slow", "slower", "quick")]
    [False, True, True]
    >>> shares.note("slower", 50)
    >>> shares.in_excess(), shares.largest(1)
    ('slow', [('slow', 90)])
    """

    __slots__ = ("_sizes", "total")

    def __init__(self, limit: int) -> None:
        self.total = Account(limit)
        self._sizes: dict[T, int] = {}  # only of those who hold something

    def __contains__(self, holder: T) -> bool:
        return holder in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent, so that everybody has to do with an equal part."""
        return self.total.is_over

    @property
    def part(self) -> int:
        """The equal part of one holder, in bytes."""
        return self.total.limit // max(1, len(self._sizes))

    def note(self, holder: T, size: int) -> None:
        """Note how many bytes are held for somebody now; 0 is to forget it."""
        before = self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size
        self.total.take(size - before)

    def holders(self) -> list[T]:
        """Everybody who holds something."""
        return list(self._sizes)

    def allows(self, holder: T, size: int) -> bool:
        """Whether all together have room for this many bytes more, if they are for this holder.

        Who holds nothing takes one message of any size.
        """
        held = self._sizes.get(holder, 0)
        return not held or not self.is_over or held + size <= self.part

    def in_excess(self) -> T | None:
        """Whom to give up: who holds most, if the budget is spent by a quarter more; else None."""
        if 4 * self.total.used <= 5 * self.total.limit:
            return None
        return max(self._sizes, key=self._sizes.__getitem__)

    def largest(self, count: int) -> list[tuple[T, int]]:
        """Those who hold most, and how much; the largest first."""
        return nlargest(count, self._sizes.items(), key=lambda item: item[1])
