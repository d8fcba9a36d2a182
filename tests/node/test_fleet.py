"""A small fleet over real transports: leaves behind hubs, hubs around a broker (MC, WK-10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.node.test_broadcasts import Heard
from tests.node.test_hubs import QUIET, knows
from tests.transports.mqtt_live import broker_here, soon
from waystation.core.outcome import Outcome
from waystation.mqtt.broker import Broker
from waystation.node import Node, Scope
from waystation.testing import Recorder, async_test, collect, echo, until
from waystation.transports.mqtt import Mqtt
from waystation.transports.tcp import Tcp
from waystation.transports.websocket import WebSocket


@asynccontextmanager
async def mqtt_hub(broker: Broker, name: str) -> AsyncIterator[tuple[Node, str, str]]:
    """A hub on a broker, with a door for leaves over TCP and one over WebSocket."""
    mqtt = Mqtt(f"mqtt://{broker.place}", topic=f"hubs/{name}", backoff=soon())
    async with Node(name, hub=True, transports=[Tcp(), WebSocket(), mqtt], limits=QUIET) as node:
        await node.listen("mqtt://+", outside=True)
        tcp = await node.listen("tcp://127.0.0.1:0")
        ws = await node.listen("ws://127.0.0.1:0")
        yield node, tcp.url, ws.url


@asynccontextmanager
async def leaf(name: str, url: str) -> AsyncIterator[Node]:
    """A leaf over whatever the url says."""
    async with Node(name, transports=[Tcp(), WebSocket()], limits=QUIET) as node:
        await node.connect(url, name="hub", parent=True)
        yield node


@pytest.mark.rule("WK-10")
@async_test
async def test_a_request_goes_from_leaf_to_hub_to_broker_to_hub_to_leaf_and_back() -> None:
    async with (
        broker_here() as broker,
        mqtt_hub(broker, "west") as (west, _, west_ws),
        mqtt_hub(broker, "east") as (east, east_tcp, _),
        leaf("phone", west_ws) as phone,
        leaf("truck", east_tcp) as truck,
    ):
        echo(truck, "engine")
        await until(lambda: knows(east, "engine"))
        west.ask_directory("mqtt#hubs/east")
        east.host_directory()
        await truck.register("engine", "trucks", "status", everywhere=True)
        [found] = await phone.discover("trucks", "status", Scope.LOCAL_THEN_GLOBAL)
        assert found.participant == "engine"
        assert knows(west, "engine")
        answer = await phone.request("engine", b"how are you?")
        assert answer.payload == b"how are you?"


@pytest.mark.rule("MC-9", "MC-10", "MC-12")
@async_test
async def test_a_broadcast_crosses_two_hubs_and_a_broker_once() -> None:
    async with (
        broker_here() as broker,
        mqtt_hub(broker, "west") as (west, west_tcp, west_ws),
        mqtt_hub(broker, "east") as (_, east_tcp, east_ws),
        leaf("truck", west_tcp) as truck,
        leaf("near", west_ws) as near,
        leaf("far", east_tcp) as far,
        leaf("also", east_ws) as also,
    ):
        heard = [Heard() for _ in range(5)]
        near.subscribe("truck", "position", "eu/+/munich", callback=heard[0])
        far.subscribe("truck", "position", "eu/*", callback=heard[1])
        far.subscribe("truck", "position", "eu/de/munich", callback=heard[2])
        also.subscribe("+", "position", "*", callback=heard[3])
        far.subscribe("truck", "position", "us/*", callback=heard[4])
        await until(lambda: sum(1 for _ in broker.filters()) >= 5)
        journal = Recorder(west)
        await truck.publish("position", b"here", partition="eu/de/munich", ttl=60)
        await until(lambda: all(one.payloads for one in heard[:4]))
        await truck.publish("position", b"there", partition="us/tx", ttl=60)
        await until(lambda: heard[4].payloads)
        assert [one.payloads for one in heard] == [
            [b"here"],
            [b"here"],
            [b"here"],
            [b"here", b"there"],
            [b"there"],
        ]
        left = [r.verdict for r in journal.messages if r.verdict.outcome is Outcome.FORWARDED]
        assert [verdict.recipient is None for verdict in left].count(True) == 2
        assert len(left) == 3  # to the leaf that is near, and twice up


@pytest.mark.rule("MC-12")
@async_test
async def test_ten_thousand_subscriptions_of_one_hub() -> None:
    async with (
        broker_here() as broker,
        mqtt_hub(broker, "west") as (west, _, _),
        mqtt_hub(broker, "east") as (east, _, _),
    ):
        heard = Heard()
        for number in range(10_000):
            east.subscribe("west", "news", f"p{number}", callback=heard)
        await until(lambda: len(broker.filters()) >= 10_000)
        for number in range(0, 10_000, 100):
            await west.publish("news", b"%d" % number, partition=f"p{number}")
        await until(lambda: len(heard.payloads) == 100)
        await west.publish("news", b"nobody", partition="q")


@async_test
async def test_a_route_over_several_transports_and_its_answer() -> None:
    async with (
        Node("a", transports=[Tcp()], limits=QUIET) as a,
        Node("b", transports=[Tcp(), WebSocket()], limits=QUIET, dial_for_peers=True) as b,
        Node("c", transports=[WebSocket()], limits=QUIET) as c,
    ):
        got = collect(c, "sink")
        echo(c)
        tcp = await b.listen("tcp://127.0.0.1:0")
        ws = await c.listen("ws://127.0.0.1:0")
        answer = await a.request(f"tcp#{tcp.place} => ws#{ws.place} => echo", b"over two")
        assert answer.payload == b"over two"
        await a.send(f"tcp#{tcp.place} => ws#{ws.place} => sink", b"one way")
        await until(lambda: got)
        assert got[0].payload == b"one way"
