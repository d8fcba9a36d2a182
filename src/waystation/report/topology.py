"""The topology: who sent to whom, how much, and where it was lost; as a graph and as a picture.

A graph with too many nodes for the picture is reduced: the leaves of a node become one bundle,
and of the rest the busiest are kept. The page always says how many are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from markupsafe import Markup
from msgspec import Struct

from waystation.core.spoken import plural
from waystation.report.arrays import BROADCAST, ELSEWHERE, PLACES
from waystation.report.facts import Facts, Load
from waystation.report.layout import positions
from waystation.report.numbers import count, share
from waystation.report.svg import WHOLE, hint, named, picture, tag, text_width

_FOREIGN: Final = {
    ELSEWHERE: ("elsewhere", "no record says where"),
    BROADCAST: ("broadcasts", "published on a broker, for whoever wants it"),
}
ADDRESS: Final = "an address; rows of version 1 of the journal do not say which node has it"
SILENT: Final = "a node without a journal"
_FEWEST_LEAVES: Final = 3  # a bundle of two would save no space
_LETTER: Final = 12.0
_RING: Final = 3.5
_MUCH: Final = 0.01  # a link that loses this share or more of what it carries is completely red


class Vertex(Struct, frozen=True):
    """A circle: a node, a bundle of nodes, or nodes without a journal."""

    name: str
    messages: int
    dropped: int
    nodes: int = 1
    foreign: str = ""  # its description, if it is not a node

    @property
    def label(self) -> str:
        """Its label: a bundle is beside its node already."""
        return self.name if self.nodes == 1 else f"{count(self.nodes)} leaves"


class Edge(Struct, frozen=True):
    """What was sent between two vertices, in both directions, and what was lost."""

    one: int
    other: int
    there: int
    back: int
    vanished: int

    @property
    def sent(self) -> int:
        """Copies in both directions."""
        return self.there + self.back


class Graph(Struct, frozen=True):
    """Vertices, the busiest first, and the edges between them; and the number of omitted nodes."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    left_out: int = 0

    @property
    def bundles(self) -> int:
        """The number of vertices that stand for several nodes."""
        return sum(vertex.nodes > 1 for vertex in self.vertices)


def graph_of(facts: Facts) -> Graph:
    """The whole graph."""
    hops, names = facts.hops, facts.hops.names
    loads = {name: facts.loads.get(name, Load()) for name in {*facts.loads, *names}}
    silent = {name for name, number in hops.nodes.items() if number not in hops.journals}
    vertices = [
        Vertex(name, load.messages, load.dropped, foreign=SILENT if name in silent else "")
        for name, load in loads.items()
    ]
    foreign = {number: _free(name, loads) for number, (name, _) in _FOREIGN.items()}
    meanings = {foreign[number]: meaning for number, (_, meaning) in _FOREIGN.items()}
    for address, number in hops.places.items():
        foreign[PLACES - number] = name = _free(address, loads)
        meanings[name] = ADDRESS
    sent: Counter[tuple[str, str]] = Counter()
    for (a, b, _), number in hops.sent.items():
        sent[names[a], foreign[b] if b < 0 else names[b]] += number
    vanished = Counter({(names[a], names[b]): n for (a, b), n in hops.vanished.items()})
    received: Counter[str] = Counter()
    for (_, to), number in sent.items():
        received[to] += number
    vertices += [
        Vertex(name, received[name], 0, foreign=meaning)
        for name, meaning in meanings.items()
        if received[name]
    ]
    for pair in facts.sessions:
        sent[pair] += 0  # a line, even if nothing was sent over it
    return _joined(vertices, sent, vanished)


def _free(name: str, taken: Container[str]) -> str:
    """A name that no node has."""
    return name if name not in taken else _free(f"({name})", taken)


def _joined(
    vertices: Sequence[Vertex],
    sent: Counter[tuple[str, str]],
    vanished: Counter[tuple[str, str]],
    left_out: int = 0,
) -> Graph:
    """A graph of these vertices, with the edges between them only."""
    ordered = sorted(vertices, key=lambda vertex: (-vertex.messages, vertex.name))
    number = {vertex.name: place for place, vertex in enumerate(ordered)}
    pairs = sorted(
        {
            (min(number[a], number[b]), max(number[a], number[b]))
            for a, b in sent
            if a in number and b in number and a != b
        }
    )
    edges = []
    for one, other in pairs:
        a, b = ordered[one].name, ordered[other].name
        lost = vanished[a, b] + vanished[b, a]
        edges.append(Edge(one, other, sent[a, b], sent[b, a], lost))
    return Graph(tuple(ordered), tuple(edges), left_out)


