"""WebSocket links in Ockam's format: what a link over TCP does, in the messages of a WebSocket.

The handshake, the frames and their limits are the business of the package `websockets`, whose
protocol needs no task and no future of ours; the bodies are those of wire/ockam_ws.py. One body is
one binary message. When bytes are read and written is the business of net/connection.py, as with
TCP.

    node = Node("hub", transports=[Tcp(), WebSocket()])
    await node.listen("ws://127.0.0.1:0/fleet")

It needs `pip install 'waystation[ws]'`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Final, cast

from waystation.core.address import Address
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError, quote
from waystation.net.connection import ConnectionLimits, ConnectionState, Failure
from waystation.net.dialer import dial, within
from waystation.net.place import parse_place, place_of
from waystation.net.server import Server
from waystation.net.tls import Tls
from waystation.transports.link import StreamLink, StreamListener, why_unsendable
from waystation.transports.tcp import TcpLimits
from waystation.transports.transport import Link, LinkOwner
from waystation.wire.ockam_ws import BodyDecoder, encode_control, encode_departure

if find_spec("websockets") is None:
    raise LocalError(
        "WebSocket links need the package websockets, which is not installed",
        rule="WK-8",
        hint="pip install 'waystation[ws]'",
    )

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Event, Protocol, State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.typing import Origin
from websockets.uri import parse_uri

_log: Final = logging.getLogger(__name__)
_is_path: Final = re.compile(r"/[!-\"$-~]*").fullmatch
_OPEN: Final = State.OPEN
_BINARY: Final = Opcode.BINARY
_BETWEEN_FRAMES: Final = StreamReader.at_eof.__code__
"""What the parser of `websockets` waits in when no frame has begun: the only place that tells."""

_EXPECTED_ENDS: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)


class WebSocketLimits(TcpLimits, frozen=True, kw_only=True):
    """Those of TCP, and how many `handshakes` a listener has under way at once.

    A handshake takes about 10 KiB. Further connections are refused meanwhile: with a limit that is
    too low, a large fleet that reconnects at once locks itself out. A peer has `greeting` seconds
    for TLS, and again for the WebSocket handshake. `frame` is the size of the largest message, in
    any number of fragments.
    """

    handshakes: int = 16_384


class _FrameByFrame(Protocol):
    """Tells of each frame before the next is read, and so before that is found too large."""

    on_frame: Callable[[], None] | None = None

    def recv_frame(self, frame: Frame) -> None:
        super().recv_frame(frame)
        if self.on_frame is not None:
            self.on_frame()


class _ServerProtocol(_FrameByFrame, ServerProtocol):
    """For connections that peers open."""


class _ClientProtocol(_FrameByFrame, ClientProtocol):
    """For connections that this node opens."""


class WebSocketLink(StreamLink, ABC):
    """One connection; the subclasses below open it, from either end."""

    __slots__ = ("_begun", "_bodies", "_partial", "_progressed", "_protocol", "_unadmitted")

    def __init__(
        self,
        owner: LinkOwner,
        limits: WebSocketLimits,
        connection_limits: ConnectionLimits,
        protocol: _ServerProtocol | _ClientProtocol,
    ) -> None:
        super().__init__(owner, limits.frame, connection_limits)
        self._unadmitted = limits.of_strangers()
        self._progressed = False  # what came last completed a message
        self._protocol = protocol
        protocol.on_frame = self._take_early
        self._begun = 0  # bytes that came since a message began, which is not complete
        self._bodies: Any = None  # none yet, as long as it is no WebSocket
        self._partial: bytearray | None = None  # of a message that comes in fragments

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Encode a message and put it with the others of this turn."""
        try:
            body = encode_departure(message, limit=self._frame_limit)
        except LocalError as error:
            return why_unsendable(error)
        self.give(self._framed(body))
        return None

    def send_control(self, payload: bytes) -> None:
        """Put a payload for the peer's session with the messages of this turn."""
        self.write(self._framed(encode_control(payload)))

    def close(self) -> None:
        """Write what is left and say goodbye; the peer has some time to answer that."""
        if self.is_open and self._protocol.state is not _OPEN:  # not yet, or the peer was first
            self.abort()
        else:
            super().close()

    # What the connection tells

    def data_received(self, data: bytes) -> None:
        """Read also while closing: the peer's goodbye is still to come."""
        if self.state is ConnectionState.CLOSING and self.failure is None:
            self.on_data(data)
        elif self.failure is None:
            super().data_received(data)

    def on_data(self, data: bytes) -> None:
        """Hand in the messages that these bytes complete."""
        protocol = self._protocol
        self._progressed = False
        protocol.receive_data(data)
        events = protocol.events_received()
        if self._bodies is None:
            self._shake_hands(events)
            events = events[1:]
        if self._bodies is not None:
            self._hand_in(events, self._bodies)
            error = protocol.parser_exc
            if error is not None and self.failure is None:  # and a goodbye is there to be written
                too_large = isinstance(error, PayloadTooBig)
                self._refuse(Reason.TOO_LARGE if too_large else Reason.MALFORMED, str(error))
        self._write_out()
        self._note_begun(len(data))

    def count_unfinished(self) -> int:
        """What came since a message began, with whatever stood between its fragments.

        So neither fragments without end nor pings give a peer more time for a message.
        """
        return self._begun

    def _note_begun(self, size: int) -> None:
        if self._bodies is None:
            self._begun += size
            if self._begun > self._unadmitted:
                self.fail(Reason.REFUSED, f"{self.place}: the handshake is too long")
        elif not self._is_within_message():
            self._begun = 0
        elif self._progressed:
            self._begun = 1 + len(self._protocol.reader.buffer) + len(self._partial or b"")
        else:
            self._begun += size

    def _is_within_message(self) -> bool:
        waits_in: Any = self._protocol.parser
        while waits_in.gi_yieldfrom is not None:
            waits_in = waits_in.gi_yieldfrom
        return self._partial is not None or waits_in.gi_code is not _BETWEEN_FRAMES

    def explain_end(self, error: Exception | None) -> Failure | None:
        """Say why it ended: by what the peer said, else by what the system said."""
        if self._bodies is None:
            return None if error is None else Failure(Reason.TRANSPORT_DOWN, str(error))
        said, in_order = self._protocol.close_rcvd, self.state is ConnectionState.CLOSING
        if said is not None and not in_order and said.code not in _EXPECTED_ENDS:
            return Failure(Reason.TRANSPORT_DOWN, f"the peer closed with {said}")
        if error is not None and said is None:
            return super().explain_end(error)
        if said is None and not in_order:
            return Failure(Reason.TRANSPORT_DOWN, "the connection ended without a goodbye")
        return None

    def on_closed(self, failure: Failure | None) -> None:
        """Tell the owner how it ended."""
        # The protocol and its parser hold each other, and what they have, until that is noticed.
        self._protocol.on_frame = None
        self._protocol.reader.buffer.clear()
        self._partial = None
        super().on_closed(failure)

    # Opening

    @abstractmethod
    def _shake_hands(self, events: list[Event]) -> None:
        """Check the peer's half of the handshake."""

    def _open(self, owner: LinkOwner) -> None:
        self._owner = owner
        self.account = owner.account
        self._begun = 0
        self._greet(owner)

    def _greet(self, owner: LinkOwner) -> None:
        """Tell the owner that it has a link, and that the peer speaks its format."""
        self._bodies = BodyDecoder(owner.address, limit=self._frame_limit)
        self.peer_spoke()
        owner.opened(self)
        if self.is_open:  # the owner may have refused it
            owner.answered()
            self._look_for_admission()

    def _take_early(self) -> None:
        """Hand in frame by frame until the peer is admitted: only then a large one may follow."""
        if self._bodies is not None and self.state <= ConnectionState.CLOSING:
            self._hand_in(self._protocol.events_received(), self._bodies)
            self._look_for_admission()

    def _look_for_admission(self) -> None:
        if self._owner.admitted:
            self._protocol.on_frame = None
            self._protocol.max_message_size = self._frame_limit

    def on_silence(self) -> None:
        """End a connection whose handshake takes too long."""
        seconds = self.limits.first_byte
        self.fail(Reason.REFUSED, f"there was no WebSocket handshake within {seconds:g} s")

    # Reading

    def _hand_in(self, events: list[Event], bodies: Any) -> None:
        messages: list[Message] = []
        for event in events:
            if isinstance(event, Frame) and self.failure is None:
                self._take(event, bodies, messages)
        if messages:
            self._progressed = True
        if self.state is not ConnectionState.CLOSING:
            self._owner.received(messages)

    def _take(self, frame: Frame, bodies: Any, messages: list[Message]) -> None:
        """Read one frame; what is wrong with it never costs the messages before it."""
        opcode = frame.opcode
        if opcode is _BINARY and frame.fin:
            body = bytes(frame.data)
        elif opcode is _BINARY:
            self._partial = bytearray(frame.data)
            return
        elif opcode is Opcode.CONT and self._partial is not None:
            self._partial += frame.data
            if not frame.fin:
                return
            body, self._partial = bytes(self._partial), None
        elif opcode is Opcode.CLOSE:
            self._let_go()
            return
        elif opcode is Opcode.PONG:
            self._on_pong(bytes(frame.data), messages)
            return
        elif opcode is Opcode.TEXT:
            detail = "a text message came, and only binary is valid"
            self._refuse(Reason.MALFORMED, detail, CloseCode.UNSUPPORTED_DATA)
            return
        else:  # ping
            return
        if self.state is ConnectionState.CLOSING:
            return
        try:
            self._read_body(body, bodies, messages)
        except DecodeError as error:
            reason = Reason.TOO_LARGE if error.too_large else Reason.MALFORMED
            self._refuse(reason, str(error), CloseCode.INVALID_DATA)

    def _read_body(self, body: bytes, bodies: Any, messages: list[Message]) -> None:
        """Read one whole body; DecodeError if it is none."""
        messages.append(bodies.decode(body))

    def _on_pong(self, data: bytes, messages: list[Message]) -> None:
        """Take the answer to a ping; none is sent here."""

    def _pong(self, data: bytes) -> None:
        """Send a pong that answers no ping."""
        if self._protocol.state is _OPEN:
            self._protocol.send_pong(data)
            self._write_out()

    def _let_go(self) -> None:
        """Wait for the end of the connection: the peer said goodbye, and that was answered."""
        if self.state is not ConnectionState.CLOSING:
            self.settle_if_written()
            self.start_timer(self.limits.linger, self.abort_transport)

    # Writing

    def _framed(self, body: bytes) -> bytes:
        protocol = self._protocol
        return Frame(_BINARY, body).serialize(mask=isinstance(protocol, ClientProtocol))

    def flush(self) -> None:
        """Write what this turn brought, unless a goodbye was said: nothing may follow that."""
        if self._protocol.state is _OPEN:
            super().flush()
        else:
            self.discard()

    def _write_out(self) -> None:
        """Write what the protocol has to say by itself: handshakes, pongs and goodbyes."""
        transport = self.transport
        pieces = self._protocol.data_to_send()
        if not pieces or transport is None or transport.is_closing():
            return
        if self.peer_is_slow and self._protocol.state is _OPEN:
            return  # a peer that does not read gets no pongs either, or they would pile up
        for piece in pieces:
            if piece:
                transport.write(piece)
            else:
                self._end_soon(transport)

    # Ending

    def say_goodbye(self, transport: asyncio.Transport) -> None:  # noqa: ARG002
        """Send the close frame; what arrives before the peer's is discarded."""
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self._write_out()
        self.resume_reading()

    def _refuse(self, reason: Reason, detail: str, code: CloseCode | None = None) -> None:
        """End the link, and tell the peer what was wrong, unless the protocol did already."""
        self.failure = Failure(reason, detail)
        if code is not None and self._protocol.state is _OPEN:
            self._protocol.fail(code, detail.encode("ascii", "replace")[:100].decode())
        self._write_out()
        if self.transport is not None:
            self._end_soon(self.transport)

    def _end_soon(self, transport: asyncio.Transport) -> None:
        """End when everything is written, or when that takes too long."""
        transport.close()
        self.start_timer(self.limits.linger, self.abort_transport)


