"""The picture of a fleet at a past moment: what is known of it then becomes boxes and links.

Both ends of a session tell of it, if both have a journal. A node that was killed cannot say so: it
counts as gone when all peers it believed itself connected to have lost it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from waystation.console.formatting import full_instant, plain
from waystation.console.graph import Graph, Link, NodeBox
from waystation.console.history import History, Life, MemberSpan, SessionSpan, peer_of

REMEMBERED: Final = 600_000_000
"""Microseconds for which a node or peer that is gone stays in the picture."""

Ends = tuple[str, str]


class Traffic(Struct, frozen=True):
    """Messages per second: from a node to another, and dropped at a node."""

    rates: Mapping[Ends, float] = {}
    drops: Mapping[str, float] = {}


class NodeThen(Struct, frozen=True, kw_only=True):
    """A node with a journal, as it was at a moment; times of the reference clock."""

    name: str
    state: str  # here, or gone
    since: int  # when it started
    ended: int | None
    is_hub: bool
    sessions: int


class Moment(Struct, frozen=True):
    """A fleet at a past moment."""

    at: int
    nodes: list[NodeThen]
    graph: Graph

    @property
    def gone(self) -> int:
        """How many nodes had ended shortly before."""
        return sum(node.state == "gone" for node in self.nodes)


def moment(history: History, at: int, traffic: Traffic | None = None, hidden: str = "") -> Moment:
    """The fleet at a moment, with what moved around it, and without the peer `hidden`."""
    return _Then(history, at, traffic or Traffic(), hidden).moment()


class _Then:
    """Collects what was there at a moment."""

    def __init__(self, history: History, at: int, traffic: Traffic, hidden: str) -> None:
        self._history = history
        self._at = at
        self._traffic = traffic
        self._hidden = hidden
        self._lives = {
            node: life
            for node in history.lives
            if (life := history.life_at(node, at)) is not None
            and not self._is_forgotten(node, life)
        }
        self._open: defaultdict[str, dict[str, SessionSpan]] = defaultdict(dict)
        self._lost: defaultdict[str, dict[str, SessionSpan]] = defaultdict(dict)
        for node in self._lives:
            self._sort_sessions(node)
        self._dead = self._find_dead()
        self._hubs = self._find_hubs()

    def _is_forgotten(self, node: str, life: Life) -> bool:
        return life.stopped is not None and self._ago(node, life.stopped) > REMEMBERED

    def _ago(self, node: str, instant: int) -> int:
        return self._history.own_time(node, self._at) - instant

    def _has_stopped(self, node: str) -> bool:
        stopped = self._lives[node].stopped
        return stopped is not None and self._ago(node, stopped) >= 0

    def _sort_sessions(self, node: str) -> None:
        """Which sessions of a node were open, and which it had lost shortly before."""
        life = self._lives[node]
        for span in self._history.sessions.get(node, ()):
            if span.incarnation != life.incarnation or self._ago(node, span.since) < 0:
                continue
            peer = peer_of(span)
            if peer == self._hidden:
                continue
            if span.until is None or self._ago(node, span.until) < 0:
                self._open[node][peer] = span
            elif self._ago(node, span.until) < REMEMBERED:
                self._lost[node][peer] = span

    def _find_dead(self) -> dict[str, int]:
        """The nodes that ended without a word, and since when nobody had heard of them."""
        dead: dict[str, int] = {}
        for node in self._lives:
            if self._has_stopped(node):
                continue
            ends = [self._lost_by(peer, node) for peer in self._open[node] if peer in self._lives]
            known = [end for end in ends if end is not None]
            if known and len(known) == len(ends):
                dead[node] = max(known)
        return dead

    def _lost_by(self, peer: str, node: str) -> int | None:
        """When a running peer lost a node; None if it did not."""
        if self._has_stopped(peer) or node in self._open[peer] or node not in self._lost[peer]:
            return None
        until = self._lost[peer][node].until
        assert until is not None
        began = self._lives[node].since - self._history.clock_ahead(node, self._at)
        end = until - self._history.clock_ahead(peer, until)
        return end if end >= began else None

    def _runs(self, node: str) -> bool:
        return node in self._lives and node not in self._dead and not self._has_stopped(node)

    def _find_hubs(self) -> set[str]:
        hubs = set()
        for node in self._lives:
            for found in (self._open[node], self._lost[node]):
                for peer, span in found.items():
                    if span.role == "leaf":
                        hubs.add(node)
                    elif span.role == "parent":
                        hubs.add(peer)
        return hubs

    # What is drawn

    def moment(self) -> Moment:
        """The fleet at the moment."""
        graph = Graph(boxes={}, links={}, unlisted={})
        nodes = [self._node(node) for node in sorted(self._lives)]
        routers = {span.router for span in self._history.members}
        for node in nodes:
            kind = "server" if node.name in routers else "hub" if node.is_hub else "node"
            key = plain(node.name)
            graph.boxes[key] = NodeBox(
                key=key,
                kind=kind,
                state=node.state,
                title=_title(node),
                past=node.name,
                drops=self._traffic.drops.get(node.name, 0.0),
            )
        for name in sorted(self._lives):
            self._add_open(graph, name)
        for name in sorted(self._lives):
            self._add_lost(graph, name)
        for member in self._history.members:
            self._add_member(graph, member)
        return Moment(self._at, nodes, graph)

    def _node(self, node: str) -> NodeThen:
        life = self._lives[node]
        runs = self._runs(node)
        ended = None if runs else self._dead.get(node, life.stopped)
        return NodeThen(
            name=node,
            state="here" if runs else "gone",
            since=life.since - self._history.clock_ahead(node, life.since),
            ended=ended,
            is_hub=node in self._hubs,
            sessions=len(self._open[node]) if runs else 0,
        )

    def _add_open(self, graph: Graph, node: str) -> None:
        """Add the sessions that a running node had open."""
        if not self._runs(node):
            return
        for peer, span in self._open[node].items():
            name = plain(peer)
            if peer in self._lives and not self._runs(peer):
                state = "away"  # and it does not know yet
            elif peer in self._lives and node not in self._open[peer]:
                state = "away" if node in self._lost[peer] else "open"
            else:
                state = "open"
            if name not in graph.boxes:
                kind = "server" if span.role == "global" else "peer"
                graph.boxes[name] = NodeBox(key=name, kind=kind, state="here")
            graph.add(self._link(node, peer, span, state))

    def _add_lost(self, graph: Graph, node: str) -> None:
        """Add the peers that a node had lost and that were nowhere else."""
        for peer, span in self._lost[node].items():
            name = plain(peer)
            if self._runs(peer) or not self._runs(node):
                continue
            if name not in graph.boxes:
                kind = "server" if span.role == "global" else "peer"
                title = f"{'lost' if span.was_lost else 'disconnected'}: {plain(span.ending)}"
                graph.boxes[name] = NodeBox(key=name, kind=kind, state="gone", title=title)
            if graph.boxes[name].state == "gone":
                graph.add(self._link(node, peer, span, "gone"))

    def _add_member(self, graph: Graph, member: MemberSpan) -> None:
        """Add the line from a member of a group to its gossip router."""
        router, name = member.router, plain(member.name)
        if not self._runs(router) or self._ago(router, member.since) < 0 or not name:
            return
        if member.until is not None and self._ago(router, member.until) >= 0:
            return
        if name not in graph.boxes:
            graph.boxes[name] = NodeBox(key=name, kind="peer", state="here")
        transport = f"group {plain(member.group)}"
        graph.add(Link(name, plain(router), "open", transport))

    def _link(self, node: str, peer: str, span: SessionSpan, state: str) -> Link:
        below, above = (peer, node) if span.role == "leaf" else (node, peer)
        return Link(
            plain(below),
            plain(above),
            state,
            plain(span.transport),
            self._traffic.rates.get((below, above), 0.0),
            self._traffic.rates.get((above, below), 0.0),
        )


def _title(node: NodeThen) -> str:
    if node.ended is not None:
        return f"ended {full_instant(node.ended)}"
    return f"since {full_instant(node.since)}"
