"""The picture of a fleet as it is now: what the watched nodes tell becomes boxes and links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waystation.console.fleet import DRAWN_SESSIONS, State, Watched
from waystation.console.formatting import place, plain
from waystation.console.graph import Graph, Link, NodeBox
from waystation.console.layout import Options, Picture, draw
from waystation.node.status import ServerStatus, SessionStatus

MAX_SERVERS: Final = 20
"""Maximum number of brokers and gossip routers of a node that are drawn."""


def picture(
    fleet: Sequence[Watched], own_name: str = "", options: Options | None = None
) -> Picture:
    """Draw a fleet; the sessions of `own_name`, the console itself, only among internals."""
    options = Options() if options is None else options
    graph = Graph(boxes=_watched_boxes(fleet))
    hidden = "" if options.internals else own_name
    for watched in fleet:
        _add_links(graph, watched, hidden)
    for watched in fleet:
        _add_gone(graph, watched, hidden)
    return draw(graph, options)


def _watched_boxes(fleet: Sequence[Watched]) -> dict[str, NodeBox]:
    boxes: dict[str, NodeBox] = {}
    for watched in fleet:
        hub = watched.seen is not None and watched.seen.hub
        box = NodeBox(
            key=plain(watched.name),
            kind="hub" if hub else "node",
            state=str(watched.state),
            title=f"at {watched.url}",
            url=watched.url,
            drops=watched.traffic[-1][1] if watched.traffic else 0.0,
        )
        known = boxes.setdefault(box.key, box)
        if known.state != State.HERE:  # it may be reached at another URL
            boxes[box.key] = box
    return boxes


def _add_links(graph: Graph, watched: Watched, hidden: str) -> None:
    """Add the connections of a node, and boxes for its peers."""
    if watched.seen is None:
        return
    name = plain(watched.name)
    here = watched.state == State.HERE
    for session in watched.seen.sessions[:DRAWN_SESSIONS]:
        peer = peer_name(session)
        if peer in {hidden, name} or not session.open:
            continue
        if peer not in graph.boxes:
            state, title = "here" if here else "away", proof_of(session)
            graph.boxes[peer] = NodeBox(key=peer, kind="peer", state=state, title=title)
        graph.add(_link(name, peer, session, watched, here=here))
    for server in watched.seen.servers[:MAX_SERVERS]:
        _add_server(graph, name, server, here=here)
    unlisted = watched.seen.sessions_total - len(watched.seen.sessions)
    if unlisted > 0:
        graph.unlisted[name] = unlisted


def _add_server(graph: Graph, node: str, server: ServerStatus, *, here: bool) -> None:
    """Add a broker or gossip router that a node uses."""
    key = plain(f"{server.kind} {server.place}")
    state = "open" if here and server.open else "away"
    box = graph.boxes.setdefault(key, NodeBox(key=key, kind="server", state="away"))
    if state == "open":
        box.state = "here"
    graph.add(Link(node, key, state, "mqtt" if server.kind == "broker" else "group"))


def _add_gone(graph: Graph, watched: Watched, hidden: str) -> None:
    """Add the peers of a node that disconnected, unless they are elsewhere now."""
    name = plain(watched.name)
    for peer in map(plain, watched.gone):
        if peer not in graph.boxes and peer != hidden:
            graph.boxes[peer] = NodeBox(key=peer, kind="peer", state="gone", title="disconnected")
            graph.add(Link(peer, name, "gone"))


def peer_name(session: SessionStatus) -> str:
    """What a peer calls itself; otherwise its transport and place."""
    if session.peer:
        return plain(session.peer)
    return place(session.place)


def proof_of(session: SessionStatus) -> str:
    """Who a peer has proven to be, in words; empty for one that gives no name either."""
    if session.identity:
        return f"proven to be {plain(session.identity)}"
    return "its name is not proven" if session.peer else ""


def transport_of(address: str) -> str:
    """The transport of an address, such as `1#10.0.0.7:4000`.

    >>> transport_of("1#10.0.0.7:4000"), transport_of("77#x"), transport_of("x")
    ('tcp', '77', '')
    """
    return place(address).partition(" ")[0] if "#" in address else ""


def _link(node: str, peer: str, session: SessionStatus, watched: Watched, *, here: bool) -> Link:
    slow = session.stalled or session.waiting > 0
    state = "away" if not here else "slow" if slow else "open"
    came, went = watched.rates.get(session.name, (0.0, 0.0))
    ends = (node, peer, state, transport_of(session.place), went, came)
    if not session.opened_here:
        ends = (peer, node, state, transport_of(session.place), came, went)
    return Link(*ends, max(0, session.waiting))