# --- Listening ------------------------------------------------------------------------------------


class _Nobody:
    """The owner of a link that was refused: everything is told already."""

    address: Final = Address(0, b"")
    admitted: Final = False
    is_stranger: Final = True
    account: Final = None

    def opened(self, link: Link) -> None: ...
    def answered(self) -> None: ...
    def received(self, messages: Sequence[Message]) -> None: ...
    def sent(self, messages: int | None = None) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def closed(self, reason: Reason | None, detail: str) -> None: ...


_NOBODY: Final = _Nobody()
_NO_HANDSHAKE: Final = "the connection ended before the WebSocket handshake"


class Upgrades(_Nobody):
    """The owner of all connections of one listener that are no links yet."""

    def __init__(
        self, transport: WebSocket, path: str, accept: Callable[[], LinkOwner | None]
    ) -> None:
        self.transport = transport
        self.path = path
        self._accept = accept
        self.pending = 0  # connections that are no links yet

    def make(self) -> AcceptedLink | None:
        """A link for a connection that comes in; None when there are too many handshakes."""
        if self.pending >= self.transport.limits.handshakes:
            self._record(Reason.REFUSED, "the limit of handshakes is reached")
            return None
        self.pending += 1
        return self.transport.accepted_link(self)

    def accept(self) -> LinkOwner | None:
        """The owner of a connection whose handshake is complete; None to refuse it."""
        self.pending -= 1
        return self._accept()

    def closed(self, reason: Reason | None, detail: str) -> None:
        """Have a connection that did not become a link recorded, by an owner of its own."""
        self.pending -= 1
        self._record(reason, _NO_HANDSHAKE if reason is None else detail)

    def _record(self, reason: Reason | None, detail: str) -> None:
        owner = self._accept()
        if owner is not None:
            owner.closed(reason, detail)


