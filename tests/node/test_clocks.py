"""Nodes whose clocks differ, are set and drift: nothing that lives expires, and all is told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.node.live import QUICK, RawPeer, serving
from tests.node.test_hubs import knows
from tests.node.test_routing_scenarios import OFFER
from waystation.core.clock import SteadyClock
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.core.record import ClockRecord, MessageRecord, PeerClockRecord, Record
from waystation.journal.check import check
from waystation.journal.read import JournalReader
from waystation.node import Node
from waystation.node.metrics import NodeMetrics
from waystation.node.session import Session
from waystation.node.status import Status
from waystation.testing import DEADLINE, async_test, collect, echo, until
from waystation.testing.simulation import Machine, Simulation
from waystation.transports.http import Http
from waystation.transports.tcp import Tcp
from waystation.transports.transport import Transport
from waystation.transports.udp import Udp
from waystation.transports.websocket import WebSocket
from waystation.wire import hierarchy as wire
from waystation.wire.clock import ClockSample, encode, read
from waystation.wire.hello import Hello

HOUR = 3600
SECOND = 10**9


class WrongClock:
    """The system's clock, as far off as a test says: a Node takes it as its own."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> int:
        return time.time_ns() + round(self.seconds * SECOND)


class SystemClocks:
    """A wall clock that somebody sets, and the time that passes, which nobody can."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.steady = SteadyClock(self.wall, time.monotonic_ns)

    def wall(self) -> int:
        return time.time_ns() + round(self.ahead * SECOND)


def records_of(node: Node) -> list[Record]:
    found: list[Record] = []
    node.observe(found.append)
    return found


def offset(session: Session) -> float:
    """How far the peer's clock is ahead, in seconds, once that was measured."""
    found = session.clock_offset_us
    return float("nan") if found is None or session.clock_rtt_us is None else found / 1e6


async def connected(far: Node, near: Node, place: str, **options: Any) -> Session:
    listening = await far.listen(place)
    session = await near.connect(listening.url, name="far", wait=DEADLINE, **options)
    await until(lambda: all(s.clock_rtt_us is not None for s in (*near.sessions, *far.sessions)))
    return session


TRANSPORTS: dict[str, Callable[[], Transport]] = {
    "tcp": Tcp,
    "udp": Udp,
    "ws": WebSocket,
    "http": Http,
}


@pytest.mark.rule("TM-2")
@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
@async_test
async def test_a_message_lives_as_long_at_a_peer_whose_clock_is_off(kind: str, ahead: int) -> None:
    make = TRANSPORTS[kind]
    near = Node("near", limits=QUICK, transports=[make()], clock=WrongClock(ahead))
    far = Node("far", limits=QUICK, transports=[make()])
    async with near, far:
        got: list[Message] = collect(far, "inbox")
        echo(far)
        session = await connected(far, near, f"{kind}://127.0.0.1:0")
        assert round(offset(session)) == -ahead
        await near.send("far => inbox", b"with a ttl", ttl=60)
        await near.send("far => inbox", b"without")
        answer = await near.request("far => echo", b"?", timeout=DEADLINE)
        assert answer.payload == b"?"
        await until(lambda: len(got) == 2)
        assert got[1].expiry == NEVER
        assert 0 < got[0].expiry - far.now() <= 61_000


@pytest.mark.rule("TM-2")
@async_test
async def test_what_has_expired_does_not_live_on_at_a_peer_whose_clock_is_behind() -> None:
    async with serving() as (node, heard, place):
        collect(node, "inbox")
        peer = await RawPeer.dial(place)
        theirs = node.now() + HOUR * 1000
        peer.control(msgspec.json.encode(Hello("other", {}, time=theirs * 1000)))
        peer.send("inbox", b"x", expiry=theirs - 1_000)
        await until(lambda: heard.counts()[Reason.EXPIRED] == 1)
        peer.close()


@pytest.mark.rule("TM-2")
@async_test
async def test_clocks_that_agree_leave_the_expiry_as_it_is() -> None:
    async with Node("near", limits=QUICK) as near, Node("far", limits=QUICK) as far:
        got = collect(far, "inbox")
        sent = records_of(near)
        await connected(far, near, "tcp://127.0.0.1:0")
        await near.send("far => inbox", b"x", ttl=60)
        await until(lambda: got)
        [record] = [r for r in sent if isinstance(r, MessageRecord)]
        assert got[0].expiry == record.arrival.message.expiry


