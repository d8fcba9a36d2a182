"""The MQTT client: what it does with brokers that are slow, silent, wrong, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from mqtt5 import (
    ConnAckPacket,
    ConnAckReasonCode,
    ConnectPacket,
    DisconnectPacket,
    DisconnectReasonCode,
    PingReqPacket,
    PubAckPacket,
    PubAckReasonCode,
    PublishPacket,
    QoS,
    SubAckPacket,
    SubAckReasonCode,
    SubscribePacket,
    UnsubscribePacket,
)

from tests.transports.mqtt_live import soon
from waystation.core.outcome import Reason
from waystation.mqtt.client import BrokerAt, Credentials, MqttClient, MqttLimits
from waystation.mqtt.packets import PING, PONG, PacketReader, packet_size
from waystation.net.place import place_of
from waystation.testing import DEADLINE, async_test, until


class Owner:
    """Whoever uses a client: keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.packets: list[PublishPacket] = []
        self.codes: list[int] = []
        self.relaxed = 0

    def connected(self) -> None:
        """Nobody needs it."""

    def disconnected(self, detail: str) -> None:
        self.events.append(detail)

    def settle(self) -> None: ...

    def make_will(self) -> None: ...

    def uncrowded(self) -> None:
        self.relaxed += 1

    def received(self, packets: Sequence[PublishPacket]) -> None:
        self.packets += packets

    def acknowledged(self, code: PubAckReasonCode) -> None:
        self.codes.append(int(code))


