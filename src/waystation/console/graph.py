"""What a fleet consists of: nodes as boxes, and the connections between them; without places.

Nodes are told apart by name alone, which is all that a session says of its peer.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from waystation.console.formatting import number, rate

BOX: Final = (140, 34)
"""The size of a box, in units of the drawing."""

HARDLY: Final = 0.05
"""Less than so many messages per second count as none."""


class Dots(Struct, frozen=True):
    """The folded leaves in one state, a dot for each: an SVG path, and the width of its stroke."""

    state: str
    path: str
    size: float


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
    drops: float = 0.0  # messages per second that it drops
    dots: list[Dots] = []
    x: float = 0
    y: float = 0
    width: float = BOX[0]
    height: float = BOX[1]

    @property
    def middle(self) -> float:
        """Its middle, from top to bottom."""
        return self.y + self.height / 2


class Link(Struct, frozen=True):
    """A connection; `above` was dialed by `below`. `up` and `down` are messages per second."""

    below: str
    above: str
    state: str
    transport: str = ""
    up: float = 0.0
    down: float = 0.0
    waiting: int = 0

    @property
    def rate(self) -> float:
        """Messages per second in both directions."""
        return self.up + self.down

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
        """As much of that as there is room for: what is wrong, if anything is."""
        return self.trouble or " · ".join(filter(None, (self.transport, self._speed())))

    def _speed(self) -> str:
        if self.rate < HARDLY or self.state in ("away", "gone"):
            return ""
        return f"{rate(self.rate)}/s"


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
