"""Expiries that are taken as they are, because nobody tells the time on the way (TM-2).

Of a broadcast over a broker a receiver cannot know by how much the publisher's clock differs. What
such a link adds to its age is exactly the difference of the two clocks, and no more: so what
expired early by more than that is a fault all the same.
"""

from __future__ import annotations

from itertools import pairwise

from waystation.testing.lab.history import History, Row, Sent


class Untold:
    """By how much broadcasts seem older than they are, in the topologies where that can be.

    These are trees, so there is one way from a node to another.
    """

    def __init__(self, history: History) -> None:
        topology = history.topology
        self._parents = topology.parents
        self._brokered = {
            (parent, hub) for hub in topology.over_mqtt for parent in topology.hubs[hub]
        }
        self._clocks: dict[tuple[str, str], float] = {}
        if self._brokered:
            self._clocks = {(row.uid, row.node): row.clock for row in history.rows}

    def added(self, sent: Sent, row: Row) -> float:
        """The seconds by which a message seems older at a node than it is."""
        if not row.is_broadcast or not self._brokered:
            return 0.0
        return sum(
            self._clocks[sent.uid, target] - self._clocks[sent.uid, source]
            for source, target in pairwise(self._way(sent.node, row.node))
            if (source, target) in self._brokered
            and {(sent.uid, source), (sent.uid, target)} <= self._clocks.keys()
        )

    def _way(self, source: str, target: str) -> list[str]:
        """The nodes from one to another: up to the first that is above both, and down."""
        up, down = self._upward(source), self._upward(target)
        top = next((node for node in up if node in down), None)
        if top is None:
            return []
        return up[: up.index(top)] + down[: down.index(top) + 1][::-1]

    def _upward(self, node: str) -> list[str]:
        found = [node]
        while parents := [one for one in self._parents.get(found[-1], ()) if one not in found]:
            found.append(parents[0])
        return found
