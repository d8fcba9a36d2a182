"""What the tests of the MQTT transport share: a broker, nodes over it, and ways that go wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from waystation.mqtt.broker import Broker, Settings
from waystation.net.backoff import Backoff
from waystation.node import Limits, Node
from waystation.testing import Recorder, echo, until
from waystation.testing.path import TcpPath, tcp_path
from waystation.transports.mqtt import Mqtt

QUIET = Limits(heartbeat=0.0, stall=30.0)
"""A node without heartbeats: what it notices, it notices without them."""


def soon() -> Backoff:
    """Waits of a client that connects again soon."""
    return Backoff(first=0.02, most=0.2)


@asynccontextmanager
async def broker_here(place: str = "127.0.0.1:0", **options: Any) -> AsyncIterator[Broker]:
    """Our broker, in this event loop."""
    tls, authenticate = options.pop("tls", None), options.pop("authenticate", None)
    broker = Broker(Settings(**options), tls=tls, authenticate=authenticate)
    await broker.start(place)
    try:
        yield broker
    finally:
        await broker.drain()


@asynccontextmanager
async def hub(
    place: str, name: str, *, limits: Limits = QUIET, **options: Any
) -> AsyncIterator[tuple[Node, Mqtt, Recorder]]:
    """A node with an echo that listens on `hubs/<name>`."""
    options.setdefault("backoff", soon())
    mqtt = Mqtt(f"mqtt://{place}", topic=f"hubs/{name}", **options)
    async with Node(name, transports=[mqtt], limits=limits) as node:
        journal = Recorder(node)
        echo(node)
        await node.listen("mqtt://+")
        yield node, mqtt, journal


class _Way:
    """A way through the broker that can be broken: all connections to it go over one proxy."""

    def __init__(self, proxy: TcpPath, topic: str) -> None:
        self.place = topic
        self.cut = proxy.cut
        self.cut_after = proxy.cut_after
        self.freeze = proxy.freeze
        self.thaw = proxy.thaw
        self.refuse = proxy.refuse


def ways(proxy: TcpPath) -> Callable[[str], AbstractAsyncContextManager[_Way]]:
    """What the conformance kit needs to make things go wrong."""

    @asynccontextmanager
    async def way(topic: str) -> AsyncIterator[_Way]:
        try:
            yield _Way(proxy, topic)
        finally:
            proxy.thaw()
            proxy.refuse(refuse=False)

    return way


@asynccontextmanager
async def proxied(place: str) -> AsyncIterator[TcpPath]:
    """A proxy before a broker, which ends when nobody uses it any more."""
    async with tcp_path(place) as proxy:
        yield proxy
        await until(lambda: not proxy._writers)
