"""WebSocket links in Ockam's format: what a link over TCP does, in the messages of a WebSocket.

The handshake, the frames and their limits are the business of the package `websockets`, whose
protocol needs no task and no future of ours; the bodies are that of wire/ockam_ws.py. One body is
one binary message. Gathering frames, writing them once per turn, and back-pressure are those of
tcp.py: a link here is a link there whose bytes are wrapped.

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
from typing import ClassVar, Final, cast

from waystation.core.address import Address
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError, quote
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import open_listener, prepare
from waystation.net.tls import Tls
from waystation.transports.tcp import (
    REASONS,
    Refused,
    TcpLimits,
    TcpLink,
    TcpListener,
    race,
    within,
)
from waystation.transports.transport import Link, LinkOwner
from waystation.wire.ockam import FrameDecoder
from waystation.wire.ockam_ws import BodyDecoder, encode_control, encode_departure

if find_spec("websockets") is None:
    raise LocalError(
        "WebSocket links need the package websockets, which is not installed",
        rule="WK-8",
        hint="pip install 'waystation[ws]'",
    )

from websockets.client import ClientProtocol
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Event, State
from websockets.server import ServerProtocol
from websockets.typing import Origin
from websockets.uri import parse_uri

_log: Final = logging.getLogger(__name__)
_is_path: Final = re.compile(r"/[!-\"$-~]*").fullmatch
_OPEN: Final = State.OPEN
_BINARY: Final = Opcode.BINARY
_UNUSED: Final = FrameDecoder()
_EXPECTED_ENDS: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)


class WebSocketLimits(TcpLimits, frozen=True, kw_only=True):
    """Those of TCP, and how many handshakes a listener has under way at once.

    One takes about 10 KiB, and whoever comes when there are so many is refused: with too low a
    number, a large fleet that comes back all at once keeps itself out. A peer has `greeting`
    seconds for TLS, and again for the WebSocket handshake. `frame` bytes is the largest message, in
    whatever number of fragments it comes.
    """

    handshakes: int = 16_384


class WebSocketLink(TcpLink, ABC):
    """One connection; how it opens is said below, for either end."""

    __slots__ = ("_bodies", "_partial", "_protocol", "_upgraded")

    def __init__(
        self,
        owner: LinkOwner,
        limits: WebSocketLimits,
        protocol: ServerProtocol | ClientProtocol,
    ) -> None:
        super().__init__(owner, limits)
        self._decoder = _UNUSED  # a hub with many leaves feels every KiB
        self._protocol = protocol
        self._bodies = BodyDecoder(owner.address, limit=limits.frame)
        self._partial: bytearray | None = None  # of a message that comes in fragments
        self._upgraded = False

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Encode a message and put it with the others of this turn."""
        try:
            body = encode_departure(message, limit=self._limits.frame)
        except LocalError as error:
            return REASONS.get(error.rule, Reason.MALFORMED)
        self._give(self._framed(body))
        return None

    def send_control(self, payload: bytes) -> None:
        """Put a payload for the peer's session with the messages of this turn."""
        self._frames.append(self._framed(encode_control(payload)))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Write what is left and say goodbye; the peer has some time to answer that."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._in_order:
            return
        if self._protocol.state is not _OPEN:  # not yet, or the peer was first
            self.abort()
            return
        if self._frames:
            self._write()
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self._write_out()
        self._in_order = True
        if not transport.is_reading():  # pass over what still comes before the peer's goodbye
            transport.resume_reading()
        self._set_alarm(self._limits.linger, self._end_lingering)

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the handshake its time."""
        self._transport = cast("asyncio.Transport", transport)
        self.place = place_of(transport.get_extra_info("peername") or ("?", 0))
        prepare(transport.get_extra_info("socket"), self._limits.dead)
        unsent = self._limits.unsent
        self._transport.set_write_buffer_limits(high=unsent, low=unsent // 4)
        self._set_alarm(self._limits.greeting, self._give_up_on_silence)

    def data_received(self, data: bytes) -> None:
        """Hand in the messages that these bytes complete."""
        if self._failure is not None:
            return
        protocol = self._protocol
        protocol.receive_data(data)
        events = protocol.events_received()
        if not self._upgraded:
            self._shake_hands(events)
            events = events[1:]
        if self._upgraded:
            self._hand_in(events)
            if protocol.parser_exc is not None and self._failure is None:
                self._fail_as_told(protocol.parser_exc)
        self._write_out()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the owner how it ended."""
        self._stop_alarm()
        self._frames.clear()
        if not self._upgraded:
            self._never_opened(error)
            return
        reason, detail = self._how_it_ended(error)
        if self._in_order and reason is None:  # all was written first
            self._owner.sent()
        self._owner.closed(reason, detail)

    def _how_it_ended(self, error: Exception | None) -> tuple[Reason | None, str]:
        said = self._protocol.close_rcvd
        if self._failure is not None:
            return self._failure
        if said is not None and not self._in_order and said.code not in _EXPECTED_ENDS:
            return Reason.TRANSPORT_DOWN, f"the peer closed with {said}"
        if error is not None and said is None:
            return Reason.TRANSPORT_DOWN, f"{type(error).__name__}: {error}"
        if said is None and not self._in_order:
            return Reason.TRANSPORT_DOWN, "the connection ended without a goodbye"
        return None, "closed"

    # Opening

    @abstractmethod
    def _shake_hands(self, events: list[Event]) -> None:
        """Look at what should be the first thing that the peer says."""

    @abstractmethod
    def _never_opened(self, error: Exception | None) -> None:
        """Tell whoever waits for the link that there was none."""

    def _open(self, owner: LinkOwner) -> None:
        self._owner = owner
        self._bodies = BodyDecoder(owner.address, limit=self._limits.frame)
        self._upgraded = True
        self._stop_alarm()
        owner.opened(self)
        if self._transport is not None and not self._transport.is_closing():  # it may stay
            owner.answered()

    def _give_up_on_silence(self) -> None:
        self._alarm = None
        seconds = self._limits.greeting
        self._fail(Reason.REFUSED, f"there was no WebSocket handshake within {seconds:g} s")

    # Reading

    def _hand_in(self, events: list[Event]) -> None:
        messages: list[Message] = []
        for event in events:
            if isinstance(event, Frame) and self._failure is None:
                self._take(event, messages)
        if not self._in_order:
            self._owner.received(messages)

    def _take(self, frame: Frame, messages: list[Message]) -> None:
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
        elif opcode is Opcode.TEXT:
            code = CloseCode.UNSUPPORTED_DATA
            self._refuse(code, Reason.MALFORMED, "a text message came where bytes are spoken")
            return
        else:  # ping, pong
            return
        if self._in_order:
            return
        try:
            messages.append(self._bodies.decode(body))
        except DecodeError as error:
            reason = Reason.TOO_LARGE if error.too_large else Reason.MALFORMED
            self._refuse(CloseCode.INVALID_DATA, reason, str(error))

    def _let_go(self) -> None:
        """Wait for the end of the connection: the peer said goodbye, and that was answered."""
        if self._in_order:
            return
        if self._transport is not None and self._is_written(self._transport):
            self._owner.sent()
        self._set_alarm(self._limits.linger, self._drop)

    # Writing

    def _framed(self, body: bytes) -> bytes:
        protocol = self._protocol
        return Frame(_BINARY, body).serialize(mask=isinstance(protocol, ClientProtocol))

    def _write(self) -> None:
        if self._protocol.state is _OPEN:
            super()._write()
        else:  # nothing may follow a goodbye
            self._frames = []
            self._size = 0

    def _write_out(self) -> None:
        """Write what the protocol has to say by itself: handshakes, pongs and goodbyes."""
        transport = self._transport
        pieces = self._protocol.data_to_send()
        if not pieces or transport is None or transport.is_closing():
            return
        if self._paused and self._protocol.state is _OPEN:
            return  # who does not read gets no pongs either, or they would pile up
        for piece in pieces:
            if piece:
                transport.write(piece)
            else:
                self._end_soon(transport)

    # Ending

    def _refuse(self, code: CloseCode, reason: Reason, detail: str) -> None:
        """End the link, and say to the peer what was wrong."""
        self._failure = (reason, detail)
        if self._protocol.state is _OPEN:
            self._protocol.fail(code, detail.encode("ascii", "replace")[:100].decode())
        self._write_out()
        if self._transport is not None:
            self._end_soon(self._transport)

    def _fail_as_told(self, error: Exception) -> None:
        """End the link: the protocol found something wrong, and has a goodbye to write."""
        too_large = isinstance(error, PayloadTooBig)
        self._failure = (Reason.TOO_LARGE if too_large else Reason.MALFORMED, str(error))
        self._write_out()
        if self._transport is not None:
            self._end_soon(self._transport)

    def _end_soon(self, transport: asyncio.Transport) -> None:
        """End when everything is written, or when that takes too long."""
        transport.close()
        self._set_alarm(self._limits.linger, self._drop)


