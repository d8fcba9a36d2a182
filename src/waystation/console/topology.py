"""The layout of the connections between nodes for a drawing: values in, positions out.

Nodes are arranged in columns, each to the right of those it connected to: hubs to the left of their
leaves. Nodes are told apart by name alone, which is all that a session says of its peer. Nothing
here knows of colours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from waystation.console.fleet import DRAWN_SESSIONS, State, Watched
from waystation.console.formatting import plain
from waystation.node.status import SessionStatus

MAX_PEERS: Final = 8
"""Maximum number of unwatched peers drawn per node; the others are only counted."""

MAX_COLUMNS: Final = 6
BOX: Final = (132, 34)
GAP: Final = (50, 12)
EDGE: Final = 8
"""Sizes in units of the drawing: of a box, the gap between boxes, and the margin around all."""


class NodeBox(Struct, kw_only=True):
    """A node in the drawing; x and y are its upper left corner."""

    key: str  # its name
    kind: str  # hub, node, peer, or more
    state: str
    url: str = ""  # if it is watched
    hidden: int = 0  # number of peers that this box stands for
    x: float = 0
    y: float = 0


class Line(Struct, frozen=True):
    """A connection in the drawing, from left to right, as an SVG path."""

    left: str
    right: str
    state: str  # open, slow, or away
    path: str


class Picture(Struct, frozen=True):
    """The drawing of a fleet."""

    width: float
    height: float
    boxes: list[NodeBox]
    lines: list[Line]


class _Link(Struct, frozen=True):
    """A connection; `above` was dialed by `below`."""

    below: str
    above: str
    state: str


def picture(fleet: Sequence[Watched], own_name: str = "") -> Picture:
    """Draw a fleet, without the sessions of `own_name`, the console itself."""
    boxes = _watched_boxes(fleet)
    links: dict[frozenset[str], _Link] = {}
    for watched in fleet:
        for link in _links_of(watched, boxes, own_name):
            links.setdefault(frozenset((link.below, link.above)), link)
    columns = _columns(boxes, links.values())
    for column in columns:
        column.sort(key=lambda box: (box.kind == "more", box.key))
    _place(columns, list(links.values()))
    height = max((box.y + BOX[1] for box in boxes.values()), default=0) + EDGE
    width = len(columns) * (BOX[0] + GAP[0]) - GAP[0] + 2 * EDGE if columns else 0
    lines = [_line(boxes[link.above], boxes[link.below], link.state) for link in links.values()]
    return Picture(width, height, list(boxes.values()), lines)


def _watched_boxes(fleet: Sequence[Watched]) -> dict[str, NodeBox]:
    boxes: dict[str, NodeBox] = {}
    for watched in fleet:
        hub = watched.seen is not None and watched.seen.hub
        box = NodeBox(
            key=plain(watched.name),
            kind="hub" if hub else "node",
            state=str(watched.state),
            url=watched.url,
        )
        known = boxes.setdefault(box.key, box)
        if known.state != State.HERE:  # it may be reached at another URL
            boxes[box.key] = box
    return boxes


def _links_of(watched: Watched, boxes: dict[str, NodeBox], own_name: str) -> list[_Link]:
    """The connections of a node; adds boxes for its peers."""
    if watched.seen is None:
        return []
    name = plain(watched.name)
    here = watched.state == State.HERE
    links: list[_Link] = []
    strangers = hidden = 0
    for session in watched.seen.sessions[:DRAWN_SESSIONS]:
        peer = plain(session.peer or session.place)
        if peer in {own_name, name} or not session.open:
            continue
        if peer not in boxes:
            if strangers >= MAX_PEERS:
                hidden += 1
                continue
            strangers += 1
            boxes[peer] = NodeBox(key=peer, kind="peer", state="here" if here else "away")
        links.append(_link(name, peer, session, here=here))
    hidden += watched.seen.sessions_total - len(watched.seen.sessions)
    if hidden > 0:
        key = f"{name} and {hidden} more"
        boxes[key] = NodeBox(key=key, kind="more", state="here", url=watched.url, hidden=hidden)
        links.append(_Link(key, name, "open" if here else "away"))
    return links


def _link(node: str, peer: str, session: SessionStatus, *, here: bool) -> _Link:
    slow = session.stalled or session.waiting > 0
    state = "away" if not here else "slow" if slow else "open"
    return _Link(node, peer, state) if session.opened_here else _Link(peer, node, state)


def _columns(boxes: dict[str, NodeBox], links: Iterable[_Link]) -> list[list[NodeBox]]:
    """The boxes by their distance from nodes that dial no other."""
    ranks = dict.fromkeys(boxes, 0)
    for _ in range(MAX_COLUMNS):  # bounded, since nodes may dial each other in a circle
        for link in links:
            rank = min(max(ranks[link.below], ranks[link.above] + 1), MAX_COLUMNS - 1)
            ranks[link.below] = rank
    found: defaultdict[int, list[NodeBox]] = defaultdict(list)
    for key, box in boxes.items():
        found[ranks[key]].append(box)
    return [found[rank] for rank in sorted(found)]


def _place(columns: list[list[NodeBox]], links: list[_Link]) -> None:
    """Set the positions: one below the other, near the boxes they are connected to."""
    row = BOX[1] + GAP[1]
    tallest = max((len(column) for column in columns), default=0) * row
    above: defaultdict[str, list[str]] = defaultdict(list)
    for link in links:
        above[link.below].append(link.above)
    heights: dict[str, float] = {}
    for number, column in enumerate(columns):
        near = {box.key: _mean([heights[key] for key in above[box.key] if key in heights])
                for box in column}  # fmt: skip
        column.sort(key=lambda box: (near[box.key], box.kind == "more"))
        first = EDGE + (tallest - len(column) * row) / 2
        for position, box in enumerate(column):
            box.x = EDGE + number * (BOX[0] + GAP[0])
            box.y = round(first + position * row, 1)
            heights[box.key] = box.y


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _line(left: NodeBox, right: NodeBox, state: str) -> Line:
    if left.x > right.x:
        left, right = right, left
    start, end = left.y + BOX[1] / 2, right.y + BOX[1] / 2
    from_x, to_x = left.x + BOX[0], right.x
    if left.x == right.x:  # in the same column: around the right side
        bend = from_x + GAP[0] / 2
        path = f"M{from_x} {start} C{bend} {start} {bend} {end} {from_x} {end}"
    else:
        half = (from_x + to_x) / 2
        path = f"M{from_x} {start} C{half} {start} {half} {end} {to_x} {end}"
    return Line(left.key, right.key, state, path)