class AcceptedLink(WebSocketLink):
    """A connection that a peer opened. It has an owner as soon as it is a WebSocket."""

    __slots__ = ("_upgrades",)

    def __init__(self, upgrades: Upgrades) -> None:
        transport = upgrades.transport
        limits = transport.limits
        most = limits.of_strangers()
        protocol = _ServerProtocol(origins=transport.origins, max_size=most, logger=_log)
        super().__init__(upgrades, limits, transport.connection_limits, protocol)
        self._upgrades = upgrades

    def _shake_hands(self, events: list[Event]) -> None:
        protocol = cast("ServerProtocol", self._protocol)
        if protocol.handshake_exc is not None:  # no HTTP at all, or too much of it
            self.failure = Failure(Reason.REFUSED, f"{self.place}: {protocol.handshake_exc}")
        elif len(events) > 1 or protocol.parser_exc is not None:
            self.fail(Reason.REFUSED, f"{self.place}: it did not wait for the handshake")
        elif events:
            self._answer(protocol, cast("Request", events[0]))

    def _answer(self, protocol: ServerProtocol, request: Request) -> None:
        owner, path = None, self._upgrades.path
        response = protocol.accept(request)
        if response.status_code == 101 and path and request.path.partition("?")[0] != path:
            response = protocol.reject(404, f"There is nothing here; try {path}\n")
        if response.status_code == 101:
            owner = self._upgrades.accept()
            if owner is None:  # and the reason is on record
                self._owner = _NOBODY
                response = protocol.reject(503, "The limit of sessions is reached.\n")
        if owner is not None:
            self._add_headers(response.headers)
        protocol.send_response(response)
        self._write_out()
        if owner is not None:
            self._open(owner)
        else:
            text = (response.body or b"").decode().partition("\n")[0]
            detail = f"{self.place}: {response.status_code}, {text}"
            self.failure = Failure(Reason.REFUSED, detail)

    def _add_headers(self, headers: Headers) -> None:
        """Say more in the answer that accepts a handshake; nothing here."""


