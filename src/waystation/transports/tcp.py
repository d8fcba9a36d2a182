"""TCP links in Ockam's format: frames in, frames out.

What stands in the bytes is the business of wire/ockam.py; when they are read and written, and how a
connection ends, that of net/connection.py. A peer that does not read makes the link ask its owner
to pause, and a link whose owner does not keep up stops reading. So a slow worker is felt by its
senders, through every socket between them, and by nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from msgspec import Struct

from waystation.core.budget import MIB
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.net.connection import UNADMITTED, ConnectionLimits, Failure
from waystation.net.dialer import dial
from waystation.net.server import Server, ServerLimits
from waystation.net.tls import Tls
from waystation.transports.link import StreamLink, StreamListener, why_unsendable
from waystation.transports.transport import Link, LinkOwner
from waystation.wire.ockam import (
    FRAME_LIMIT,
    PREFACE,
    FrameDecoder,
    departure_parts,
    encode_control,
    encode_departure,
)

LARGE: Final = 4 * 1024
"""A payload of so many bytes is written from where it is, rather than copied into a frame."""

_log = logging.getLogger("waystation.transports")


class TcpLimits(Struct, frozen=True, kw_only=True):
    """Sizes and deadlines of links; times are in seconds.

    `frame` is the largest message in bytes, in either direction; Ockam's nodes take no more than
    the default; a peer that has not proven the token, where there is one, sends `unadmitted` bytes
    at most. `unsent` bytes may wait in a link before its senders have to. A peer has `greeting`
    seconds to send its first byte and to complete the TLS handshake, and `finish` seconds for a
    message that it has begun, or longer as long as 4 KiB of it arrive for each second. A listener
    holds `input` bytes of unfinished messages; over it the links with the largest are ended.
    `linger` is the time to write what is left when a link closes. `dead` is the time after which
    the system notices that a quiet peer's machine is gone.
    """

    frame: int = FRAME_LIMIT
    unadmitted: int = UNADMITTED
    unsent: int = 256 * 1024
    input: int = 256 * MIB
    greeting: float = 10.0
    finish: float = 30.0
    dial: float = 5.0
    linger: float = 5.0
    dead: float = 30.0
    backlog: int = 1024

    def of_connections(self) -> ConnectionLimits:
        """The part that a connection needs."""
        return ConnectionLimits(
            high_water=self.unsent,
            first_byte=self.greeting,
            frame=self.finish,
            linger=self.linger,
            dead=self.dead,
        )

    def of_servers(self) -> ServerLimits:
        """The part that a listener needs."""
        return ServerLimits(handshake=self.greeting, input=self.input, backlog=self.backlog)

    def of_strangers(self) -> int:
        """The largest message of a peer that is not admitted."""
        return min(self.frame, self.unadmitted)


class TcpLink(StreamLink):
    """One connection."""

    __slots__ = ("_admitted", "_decoder")

    def __init__(
        self, owner: LinkOwner, limits: TcpLimits, connection_limits: ConnectionLimits
    ) -> None:
        super().__init__(owner, limits.frame, connection_limits)
        self._admitted = False  # the owner admitted the peer, so that large frames may come
        self._decoder = FrameDecoder(limit=limits.of_strangers(), via=owner.address)

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Encode a message and put it with the others of this turn."""
        payload = message.payload
        try:
            if payload.__class__ is bytes and len(payload) >= LARGE:
                self.give_parts(departure_parts(message, limit=self._frame_limit))
            else:
                self.give(encode_departure(message, limit=self._frame_limit))
        except LocalError as error:
            return why_unsendable(error)
        return None

    def send_control(self, payload: bytes) -> None:
        """Put a payload for the peer's session with the messages of this turn."""
        self.write(encode_control(payload))

    # What the connection tells

    def on_open(self) -> None:
        """Greet the peer, whoever it is."""
        assert self.transport is not None
        self.transport.write(PREFACE)
        self._owner.opened(self)

    def on_data(self, data: bytes) -> None:
        """Hand in the messages that these bytes complete."""
        decoder = self._decoder
        messages = decoder.feed(data)
        if self.is_greeting and decoder.greeted:
            self.peer_spoke()
            self._owner.answered()
        self._owner.received(messages)
        if not self._admitted and self._owner.admitted:
            self._admitted = True
            if more := decoder.raise_limit(self._frame_limit):  # that came with the proof
                self._owner.received(more)
        error = decoder.error
        if error is not None:
            self.fail(Reason.TOO_LARGE if error.too_large else Reason.MALFORMED, str(error))

    def count_unfinished(self) -> int:
        """What is there of a frame."""
        return self._decoder.held

    def explain_end(self, error: Exception | None) -> Failure | None:
        """Say why it ended; half a frame is no orderly end."""
        if error is None and self._decoder.unfinished:
            return Failure(Reason.TRANSPORT_DOWN, "the peer closed in the middle of a frame")
        return super().explain_end(error)


class Tcp:
    """TCP in Ockam's format: addresses `tcp#host:port`."""

    type_name: ClassVar[str] = "tcp"

    def __init__(self, *, tls: Tls | None = None, limits: TcpLimits | None = None) -> None:
        self.limits = limits or TcpLimits()
        self._connection_limits = self.limits.of_connections()
        self._tls = tls

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> StreamListener:
        """Listen; port 0 takes a free one."""

        def make() -> TcpLink | None:
            owner = accept()
            return None if owner is None else self._link(owner)

        server = Server(make, limits=self.limits.of_servers(), tls=self._tls, log=_log)
        await server.start(place)
        return StreamListener(server)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Connect to the first of these places that answers."""
        limits = self.limits
        return await dial(
            lambda _: self._link(owner),
            places,
            timeout=limits.dial,
            tls=self._tls,
            handshake=limits.greeting,
        )

    def _link(self, owner: LinkOwner) -> TcpLink:
        return TcpLink(owner, self.limits, self._connection_limits)
