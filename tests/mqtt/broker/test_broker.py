"""What is our broker's own: limits, who may connect, slow receivers, and the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mqtt5 import (
    ConnAckPacket,
    ConnAckReasonCode,
    ConnectPacket,
    DisconnectPacket,
    DisconnectReasonCode,
    PingReqPacket,
    PingRespPacket,
    PubAckPacket,
    PubAckReasonCode,
    PublishPacket,
    QoS,
    SubAckPacket,
    SubscribePacket,
    TopicFilter,
    UnsubscribePacket,
    Will,
)

from tests.node.live import LOOPS
from tests.transports.certificates import authority
from waystation.errors import LocalError
from waystation.mqtt.broker import Broker, Passwords, Settings, password_line
from waystation.mqtt.packets import PacketReader
from waystation.net.place import parse_place
from waystation.testing import DEADLINE, async_test, run_checked, until


class Peer:
    """A client of packets that the test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._packets = PacketReader()
        self._found: list[Any] = []
        self._last_id = 0

    async def hear(self) -> Any:
        """The next packet."""
        async with asyncio.timeout(DEADLINE):
            while not self._found:
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self._found += self._packets.feed(data)
        return self._found.pop(0)

    async def rest(self) -> bytes:
        """All bytes until the broker ends the connection."""
        async with asyncio.timeout(DEADLINE):
            return await self._reader.read()

    def say(self, *packets: Any) -> None:
        """Send packets, or bytes."""
        for packet in packets:
            self.writer.write(packet if isinstance(packet, bytes) else packet.write())

    async def ask(self, packet: Any) -> Any:
        """Send a packet and give the next one that comes."""
        self.say(packet)
        return await self.hear()

    async def subscribe(self, *filters: str, qos: QoS = QoS.AT_LEAST_ONCE) -> list[int]:
        self._last_id += 1
        asked = [TopicFilter(filter, max_qos=qos) for filter in filters]
        answer = await self.ask(SubscribePacket(self._last_id, asked))
        assert type(answer) is SubAckPacket
        return [int(code) for code in answer.reason_codes]

    async def publish(self, topic: str, payload: bytes = b"x", **options: Any) -> Any:
        self._last_id += 1
        packet = PublishPacket(
            topic, payload, qos=QoS.AT_LEAST_ONCE, packet_id=self._last_id, **options
        )
        return await self.ask(packet)

    async def ended(self) -> None:
        """Return when the broker has ended the connection."""
        try:
            while True:
                await self.hear()
        except (EOFError, ConnectionError):
            pass


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Broker]:
    tls = options.pop("tls", None)
    authenticate = options.pop("authenticate", None)
    grants = options.pop("grants", None)
    broker = Broker(Settings(**options), tls=tls, authenticate=authenticate, grants=grants)
    await broker.start("127.0.0.1:0")
    try:
        yield broker
    finally:
        await broker.drain()


@asynccontextmanager
async def reach(broker: Broker, ssl: Any = None) -> AsyncIterator[Peer]:
    host, port = parse_place(broker.place)
    reader, writer = await asyncio.open_connection(host, port, ssl=ssl)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def client(broker: Broker, name: str = "", **options: Any) -> AsyncIterator[Peer]:
    options.setdefault("clean_start", True)
    async with reach(broker) as peer:
        answer = await peer.ask(ConnectPacket(name, **options))
        assert answer.reason_code is ConnAckReasonCode.SUCCESS
        yield peer


async def refused(broker: Broker, packet: ConnectPacket) -> ConnAckReasonCode:
    async with reach(broker) as peer:
        answer = await peer.ask(packet)
        assert type(answer) is ConnAckPacket
        await peer.ended()
        return answer.reason_code


@async_test
async def test_the_broker_says_what_it_can_and_what_it_cannot() -> None:
    async with serving() as broker, reach(broker) as peer:
        answer = await peer.ask(ConnectPacket("", clean_start=True))
        assert answer.max_qos is QoS.AT_LEAST_ONCE
        assert answer.retain_available
        assert answer.wildcard_subscription_available
        assert answer.subscription_id_available
        assert answer.shared_subscription_available
        assert answer.receive_max == broker.settings.receive_maximum
        assert answer.max_packet_size == broker.settings.packet