@pytest.mark.rule("TM-2")
@async_test
async def test_what_a_stranger_sends_is_not_translated() -> None:
    async with serving() as (node, _, place):
        got = collect(node, "inbox")
        peer = await RawPeer.dial(place)
        expiry = node.now() + 5 * HOUR * 1000
        peer.send("inbox", b"x", expiry=expiry)
        await until(lambda: got)
        assert got[0].expiry == expiry
        [session] = node.sessions
        assert session.clock_offset_us is None
        assert session.clock_rtt_us is None
        peer.close()


@pytest.mark.rule("TM-2")
@async_test
async def test_a_hello_tells_the_time_before_the_first_message() -> None:
    async with serving() as (node, _, place):
        got = collect(node, "inbox")
        peer = await RawPeer.dial(place)
        ahead = node.now() + 5 * HOUR * 1000
        # In one piece, so that both are read at once.
        peer.control(msgspec.json.encode(Hello("other", {}, time=ahead * 1000)))
        peer.send("inbox", b"x", expiry=ahead + 60_000)
        await until(lambda: got)
        assert 0 < got[0].expiry - node.now() <= 61_000
        hello = msgspec.json.decode(await peer.hear_control(), type=Hello)
        assert abs(hello.time - node.now() * 1000) < DEADLINE * 10**6
        assert "clock" in hello.can
        assert hello.clock_off == 0
        [session] = node.sessions
        assert session.clock_rtt_us is None  # it does not understand `clock`
        peer.close()


@pytest.mark.rule("TM-2")
@async_test
async def test_the_question_what_time_it_is_is_answered() -> None:
    async with serving() as (node, _, place):
        peer = await RawPeer.dial(place)
        peer.control(msgspec.json.encode(Hello("other", {}, can=("clock",), time=1)))
        await peer.hear_control()
        peer.control(encode(ClockSample(5)))
        peer.control(encode(ClockSample(5, 6, 7)))  # an answer that nobody asked for
        questions: list[ClockSample] = []
        answers: list[ClockSample] = []
        while not answers or len(questions) < 2:
            sample = read(await peer.hear_control())
            assert sample is not None
            (answers if sample.is_answer else questions).append(sample)
            if not sample.is_answer:
                peer.control(encode(ClockSample(sample.asked, 8_000_000, 8_000_000)))
        assert [answer.asked for answer in answers] == [5]
        assert abs(answers[0].received - node.now() * 1000) < DEADLINE * 10**6
        await until(lambda: offset(node.sessions[0]) < -1_000_000)
        peer.close()


@pytest.mark.rule("TM-2")
@async_test
async def test_announcements_expire_by_the_clock_of_the_hub() -> None:
    async with (
        Node("hub", hub=True, limits=QUICK) as top,
        Node("leaf", limits=QUICK, clock=WrongClock(-HOUR)) as below,
    ):
        session = await connected(top, below, "tcp://127.0.0.1:0", parent=True)
        ends = below.now() + 60_000
        session.send_control(wire.encode(wire.Announce([("truck", False, ends)])))
        await until(lambda: top.router.table.contains("truck", top.now()))
        entry = top.router.table.lookup("truck", top.now())
        assert entry is not None
        assert 0 < entry.expiry - top.now() <= 61_000


@pytest.mark.rule("TM-2")
@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
@async_test
async def test_listings_expire_by_the_clock_of_whoever_reads_them(ahead: int) -> None:
    async with (
        Node("hub", hub=True, limits=QUICK) as top,
        Node("leaf", limits=QUICK, clock=WrongClock(ahead)) as below,
    ):
        session = await connected(top, below, "tcp://127.0.0.1:0", parent=True)
        assert round(offset(session)) == -ahead
        for node, name in ((below, "of-leaf"), (top, "of-hub")):
            echo(node, name)
            await until(partial(knows, top, name))
            await node.register(name, *OFFER, ttl=60)
        for node in (below, top):
            found = await node.discover(*OFFER)
            assert sorted(provider.participant for provider in found) == ["of-hub", "of-leaf"]
            for provider in found:
                assert 0 < provider.ends() - node.now() <= 61_000


@pytest.mark.rule("TM-2")
@async_test
async def test_an_offset_follows_a_clock_that_is_slewed() -> None:
    clock = WrongClock()
    near, far = Node("near", limits=QUICK, clock=clock), Node("far", limits=QUICK)
    async with near, far:
        session = await connected(far, near, "tcp://127.0.0.1:0")
        [back] = far.sessions
        assert abs(offset(session)) < 0.05
        clock.seconds = 30

        def measured() -> bool:
            session.measure_clock()  # as a node does whose clock changes; its peer then doubts
            return round(offset(session)) == -30 and round(offset(back)) == 30

        await until(measured)


# What is told


