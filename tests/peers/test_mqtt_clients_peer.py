"""An MQTT client of another make that awaits each thing, aiomqtt: the same with both brokers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes

from tests.mqtt.broker.behaviour import properties
from tests.mqtt.broker.test_behaviour import in_thread
from tests.peers.mosquitto_peer import built, mosquitto
from waystation.net.place import parse_place
from waystation.testing import DEADLINE, run_checked

pytestmark = [pytest.mark.peer, pytest.mark.ci]

TRIPS = 20


@pytest.fixture(scope="module", params=["ours", "Mosquitto"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "ours":
        with in_thread() as found:
            yield found
    else:
        built()
        with mosquitto() as running:
            yield running.place


@contextlib.asynccontextmanager
async def aiomqtt_client(place: str) -> AsyncIterator[aiomqtt.Client]:
    host, port = parse_place(place)
    async with aiomqtt.Client(host, port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        yield client


@pytest.mark.parametrize("qos", [0, 1])
def test_requests_and_replies(place: str, qos: int) -> None:
    topic = f"trip/{secrets.token_hex(6)}"

    async def scenario() -> None:
        async with aiomqtt_client(place) as asking, aiomqtt_client(place) as answering:
            await asking.subscribe(f"{topic}/back", qos)
            await answering.subscribe(f"{topic}/there", qos)

            async def answer() -> None:
                for _ in range(TRIPS):  # for it cannot always be cancelled
                    message = await anext(aiter(answering.messages))
                    back: Any = message.properties
                    await answering.publish(back.ResponseTopic, message.payload, qos)

            async with asyncio.TaskGroup() as group:
                group.create_task(answer())
                to = properties(PacketTypes.PUBLISH, ResponseTopic=f"{topic}/back")
                for number in range(TRIPS):
                    await asking.publish(f"{topic}/there", b"%d" % number, qos, properties=to)
                    assert (await anext(aiter(asking.messages))).payload == b"%d" % number

    run_checked(scenario, seconds=DEADLINE)


def test_each_message_goes_to_one_of_those_who_share(place: str) -> None:
    topic = f"share/{secrets.token_hex(6)}"
    numbers = [b"%d" % number for number in range(20)]
    heard: list[list[bytes]] = [[], []]

    async def scenario() -> None:
        async with (
            aiomqtt_client(place) as sender,
            aiomqtt_client(place) as one,
            aiomqtt_client(place) as two,
        ):
            for client in (one, two):
                await client.subscribe(f"$share/workers/{topic}/#", 1)
                await client.subscribe(f"{topic}-over", 1)
            for number in numbers:
                await sender.publish(f"{topic}/jobs", number, 1)
            await sender.publish(f"{topic}-over", b"over", 1)
            for client, found in zip((one, two), heard, strict=True):
                while (message := await anext(aiter(client.messages))).payload != b"over":
                    assert isinstance(message.payload, bytes)
                    found.append(message.payload)

    run_checked(scenario, seconds=DEADLINE)
    assert all(heard)
    assert sorted(heard[0] + heard[1]) == sorted(numbers)
