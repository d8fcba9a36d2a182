"""How the watched nodes are together: a few numbers for the head of every page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from msgspec import Struct

from waystation.console.fleet import State, Watched


class Vitals(Struct, frozen=True, kw_only=True):
    """The sums over all watched nodes; `traffic` has messages and drops per second."""

    nodes: int
    here: int
    waiting: int  # messages, for peers
    contested: int  # names
    unwritten: int  # records that journals lost
    traffic: list[tuple[float, float]]

    @property
    def rate(self) -> float:
        """Messages per second now, counted at each node that they pass."""
        return self.traffic[-1][0] if self.traffic else 0.0

    @property
    def drops(self) -> float:
        """Drops per second now."""
        return self.traffic[-1][1] if self.traffic else 0.0


def vitals(fleet: Sequence[Watched]) -> Vitals:
    """The sums of a fleet."""
    seen = [one.seen for one in fleet if one.seen is not None]
    return Vitals(
        nodes=len(fleet),
        here=sum(one.state == State.HERE for one in fleet),
        waiting=sum(max(0, session.waiting) for each in seen for session in each.sessions),
        contested=sum(each.contested_total for each in seen),
        unwritten=sum(each.journal_lost or 0 for each in seen),
        traffic=_together([one.traffic for one in fleet]),
    )


def _together(traffic: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The traffic of several nodes as one; the latest of each are of the same second.

    >>> _together([[(1, 0), (2, 1)], [(10, 5)]])
    [(1, 0), (12, 6)]
    """
    from_latest = zip_longest(*(reversed(one) for one in traffic), fillvalue=(0, 0))
    sums = [(sum(all for all, _ in each), sum(bad for _, bad in each)) for each in from_latest]
    return sums[::-1]
