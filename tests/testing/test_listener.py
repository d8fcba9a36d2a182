"""Every listener against peers that misbehave in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from waystation.console import Console
from waystation.console import Settings as ConsoleSettings
from waystation.core.address import Route
from waystation.core.message import Message
from waystation.gossip_router import GossipServer
from waystation.gossip_router import Settings as RouterSettings
from waystation.groups import Group, GroupLimits
from waystation.groups.direct import greeting
from waystation.mqtt.broker import Broker
from waystation.mqtt.broker import Settings as BrokerSettings
from waystation.net.monitor import Health, Monitor
from waystation.net.place import parse_place
from waystation.node import Limits, Node
from waystation.testing import (
    LISTENER_CHECKS,
    ListenerCase,
    NotConformingError,
    StartedListener,
    check_listener,
    echo,
    run_checked,
)
from waystation.transports.http import Http, HttpLimits
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.transports.transport import Transport
from waystation.transports.websocket import WebSocket, WebSocketLimits
from waystation.wire import bare, jgroups5
from waystation.wire.ockam import PREFACE, encode_frame

TOKEN = b"secret"
LARGE = 15_000_000
REQUEST = Message(Route.parse("echo"), Route.parse("app"), bytes(1000))
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
MQTT_CONNECT = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01h"
MQTT_PING = b"\xc0\x00"


def _websocket_frame(payload: bytes) -> bytes:
    """A binary message, masked with zeros."""
    return b"\x82\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload


def _node(
    make: Callable[[], Transport],
    url: str,
    opening: bytes,
    frame: bytes,
    *,
    reply: bytes = b"",
    begun: bytes = b"",
    token: bytes | None = None,
) -> ListenerCase:
    """A node with an echo that listens; with a token, the hostile peers are not admitted."""
    limits = Limits(heartbeat=0.0, greeting=1.0)

    @asynccontextmanager
    async def start() -> AsyncIterator[StartedListener]:
        node = Node("server", transports=[make()], limits=limits, token=token)
        async with node:
            echo(node)
            listening = await node.listen(url)
            yield StartedListener(listening.place, lambda: not node.sessions)
            await node.close(drain=0)

    async def serve(place: str) -> None:
        async with Node("honest", transports=[make()], limits=limits, token=token) as honest:
            kind = url.partition("://")[0]
            answer = await honest.request(f"{kind}#{place} => echo", b"honest", timeout=10)
            assert answer.payload == b"honest"

    return ListenerCase(
        start=start,
        serve=serve,
        opening=opening,
        frame=frame,
        reply=reply,
        begun=begun,
        seconds=5.0,
    )


def _answering(said: bytes, expected: bytes) -> Callable[[str], Awaitable[None]]:
    """A client that says something, and waits for what has to be in the answer."""

    async def serve(place: str) -> None:
        reader, writer = await asyncio.open_connection(*parse_place(place))
        try:
            writer.write(said)
            heard = b""
            async with asyncio.timeout(10):
                while expected not in heard:
                    data = await reader.read(65536)
                    assert data, f"the listener ended the connection after {heard!r}"
                    heard += data
        finally:
            writer.close()

    return serve


@asynccontextmanager
async def _router() -> AsyncIterator[StartedListener]:
    server = GossipServer(RouterSettings(silence=1.0, frame=1.0, linger=0.2))
    await server.start("127.0.0.1:0")
    try:
        yield StartedListener(server.place)
    finally:
        await server.drain()


@asynccontextmanager
async def _broker() -> AsyncIterator[StartedListener]:
    # Pings by the hundred thousand keep it busy for a while, in which others connect.
    broker = Broker(BrokerSettings(greeting=4.0, frame=1.0, linger=0.2))
    await broker.start("127.0.0.1:0")
    try:
        yield StartedListener(broker.place)
    finally:
        await broker.drain()


GROUP_LIMITS = GroupLimits(greeting=1.0, frame=1.0, linger=0.2)


@asynccontextmanager
async def _member() -> AsyncIterator[StartedListener]:
    here = "127.0.0.1:0"
    async with Group("fleet", via="tcp://127.0.0.1:1", listen=here, limits=GROUP_LIMITS) as member:
        yield StartedListener(member.me.physical[0])


async def _join(place: str) -> None:
    here = "127.0.0.1:0"
    async with Group("fleet", via=f"tcp://{place}", listen=here, limits=GROUP_LIMITS) as honest:
        assert len(await honest.members()) > 1


class _Program:
    """Something to monitor."""

    def metrics(self) -> str:
        return "a_total 1\n"

    def health(self) -> Health:
        return Health(draining=False, listening="here")


@asynccontextmanager
async def _monitor() -> AsyncIterator[StartedListener]:
    monitor = Monitor(_Program(), timeout=1.0)
    await monitor.start("127.0.0.1:0")
    try:
        yield StartedListener(monitor.place, lambda: not monitor.connections)
    finally:
        monitor.close()


@asynccontextmanager
async def _console() -> AsyncIterator[StartedListener]:
    settings = ConsoleSettings(connect=(), listen="127.0.0.1:0", request=1.0)
    async with Node("watcher") as node, Console.running(node, settings) as console:
        yield StartedListener(console.url.split("/")[2])


def _tcp() -> Transport:
    return Tcp(limits=TcpLimits(greeting=1.0, finish=1.0, linger=0.5))


def _websocket() -> Transport:
    return WebSocket(limits=WebSocketLimits(greeting=1.0, finish=1.0, linger=0.5))


def _http() -> Transport:
    return Http(limits=HttpLimits(greeting=1.0, body=1.0, idle=2.0, keep=2.0, linger=0.5))


OCKAM = encode_frame(REQUEST)
WEBSOCKET = _websocket_frame(bare.encode(REQUEST))
POST = b"POST /channels/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PAGE = b"GET /connections HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEARTBEAT = jgroups5.encode(jgroups5.Heartbeat())

CASES: dict[str, ListenerCase] = {
    "node over TCP": _node(_tcp, "tcp://127.0.0.1:0", PREFACE, OCKAM),
    "node over TCP with a token": _node(
        _tcp,
        "tcp://127.0.0.1:0",
        PREFACE,
        OCKAM,
        begun=PREFACE + LARGE.to_bytes(4, "big"),
        token=TOKEN,
    ),
    "node over WebSocket": _node(
        _websocket, "ws://127.0.0.1:0", UPGRADE, WEBSOCKET, reply=b"\r\n\r\n"
    ),
    "node over WebSocket with a token": _node(
        _websocket,
        "ws://127.0.0.1:0",
        UPGRADE,
        WEBSOCKET,
        reply=b"\r\n\r\n",
        begun=UPGRADE + b"\x82\xff" + LARGE.to_bytes(8, "big") + bytes(4),
        token=TOKEN,
    ),
    "node over HTTP": _node(
        _http, "http://127.0.0.1:0", b"", POST % 4 + b"null", begun=POST % LARGE
    ),
    "gossip router": ListenerCase(
        start=_router,
        serve=_answering(HEARTBEAT, HEARTBEAT),
        opening=b"",
        frame=HEARTBEAT,
        begun=LARGE.to_bytes(4, "big"),
        seconds=5.0,
    ),
    "MQTT broker": ListenerCase(
        start=_broker,
        serve=_answering(MQTT_CONNECT[:-1] + b"k" + MQTT_PING, b"\xd0\x00"),  # another client
        opening=MQTT_CONNECT,
        frame=MQTT_PING,
        begun=b"\x10\xc0\xc3\x93\x07",  # a CONNECT of 15 MB
        seconds=15.0,
    ),
    "direct member of a group": ListenerCase(
        start=_member,
        serve=_join,
        opening=greeting("fleet"),
        frame=(100).to_bytes(4, "big") + bytes(100),
        seconds=5.0,
    ),
    "monitoring": ListenerCase(
        start=_monitor,
        serve=_answering(HEALTH, b'"ok"'),
        opening=b"",
        frame=HEALTH,
        begun=HEALTH[:-2] + b"X: ",
        seconds=5.0,
    ),
    "console": ListenerCase(
        start=_console,
        serve=_answering(PAGE, b"</html>"),
        opening=b"",
        frame=PAGE,
        begun=b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % LARGE,
        seconds=5.0,
    ),
}


NEVER_ANSWERS_MUCH = {
    ("direct member of a group", "holds back a peer that never reads"),  # nothing, there
    ("monitoring", "holds back a peer that never reads"),  # once, and reads on to discard
}
"""What cannot fill up with answers, and need not hold anybody back."""


def _parameters() -> list[tuple[str, str]]:
    every = [(case, check) for case in CASES for check in LISTENER_CHECKS]
    return [each for each in every if each not in NEVER_ANSWERS_MUCH]


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize(("case", "check"), _parameters())
def test_a_listener_survives_hostile_peers(case: str, check: str) -> None:
    async def scenario() -> None:
        await check_listener(CASES[case], checks={check: LISTENER_CHECKS[check]})

    run_checked(scenario)


async def _careless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each byte with itself, and wait for ever for the next."""
    while data := await reader.read(1024):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def _careless_listener() -> AsyncIterator[StartedListener]:
    server = await asyncio.start_server(_careless, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield StartedListener(f"{host}:{port}")
    finally:
        server.close()


def test_a_listener_that_bounds_nothing_is_found() -> None:
    case = ListenerCase(
        start=_careless_listener,
        serve=_answering(b"x", b"x"),
        opening=b"ab",
        frame=b"x" * 1024,
        seconds=0.2,
    )
    with pytest.raises(NotConformingError) as caught:
        run_checked(lambda: check_listener(case))  # type: ignore[arg-type, return-value]
    assert [part.partition(":")[0] for part in str(caught.value).split("; ")] == [
        "ends a silent connection",
        "ends half an opening",
        "ends half a frame",
        "holds back a peer that never reads",
    ]
