"""What a router counts, and under which names Prometheus reads it. No sockets here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from waystation.net.metrics import Family, counter

PREFIX = "waystation_router"


class Counts:
    """The counters of a router; each only ever grows."""

    __slots__ = (
        "bytes_received", "bytes_sent", "delivered", "disconnected", "dropped", "members",
        "opened", "received", "refused", "requests", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.opened = 0
        self.received = 0  # messages
        self.delivered = 0  # copies of messages handed to the connections of receivers
        self.bytes_received = 0
        self.bytes_sent = 0
        self.dropped: Counter[str] = Counter()  # copies, or messages that had no receiver at all
        self.requests: Counter[str] = Counter()
        self.members: Counter[str] = Counter()  # what happened to them
        self.refused: Counter[str] = Counter()
        self.disconnected: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()  # of senders for receivers, by how that ended

    def families(self) -> Iterator[Family]:
        """The counters as Prometheus reads them."""
        yield counter("connections_opened", "Connections accepted so far.", self.opened)
        yield counter("messages_received", "Messages that clients sent.", self.received)
        yield counter("messages_delivered", "Copies handed to receivers.", self.delivered)
        yield counter("messages_dropped", "Copies dropped, by reason.", self.dropped, "reason")
        yield counter("received_bytes", "Bytes read from clients.", self.bytes_received)
        yield counter("sent_bytes", "Bytes written to clients.", self.bytes_sent)
        yield counter("requests", "Requests other than messages, by kind.", self.requests, "kind")
        yield counter("member_changes", "Changes of membership, by kind.", self.members, "kind")
        yield counter("refusals", "What was refused, by cause.", self.refused, "cause")
        yield counter("waits", "Receivers that senders waited for.", self.waits, "result")
        yield counter(
            "disconnections", "Connections that the router ended.", self.disconnected, "cause"
        )
