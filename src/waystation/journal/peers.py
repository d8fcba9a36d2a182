"""Who is behind each session, as the records of a node tell it (OB-10).

A record of a message names the sessions that it came and left over. The journal adds the nodes at
their other ends, which it knows from the records of the sessions themselves.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from waystation.core.record import PeerClockRecord, SessionKind, SessionRecord, SessionRole

REMEMBERED: Final = 50_000
"""Sessions that have ended and are remembered: messages that waited for them come later."""


_TELL_NO_PEER: Final = (SessionKind.REFUSED, SessionKind.DENIED)


class Peer(Struct, frozen=True, gc=False):
    """The node at the other end of a session."""

    name: str | None
    role: SessionRole
    identity: str | None = None  # that it has proven

    @property
    def is_stranger(self) -> bool:
        """Whether it is no node of ours: what it sends enters the fabric here."""
        return self.name is None and self.role is not SessionRole.GLOBAL


class Peers:
    """The peers of one node, by the names of their sessions."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._peers: dict[str, Peer] = {}
        self._ended: dict[str, None] = {}  # in the order of their ends
        self._remembered = remembered

    def get(self, session: str) -> Peer | None:
        """The peer of a session; None if it was never open."""
        return self._peers.get(session)

    def contradicts(self, record: SessionRecord | PeerClockRecord) -> bool:
        """Whether a record tells another peer of a session than what is known of it."""
        event = record.session if isinstance(record, PeerClockRecord) else record
        known = self._peers.get(event.session)
        if known is None or known.name is None:
            return False
        return known.name != event.peer or known.identity != event.identity

    def learn(self, record: SessionRecord | PeerClockRecord) -> bool:
        """Note what a record tells; returns whether it was news."""
        event = record.session if isinstance(record, PeerClockRecord) else record
        if event.kind in _TELL_NO_PEER:
            return False
        peer = Peer(event.peer, event.role, event.identity)
        is_news = self._peers.get(event.session) != peer
        self._peers[event.session] = peer
        self._ended.pop(event.session, None)
        if event.kind is SessionKind.CLOSED:
            self._ended[event.session] = None
            if len(self._ended) > self._remembered:
                oldest = next(iter(self._ended))
                del self._ended[oldest], self._peers[oldest]
        return is_news
