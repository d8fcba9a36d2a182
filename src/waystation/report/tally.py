"""Counts by name, with limited memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

MOST: Final = 500_000


class Tally:
    """Counts; when there are too many names, the rarer half of them is dropped.

    `overlooked` limits the error: no count is too low by more than that. It is zero
    unless something was dropped.

    >>> tally = Tally(most=2)
    >>> tally.add([("a", 5), ("b", 1), ("c", 2)])
    >>> tally.most_common(2), tally.overlooked
    ([('a', 5)], 2)
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self.overlooked = 0

    def add(self, counted: Iterable[tuple[str, int]]) -> None:
        """Add counts."""
        for name, number in counted:
            self._counts[name] += number
        if len(self._counts) > self._most:
            kept = self.most_common(self._most // 2)
            self.overlooked += sorted(self._counts.values(), reverse=True)[len(kept)]
            self._counts = Counter(dict(kept))

    def most_common(self, number: int) -> list[tuple[str, int]]:
        """The largest counts; equal ones by name."""
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:number]

    def __len__(self) -> int:
        return len(self._counts)
