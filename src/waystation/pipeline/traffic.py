"""What the traffic of a journal tells of clocks, for whoever asks about a few hours. No Spark."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from waystation.core.corrections import HOUR, Link, estimates, strangers
from waystation.pipeline.inprocess import listed, nodes_of
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.kernels.passing import delays_in, peers_by_hour
from waystation.pipeline.listing import EVERYTHING


class Traffic:
    """The messages between nodes that the measurements of an hour do not connect."""

    def __init__(self, journal: str, measured: Mapping[int, list[Link]]) -> None:
        self._measured = measured
        self._data = list(nodes_of(listed(journal), EVERYTHING))

    def links(self, hour: int) -> list[Link]:
        """What they tell in an hour."""
        within = [one.received_between(hour, hour + HOUR) for one in self._data]
        if not strangers(self._measured, _peers(within)):
            return []  # nothing else needs to be read
        return self._estimates.get(hour, [])

    @cached_property
    def _estimates(self) -> dict[int, list[Link]]:
        apart = strangers(self._measured, _peers(self._data))
        return estimates(delays_in(self._data, apart))


def _peers(data: list[FileData]) -> dict[str, dict[int, set[str]]]:
    return {one.node: peers_by_hour(one) for one in data}