# --- Listening ------------------------------------------------------------------------------------


class _Nobody:
    """The owner of a link that is not open yet."""

    address: Final = Address(0, b"")

    def opened(self, link: Link) -> None: ...
    def answered(self) -> None: ...
    def received(self, messages: Sequence[Message]) -> None: ...
    def sent(self, messages: int | None = None) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def closed(self, reason: Reason | None, detail: str) -> None: ...


_NOBODY: Final = _Nobody()


class _Door:
    """What the connections of one listener share until they are links."""

    def __init__(
        self,
        accept: Callable[[], LinkOwner | None],
        limits: WebSocketLimits,
        path: str,
        origins: Sequence[str],
    ) -> None:
        self.accept = accept
        self.limits = limits
        self.path = path
        self.origins: list[Origin | re.Pattern[str] | None] = [None, *map(Origin, origins)]
        self.waiting = 0  # connections that are no links yet

    def tell(self, reason: Reason | None, detail: str) -> None:
        """Have it noted that a connection came to nothing."""
        owner = self.accept()
        if owner is not None:
            owner.closed(reason, detail)


class _AcceptedLink(WebSocketLink):
    """A connection that a peer opened. It has an owner as soon as it is a WebSocket."""

    __slots__ = ("_at_door", "_door")

    def __init__(self, door: _Door) -> None:
        limits = door.limits
        protocol = ServerProtocol(origins=door.origins, max_size=limits.frame, logger=_log)
        super().__init__(_NOBODY, limits, protocol)
        self._door = door
        self._at_door = True
        door.waiting += 1

    def give_up_on_handshake(self) -> None:
        """Note that nothing came of it, if there never was a connection."""
        if self._transport is None:
            self._leave_door()
            self._door.tell(Reason.REFUSED, "there was no TLS handshake")

    def _shake_hands(self, events: list[Event]) -> None:
        protocol = cast("ServerProtocol", self._protocol)
        if protocol.handshake_exc is not None:  # no HTTP at all, or too much of it
            self._failure = (Reason.REFUSED, f"{self.place}: {protocol.handshake_exc}")
        elif len(events) > 1 or protocol.parser_exc is not None:
            self._fail(Reason.REFUSED, f"{self.place}: it did not wait for the handshake")
        elif events:
            self._answer(protocol, cast("Request", events[0]))

    def _answer(self, protocol: ServerProtocol, request: Request) -> None:
        owner = None
        response = protocol.accept(request)
        path = self._door.path
        if response.status_code == 101 and path and request.path.partition("?")[0] != path:
            response = protocol.reject(404, f"There is nothing here; try {path}\n")
        if response.status_code == 101:
            self._leave_door()
            owner = self._door.accept()
            if owner is None:  # and it was told why
                response = protocol.reject(503, "There are as many sessions as the limit allows.\n")
        protocol.send_response(response)
        self._write_out()
        if owner is not None:
            self._open(owner)
        else:
            text = (response.body or b"").decode().partition("\n")[0]
            self._failure = (Reason.REFUSED, f"{self.place}: {response.status_code}, {text}")

    def _leave_door(self) -> None:
        self._at_door = False
        self._door.waiting -= 1

    def _never_opened(self, error: Exception | None) -> None:
        if self._at_door:
            self._leave_door()
            why = str(error or "the connection ended before the WebSocket handshake")
            self._door.tell(*(self._failure or (None, why)))