class Talk:
    """The broker's side of one connection, whose packets the test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._packets = PacketReader()
        self._found: list[Any] = []

    async def hear(self, kind: type | None = None) -> Any:
        """The next packet, or the next of a kind."""
        while True:
            while not self._found:
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self._found += self._packets.feed(data)
            packet = self._found.pop(0)
            if kind is None or type(packet) is kind:
                return packet

    def say(self, *packets: Any) -> None:
        for packet in packets:
            self._writer.write(packet if isinstance(packet, bytes) else packet.write())

    async def let_in(self, **options: Any) -> ConnectPacket:
        packet = await self.hear(ConnectPacket)
        assert isinstance(packet, ConnectPacket)
        self.say(ConnAckPacket(**options))
        return packet

    def end(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def broker(handle: Callable[[Talk], Awaitable[None]]) -> AsyncIterator[str]:
    """A broker that does what a test says, for each connection anew."""
    tasks: list[asyncio.Task[None]] = []
    talks: list[Talk] = []

    async def serve(talk: Talk) -> None:
        with suppress(EOFError, ConnectionError):
            await handle(talk)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(Talk(reader, writer))
        tasks.append(asyncio.ensure_future(serve(talks[-1])))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield place_of(server.sockets[0].getsockname())
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for talk in talks:
            talk.end()
        await asyncio.sleep(0)
        errors = [e for e in done if isinstance(e, Exception)]
        assert errors == []


@asynccontextmanager
async def client(place: str, **limits: Any) -> AsyncIterator[tuple[MqttClient, Owner]]:
    owner = Owner()
    made = MqttClient(
        BrokerAt.parse(f"mqtt://{place}"),
        owner,
        Credentials(client_id="c", username="u", password=b"p"),
        limits=MqttLimits(**limits),
        backoff=soon(),
    )
    made.start()
    try:
        yield made, owner
    finally:
        made.stop()
        await asyncio.sleep(0)


def publish(mqtt: MqttClient, topic: str, payload: bytes, qos: int, **options: Any) -> Any:
    assert mqtt.connection is not None
    return mqtt.connection.publish(topic, payload, qos, **options)


def is_crowded(mqtt: MqttClient) -> bool:
    assert mqtt.connection is not None
    return mqtt.connection.is_crowded


@async_test
async def test_who_we_are_is_said_first() -> None:
    heard: list[ConnectPacket] = []

    async def handle(talk: Talk) -> None:
        heard.append(await talk.let_in())
        await talk.hear()

    async with broker(handle) as place, client(place, keep_alive=7) as (mqtt, owner):
        await mqtt.ready()
        connect = heard[0]
        assert (connect.client_id, connect.username, connect.password) == ("c", "u", b"p")
        assert (connect.keep_alive, connect.clean_start) == (7, True)
        assert owner.events == []


@async_test
async def test_a_refusal_is_told_to_who_waits_and_tried_again() -> None:
    codes = [ConnAckReasonCode.NOT_AUTHORIZED, ConnAckReasonCode.SUCCESS]

    async def handle(talk: Talk) -> None:
        await talk.let_in(reason_code=codes.pop(0))
        await talk.hear()

    async with broker(handle) as place, client(place) as (mqtt, _):
        with pytest.raises(ConnectionError, match="not authorized"):
            await mqtt.ready()
        await until(lambda: mqtt.is_open)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not that of an MQTT 5 broker"),
        (b"\x20\x05\x00\x00\xff\xff\xff", "mqtt:"),
        (b"", "no answer within"),
        (PublishPacket("a", b"").write(), "not that of an MQTT 5 broker"),
        (b"\x20\x02\x00\x01", "mqtt:"),
    ],
    ids=["http", "malformed", "nothing", "a message", "a broker of MQTT 3"],
)
def test_what_is_no_broker_is_said_to_be_none(says: bytes, words: str) -> None:
    @async_test
    async def scenario() -> None:
        async def handle(talk: Talk) -> None:
            await talk.hear()
            talk.say(says)
            await talk.hear()

        async with broker(handle) as place, client(place, dial=0.5) as (mqtt, owner):
            with pytest.raises(ConnectionError, match=words):
                await mqtt.ready()
            assert owner.events == []
            assert owner.packets == []

    scenario()


@async_test
async def test_no_more_are_on_their_way_than_the_broker_allows() -> None:
    seen: list[PublishPacket] = []
    go_on = asyncio.Event()

    async def handle(talk: Talk) -> None:
        await talk.let_in(receive_max=3)
        while True:
            packet = await talk.hear(PublishPacket)
            seen.append(packet)
            if len(seen) >= 3:
                await go_on.wait()
                for sent in seen[-3:]:
                    code = PubAckReasonCode.NO_MATCHING_SUBSCRIBERS
                    talk.say(PubAckPacket(sent.packet_id or 0, reason_code=code))
                go_on.clear()

    async with broker(handle) as place, client(place) as (mqtt, owner):
        await mqtt.ready()
        for number in range(9):
            assert publish(mqtt, "t", b"%d" % number, 1, on_ack=owner.acknowledged) is None
        await until(lambda: len(seen) == 3)
        assert owner.codes == []
        go_on.set()
        await until(lambda: len(owner.codes) >= 3)
        assert owner.codes[0] == 0x10
        assert len({packet.packet_id for packet in seen[:6]}) == len(seen[:6])
        assert [packet.payload for packet in seen] == [b"%d" % n for n in range(len(seen))]


@async_test
async def test_a_broker_that_does_not_confirm_makes_the_client_crowded() -> None:
    confirm = asyncio.Event()

    async def handle(talk: Talk) -> None:
        await talk.let_in(receive_max=1)
        while True:
            packet = await talk.hear(PublishPacket)
            await confirm.wait()
            talk.say(PubAckPacket(packet.packet_id))

    async with broker(handle) as place, client(place, unsent=10_000) as (mqtt, owner):
        await mqtt.ready()
        sent = 0
        while not is_crowded(mqtt):
            assert publish(mqtt, "t", bytes(1000), 1, on_ack=owner.acknowledged) is None
            sent += 1
            await asyncio.sleep(0)
        assert 10 <= sent <= 13
        confirm.set()
        await until(lambda: not is_crowded(mqtt))
        assert owner.relaxed == 1
        await mqtt.drained(DEADLINE)
        assert owner.codes == [0] * sent


@async_test
async def test_what_the_broker_does_not_take_is_refused_here() -> None:
    seen: list[PublishPacket] = []

    async def handle(talk: Talk) -> None:
        await talk.let_in(max_packet_size=2000, max_qos=QoS.AT_MOST_ONCE)
        while True:
            seen.append(await talk.hear(PublishPacket))

    async with broker(handle) as place, client(place) as (mqtt, _):
        assert mqtt.connection is None
        await mqtt.ready()
        assert publish(mqtt, "t", bytes(2000), 1) is Reason.TOO_LARGE
        assert publish(mqtt, "t/#", b"", 1) is Reason.MALFORMED
        assert publish(mqtt, "t", b"x", 1) is None
        await until(lambda: seen)
        assert seen[0].qos is QoS.AT_MOST_ONCE  # as it said


@async_test
async def test_the_broker_says_goodbye_and_the_client_comes_back() -> None:
    talks = 0

    async def handle(talk: Talk) -> None:
        nonlocal talks
        talks += 1
        await talk.let_in()
        if talks == 1:
            code = DisconnectReasonCode.SERVER_SHUTTING_DOWN
            talk.say(DisconnectPacket(reason_code=code))
        await talk.hear()

    async with broker(handle) as place, client(place) as (mqtt, owner):
        await until(lambda: mqtt.connections == 2)
        assert owner.events == ["the broker disconnected us: server shutting down"]


@async_test
async def test_a_silent_broker_is_asked_and_then_given_up() -> None:
    pings = 0

    async def handle(talk: Talk) -> None:
        nonlocal pings
        await talk.let_in()
        while True:
            await talk.hear(PingReqPacket)
            pings += 1

    async with broker(handle) as place, client(place, keep_alive=1) as (_, owner):
        await until(lambda: owner.events)
        assert "said nothing" in owner.events[0]
        assert pings >= 1


@async_test
async def test_a_quiet_connection_is_kept_by_pings() -> None:
    pings = 0

    async def handle(talk: Talk) -> None:
        nonlocal pings
        await talk.let_in(server_keep_alive=1)
        while True:
            await talk.hear(PingReqPacket)
            pings += 1
            talk.say(PONG)

    async with broker(handle) as place, client(place, keep_alive=600) as (_, owner):
        await until(lambda: pings >= 2)
        assert owner.events == []


@async_test
async def test_filters_that_are_refused_are_told_and_the_others_hold() -> None:
    seen: list[str] = []

    async def handle(talk: Talk) -> None:
        await talk.let_in()
        while True:
            packet = await talk.hear()
            if isinstance(packet, SubscribePacket):
                names = [asked.pattern for asked in packet.topic_filters]
                seen.extend(names)
                codes = [
                    SubAckReasonCode.NOT_AUTHORIZED
                    if name == "secret"
                    else SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE
                    for name in names
                ]
                talk.say(SubAckPacket(packet.packet_id, codes))
            elif isinstance(packet, UnsubscribePacket):
                seen.extend(f"-{name}" for name in packet.patterns)

    async with broker(handle) as place, client(place) as (mqtt, _):
        mqtt.subscribe("a", 1)
        mqtt.subscribe("secret", 1)
        answers = await asyncio.gather(*map(mqtt.subscriptions.answer, ("a", "secret", "a")))
        assert list(map(int, answers)) == [1, 0x87, 1]
        mqtt.subscribe("a", 1)
        assert await mqtt.subscriptions.answer("a") is answers[0]
        mqtt.unsubscribe("a")
        mqtt.unsubscribe("a")
        await until(lambda: "-a" in seen)
        assert seen == ["a", "secret", "-a"]


@async_test
async def test_stopping_twice_and_starting_again_is_no_matter() -> None:
    async def handle(talk: Talk) -> None:
        await talk.let_in()
        packet = await talk.hear(DisconnectPacket)
        assert packet.reason_code is DisconnectReasonCode.NORMAL_DISCONNECTION

    async with broker(handle) as place, client(place) as (mqtt, owner):
        for _ in range(3):
            await mqtt.ready()
            mqtt.stop()
            mqtt.stop()
            assert not mqtt.is_open
            mqtt.start()
        await mqtt.ready()
        assert mqtt.connections == 4
        assert owner.events == ["the client was stopped"] * 3


# Brokers that are hostile, and ends at any time


STAGES: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "half a CONNACK": (ConnAckPacket().write()[:2],),
    "let in": (ConnAckPacket(),),
    "half a packet": (ConnAckPacket(), PublishPacket("a", bytes(100)).write()[:50]),
    "garbage": (ConnAckPacket(), b"\x00\x00"),
    "let in twice": (ConnAckPacket(), ConnAckPacket()),
    "a packet for brokers": (ConnAckPacket(), PingReqPacket()),
    "an answer to nothing": (ConnAckPacket(), PubAckPacket(9), SubAckPacket(9, [])),
    "refused": (ConnAckPacket(reason_code=ConnAckReasonCode.BANNED),),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_comes_back_whenever_the_broker_ends_it(stage: str) -> None:
    @async_test
    async def scenario() -> None:
        talks = 0

        async def handle(talk: Talk) -> None:
            nonlocal talks
            talks += 1
            await talk.hear(ConnectPacket)
            if talks > 2:
                talk.say(ConnAckPacket())
                await talk.hear()
            talk.say(*STAGES[stage])
            await asyncio.sleep(0.01)
            talk.end()

        async with broker(handle) as place, client(place) as (mqtt, owner):
            await until(lambda: talks == 3 and mqtt.is_open)
            assert len(owner.events) == mqtt.connections - 1

    scenario()


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_stops_at_any_time(stage: str) -> None:
    @async_test
    async def scenario() -> None:
        said = asyncio.Event()

        async def handle(talk: Talk) -> None:
            await talk.hear(ConnectPacket)
            talk.say(*STAGES[stage])
            said.set()
            await talk.hear(DisconnectPacket)

        async with broker(handle) as place, client(place) as (mqtt, owner):
            await said.wait()
            mqtt.stop()
            mqtt.stop()
            assert not mqtt.is_open
            ended = len(owner.events)
            await asyncio.sleep(0.05)
            assert len(owner.events) == ended == mqtt.connections

    scenario()


@async_test
async def test_half_a_packet_is_no_sign_of_life() -> None:
    async def handle(talk: Talk) -> None:
        await talk.let_in()
        talk.say(PublishPacket("a", bytes(100)).write()[:50])
        while True:
            await talk.hear(PingReqPacket)

    async with broker(handle) as place, client(place, keep_alive=1) as (_, owner):
        await until(lambda: owner.events)
        assert "said nothing" in owner.events[0]
        assert owner.packets == []


@async_test
async def test_a_message_that_nobody_confirms_is_told_when_it_has_left() -> None:
    seen: list[PublishPacket] = []

    async def handle(talk: Talk) -> None:
        await talk.let_in()
        while True:
            seen.append(await talk.hear(PublishPacket))

    async with broker(handle) as place, client(place) as (mqtt, owner):
        await mqtt.ready()
        for qos in (0, 1, 0):
            assert publish(mqtt, "t", b"x", qos, on_ack=owner.acknowledged) is None
        assert owner.codes == []
        await until(lambda: len(seen) == 3)
        assert owner.codes == [0, 0]  # and nobody has confirmed the other one


@async_test
async def test_a_broker_that_does_not_read_makes_the_client_crowded_and_loses_nothing() -> None:
    read_on = asyncio.Event()
    seen = 0

    async def handle(talk: Talk) -> None:
        nonlocal seen
        await talk.let_in()
        await read_on.wait()
        while True:
            await talk.hear(PublishPacket)
            seen += 1

    async with broker(handle) as place, client(place, unsent=65_536) as (mqtt, owner):
        await mqtt.ready()
        sent = 0
        quiet = 0
        while quiet < 20:  # turns of the loop in which nothing more can be sent
            quiet += 1
            while not is_crowded(mqtt):
                assert publish(mqtt, "t", bytes(10_000), 0, on_ack=owner.acknowledged) is None
                sent += 1
                quiet = 0
            await asyncio.sleep(0.002)
        assert len(owner.codes) < sent
        read_on.set()
        await until(lambda: seen == sent == len(owner.codes))


# The packets of a stream


def test_packets_come_out_as_they_are_completed() -> None:
    stream = PublishPacket("a", bytes(300)).write() + PING + PublishPacket("b", b"x").write()
    for step in (1, 2, 7, 1000):
        reader = PacketReader()
        found: list[Any] = []
        for start in range(0, len(stream), step):
            found += reader.feed(stream[start : start + step])
        assert [type(packet) for packet in found] == [PublishPacket, PingReqPacket, PublishPacket]
        assert not reader.unfinished
        assert reader.error is None


def test_what_is_wrong_costs_nothing_that_came_before() -> None:
    reader = PacketReader()
    assert len(reader.feed(PING + PONG + b"\x00\x00" + PING)) == 2
    assert reader.error is not None
    assert reader.feed(PING) == []


def test_a_packet_over_the_limit_is_refused_by_its_head() -> None:
    reader = PacketReader(limit=100)
    assert reader.feed(b"\x30\xff\xff\x01") == []
    assert reader.error is not None
    assert reader.error.too_large
    reader = PacketReader(limit=100)
    assert reader.feed(PublishPacket("a", bytes(200)).write()) == []
    assert reader.error is not None
    assert packet_size(b"\x30") == 0
