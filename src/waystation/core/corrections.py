"""How far the clocks of nodes differ, by what their sessions measured of each other (TM-3).

Each node journals how far the clocks of its peers are ahead of its own. Of the measurements of two
nodes in an hour, in either direction, that with the least round trip counts: its error is at most
half of that. In every group of nodes that measurements connect, the clock of the node with the most
sessions is the reference; a clock's correction is the sum of the offsets on the way from there, and
of several ways that of the least round trips counts. A time minus the correction is a time of the
reference. A node that nobody measured has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

HOUR: Final = 3_600_000_000
"""In microseconds: corrections hold for an hour (UTC)."""

_Ways: TypeAlias = dict[str, list[tuple[int, str, int]]]  # round trip, peer and offset, by node


class Link(Struct, frozen=True, order=True):
    """What a node measured of a peer in an hour, and over how many sessions; the least is best."""

    rtt_us: int
    node: str
    peer: str
    offset_us: int
    sessions: int


class Measured(NamedTuple):
    """What a node measured of a peer's clock over one session (a row `clock` of `sessions`)."""

    node: str
    at: int
    session: str
    peer: str | None
    offset_us: int | None
    rtt_us: int | None


def links_by_hour(measured: Iterable[Measured]) -> dict[int, list[Link]]:
    """The best measurement of each peer by each node in each hour; of equal ones the first.

    What a hello told without a round trip does not count, nor does a peer without a name.
    """
    best: dict[tuple[int, str, str], tuple[int, int]] = {}
    sessions: dict[tuple[int, str, str], set[str]] = {}
    for one in measured:
        if one.peer is None or one.peer == one.node:
            continue
        if one.offset_us is None or one.rtt_us is None:
            continue
        key = hour_of(one.at), one.node, one.peer
        sessions.setdefault(key, set()).add(one.session)
        if key not in best or one.rtt_us < best[key][0]:
            best[key] = one.rtt_us, one.offset_us
    found: dict[int, list[Link]] = {}
    for (hour, node, peer), (rtt, offset) in best.items():
        count = len(sessions[hour, node, peer])
        found.setdefault(hour, []).append(Link(rtt, node, peer, offset, count))
    return found


def hour_of(at: int) -> int:
    """The beginning of the hour of an instant.

    >>> hour_of(7_200_000_001)
    7200000000
    """
    return at // HOUR * HOUR


def corrections(links: Iterable[Link]) -> dict[str, int]:
    """How far each node's clock is ahead of that of its reference, in microseconds.

    The links are those of one hour.

    >>> corrections([Link(5, "hub", "a", 70, 1), Link(9, "b", "hub", -20, 1)])
    {'hub': 0, 'a': 70, 'b': 20}
    """
    best: dict[frozenset[str], Link] = {}
    sessions: dict[frozenset[str], int] = {}  # as many as that of the two that knows more
    for link in sorted(links):
        pair = frozenset((link.node, link.peer))
        best.setdefault(pair, link)
        sessions[pair] = max(sessions.get(pair, 0), link.sessions)
    ways: _Ways = {}
    count: dict[str, int] = {}
    for pair, link in best.items():
        ways.setdefault(link.node, []).append((link.rtt_us, link.peer, link.offset_us))
        ways.setdefault(link.peer, []).append((link.rtt_us, link.node, -link.offset_us))
        for node in pair:
            count[node] = count.get(node, 0) + sessions[pair]
    found: dict[str, int] = {}
    for reference in sorted(count, key=lambda node: (-count[node], node)):
        if reference not in found:  # the first of its group
            _reach(reference, ways, found)
    return found


def _reach(reference: str, ways: _Ways, found: dict[str, int]) -> None:
    """Add the corrections of all nodes that measurements connect with the reference."""
    reached = [(0, reference, 0)]
    while reached:
        total, node, ahead = heappop(reached)
        if node not in found:
            found[node] = ahead
            for rtt, peer, offset in ways[node]:
                heappush(reached, (total + rtt, peer, ahead + offset))
