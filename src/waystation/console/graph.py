"""What a fleet consists of: nodes as boxes, and the connections between them; without places.

Nodes are told apart by name alone, which is all that a session says of its peer.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from waystation.console.formatting import number

BOX: Final = (140, 34)
"""The size of a box, in units of the drawing."""


class NodeBox(Struct, kw_only=True):
    """A node in the drawing, or the folded leaves of one; x and y are its upper left corner."""

    key: str  # its name
    kind: str  # hub, node, peer, server (a broker or router), leaf (an unfolded one), or fold
    state: str
    title: str = ""
    url: str = ""  # if it is watched
    of: str = ""  # whose leaves they are
    count: int = 0  # number of leaves that this box stands for
    trouble: int = 0  # number of those in trouble
    unfolded: bool = False
    label: str = ""  # if the name is too long to be drawn
    past: str = ""  # its name, if it is one of the past that has a journal
    x: float = 0
    y: float = 0
    width: float = BOX[0]
    height: float = BOX[1]


class Link(Struct, frozen=True):
    """A connection; `above` was dialed by `below`."""

    below: str
    above: str
    state: str
    transport: str = ""
    rate: float = 0.0
    waiting: int = 0

    @property
    def trouble(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if self.state in ("away", "gone"):
            return self.state
        if self.waiting:
            return f"{number(self.waiting)} waiting"
        return "stalled" if self.state == "slow" else ""

    @property
    def words(self) -> str:
        """Its transport, messages per second, and trouble."""
        return " · ".join(filter(None, (self.transport, self._speed(), self.trouble)))

    @property
    def label(self) -> str:
        """As much of that as there is room for: trouble takes the place of the transport."""
        return " · ".join(filter(None, (self.trouble or self.transport, self._speed())))

    def _speed(self) -> str:
        if self.rate < 0.05 or self.state in ("away", "gone"):
            return ""
        return f"{number(round(self.rate, 1) if self.rate < 10 else round(self.rate))}/s"


class Graph(Struct):
    """The boxes by name, and the connections between them."""

    boxes: dict[str, NodeBox] = {}
    links: dict[frozenset[str], Link] = {}
    unlisted: dict[str, int] = {}  # sessions that a node has but did not list

    def add(self, link: Link) -> None:
        """Add a connection, or what its other end knows of it."""
        ends = frozenset((link.below, link.above))
        known = self.links.get(ends)
        if known is None or _badness(link) > _badness(known):
            self.links[ends] = link


def _badness(link: Link) -> tuple[bool, float]:
    return link.state == "slow", link.rate
