"""Real Mosquitto: it passes the tests that our broker passes, and our transport works over it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mqtt.broker.behaviour import BrokerBehaviour
from tests.node.live import LOOPS
from tests.peers.joynr_peer import JoynrPeer, joynr_peer
from tests.peers.mosquitto_peer import Mosquitto, built, mosquitto
from tests.transports.certificates import authority
from tests.transports.mqtt_live import hub, proxied, soon, ways
from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.mqtt.broker import password_line
from waystation.mqtt.client import MqttClient, MqttLimits
from waystation.node import Node, Session
from waystation.testing import (
    DEADLINE,
    check_transport,
    collect,
    conformance,
    echo,
    run_checked,
    until,
)
from waystation.transports.mqtt import Mqtt
from waystation.wire.joynr import MulticastPublication, Request, decode_payload, encode_payload

pytestmark = pytest.mark.peer

LIMITS = MqttLimits(frame=2 * 1024 * 1024, unsent=64 * 1024)
TOPIC = "channel-js"


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    built()
    with mosquitto() as running:
        yield running


@pytest.fixture
def place(broker: Mosquitto) -> str:
    return broker.place


class TestMosquitto(BrokerBehaviour):
    pass


@pytest.mark.ci
@pytest.mark.rule("WK-10")
@pytest.mark.parametrize(("loop", "qos"), [("asyncio", 1), ("uvloop", 1), ("uvloop", 0)], ids=str)
def test_mqtt_passes_the_kit_over_mosquitto(place: str, loop: str, qos: int) -> None:
    async def scenario() -> None:
        async with proxied(place) as proxy:

            def make() -> Mqtt:
                return Mqtt(f"mqtt://{proxy.place}", qos=qos, limits=LIMITS, backoff=soon())

            result = await check_transport(
                make, "mqtt://+", path=ways(proxy), too_large=3 * 1024 * 1024, time_factor=1.8
            )
            assert result.passed == tuple(conformance.CHECKS)

    run_checked(scenario, LOOPS[loop], seconds=110)


def opened(session: Session, times: int) -> bool:
    return session.openings >= times


def is_ready(client: MqttClient) -> bool:
    return client.is_open and client.subscriptions.is_settled


def test_mosquitto_is_killed_and_started_again_under_traffic() -> None:
    built()

    async def scenario(running: Mosquitto) -> None:
        async with (
            hub(running.place, "hub-a") as (here, mine, journal),
            hub(running.place, "hub-b") as (there, yours, _),
        ):
            heard: list[str] = []
            yours.attach(lambda found, _: heard.append(found))
            yours.subscribe("garage/+")
            received = collect(there, "sink")
            session = await here.connect("mqtt://hubs/hub-b", name="b", wait=DEADLINE)
            sent = 0
            for turn in range(3):
                for _ in range(100):
                    await here.send("b => sink", b"%d" % sent)
                    sent += 1
                running.kill()
                await here.send("b => sink", b"%d" % sent)
                sent += 1
                await asyncio.to_thread(running.start)
                await until(partial(opened, session, turn + 2))
            await here.send("b => sink", b"last")
            await until(lambda: received[-1:] and received[-1].payload == b"last")
            numbers = [int(message.payload) for message in received[:-1]]
            assert numbers == sorted(set(numbers)), "a message came twice, or out of order"
            await until(lambda: len(journal.messages) == sent + 1)
            journal.check_outcomes()
            await until(partial(is_ready, yours.client))
            await until(partial(is_ready, mine.client))
            assert mine.publish("garage/t", Message(Route(), Route(), b"x", "1" * 32)) is None
            await until(lambda: heard == ["garage/t"])

    with mosquitto() as running:
        run_checked(partial(scenario, running))


def test_mosquitto_reads_our_passwords_and_speaks_our_tls(tmp_path: Path) -> None:
    built()
    tls = authority().tls("127.0.0.1", mutual=True)
    passwords = tmp_path / "passwords"
    passwords.write_text(password_line("hub", "secret") + "\n")
    passwords.chmod(0o600)
    more = f"""\
