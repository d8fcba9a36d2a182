"""What a router counts, and under which names Prometheus reads it. No sockets here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from waystation.net.metrics import Family, counter, exposition, gauge
from waystation.net.monitor import Health
from waystation.net.tasks import COUNTS

if TYPE_CHECKING:
    from waystation.gossip_router.client import Client
    from waystation.gossip_router.server import GossipServer

LARGEST: Final = 10
"""So many receivers have a number of their own: those for which most waits."""


class Counts(Struct):
    """The counters of a router; each only ever grows."""

    opened: int = 0
    received: int = 0  # messages
    delivered: int = 0  # copies of messages handed to the connections of receivers
    bytes_received: int = 0
    bytes_sent: int = 0  # over connections that ended; the others know theirs
    dropped: Counter[str] = field(default_factory=Counter)  # copies, or messages without a receiver
    requests: Counter[str] = field(default_factory=Counter)
    members: Counter[str] = field(default_factory=Counter)  # what happened to them
    refused: Counter[str] = field(default_factory=Counter)
    disconnected: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)  # of senders, by how that ended


class RouterMetrics:
    """What is monitored of a router: `Monitor(RouterMetrics(server))`."""

    def __init__(self, router: GossipServer) -> None:
        self._router = router

    def metrics(self) -> str:
        """The text for Prometheus."""
        return exposition("waystation_router", _families(self._router))

    def health(self) -> Health:
        """Whether it serves members."""
        return Health(draining=self._router.draining, listening=self._router.place)


def _families(router: GossipServer) -> Iterator[Family]:
    counts, clients = router.counts, router.clients()
    sent = counts.bytes_sent + sum(client.written for client in clients)
    yield counter("connections_opened", "Connections accepted so far.", counts.opened)
    yield counter("messages_received", "Messages that clients sent.", counts.received)
    yield counter("messages_delivered", "Copies handed to receivers.", counts.delivered)
    yield counter("messages_dropped", "Copies dropped, by reason.", counts.dropped, "reason")
    yield counter("received_bytes", "Bytes read from clients.", counts.bytes_received)
    yield counter("sent_bytes", "Bytes written to clients.", sent)
    yield counter("requests", "Requests other than messages, by kind.", counts.requests, "kind")
    yield counter("member_changes", "Changes of membership, by kind.", counts.members, "kind")
    yield counter("refusals", "What was refused, by cause.", counts.refused, "cause")
    yield counter("waits", "Receivers that senders waited for.", counts.waits, "result")
    ended = "Connections that the router ended, by cause."
    yield counter("disconnections", ended, counts.disconnected, "cause")
    connections = Counter(c.reader.dialect.value if c.number else "unknown" for c in clients)
    groups = Counter(dialect.value for dialect, _ in router.rosters)
    members: Counter[str] = Counter()
    for (dialect, _), roster in router.rosters.items():
        members[dialect.value] += len(roster.entries)
    yield gauge("connections", "Open connections.", connections, "dialect")
    yield gauge("groups", "Groups with members.", groups, "dialect")
    yield gauge("members", "Members of groups.", members, "dialect")
    unsent = sum(client.unsent for client in clients)
    yield gauge("queued_bytes", "Bytes that wait for receivers.", unsent)
    yield gauge("budget_bytes", "Bytes that may wait for all of them.", router.settings.budget)
    largest = {client.place: client.unsent for client in nlargest(LARGEST, clients, _unsent)}
    most = "Bytes that wait for those receivers for which most wait."
    waiting = {place: size for place, size in largest.items() if size}
    yield gauge("receiver_queued_bytes", most, waiting, "receiver")
    yield counter("tasks_failed", "Tasks of this process that failed.", COUNTS.failed)
    yield gauge("draining", "Whether the router is ending.", int(router.draining))


def _unsent(client: Client) -> int:
    return client.unsent
