"""The brokers and gossip routers that a node goes through, as its status tells them."""

from __future__ import annotations

from waystation.gossip_router import GossipServer
from waystation.mqtt.broker import Broker
from waystation.node import Node
from waystation.node.status import Status
from waystation.testing import async_test, until
from waystation.transports.gossip import Gossip
from waystation.transports.mqtt import Mqtt


@async_test
async def test_a_node_without_any_has_no_servers() -> None:
    async with Node("hub") as node:
        assert Status(node).snapshot().servers == []


@async_test
async def test_a_broker_is_named_and_whether_it_is_there() -> None:
    broker = Broker()
    await broker.start("127.0.0.1:0")
    place = broker.place
    async with Node("hub", transports=[Mqtt(f"mqtt://{place}", topic="hubs/hub")]) as node:
        status = Status(node)
        assert all(not server.open for server in status.snapshot().servers)
        await node.listen("mqtt://hubs/hub")
        await until(lambda: [server.open for server in status.snapshot().servers] == [True])
        [server] = status.snapshot().servers
        assert (server.kind, server.place) == ("broker", place)
        await broker.drain()
        await until(lambda: [server.open for server in status.snapshot().servers] == [False])


@async_test
async def test_a_gossip_router_is_named_while_the_node_is_in_a_group() -> None:
    router = GossipServer()
    await router.start("127.0.0.1:0")
    via = f"gossip://{router.place}"
    try:
        async with Node("hub", transports=[Gossip(via)]) as node:
            status = Status(node)
            assert status.snapshot().servers == []
            await node.listen("gossip://fleet/hub")
            await until(lambda: [server.open for server in status.snapshot().servers] == [True])
            [server] = status.snapshot().servers
            assert (server.kind, server.place) == ("gossip router", router.place)
    finally:
        await router.drain()


@async_test
async def test_multicast_needs_no_server() -> None:
    async with Node("hub", transports=[Gossip("udp://239.255.77.77:45588")]) as node:
        assert node.servers == []
