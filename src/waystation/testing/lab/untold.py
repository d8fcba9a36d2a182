"""Expiries that are taken as they are, because nobody tells the time on the way (TM-2).

Over joynr's protocol, and for a broadcast over a broker, a receiver cannot know by how much the
sender's clock differs. What such a link adds to the age of a message is exactly the difference of
the two clocks, and no more: so what expired early by more than that is a fault all the same.
"""

from __future__ import annotations

from itertools import pairwise

from waystation.testing.lab.history import History, Row, Sent


class Untold:
    """By how much messages seem older than they are, in the topologies where that can be.

    These are trees, so there is one way from a node to another.
    """

    def __init__(self, history: History) -> None:
        topology = history.topology
        self._parents = topology.parents
        self._joynr = {
            way
            for leaf in topology.over_joynr
            for hub in topology.leaves[leaf]
            for way in ((leaf, hub), (hub, leaf))
        }
        self._brokered = {
            (parent, hub) for hub in topology.over_mqtt for parent in topology.hubs[hub]
        }
        self._clocks: dict[tuple[str, str], float] = {}
        if self._joynr or self._brokered:
            self._clocks = {(row.uid, row.node): row.clock for row in history.rows}

    def added(self, sent: Sent, row: Row) -> float:
        """The seconds by which a message seems older at a node than it is."""
        links = self._joynr | self._brokered if row.is_broadcast else self._joynr
        return sum(
            self._clocks[sent.uid, target] - self._clocks[sent.uid, source]
            for source, target in pairwise(self.way(sent.node, row.node) if links else ())
            if (source, target) in links
            and {(sent.uid, source), (sent.uid, target)} <= self._clocks.keys()
        )

    def is_only_way(self, row: Row) -> bool:
        """Whether no other copy comes: only of a broadcast over a broker there is another."""
        return not (row.is_broadcast and self._brokered)

    def way(self, source: str, target: str) -> list[str]:
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
