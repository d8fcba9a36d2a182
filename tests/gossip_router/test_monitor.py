"""What a router tells its HTTP port."""

from __future__ import annotations

import json

from tests.gossip_router.clients import Client2, Client5, serving, uuid
from tests.net.test_monitor import ask
from tests.node.live import runs_on_every_loop
from waystation.gossip_router import GossipServer, RouterMetrics
from waystation.net.monitor import Monitor
from waystation.testing import async_test
from waystation.wire.jgroups5 import Message


async def monitored(server: GossipServer) -> Monitor:
    monitor = Monitor(RouterMetrics(server))
    await monitor.start("127.0.0.1:0")
    return monitor


@runs_on_every_loop
async def test_metrics_tell_what_happened() -> None:
    async with (
        serving() as (server, _),
        await Client5.open(server) as five,
        await Client2.open(server) as two,
    ):
        monitor = await monitored(server)
        await five.join("g", 1)
        await two.join("g", 1)
        five.say(Message("g", uuid(1), None, b"x"), Message("g", uuid(9), None, b"x"))
        await five.sync()
        status, body = await ask(monitor, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        lines = body.splitlines()
        for line in (
            'waystation_router_connections{dialect="JGroups 2.12"} 1',
            'waystation_router_connections{dialect="JGroups 5"} 1',
            'waystation_router_members{dialect="JGroups 5"} 1',
            "waystation_router_messages_received_total 2",
            "waystation_router_messages_delivered_total 1",
            'waystation_router_messages_dropped_total{reason="NO_ROUTE"} 1',
            'waystation_router_member_changes_total{kind="join"} 2',
            "waystation_router_draining 0",
        ):
            assert line in lines
        monitor.close()


@async_test
async def test_health_says_so_when_the_router_is_ending() -> None:
    async with serving() as (server, _):
        monitor = await monitored(server)
        status, body = await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n")
        assert (status, json.loads(body)["status"]) == ("HTTP/1.1 200 OK", "ok")
        await server.drain()
        status, body = await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n")
        assert (status, json.loads(body)["status"]) == (
            "HTTP/1.1 503 Service Unavailable",
            "draining",
        )
        monitor.close()
