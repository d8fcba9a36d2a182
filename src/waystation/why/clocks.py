"""How far the clocks of the nodes on a message's way were off, by what their sessions measured.

Each node journals how far the clocks of its peers are ahead of its own (TM-3). Along these a time
at one node becomes a time at another. All are brought to the clock of the node with the most such
peers; of several ways there, that of the least round trips counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final, TypeAlias

from waystation.why.lookup import MessageLookup, Row

NOTICED: Final = 1_000
"""Microseconds: clocks that differ by less do not put hops out of order."""

Visit: TypeAlias = tuple[str, int, int]
"""A node, its incarnation, and when the message came there by its clock."""

_Links: TypeAlias = dict[str, dict[str, tuple[int, int]]]  # round trip and offset, by both nodes


def corrections(lookup: MessageLookup, visits: list[Visit]) -> Mapping[str, int]:
    """How far each node's clock was ahead, in microseconds; empty if that is too little to matter.

    A node that no measurement connects with the others has no correction.
    """
    if len({node for node, _, _ in visits}) < 2:
        return {}
    links: _Links = {}
    for node, incarnation, at in visits:
        for peer, row in _nearest(lookup.clocks(node, incarnation), at).items():
            rtt, offset = row["rtt_us"], row["offset_us"]
            if rtt is not None and offset is not None:
                _add(links, node, peer, rtt, offset)
    found = _from_reference(links)
    nodes = {node: found.get(node, 0) for node, _, _ in visits}
    return nodes if max(nodes.values()) - min(nodes.values()) > NOTICED else {}


def _nearest(rows: list[Row], at: int) -> dict[str, Row]:
    """The measurement of each peer that is nearest in time."""
    found: dict[str, Row] = {}
    for row in rows:
        peer = row["peer"]
        best = found.get(peer)
        if peer and (best is None or abs(row["at"] - at) < abs(best["at"] - at)):
            found[peer] = row
    return found


def _add(links: _Links, node: str, peer: str, rtt: int, offset: int) -> None:
    """Note a measurement, which holds in both directions; that of the least round trip counts."""
    for here, there, ahead in ((node, peer, offset), (peer, node, -offset)):
        known = links.setdefault(here, {}).get(there)
        if known is None or rtt < known[0]:
            links[here][there] = (rtt, ahead)


def _from_reference(links: _Links) -> dict[str, int]:
    """How far the clocks of all nodes are ahead of that of the node with the most peers."""
    found: dict[str, int] = {}
    if not links:
        return found
    reference = min(links, key=lambda node: (-len(links[node]), node))
    reached = [(0, reference, 0)]
    while reached:
        total, node, ahead = heappop(reached)
        if node not in found:
            found[node] = ahead
            for peer, (rtt, offset) in links[node].items():
                heappush(reached, (total + rtt, peer, ahead + offset))
    return found
