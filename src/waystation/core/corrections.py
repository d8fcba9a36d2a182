"""How far the clocks of nodes differ, by what their sessions measured of each other (TM-3).

Each node journals how far the clocks of its peers are ahead of its own. Of the measurements of two
nodes in an hour, in either direction, that with the least round trip counts: its error is at most
half of that. In every group of nodes that measurements connect, the clock of the node with the most
sessions is the reference; a clock's correction is the sum of the offsets on the way from there, and
of several ways that of the least round trips counts. A time minus the correction is a time of the
reference.

Nodes that no measurements of an hour connect are connected by their traffic. A message that one
passes to the other takes time, and the difference of their clocks is added to it; one that comes
back takes time, and the difference is subtracted. Half of the difference between the least delays
is the offset, and their sum is a round trip, with an error of at most half of it as well. A node
that neither measurements nor traffic connect with another has no correction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

HOUR: Final = 3_600_000_000
"""In microseconds: corrections hold for an hour (UTC)."""

FEWEST: Final = 10
"""With fewer messages in one direction, an hour's traffic tells nothing of clocks."""

SESSION: Final = "session"
TRAFFIC: Final = "traffic"
"""Where an offset comes from."""

_Ways: TypeAlias = dict[str, list[tuple[int, str, int]]]  # round trip, peer and offset, by node


class Link(Struct, frozen=True, order=True):
    """What is known of a peer's clock in an hour, and from how many sessions; the least is best."""

    rtt_us: int
    node: str
    peer: str
    offset_us: int
    sessions: int
    source: str = SESSION


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


class Delay(NamedTuple):
    """The least delay of messages from a node to another, from arrival to arrival.

    Both times are those of each node's own clock. The messages are those that the sender had in one
    hour by its clock, and the receiver in one by its own.
    """

    sender: str
    receiver: str
    sent_hour: int
    received_hour: int
    least_us: int
    messages: int


def estimates(delays: Iterable[Delay]) -> dict[int, list[Link]]:
    """What the traffic of each hour tells of clocks, for both nodes by their own hours.

    >>> delays = [Delay("a", "b", 0, 0, 70, 10), Delay("b", "a", 0, 0, -30, 10)]
    >>> [(link.node, link.peer, link.offset_us, link.rtt_us) for link in estimates(delays)[0]]
    [('a', 'b', 50, 40), ('b', 'a', -50, 40)]
    """
    there: dict[tuple[int, str, str], tuple[int, int]] = {}
    back: dict[tuple[int, str, str], tuple[int, int]] = {}
    for one in delays:
        _add(there, (one.sent_hour, one.sender, one.receiver), one)
        _add(back, (one.received_hour, one.receiver, one.sender), one)
    found: dict[int, list[Link]] = {}
    for key, (away, sent) in sorted(there.items()):
        home, received = back.get(key, (0, 0))
        if min(sent, received) >= FEWEST:
            hour, node, peer = key
            rtt = max(0, away + home)  # less than nothing if a clock was mended meanwhile
            link = Link(rtt, node, peer, (away - home) // 2, 1, TRAFFIC)
            found.setdefault(hour, []).append(link)
    return found


def _add(
    known: dict[tuple[int, str, str], tuple[int, int]], key: tuple[int, str, str], one: Delay
) -> None:
    least, messages = known.get(key, (one.least_us, 0))
    known[key] = min(least, one.least_us), messages + one.messages


def strangers(
    measured: Mapping[int, Iterable[Link]], peers: Mapping[str, Mapping[int, Iterable[str]]]
) -> dict[str, dict[int, list[str]]]:
    """Of the peers that each node has in each hour, those that no measurements connect it with.

    Only nodes that are in `peers` themselves count: of others nothing is known.

    >>> strangers({0: [Link(5, "hub", "a", 70, 1)]}, {"a": {0: ["hub", "b"]}, "b": {}, "hub": {}})
    {'a': {0: ['b']}}
    """
    hours = {hour for found in peers.values() for hour in found}
    groups = {hour: groups_of(measured.get(hour, ())) for hour in hours}
    found: dict[str, dict[int, list[str]]] = {}
    for node, by_hour in peers.items():
        for hour, names in by_hour.items():
            group = groups[hour]
            apart = [
                name
                for name in sorted(names)
                if name in peers and group.get(name, name) != group.get(node, node)
            ]
            if apart:
                found.setdefault(node, {})[hour] = apart
    return found


def groups_of(links: Iterable[Link]) -> dict[str, str]:
    """The nodes that measurements connect, each with a name of its group.

    >>> groups_of([Link(5, "hub", "a", 70, 1), Link(9, "x", "y", -20, 1)])
    {'hub': 'hub', 'a': 'hub', 'x': 'x', 'y': 'x'}
    """
    above: dict[str, str] = {}

    def top(node: str) -> str:
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    for link in links:
        for node in (link.node, link.peer):
            above.setdefault(node, node)
        above[top(link.peer)] = top(link.node)
    return {node: top(node) for node in above}


def hour_of(at: int) -> int:
    """The beginning of the hour of an instant.

    >>> hour_of(7_200_000_001)
    7200000000
    """
    return at // HOUR * HOUR


def corrections(links: Iterable[Link]) -> dict[str, int]:
    """How far each node's clock is ahead of that of its reference, in microseconds.

    The links are those of one hour. What sessions measured of two nodes counts before what traffic
    tells.

    >>> corrections([Link(5, "hub", "a", 70, 1), Link(9, "b", "hub", -20, 1)])
    {'hub': 0, 'a': 70, 'b': 20}
    """
    best: dict[frozenset[str], Link] = {}
    sessions: dict[frozenset[str], int] = {}  # as many as that of the two that knows more
    for link in sorted(links, key=lambda link: (link.source != SESSION, link)):
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
