"""What a broker counts. No sockets here."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field, json


class Counts(Struct):
    """The counters of a broker; each only ever grows."""

    bytes_received: int = 0
    bytes_sent: int = 0
    delivered: int = 0  # copies of messages written to subscribers
    disconnected: Counter[str] = field(default_factory=Counter)  # connections, by cause
    dropped: Counter[str] = field(default_factory=Counter)  # copies, by reason
    opened: int = 0  # connections
    received: int = 0  # messages
    refused: Counter[str] = field(default_factory=Counter)  # connections and requests, by cause
    unmatched: int = 0  # messages without a subscriber
    wills: int = 0  # published

    def as_json(self) -> bytes:
        """All counters as one JSON object.

        >>> Counts(opened=1).as_json()[:24]
        b'{"bytes_received":0,"byt'
        """
        return json.encode(self)
