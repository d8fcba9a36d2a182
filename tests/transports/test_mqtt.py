"""MQTT: links and broadcasts over a broker, and what happens when it goes (WK-10, MC-12)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from mqtt5 import PublishPacket

from tests.node.live import LOOPS
from tests.transports.certificates import authority
from tests.transports.mqtt_live import QUIET, broker_here, hub, proxied, soon, ways
from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.errors import LocalError, UnreachableError
from waystation.mqtt.broker import Broker, Passwords, password_line
from waystation.mqtt.client import BrokerAt, Credentials, MqttClient, MqttLimits
from waystation.node import FAIL, Context, Node, Session, Wait
from waystation.testing import (
    DEADLINE,
    Gate,
    Recorder,
    async_test,
    check_transport,
    collect,
    conformance,
    echo,
    run_checked,
    until,
)
from waystation.transports.mqtt import Mqtt
from waystation.transports.mqtt.ockam import Kind, OckamLink, write_label
from waystation.wire import smrf
from waystation.wire.joynr import MqttAddress, encode_address
from waystation.wire.joynr_frames import custom_headers, encode_multicast
from waystation.wire.ockam import decode_body, encode_frame

LIMITS = MqttLimits(frame=2 * 1024 * 1024, unsent=64 * 1024)
TOO_LARGE = 3 * 1024 * 1024
TOKEN = b"secret"
ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.rule("WK-10")
@pytest.mark.rule("WK-8")
@pytest.mark.parametrize(("loop", "qos"), [("asyncio", 1), ("uvloop", 0)], ids=str)
def test_mqtt_passes_the_kit(loop: str, qos: int) -> None:
    async def scenario() -> None:
        async with broker_here() as broker, proxied(broker.place) as proxy:
            made: list[Mqtt] = []

            def make() -> Mqtt:
                made.append(Mqtt(f"mqtt://{proxy.place}", qos=qos, limits=LIMITS, backoff=soon()))
                return made[-1]

            result = await check_transport(
                make, "mqtt://+", path=ways(proxy), too_large=TOO_LARGE, time_factor=1.8
            )
            assert result.passed == tuple(conformance.CHECKS)
            for mqtt in made:
                assert mqtt.links == {}
                assert not mqtt.in_use

    run_checked(scenario, LOOPS[loop], seconds=110)


@async_test
async def test_a_peer_is_named_by_its_topic_and_answers() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "hub-a") as (here, _, _),
        hub(broker.place, "hub-b") as (there, _, _),
    ):
        received = collect(there, "sink")
        answer = await here.request("mqtt#hubs/hub-b => echo", b"hello", timeout=DEADLINE)
        assert answer.payload == b"hello"
        assert (await here.send("mqtt#hubs/hub-b => sink", b"x")).outcome is Outcome.FORWARDED
        await until(lambda: received)
        (session,) = there.sessions
        assert received[0].return_route.addresses[0] == session.address
        assert session.place.data == b"hubs/hub-a"
        assert session.peer == "hub-a"


@async_test
async def test_tls_and_a_password_open_the_broker() -> None:
    tls = authority().tls("127.0.0.1", mutual=True)
    users = Passwords.parse(password_line("hub", "secret", iterations=10))
    async with broker_here(tls=tls, authenticate=users.allows) as broker:
        url = f"mqtts://{broker.place}"

        def make(password: str) -> Mqtt:
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
            with pytest.raises(OSError, match="password"):
                await stranger.listen("mqtt://+")


@async_test
async def test_a_token_is_proven_over_a_broker_as_anywhere() -> None:
    async with broker_here() as broker:
        mine, yours, other = (speaker(broker.place) for _ in range(3))
        async with (
            Node("a", transports=[mine], token=TOKEN) as here,
            Node("b", transports=[yours], token=TOKEN) as there,
            Node("c", transports=[other], token=TOKEN[1:]) as stranger,
        ):
            echo(there)
            door = await there.listen("mqtt://+")
            answer = await here.request(f"{door.address} => echo", b"x", timeout=DEADLINE)
            assert answer.payload == b"x"
            with pytest.raises(UnreachableError):
                await stranger.connect(door.url, wait=1)
            await until(lambda: len(there.sessions) == 1)


@async_test
async def test_nobody_listens_is_known_at_once() -> None:
    async with broker_here() as broker, hub(broker.place, "hub-a") as (here, _, _):
        with pytest.raises(UnreachableError, match="no subscriber"):
            await here.connect("mqtt://hubs/nobody", wait=0.5)
        verdict = await here.send("mqtt#hubs/nobody => x", b"", policy=FAIL)
        assert verdict.reason is Reason.TRANSPORT_DOWN


@async_test
async def test_a_dead_hub_is_announced_by_its_last_will() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "hub-a") as (here, _, journal),
        proxied(broker.place) as proxy,
        hub(proxy.place, "hub-b") as (there, _, _),
    ):
        await here.request("mqtt#hubs/hub-b => echo", b"x", timeout=DEADLINE)
        assert len(here.sessions) == len(there.sessions) == 1
        proxy.refuse(refuse=True)
        proxy.cut()  # neither node sends heartbeats: only the broker can tell
        await until(lambda: not here.sessions)
        assert journal.sessions[-1].reason is Reason.TRANSPORT_DOWN
        assert "lost the peer" in journal.sessions[-1].detail
        proxy.refuse(refuse=False)
        await until(lambda: broker.connected() == 2)
        patient = Wait(persist=True)  # it is connected, but may not listen yet
        again = here.request("mqtt#hubs/hub-b => echo", b"y", timeout=DEADLINE, policy=patient)
        assert (await again).payload == b"y"


@async_test
async def test_the_will_of_an_earlier_life_ends_no_later_link() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "hub-a") as (here, mine, _),
        hub(broker.place, "hub-b"),
    ):
        await here.request("mqtt#hubs/hub-b => echo", b"x", timeout=DEADLINE)
        packet = PublishPacket("hubs/hub-b/gone", b"another")
        mine.received([packet])
        assert len(here.sessions) == 1
        link = next(iter(mine.links.values()))
        assert isinstance(link, OckamLink)
        mine.received([PublishPacket("hubs/hub-b/gone", link.incarnation)])
        await until(lambda: not here.sessions)


@async_test
async def test_a_broker_that_is_killed_and_started_again_under_traffic() -> None:
    async with (
        proxied_broker() as (place, restart),
        hub(place, "hub-a") as (here, _, journal),
        hub(place, "hub-b") as (there, _, _),
    ):
        received = collect(there, "sink")
        session = await here.connect("mqtt://hubs/hub-b", name="b", wait=DEADLINE)
        sent = 0
        for turn in range(3):
            for _ in range(200):
                await here.send("b => sink", b"%d" % sent)
                sent += 1
            await restart()
            await until(partial(opened, session, turn + 2))
        await here.send("b => sink", b"last")
        await until(lambda: received[-1:] and received[-1].payload == b"last")
        numbers = [int(m.payload) for m in received[:-1]]
        assert numbers == sorted(set(numbers)), "a message came twice, or out of order"
        await until(lambda: len(journal.messages) == sent + 1)
        journal.check_outcomes()
        lost = [payload for payload, word in journal.outcomes() if word == "TRANSPORT_DOWN"]
        told = [payload for payload, word in journal.outcomes() if word == "FORWARDED"]
        assert len(lost) + len(told) == sent + 1


def opened(session: Session, times: int) -> bool:
    return session.openings >= times


def proxied_broker() -> Any:
    """A broker at a place that stays, with a function that kills it and starts another."""

    @asynccontextmanager
    async def running() -> Any:
        broker = Broker()
        await broker.start("127.0.0.1:0")
        place = broker.place

        async with proxied(place) as proxy:

            async def restart() -> None:
                nonlocal broker
                proxy.refuse(refuse=True)
                proxy.cut()
                await broker.drain()
                broker = Broker()
                await broker.start(place)
                proxy.refuse(refuse=False)

            yield proxy.place, restart
        await broker.drain()

    return running()


@async_test
async def test_two_with_one_client_id_do_not_silence_each_other_for_good() -> None:
    async with broker_here() as broker:
        async with hub(broker.place, "hub-a", client_id="same") as (_, first, _):
            async with hub(broker.place, "hub-b", client_id="same") as (_, second, _):
                await until(lambda: first.client.connections > 1 or second.client.connections > 1)
            await until(lambda: first.client.is_open)
            async with hub(broker.place, "hub-c") as (other, _, _):
                answer = await other.request("mqtt#hubs/hub-a => echo", b"x", timeout=DEADLINE)
                assert answer.payload == b"x"
        assert broker.counts.disconnected["session_taken_over"] > 0


@async_test
async def test_a_peer_of_another_make_sends_a_frame_and_gets_an_answer() -> None:
    async with broker_here() as broker, hub(broker.place, "hub-a") as (here, mine, _):
        answers: list[PublishPacket] = []
        async with raw_client(broker.place, answers) as client:
            client.subscribe("devices/7", 1)
            await until(lambda: client.subscriptions.is_settled)
            message = Message(Route.parse("echo"), Route.parse("app"), b"hi", ID)
            frame = encode_frame(message)
            client.connection.publish("hubs/hub-a", b"\0\0\0\1x", 1, response_topic="devices/7")
            client.connection.publish("hubs/hub-a", frame, 1)  # nobody could answer that
            client.connection.publish("hubs/hub-a", frame, 1, response_topic="devices/7")
            await until(lambda: answers)
            answer = decode_body(answers[0].payload[4:])
            assert (str(answer.onward_route), answer.payload) == ("0#app", b"hi")
            assert here.sessions[0].place.data == b"devices/7"
            assert mine.counts["malformed"] == 2


@async_test
async def test_silence_ends_a_link_to_a_peer_of_another_make() -> None:
    limits = MqttLimits(idle=0.05)
    async with broker_here() as broker, hub(broker.place, "hub-a", limits=QUIET) as (here, mine, _):
        mine.limits = limits
        async with raw_client(broker.place, []) as client:
            received = collect(here, "sink")
            message = Message(Route.parse("sink"), Route.parse("app"), b"hi", ID)
            client.connection.publish(
                "hubs/hub-a", encode_frame(message), 0, response_topic="devices/7"
            )
            await until(lambda: received)
            await until(lambda: not here.sessions)


@async_test
async def test_what_is_for_no_link_here_is_told_to_its_sender() -> None:
    async with broker_here() as broker, hub(broker.place, "hub-a") as (here, mine, _):
        answers: list[PublishPacket] = []
        async with raw_client(broker.place, answers) as client:
            client.subscribe("devices/7", 1)
            await until(lambda: client.subscriptions.is_settled)
            label = write_label(Kind.MESSAGE, b"12345678", 1)
            client.connection.publish(
                "hubs/hub-a", b"", 1, response_topic="devices/7", correlation=label
            )
            await until(lambda: answers)
            assert answers[0].correlation_data == write_label(Kind.UNKNOWN, b"12345678")
            assert here.sessions == []
            assert mine.counts["unknown"] == 1


@pytest.mark.parametrize(
    ("last", "reason"),
    [(Kind.CLOSE, None), (Kind.MESSAGE, Reason.MALFORMED)],
    ids=["an orderly end", "half a frame"],
)
def test_what_came_before_the_end_of_a_link_waits_for_a_slow_worker(
    last: Kind, reason: Reason | None
) -> None:
    tag = b"12345678"

    async def scenario() -> None:
        async with (
            broker_here() as broker,
            hub(broker.place, "hub-a") as (here, mine, journal),
            raw_client(broker.place, []) as client,
        ):
            gate = Gate(here, "slow", inbox=1)

            def say(kind: Kind, payload: bytes, number: int = 0) -> None:
                label = write_label(kind, tag, number)
                options = {"response_topic": "devices/7", "correlation": label}
                client.connection.publish("hubs/hub-a", payload, 1, **options)

            client.subscribe("devices/7", 1)
            await until(lambda: client.subscriptions.is_settled)
            say(Kind.OPEN, b"raw")
            for number in range(1, 21):
                message = Message(Route.parse("slow"), Route.parse("app"), b"%d" % number, ID)
                say(Kind.MESSAGE, encode_frame(message), number)
                if number == 10:
                    await until(lambda: here.sessions and here.sessions[0].is_stalled)
            say(last, b"\0\0\0\5x" if last is Kind.MESSAGE else b"", 21)
            await until(lambda: not any(link.is_receiving for link in mine.links.values()))
            gate.free.set()
            await until(lambda: len(gate.got) == 20 and not here.sessions)
            assert gate.got == [b"%d" % number for number in range(1, 21)]
            assert journal.sessions[-1].reason is reason
            assert mine.links == {}

    run_checked(scenario)


@async_test
async def test_a_message_carries_its_expiry_to_the_broker() -> None:
    async with broker_here() as broker, hub(broker.place, "hub-a") as (here, _, _):
        seen: list[PublishPacket] = []
        async with raw_client(broker.place, seen) as client, hub(broker.place, "hub-b"):
            client.subscribe("hubs/hub-b", 0)
            await until(lambda: client.subscriptions.is_settled)
            await here.send("mqtt#hubs/hub-b => echo", b"short", ttl=50)
            await here.send("mqtt#hubs/hub-b => echo", b"never")
            await until(lambda: sum(b"never" in packet.payload for packet in seen))
            short = next(packet for packet in seen if b"short" in packet.payload)
            never = next(packet for packet in seen if b"never" in packet.payload)
            assert short.message_expiry_interval is not None
            assert 0 < short.message_expiry_interval <= 50
            assert short.response_topic == "hubs/hub-a"
            assert never.message_expiry_interval is None


@async_test
async def test_an_address_may_say_with_which_certainty_a_message_goes() -> None:
    async with broker_here() as broker, hub(broker.place, "hub-a") as (here, _, _):
        seen: list[PublishPacket] = []
        async with (
            raw_client(broker.place, seen) as client,
            hub(broker.place, "hub-b") as (there, _, _),
        ):
            received = collect(there, "sink")
            client.subscribe("hubs/hub-b", 1)
            await until(lambda: client.subscriptions.is_settled)
            for round in range(3):
                for qos in (0, 1):
                    payload = f"{round} with {qos}".encode()
                    verdict = await here.send(f"mqtt#hubs/hub-b?qos={qos} => sink", payload)
                    assert verdict.outcome is Outcome.FORWARDED
            assert (await here.send("mqtt#hubs/hub-b => sink", b"as usual")).reason is None
            await until(lambda: len(received) == 7 and sum(b"usual" in p.payload for p in seen))
            told = {
                payload: int(packet.qos)
                for packet in seen
                for payload in [message.payload for message in received]
                if payload in packet.payload
            }
            assert told.pop(b"as usual") == 1
            assert told == {f"{n} with {q}".encode(): q for n in range(3) for q in (0, 1)}


# Broadcasts


class Ear:
    """What a broadcaster brought."""

    def __init__(self, mqtt: Mqtt) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.messages: list[Message] = []
        mqtt.attach(self.hear)

    def hear(self, id: str, message: Message) -> None:
        self.heard.append((id, message.payload))
        self.messages.append(message)


def speaker(place: str, **options: Any) -> Mqtt:
    return Mqtt(f"mqtt://{place}", backoff=soon(), **options)


async def ready(*broadcasters: Mqtt) -> None:
    """Wait until they are connected, and everything they want is subscribed."""
    for mqtt in broadcasters:
        await until(partial(is_ready, mqtt.client))


def is_ready(client: MqttClient) -> bool:
    return client.is_open and client.subscriptions.is_settled


def connected_again(client: MqttClient, before: int) -> bool:
    return client.connections > before


def cast(payload: bytes, number: int = 1, **options: Any) -> Message:
    return Message(Route(), Route.parse("provider"), payload, f"{number:032x}", **options)


@pytest.mark.rule("MC-12")
@pytest.mark.parametrize("format", ["ockam", "joynr"])
@pytest.mark.parametrize("prefix", ["", "fleet/"])
def test_a_broadcast_reaches_who_subscribed(format: Any, prefix: str) -> None:
    async def scenario() -> None:
        async with broker_here() as broker:
            options: dict[str, Any] = {"format": format, "prefix": prefix}
            left, right = speaker(broker.place, **options), speaker(broker.place, **options)
            ear, own = Ear(right), Ear(left)
            await left.start()
            await right.start()
            right.subscribe("garage/temperature/eu/+/*")
            left.subscribe("garage/temperature/*")
            await ready(left, right)
            body = b'{"_typeName":"joynr.MulticastPublication"}'
            message = cast(body, expiry=4_000_000_000_000)
            assert left.publish("garage/temperature/eu/de/munich", message) is None
            assert left.publish("garage/temperature/us/tx", cast(b"no", 2)) is None
            assert left.publish("garage/temperature/eu/fr", cast(b"last", 3)) is None
            await until(lambda: len(ear.heard) == 2)
            assert ear.heard == [
                ("garage/temperature/eu/de/munich", body),
                ("garage/temperature/eu/fr", b"last"),
            ]
            first = ear.messages[0]
            assert (first.id, first.expiry) == (message.id, message.expiry)
            assert ear.messages[1].expiry == NEVER
            assert first.onward_route == Route()
            assert own.heard == [], "what a node publishes came back to it"
            right.unsubscribe("garage/temperature/eu/+/*")
            await until(lambda: right.client.subscriptions.is_settled)
            await left.close()
            await right.close()
            await until(lambda: broker.connected() == 0)

    run_checked(scenario)


@pytest.mark.rule("MC-12")
@pytest.mark.parametrize("format", ["ockam", "joynr"])
def test_nodes_publish_and_subscribe_through_the_broker(format: Any) -> None:
    async def scenario() -> None:
        async with (
            broker_here() as broker,
            hub(broker.place, "hub-a", format=format) as (here, mine, _),
            hub(broker.place, "hub-b", format=format) as (there, yours, _),
        ):
            received: list[Message] = []
            own: list[Message] = []
            there.subscribe("hub-a", "temperature", "eu/+", callback=received.append)
            here.subscribe("hub-a", "temperature", "*", callback=own.append)
            await ready(mine, yours)
            await here.publish("temperature", b"21", partition="eu/de", ttl=60)
            await here.publish("temperature", b"35", partition="us/tx", ttl=60)
            await here.publish("temperature", b"22", partition="eu/fr")
            await until(lambda: len(received) == 2)
            assert [message.payload for message in received] == [b"21", b"22"]
            await until(lambda: len(own) == 3)
            assert received[0].id == own[0].id
            assert received[0].expiry == own[0].expiry

    run_checked(scenario)


@pytest.mark.rule("MC-12")
@async_test
async def test_everything_is_subscribed_again_after_a_reconnect() -> None:
    async with broker_here() as broker, proxied(broker.place) as proxy:
        left, right = speaker(broker.place), speaker(proxy.place)
        ear = Ear(right)
        await left.start()
        await right.start()
        patterns = [f"p{number}/b/+" for number in range(10_000)]
        for pattern in patterns:
            right.subscribe(pattern)
        await ready(left, right)
        for _ in range(2):
            before = right.client.connections
            proxy.cut()
            await until(partial(connected_again, right.client, before))
        right.unsubscribe("p1/b/+")
        await ready(right)
        for number in (0, 1, 4_999, 9_999):
            assert left.publish(f"p{number}/b/x", cast(b"%d" % number, number + 1)) is None
        await until(lambda: len(ear.heard) == 3)
        assert [payload for _, payload in ear.heard] == [b"0", b"4999", b"9999"]
        await left.close()
        await right.close()


@async_test
async def test_the_broker_keeps_broadcasts_while_a_node_is_away() -> None:
    async with broker_here() as broker, proxied(broker.place) as proxy:
        left = speaker(broker.place)
        right = speaker(proxy.place, client_id="right", away=60)
        ear = Ear(right)
        await left.start()
        await right.start()
        right.subscribe("p/+")
        await ready(left, right)
        proxy.refuse(refuse=True)
        proxy.cut()
        await until(lambda: broker.connected() == 1)
        for number in range(1, 6):
            assert left.publish("p/b", cast(b"%d" % number, number)) is None
        await until(lambda: broker.counts.received == 5)
        proxy.refuse(refuse=False)
        await until(lambda: len(ear.heard) == 5)
        assert [payload for _, payload in ear.heard] == [b"1", b"2", b"3", b"4", b"5"]
        await left.close()
        await right.close()


@pytest.mark.rule("MC-12")
@async_test
async def test_subscribing_and_unsubscribing_in_one_turn_leaves_what_was_asked_for_last() -> None:
    async with broker_here() as broker:
        left, right = speaker(broker.place), speaker(broker.place)
        ear = Ear(right)
        await left.start()
        await right.start()
        await ready(left, right)
        right.subscribe("p/b")
        right.unsubscribe("p/b")
        right.unsubscribe("p/b")
        right.subscribe("p/c")
        await ready(right)
        right.unsubscribe("p/c")
        right.subscribe("p/c")
        await ready(right)
        left.publish("p/b", cast(b"no", 1))
        left.publish("p/c", cast(b"yes", 2))
        await until(lambda: ear.heard)
        assert ear.heard == [("p/c", b"yes")]
        await left.close()
        await right.close()


@async_test
async def test_a_broadcast_that_cannot_go_says_why() -> None:
    async with broker_here(packet=200_000) as broker:
        limits = MqttLimits(frame=100_000, unsent=50_000)
        mqtt = speaker(broker.place, limits=limits)
        assert mqtt.publish("p/b", cast(b"")) is Reason.TRANSPORT_DOWN
        await mqtt.start()
        await ready(mqtt)
        assert mqtt.publish("p/b", cast(bytes(100_001))) is Reason.TOO_LARGE
        reasons = [mqtt.publish("p/b", cast(bytes(10_000), n)) for n in range(1, 20)]
        assert reasons[0] is None
        assert reasons[-1] is Reason.QUEUE_FULL
        await until(lambda: mqtt.publish("p/b", cast(b"")) is None)
        with pytest.raises(LocalError, match="wildcard"):
            mqtt.publish("p/+", cast(b""))
        await mqtt.close()
        assert broker.counts.received == reasons.count(None) + 1
        assert mqtt.publish("p/b", cast(b"")) is Reason.TRANSPORT_DOWN


@async_test
async def test_a_wildcard_for_the_provider_hears_no_messages_between_nodes() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "hub-a") as (here, _, _),
        hub(broker.place, "hub-b"),
    ):
        spy = speaker(broker.place)
        ear = Ear(spy)
        await spy.start()
        spy.subscribe("+/*")
        await ready(spy)
        answer = await here.request("mqtt#hubs/hub-b => echo", b"secret?", timeout=DEADLINE)
        assert answer.payload == b"secret?"
        await until(lambda: spy.counts["malformed"] > 1)
        other = speaker(broker.place)
        await other.start()
        await ready(other)
        other.publish("garage/t", cast(b"for all"))
        await until(lambda: ear.heard)
        assert ear.heard == [("garage/t", b"for all")]
        await spy.close()
        await other.close()


@pytest.mark.rule("FL-6")
@async_test
async def test_a_broadcast_that_comes_once_for_each_filter_is_heard_once() -> None:
    mqtt = Mqtt("mqtt://127.0.0.1:1")
    async with Node("node", transports=[mqtt]) as node:
        journal = Recorder(node)
        subscription = node.subscribe("p", "b")
        onward = Route((Address(0, b"p/b"),))
        frame = encode_frame(Message(onward, Route(), b"x", ID))
        mqtt.received([PublishPacket("p/b", frame), PublishPacket("p/b", frame)])
        assert (await anext(subscription)).payload == b"x"
        assert journal.counts() == {"DUPLICATE": 1, "DELIVERED": 1}


@pytest.mark.rule("FL-6")
@async_test
async def test_what_a_broker_delivers_twice_on_a_link_arrives_once() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "hub-a") as (here, mine, journal),
        hub(broker.place, "hub-b") as (_, yours, there),
    ):
        for mqtt in (mine, yours):
            mqtt.received = partial(_twice, mqtt.received)  # type: ignore[method-assign]
        for number in range(20):
            answer = await here.request("mqtt#hubs/hub-b => echo", b"%d" % number)
            assert answer.payload == b"%d" % number
        assert yours.counts["duplicates"] >= 20
        assert there.counts()["DELIVERED"] == 20
        assert journal.counts()["DELIVERED"] == 20
        assert journal.counts()["DUPLICATE"] == 0


def _twice(received: Any, packets: Any) -> None:
    received([packet for packet in packets for _ in range(2)])


# Mistakes


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("127.0.0.1:1883", {}, "invalid URL"),
        ("http://127.0.0.1", {}, "invalid URL"),
        ("mqtt://", {}, "invalid URL"),
        ("mqtt://127.0.0.1", {"topic": "hubs/+"}, "has no topic"),
        ("mqtt://127.0.0.1", {"qos": 2}, "qos=2"),
        ("mqtt://127.0.0.1", {"format": "xml"}, "format='xml'"),
    ],
)
def test_a_mistake_is_told_at_once(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(LocalError, match=words):
        Mqtt(url, **options)


def test_where_a_broker_is() -> None:
    assert BrokerAt.parse("mqtts://broker.example/") == BrokerAt("broker.example", 8883, True)
    assert BrokerAt.parse("mqtt://[::1]") == BrokerAt("::1", 1883, False)


@async_test
async def test_without_a_broker_listening_says_so() -> None:
    mqtt = Mqtt("mqtt://127.0.0.1:1", backoff=soon())
    async with Node("a", transports=[mqtt]) as node:
        with pytest.raises(OSError, match=r"127\.0\.0\.1:1"):
            await node.listen("mqtt://+")
        with pytest.raises(LocalError, match="topic"):
            await node.listen("mqtt://a/#")
        verdict = await node.send("mqtt#hubs/hub-b => x", b"", policy=FAIL)
        assert verdict.reason is Reason.TRANSPORT_DOWN


# joynr


def request(number: int) -> bytes:
    return b'{"_typeName":"joynr.Request","methodName":"ping","requestReplyId":"r%d"}' % number


@async_test
async def test_joynr_requests_find_their_way_and_so_do_the_replies() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "hub-a", format="joynr") as (here, _, _),
        hub(broker.place, "hub-b", format="joynr") as (there, _, _),
    ):
        answers, received = collect(here, "proxy"), collect(there, "radio")
        onward = Route((*here_route(here, "hubs/hub-b").addresses, Address(0, b"radio")))
        await here.route(Message(onward, Route.parse("proxy"), request(7), here.new_id(), NEVER))
        await until(lambda: received)
        question = received[0]
        assert question.payload == request(7)
        (session,) = there.sessions
        assert question.return_route == Route((session.address, Address(0, b"proxy")))
        reply = b'{"_typeName":"joynr.Reply","requestReplyId":"r7","response":[]}'
        own = Address(0, b"radio")
        await there.route(question.reply_from(own, reply, id=there.new_id(), expiry=NEVER))
        await until(lambda: answers)
        assert answers[0].payload == reply
        verdict = await here.send("mqtt#hubs/hub-b => radio", b"not joynr's")
        assert verdict.reason is Reason.MALFORMED


@async_test
async def test_joynr_is_told_of_best_effort() -> None:
    seen: list[PublishPacket] = []
    async with (
        broker_here() as broker,
        raw_client(broker.place, seen) as client,
        hub(broker.place, "hub-a", format="joynr", qos=0) as (here, _, _),
    ):
        collect(here, "proxy")
        client.subscribe("devices/7/#", 1)
        await until(lambda: client.subscriptions.is_settled)
        onward = Route((*here_route(here, "devices/7").addresses, Address(0, b"radio")))
        question = Message(onward, Route.parse("proxy"), request(7), here.new_id(), NEVER)
        assert (await here.route(question)).outcome is Outcome.FORWARDED
        await until(lambda: seen)
        assert int(seen[0].qos) == 0
        assert smrf.decode(seen[0].payload).headers["ef"] == "BEST_EFFORT"
        verdict = await here.send("mqtt#devices/7?qos=1 => radio", request(8), policy=FAIL)
        assert verdict.outcome is Outcome.DROPPED


@async_test
async def test_what_joynr_sends_waits_for_a_slow_worker() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "hub-a", format="joynr") as (here, _, _),
        hub(broker.place, "hub-b", format="joynr") as (there, _, journal),
    ):
        gate = Gate(there, "radio", inbox=1)
        collect(here, "hop", "proxy")
        onward = Route((*here_route(here, "hubs/hub-b").addresses, Address(0, b"radio")))
        for number in range(20):
            back = Route.parse("hop => proxy")
            await here.route(Message(onward, back, request(number), here.new_id(), NEVER))
        await until(lambda: there.sessions and there.sessions[0].is_stalled)
        gate.free.set()
        await until(lambda: len(gate.got) == 20)
        assert gate.got == [request(number) for number in range(20)]
        await until(lambda: len(journal.messages) == 20)
        arrived = journal.messages[0].arrival.message
        assert arrived.return_route.addresses[1:] == Route.parse("hop => proxy").addresses


@async_test
async def test_what_is_wrong_in_joynr_s_frames_is_counted_and_on_record() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "hub-a", format="joynr") as (_, mine, journal),
        raw_client(broker.place, []) as client,
    ):
        multicast = encode_multicast("p/b", cast(b"x")).data
        reply = smrf.encode(smrf.SmrfMessage("a", "b", headers={"t": "rp", "id": "1"}))
        relative = smrf.encode(
            smrf.SmrfMessage("a", "b", headers={"t": "o", "id": "1"}, ttl_absolute=False)
        )
        for frame in (b"", b"not SMRF", multicast, relative, reply):
            client.connection.publish("hubs/hub-a/low", frame, 1)
        await until(lambda: journal.messages)
        assert mine.counts["malformed"] == 4
        assert journal.messages[0].verdict.reason is Reason.NO_ROUTE  # there is no such recipient
        refused = [record for record in journal.sessions if record.reason is Reason.MALFORMED]
        assert len(refused) == 4


ONE_WAY = b'{"_typeName":"joynr.OneWayRequest","methodName":"knock"}'
PUBLICATION = b'{"_typeName":"joynr.SubscriptionPublication","subscriptionId":"s1","response":[]}'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("o", ONE_WAY),
        ("p", PUBLICATION),
        ("rp", b'{"_typeName":"joynr.Reply","requestReplyId":"r7","response":[]}'),
        ("srp", b'{"_typeName":"joynr.SubscriptionReply","subscriptionId":"s1"}'),
    ],
)
def test_what_says_nothing_of_its_sender_is_delivered_by_recipient(kind: str, body: bytes) -> None:
    async def scenario() -> None:
        async with (
            broker_here() as broker,
            hub(broker.place, "hub-a", format="joynr") as (node, mine, _),
            raw_client(broker.place, []) as client,
        ):
            got = collect(node, "radio")
            headers = {"t": kind, "id": "1", "c-z4": "r7", "c-tenant": "7"}
            frame = smrf.SmrfMessage("radio", "unheard-of", headers=headers, body=body)
            client.connection.publish("hubs/hub-a/low", smrf.encode(frame), 1)
            client.connection.publish("hubs/hub-a/low/deeper", smrf.encode(frame), 1)
            await until(lambda: len(got) == 2)
            assert got[0].payload == body
            assert dict(custom_headers(got[0])) == {"tenant": "7"}
            answer = got[0].reply_from(Address(0, b"radio"), ONE_WAY, id=node.new_id())
            assert (await node.route(answer)).reason is Reason.NO_ROUTE
            assert not mine.counts["unknown"]

    run_checked(scenario)


@async_test
async def test_what_a_provider_publishes_reaches_a_node_that_listens_to_nobody() -> None:
    async with (
        broker_here() as broker,
        raw_client(broker.place, []) as client,
    ):
        mqtt = Mqtt(f"mqtt://{broker.place}", topic="leaves/1", format="joynr", backoff=soon())
        headers = {"t": "p", "id": "1"}
        said = smrf.SmrfMessage("radio", "unheard-of", headers=headers, body=PUBLICATION)
        async with Node("leaf", transports=[mqtt]) as node:
            got = collect(node, "radio")
            session = await node.connect("mqtt://devices/7", wait=DEADLINE)
            for openings in (1, 2):  # which forgets who is behind the link
                await until(partial(opened, session, openings))
                client.connection.publish("leaves/1/low", smrf.encode(said), 1)
                await until(partial(has, got, openings))
                answer = got[-1].reply_from(Address(0, b"radio"), ONE_WAY, id=node.new_id())
                assert (await node.route(answer)).reason is Reason.NO_ROUTE
                session.abort_link()
            assert not mqtt.counts["unknown"]


@async_test
async def test_a_reply_over_mqtt_has_the_headers_and_the_expiry_of_its_request() -> None:
    seen: list[PublishPacket] = []

    async def radio(message: Message, context: Context) -> None:
        del message
        await context.reply(b'{"_typeName":"joynr.Reply","requestReplyId":"r7","response":[]}')

    async with (
        broker_here() as broker,
        raw_client(broker.place, seen) as client,
        hub(broker.place, "hub-a", format="joynr") as (node, _, _),
    ):
        node.start_worker(("radio",), radio)
        client.subscribe("devices/7/#", 1)
        await until(lambda: client.subscriptions.is_settled)
        ends = node.now() + 40_000
        back = encode_address(MqttAddress("joynrdefaultgbid", "devices/7"))
        headers = {"t": "rq", "id": "1", "re": back, "c-z4": "r7", "c-tenant": "7"}
        frame = smrf.SmrfMessage("radio", "proxy", ends, headers, request(7), is_compressed=True)
        client.connection.publish("hubs/hub-a/low", smrf.encode(frame), 1)
        await until(lambda: seen)
        reply = smrf.decode(seen[0].payload)
        assert (reply.recipient, reply.ttl, reply.is_compressed) == ("proxy", ends, True)
        assert reply.headers["c-tenant"] == "7"
        assert 0 < int(seen[0].message_expiry_interval or 0) <= 40
        assert ("c-tenant", "7") in seen[0].user_properties


def has(got: list[Message], count: int) -> bool:
    return len(got) == count


def here_route(node: Node, topic: str) -> Route:
    return Route((node._links.parse(f"mqtt://{topic}"),))


def raw_client(place: str, heard: list[PublishPacket]) -> Any:
    """A client that is no node."""

    class Owner:
        def connected(self) -> None: ...
        def disconnected(self, detail: str) -> None: ...
        def settle(self) -> None: ...
        def uncrowded(self) -> None: ...
        def make_will(self) -> None: ...
        def received(self, packets: Any) -> None:
            heard.extend(packets)

    @asynccontextmanager
    async def running() -> Any:
        broker = BrokerAt.parse(f"mqtt://{place}")
        client = MqttClient(broker, Owner(), Credentials(client_id="raw"))
        client.start()
        await client.ready()
        try:
            yield client
        finally:
            client.stop()
            await asyncio.sleep(0)

    return running()
