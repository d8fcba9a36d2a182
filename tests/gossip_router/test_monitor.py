"""The HTTP port of a router."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gossip_router.clients import PATIENCE, Client2, Client5, serving, uuid
from tests.node.live import runs, runs_on_every_loop
from waystation.gossip_router.metrics import Counts, exposition
from waystation.gossip_router.monitor import Monitor
from waystation.gossip_router.server import GossipServer
from waystation.net.place import parse_place
from waystation.wire.jgroups5 import Message


async def ask(monitor: Monitor, request: bytes) -> tuple[str, str]:
    """The first line and the body of the answer."""
    reader, writer = await asyncio.open_connection(*parse_place(monitor.place))
    writer.write(request)
    answer = (await asyncio.wait_for(reader.read(), PATIENCE)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    assert f"Content-Length: {len(body)}" in head or not body
    return head.split("\r\n")[0], body


async def monitored(server: GossipServer) -> Monitor:
    monitor = Monitor(server)
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
        status, body = await ask(monitor, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
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


@runs
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


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (b"nonsense\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, "431"),
    ],
)
@runs
async def test_other_requests_get_the_right_status(request_: bytes, status: str) -> None:
    async with serving() as (server, _):
        monitor = await monitored(server)
        assert (await ask(monitor, request_))[0].split()[1] == status
        monitor.close()


def test_labels_are_escaped() -> None:
    text = exposition(Counts(), {"x": ("X.", [({"l": 'a"b\\c\nd'}, 1)])})
    assert 'waystation_router_x{l="a\\"b\\\\c\\nd"} 1' in text.splitlines()
