"""What a broker counts. No sockets here."""

from __future__ import annotations

from collections import Counter

from msgspec import json


class Counts:
    """The counters of a broker; each only ever grows."""

    __slots__ = (
        "bytes_received", "bytes_sent", "delivered", "disconnected", "dropped", "opened",
        "received", "refused", "unmatched", "wills",
    )  # fmt: skip

    def __init__(self, refused: Counter[str]) -> None:
        self.opened = 0  # connections
        self.received = 0  # messages
        self.delivered = 0  # copies of messages written to subscribers
        self.unmatched = 0  # messages without a subscriber
        self.wills = 0  # published
        self.bytes_received = 0
        self.bytes_sent = 0
        self.dropped: Counter[str] = Counter()  # copies, by reason
        self.refused = refused  # connections and requests, by cause; shared with the server
        self.disconnected: Counter[str] = Counter()  # connections that ended, by cause

    def as_json(self) -> bytes:
        """All counters as one JSON object.

        >>> Counts(Counter()).as_json()[:24]
        b'{"bytes_received":0,"byt'
        """
        return json.encode({name: getattr(self, name) for name in self.__slots__})
