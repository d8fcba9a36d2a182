"""What tests of live sessions share: a watched event loop, a journal, and peers of raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
import uvloop

from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Verdict
from waystation.core.record import ChangeRecord, MessageRecord, Record, SessionRecord
from waystation.core.routing import RouteChange
from waystation.net.place import parse_place, place_of
from waystation.node import Context, Limits, Node
from waystation.node.worker import Worker
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.wire.ockam import PREFACE, FrameDecoder, encode_control, encode_frame

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
PATIENCE = 20.0
"""Seconds after which whatever a test waits for will not come any more."""

Scenario = Callable[..., Awaitable[None]]


def watched(
    scenario: Callable[[], Awaitable[None]],
    make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    seconds: float = 60.0,
) -> None:
    """Run a scenario; fails if the event loop had anything to complain about."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        await asyncio.wait_for(scenario(), seconds)
        await asyncio.sleep(0)
        gc.collect()  # an exception that nobody looked at is told when its task is collected
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())
    assert not complaints, f"the event loop complained: {complaints}"


def runs(scenario: Scenario) -> Callable[..., None]:
    """A test written as a coroutine."""

    @functools.wraps(scenario)
    def test(*args: Any, **options: Any) -> None:
        watched(lambda: scenario(*args, **options))

    return test


def runs_on_every_loop(scenario: Scenario) -> Any:
    """A test written as a coroutine, for each event loop there is."""

    @functools.wraps(scenario)
    def test(loop: str, **options: Any) -> None:
        watched(lambda: scenario(**options), LOOPS[loop])

    own = inspect.signature(scenario)
    loop = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = own.replace(parameters=[loop, *own.parameters.values()])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop", LOOPS)(test)


class Journal:
    """What an observer of a node heard."""

    def __init__(self, node: Node) -> None:
        self.messages: list[MessageRecord] = []
        self.sessions: list[SessionRecord] = []
        self.routes: list[RouteChange] = []
        self.stop = node.observe(self.hear)

    def hear(self, record: Record) -> None:
        if isinstance(record, MessageRecord):
            self.messages.append(record)
        elif isinstance(record, SessionRecord):
            self.sessions.append(record)
        elif isinstance(record.change, RouteChange):
            assert isinstance(record, ChangeRecord)
            self.routes.append(record.change)

    def outcomes(self) -> list[tuple[bytes, str]]:
        """Each message's payload, and its reason or else its outcome."""
        return [(r.arrival.message.payload, word(r.verdict)) for r in self.messages]

    def words(self) -> Counter[str]:
        """How often each reason or outcome was told."""
        return Counter(word(record.verdict) for record in self.messages)

    def told(self) -> list[tuple[str, str | None]]:
        """What happened to sessions, and for which reason."""
        return [(r.kind.value, r.reason and r.reason.value) for r in self.sessions]

    def each_ended_once(self) -> None:
        """Every message had exactly one outcome, beside QUEUED in front of it (OB-1)."""
        final = [r for r in self.messages if r.verdict.outcome is not Outcome.QUEUED]
        entries = Counter((r.arrival.message.id, r.arrival.received_at) for r in final)
        assert [entry for entry, count in entries.items() if count != 1] == []
        queued = {
            r.arrival.message.id for r in self.messages if r.verdict.outcome is Outcome.QUEUED
        }
        assert queued <= {r.arrival.message.id for r in final}


def word(verdict: Verdict) -> str:
    """The reason of a verdict, or its outcome if there is none."""
    return (verdict.reason or verdict.outcome).value


async def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for something to come true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, f"it never came to it: {_shown(condition)}"
        await asyncio.sleep(0.002)


def _shown(condition: Callable[[], object]) -> str:
    return inspect.getsource(condition) if inspect.isfunction(condition) else repr(condition)


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


async def settle() -> None:
    """Let everything that is ready happen."""
    for _ in range(20):
        await asyncio.sleep(0)


def echo(node: Node, name: str = "echo") -> None:
    """A worker that answers with what it got."""

    @node.worker(name)
    async def answer(message: Message, context: Context) -> None:
        await context.reply(message.payload)


def collect(node: Node, *names: str, **options: Any) -> list[Message]:
    """A worker that keeps what it gets."""
    found: list[Message] = []

    @node.worker(*names, **options)
    def keep(message: Message, context: Context) -> None:  # noqa: ARG001
        found.append(message)

    return found


class Gate:
    """A worker that keeps what it gets, but only once it is opened."""

    def __init__(self, node: Node, name: str, inbox: int = 1) -> None:
        self.free = asyncio.Event()
        self.got: list[bytes] = []
        node.start_worker((name,), self.handle, inbox=inbox)

    async def handle(self, message: Message, context: Context) -> None:  # noqa: ARG002
        await self.free.wait()
        self.got.append(message.payload)


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
) -> AsyncIterator[tuple[Node, Journal, str]]:
    """A node with an echo that listens, what it tells, and its place."""
    carried = transports if transports is not None else [Tcp(limits=tcp)]
    async with Node(name, transports=carried, limits=limits, **options) as node:
        journal = Journal(node)
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
        async with asyncio.timeout(PATIENCE):
            while not self._messages:
                data = await self.reader.read(65536)
                if not data:
                    raise EOFError
                self._take(data)
        return self._messages.pop(0)

    async def hear_control(self) -> bytes:
        """The next thing that was said to our session."""
        async with asyncio.timeout(PATIENCE):
            while not self.controls:
                self._take(await self.reader.readexactly(1))
        return self.controls.pop(0)

    async def ended(self) -> None:
        """Return when the node has ended the connection."""
        try:
            async with asyncio.timeout(PATIENCE):
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
        answer = await honest.request(f"tcp#{place} => echo", b"well?", timeout=PATIENCE)
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
    workers = {address.data for worker in kernel.workers for address in worker.addresses}
    assert set(kernel.receivers) == workers
    assert len(node.router.table) == len(workers)
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
