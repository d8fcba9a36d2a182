"""What tests of live sessions share beside the kit: every event loop, and peers of raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
import uvloop

from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.net.place import parse_place, place_of
from waystation.node import Limits, Node
from waystation.node.requests import PendingRequest
from waystation.node.worker import Worker
from waystation.testing import DEADLINE, Recorder, echo, run_checked, settle, until
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.wire.ockam import PREFACE, FrameDecoder, encode_control, encode_frame

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

Scenario = Callable[..., Awaitable[None]]


def runs_on_every_loop(scenario: Scenario) -> Any:
    """A test written as a coroutine, for each event loop there is."""

    @functools.wraps(scenario)
    def test(loop: str, **options: Any) -> None:
        run_checked(lambda: scenario(**options), LOOPS[loop])

    own = inspect.signature(scenario)
    loop = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = own.replace(parameters=[loop, *own.parameters.values()])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop", LOOPS)(test)


@contextlib.contextmanager
def full_listener() -> Iterator[str]:
    """A place that neither accepts nor refuses: its queue of connections is full."""
    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield place_of(full.getsockname())


QUICK = Limits(heartbeat=0.0, greeting=0.3, stall=30.0)
"""A node without heartbeats, that soon loses patience with a peer that proves nothing."""


@asynccontextmanager
async def serving(
    name: str = "server",
    *,
    limits: Limits = QUICK,
    tcp: TcpLimits | None = None,
    transports: list[Any] | None = None,
    listen_token: str | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Node, Recorder, str]]:
    """A node with an echo that listens, what it tells, and its place."""
    carried = transports if transports is not None else [Tcp(limits=tcp)]
    async with Node(name, transports=carried, limits=limits, **options) as node:
        journal = Recorder(node)
        echo(node)
        listening = await node.listen("tcp://127.0.0.1:0", token=listen_token)
        yield node, journal, listening.place


class RawPeer:
    """A TCP connection whose bytes the test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = FrameDecoder()
        self.controls: list[bytes] = []
        self._messages: list[Message] = []

    @classmethod
    async def dial(cls, place: str, first: bytes = PREFACE, *, room: int | None = None) -> Self:
        """Connect, and say the first bytes; `room` limits what the system takes for us."""
        found = socket.socket()
        if room is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        found.setblocking(False)
        await asyncio.get_running_loop().sock_connect(found, parse_place(place))
        peer = cls(*await asyncio.open_connection(sock=found))
        peer.say(first)
        return peer

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    def send(self, route: str, payload: bytes, back: str = "app", **options: Any) -> None:
        """Send a message."""
        self.say(encode_frame(Message(Route.parse(route), Route.parse(back), payload, **options)))

    def control(self, payload: bytes) -> None:
        """Send something for the session itself."""
        self.say(encode_control(payload))

    async def hear(self) -> Message:
        """The next message; what is for the session goes into `controls`."""
        async with asyncio.timeout(DEADLINE):
            while not self._messages:
                data = await self.reader.read(65536)
                if not data:
                    raise EOFError
                self._take(data)
        return self._messages.pop(0)

    async def hear_control(self) -> bytes:
        """The next thing that was said to our session."""
        async with asyncio.timeout(DEADLINE):
            while not self.controls:
                self._take(await self.reader.readexactly(1))
        return self.controls.pop(0)

    async def ended(self) -> None:
        """Return when the node has ended the connection."""
        try:
            async with asyncio.timeout(DEADLINE):
                while await self.reader.read(65536):
                    pass
        except ConnectionError:
            pass
        self.close()

    def close(self) -> None:
        """End the connection."""
        self.writer.close()

    def reset(self) -> None:
        """End the connection without any ceremony."""
        found = self.writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def _take(self, data: bytes) -> None:
        for message in self.decoder.feed(data):
            if message.onward_route.addresses:
                self._messages.append(message)
            elif message.payload:
                self.controls.append(message.payload)


async def serves_an_honest_peer(place: str) -> None:
    """Somebody who does nothing wrong gets an answer."""
    async with Node("honest", limits=QUICK) as honest:
        answer = await honest.request(f"tcp#{place} => echo", b"well?", timeout=DEADLINE)
        assert answer.payload == b"well?"


def worker(node: Node, name: str) -> Worker:
    """The worker of this name."""
    found = node._kernel.worker(name)
    assert found is not None
    return found


async def nothing_is_left(node: Node) -> None:
    """No session, receiver, entry or task outlives the peers that are gone."""
    connections = node._links
    await until(lambda: not connections.sessions)
    await until(lambda: not connections._tasks)
    assert connections.by_place == {}
    kernel = node._kernel
    expected = {address.data for worker in kernel.workers for address in worker.addresses}
    for data, receiver in kernel.receivers.items():
        if isinstance(receiver, PendingRequest) and receiver.reply.done():
            expected.add(data)  # it waits for the next request
    assert set(kernel.receivers) == expected
    assert len(node.router.table) == len(expected)
    names = (task.get_name() for task in asyncio.all_tasks())
    assert [
        name for name in names if name.startswith(("waystation session", "waystation dial"))
    ] == []


def place_address(place: str) -> Address:
    """A place as a TCP address."""
    return Address(1, place.encode())


@asynccontextmanager
async def raw_listener(
    handle: Callable[[RawPeer], Awaitable[None]],
) -> AsyncIterator[str]:
    """A listener whose bytes the test chooses; gives its place."""
    handling: dict[asyncio.Task[None], RawPeer] = {}

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RawPeer(reader, writer)
        handling[asyncio.ensure_future(_ignoring_ends(handle, peer))] = peer

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for task, peer in handling.items():
            task.cancel()
            peer.close()
        await asyncio.gather(*handling, return_exceptions=True)
        await settle()


async def _ignoring_ends(handle: Callable[[RawPeer], Awaitable[None]], peer: RawPeer) -> None:
    with contextlib.suppress(EOFError, ConnectionError):
        await handle(peer)
