"""A transport of one's own: messages as lines of JSON over TCP, addresses `lines#host:port`.

    node = Node("garage", transports=[Tcp(), Lines()])
    await node.listen("lines://127.0.0.1:0")

It has all that a transport needs, and passes `waystation.testing.check_transport`. Sessions, names,
heartbeats, tokens and dialling again are the node's business.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Final, TypeAlias, cast

import msgspec
from msgspec import Meta, Struct

import waystation
from waystation import NEVER, Address, Message, Node, Reason, Route
from waystation.core.expiry import LAST_INSTANT
from waystation.net.place import parse_place, place_of
from waystation.node import Context
from waystation.transports import Link, LinkOwner

LINE_LIMIT: Final = 16 * 1024 * 1024
UNSENT: Final = 256 * 1024  # so many bytes wait in a link before its senders have to

Hop: TypeAlias = tuple[Annotated[int, Meta(ge=0, le=255)], bytes]
Hops: TypeAlias = Annotated[list[Hop], Meta(max_length=255)]


class Line(Struct, omit_defaults=True):
    """A message as it is written; what a peer writes is checked against these types."""

    onward: Hops
    back: Hops
    payload: bytes
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")] = "0" * 32
    expiry: Annotated[int, Meta(ge=0, le=LAST_INSTANT)] | None = None
    trace: Annotated[str, Meta(max_length=8192)] = ""


def written(message: Message) -> bytes:
    """The line of a message."""
    onward, back = ([(hop.type, hop.data) for hop in r] for r in routes_of(message))
    expiry = None if message.expiry == NEVER else int(message.expiry)
    line = Line(onward, back, message.payload, message.id, expiry, message.trace_context)
    return msgspec.json.encode(line) + b"\n"


def read(text: bytes) -> Message:
    """The message of a line; a msgspec.DecodeError says what is wrong with it."""
    line = msgspec.json.decode(text, type=Line)
    onward, back = (Route(tuple(Address(*hop) for hop in r)) for r in (line.onward, line.back))
    expiry = NEVER if line.expiry is None else line.expiry
    return Message(onward, back, line.payload, line.id, expiry, line.trace)


def routes_of(message: Message) -> tuple[Route, Route]:
    return message.onward_route, message.return_route


class LineLink(asyncio.Protocol):
    """A way to one peer."""

    def __init__(self, owner: LinkOwner) -> None:
        self.place = ""
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._unfinished: list[bytes] = []  # the beginning of a line whose end has not come
        self._size = 0
        self._settling = False
        self._orderly = False
        self._answered = False
        self._failure: tuple[Reason, str] | None = None

    # What the session asks for

    def send(self, message: Message) -> Reason | None:
        """Write a message, without the address that stands for this link (WK-10)."""
        if len(message.onward_route) < 2:
            return Reason.NO_ROUTE
        line = written(message.departed())
        if len(line) > LINE_LIMIT:
            return Reason.TOO_LARGE
        self._write(line)
        return None

    def send_control(self, payload: bytes) -> None:
        """Write a payload for the peer's session: a message without an onward route."""
        self._write(written(Message(Route(), Route(), payload)))

    def pause_reading(self) -> None:
        """Let the peer's bytes pile up, here and then there."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read them."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    def close(self) -> None:
        """End when everything is written, or when that takes too long."""
        if self._transport is not None:
            self._orderly = True
            self._transport.close()
            asyncio.get_running_loop().call_later(5, self.abort)

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._orderly = False
            self._transport.abort()

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the link to its session."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT)
        self.place = place_of(transport.get_extra_info("peername") or ("?", 0))
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """Hand in the messages whose lines are complete."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._unfinished, lines[0]))
            self._unfinished, self._size = [], 0
        self._unfinished.append(rest)
        self._size += len(rest)
        try:
            messages = [self._arrived(read(line)) for line in lines]
        except msgspec.DecodeError as error:
            self._fail(Reason.MALFORMED, str(error))
            return
        if messages:
            self._answer()
            self._owner.received(messages)
        if self._size > LINE_LIMIT:
            self._fail(Reason.TOO_LARGE, f"a line is longer than {LINE_LIMIT} bytes")

    def pause_writing(self) -> None:
        """Pass on that the peer does not keep up."""
        self._owner.pause()

    def resume_writing(self) -> None:
        """Pass on that it does again."""
        self._owner.resume()

    def eof_received(self) -> None:
        """Let the link end; what the system had taken until now is out of our hands."""
        self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the session how it ended."""
        if self._orderly and error is None:
            self._owner.sent()
        self._transport = None
        if self._failure is not None:
            self._owner.closed(*self._failure)
        elif error is not None:
            self._owner.closed(Reason.TRANSPORT_DOWN, str(error))
        else:
            self._owner.closed(None, "closed")

    # Inside

    def _answer(self) -> None:
        """Tell the session, once, that the peer writes such lines as well."""
        if not self._answered:
            self._answered = True
            self._owner.answered()

    def _arrived(self, message: Message) -> Message:
        """With this link as the first way back (WK-10); what is for the session stays as it is."""
        return message.arrived(self._owner.address) if message.onward_route.first else message

    def _write(self, line: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(line)
            if not self._settling:
                self._settling = True
                asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        """Tell the session when the system has taken everything."""
        self._settling = False
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size():
            self._settling = True
            asyncio.get_running_loop().call_later(0.005, self._settle)
        else:
            self._owner.sent()

    def _fail(self, reason: Reason, detail: str) -> None:
        if self._failure is None:
            self._failure = (reason, detail)
        self.abort()


class Refused(asyncio.Protocol):
    """A connection that the node does not want."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End it."""
        cast("asyncio.Transport", transport).abort()


class LineListener:
    """A place where peers can open links."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.place = place_of(server.sockets[0].getsockname())

    async def close(self) -> None:
        """Accept no more links."""
        self._server.close()


class Lines:
    """Opens links."""

    type_name: ClassVar[str] = "lines"

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> LineListener:
        """Open a listener."""

        def link() -> asyncio.Protocol:
            owner = accept()
            return Refused() if owner is None else LineLink(owner)

        loop = asyncio.get_running_loop()
        return LineListener(await loop.create_server(link, *parse_place(place)))

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first place that answers."""
        problem: OSError = ConnectionError("there is no place to connect to")
        for place in places:
            try:
                async with asyncio.timeout(5):
                    _, link = await asyncio.get_running_loop().create_connection(
                        lambda: LineLink(owner), *parse_place(place)
                    )
            except OSError as error:
                problem = error
            else:
                return link
        raise problem


async def main() -> None:
    async with Node("left", transports=[Lines()]) as left, Node("right", transports=[Lines()]) as r:

        @r.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            await context.reply(message.payload)

        listening = await r.listen("lines://127.0.0.1:0")
        await left.connect(listening.url, name="right")
        reply = await left.request("right => echo", b"hello")
        print(f"{reply.payload.decode()} from {reply.return_route}")


if __name__ == "__main__":
    waystation.run(main())
