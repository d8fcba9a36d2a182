"""Who is connected with whom, laid out for a drawing: values in, positions out.

Nodes stand in columns, each to the right of those it connected to: hubs to the left of their
leaves. Names decide who is who, since a session tells no more of its peer than that. Nothing here
knows of colours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from waystation.console.fleet import DRAWN_SESSIONS, State, Watched
from waystation.console.words import plain
from waystation.node.status import SessionStatus

MOST_PEERS: Final = 8
"""Of so many peers that nobody watches a node is drawn with; the rest is a number."""

MOST_COLUMNS: Final = 6
BOX: Final = (132, 34)
GAP: Final = (50, 12)
EDGE: Final = 8
"""Sizes, in units of the drawing: width and height of a box, room between boxes, and around all."""


class Spot(Struct, kw_only=True):
    """A node in the drawing; x and y are those of its upper left corner."""

    key: str  # its name
    kind: str  # hub, node, peer, or more
    state: str
    url: str = ""  # of a watched one
    hidden: int = 0  # how many peers stand behind this one spot
    x: float = 0
    y: float = 0


class Line(Struct, frozen=True):
    """A connection in the drawing, from the left one to the right one, as a path of SVG."""

    left: str
    right: str
    state: str  # open, slow, or away
    path: str


class Picture(Struct, frozen=True):
    """A drawing."""

    width: float
    height: float
    spots: list[Spot]
    lines: list[Line]


class _Link(Struct, frozen=True):
    """Who dialled whom."""

    below: str
    above: str
    state: str


def picture(fleet: Sequence[Watched], own_name: str = "") -> Picture:
    """Draw a fleet; sessions of `own_name`, which looks at it, are left out."""
    spots = _watched_spots(fleet)
    links: dict[frozenset[str], _Link] = {}
    for watched in fleet:
        for link in _links_of(watched, spots, own_name):
            links.setdefault(frozenset((link.below, link.above)), link)
    columns = _columns(spots, links.values())
    for column in columns:
        column.sort(key=lambda spot: (spot.kind == "more", spot.key))
    _place(columns, list(links.values()))
    height = max((spot.y + BOX[1] for spot in spots.values()), default=0) + EDGE
    width = len(columns) * (BOX[0] + GAP[0]) - GAP[0] + 2 * EDGE if columns else 0
    lines = [_line(spots[link.above], spots[link.below], link.state) for link in links.values()]
    return Picture(width, height, list(spots.values()), lines)


def _watched_spots(fleet: Sequence[Watched]) -> dict[str, Spot]:
    spots: dict[str, Spot] = {}
    for watched in fleet:
        hub = watched.seen is not None and watched.seen.hub
        spot = Spot(
            key=plain(watched.name),
            kind="hub" if hub else "node",
            state=str(watched.state),
            url=watched.url,
        )
        known = spots.setdefault(spot.key, spot)
        if known.state != State.HERE:  # reached over another of its places, perhaps
            spots[spot.key] = spot
    return spots


def _links_of(watched: Watched, spots: dict[str, Spot], own_name: str) -> list[_Link]:
    """The connections of a node; adds spots for those at the other end."""
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
        if peer not in spots:
            if strangers >= MOST_PEERS:
                hidden += 1
                continue
            strangers += 1
            spots[peer] = Spot(key=peer, kind="peer", state="here" if here else "away")
        links.append(_link(name, peer, session, here=here))
    hidden += watched.seen.sessions_total - len(watched.seen.sessions)
    if hidden > 0:
        key = f"{name} and {hidden} more"
        spots[key] = Spot(key=key, kind="more", state="here", url=watched.url, hidden=hidden)
        links.append(_Link(key, name, "open" if here else "away"))
    return links


def _link(node: str, peer: str, session: SessionStatus, *, here: bool) -> _Link:
    slow = session.stalled or session.waiting > 0
    state = "away" if not here else "slow" if slow else "open"
    return _Link(node, peer, state) if session.opened_here else _Link(peer, node, state)


def _columns(spots: dict[str, Spot], links: Iterable[_Link]) -> list[list[Spot]]:
    """The spots by how many connections they are away from those who dial nobody."""
    ranks = dict.fromkeys(spots, 0)
    for _ in range(MOST_COLUMNS):  # also where nodes dial each other in a circle, it comes to rest
        for link in links:
            rank = min(max(ranks[link.below], ranks[link.above] + 1), MOST_COLUMNS - 1)
            ranks[link.below] = rank
    found: defaultdict[int, list[Spot]] = defaultdict(list)
    for key, spot in spots.items():
        found[ranks[key]].append(spot)
    return [found[rank] for rank in sorted(found)]


def _place(columns: list[list[Spot]], links: list[_Link]) -> None:
    """Give every spot its place: near those it is connected to, one below the other."""
    row = BOX[1] + GAP[1]
    tallest = max((len(column) for column in columns), default=0) * row
    above: defaultdict[str, list[str]] = defaultdict(list)
    for link in links:
        above[link.below].append(link.above)
    heights: dict[str, float] = {}
    for number, column in enumerate(columns):
        near = {spot.key: _mean([heights[key] for key in above[spot.key] if key in heights])
                for spot in column}  # fmt: skip
        column.sort(key=lambda spot: (near[spot.key], spot.kind == "more"))
        first = EDGE + (tallest - len(column) * row) / 2
        for position, spot in enumerate(column):
            spot.x = EDGE + number * (BOX[0] + GAP[0])
            spot.y = round(first + position * row, 1)
            heights[spot.key] = spot.y


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _line(left: Spot, right: Spot, state: str) -> Line:
    if left.x > right.x:
        left, right = right, left
    start, end = left.y + BOX[1] / 2, right.y + BOX[1] / 2
    from_x, to_x = left.x + BOX[0], right.x
    if left.x == right.x:  # in one column: round the right side
        bend = from_x + GAP[0] / 2
        path = f"M{from_x} {start} C{bend} {start} {bend} {end} {from_x} {end}"
    else:
        half = (from_x + to_x) / 2
        path = f"M{from_x} {start} C{half} {start} {half} {end} {to_x} {end}"
    return Line(left.key, right.key, state, path)
