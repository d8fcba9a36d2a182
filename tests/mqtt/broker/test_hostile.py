"""Clients that attack the broker: silence, halves, floods, no reading, garbage, sudden ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import pytest
from mqtt5 import (
    ConnAckReasonCode,
    ConnectPacket,
    DisconnectPacket,
    DisconnectReasonCode,
    PingReqPacket,
    PingRespPacket,
    PubAckPacket,
    PublishPacket,
    QoS,
    SubAckPacket,
    SubscribePacket,
    TopicFilter,
    Will,
)

from tests.mqtt.broker.test_broker import client, reach, refused, serving
from tests.net.test_server import no_descriptors_left
from tests.node.live import runs_on_every_loop
from waystation.mqtt.broker import Broker, Passwords, password_line
from waystation.mqtt.packets import PING
from waystation.net.place import parse_place
from waystation.testing import DEADLINE, async_test, until

CONNECT = ConnectPacket("peer", keep_alive=60).write()
SUBSCRIBE = SubscribePacket(1, [TopicFilter("a")]).write()


def all_are_gone(broker: Broker) -> bool:
    """Whether every connection that opened has ended, each for one cause."""
    counts = broker.counts
    return counts.opened == sum(counts.disconnected.values()) + sum(counts.refused.values())


# Passwords


@contextmanager
def slow_check(*, right: bool = True) -> Iterator[tuple[Any, threading.Event]]:
    """A check of passwords that takes until an event is set, and that event."""
    go_on = threading.Event()

    def check(client_id: str, user: str | None, password: bytes | None) -> bool:
        del client_id, password
        return user == "quick" or (go_on.wait(DEADLINE) and right)

    try:
        yield check, go_on
    finally:
        go_on.set()


@runs_on_every_loop
async def test_a_password_that_takes_long_to_check_delays_nobody_else() -> None:
    with slow_check() as (check, go_on):
        async with (
            serving(authenticate=check) as broker,
            client(broker, "quick", username="quick") as quick,
            reach(broker) as slow,
        ):
            slow.say(ConnectPacket("slow"))
            assert type(await quick.ask(PingReqPacket())) is PingRespPacket
            await quick.subscribe("a")
            assert broker.connected() == 1
            go_on.set()
            assert (await slow.hear()).reason_code is ConnAckReasonCode.SUCCESS
            assert broker.connected() == 2


@runs_on_every_loop
async def test_what_is_sent_behind_connect_waits_for_the_password() -> None:
    with slow_check() as (check, go_on):
        async with serving(authenticate=check) as broker, reach(broker) as peer:
            peer.say(CONNECT + SUBSCRIBE)
            peer.say(PING)
            asyncio.get_running_loop().call_later(0.02, go_on.set)
            assert (await peer.hear()).reason_code is ConnAckReasonCode.SUCCESS
            assert type(await peer.hear()) is SubAckPacket
            assert type(await peer.hear()) is PingRespPacket


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("has_password", [False, True])
@async_test
async def test_a_large_packet_behind_connect_is_taken_once_its_client_is_admitted(
    has_password: bool,
) -> None:
    with slow_check() as (check, go_on):
        asyncio.get_running_loop().call_later(0.02, go_on.set)
        large = PublishPacket("a", payload=bytes(200_000)).write()
        async with (
            serving(authenticate=check if has_password else None, unadmitted=100_000) as broker,
            reach(broker) as peer,
        ):
            peer.say(CONNECT + SUBSCRIBE + large + PING)
            assert (await peer.hear()).reason_code is ConnAckReasonCode.SUCCESS
            assert type(await peer.hear()) is SubAckPacket
            assert len((await peer.hear()).payload) == 200_000
            assert type(await peer.hear()) is PingRespPacket


@pytest.mark.rule("FL-2")
@async_test
async def test_a_client_that_is_not_admitted_begins_no_large_packet() -> None:
    async with serving() as broker, reach(broker) as peer:
        peer.say(b"\x10\xc0\xc3\x93\x07")  # a CONNECT of 15 MB
        await until(lambda: broker.counts.disconnected["packet_too_large"])


@pytest.mark.rule("FL-1")
@async_test
async def test_half_packets_of_all_clients_share_one_limit() -> None:
    half = PublishPacket("a", payload=bytes(1_000_000)).write()[:900_000]
    async with serving(input=2_000_000) as broker, client(broker, "honest") as honest:
        lazy = [client(broker, f"lazy-{number}") for number in range(5)]
        async with AsyncExitStack() as stack:
            for each in lazy:
                (await stack.enter_async_context(each)).say(half)
            await until(lambda: broker.connected() <= 3)
            assert type(await honest.ask(PingReqPacket())) is PingRespPacket
            assert broker._server.input_budget.account.used <= 2_000_000


@runs_on_every_loop
async def test_garbage_behind_connect_is_looked_at_when_the_password_is_right() -> None:
    with slow_check() as (check, go_on):
        async with serving(authenticate=check) as broker, reach(broker) as peer:
            peer.say(CONNECT + PING + b"\x00\x00")
            asyncio.get_running_loop().call_later(0.02, go_on.set)
            assert (await peer.hear()).reason_code is ConnAckReasonCode.SUCCESS
            assert type(await peer.hear()) is PingRespPacket
            assert (await peer.hear()).reason_code is DisconnectReasonCode.MALFORMED_PACKET
            await peer.ended()
            await until(lambda: all_are_gone(broker))


@runs_on_every_loop
async def test_nothing_behind_connect_is_done_when_the_password_is_wrong() -> None:
    with slow_check(right=False) as (check, go_on):
        go_on.set()
        async with serving(authenticate=check) as broker, reach(broker) as peer:
            peer.say(CONNECT + PublishPacket("a", b"x", retain=True).write())
            code = (await peer.hear()).reason_code
            assert code is ConnAckReasonCode.BAD_USER_NAME_OR_PASSWORD
            await peer.ended()
            assert broker.retained() == 0


@runs_on_every_loop
async def test_a_client_that_is_not_admitted_in_time_is_given_up() -> None:
    with slow_check() as (check, go_on):
        async with serving(authenticate=check, greeting=0.1) as broker, reach(broker) as peer:
            peer.say(CONNECT)
            await peer.ended()
            assert broker.counts.disconnected == {"silent": 1}
            go_on.set()
            async with client(broker, "next"):
                assert broker.connected() == 1


@runs_on_every_loop
async def test_a_client_that_goes_while_its_password_is_checked_is_forgotten() -> None:
    with slow_check() as (check, go_on):
        async with serving(authenticate=check) as broker:
            async with reach(broker) as peer:
                peer.say(CONNECT)
                await until(lambda: broker.counts.bytes_received)
            go_on.set()
            async with client(broker, "next"):
                await until(lambda: broker.connected() == 1)
            await until(lambda: all_are_gone(broker))


@async_test
async def test_a_check_that_fails_lets_nobody_in_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*given: object) -> bool:
        raise RuntimeError(given)

    async with serving(authenticate=fail) as broker:
        code = await refused(broker, ConnectPacket("x"))
        assert code is ConnAckReasonCode.SERVER_UNAVAILABLE
    assert "RuntimeError" in caplog.text


# Whose session


def two_users() -> Passwords:
    lines = [password_line(name, "secret", iterations=10) for name in ("left", "right")]
    return Passwords.parse("\n".join(lines))


@runs_on_every_loop
async def test_another_user_with_the_same_client_id_takes_no_session_over() -> None:
    async with serving(authenticate=two_users().allows) as broker:
        options: dict[str, Any] = {"password": b"secret", "session_expiry_interval": 100}
        async with client(broker, "same", username="left", **options) as owner:
            await owner.subscribe("a")
            async with client(
                broker, "same", username="right", clean_start=False, **options
            ) as other:
                assert broker.connected() == 2
                assert type(await owner.ask(PingReqPacket())) is PingRespPacket
                other.say(PublishPacket("a", b"for the owner", qos=QoS.AT_LEAST_ONCE, packet_id=1))
                assert (await owner.hear()).payload == b"for the owner"
                assert type(await other.hear()) is PubAckPacket  # and no message of the owner's
        await until(lambda: broker.connected() == 0)
        async with client(broker, "same", username="right", clean_start=True, **options):
            assert broker.sessions() == 2, "a clean start ended the session of another user"


# Silence, halves, floods


@runs_on_every_loop
async def test_half_a_connect_is_given_up_as_silence() -> None:
    async with serving(greeting=0.1) as broker, reach(broker) as peer:
        peer.say(CONNECT[:-3])
        await peer.ended()
        assert broker.counts.disconnected == {"silent": 1}


@runs_on_every_loop
async def test_a_client_that_trickles_bytes_is_not_admitted_for_that() -> None:
    async with serving(greeting=0.2) as broker, reach(broker) as peer:
        big = ConnectPacket("x" * 60_000).write()
        ended = asyncio.ensure_future(peer.ended())
        for at in range(len(big)):
            peer.say(big[at : at + 1])
            await asyncio.sleep(0.005)
            if ended.done():
                break
        await ended
        assert broker.counts.disconnected == {"silent": 1}


@runs_on_every_loop
async def test_silence_in_the_middle_of_a_packet_is_silence() -> None:
    async with serving() as broker, client(broker, "watcher") as watcher:
        await watcher.subscribe("gone")
        async with client(broker, "half", keep_alive=1, will=Will("gone", payload=b"half")) as peer:
            peer.say(PublishPacket("a", bytes(1000)).write()[:500])
            assert (await watcher.hear()).payload == b"half"
            assert (await peer.hear()).reason_code is DisconnectReasonCode.KEEP_ALIVE_TIMEOUT
            await peer.ended()
        assert broker.counts.disconnected["keep_alive_timeout"] == 1


@runs_on_every_loop
async def test_pings_keep_a_client_for_longer_than_its_keep_alive() -> None:
    async with serving() as broker, client(broker, keep_alive=1) as peer:
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 2:
            assert type(await peer.ask(PingReqPacket())) is PingRespPacket
            await asyncio.sleep(0.1)
        assert broker.counts.disconnected == {}


@async_test
async def test_a_client_that_reads_no_answers_is_not_read_either() -> None:
    loop = asyncio.get_running_loop()
    async with serving(queue_bytes=131_072) as broker, client(broker, "honest") as honest:
        with socket.socket() as flood:
            flood.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            flood.connect(parse_place(broker.place))
            flood.setblocking(False)
            sent = 0
            while sent < 12_000_000:  # each ping has an answer of the same size
                try:
                    async with asyncio.timeout(1.0):
                        await loop.sock_sendall(flood, PING * 50_000 if sent else CONNECT)
                except TimeoutError:
                    break
                sent += 100_000
                assert type(await honest.ask(PingReqPacket())) is PingRespPacket
            else:
                pytest.fail("answers to a client that reads nothing have no limit")


@runs_on_every_loop
async def test_subscribers_that_never_read_cost_a_bounded_amount_and_do_not_stop_the_end() -> None:
    async with (
        serving(queue_bytes=131_072, linger=0.2) as broker,
        client(broker) as sender,
        client(broker, "deaf-1") as one,
        client(broker, "deaf-0") as other,
    ):
        await one.subscribe("a", qos=QoS.AT_LEAST_ONCE)
        await other.subscribe("a", qos=QoS.AT_MOST_ONCE)
        for peer in (one, other):
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while broker.counts.dropped["QUEUE_FULL"] < 100:
            await sender.publish("a", bytes(65_536))
        assert type(await sender.ask(PingReqPacket())) is PingRespPacket
        await asyncio.wait_for(broker.drain(), DEADLINE)


# Garbage, and ends at any time


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x00", b"\xff" * 50, b"\x30\x03\x00\x09a", PubAckPacket(99).write() + b"\xf0\x7f"],
    ids=["zeros", "ones", "a length out of the packet", "behind a packet"],
)
def test_garbage_behind_connect_ends_its_own_connection(garbage: bytes) -> None:
    @async_test
    async def scenario() -> None:
        async with serving() as broker, client(broker, "honest") as honest:
            async with client(broker, "rude") as rude:
                rude.say(garbage + PING * 100)
                await rude.ended()
            await until(lambda: broker.connected() == 1)
            assert type(await honest.ask(PingReqPacket())) is PingRespPacket

    scenario()


STAGES = {
    "connected": b"",
    "half a connect": CONNECT[:5],
    "connect": CONNECT,
    "subscribed": CONNECT + SUBSCRIBE,
    "half a message": CONNECT + PublishPacket("a", bytes(100)).write()[:50],
    "message": CONNECT + SUBSCRIBE + PublishPacket("a", bytes(100)).write(),
    "goodbye": CONNECT + DisconnectPacket().write(),
    "garbage": CONNECT + b"\x00\x00",
    "twice": CONNECT + CONNECT,
}


@pytest.mark.parametrize("how", ["close", "abort", "eof"])
@pytest.mark.parametrize("stage", STAGES)
def test_an_end_at_any_time_leaves_nothing_behind(stage: str, how: str) -> None:
    @async_test
    async def scenario() -> None:
        async with serving() as broker:
            for _ in range(3):
                async with reach(broker) as peer:
                    peer.say(STAGES[stage])
                    if how == "eof":
                        peer.writer.write_eof()
                        await peer.ended()
                    elif how == "close":
                        peer.writer.close()
            await until(lambda: broker.counts.opened == 3 and all_are_gone(broker))
            assert (broker.connected(), broker.sessions()) == (0, 0)

    scenario()


@pytest.mark.parametrize("stage", STAGES)
def test_the_broker_drains_at_any_time(stage: str) -> None:
    @async_test
    async def scenario() -> None:
        async with serving(linger=0.2) as broker, reach(broker) as peer:
            peer.say(STAGES[stage])
            await until(lambda: broker.counts.bytes_received >= len(STAGES[stage]))
            await asyncio.wait_for(broker.drain(), DEADLINE)
            await peer.ended()

    scenario()


@async_test
async def test_a_lack_of_descriptors_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(greeting=0.2) as broker:
        with no_descriptors_left():
            await until(lambda: "out of file descriptors" in caplog.text)
        async with client(broker):
            assert broker.connected() == 1
