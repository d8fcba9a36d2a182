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

    def __init__(self) -> None:
        self.opened = 0  # connections
        self.received = 0  # messages
        self.delivered = 0  # copies of messages written to subscribers
        self.unmatched = 0  # messages that nobody had subscribed to
        self.wills = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.dropped: Counter[str] = Counter()  # copies, by reason
        self.refused: Counter[str] = Counter()  # connections and requests, by cause
        self.disconnected: Counter[str] = Counter()  # connections that ended, by cause

    def as_json(self) -> bytes:
        """All of it, for people and programs.

        >>> Counts().as_json()[:24]
        b'{"bytes_received":0,"byt'
        """
        return json.encode({name: getattr(self, name) for name in self.__slots__})