@async_test
async def test_qos_2_is_refused_and_granted_as_1() -> None:
    async with serving() as broker:
        async with client(broker) as peer:
            assert await peer.subscribe("a", qos=QoS.EXACTLY_ONCE) == [1]
            packet = PublishPacket("a", b"", qos=QoS.EXACTLY_ONCE, packet_id=1)
            answer = await peer.ask(packet)
            assert answer.reason_code is DisconnectReasonCode.QOS_NOT_SUPPORTED
            await peer.ended()
        will = Will("a", qos=QoS.EXACTLY_ONCE)
        code = await refused(broker, ConnectPacket("x", will=will))
        assert code is ConnAckReasonCode.QUALITY_NOT_SUPPORTED


@async_test
async def test_filters_are_refused_one_by_one() -> None:
    async with serving(subscriptions=2) as broker, client(broker) as peer:
        codes = await peer.subscribe("$share/a", "a", "b", "c", "a", "$share//a", "$share/+/a")
        assert codes == [0x8F, 1, 1, 0x97, 1, 0x8F, 0x8F]
        peer.say(b"\x82\x09\x00\x09\x00\x00\x03a/b+"[:10] + b"\x01")  # the filter is `a/b`
        await peer.hear()
        answer = await peer.ask(b"\x82\x09\x00\x0a\x00\x00\x03a+b\x01")
        assert [int(code) for code in answer.reason_codes] == [0x8F]
        assert await peer.ask(PingReqPacket())


