"""How far the clocks of nodes are ahead of each other, as their journals tell it (TM-3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from waystation.core.corrections import Link, corrections, groups_of, hour_of


class Clocks:
    """Corrections by what sessions measured and, where that does not connect nodes, by traffic.

    `estimates` tells what the traffic of an hour says; it is asked only if it is needed.
    """

    def __init__(
        self,
        nodes: Collection[str],
        measured: Mapping[int, list[Link]],
        estimates: Callable[[int], list[Link]],
    ) -> None:
        self._nodes = nodes
        self._measured = measured
        self._estimates = estimates
        self._hours: dict[int, dict[str, int]] = {}

    def ahead(self, node: str, at: int) -> int:
        """How far a node's clock is ahead at an instant of it, in microseconds."""
        hour = hour_of(at)
        if hour not in self._hours:
            self._hours[hour] = corrections(self._links(hour))
        return self._hours[hour].get(node, 0)

    def _links(self, hour: int) -> list[Link]:
        measured = self._measured.get(hour, [])
        groups = groups_of(measured)
        if len({groups.get(node, node) for node in self._nodes}) <= 1:
            return measured
        return [*measured, *self._estimates(hour)]
