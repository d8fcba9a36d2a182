"""Durable messages over every transport alike, while the receiver is killed in between (DU-2)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.groups.crowd import routers
from tests.node.test_durable import durable_rows, payloads, quick
from tests.node.test_durable_crashes import crash
from tests.transports.mqtt_live import broker_here, proxied, soon, ways
from waystation.groups import GroupLimits
from waystation.testing import Fleet, run_checked, until
from waystation.testing.datagram_path import udp_path
from waystation.testing.path import FaultyPath
from waystation.testing.workers import collect
from waystation.transports.gossip import Gossip
from waystation.transports.http import Http
from waystation.transports.mqtt import Mqtt
from waystation.transports.tcp import Tcp
from waystation.transports.udp import Udp
from waystation.transports.websocket import WebSocket

MakeFleet: TypeAlias = Callable[[], AbstractAsyncContextManager[Fleet]]


@asynccontextmanager
async def over_tcp() -> AsyncIterator[Fleet]:
    async with Fleet(Tcp, "tcp://127.0.0.1:0") as fleet:
        yield fleet


@asynccontextmanager
async def over_websocket() -> AsyncIterator[Fleet]:
    async with Fleet(WebSocket, "ws://127.0.0.1:0") as fleet:
        yield fleet


@asynccontextmanager
async def over_http() -> AsyncIterator[Fleet]:
    async with Fleet(Http, "http://127.0.0.1:0") as fleet:
        yield fleet


@asynccontextmanager
async def over_udp() -> AsyncIterator[Fleet]:
    async with Fleet(Udp, "udp://127.0.0.1:0", path=udp_path) as fleet:
        yield fleet


@asynccontextmanager
async def over_mqtt() -> AsyncIterator[Fleet]:
    async with broker_here() as broker, proxied(broker.place) as proxy:

        def make() -> Mqtt:
            return Mqtt(f"mqtt://{proxy.place}", backoff=soon())

        async with Fleet(make, "mqtt://+", path=ways(proxy)) as fleet:
            yield fleet


class NoFaults:
    """The way to a member is its place."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.cut = self.freeze = self.thaw = lambda: None
        self.cut_after = lambda size: None  # noqa: ARG005
        self.refuse = lambda *, refuse: None  # noqa: ARG005


@asynccontextmanager
async def over_gossip() -> AsyncIterator[Fleet]:
    async with routers() as found:

        def make() -> Gossip:
            return Gossip(f"gossip://{found.places[0]}", group_limits=GroupLimits(linger=0.5))

        @contextlib.asynccontextmanager
        async def path(target: str) -> AsyncIterator[FaultyPath]:
            yield NoFaults(target)

        async with Fleet(make, "gossip://fleet/*", path=path) as fleet:
            yield fleet


@pytest.mark.rule("DU-2", "DU-3")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "make", [over_tcp, over_websocket, over_http, over_udp, over_mqtt, over_gossip]
)
def test_custody_over_every_transport(tmp_path: Path, make: MakeFleet) -> None:
    """From a phone over a hub to a truck, which dies and comes back: all once, and in order."""

    async def scenario() -> None:
        async with make() as fleet:
            hub = await fleet.hub("hub", store=quick(tmp_path / "hub", answer=2))
            phone = await fleet.leaf("phone", hub, store=quick(tmp_path / "phone", answer=2))
            truck = await fleet.leaf("truck", hub, store=quick(tmp_path / "truck"))
            first = collect(truck, "truck-7")
            await fleet.ready()
            await send(fleet, range(40))
            await until(lambda: len(first) == 40, 100)
            recorder = fleet.recorder(truck)
            await until(lambda: durable_rows(recorder).count(("DELIVERED", 1, None)) == 40)
            await crash(fleet, truck)
            await send(fleet, range(40, 80))
            fleet.heal()  # of a broker, all have the same way
            again = await fleet.leaf("truck", hub, store=quick(tmp_path / "truck"))
            second = collect(again, "truck-7")
            await until(lambda: len(second) == 40, 100)
            assert payloads(first + second) == [payload(number) for number in range(80)]
            nodes = (phone, hub, again)
            await until(lambda: not any(one.custody and one.custody.messages for one in nodes), 100)
            assert ("FORWARDED", None, "hub") in durable_rows(fleet.recorder(phone))

    run_checked(scenario, seconds=280)


async def send(fleet: Fleet, numbers: range) -> None:
    for number in numbers:
        await fleet["phone"].send("truck-7", payload(number), durable=True)


def payload(number: int) -> bytes:
    """More than one datagram, and all together more than one frame of some transports."""
    return b"%d " % number + b"." * 4_000
