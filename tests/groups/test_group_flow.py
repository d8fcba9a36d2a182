"""Members that do not read: what they cost is bounded in bytes, and nobody waits for them."""

from __future__ import annotations

import asyncio

import pytest

from tests.groups.crowd import Ear, carrier_of, everybody_knows, members, named, routers, streams_of
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord, Record
from waystation.groups import Group, GroupLimits
from waystation.groups.router_client import CONTROL, ClientConnection
from waystation.groups.settings import CarrierSettings
from waystation.testing import async_test, until

KIB = 1024
LIMITS = GroupLimits(beat=30.0, grace=60.0, laggards=0.3, window_bytes=512 * KIB)


def stop_reading(group: Group) -> None:
    """Let a member's process hang, as its peers see it."""
    carrier = carrier_of(group)
    for server in getattr(carrier, "servers", {}).values():
        for connection in server.connections:
            connection.pause_reading()
    for router in getattr(carrier, "connections", {}).values():
        router.pause_reading()


def read_again(group: Group) -> None:
    """Let a member that hung go on."""
    carrier = carrier_of(group)
    for server in getattr(carrier, "servers", {}).values():
        for connection in server.connections:
            connection.resume_reading()
    for router in getattr(carrier, "connections", {}).values():
        router.resume_reading()


async def connected(groups: list[Group]) -> None:
    """Have everybody dial everybody."""
    for group in groups:
        await group.send(b"hello")
    for group in groups:
        carrier = carrier_of(group)
        if hasattr(carrier, "servers"):
            servers = carrier.servers.values()
            await until(lambda: sum(len(s.connections) for s in servers) >= len(groups) - 1)  # noqa: B023


@pytest.mark.rule("FL-3")
@pytest.mark.parametrize("kind", ["gossip", "gossip+tcp"])
@async_test
async def test_a_member_that_does_not_read_delays_no_other(kind: str) -> None:
    async with (
        routers() as found,
        members(["sender", "good", "stuck"], found.via(kind), limits=LIMITS) as everybody,
    ):
        sender, good, stuck = everybody
        await connected(everybody)
        ear = Ear(good)
        await until(lambda: ear.heard)
        stop_reading(stuck)
        count = 400  # each of which would wait, if anybody waited for the stuck one
        for number in range(count):
            payload = b"%-40000d" % number
            verdict = await sender.send(payload)
            assert verdict.outcome is Outcome.FORWARDED
        await until(lambda: len(ear.payloads("sender")) == count + 1)
        numbers = [int(payload) for payload in ear.payloads("sender")[1:]]
        assert numbers == list(range(count))
        await good.send(b"and back", to=sender.me)
        assert sender.counts[Reason.QUEUE_FULL.value] > 0
        assert streams_of(sender).held.total.used <= 2 * (512 * KIB + 40_000)
        read_again(stuck)


@pytest.mark.rule("FL-3")
@async_test
async def test_who_lost_a_message_to_all_is_told_in_the_journal_and_catches_up() -> None:
    async with (
        routers() as found,
        members(["sender", "good", "stuck"], found.via("gossip+tcp"), limits=LIMITS) as everybody,
    ):
        sender, good, stuck = everybody
        await connected(everybody)
        told: list[Record] = []
        sender.observe(told.append)
        ears = [Ear(good), Ear(stuck)]
        stop_reading(stuck)
        for number in range(600):
            await sender.send(b"%-10000d" % number)
        dropped = [
            (str(record.verdict.recipient), record.verdict.reason)
            for record in told
            if isinstance(record, MessageRecord) and record.verdict.outcome is Outcome.DROPPED
        ]
        assert dropped
        assert set(dropped) == {("stuck", Reason.QUEUE_FULL)}
        read_again(stuck)
        stuck_uuid = named(sender, "stuck").uuid
        await until(lambda: not streams_of(sender).peers[stuck_uuid].undelivered)
        await sender.send(b"-1")
        await until(lambda: all(ear.payloads("sender")[-1:] == [b"-1"] for ear in ears))
        heard = [int(payload) for payload in ears[1].payloads("sender") if payload != b"hello"]
        assert heard[:-1] == sorted(set(heard[:-1]))  # in order, with what was lost missing


@pytest.mark.rule("FL-1")
@async_test
async def test_what_is_on_its_way_to_all_members_together_is_bounded() -> None:
    budget = 2048 * KIB
    limits = GroupLimits(beat=30.0, grace=60.0, laggards=2.0, window_bytes=512 * KIB, budget=budget)
    names = ["sender", "good", *(f"stuck-{number}" for number in range(8))]
    async with (
        routers() as found,
        members(names, found.via("gossip+tcp"), limits=limits) as everybody,
    ):
        sender, good, *stuck = everybody
        await connected(everybody)
        for group in stuck:
            stop_reading(group)
        ear = Ear(good)
        for number in range(600):  # far more than the systems' own buffers
            await sender.send(b"%-20000d" % number)
        await until(lambda: ear.payloads("sender")[-1:] == [b"%-20000d" % 599])
        status = sender.status()
        assert status.budget == budget
        assert 0 < status.held <= budget + 9 * (32 * KIB + 20_000)
        assert {name for name, _ in status.largest} <= {*names, "*"}
        assert len(status.largest) >= 8
        assert status.dropped[Reason.QUEUE_FULL.value] > 0
        for destination in carrier_of(sender).destinations.values():
            if destination.connection is not None:  # no more than a little beyond the system's own
                assert destination.connection.unsent < 256 * KIB + 4 * 64 * KIB