# --- Dialling -------------------------------------------------------------------------------------


class DialledLink(WebSocketLink):
    """A connection that this node opened."""

    __slots__ = ("_path", "opening")

    def __init__(self, transport: WebSocket, owner: LinkOwner, url: str, path: str) -> None:
        limits = transport.limits
        protocol = _ClientProtocol(parse_uri(url), max_size=limits.of_strangers(), logger=_log)
        super().__init__(owner, limits, transport.connection_limits, protocol)
        self._path = path
        self.opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_open(self) -> None:
        """Ask for a WebSocket."""
        self.place += self._path
        protocol = cast("ClientProtocol", self._protocol)
        protocol.send_request(protocol.connect())
        self._write_out()

    def _shake_hands(self, events: list[Event]) -> None:
        del events
        if self._protocol.state is not State.CONNECTING:
            self._open(self._owner)
            if not self.opening.done():
                self.opening.set_result(None)
        elif self._protocol.handshake_exc is not None:
            self.failure = Failure(Reason.REFUSED, str(self._protocol.handshake_exc))

    def on_closed(self, failure: Failure | None) -> None:
        """Tell how it ended: the owner, or whoever waits for the link to open."""
        if self._bodies is not None:
            super().on_closed(failure)
        elif not self.opening.done():
            detail = _NO_HANDSHAKE if failure is None else failure.detail
            self.opening.set_exception(ConnectionError(f"{self.place}: {detail}"))


