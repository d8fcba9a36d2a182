"""The layout of the connections between nodes for a drawing: values in, positions out.

Hubs stand one below the other, in the order of their names, whatever else comes and goes; what is
connected to a hub stands to the right of it, column by column. Where a node has more than a few
leaves, they are folded into one box, which can be unfolded. Links between hubs are arcs on the
left. Nothing here knows of colours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from waystation.console.graph import BOX, HARDLY, Dots, Graph, Link, NodeBox

MAX_LEAVES: Final = 6
"""Maximum number of leaves of a node that are drawn one by one; more are folded."""

MAX_UNFOLDED: Final = 500
"""Maximum number of leaves of a node that are drawn when they are unfolded."""

MAX_DEPTH: Final = 6
SMALL: Final = (112, 24)
GAP: Final = (104, 12)
NEAR: Final = 6
EDGE: Final = 10
ARC: Final = 104
FEW_ARCS: Final = 5
"""Sizes in units of the drawing: of an unfolded leaf, the gaps between boxes and between unfolded
leaves, the margin around all, the room for the arcs on the left, and how many of them may have
labels."""

FOLDED: Final = (BOX[0], 56)
FIELD: Final = (12, 27, 120, 24)
PITCHES: Final = (8.0, 6.0, 4.8, 4.0, 3.0, 2.4)
"""The size of folded leaves, the part of it where they are dots (left, top, width, height), and how
far these may be apart; the size does not depend on their number, so that hubs keep their places."""

_TROUBLE: Final = frozenset({"slow", "away", "gone"})
_BY_TROUBLE: Final = ("gone", "away", "slow", "silent", "connecting", "here")


class Options(Struct, frozen=True):
    """What to draw: whose leaves are unfolded, which leaves are shown anyway, and internals."""

    unfolded: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()
    internals: bool = False


class Line(Struct, frozen=True, kw_only=True):
    """A connection in the drawing, from left to right, as an SVG path."""

    left: str
    right: str
    state: str  # open, slow, away, or gone
    path: str
    title: str
    weight: int = 0  # from 0 for next to no messages to 4 for very many
    flows: tuple[str, ...] = ()  # where messages move: to the left, to the right
    label: str = ""  # where there is room for one, with its base, and its right end or middle
    x: float = 0
    y: float = 0
    anchor: str = "end"


class Picture(Struct, frozen=True):
    """The drawing of a fleet."""

    width: float
    height: float
    boxes: list[NodeBox]
    lines: list[Line]
    leaves: int = 0  # of all nodes, folded or not
    trouble: int = 0


def draw(graph: Graph, options: Options) -> Picture:
    """Place the boxes of a graph, and draw the lines between them."""
    _label_servers(graph)
    layout = _Layout(graph, options)
    layout.place()
    boxes = layout.placed
    width = max((box.x + box.width for box in boxes.values()), default=0) + EDGE
    height = max((box.y + box.height for box in boxes.values()), default=0) + EDGE
    if not boxes:
        return Picture(0, 0, [], [])
    lines = [*layout.lines(), *layout.arcs()]
    return Picture(width, height, list(boxes.values()), lines, layout.leaves, layout.trouble)


def _label_servers(graph: Graph) -> None:
    """Name brokers and routers by what they are; where there are several, by their port too."""
    servers = [box for box in graph.boxes.values() if box.kind == "server"]
    for box in servers:
        kind, _, place = box.key.rpartition(" ")
        same = sum(other.key.startswith(f"{kind} ") for other in servers)
        if kind:
            box.label = kind if same == 1 else f"{kind} :{place.rpartition(':')[2]}"
            box.title = place


class _Layout:
    """Places the boxes of a graph: a forest whose roots are the hubs, one below the other."""

    def __init__(self, graph: Graph, options: Options) -> None:
        self._graph = graph
        self._options = options
        self._near: defaultdict[str, list[Link]] = defaultdict(list)
        for link in graph.links.values():
            self._near[link.below].append(link)
            self._near[link.above].append(link)
        self._parents: dict[str, Link | None] = {}
        self._children: defaultdict[str, list[str]] = defaultdict(list)
        self._roots = self._grown()
        self._tree = {id(link) for link in self._parents.values() if link is not None}
        self._left = EDGE + (ARC if self._cross_links() else 0)
        self.placed: dict[str, NodeBox] = {}
        self._folds: list[tuple[NodeBox, list[Link]]] = []
        self.leaves = self.trouble = 0

    def _grown(self) -> list[str]:
        """The roots, in order; every other box becomes the child of the one it is nearest by."""
        boxes = self._graph.boxes
        hubs = sorted(key for key, box in boxes.items() if box.kind == "hub")
        servers = sorted(key for key, box in boxes.items() if box.kind == "server")
        roots = [*hubs, *servers] if hubs else []
        self._grow(roots)
        dialing = {link.below for link in self._graph.links.values()}
        for key in sorted(boxes, key=lambda key: (key in dialing, not boxes[key].url, key)):
            if key not in self._parents:
                roots.append(key)
                self._grow([key])
        return roots

    def _grow(self, roots: list[str]) -> None:
        self._parents.update(dict.fromkeys(roots))
        depths = dict.fromkeys(roots, 0)
        reached = list(roots)
        for key in reached:  # which grows
            for link in sorted(self._near[key], key=lambda link: (link.below, link.above)):
                other = link.above if link.below == key else link.below
                if other not in self._parents:
                    depths[other] = min(depths[key] + 1, MAX_DEPTH)
                    self._parents[other] = link
                    self._children[key].append(other)
                    reached.append(other)

    def place(self) -> None:
        """Set all positions."""
        top: float = EDGE
        for root in self._roots:
            top += self._place(root, 0, top) + GAP[1]

    def _place(self, key: str, depth: int, top: float) -> float:
        """Place a box and all that is below it; returns the height of that."""
        box = self._graph.boxes[key]
        inner, leaves = self._split(key)
        below = top
        for child in inner:
            below += self._place(child, depth + 1, below) + GAP[1]
        below = self._place_leaves(key, leaves, depth + 1, below)
        box.x = self._left + depth * (BOX[0] + GAP[0])
        box.y = self._level(key, top)
        self.placed[key] = box
        return max(below - GAP[1] - top, BOX[1])

    def _level(self, key: str, top: float) -> float:
        """The middle of what is below a box, unless that is unfolded: then its top."""
        near = [self.placed[child].middle for child in self._children[key] if child in self.placed]
        near += [fold.middle for fold, _ in self._folds if fold.of == key]
        if not near or key in self._options.unfolded:
            return top
        return max(top, round((min(near) + max(near) - BOX[1]) / 2, 1))

    def _split(self, key: str) -> tuple[list[str], list[str]]:
        """The children of a box: those that have some themselves, and leaves."""
        children = sorted(self._children[key])
        inner = [child for child in children if self._children[child]]
        return inner, [child for child in children if child not in set(inner)]

    def _place_leaves(self, key: str, leaves: list[str], depth: int, top: float) -> float:
        unlisted = self._graph.unlisted.get(key, 0)
        links = {leaf: link for leaf in leaves if (link := self._parents[leaf]) is not None}
        troubled = {leaf for leaf in leaves if self._in_trouble(leaf, links[leaf])}
        self.leaves += len(leaves) + unlisted
        self.trouble += len(troubled)
        folds = len(leaves) + (unlisted > 0) > MAX_LEAVES or unlisted > 0
        single = [leaf for leaf in leaves if not folds or leaf in self._options.shown]
        x = self._left + depth * (BOX[0] + GAP[0])
        for leaf in single:
            box = self.placed[leaf] = self._graph.boxes[leaf]
            box.x, box.y = x, top
            top += BOX[1] + GAP[1]
        rest = [leaf for leaf in leaves if leaf not in set(single)]
        if not rest and not unlisted:
            return top
        fold = NodeBox(
            key=f"leaves of {key}",
            kind="fold",
            state="trouble" if troubled.intersection(rest) else "here",
            of=key,
            count=len(rest) + unlisted,
            trouble=len(troubled.intersection(rest)),
            unfolded=key in self._options.unfolded,
            x=x,
            y=top,
        )
        self.placed[fold.key] = fold
        self._folds.append((fold, [links[leaf] for leaf in rest]))
        if fold.unfolded:  # those in trouble first
            rest.sort(key=lambda leaf: (leaf not in troubled, leaf))
            top += BOX[1] + GAP[1]
            return self._place_grid(rest[:MAX_UNFOLDED], links, x, top)
        fold.height = FOLDED[1]
        states = [self._state(leaf, links[leaf]) for leaf in rest] + ["here"] * unlisted
        fold.dots = list(_dots(fold, states))
        return top + FOLDED[1] + GAP[1]

    def _place_grid(
        self, leaves: list[str], links: Mapping[str, Link], x: float, top: float
    ) -> float:
        columns = 3 if len(leaves) > 2 * MAX_LEAVES else 2
        for position, leaf in enumerate(leaves):
            row, column = divmod(position, columns)
            box = self.placed[leaf] = self._graph.boxes[leaf]
            box.x = x + column * (SMALL[0] + NEAR)
            box.y = top + row * (SMALL[1] + NEAR)
            box.width, box.height = SMALL
            box.title = links[leaf].words
            box.state = self._state(leaf, links[leaf])
            box.kind = "leaf"
        return top + -(-len(leaves) // columns) * (SMALL[1] + NEAR) - NEAR + GAP[1]

    def _state(self, leaf: str, link: Link) -> str:
        """The state of a leaf, or of its connection if that is worse."""
        state = self._graph.boxes[leaf].state
        return link.state if state == "here" and link.state in _TROUBLE else state

    def _in_trouble(self, leaf: str, link: Link) -> bool:
        return self._state(leaf, link) not in ("here", "connecting")

    # Lines

    def _cross_links(self) -> list[Link]:
        """The links that are not part of the forest."""
        return [link for link in self._graph.links.values() if id(link) not in self._tree]

    def lines(self) -> Iterable[Line]:
        """The lines from each box to those below it."""
        for key, link in self._parents.items():
            box = self.placed.get(key)
            if link is not None and box is not None and box.kind != "leaf":
                above = self.placed[link.above if link.below == key else link.below]
                yield _branch(above, box, link)
        for fold, links in self._folds:
            yield _branch(self.placed[fold.of], fold, _sum(links))

    def _is_around(self, link: Link) -> bool:
        one, other = self.placed.get(link.below), self.placed.get(link.above)
        return one is not None and other is not None and one.x == other.x

    def arcs(self) -> Iterable[Line]:
        """The other lines; around the left side where both ends are in the same column.

        Where there are few of them, or something is wrong, they have a label and show what flows.
        """
        cross = self._cross_links()
        around = sum(self._is_around(link) for link in cross)
        for link in cross:
            one, other = self.placed.get(link.below), self.placed.get(link.above)
            if one is None or other is None or "leaf" in (one.kind, other.kind):
                continue
            if one.x != other.x:
                left, right = sorted((one, other), key=lambda box: box.x)
                yield _line(left, right, link, _curve(left, right))
                continue
            out = _bulge(one, other)
            upper, lower = sorted((one, other), key=lambda box: box.y)
            line = _line(
                upper,
                lower,
                link,
                _arc(upper, lower, out),
                label=link.label,
                x=one.x - out * 0.75,  # where the curve is farthest out
                y=(one.middle + other.middle) / 2 + 4,
                anchor="middle",
            )
            yield line if link.trouble or around <= FEW_ARCS else replace(line, label="", flows=())


def _dots(fold: NodeBox, states: Sequence[str]) -> Iterable[Dots]:
    """A dot for each folded leaf, in the order of their names; or one for the worst of several."""
    left, top, width, height = FIELD
    for pitch in PITCHES:
        columns, rows = int(width / pitch), int(height / pitch)
        if columns * rows >= len(states):
            break
    each = -(-len(states) // (columns * rows))
    places: defaultdict[str, list[str]] = defaultdict(list)
    for number in range(-(-len(states) // each)):
        state = min(states[number * each : (number + 1) * each], key=_BY_TROUBLE.index)
        row, column = divmod(number, columns)
        x, y = fold.x + left + (column + 0.5) * pitch, fold.y + top + (row + 0.5) * pitch
        places[state].append(f"M{x:.4g} {y:.5g}h0")
    for state, paths in places.items():
        size = 0.68 if state == "here" else 1.0  # one among hundreds is seen
        yield Dots(state, "".join(paths), round(pitch * size, 2))


def _worst(links: Sequence[Link]) -> str:
    """The state of the line to several leaves; of those in trouble their box has the number."""
    states = {link.state for link in links} - {"gone"}
    return "slow" if "slow" in states else "away" if states == {"away"} else "open"


def _sum(links: Sequence[Link]) -> Link:
    """What several links are together."""
    return Link(
        "",
        "",
        _worst(links),
        "+".join(sorted({link.transport for link in links if link.transport})[:3]),
        sum(link.up for link in links),
        sum(link.down for link in links),
        sum(link.waiting for link in links),
    )


def _branch(left: NodeBox, right: NodeBox, link: Link) -> Line:
    """The line to a box from the one that it hangs on."""
    return _line(
        left,
        right,
        link,
        _curve(left, right),
        label=link.label,
        x=right.x - 7,
        y=right.middle - 5,
    )


def _line(left: NodeBox, right: NodeBox, link: Link, path: str, **label: Any) -> Line:
    """A line, as thick as much moves over it."""
    is_right_below = link.below in (right.key, "")
    to_left, to_right = (link.up, link.down) if is_right_below else (link.down, link.up)
    moves = link.state in ("open", "slow")
    return Line(
        left=left.key,
        right=right.key,
        state=link.state,
        path=path,
        title=f"{left.key} to {right.key}: {link.words}",
        weight=_weight(link.rate) if moves else 0,
        flows=tuple(
            way
            for way, speed in (("left", to_left), ("right", to_right))
            if moves and speed >= HARDLY
        ),
        **label,
    )


def _weight(rate: float) -> int:
    """How thick a line is: one step more for ten times the messages.

    >>> [_weight(rate) for rate in (0, 0.3, 5, 50, 500, 50_000)]
    [0, 1, 2, 3, 4, 4]
    """
    return sum(rate >= least for least in (HARDLY, 1, 10, 100))


def _curve(left: NodeBox, right: NodeBox) -> str:
    start, end = left.middle, right.middle
    from_x, to_x = left.x + left.width, right.x
    bend = from_x + (to_x - from_x) * 0.3  # early, so that the label has a level line below it
    return (
        f"M{from_x:g} {start:g} C{bend:g} {start:g} {from_x:g} {end:g} {bend:g} {end:g} H{to_x:g}"
    )


def _bulge(one: NodeBox, other: NodeBox) -> float:
    """How far the arc between two boxes is drawn out to the left."""
    rows = abs(one.middle - other.middle) / (BOX[1] + GAP[1])
    return min(ARC - EDGE, 28 + 12 * rows) * 1.2


def _arc(upper: NodeBox, lower: NodeBox, out: float) -> str:
    x, bend = upper.x, upper.x - out
    start, end = upper.middle, lower.middle
    return f"M{x:g} {start:g} C{bend:g} {start:g} {bend:g} {end:g} {x:g} {end:g}"
