"""Live counts from the journals of a fleet while they are written: outcomes, rates and drops.

The nodes are not queried: their journals are on this machine. These counts are for the display and
for timing; the findings come from the tables of the pipeline.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Final

from msgspec import Struct

from waystation.journal.layout import nodes_of
from waystation.journal.read import TableReader
from waystation.journal.schema import MESSAGES

DROPPED: Final = "DROPPED"
WINDOW: Final = 3.0
"""Seconds over which rates are averaged."""


class Drop(Struct, frozen=True):
    """A dropped message: node, reason, destination and id."""

    node: str
    reason: str
    onward: str
    message_id: str


class LiveCounts:
    """Counts of what the journals of a fleet contain so far."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._readers: dict[str, TableReader] = {}
        self._marks: deque[tuple[float, dict[str, Counter[str]]]] = deque()
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.drops: list[Drop] = []
        self.changed_at = time.monotonic()
        """When a message was recorded last that nodes do not send for themselves."""
        self._mark()

    def look(self) -> None:
        """Read what was written since the last call."""
        for node in nodes_of(self._journal, MESSAGES):
            if node not in self._readers:
                self._readers[node] = TableReader(self._journal, MESSAGES, node, _ignore)
            for batch in self._readers[node].batches():
                columns = ("outcome", "reason", "onward", "message_id", "internal")
                for row in batch.select(columns).to_pylist():
                    if not row["internal"]:  # a console asks nodes for as long as it runs
                        self.changed_at = time.monotonic()
                    self._count(
                        node, row["outcome"], row["reason"], row["onward"], row["message_id"]
                    )
        self._mark()

    def rates(self) -> dict[str, dict[str, float]]:
        """Outcomes and reasons per second, by node."""
        then, before = self._marks[0]
        seconds = max(time.monotonic() - then, 0.001)
        return {
            node: {
                word: (number - before.get(node, Counter())[word]) / seconds
                for word, number in counted.items()
            }
            for node, counted in self.counts.items()
        }

    def dropped(self, node: str, reason: str, onward: str = "", since: int = 0) -> int:
        """Number of drops at a node for a reason, not counting the first `since` drops."""
        return sum(
            drop.node == node and drop.reason == reason and drop.onward.startswith(onward)
            for drop in self.drops[since:]
        )

    def _count(
        self, node: str, outcome: str, reason: str | None, onward: list[str], message_id: str
    ) -> None:
        self.counts[node][reason or outcome] += 1
        if outcome == DROPPED:
            first = onward[0] if onward else ""
            self.drops.append(Drop(node, reason or "", first, message_id))

    def _mark(self) -> None:
        now = time.monotonic()
        self._marks.append((now, {node: Counter(found) for node, found in self.counts.items()}))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW:
            self._marks.popleft()


def _ignore(path: Path, problem: str) -> None:
    """Ignore files that cannot be read now; the pipeline reports those that never can."""
    del path, problem
