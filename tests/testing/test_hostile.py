"""Every transport against peers that misbehave: others are served, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from waystation.core.outcome import Reason
from waystation.gossip_router import GossipServer
from waystation.gossip_router import Settings as RouterSettings
from waystation.mqtt.broker import Broker
from waystation.mqtt.broker import Settings as BrokerSettings
from waystation.testing import (
    HOSTILE_CHECKS,
    MemoryNetwork,
    NotConformingError,
    check_transport,
    run_checked,
    udp_path,
)
from waystation.testing.memory import MemoryLink
from waystation.testing.pair import MakePath
from waystation.testing.path import tcp_path
from waystation.transports.gossip import Gossip
from waystation.transports.http import Http, HttpLimits
from waystation.transports.mqtt import Mqtt
from waystation.transports.tcp import Tcp
from waystation.transports.transport import Transport
from waystation.transports.udp import Udp, UdpLimits
from waystation.transports.websocket import WebSocket

Found = tuple[Callable[[], Transport], str, MakePath]


@asynccontextmanager
async def _memory() -> AsyncIterator[Found]:
    network = MemoryNetwork()
    yield network.transport, "mem://any", network.path


@asynccontextmanager
async def _gossip() -> AsyncIterator[Found]:
    router = GossipServer(RouterSettings(linger=0.2))
    await router.start("127.0.0.1:0")
    try:
        yield lambda: Gossip(f"gossip://{router.place}"), "gossip://fleet/*", tcp_path
    finally:
        await router.drain()


@asynccontextmanager
async def _mqtt() -> AsyncIterator[Found]:
    broker = Broker(BrokerSettings())
    await broker.start("127.0.0.1:0")
    try:
        yield lambda: Mqtt(f"mqtt://{broker.place}"), "mqtt://+", tcp_path
    finally:
        await broker.drain()


def _plain(
    make: Callable[[], Transport], place: str, path: MakePath = tcp_path
) -> Callable[[], AbstractAsyncContextManager[Found]]:
    @asynccontextmanager
    async def found() -> AsyncIterator[Found]:
        yield make, place, path

    return found


TRANSPORTS: dict[str, Callable[[], AbstractAsyncContextManager[Found]]] = {
    "memory": _memory,
    "tcp": _plain(Tcp, "tcp://127.0.0.1:0"),
    "websocket": _plain(WebSocket, "ws://127.0.0.1:0"),
    "http": _plain(lambda: Http(limits=HttpLimits(idle=2.0, wait=1.0)), "http://127.0.0.1:0"),
    "udp": _plain(
        lambda: Udp(limits=UdpLimits(idle=3.0, reply=2.0)), "udp://127.0.0.1:0", udp_path
    ),
    "gossip": _gossip,
    "mqtt": _mqtt,
}


@pytest.mark.parametrize("check", HOSTILE_CHECKS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_transport_survives_hostile_peers(transport: str, check: str) -> None:
    async def scenario() -> None:
        async with TRANSPORTS[transport]() as (make, place, path):
            await check_transport(
                make,
                place,
                path=path,
                largest=100_000,
                checks={check: HOSTILE_CHECKS[check]},
            )

    run_checked(scenario)


class Late(MemoryLink):
    """Notices too late that its peer has left."""

    def finish(self, reason: Reason | None, detail: str) -> None:
        asyncio.get_running_loop().call_later(4.0, super().finish, reason, detail)


def test_a_transport_that_does_not_notice_a_close_is_found() -> None:
    network = MemoryNetwork(make_link=Late)

    async def scenario() -> None:
        check = "survives a close in every state"
        await check_transport(
            network.transport,
            "mem://any",
            path=network.path,
            time_factor=0.05,
            checks={check: HOSTILE_CHECKS[check]},
        )

    with pytest.raises(NotConformingError, match="survives a close in every state"):
        run_checked(scenario)