def reduced(graph: Graph, most: int) -> Graph:
    """The graph reduced to a maximum number of vertices."""
    if len(graph.vertices) > most:
        graph = _bundled(graph)
    if len(graph.vertices) <= most:
        return graph
    kept = _busiest(graph, most)
    left_out = sum(v.nodes for v in graph.vertices if not v.foreign) - sum(v.nodes for v in kept)
    return _joined(kept, *_flows(graph), left_out)


def _busiest(graph: Graph, most: int) -> list[Vertex]:
    """This many vertices, each with the one that it depends on."""
    neighbours = _neighbours(graph)
    kept: set[int] = set()
    for place, vertex in enumerate(graph.vertices):
        known = neighbours.get(place, set())
        wanted = {place} | (known if len(known) == 1 else set())
        if not vertex.foreign and len(kept | wanted) <= most:
            kept |= wanted
    return [graph.vertices[place] for place in sorted(kept)]


def _neighbours(graph: Graph) -> dict[int, set[int]]:
    neighbours: dict[int, set[int]] = {}
    for edge in graph.edges:
        neighbours.setdefault(edge.one, set()).add(edge.other)
        neighbours.setdefault(edge.other, set()).add(edge.one)
    return neighbours


def _flows(graph: Graph) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    sent: Counter[tuple[str, str]] = Counter()
    vanished: Counter[tuple[str, str]] = Counter()
    for edge in graph.edges:
        one, other = graph.vertices[edge.one].name, graph.vertices[edge.other].name
        sent[one, other] += edge.there
        sent[other, one] += edge.back
        vanished[one, other] += edge.vanished
    return sent, vanished


def _bundled(graph: Graph) -> Graph:
    """The leaves of a node, which have no other neighbour, as one vertex."""
    leaves: dict[int, list[int]] = {}
    for place, known in _neighbours(graph).items():
        if len(known) == 1 and not graph.vertices[place].foreign:
            leaves.setdefault(next(iter(known)), []).append(place)
    new_names: dict[str, str] = {}
    bundles = []
    for hub, places in sorted(leaves.items()):
        if len(places) < _FEWEST_LEAVES:
            continue
        members = [graph.vertices[place] for place in places]
        name = f"{plural(len(members), 'leaf', 'leaves')} of {graph.vertices[hub].name}"
        messages, dropped = (
            sum(getattr(m, key) for m in members) for key in ("messages", "dropped")
        )
        bundles.append(Vertex(name, messages, dropped, len(members)))
        new_names |= {member.name: name for member in members}
    kept = [vertex for vertex in graph.vertices if vertex.name not in new_names]
    sent, vanished = (_renamed(flow, new_names) for flow in _flows(graph))
    return _joined([*kept, *bundles], sent, vanished)


def _renamed(flow: Counter[tuple[str, str]], names: dict[str, str]) -> Counter[tuple[str, str]]:
    renamed: Counter[tuple[str, str]] = Counter()
    for (a, b), number in flow.items():
        renamed[names.get(a, a), names.get(b, b)] += number
    return renamed


# The picture


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def inside(self, size: tuple[float, float]) -> bool:
        return self.left > 0 and self.top > 0 and self.right < size[0] and self.bottom < size[1]

    def crossed(self, x1: float, y1: float, x2: float, y2: float) -> bool:
        """Whether a line crosses the box: the clipped line is not empty."""
        begin, end = 0.0, 1.0
        for start, step, low, high in (
            (x1, x2 - x1, self.left, self.right),
            (y1, y2 - y1, self.top, self.bottom),
        ):
            if step == 0:
                if not low <= start <= high:
                    return False
                continue
            enters, leaves = sorted(((low - start) / step, (high - start) / step))
            begin, end = max(begin, enters), min(end, leaves)
        return begin < end


def draw(graph: Graph, width: int, label: str) -> Markup:
    """The graph as a picture."""
    small = width < 600
    height = min(max(200.0, 60.0 * len(graph.vertices)), 460.0 if small else 600.0)
    radii = _radii(graph, small=small)
    margin = (62.0, 30.0) if small else (120.0, 34.0)
    box = (width - 2 * margin[0], height - 2 * margin[1])
    links = [(edge.one, edge.other) for edge in graph.edges]
    placed = positions(len(graph.vertices), links, box, radii) + np.array(margin)
    content = [
        *_edges(graph, placed),
        *map(_circle, graph.vertices, *placed.T.tolist(), radii.tolist()),
        *_labels(graph, placed, radii, (width, height), 14 if small else 22),
    ]
    return picture(width, height, label, content)


def _radii(graph: Graph, *, small: bool) -> Any:
    """The area of a circle is proportional to the node's outcomes."""
    messages = np.array([vertex.messages for vertex in graph.vertices], dtype=float)
    most = messages.max(initial=1.0) or 1.0
    return 5.0 + (9.0 if small else 13.0) * np.sqrt(messages / most)


