"""Nodes over MQTT beside the bare client that they use, aiomqtt and paho, through two brokers.

Both ends are in this process, the broker in another: Mosquitto, and ours. A message is 100 bytes;
the bare client publishes as many bytes with the same properties. One way counts what arrives, with
QoS 1 and with QoS 0; a round trip is one message there and one back, one after the other. paho,
which aiomqtt is built on, is told to have as many messages on their way as the broker allows. To
await each publication of aiomqtt would wait for the broker each time, so many are awaited at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import uvloop
from mqtt5 import PublishPacket
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.harness import Report
from tests.peers.kept import PeerMissing
from tests.peers.mosquitto_peer import build, mosquitto, version
from waystation.core.message import Message
from waystation.mqtt.client import BrokerAt, Credentials, MqttClient
from waystation.net.place import parse_place
from waystation.node import Context, Node
from waystation.transports.mqtt import Mqtt

PACKAGES = ("mqtt5", "aiomqtt", "paho-mqtt", "uvloop")
TURNS = 5
SIZE = 100
COUNT = 10_000
TRIPS = 500
AWAITED = 500
"""Publications of aiomqtt that are awaited together."""
LABEL = bytes(29)
"""As much correlation data as a link has."""


def run(report: Report, turns: int = TURNS, count: int = COUNT, trips: int = TRIPS) -> None:
    brokers: dict[str, Callable[[], contextlib.AbstractContextManager[str]]] = {"ours": our_broker}
    try:
        build()
    except PeerMissing as missing:
        print(f"  without Mosquitto: {missing}")
    else:
        report.versions["mosquitto"] = version()
        brokers = {"Mosquitto": real_mosquitto, **brokers}
    found = {
        name: through(report, name, broker, turns, count, trips) for name, broker in brokers.items()
    }
    for case, theirs in found.get("Mosquitto", {}).items():
        report.add(
            case, "our broker / Mosquitto, bare client", found["ours"][case] / theirs, "ratio"
        )


def through(
    report: Report,
    name: str,
    broker: Callable[[], contextlib.AbstractContextManager[str]],
    turns: int,
    count: int,
    trips: int,
) -> dict[str, float]:
    """Measure everything through one broker; gives the figures of the bare client."""
    bare: dict[str, float] = {}
    with broker() as place:
        for qos in (1, 0):
            one_way = {
                "nodes": partial(looped, nodes_one_way, place, qos, count),
                "bare client": partial(looped, client_one_way, place, qos, count),
                "aiomqtt": partial(looped, aiomqtt_one_way, place, qos, count),
                "paho": partial(paho_one_way, place, qos, count),
            }
            case = f"one way, QoS {qos}"
            rates = report.compare(f"{case}, via {name}", one_way, turns=turns, unit="msg/s")
            bare[case] = rates["bare client"]
        round_trip = {
            "nodes": partial(looped, nodes_round_trip, place, 1, trips),
            "bare client": partial(looped, client_round_trip, place, 1, trips),
        }
        case = "round trip, QoS 1"
        rates = report.compare(f"{case}, via {name}", round_trip, turns=turns, unit="trips/s")
        bare[case] = rates["bare client"]
    return bare


# Brokers


@contextlib.contextmanager
def real_mosquitto() -> Iterator[str]:
    with mosquitto("max_queued_messages 0\n") as running:
        yield running.place


@contextlib.contextmanager
def our_broker() -> Iterator[str]:
    program = "from waystation.cli.broker import broker; broker()"
    command = [sys.executable, "-c", program, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


def looped(work: Callable[[str, int, int], Awaitable[int]], place: str, qos: int, n: int) -> int:
    async def main() -> int:
        return await work(place, qos, n)

    return uvloop.run(main())


# Nodes


@contextlib.asynccontextmanager
async def two_nodes(place: str, qos: int) -> AsyncIterator[tuple[Node, Node, str]]:
    left, right = (Mqtt(f"mqtt://{place}", qos=qos) for _ in range(2))
    async with Node("left", transports=[left]) as here, Node("right", transports=[right]) as there:
        door = await there.listen("mqtt://+")
        yield here, there, str(door.address)


async def nodes_one_way(place: str, qos: int, count: int) -> int:
    got = 0
    done = asyncio.Event()
    async with two_nodes(place, qos) as (here, there, door):

        @there.worker("sink")
        def sink(message: Message, context: Context) -> None:
            nonlocal got
            del message, context
            got += 1
            if got == count:
                done.set()

        payload = bytes(SIZE)
        for _ in range(count):
            await here.send(f"{door} => sink", payload)
        await asyncio.wait_for(done.wait(), 60)
    return got


async def nodes_round_trip(place: str, qos: int, trips: int) -> int:
    async with two_nodes(place, qos) as (here, there, door):

        @there.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            await context.reply(message.payload)

        for _ in range(trips):
            await here.request(f"{door} => echo", bytes(SIZE))
    return trips


# The client alone


class Owner:
    """Whoever uses a client, and nothing more."""

    def __init__(self) -> None:
        self.room = asyncio.Event()
        self.hear: Callable[[Sequence[PublishPacket]], None] = lambda _: None

    def connected(self) -> None: ...
    def disconnected(self, detail: str) -> None: ...

    def settle(self) -> None: ...

    def make_will(self) -> None: ...

    def uncrowded(self) -> None:
        self.room.set()

    def received(self, packets: Sequence[PublishPacket]) -> None:
        self.hear(packets)


@contextlib.asynccontextmanager
async def two_clients(place: str, qos: int) -> AsyncIterator[tuple[Any, Any]]:
    made = []
    for name in ("left", "right"):
        owner = Owner()
        broker = BrokerAt.parse(f"mqtt://{place}")
        client = MqttClient(broker, owner, Credentials(client_id=f"bench-{name}"))
        client.start()
        await client.ready()
        client.subscribe(f"bench/{name}", qos)
        await client.subscriptions.answer(f"bench/{name}")
        made.append((client, owner))
    try:
        yield made[0], made[1]
    finally:
        for client, _ in made:
            client.stop()
        await asyncio.sleep(0.01)


async def client_one_way(place: str, qos: int, count: int) -> int:
    got = 0
    done = asyncio.Event()

    def hear(packets: Sequence[PublishPacket]) -> None:
        nonlocal got
        got += len(packets)
        if got == count:
            done.set()

    async with two_clients(place, qos) as ((left, sender), (_, receiver)):
        receiver.hear = hear
        payload = bytes(SIZE + 100)  # a frame has routes, an id and an expiry as well
        for _ in range(count):
            left.connection.publish(
                "bench/right", payload, qos, response_topic="b/l", correlation=LABEL
            )
            if left.connection.is_crowded:
                sender.room.clear()
                await sender.room.wait()
        await asyncio.wait_for(done.wait(), 60)
    return got


async def client_round_trip(place: str, qos: int, trips: int) -> int:
    async with two_clients(place, qos) as ((left, sender), (right, receiver)):
        payload = bytes(SIZE + 100)
        say = partial(left.connection.publish, "bench/right", payload, qos, response_topic="b/l")
        answered = asyncio.Event()

        def answer(packets: Sequence[PublishPacket]) -> None:
            for _ in packets:
                right.connection.publish(
                    "bench/left", payload, qos, response_topic="b/r", correlation=LABEL
                )

        receiver.hear = answer
        sender.hear = lambda _: answered.set()
        for _ in range(trips):
            answered.clear()
            say(correlation=LABEL)
            await answered.wait()
    return trips


# aiomqtt


def aiomqtt_client(place: str) -> aiomqtt.Client:
    host, port = parse_place(place)
    client = aiomqtt.Client(
        host, port, protocol=aiomqtt.ProtocolVersion.V5, max_inflight_messages=65_535
    )
    client.pending_calls_threshold = AWAITED  # above which it warns each time
    return client


async def aiomqtt_one_way(place: str, qos: int, count: int) -> int:
    got = 0

    async def receive(client: aiomqtt.Client) -> None:
        nonlocal got
        async for _ in client.messages:
            got += 1
            if got == count:
                return

    async with aiomqtt_client(place) as left, aiomqtt_client(place) as right:
        await right.subscribe("bench/aiomqtt", qos)
        receiving = asyncio.create_task(receive(right))
        payload = bytes(SIZE + 100)
        for begin in range(0, count, AWAITED):
            several = range(begin, min(begin + AWAITED, count))
            await asyncio.gather(*(left.publish("bench/aiomqtt", payload, qos) for _ in several))
        await asyncio.wait_for(receiving, 60)
    return got


# paho


def paho_one_way(place: str, qos: int, count: int) -> int:
    host, port = parse_place(place)
    done, ready = threading.Event(), threading.Event()
    got = 0

    def hear(*_: object) -> None:
        nonlocal got
        got += 1
        if got == count:
            done.set()

    clients = []
    for _ in range(2):
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.max_inflight_messages_set(65_535)
        client.max_queued_messages_set(0)
        client.connect(host, port)
        client.loop_start()
        clients.append(client)
    left, right = clients
    right.on_message = hear
    right.on_subscribe = lambda *_: ready.set()
    right.subscribe("bench/paho", qos)
    ready.wait(10)
    for _ in range(count):
        left.publish("bench/paho", bytes(SIZE + 100), qos)
    done.wait(60)
    for client in clients:
        client.disconnect()
        client.loop_stop()
    return got
