"""Damping: a name that changes too often is announced less often (CL-3).

    the first four changes within 10 s      announced at once
    the fifth, and any after it             after 1 s, the next after 2, 4 ... 60 s
    two minutes without a change            as if nothing had been

Only announcements to parents wait. To take a claim back never does, nor do a node's own workers;
and an announcement that the parent would refuse, since the path names it, takes the former back.
While a name waits, later changes wait with it; whoever sends looks up what is the best then.

Times are milliseconds, and never decrease from one call to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

CHANGES: Final = 5
"""A name that has changed this many times within `WINDOW` has to wait."""

WINDOW: Final = 10_000
FIRST_WAIT: Final = 1_000
LONGEST_WAIT: Final = 60_000
QUIET: Final = 120_000
"""Milliseconds without a change after which a name is no longer damped."""

WATCHED: Final = 100_000
"""Number of names whose changes are counted at least, if that many change within the window."""


class _Flapping(Struct, eq=False, gc=False):
    """A name that has changed too often."""

    changed_at: int
    wait: int = FIRST_WAIT  # of the next announcement
    due_at: int | None = None  # when the one that waits is due

    def is_quiet(self, now: int) -> bool:
        """Whether it can be forgotten."""
        return self.due_at is None and now >= self.changed_at + QUIET


class Damping:
    """Which announcements have to wait.

    >>> damping = Damping()
    >>> [damping.changed("truck-7", now) for now in (0, 1, 2, 3, 4, 504)]
    [0, 0, 0, 0, 1000, 500]
    >>> damping.next_due(), damping.due(1_004), damping.changed("truck-7", 1_005)
    (1004, ['truck-7'], 2000)
    """

    def __init__(self) -> None:
        # When names that are not damped have changed: once as an int, since a million names may
        # change once. What changed within the window is in one of the two.
        self._counted: dict[str, int | list[int]] = {}
        self._counted_before: dict[str, int | list[int]] = {}
        self._counting_since = 0
        self._flapping: OrderedDict[str, _Flapping] = OrderedDict()  # in the order of their release
        self._waiting: list[tuple[int, str]] = []  # a heap: when, what

    def __len__(self) -> int:
        """Number of names that are damped, whether they wait or not."""
        return len(self._flapping)

    def is_waiting(self, participant: str) -> bool:
        """Whether an announcement of a name waits."""
        known = self._flapping.get(participant)
        return known is not None and known.due_at is not None

    def changed(self, participant: str, now: int) -> int:
        """Count a change of a name's best claim; how long its announcement waits, 0: not at all."""
        known = self._flapping.get(participant)
        if known is None or known.is_quiet(now):
            if self._count(participant, now) < CHANGES:
                return 0
            del self._counted[participant]
            known = self._flapping[participant] = _Flapping(now)
        known.changed_at = now
        if known.due_at is None:
            known.due_at = now + known.wait
            known.wait = min(2 * known.wait, LONGEST_WAIT)
            heappush(self._waiting, (known.due_at, participant))
        return max(known.due_at - now, 1)

    def due(self, now: int) -> list[str]:
        """The names whose announcements have waited long enough; forgets those that are quiet."""
        flapping, waiting, due = self._flapping, self._waiting, []
        while waiting and waiting[0][0] <= now:
            _, participant = heappop(waiting)
            flapping[participant].due_at = None
            flapping.move_to_end(participant)
            due.append(participant)
        while flapping and next(iter(flapping.values())).is_quiet(now):
            flapping.popitem(last=False)
        return due

    def next_due(self) -> int | None:
        """When the next announcement is due; None if none waits."""
        return self._waiting[0][0] if self._waiting else None

    def _count(self, participant: str, now: int) -> int:
        """Count a change; returns how many there were within the window."""
        if now >= self._counting_since + WINDOW or len(self._counted) >= WATCHED:
            self._counted, self._counted_before = {}, self._counted
            self._counting_since = now
        times = self._counted.get(participant)
        if times is None:
            times = self._counted_before.pop(participant, None)
        if times is None:
            self._counted[participant] = now
            return 1
        times = times if isinstance(times, list) else [times]
        times = [time for time in times if now < time + WINDOW]
        times.append(now)
        self._counted[participant] = times
        return len(times)