user root
allow_anonymous false
password_file {passwords}
cafile {tls.authorities}
certfile {tls.certificate}
keyfile {tls.key}
require_certificate true
"""

    async def scenario(place: str) -> None:
        def make(password: str) -> Mqtt:
            url = f"mqtts://{place}"
            return Mqtt(url, username="hub", password=password, tls=tls, backoff=soon())

        async with (
            Node("a", transports=[make("secret")]) as here,
            Node("b", transports=[make("secret")]) as there,
            Node("c", transports=[make("guess")]) as stranger,
        ):
            echo(there)
            door = await there.listen("mqtt://+")
            answer = await here.request(f"{door.address} => echo", b"x", timeout=DEADLINE)
            assert answer.payload == b"x"
            with pytest.raises(OSError, match="refused"):
                await stranger.listen("mqtt://+")

    with mosquitto(more) as running:
        run_checked(partial(scenario, running.place))


# joynr's own codec in another language


@pytest.fixture
def peer(place: str) -> Iterator[JoynrPeer]:
    with joynr_peer(place, TOPIC) as running:
        yield running


async def told(peer: JoynrPeer, kind: str) -> Any:
    return await asyncio.to_thread(peer.told, kind)


@pytest.mark.ci
def test_a_joynr_node_answers_our_request(place: str, peer: JoynrPeer) -> None:
    async def scenario() -> None:
        async with hub(place, "hub-a", format="joynr") as (node, _, _):
            answers = collect(node, "proxy")
            onward = Route((node._links.parse(f"mqtt://{TOPIC}"), Address(0, b"radio")))
            request = Request(method_name="getVolume", request_reply_id="r-7")
            question = Message(
                onward,
                Route.parse("proxy"),
                encode_payload(request),
                node.new_id(),
                node.expiry_in(60),
            )
            await node.route(question)
            there = await told(peer, "received")
            assert there["topic"] == f"{TOPIC}/low"
            assert (there["recipient"], there["sender"]) == ("radio", "proxy")
            assert (there["headers"]["t"], there["headers"]["c-z4"]) == ("rq", "r-7")
            assert json.loads(there["headers"]["re"])["topic"] == "hubs/hub-a"
            assert there["headers"]["id"] == question.id
            assert there["qos"] == 1
            assert 0 < there["expiry"] <= 60
            await until(lambda: answers)
            reply = decode_payload(answers[0].payload)
            assert reply.response == ("getVolume",)  # type: ignore[union-attr]
            assert answers[0].return_route.addresses[-1] == Address(0, b"radio")

    run_checked(scenario)


def test_we_answer_the_request_of_a_joynr_node(place: str, peer: JoynrPeer) -> None:
    async def scenario() -> None:
        async with hub(place, "hub-a", format="joynr") as (node, _, _):
            received = collect(node, "radio")
            address = {"_typeName": "joynr.system.RoutingTypes.MqttAddress"}
            address |= {"brokerUri": "joynrdefaultgbid", "topic": TOPIC}
            headers = {"t": "rq", "id": "js-1", "c-z4": "r-9", "re": json.dumps(address)}
            body = {"_typeName": "joynr.Request", "methodName": "ping", "requestReplyId": "r-9"}
            await asyncio.to_thread(peer.publish, "hubs/hub-a/low", "radio", headers, body)
            await until(lambda: received)
            question = received[0]
            assert json.loads(question.payload) == body
            assert question.return_route.addresses[-1] == Address(0, b"js-provider")
            assert question.expiry < NEVER
            reply = b'{"_typeName":"joynr.Reply","requestReplyId":"r-9","response":["pong"]}'
            own = Address(0, b"radio")
            await node.route(question.reply_from(own, reply, id=node.new_id()))
            there = await told(peer, "received")
            assert (there["recipient"], there["sender"]) == ("js-provider", "radio")
            assert (there["headers"]["t"], there["headers"]["c-z4"]) == ("rp", "r-9")
            assert json.loads(there["body"])["response"] == ["pong"]

    run_checked(scenario)


@pytest.mark.rule("MC-12")
def test_broadcasts_go_both_ways_between_us_and_a_joynr_node(place: str, peer: JoynrPeer) -> None:
    async def scenario() -> None:
        mqtt = Mqtt(f"mqtt://{place}", format="joynr", backoff=soon())
        heard: list[tuple[str, Message]] = []
        mqtt.attach(lambda found, message: heard.append((found, message)))
        await mqtt.start()
        mqtt.subscribe("js-provider/location/eu/+/*")
        await until(partial(is_ready, mqtt.client))
        id = "js-provider/location/eu/de"
        body = {"_typeName": "joynr.MulticastPublication", "multicastId": id, "response": [1]}
        await asyncio.to_thread(peer.publish, id, id, {"t": "m", "id": "js-2"}, body)
        await until(lambda: heard)
        assert heard[0][0] == id
        assert json.loads(heard[0][1].payload) == body

        await asyncio.to_thread(peer.subscribe, "garage/temperature/#")
        own = "garage/temperature/eu"
        payload = encode_payload(MulticastPublication(multicast_id=own, response=(21.5,)))
        assert mqtt.publish(own, Message(Route(), Route(), payload, "4bf9" * 8)) is None
        there = await told(peer, "received")
        assert (there["topic"], there["recipient"], there["sender"]) == (own, own, "garage")
        assert there["headers"] == {"t": "m", "id": "4bf9" * 8}
        assert json.loads(there["body"])["response"] == [21.5]
        await mqtt.close()

    run_checked(scenario)