# --- The transport --------------------------------------------------------------------------------


class WebSocket:
    """WebSockets in Ockam's format: addresses `ws#host:port`, or `ws#host:port/path`.

    With `tls` everything is encrypted (`wss` elsewhere; the addresses stay the same). A listener
    with a path answers there only. `origins` are the web sites whose pages may connect; by default
    none may, since a page would come with its visitor's access to the network.
    """

    type_name: ClassVar[str] = "ws"
    accepted_link: ClassVar[type[AcceptedLink]] = AcceptedLink
    dialled_link: ClassVar[type[DialledLink]] = DialledLink

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        limits: WebSocketLimits | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        self.limits = limits or WebSocketLimits()
        self.connection_limits = self.limits.of_connections()
        self.origins: list[Origin | re.Pattern[str] | None] = [None, *map(Origin, origins)]
        self._tls = tls

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> StreamListener:
        """Listen; port 0 takes a free one."""
        host, port, path = parse_websocket_place(place)
        upgrades = Upgrades(self, path, accept)
        server = Server(upgrades.make, limits=self.limits.of_servers(), tls=self._tls, log=_log)
        await server.start(place_of((host, port)))
        return StreamListener(server, path)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Connect to the first of these places that answers."""
        limits, scheme = self.limits, "wss" if self._tls else "ws"
        paths: dict[str, str] = {}
        for place in places:
            host, port, path = parse_websocket_place(place)
            paths.setdefault(place_of((host, port)), path)

        def make(where: str) -> DialledLink:
            path = paths[where]
            return self.dialled_link(self, owner, f"{scheme}://{where}{path}", path)

        async with within(limits.dial, places):
            link = await dial(
                make, list(paths), timeout=limits.dial, tls=self._tls, handshake=limits.greeting
            )
            try:
                await link.opening
            except BaseException:
                link.abort()
                raise
        return link


def parse_websocket_place(text: str) -> tuple[str, int, str]:
    """The host, the port, and the path, which may be empty.

    >>> parse_websocket_place("[::1]:80/fleet"), parse_websocket_place("hub:80")
    (('::1', 80, '/fleet'), ('hub', 80, ''))
    """
    authority, slash, rest = text.partition("/")
    host, port = parse_place(authority)
    if slash and not _is_path(slash + rest):
        raise LocalError(
            f"{quote(text)} has a path that no request can hold",
            rule="AD-1",
            hint="write host:port/path, other characters than printable ASCII as %xx",
        )
    return host, port, slash + rest