@pytest.mark.rule("TM-1")
@async_test
async def test_a_wall_clock_that_is_an_hour_off_is_told_and_not_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clocks = SystemClocks()
    near = Node("near", limits=QUICK, clock=clocks.steady)
    far = Node("far", limits=QUICK)
    async with near, far:
        told, status = records_of(near), Status(near)
        metrics = NodeMetrics(near, status)
        listening = await far.listen("tcp://127.0.0.1:0")
        await near.connect(listening.url, name="far", wait=DEADLINE)
        assert "waystation_node_clock_off 0" in metrics.metrics()
        with caplog.at_level(logging.WARNING, "waystation.node"):
            clocks.ahead = HOUR
            await until(lambda: near.now() and near.clock_off)
            clocks.ahead = HOUR + 60
            await until(lambda: [r for r in told if isinstance(r, ClockRecord)])
            assert abs(near.now() - far.now()) < 60_000
            assert "waystation_node_clock_off 1" in metrics.metrics()
            seen = status.snapshot()
            assert (seen.clock_off, seen.clock_slewing) == (True, False)
            assert seen.clock_offset_us > 3590 * 10**6
            assert near.clock_offset_us > 3590 * 10**6
            # Whoever greets it now is told so.
            await near.connect(listening.url, name="again", wait=DEADLINE)
            await until(lambda: any(s.peer_clock_off_us > 3590 * 10**6 for s in far.sessions))
            clocks.ahead = 0
            await until(lambda: near.now() and not near.clock_off)
            await until(lambda: len([r for r in told if isinstance(r, ClockRecord)]) == 2)
        levels = [r.levelname for r in caplog.records if "wall clock" in r.getMessage()]
        assert levels == ["ERROR", "WARNING"]
        first, _ = (r for r in told if isinstance(r, ClockRecord))
        assert abs(first.offset_us - HOUR * 10**6) < 120 * 10**6
        assert first.detail.endswith("s ahead of the clock of the node")


