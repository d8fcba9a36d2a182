"""What was lost, and why, until a row of the journal can say so (OB-6)."""

from __future__ import annotations

from threading import Lock


class Losses:
    """Counts of lost records by what became of them, from whichever thread noticed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._untold: dict[str, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        """All records lost so far, told or not."""
        return self._total

    def add(self, count: int, why: str) -> None:
        """Note a loss; 0 where nobody can tell how many."""
        with self._lock:
            self._total += count
            self._untold[why] = self._untold.get(why, 0) + count

    def take(self) -> dict[str, int]:
        """What nobody was told yet; from now on it counts as told."""
        with self._lock:
            untold, self._untold = self._untold, {}
        return untold
