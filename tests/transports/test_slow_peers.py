"""Peers over a broker or HTTP that do not read: what they cost is bounded, and nobody waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from mqtt5 import ConnAckPacket, ConnectPacket, PubAckReasonCode, PublishPacket

from tests.node.live import RawPeer, runs_on_every_loop
from tests.transports.mqtt_live import broker_here, hub, soon
from tests.transports.test_http import FRAMES, Client, channel, door
from tests.transports.test_tcp import Notes, message
from waystation.core.address import Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord
from waystation.mqtt.client import MqttLimits, OnAck
from waystation.mqtt.packets import PacketReader, acknowledgement
from waystation.net.held import HeldBytes
from waystation.node import Node
from waystation.testing import DEADLINE, async_test, collect, until
from waystation.transports.http import HttpLimits
from waystation.transports.http.channel import Channel
from waystation.transports.link import CONTROL
from waystation.transports.mqtt import Mqtt
from waystation.transports.mqtt.ockam import PlainLink
from waystation.wire.ockam import encode_frame

KIB = 1024


class HalfBroker:
    """Lets one client in, acknowledges as many messages as it is told to, and ends."""

    def __init__(self, window: int, acknowledges: int) -> None:
        self.published: list[bytes] = []
        self._window = window
        self._left = acknowledges
        self.writer: asyncio.StreamWriter | None = None
        self.has_ended = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets = PacketReader()
        self.writer = writer
        self.has_ended = False
        try:
            while data := await reader.read(65536):
                self._answer(packets.feed(data), writer)
        except ConnectionError:
            pass
        writer.close()
        self.has_ended = True

    def _answer(self, packets: Sequence[Any], writer: asyncio.StreamWriter) -> None:
        for packet in packets:
            if isinstance(packet, ConnectPacket):
                writer.write(ConnAckPacket(receive_max=self._window).write())
            elif isinstance(packet, PublishPacket):
                self.published.append(packet.payload)
                if self._left and packet.packet_id:
                    self._left -= 1
                    writer.write(acknowledgement(packet.packet_id))


@asynccontextmanager
async def half_broker(window: int, acknowledges: int) -> AsyncIterator[tuple[HalfBroker, str]]:
    broker = HalfBroker(window, acknowledges)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    try:
        yield broker, f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        if broker.writer is not None:
            broker.writer.transport.abort()
        await until(lambda: broker.has_ended)


@pytest.mark.rule("OB-7")
@async_test
async def test_a_broadcast_is_forwarded_when_the_broker_has_acknowledged_it() -> None:
    async with half_broker(window=5, acknowledges=7) as (broker, url):
        mqtt = Mqtt(url, backoff=soon())
        async with Node("hub") as node:
            node.use(mqtt)
            told: list[MessageRecord] = []
            node.observe(lambda r: told.append(r) if isinstance(r, MessageRecord) else None)
            await mqtt.start()
            await until(lambda: mqtt.client.is_open)
            for number in range(100):
                await node.publish("news", b"%d" % number)
            await until(lambda: len(broker.published) == 12)  # 7, and a full window
            await until(lambda: len(outcomes(told)) == 7)
            assert set(outcomes(told)) == {Outcome.FORWARDED}
            assert broker.writer is not None
            broker.writer.transport.abort()
            await until(lambda: len(outcomes(told)) == 100)
            assert Counter(outcomes(told)) == {
                Outcome.FORWARDED: 7,
                Reason.TRANSPORT_DOWN: 93,
            }


def outcomes(told: list[MessageRecord]) -> list[Any]:
    """What became of the copies for the broker."""
    return [
        record.verdict.reason or record.verdict.outcome
        for record in told
        if record.verdict.reason is not Reason.NO_SUBSCRIBER
    ]


@pytest.mark.rule("OB-7")
@async_test
async def test_a_broadcast_of_qos_0_is_forwarded_when_it_has_left() -> None:
    async with half_broker(window=5, acknowledges=0) as (broker, url):
        mqtt = Mqtt(url, qos=0, backoff=soon())
        ends: list[Reason | None] = []
        mqtt.attach(lambda _, __: None)
        await mqtt.start()
        await until(lambda: mqtt.client.is_open)
        payload = message(b"x")
        assert mqtt.publish("a/news", payload, ends.append) is None
        assert ends == []
        await until(lambda: ends == [None])
        await until(lambda: broker.published)
        await mqtt.close()


@pytest.mark.rule("OB-7")
@async_test
async def test_what_the_broker_has_not_acknowledged_when_a_node_closes_is_dropped() -> None:
    limits = MqttLimits(linger=0.2)
    async with half_broker(window=5, acknowledges=0) as (broker, url):
        mqtt = Mqtt(url, limits=limits, backoff=soon())
        ends: list[Reason | None] = []
        await mqtt.start()
        await until(lambda: mqtt.client.is_open)
        for _ in range(10):
            assert mqtt.publish("a/news", message(b"x"), ends.append) is None
        await until(lambda: len(broker.published) == 5)
        await mqtt.close()
        assert ends == [Reason.TRANSPORT_DOWN] * 10


class Counting(Notes):
    """An owner that counts the messages that are out of our hands."""

    left = 0

    def sent(self, messages: int | None = None) -> None:
        assert messages is not None
        self.left += messages


class Acknowledging:
    """A connection to a broker that acknowledges, or refuses, what it is told to."""

    is_crowded = False

    def __init__(self) -> None:
        self.acknowledge: list[OnAck] = []

    def publish(self, topic: str, payload: bytes, qos: int, *, on_ack: OnAck, **_: object) -> None:
        assert (topic, qos, bool(payload)) == ("peer", 1, True)
        self.acknowledge.append(on_ack)


@pytest.mark.rule("OB-7")
@pytest.mark.parametrize(
    "answer", [PubAckReasonCode.NOT_AUTHORIZED, PubAckReasonCode.NO_MATCHING_SUBSCRIBERS]
)
@async_test
async def test_what_a_broker_acknowledged_has_left_although_it_refuses_the_next(
    answer: PubAckReasonCode,
) -> None:
    mqtt, broker, owner = Mqtt("mqtt://127.0.0.1:1"), Acknowledging(), Counting()
    mqtt.client.connection = cast("Any", broker)
    link = PlainLink(mqtt, owner, "own", "peer")
    link.open()
    for number in range(4):
        assert link.send(message(b"%d" % number)) is None
    for acknowledge in broker.acknowledge[:2]:
        acknowledge(PubAckReasonCode.SUCCESS)
    assert owner.left == 0  # not before the end of the turn
    for acknowledge in broker.acknowledge[2:]:
        acknowledge(answer)
    mqtt.settle()
    await until(lambda: owner.end)
    assert owner.left == 2


@pytest.mark.rule("FL-1")
@async_test
async def test_what_waits_for_a_broker_is_bounded() -> None:
    limits = MqttLimits(budget=1 << 20)
    async with half_broker(window=5, acknowledges=0) as (_, url):
        mqtt = Mqtt(url, limits=limits, backoff=soon())
        await mqtt.start()
        await until(lambda: mqtt.client.is_open)
        connection = mqtt.client.connection
        assert connection is not None
        results = [connection.publish("a", bytes(10 * KIB), 1) for _ in range(300)]
        assert 100 <= results.count(None) <= 120
        assert results[-1] is Reason.QUEUE_FULL
        assert mqtt.publish("a/news", message(b"x"), lambda _: None) is Reason.QUEUE_FULL
        mqtt.client.stop()


@pytest.mark.rule("FL-3")
@runs_on_every_loop
async def test_a_peer_over_the_broker_that_does_not_read_delays_no_other() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "sender") as (sender, _, _),
        hub(broker.place, "good") as (good, _, _),
        hub(broker.place, "stuck") as (stuck, mqtt, _),
    ):
        received = collect(good, "sink")
        collect(stuck, "sink")
        for name in ("good", "stuck"):
            await sender.request(f"mqtt#hubs/{name} => echo", b"x", timeout=DEADLINE)
        connection = mqtt.client.connection
        assert connection is not None
        connection.pause_reading()

        async def flood() -> None:
            while True:
                await sender.send("mqtt#hubs/stuck => sink", bytes(10_000))

        flooding = [asyncio.ensure_future(flood()) for _ in range(20)]
        for number in range(1_000):
            async with asyncio.timeout(DEADLINE):
                await sender.send("mqtt#hubs/good => sink", b"%-10000d" % number)
        await until(lambda: len(received) == 1_000)
        assert [int(each.payload) for each in received] == list(range(1_000))
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
        connection.resume_reading()


@pytest.mark.rule("FL-1")
@async_test
async def test_what_waits_in_links_that_are_not_read_is_bounded_together() -> None:
    limits = MqttLimits(frame=64 * KIB, unsent=16 * KIB, receiver=128 * KIB, budget=200 * KIB)
    async with broker_here() as broker:
        mqtt = Mqtt(f"mqtt://{broker.place}", topic="here", limits=limits, backoff=soon())
        owners: list[Notes] = []

        def accept() -> Notes:
            owners.append(Notes())
            return owners[-1]

        listener = await mqtt.listen("+", accept)
        peers = [Mqtt(f"mqtt://{broker.place}", backoff=soon()) for _ in range(3)]
        for peer in peers:
            await peer.start()
            await until(lambda: peer.client.is_open)  # noqa: B023
            publish_frame(peer, 100)
        await until(lambda: len(mqtt.links) == 3)
        for link in mqtt.links.values():
            link.pause_reading()
        for peer in peers:
            for _ in range(5):
                publish_frame(peer, 20 * KIB)
        await until(lambda: len(mqtt.links) < 3)
        await until(lambda: [owner.end for owner in owners].count(None) == 2 or len(mqtt.links) < 2)
        assert mqtt.unread.used <= 200 * KIB
        for peer in peers:
            await peer.close()
        for link in list(mqtt.links.values()):
            link.abort()
        assert mqtt.unread.used == 0
        await listener.close()


def publish_frame(peer: Mqtt, size: int) -> None:
    """Publish a message as a node of another make would."""
    frame = encode_frame(Message(Route.parse("sink"), Route.parse("me"), bytes(size)))
    connection = peer.client.connection
    assert connection is not None
    assert connection.publish("here", frame, 1, response_topic=peer.topic) is None


@pytest.mark.rule("FL-5")
@async_test
async def test_control_messages_for_a_peer_that_takes_nothing_end_its_link() -> None:
    async with (
        broker_here() as broker,
        hub(broker.place, "a") as (here, mqtt, _),
        hub(broker.place, "b") as (_, other, _),
    ):
        await here.request("mqtt#hubs/b => echo", b"x", timeout=DEADLINE)
        (link,) = mqtt.links.values()
        assert other.client.connection is not None
        other.client.connection.pause_reading()
        for _ in range(3 * CONTROL // 10_000):
            link.send_control(bytes(10_000))
        await until(lambda: not here.sessions)
        assert other.client.connection is not None
        other.client.connection.resume_reading()


# HTTP


@pytest.mark.rule("FL-1")
@async_test
async def test_channels_that_nobody_reads_share_one_budget() -> None:
    ended: list[Channel] = []
    held: HeldBytes[Channel] = HeldBytes(
        1 << 20,
        lambda channel: channel.kept,
        lambda channel: channel.end(Reason.QUEUE_FULL, "too much"),
    )

    def channel_of() -> Channel:
        return Channel(Notes(), HttpLimits(), "x", lambda one, *_: ended.append(one), held)

    channels = [channel_of() for _ in range(10)]
    for _ in range(10):
        for one in channels:
            one.send(message(bytes(20 * KIB)))
        await asyncio.sleep(0)
    assert held.shares.total.used <= 5 * held.shares.total.limit // 4
    assert channels[0].send(message(bytes(20 * KIB))) is Reason.QUEUE_FULL
    fresh = channel_of()
    assert fresh.send(message(bytes(700 * KIB))) is None  # it has nothing, so it may
    await until(lambda: ended)
    assert ended == [fresh]  # and is the one that has most, a moment later
    assert all(one.is_open for one in channels)
    for one in channels:
        one.abort()
    assert held.shares.total.used == 0


@pytest.mark.rule("FL-3")
@async_test
async def test_a_client_that_does_not_ask_for_its_messages_delays_no_other() -> None:
    async with door(HttpLimits(unsent=32 * KIB)) as (node, _, place):
        await Client(place).open()
        good = await Client(place).open()
        names = [session.name for session in node.sessions]
        sending = [
            asyncio.ensure_future(node.send(f"{names[0]} => x", bytes(10 * KIB)))
            for _ in range(100)
        ]
        got = 0
        for number in range(50):
            await node.send(f"{names[1]} => x", b"%-10240d" % number)
            answer = await good.get("wait=5")
            got += len(answer.json["messages"])
        assert got == 50
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


@pytest.mark.rule("FL-1")
@async_test
async def test_an_answer_that_is_not_read_in_time_ends_its_connection() -> None:
    limits = HttpLimits(body=0.5, frame=16 << 20)
    async with channel(limits) as (node, _, client, one):
        (session,) = node.sessions
        await node.send(f"{session.name} => x", bytes(12 << 20))
        target = f"{one.path}?wait=5"
        lines = [f"GET {target} HTTP/1.1", "Host: localhost", f"Accept: {FRAMES['Accept']}"]
        peer = await RawPeer.dial(client.place, "\r\n".join([*lines, "", ""]).encode())
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(1.5)
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        data = await peer.reader.read(64 << 20)
        total = len(data)
        while data:
            try:
                data = await peer.reader.read(64 << 20)
            except ConnectionError:
                break
            total += len(data)
        assert total < 12 << 20
        peer.close()
