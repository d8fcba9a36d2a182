"""What links have in common, whatever carries them: how they tell their owner, and how they end.

`StreamLink` is a link over one connection, whose life is that of net/connection.py. `BaseLink` is a
link over something else (a broker, datagrams, requests), and in a `QueuedLink` messages wait until
they can go. No word about any format here.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Final

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.net.connection import (
    Connection,
    ConnectionLimits,
    ConnectionState,
    Failure,
    OneTimer,
)
from waystation.net.server import Server
from waystation.net.tls import Secured, secured
from waystation.transports.transport import Link, LinkOwner

CONTROL: Final = 1 << 20
"""Bytes of control payloads that may wait for a peer that takes nothing; then its link ends (FL-5).
"""

_log = logging.getLogger("waystation.transports")


def why_unsendable(error: LocalError) -> Reason:
    """Why a message cannot be written, by the rule that it breaks."""
    if error.rule == "OB-2":
        return Reason.TOO_LARGE
    return Reason.NO_ROUTE if error.rule == "AD-6" else Reason.MALFORMED


class StreamLink(Connection):
    """A link over one connection: passes on to its owner what the connection tells."""

    __slots__ = ("_frame_limit", "_owner")

    def __init__(self, owner: LinkOwner, frame_limit: int, limits: ConnectionLimits) -> None:
        super().__init__(limits)
        self.account = owner.account
        self._owner = owner
        self._frame_limit = frame_limit

    @property
    def secured(self) -> Secured | None:
        """What TLS tells of the connection; None without TLS."""
        if self.transport is None:
            return None
        return secured(self.transport, None if self.server is None else self.server.certificate)

    @property
    def is_with_stranger(self) -> bool:
        """Whether the peer is no node of ours, such as Ockam's or an application of joynr's."""
        return self._owner.is_stranger

    def on_crowded(self) -> None:
        """Let senders wait."""
        self._owner.pause()

    def on_clear(self) -> None:
        """Let senders go on."""
        self._owner.resume()

    def on_sent(self, messages: int | None) -> None:
        """Pass on which messages left this process."""
        self._owner.sent(messages)

    def on_closed(self, failure: Failure | None) -> None:
        """Tell the owner how it ended."""
        self._owner.closed(*(failure or (None, "closed")))

    def on_handshake_failed(self) -> None:
        """Tell the owner that nothing came of it."""
        self._owner.closed(Reason.REFUSED, "there was no TLS handshake")


class StreamListener:
    """A listening socket; `path` is what its place has behind the port."""

    def __init__(self, server: Server, path: str = "") -> None:
        self._server = server
        self.place = server.place + path

    async def close(self) -> None:
        """Accept no more connections; the open ones stay."""
        self._server.close()

    def renew_certificate(self) -> None:
        """Use the certificate that is in its file now for the connections to come (ID-5)."""
        self._server.renew_certificate()


class BaseLink(OneTimer, Link):
    """A link that is no connection.

    Its states are those of a connection, as far as it has them: in GREETING the peer has not
    answered yet, in CLOSING nothing more is taken in either direction, and what was taken is sent.
    `linger` is the time in seconds to send what is left when the link closes.
    """

    __slots__ = ("_crowded", "_linger", "owner", "place", "state")

    place: str

    def __init__(self, owner: LinkOwner, place: str, *, linger: float) -> None:
        super().__init__()
        self.owner = owner
        self.place = place
        self.state = ConnectionState.OPEN
        self._linger = linger
        self._crowded = False  # senders wait

    # What subclasses implement, beside sending and when to read

    @abstractmethod
    def say_goodbye(self) -> None:
        """Begin to send what is left; `end` follows when it is gone."""

    @abstractmethod
    def on_end(self) -> None:
        """Let go of everything."""

    # What the owner asks for

    def close(self) -> None:
        """Send what is left, within the time for it, and end."""
        if self.state <= ConnectionState.OPEN:
            self.say_goodbye()
            self.state = ConnectionState.CLOSING
            self.start_timer(self._linger, self._end_lingering)

    def abort(self) -> None:
        """End at once."""
        self.end(Reason.TRANSPORT_DOWN, "aborted")

    # What subclasses call

    def hand_over(self) -> None:
        """Tell the owner that the link can be used."""
        _log.debug("%s: opened", self.place)
        self.owner.opened(self)

    def end(self, reason: Reason | None, detail: str) -> None:
        """Tell the owner, once, at the end of this turn; nothing happens after that."""
        if self.state is ConnectionState.CLOSED:
            return
        self.state = ConnectionState.CLOSED
        self.stop_timer()
        _log.debug("%s: %s (%s)", self.place, detail, reason)
        self.on_end()
        self._loop.call_soon(self.owner.closed, reason, detail)

    def _end_lingering(self) -> None:
        self.end(Reason.TRANSPORT_DOWN, "the peer did not take what was left")


class QueuedLink(BaseLink):
    """A link in which messages wait until they can go.

    More than `high_water` bytes make senders wait until a quarter of that is left.
    """

    __slots__ = ("_high_water",)

    def __init__(self, owner: LinkOwner, place: str, *, high_water: int, linger: float) -> None:
        super().__init__(owner, place, linger=linger)
        self._high_water = high_water

    @abstractmethod
    def enqueue(self, message: Message) -> int:
        """Encode a message and let it wait; how many bytes wait now. LocalError if it cannot be."""

    def send(self, message: Message) -> Reason | None:
        """Let a message wait with the others; the reason why not, if it cannot be written."""
        try:
            waiting = self.enqueue(message)
        except LocalError as error:
            return why_unsendable(error)
        if waiting > self._high_water and not self._crowded:
            self._crowded = True
            self.owner.pause()
        return None

    def note_room(self, waiting: int) -> None:
        """Let senders go on, if few enough bytes wait now."""
        if self._crowded and waiting <= self._high_water // 4:
            self._crowded = False
            self.owner.resume()
