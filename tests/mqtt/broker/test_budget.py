"""What a broker holds for clients that are slow or away: bounded in bytes, and told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from mqtt5 import (
    ConnAckReasonCode,
    ConnectPacket,
    DisconnectPacket,
    PingReqPacket,
    PingRespPacket,
    PubAckPacket,
    PubAckReasonCode,
    PublishPacket,
    QoS,
    Will,
)

from tests.mqtt.broker.test_broker import Peer, client, reach, refused, serving
from tests.node.live import runs_on_every_loop
from waystation.mqtt.broker import Broker, BrokerMetrics
from waystation.mqtt.broker.checking import PasswordChecks
from waystation.testing import DEADLINE, async_test, until

KIB = 1024


async def leave(broker: Broker, name: str, *filters: str) -> None:
    """Subscribe, and go away; the session stays."""
    options = {"clean_start": False, "session_expiry_interval": 9999}
    async with client(broker, name, **options) as peer:
        await peer.subscribe(*filters)
        peer.say(DisconnectPacket())
        await peer.ended()


def stop_reading(peer: Peer) -> None:
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]


@asynccontextmanager
async def deaf(broker: Broker, count: int, filter: str, qos: QoS) -> AsyncIterator[None]:
    """Subscribers that never read."""
    async with AsyncExitStack() as stack:
        for number in range(count):
            peer = await stack.enter_async_context(client(broker, f"deaf-{filter}-{number}"))
            await peer.subscribe(filter, qos=qos)
            stop_reading(peer)
        yield


@pytest.mark.rule("FL-1")
@async_test
async def test_sessions_that_are_away_share_one_budget() -> None:
    budget = 1024 * KIB
    async with serving(budget=budget, queue_bytes=512 * KIB) as broker, client(broker) as sender:
        for number in range(30):
            await leave(broker, f"away-{number}", "a")
        for _ in range(60):
            answer = await sender.publish("a", bytes(10 * KIB))
            assert answer.reason_code is PubAckReasonCode.SUCCESS
        held = broker.dispatcher.held
        held.measure_all()
        assert budget < held.shares.total.used <= 5 * budget // 4
        assert broker.counts.dropped["QUEUE_FULL"] > 0


@pytest.mark.rule("FL-1")
@async_test
async def test_a_queue_is_bounded_in_bytes_and_takes_one_message_of_any_size() -> None:
    async with serving(queue_bytes=100 * KIB) as broker, client(broker) as sender:
        await leave(broker, "away", "a")
        await sender.publish("a", bytes(300 * KIB))
        await sender.publish("a", b"too much")
        assert broker.counts.dropped == {"QUEUE_FULL": 1}


@pytest.mark.rule("FL-1")
@async_test
async def test_properties_count_as_well_as_payloads() -> None:
    async with serving(queue_bytes=100 * KIB) as broker, client(broker) as sender:
        await leave(broker, "away", "a")
        text = "x" * 20 * KIB
        for _ in range(10):
            await sender.publish("a", b"", user_properties=[(text, text)])
        assert broker.counts.dropped["QUEUE_FULL"] == 8


@pytest.mark.rule("FL-1")
@runs_on_every_loop
async def test_the_session_that_holds_most_ends_and_others_go_on() -> None:
    async with (
        serving(budget=1024 * KIB, queue_bytes=4096 * KIB) as broker,
        client(broker) as sender,
        client(broker, "quick") as quick,
    ):
        await leave(broker, "greedy", "a")
        await quick.subscribe("b")
        for _ in range(12):  # the empty one takes anything; then it is over the budget
            await sender.publish("a", bytes(100 * KIB))
        await sender.publish("a", bytes(100 * KIB))
        await leave(broker, "late", "c")
        await sender.publish("c", bytes(800 * KIB))
        await until(lambda: broker.sessions() == 3)  # without the greedy one
        assert broker.counts.disconnected["over_budget"] == 1
        assert broker.counts.dropped["QUEUE_FULL"] >= 10
        await sender.publish("b", b"still here")
        assert (await quick.hear()).payload == b"still here"


@pytest.mark.rule("FL-3")
@pytest.mark.parametrize("qos", [QoS.AT_MOST_ONCE, QoS.AT_LEAST_ONCE])
@runs_on_every_loop
async def test_subscribers_that_never_read_are_bounded_together_and_delay_nobody(qos: QoS) -> None:
    budget = 8 << 20
    async with (
        serving(budget=budget, queue_bytes=1024 * KIB) as broker,
        client(broker, "quick") as quick,
        client(broker, "sender") as sender,
        deaf(broker, 20, "a", qos),
    ):
        await quick.subscribe("a", qos=qos)
        for number in range(300):  # far more than the systems' own buffers
            sender.say(
                PublishPacket(
                    "a", b"%-65536d" % number, qos=QoS.AT_LEAST_ONCE, packet_id=number + 1
                )
            )
            message = await quick.hear()
            assert int(message.payload) == number
            if message.packet_id:
                quick.say(PubAckPacket(message.packet_id))
            assert type(await sender.hear()) is PubAckPacket
        assert broker.counts.dropped["QUEUE_FULL"] > 0
        held = broker.dispatcher.held
        await asyncio.sleep(0.1)
        held.measure_all()
        assert held.shares.total.used <= 5 * budget // 4 + 65_536
        assert type(await sender.ask(PingReqPacket())) is PingRespPacket


@pytest.mark.rule("FL-1")
@async_test
async def test_wills_count() -> None:
    async with serving(queue_bytes=40 * KIB) as broker:
        will = Will("a", payload=bytes(50 * KIB))
        assert await refused(broker, ConnectPacket("x", will=will)) is (
            ConnAckReasonCode.QUOTA_EXCEEDED
        )
        async with client(broker, "x", will=Will("a", payload=bytes(30 * KIB))):
            await until(lambda: broker.dispatcher.held.shares.total.used > 30 * KIB)


@pytest.mark.rule("FL-1")
@async_test
async def test_metrics_tell_for_whom_most_is_held() -> None:
    async with serving() as broker, client(broker) as sender:
        for number in range(12):
            await leave(broker, f"away-{number}", f"t/{number}", "all")
        await sender.publish("all", bytes(10 * KIB))
        await sender.publish("t/7", bytes(50 * KIB), retain=True)
        text = BrokerMetrics(broker).metrics()
        lines = text.splitlines()
        clients = [line for line in lines if line.startswith("waystation_broker_client_held_b")]
        assert len(clients) == 10
        assert any('client="away-7"' in line and float(line.split()[-1]) > 60e3 for line in clients)
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert float(values["waystation_broker_held_bytes"]) > 12 * 10 * KIB
        assert float(values["waystation_broker_budget_bytes"]) == 256 << 20
        assert float(values["waystation_broker_retained_bytes"]) > 50 * KIB


# Passwords


@pytest.mark.rule("FL-2")
@runs_on_every_loop
async def test_wrong_passwords_keep_no_right_one_waiting() -> None:
    """Hundreds of wrong passwords from one address, and a right one from another."""
    checks = PasswordChecks(threads=2, penalty=0.2)
    running, most = 0, 0
    lock = threading.Lock()

    def wrong() -> bool:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return False

    first = checks.ask("192.0.2.1", "root", wrong)
    assert first is not None
    async with asyncio.timeout(DEADLINE):
        assert await first is False
        asked = [checks.ask("192.0.2.1", f"user-{number}", wrong) for number in range(300)]
        assert sum(each is None for each in asked) == 199  # one is begun, and 100 wait
        most = 0
        for _ in range(20):
            right = checks.ask("192.0.2.2", "garage", lambda: True)
            assert right is not None
            assert await right
        answers = [each for each in asked if each is not None]
        assert not await answers[0]
        assert most == 1  # one check at a time for the address that failed
    for each in answers:
        each.cancel()
    checks.close()


@pytest.mark.rule("FL-2")
@async_test
async def test_an_address_that_never_failed_uses_all_threads() -> None:
    checks = PasswordChecks(threads=2, penalty=0.1)
    both = threading.Barrier(2)

    def right() -> bool:
        both.wait(DEADLINE)
        return True

    answers = [checks.ask("192.0.2.1", "fleet", right) for _ in range(200)]
    async with asyncio.timeout(DEADLINE):
        for answer in answers:
            assert answer is not None
            assert await answer
    checks.close()


@pytest.mark.rule("FL-2")
@async_test
async def test_a_client_that_left_costs_no_check() -> None:
    checks = PasswordChecks(threads=1, penalty=0.1)
    go_on = threading.Event()
    checked: dict[str, bool] = {}
    first = checks.ask("192.0.2.1", "a", lambda: go_on.wait(DEADLINE))
    left = checks.ask("192.0.2.1", "b", lambda: checked.setdefault("left", True))
    last = checks.ask("192.0.2.1", "c", lambda: checked.setdefault("last", True))
    assert first is not None
    assert left is not None
    assert last is not None
    left.cancel()
    go_on.set()
    async with asyncio.timeout(DEADLINE):
        assert await first
        assert await last
    assert checked == {"last": True}
    checks.close()


@pytest.mark.rule("FL-2")
@async_test
async def test_the_broker_says_that_it_is_busy_with_wrong_passwords() -> None:
    async with (
        serving(authenticate=lambda *_: False, penalty=30.0, greeting=60.0) as broker,
        AsyncExitStack() as stack,
    ):
        for number in range(130):
            peer = await stack.enter_async_context(reach(broker))
            peer.say(ConnectPacket(f"x-{number}", username=f"u-{number}", password=b"guess"))
        await until(lambda: broker.counts.refused["server_busy"] > 0)
