"""What a node tells its HTTP port."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.net.test_monitor import ask
from tests.node.live import QUICK, runs_on_every_loop
from waystation.core.grants import Grant, Grants
from waystation.core.message import Message
from waystation.net.monitor import Monitor
from waystation.node import Context, Node, keyfile
from waystation.node.metrics import NodeMetrics
from waystation.node.status import Status
from waystation.testing import DEADLINE, async_test, echo, until


@runs_on_every_loop
async def test_metrics_tell_what_happened_and_what_is_the_case() -> None:
    async with Node("hub", limits=QUICK) as hub, Node("leaf", limits=QUICK) as leaf:
        monitor = Monitor(NodeMetrics(hub))
        await monitor.start("127.0.0.1:0")
        echo(hub)
        hub.subscribe("garage", "news")
        listening = await hub.listen("tcp://127.0.0.1:0")
        await leaf.connect(listening.url, name="hub", wait=DEADLINE)
        for _ in range(3):
            await leaf.request("hub => echo", b"12345", timeout=DEADLINE)
        await hub.send("nobody", b"1")
        await hub.send("waystation.nobody", b"")
        status, body = await ask(monitor, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        lines = body.splitlines()
        for line in (
            'waystation_node_messages_total{outcome="DELIVERED"} 3',
            'waystation_node_messages_total{outcome="FORWARDED"} 3',
            'waystation_node_messages_dropped_total{reason="NO_ROUTE"} 1',
            'waystation_node_internal_messages_dropped_total{reason="NO_ROUTE"} 1',
            "waystation_node_payload_bytes_total 31",
            'waystation_node_session_events_total{event="opened",transport="tcp"} 1',
            'waystation_node_sessions{transport="tcp"} 1',
            "waystation_node_waiting_messages 0",
            "waystation_node_subscriptions 1",
            "waystation_node_draining 0",
        ):
            assert line in lines
        for metric in ("routes", "tasks_failed_total"):
            assert any(line.startswith(f"waystation_node_{metric} ") for line in lines)
        assert "journal_lost" not in body
        monitor.close()


@async_test
async def test_metrics_count_handshakes_refusals_and_secure_channels(tmp_path: Path) -> None:
    grants = Grants([Grant(anyone=True, send=("secure",))])
    async with (
        Node("hub", grants=grants, identity=keyfile.create(tmp_path / "hub")) as hub,
        Node("truck", identity=keyfile.create(tmp_path / "truck")) as truck,
        Node("car") as car,
    ):
        hub.secure_listener("secure", trust=truck.identifier)
        url = (await hub.listen("tcp://127.0.0.1:0")).url
        for node in (truck, car):
            await node.connect(url, name="hub")
            await node.secure_channel("hub => secure", trust=hub.identifier)
        await until(lambda: hub.secure_channels.refusals == 1)
        await car.send("hub => admin", b"")
        await until(lambda: hub.denied)
        monitor = Monitor(NodeMetrics(hub))
        await monitor.start("127.0.0.1:0")
        _, body = await ask(monitor, b"GET /metrics HTTP/1.1\r\n\r\n")
        monitor.close()
    for line in (
        'waystation_node_handshakes_total{result="proven"} 1',
        'waystation_node_handshakes_total{result="unproven"} 1',
        'waystation_node_denied_total{action="send"} 1',
        'waystation_node_secure_channel_events_total{event="opened"} 1',
        'waystation_node_secure_channel_events_total{event="refused"} 1',
        'waystation_node_secure_channels{state="open"} 1',
        'waystation_node_secure_channels{state="half_open"} 0',
    ):
        assert line in body.splitlines()


@async_test
async def test_health_says_where_it_listens_and_when_it_is_closing() -> None:
    async with Node("hub") as hub:
        started, finish = asyncio.Event(), asyncio.Event()

        @hub.worker("slow")
        async def slow(message: Message, context: Context) -> None:
            del message, context
            started.set()
            await finish.wait()

        listening = await hub.listen("tcp://127.0.0.1:0")
        monitor = Monitor(NodeMetrics(hub))
        await monitor.start("127.0.0.1:0")
        status, body = await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        assert json.loads(body) == {"status": "ok", "listening": [listening.url]}
        await hub.send("slow", b"")
        await started.wait()
        closing = asyncio.create_task(hub.close(drain=DEADLINE))
        await asyncio.sleep(0)
        status, body = await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 503 Service Unavailable"
        assert json.loads(body)["status"] == "draining"
        finish.set()
        await closing
        monitor.close()


@async_test
async def test_a_status_that_is_there_already_is_used() -> None:
    class Journal:
        lost = 7

    async with Node("hub") as hub:
        status = Status(hub, Journal())
        await hub.send("nobody", b"1")
        text = NodeMetrics(hub, status).metrics()
        assert 'waystation_node_messages_dropped_total{reason="NO_ROUTE"} 1' in text
        assert "waystation_node_journal_lost_records_total 7" in text