@pytest.mark.rule("TM-1")
@async_test
async def test_the_clock_is_set_until_the_first_message_and_not_after() -> None:
    clocks = SystemClocks()
    clocks.ahead = -1_700_000_000  # the machine has no battery
    async with Node("garage", clock=clocks.steady) as node:
        collect(node, "inbox")
        clocks.ahead = 0  # NTP sets its clock
        await until(lambda: abs(node.now() - time.time_ns() // 10**6) < 60_000)
        await node.send("inbox", b"x")
        clocks.ahead = HOUR
        await until(lambda: node.now() and node.clock_off)
        assert abs(node.now() - time.time_ns() // 10**6) < 60_000


@pytest.mark.rule("TM-1")
@async_test
async def test_a_session_pins_the_clock_too() -> None:
    clocks = SystemClocks()
    async with (
        Node("near", limits=QUICK, clock=clocks.steady) as near,
        Node("far", limits=QUICK) as far,
    ):
        listening = await far.listen("tcp://127.0.0.1:0")
        await near.connect(listening.url, wait=DEADLINE)
        clocks.ahead = -HOUR
        await until(lambda: near.now() and near.clock_off)
        assert abs(near.now() - far.now()) < 60_000


def test_a_node_that_is_made_before_the_loop_reads_its_clock_as_well() -> None:
    clocks = SystemClocks()
    node = Node("garage", clock=clocks.steady)
    expiry = node.expiry_in(60)  # pins it, and nobody runs yet who could be told

    async def main() -> None:
        async with node:
            assert 0 < expiry - node.now() <= 60_000

    asyncio.run(main())


@pytest.mark.rule("TM-3")
@async_test
async def test_sessions_and_offsets_are_journalled(tmp_path: Path) -> None:
    def complain(path: Path, problem: str) -> None:
        raise AssertionError((path, problem))

    clocks = SystemClocks()
    near = Node("near", limits=QUICK, clock=clocks.steady, journal=tmp_path / "near")
    far = Node("far", limits=QUICK, clock=WrongClock(HOUR), hub=True, journal=tmp_path / "far")
    async with far, near:  # near ends first, and does not dial far again
        told = records_of(near)
        session = await connected(far, near, "tcp://127.0.0.1:0", parent=True)
        await until(lambda: [r for r in told if isinstance(r, PeerClockRecord)])
        place = str(session.place)
        clocks.ahead = 2 * HOUR
        await until(lambda: near.now() and near.clock_off)
        await until(lambda: [r for r in told if isinstance(r, ClockRecord)])
    rows = list(JournalReader(tmp_path / "near", complain).entries())
    there = next(iter(JournalReader(tmp_path / "far", complain).entries())).fields["incarnation"]
    sessions = [entry.fields for entry in rows if entry.table == "sessions"]
    assert [row["kind"] for row in sessions if row["kind"] != "clock"] == ["open", "close"]
    for row in sessions:
        assert (row["session"], row["place"]) == ("far", place)
        assert (row["role"], row["transport"]) == ("parent", "tcp")
        assert (row["peer_incarnation"], row["identity"]) == (there, None)
    clock = next(row for row in sessions if row["kind"] == "clock")
    assert clock["peer"] == "far"
    assert abs(clock["offset_us"] - HOUR * 10**6) < 10**6
    assert clock["rtt_us"] >= 0
    assert sessions[0]["offset_us"] is None
    [off] = [e.fields for e in rows if e.table == "nodes" and e.fields["kind"] == "clock"]
    assert abs(off["offset_us"] - 2 * HOUR * 10**6) < 60 * 10**6
    assert check(tmp_path / "near") == check(tmp_path / "far") == []


# Machines whose clocks are set while they work


def simulated(scenario: Callable[[Machine, Machine, list[str]], Any], seed: int = 1) -> None:
    """Run a hub and a leaf that send each other messages with a ttl; what was lost is listed."""

    async def main(simulation: Simulation) -> None:
        lost: list[str] = []
        above, below = (simulation.network.machine(name) for name in ("above", "below"))

        def take(node: Node) -> None:
            def note(record: Record) -> None:
                if isinstance(record, MessageRecord) and record.verdict.reason is not None:
                    lost.append(f"{node.name}: {record.verdict.reason}")

            node.observe(note)
            collect(node, f"inbox-{node.name}")

        async def run_above() -> None:
            node = Node("above", limits=QUICK, hub=True)  # which ends with its machine
            take(node)
            await node.listen("tcp://above:4000")
            await send_for_ever(node, "inbox-below")

        async def run_below() -> None:
            node = Node("below", limits=QUICK)
            take(node)
            await node.connect("tcp://above:4000", parent=True, wait=DEADLINE)
            await send_for_ever(node, "inbox-above")

        async def send_for_ever(node: Node, to: str) -> None:
            await asyncio.sleep(2)
            while True:
                await node.send(to, b"x", ttl=2.0)
                await asyncio.sleep(0.25)

        above.run(run_above)
        await asyncio.sleep(1)
        below.run(run_below)
        await asyncio.sleep(4)
        await scenario(above, below, lost)

    Simulation(seed).run(main)


@pytest.mark.rule("TM-1")
@pytest.mark.parametrize("ahead", [-3600.0, -30.0, 30.0, 3600.0])
@pytest.mark.parametrize("which", [0, 1])
def test_a_clock_that_is_wrong_for_some_seconds_lets_nothing_expire(
    ahead: float, which: int
) -> None:
    async def scenario(above: Machine, below: Machine, lost: list[str]) -> None:
        machine = (above, below)[which]
        machine.set_clock(ahead=ahead)
        await asyncio.sleep(8)
        machine.set_clock(ahead=-ahead)
        await asyncio.sleep(30)
        assert lost == []

    simulated(scenario)


@pytest.mark.rule("TM-2")
@pytest.mark.parametrize("ahead", [-60.0, 60.0])
def test_a_clock_that_is_slewed_for_a_while_lets_nothing_expire(ahead: float) -> None:
    async def scenario(above: Machine, below: Machine, lost: list[str]) -> None:
        del above
        below.set_clock(ahead=ahead)
        await asyncio.sleep(1_500)
        assert lost == []

    simulated(scenario)


@pytest.mark.rule("TM-1")
def test_a_clock_that_drifts_lets_nothing_expire() -> None:
    async def scenario(above: Machine, below: Machine, lost: list[str]) -> None:
        above.set_drift(0.04)
        below.set_drift(-0.04)
        await asyncio.sleep(600)
        assert lost == []

    simulated(scenario)


@pytest.mark.rule("TM-1")
@pytest.mark.parametrize("which", [0, 1])
def test_what_expired_while_a_machine_slept_is_not_delivered_when_it_wakes(which: int) -> None:
    """Nothing runs there while the time passes, as when a laptop is closed."""

    async def scenario(above: Machine, below: Machine, lost: list[str]) -> None:
        machine = (above, below)[which]
        machine.stop()
        await asyncio.sleep(300)
        machine.go_on()
        await asyncio.sleep(30)
        assert lost.count(f"{machine.name}: {Reason.EXPIRED}") > 100
        del lost[:]
        await asyncio.sleep(300)
        assert lost == []

    simulated(scenario)