def _edges(graph: Graph, placed: Any) -> Iterator[Markup]:
    """Lines as wide as what was sent, with a red one inside for what was lost."""
    most = max((edge.sent for edge in graph.edges), default=1) or 1
    for edge in graph.edges:
        (x1, y1), (x2, y2) = placed[edge.one].tolist(), placed[edge.other].tolist()
        ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        width = 1.5 + 5.5 * float(np.sqrt(edge.sent / most))
        kind = "link" if edge.sent else "link quiet"
        parts = [tag("line", **ends, stroke_width=width, class_=kind)]
        if edge.vanished:
            wide = width if edge.vanished >= _MUCH * edge.sent else 1.2
            parts.append(tag("line", **ends, stroke_width=wide, class_="lossy"))
        yield tag("g", hint(_edge_told(graph, edge)), *parts)


def _edge_told(graph: Graph, edge: Edge) -> str:
    one, other = named(graph.vertices[edge.one].name), named(graph.vertices[edge.other].name)
    lines = [f"{one} → {other}: {count(edge.there)}", f"{other} → {one}: {count(edge.back)}"]
    if edge.vanished:
        lines.append(f"{count(edge.vanished)} never seen again")
    return "\n".join(lines)


def _circle(vertex: Vertex, x: float, y: float, radius: float) -> Markup:
    kind = "foreign" if vertex.foreign else "bundle" if vertex.nodes > 1 else "node"
    parts = [hint(_vertex_told(vertex)), tag("circle", cx=x, cy=y, r=radius, class_=kind)]
    if vertex.dropped:
        parts.append(_ring(vertex, x, y, radius + _RING / 2 + 1))
    return tag("g", *parts)


def _ring(vertex: Vertex, x: float, y: float, radius: float) -> Markup:
    """An arc as long as the share that was dropped; a small one remains visible."""
    around = 2 * np.pi * radius
    part = max(vertex.dropped / max(vertex.messages, 1), 0.04) * around
    return tag(
        "circle",
        cx=x,
        cy=y,
        r=radius,
        stroke_width=_RING,
        stroke_dasharray=f"{part:.1f} {around:.1f}",
        transform=f"rotate(-90 {x:.1f} {y:.1f})",
        class_="ring",
    )


def _vertex_told(vertex: Vertex) -> str:
    name = named(vertex.name, 80)
    if vertex.foreign:
        sent = plural(vertex.messages, "copy", "copies")
        return f"{name}: {vertex.foreign}\n{sent}"
    lost = share(vertex.dropped, vertex.messages)
    return f"{name}\n{plural(vertex.messages, 'outcome')}\n{count(vertex.dropped)} dropped ({lost})"


def _labels(
    graph: Graph, placed: Any, radii: Any, size: tuple[float, float], most: int
) -> Iterator[Markup]:
    """Names beside circles, the busiest first; one without a free position is left out."""
    centres = placed.tolist()
    taken = [
        _Box(x - r - 2, y - r - 2, x + r + 2, y + r + 2)
        for (x, y), r in zip(centres, radii.tolist(), strict=True)
    ]
    lines = [(*centres[edge.one], *centres[edge.other]) for edge in graph.edges]
    for vertex, (x, y), radius in zip(graph.vertices, centres, radii.tolist(), strict=True):
        text = named(vertex.label, most)
        free = [
            place
            for place in _places(text, x, y, radius + 7)
            if place.box.inside(size) and not any(place.box.meets(other) for other in taken)
        ]
        if not free:
            continue
        place = min(free, key=lambda place: sum(place.box.crossed(*line) for line in lines))
        taken.append(place.box)
        yield tag(
            "text",
            hint(named(vertex.name, WHOLE)),
            text,
            x=place.x,
            y=place.y,
            text_anchor=place.anchor,
            class_="name halo",
        )


class _Place(NamedTuple):
    anchor: str
    x: float
    y: float
    box: _Box


def _places(text: str, x: float, y: float, away: float) -> Iterator[_Place]:
    """The possible positions of a name: right, left, below, above, and between."""
    wide, up, down = text_width(text, _LETTER), 10.0, 4.0
    for anchor, at_x, at_y, left in (
        ("start", x + away, y + 4, x + away),
        ("end", x - away, y + 4, x - away - wide),
        ("middle", x, y + away + 9, x - wide / 2),
        ("middle", x, y - away - 1, x - wide / 2),
        ("start", x + away * 0.7, y + away * 0.7 + 8, x + away * 0.7),
        ("end", x - away * 0.7, y - away * 0.7, x - away * 0.7 - wide),
        ("end", x - away * 0.7, y + away * 0.7 + 8, x - away * 0.7 - wide),
        ("start", x + away * 0.7, y - away * 0.7, x + away * 0.7),
    ):
        yield _Place(anchor, at_x, at_y, _Box(left, at_y - up, left + wide, at_y + down))
