"""How many messages are without an acknowledgement: from the broker to a client, and back."""

from __future__ import annotations

from typing import Any

import pytest
from mqtt5 import ConnectPacket, PingReqPacket, PingRespPacket, PubAckPacket, PublishPacket, QoS

from tests.mqtt.broker.test_broker import Peer, client, reach, serving
from waystation.mqtt.broker import Broker
from waystation.testing import async_test, until


async def heard(peer: Peer) -> list[Any]:
    """What came until the broker answered a ping: it sends no more on its own."""
    peer.say(PingReqPacket())
    found: list[Any] = []
    while type(packet := await peer.hear()) is not PingRespPacket:
        found.append(packet)
    return found


def acknowledge(peer: Peer, packets: list[PublishPacket]) -> None:
    for packet in packets:
        assert packet.packet_id is not None
        peer.say(PubAckPacket(packet.packet_id))


def payloads(packets: list[Any]) -> list[bytes]:
    return [packet.payload for packet in packets]


async def publish(broker: Broker, *numbers: int) -> None:
    async with client(broker) as sender:
        for number in numbers:
            await sender.publish("a", b"%d" % number)


@async_test
async def test_a_client_gets_no_more_than_it_takes_before_it_acknowledges() -> None:
    async with serving() as broker, client(broker, receive_max=2) as peer:
        await peer.subscribe("a")
        await publish(broker, *range(5))
        first = await heard(peer)
        assert payloads(first) == [b"0", b"1"]
        acknowledge(peer, first[:1])
        second = await heard(peer)
        assert payloads(second) == [b"2"]
        acknowledge(peer, first[1:] + second)
        assert payloads(await heard(peer)) == [b"3", b"4"]


@async_test
async def test_messages_of_qos_0_do_not_count() -> None:
    async with serving() as broker, client(broker, receive_max=1) as peer:
        await peer.subscribe("a", "b")
        await publish(broker, 0, 1)
        async with client(broker) as sender:
            sender.say(*[PublishPacket("b", b"x", qos=QoS.AT_MOST_ONCE)] * 3)
            await heard(sender)
        assert payloads(await heard(peer)) == [b"0", b"x", b"x", b"x"]


@async_test
async def test_a_client_that_comes_back_and_takes_less_gets_less_at_once() -> None:
    lasting = {"clean_start": False, "session_expiry_interval": 100}
    async with serving() as broker:
        async with client(broker, "c", receive_max=5, **lasting) as peer:
            await peer.subscribe("a")
            await publish(broker, *range(7))
            assert payloads(await heard(peer)) == [b"0", b"1", b"2", b"3", b"4"]
        async with client(broker, "c", receive_max=2, **lasting) as peer:
            await publish(broker, 7)
            got: list[bytes] = []
            while found := await heard(peer):
                assert len(found) <= 2
                assert all(packet.duplicate == (int(packet.payload) < 5) for packet in found)
                got += payloads(found)
                acknowledge(peer, found)
            assert got == [b"%d" % number for number in range(8)]


@async_test
async def test_an_early_acknowledgement_spares_the_repetition() -> None:
    lasting = {"clean_start": False, "session_expiry_interval": 100}
    async with serving() as broker:
        async with client(broker, "c", **lasting) as peer:
            await peer.subscribe("a")
            await publish(broker, *range(3))
            before = await heard(peer)
        async with client(broker, "c", receive_max=1, **lasting) as peer:
            assert payloads(await heard(peer)) == [b"0"]
            acknowledge(peer, before[1:2])
            assert await heard(peer) == []
            acknowledge(peer, before[:1])
            assert payloads(await heard(peer)) == [b"2"]


@async_test
async def test_what_has_become_too_large_for_a_client_is_not_kept_for_ever() -> None:
    lasting = {"clean_start": False, "session_expiry_interval": 100}
    async with serving() as broker:
        async with client(broker, "c", **lasting) as peer:
            await peer.subscribe("a")
            async with client(broker) as sender:
                await sender.publish("a", bytes(500))
                await sender.publish("a", b"small")
            assert len(await heard(peer)) == 2
        async with client(broker, "c", receive_max=1, max_packet_size=100, **lasting) as peer:
            assert payloads(await heard(peer)) == [b"small"]
            await until(lambda: broker.counts.dropped["TOO_LARGE"] == 1)


@pytest.mark.parametrize("beyond", [1, 50])
@async_test
async def test_each_message_of_a_client_is_answered_so_that_it_cannot_send_too_many(
    beyond: int,
) -> None:
    async with serving(receive_maximum=20) as broker, reach(broker) as peer:
        answer = await peer.ask(ConnectPacket("", clean_start=True))
        assert answer.receive_max == 20
        numbers = range(1, 20 + beyond + 1)
        packets = [PublishPacket("a", b"x", qos=QoS.AT_LEAST_ONCE, packet_id=n) for n in numbers]
        peer.say(*packets)  # without reading
        answers = await heard(peer)
        assert [type(answer) for answer in answers] == [PubAckPacket] * len(packets)
        assert [answer.packet_id for answer in answers] == list(numbers)


@async_test
async def test_a_receive_maximum_of_none_is_no_connect() -> None:
    body = b"\x00\x04MQTT\x05\x02\x00\x3c\x03\x21\x00\x00\x00\x00"
    async with serving() as broker, reach(broker) as peer:
        peer.say(b"\x10" + bytes((len(body),)) + body)
        assert await peer.rest() == b""
