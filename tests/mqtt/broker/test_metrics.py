"""What a broker tells its HTTP port."""

from __future__ import annotations

import asyncio
import json

from tests.mqtt.broker.behaviour import Client
from tests.net.test_monitor import ask
from waystation.mqtt.broker import Broker, BrokerMetrics
from waystation.net.monitor import Monitor
from waystation.testing import async_test


def talk(place: str) -> Client:
    """A client that subscribed, and got what it published."""
    client = Client(place)
    assert client.connect()[1] == 0
    client.subscribe("a")
    client.publish("a", b"x", 1)
    assert client.next().payload == b"x"
    client.publish("nobody", b"x", 1)
    return client


@async_test
async def test_metrics_and_health_tell_what_a_broker_does() -> None:
    broker = Broker()
    await broker.start("127.0.0.1:0")
    monitor = Monitor(BrokerMetrics(broker))
    await monitor.start("127.0.0.1:0")
    client = await asyncio.to_thread(talk, broker.place)
    _, body = await ask(monitor, b"GET /metrics HTTP/1.1\r\n\r\n")
    lines = body.splitlines()
    for line in (
        "waystation_broker_connections_opened_total 1",
        "waystation_broker_messages_received_total 2",
        "waystation_broker_messages_delivered_total 1",
        "waystation_broker_messages_unmatched_total 1",
        "waystation_broker_clients 1",
        "waystation_broker_sessions 1",
        "waystation_broker_retained_messages 0",
        "waystation_broker_draining 0",
    ):
        assert line in lines
    status, body = await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n")
    assert (status, json.loads(body)) == (
        "HTTP/1.1 200 OK",
        {"status": "ok", "listening": broker.place},
    )
    await asyncio.to_thread(client.close)
    await broker.drain()
    status, _ = await ask(monitor, b"GET /health HTTP/1.1\r\n\r\n")
    assert status == "HTTP/1.1 503 Service Unavailable"
    monitor.close()