class WebSocketListener(TcpListener):
    """A listening socket."""

    def __init__(self, server: asyncio.Server, path: str) -> None:
        super().__init__(server)
        self.place += path


# --- Dialling -------------------------------------------------------------------------------------


class _DialledLink(WebSocketLink):
    """A connection that this node opened."""

    __slots__ = ("_path", "opening")

    def __init__(self, owner: LinkOwner, limits: WebSocketLimits, url: str, path: str) -> None:
        protocol = ClientProtocol(parse_uri(url), max_size=limits.frame, logger=_log)
        super().__init__(owner, limits, protocol)
        self._path = path
        self.opening: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a WebSocket."""
        super().connection_made(transport)
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
            self._failure = (Reason.REFUSED, str(self._protocol.handshake_exc))

    def _never_opened(self, error: Exception | None) -> None:
        if not self.opening.done():
            why = str(error or "the connection ended before the WebSocket handshake")
            detail = why if self._failure is None else self._failure[1]
            self.opening.set_exception(ConnectionError(f"{self.place}: {detail}"))


# --- The transport --------------------------------------------------------------------------------


class WebSocket:
    """WebSockets in Ockam's format: addresses `ws#host:port`, or `ws#host:port/path`.

    With `tls` everything is encrypted (`wss` elsewhere; the addresses stay the same). A listener
    with a path answers there only. `origins` are the web sites whose pages may connect; by default
    none may, since a page would come with its visitor's access to the network.
    """

    type_name: ClassVar[str] = "ws"

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        limits: WebSocketLimits | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        self.limits = limits or WebSocketLimits()
        self._tls = tls
        self._origins = origins

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> WebSocketListener:
        """Listen; port 0 takes a free one."""
        host, port, path = parse_websocket_place(place)
        tls, limits = self._tls, self.limits
        loop = asyncio.get_running_loop()
        door = _Door(accept, limits, path, self._origins)

        def link() -> asyncio.Protocol:
            if door.waiting >= limits.handshakes:
                door.tell(Reason.REFUSED, "there are as many handshakes as the limit allows")
                return Refused()
            made = _AcceptedLink(door)
            if tls is not None:  # nobody tells when a handshake fails
                loop.call_later(limits.greeting + 1, made.give_up_on_handshake)
            return made

        context = tls.for_listener() if tls else None
        server = await open_listener(
            link,
            place_of((host, port)),
            backlog=limits.backlog,
            tls=context,
            handshake=limits.greeting,
        )
        return WebSocketListener(server, path)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Connect to the first of these places that answers."""
        tls, limits = self._tls, self.limits
        parsed = [parse_websocket_place(place) for place in places]
        async with within(limits.dial, places):
            found, host = await race([(host, port) for host, port, _ in parsed])
            spot = (host, found.getpeername()[1])
            place, path = next(
                (p, c[2]) for p, c in zip(places, parsed, strict=True) if c[:2] == spot
            )
            url = f"{'wss' if tls else 'ws'}://{place}"
            try:
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: _DialledLink(owner, limits, url, path),
                    sock=found,
                    ssl=tls.for_dialler() if tls else None,
                    server_hostname=(tls.name or host) if tls else None,
                    ssl_handshake_timeout=limits.greeting if tls else None,
                )
            except BaseException:
                found.close()
                raise
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