@pytest.mark.rule("FL-1")
@pytest.mark.parametrize("kind", ["gossip", "gossip+tcp"])
@async_test
async def test_what_nobody_reads_here_is_bounded_in_bytes(kind: str) -> None:
    limits = GroupLimits(beat=30.0, inbox_bytes=200 * KIB, window_bytes=100 * KIB)
    async with (
        routers() as found,
        members(["a", "b"], found.via(kind), limits=limits) as (a, b),
    ):
        sending = asyncio.ensure_future(send_numbers(a, b, 500))
        await until(lambda: b.status().inbox_bytes >= 200 * KIB)
        await asyncio.sleep(0.2)
        assert b.status().inbox_bytes <= 200 * KIB + 64 * KIB  # and one packet
        ear = Ear(b)
        await sending
        await until(lambda: len(ear.heard) == 500)
        assert [int(payload) for payload in ear.payloads()] == list(range(500))
        assert b.status().inbox_bytes == 0


@pytest.mark.rule("FL-1")
@async_test
async def test_what_is_held_back_of_a_member_is_bounded_in_bytes() -> None:
    limits = GroupLimits(beat=30.0, window_bytes=100 * KIB)
    sender_limits = GroupLimits(beat=30.0, window_bytes=4096 * KIB)
    async with (
        routers() as found,
        Group("fleet", name="a", via=found.via(), limits=sender_limits) as a,
        Group("fleet", name="b", via=found.via(), limits=limits) as b,
    ):
        await everybody_knows([a, b])
        b.hold(a.me)
        sending = asyncio.ensure_future(send_numbers(a, b, 500))
        arrivals = streams_of(b).membership.peer(a.me.uuid).arrivals
        assert arrivals is not None
        await until(lambda: arrivals.waiting_bytes >= 100 * KIB)
        await asyncio.sleep(0.2)
        assert arrivals.waiting_bytes <= 100 * KIB + 64 * KIB
        ear = Ear(b)
        b.release(a.me)
        await sending
        await until(lambda: len(ear.heard) == 500)
        assert arrivals.waiting_bytes == 0


@pytest.mark.rule("FL-5")
@async_test
async def test_what_is_posted_to_a_member_that_takes_nothing_is_bounded() -> None:
    limits = GroupLimits(beat=30.0, window=8, waiting_bytes=10 * KIB)
    async with (
        routers() as found,
        members(["a", "b"], found.via("gossip+tcp"), limits=limits) as (a, b),
    ):
        await connected([a, b])
        stop_reading(b)
        ends: list[Reason | None] = []
        for _ in range(200):
            a.post(b.me.uuid, b"answer", ends.append)
        assert ends == [Reason.QUEUE_FULL] * len(ends)
        assert 200 - 4 * 8 <= len(ends) < 200
        ends.clear()
        for _ in range(10):
            a.post(bytes(15) + b"\7", bytes(4 * KIB), ends.append)  # nobody has that address
        assert ends == [Reason.QUEUE_FULL] * 8


async def send_numbers(a: Group, b: Group, count: int) -> None:
    for number in range(count):
        await a.send(b"%-5000d" % number, to=named(a, "b"))
    del b


@pytest.mark.rule("FL-1")
@async_test
async def test_what_waits_for_an_address_is_bounded_in_bytes() -> None:
    limits = GroupLimits(beat=30.0, waiting_bytes=100 * KIB)
    async with (
        routers() as found,
        members(["a", "b"], found.via("gossip+tcp"), limits=limits) as (
            a,
            b,
        ),
    ):
        unknown = b.me.address.__class__(bytes(15) + b"\7", "unknown")
        verdicts = [await a.send(bytes(30 * KIB), to=unknown, ttl=3.0) for _ in range(10)]
        outcomes = [verdict.outcome for verdict in verdicts]
        assert outcomes == [Outcome.QUEUED] * 3 + [Outcome.DROPPED] * 7
        assert {verdict.reason for verdict in verdicts[3:]} == {Reason.QUEUE_FULL}
        assert 90 * KIB < a.status().waiting_bytes <= 100 * KIB
        await until(lambda: a.status().waiting_bytes == 0)  # nobody has that address


@pytest.mark.rule("FL-5")
@async_test
async def test_control_packets_have_room_of_their_own_behind_messages_that_do_not_drain() -> None:
    async def never_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    server = await asyncio.start_server(never_read, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = CarrierSettings(
        group="fleet", dialect="jgroups5", tls=None, token=b"", limits=GroupLimits()
    )
    called: list[bool] = []
    connection = ClientConnection(f"127.0.0.1:{port}", settings, lambda: called.append(True))
    await connection.dial()
    assert called == [True]
    while connection.has_room:
        connection.put(bytes(60_000))
        connection.flush()
        await asyncio.sleep(0)
    full = connection.unsent
    assert full < 256 * KIB + 200_000
    for _ in range(100):
        connection.put(bytes(1_000))
    assert connection.unsent >= full + 100_000
    for _ in range(10_000):
        connection.put(bytes(1_000))
    assert connection.unsent <= full + CONTROL
    connection.abort()
    ended.set()
    server.close()
    await server.wait_closed()