@async_test
async def test_clients_of_mqtt_3_are_told_that_it_is_not_spoken() -> None:
    async with serving() as broker, reach(broker) as peer:
        peer.say(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        assert await peer._reader.readexactly(4) == b"\x20\x02\x00\x01"
        await peer.ended()
        assert broker.counts.refused["version"] == 1


@async_test
async def test_who_has_no_name_or_the_wrong_password_stays_outside() -> None:
    users = Passwords.parse(password_line("garage", "secret", iterations=10))
    async with serving(authenticate=users.allows) as broker:
        for user, password in ((None, None), ("garage", b"guess"), ("nobody", b"secret")):
            packet = ConnectPacket("x", username=user, password=password)
            code = await refused(broker, packet)
            assert code is ConnAckReasonCode.BAD_USER_NAME_OR_PASSWORD
        async with client(broker, "x", username="garage", password=b"secret"):
            assert broker.connected() == 1


MOSQUITTO_2_0_11 = (  # what its mosquitto_passwd wrote for the password `secret`
    "garage:$7$101$+e6/ok7CfH9mTQUA$"
    "rgpT8DwsQXX5BqnE4+k34V+tBvYXQrtLJKn1JNfjo4P/E2EYdZjzIimYcshfPq8C4zR+WinCJs1KrFOk4GZYvQ=="
)


def test_a_password_file_of_mosquitto_is_read(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"# users\n\n{MOSQUITTO_2_0_11}\n")
    users = Passwords.load(file)
    assert users.allows("", "garage", b"secret")
    assert not users.allows("", "garage", b"Secret")
    for bad in ("a:plain", "nothing", "a:$6$salt$hash", "a:$7$x$y$z", "a:$7$0$YQ==$YQ=="):
        with pytest.raises(LocalError, match="line 1"):
            Passwords.parse(bad)
    with pytest.raises(LocalError, match="cannot read"):
        Passwords.load(tmp_path / "none")


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_lets_in_who_brings_a_certificate(loop: str) -> None:
    async def scenario() -> None:
        tls = authority().tls("127.0.0.1", mutual=True)
        async with serving(tls=tls) as broker, reach(broker, tls.for_dialler()) as peer:
            answer = await peer.ask(ConnectPacket("x"))
            assert answer.reason_code is ConnAckReasonCode.SUCCESS

    run_checked(scenario, LOOPS[loop])


@async_test
async def test_there_are_as_many_connections_and_sessions_as_allowed() -> None:
    async with serving(connections=3, sessions=2) as broker:
        async with client(broker, "a", session_expiry_interval=100), client(broker, "b"):
            code = await refused(broker, ConnectPacket("c"))
            assert code is ConnAckReasonCode.QUOTA_EXCEEDED
            async with reach(broker), reach(broker) as fourth:
                await fourth.ended()
        await until(lambda: broker.connected() == 0)
        assert broker.sessions() == 1
        assert broker.counts.refused == {"quota_exceeded": 1, "connections": 1}


@async_test
async def test_a_flood_of_connects_hurts_nobody() -> None:
    async with serving(connections=50, greeting=30) as broker, client(broker, "honest") as honest:
        host, port = parse_place(broker.place)

        async def knock(number: int) -> None:
            try:
                _, writer = await asyncio.open_connection(host, port)
                writer.write(ConnectPacket(f"flood-{number % 20}").write())
                await writer.drain()
                writer.transport.abort()
            except ConnectionError:
                pass

        for start in range(0, 600, 100):
            await asyncio.gather(*(knock(number) for number in range(start, start + 100)))
        await honest.subscribe("a")
        assert type(await honest.publish("a", b"still here")) in (PublishPacket, PubAckPacket)
        await until(lambda: broker.connected() == 1)
        assert broker.sessions() == 1


@async_test
async def test_who_never_says_who_it_is_is_given_up() -> None:
    async with serving(greeting=0.1) as broker, reach(broker) as silent:
        await silent.ended()
        assert broker.counts.disconnected["silent"] == 1


@async_test
async def test_a_packet_over_the_limit_is_not_read() -> None:
    async with serving(packet=1000) as broker, client(broker) as peer:
        answer = await peer.ask(PublishPacket("a", bytes(2000)))
        assert answer.reason_code is DisconnectReasonCode.PACKET_TOO_LARGE
        await peer.ended()


NOT_UTF_8 = {
    "topic": b"\x30\x04\x00\x01\xff\x00",
    "response topic": b"\x30\x08\x00\x01a\x04\x08\x00\x01\xff",
    "behind binary": b"\x30\x0c\x00\x01a\x08\x09\x00\x01\xff\x08\x00\x01\xff",
    "user property": b"\x32\x0d\x00\x01a\x00\x01\x07\x26\x00\x01a\x00\x01\xff",
    "filter": b"\x82\x07\x00\x01\x00\x00\x01\xff\x01",
    "second filter": b"\xa2\x09\x00\x01\x00\x00\x01a\x00\x01\xff",
    "reason": b"\xe0\x06\x00\x04\x1f\x00\x01\xff",
    "reason of an answer": b"\x40\x08\x00\x01\x00\x04\x1f\x00\x01\xff",
}


@pytest.mark.parametrize("name", NOT_UTF_8)
def test_text_that_is_not_utf_8_ends_the_connection(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with serving() as broker, client(broker) as peer:
            answer = await peer.ask(NOT_UTF_8[name])
            assert answer.reason_code is DisconnectReasonCode.MALFORMED_PACKET
            await peer.ended()

    run_checked(scenario)
    assert "panic" not in capfd.readouterr().err


CONNECTS_NOT_UTF_8 = [
    b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01\xff",
    b"\x10\x11\x00\x04MQTT\x05\x82\x00\x00\x00\x00\x01a\x00\x01\xff",
    b"\x10\x13\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x00\x00\x00\x01\xff\x00\x00",
]


@pytest.mark.parametrize("packet", CONNECTS_NOT_UTF_8, ids=["id", "user", "will"])
def test_who_is_called_something_that_is_not_utf_8_stays_outside(
    packet: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with serving() as broker, reach(broker) as peer:
            peer.say(packet)
            await peer.ended()
            assert broker.counts.disconnected["malformed_packet"] == 1

    run_checked(scenario)
    assert "panic" not in capfd.readouterr().err


def mutated(packet: bytes, source: random.Random) -> bytes:
    changed = bytearray(packet)
    for _ in range(source.choice((0, 1, 1, 2, 3))):
        place = source.randrange(len(changed))
        changed[place] = source.choice((0, 1, 0x7F, 0xFF, ord("#"), source.randrange(256)))
    return bytes(changed)


FUZZ: list[Any] = [
    ConnectPacket(
        "c", username="u", password=b"\xff", will=Will("w", response_topic="z"), keep_alive=9
    ),
    PublishPacket(
        "a/b",
        b"hello",
        qos=QoS.AT_LEAST_ONCE,
        packet_id=3,
        response_topic="r/t",
        correlation_data=b"\xff\0",
        user_properties=[("a", "\u00e9")],
        message_expiry_interval=9,
    ),
    PublishPacket("a", b"kept", retain=True, topic_alias=3),
    SubscribePacket(4, [TopicFilter("a/#"), TopicFilter("+/b")], subscription_id=7),
    PubAckPacket(1, reason_str="abc"),
    PingReqPacket(),
    DisconnectPacket(session_expiry_interval=5, reason_str="x"),
]


@pytest.mark.parametrize("seed", range(3))
def test_no_bytes_are_more_than_their_own_connection_can_bear(
    seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    source = random.Random(seed)

    async def scenario() -> None:
        async with serving() as broker, client(broker, "honest") as honest:
            for _ in range(150):
                async with reach(broker) as peer:
                    first = FUZZ[0].write()
                    peer.say(mutated(first, source) if source.random() < 0.3 else first)
                    for _ in range(5):
                        peer.say(mutated(source.choice(FUZZ[1:]).write(), source))
                    await asyncio.sleep(0)
            await honest.subscribe("fine")
            assert await honest.publish("fine") is not None

    run_checked(scenario)
    assert "panic" not in capfd.readouterr().err


@async_test
async def test_what_a_client_sends_in_the_wrong_place_ends_it() -> None:
    wrong: list[tuple[Any, DisconnectReasonCode]] = [
        (ConnectPacket("again"), DisconnectReasonCode.PROTOCOL_ERROR),
        (ConnAckPacket(), DisconnectReasonCode.PROTOCOL_ERROR),
        (b"\x30\x07\x00\x03a/+\x00x", DisconnectReasonCode.TOPIC_NAME_INVALID),
        (PublishPacket("", b"", topic_alias=5), DisconnectReasonCode.TOPIC_ALIAS_INVALID),
        (PublishPacket("a", b"", topic_alias=9999), DisconnectReasonCode.TOPIC_ALIAS_INVALID),
    ]
    async with serving() as broker:
        for packet, code in wrong:
            async with client(broker) as peer:
                answer = await peer.ask(packet)
                assert type(answer) is DisconnectPacket
                assert answer.reason_code is code
                await peer.ended()


@async_test
async def test_retained_messages_have_a_limit() -> None:
    async with serving(retained=2) as broker, client(broker) as peer:
        for topic in ("a", "b", "a"):
            answer = await peer.publish(topic, retain=True)
            assert answer.reason_code is PubAckReasonCode.NO_MATCHING_SUBSCRIBERS
        assert (await peer.publish("c", retain=True)).reason_code is PubAckReasonCode.QUOTA_EXCEEDED
        assert broker.retained() == 2
        await peer.publish("a", b"", retain=True)
        await peer.publish("c", retain=True)
        assert broker.retained() == 2
        assert broker.counts.dropped["RETAINED_FULL"] == 1


@async_test
async def test_a_slow_subscriber_loses_its_own_messages_and_delays_nobody() -> None:
    async with (
        serving(queue=50, queue_bytes=1 << 20) as broker,
        client(broker, "slow") as slow,
        client(broker, "quick") as quick,
        client(broker, "sender") as sender,
    ):
        await slow.subscribe("a")
        await quick.subscribe("a")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        rounds = 0
        while not broker.counts.dropped["QUEUE_FULL"]:
            rounds += 1
            assert rounds < 2000, "a receiver that never reads was never full"
            answer = await sender.publish("a", b"%-65536d" % rounds)
            assert type(answer) is PubAckPacket
            message = await quick.hear()
            assert int(message.payload) == rounds
            quick.say(PubAckPacket(message.packet_id))
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        message = await slow.hear()
        assert int(message.payload) == 1


@async_test
async def test_a_session_that_is_away_is_bounded_and_ends() -> None:
    async with serving(queue=3, session_expiry=1) as broker, client(broker) as sender:
        async with client(broker, "away", clean_start=False, session_expiry_interval=9999) as peer:
            await peer.subscribe("a")
            peer.say(DisconnectPacket())
            await peer.ended()
        for _ in range(5):
            await sender.publish("a")
        assert broker.counts.dropped["QUEUE_FULL"] == 2
        await until(lambda: broker.sessions() == 1)
        assert broker.counts.dropped["TRANSPORT_DOWN"] == 3
        answer = await sender.publish("a")
        assert answer.reason_code is PubAckReasonCode.NO_MATCHING_SUBSCRIBERS


@async_test
async def test_what_was_not_acknowledged_comes_again() -> None:
    async with serving() as broker, client(broker) as sender:
        options = {"clean_start": False, "session_expiry_interval": 100}
        async with client(broker, "x", **options) as first:
            await first.subscribe("a")
            await sender.publish("a", b"1")
            assert not (await first.hear()).duplicate
        await until(lambda: broker.connected() == 1)
        await sender.publish("a", b"2")
        async with client(broker, "x", **options) as second:
            again, fresh = await second.hear(), await second.hear()
            assert (again.payload, again.duplicate) == (b"1", True)
            assert (fresh.payload, fresh.duplicate) == (b"2", False)


@async_test
async def test_a_client_that_takes_little_gets_no_more() -> None:
    async with (
        serving() as broker,
        client(broker) as sender,
        client(broker, max_packet_size=100) as small,
    ):
        await small.subscribe("a")
        await sender.publish("a", bytes(1000))
        await sender.publish("a", b"small")
        assert (await small.hear()).payload == b"small"
        assert broker.counts.dropped["TOO_LARGE"] == 1


@async_test
async def test_draining_tells_everybody_and_does_no_wills() -> None:
    async with (
        serving(linger=0.2) as broker,
        client(broker, will=Will("gone")) as one,
        client(broker) as other,
    ):
        await other.subscribe("gone")
        await broker.drain()
        for peer in (one, other):
            packet = await peer.hear()
            assert packet.reason_code is DisconnectReasonCode.SERVER_SHUTTING_DOWN
            await peer.ended()
        assert broker.counts.wills == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [({"queue": 0}, "queue=0"), ({"receive_maximum": 70_000}, "receive_maximum=70000")],
)
def test_a_limit_that_makes_no_sense_is_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(LocalError, match=words):
        Settings(**options)


@async_test
async def test_a_client_s_life_can_be_followed_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "waystation")
    async with serving() as broker, client(broker) as sender:
        async with client(broker, "followed", max_packet_size=100) as peer:
            await peer.subscribe("a")
            await sender.publish("a", bytes(1000))
            peer.say(DisconnectPacket())
            await peer.ended()
        await until(lambda: broker.connected() == 1)
    steps = (
        ": connected",
        "client 'followed' is connected",
        "client 'followed' subscribes to 'a'",
        "a message for client 'followed' was dropped: TOO_LARGE",
        "goodbye",
        "closed",
    )
    at = 0
    for step in steps:
        at = caplog.text.find(step, at)
        assert at >= 0, step


# Shared subscriptions


@async_test
async def test_each_message_goes_to_one_of_those_who_share_a_subscription() -> None:
    async with (
        serving() as broker,
        client(broker, "one") as one,
        client(broker, "two") as two,
        client(broker, "other") as other,
        client(broker, "sender") as sender,
    ):
        for peer in (one, two):
            assert await peer.subscribe("$share/workers/jobs/#") == [1]
        assert await other.subscribe("$share/others/jobs/#", "jobs/#") == [1, 1]
        for number in range(6):
            await sender.publish("jobs/1", b"%d" % number)
        heard = {name: await _heard(peer, 3) for name, peer in (("one", one), ("two", two))}
        assert sorted(heard["one"] + heard["two"]) == [b"%d" % number for number in range(6)]
        assert len(await _heard(other, 12)) == 12  # each twice: by its group, and by itself
        two.writer.transport.abort()
        await until(lambda: broker.counts.disconnected)
        for number in range(4):
            await sender.publish("jobs/2", b"%d" % number)
        assert len(await _heard(one, 4)) == 4
        answer = await one.ask(UnsubscribePacket(9, ["$share/workers/jobs/#"]))
        assert [int(code) for code in answer.reason_codes] == [0]


async def _heard(peer: Peer, count: int) -> list[bytes]:
    heard: list[bytes] = []
    while len(heard) < count:
        packet = await peer.hear()
        if isinstance(packet, PublishPacket):
            heard.append(bytes(packet.payload))
            if packet.packet_id:
                peer.say(PubAckPacket(packet.packet_id))
    return heard


@async_test
async def test_what_is_retained_is_not_sent_to_who_shares() -> None:
    async with serving() as broker, client(broker, "one") as one:
        await one.publish("jobs/1", b"kept", retain=True)
        await one.subscribe("$share/workers/jobs/#")
        await one.subscribe("jobs/1")
        assert await _heard(one, 1) == [b"kept"]
        assert type(await one.ask(PingReqPacket())) is PingRespPacket


@async_test
async def test_who_is_away_gets_its_part_only_when_nobody_is_there() -> None:
    async with serving() as broker, client(broker, "sender") as sender:
        async with client(broker, "one", session_expiry_interval=60) as one:
            await one.subscribe("$share/workers/jobs")
        await until(lambda: broker.counts.disconnected)
        await sender.publish("jobs", b"1")
        async with client(broker, "one", clean_start=False, session_expiry_interval=60) as one:
            assert await _heard(one, 1) == [b"1"]


@async_test
async def test_nobody_shares_without_its_own() -> None:
    async with serving() as broker, client(broker, "one") as one:
        asked = [TopicFilter("$share/workers/jobs", no_local=True)]
        answer = await one.ask(SubscribePacket(1, asked))
        assert answer.reason_code is DisconnectReasonCode.PROTOCOL_ERROR
