"""Receivers without room, and peers that never read: nobody else waits for them, and memory is
bounded in bytes (FL-1, FL-3, FL-4, FL-5)."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from waystation.cli.top import picture
from waystation.core.address import Address
from waystation.core.budget import MIB, OVERHEAD
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.node import FAIL, Context, Limits, Node, Queue
from waystation.node.flow import NodeFlow, Room
from waystation.node.inbox import WaitingLine
from waystation.node.metrics import NodeMetrics
from waystation.node.session import Session
from waystation.node.status import Status
from waystation.testing import Gate, Recorder, async_test, collect, echo, until
from waystation.testing.hostile import HostilePeer
from waystation.transports.tcp import Tcp
from waystation.wire import flow, hierarchy
from waystation.wire.hello import Hello

QUIET = Limits(heartbeat=0)
ANSWER = 10.0  # seconds; generous, and far below the stall limit


class Peer(HostilePeer):
    """A peer that keeps the control payloads it gets, and greets if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[flow.Payload] = []

    def received(self, messages: Sequence[Message]) -> None:
        for message in messages:
            said = None if message.onward_route.addresses else flow.read(message.payload)
            if said is not None:
                self.told.append(said)

    def greet(self, *can: str) -> None:
        self.send_control(flow.encode(Hello("peer", {"tcp": 1}, can=can)))

    def stop_reading(self) -> None:
        assert self.link is not None
        self.link.pause_reading()

    def leave(self) -> None:
        if self.link is not None and not self.is_over:
            self.link.abort()


@asynccontextmanager
async def dialled(place: str) -> AsyncIterator[Peer]:
    peer = Peer()
    peer.link = await Tcp().dial([place], peer)
    try:
        yield peer
    finally:
        peer.leave()


@asynccontextmanager
async def stopped_leaf(hub: Node, place: str, *names: str) -> AsyncIterator[Peer]:
    """A leaf that has announced names and then reads nothing more."""
    async with dialled(place) as peer:
        peer.greet(flow.CAPABILITY)
        announced: list[hierarchy.Participant] = [(name, False, None) for name in names]
        peer.send_control(hierarchy.encode(hierarchy.Announce(announced)))
        await until(lambda: all(name in hub.router.table.snapshot(hub.now()) for name in names))
        peer.stop_reading()
        yield peer


def _check_view_from_outside(hub: Node) -> None:
    """Metrics, status and `top` name who is full, and say whose senders wait."""
    status = Status(hub)
    lines = NodeMetrics(hub, status).metrics().splitlines()
    assert 'waystation_node_held_names{room="here"} 1' in lines
    assert f"waystation_node_budget_limit_bytes {QUIET.budget}" in lines
    [largest] = [line for line in lines if line.startswith("waystation_node_receiver_bytes{")]
    assert int(largest.rpartition(" ")[2]) >= QUIET.receiver // 2
    seen = status.snapshot()
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(picture(msgspec.json.decode(msgspec.json.encode(seen), type=type(seen))))
    drawn = console.export_text()
    assert "waiting: 1 names held here, 0 at peers" in drawn
    assert "here 0#stopped" in drawn


@pytest.mark.rule("FL-3")
@async_test
async def test_a_leaf_that_does_not_read_delays_nobody_else_behind_its_hub() -> None:
    async with (
        Node("H", hub=True, limits=QUIET) as hub,
        Node("T", hub=True, limits=QUIET) as top,
        Node("other", limits=QUIET) as other,
    ):
        listening = await hub.listen("tcp://127.0.0.1:0")
        echo(other, "work")
        await other.connect(listening.url, parent=True)
        await top.connect(listening.url, name="h")
        here, there = Recorder(top), Recorder(hub)
        async with stopped_leaf(hub, listening.place, "stopped"):
            sending = [
                asyncio.ensure_future(top.send("h => stopped", bytes(10_000))) for _ in range(1_600)
            ]
            await until(lambda: top.sessions[0].held_names == ("0#stopped",))
            for number in range(20):
                said = b"%d" % number
                answer = await top.request("h => work", said, timeout=ANSWER)
                assert answer.payload == said
            assert not all(task.done() for task in sending)
            assert hub.flow.used <= 2 * QUIET.receiver
            _check_view_from_outside(hub)
            assert there.counts()["QUEUE_FULL"] == 0
            stuck = next(s for s in hub.sessions if s.peer == "peer")
        await until(lambda: stuck.ended)
        await asyncio.gather(*sending)
        await top.close()
        await hub.close()
        here.check_outcomes()
        there.check_outcomes()


@pytest.mark.rule("FL-3", "WK-5")
@async_test
async def test_a_slow_receiver_gets_everything_in_order_over_two_hubs() -> None:
    limits = Limits(heartbeat=0, receiver=2 * MIB)
    async with (
        Node("H", hub=True, limits=limits) as hub,
        Node("T", hub=True, limits=limits) as top,
        Node("sender", limits=limits) as sender,
        Node("slow", limits=limits) as slow,
    ):
        below = await hub.listen("tcp://127.0.0.1:0")
        above = await top.listen("tcp://127.0.0.1:0")
        await hub.connect(above.url, parent=True)
        await slow.connect(below.url, parent=True)
        gate = Gate(slow, "gate", inbox=4)
        await sender.connect(above.url, name="t")
        recorders = [Recorder(node) for node in (hub, top, sender, slow)]
        await until(lambda: "gate" in top.router.table.snapshot(top.now()))
        payloads = [b"%-2000d" % number for number in range(6_000)]

        async def stream() -> None:
            for payload in payloads:
                assert (await sender.send("t => gate", payload)).reason is None

        streaming = asyncio.ensure_future(stream())
        await until(lambda: sender.sessions[0].held_names)  # it reached the sender
        await asyncio.sleep(0.05)
        gate.free.set()
        await streaming
        await until(lambda: len(gate.got) == len(payloads))
        assert gate.got == payloads
        for recorder in recorders:
            assert recorder.counts()["QUEUE_FULL"] == 0
        assert top.flow.used == hub.flow.used == 0
        assert slow.flow.used == 0


@pytest.mark.rule("FL-3")
@async_test
async def test_a_peer_that_knows_no_hold_is_not_read_and_loses_nothing() -> None:
    limits = Limits(heartbeat=0, receiver=200_000)
    async with Node("node", limits=limits) as node, Node("honest", limits=QUIET) as honest:
        echo(node)
        gate = Gate(node, "gate", inbox=4)
        journal = Recorder(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            payloads = [b"%-5000d" % number for number in range(4_000)]
            for number, payload in enumerate(payloads):
                peer.send(payload, Address(0, b"gate"))
                if number % 50 == 0:
                    await asyncio.sleep(0)
            await until(lambda: node.sessions and node.sessions[0].is_stopped)
            answer = await honest.request(f"{listening.address} => echo", b"?", timeout=ANSWER)
            assert answer.payload == b"?"
            assert node.flow.used < 2 * limits.receiver
            gate.free.set()
            await until(lambda: len(gate.got) == len(payloads))
            assert gate.got == payloads
            assert journal.counts()["QUEUE_FULL"] == 0
            assert not peer.told


@pytest.mark.rule("FL-4")
@pytest.mark.parametrize("name", ["echo", "waystation.status"])
def test_a_client_that_never_reads_its_answers_delays_nobody(name: str) -> None:
    @async_test
    async def scenario() -> None:
        async with Node("node", limits=QUIET) as node, Node("honest", limits=QUIET) as honest:
            status = Status(node)
            status.start()
            echo(node)
            journal = Recorder(node)
            listening = await node.listen("tcp://127.0.0.1:0")
            async with dialled(listening.place) as peer:
                peer.stop_reading()
                await until(lambda: node.sessions)
                (stuck,) = node.sessions
                while not stuck.is_paused:
                    peer.send(bytes(100_000))
                    await asyncio.sleep(0.001)
                for _ in range(400):
                    peer.send(b"", Address(0, name.encode()))
                route = f"{listening.address} => {name}"
                for _ in range(5):
                    await honest.request(route, b"", timeout=ANSWER)
                assert stuck.is_paused  # they were answered while that client was still there
                assert node.flow.used < 3 * QUIET.receiver
            await node.close(drain=0)
            status.stop()
            journal.check_outcomes()

    scenario()


@pytest.mark.rule("FL-4")
@async_test
async def test_a_peer_of_ours_that_does_not_read_answers_is_asked_to_ask_no_more() -> None:
    limits = Limits(heartbeat=0, receiver=200_000)
    async with Node("node", limits=limits) as node:
        echo(node)
        journal = Recorder(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            peer.greet(flow.CAPABILITY)
            await until(lambda: node.sessions and node.sessions[0].peer)
            peer.stop_reading()
            for _ in range(300):
                peer.send(bytes(100_000))
                await asyncio.sleep(0)
            await until(lambda: journal.counts()["QUEUE_FULL"])
            (session,) = node.sessions
            assert session.holds == ("0#echo",)
            assert not session.is_stopped
            assert session.account.used < 1.5 * MIB
            assert peer.link is not None
            peer.link.resume_reading()
            await until(lambda: peer.told and isinstance(peer.told[-1], flow.Go))
            await until(lambda: session.account.used == 0)


@pytest.mark.rule("FL-1")
@async_test
async def test_large_messages_into_one_inbox_are_bounded_in_bytes() -> None:
    async with Node("node", limits=QUIET) as node, Node("client", limits=QUIET) as client:
        gate = Gate(node, "gate", inbox=1_000)
        echo(node)
        journal = Recorder(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        await client.connect(listening.url, name="node")
        payload = bytes(2_000_000)
        sending = [asyncio.ensure_future(client.send("node => gate", payload)) for _ in range(819)]
        await until(lambda: client.sessions[0].held_names)
        assert (await client.request("node => echo", b"", timeout=ANSWER)).payload == b""
        assert node.flow.used <= QUIET.receiver + QUIET.share  # with what was under way
        for task in sending[100:]:  # none of which has left; to let them would only take time
            task.cancel()
        gate.free.set()
        await asyncio.gather(*sending[:100])  # what was under way without room is dropped
        await until(lambda: len(gate.got) + journal.counts()["QUEUE_FULL"] == 100)
        await until(lambda: node.flow.used == 0)


@pytest.mark.rule("FL-1", "WK-6")
@async_test
async def test_local_senders_wait_for_room_in_bytes() -> None:
    async with Node("node", limits=Limits(receiver=100_000)) as node:
        gate = Gate(node, "gate", inbox=1_000)
        sending = [asyncio.ensure_future(node.send("gate", bytes(40_000))) for _ in range(10)]
        await until(lambda: node.flow.used > 80_000)
        assert sum(task.done() for task in sending) == 3  # one is being handled, two wait for it
        gate.free.set()
        await asyncio.gather(*sending)
        await until(lambda: len(gate.got) == 10)
        assert node.flow.used == 0


@pytest.mark.rule("FL-1")
@async_test
async def test_large_messages_that_are_being_handled_count_until_they_are() -> None:
    async with Node("node", limits=QUIET) as node:
        gates = [Gate(node, f"gate-{number}", inbox=10) for number in range(5)]
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            for number in range(5):
                peer.send(bytes(1_000_000), Address(0, b"gate-%d" % number))
            await until(lambda: node.flow.used == 5 * 1_000_512)
            assert [load.bytes for load in node.flow.sessions] == [5 * 1_000_512]
            assert not node.flow.receivers  # they have room for others
            gates[0].free.set()
            await until(lambda: node.flow.used == 4 * 1_000_512)
            for _ in range(3):
                await node.send("gate-1", b"small")
            gates[1].free.set()
            await until(lambda: len(gates[1].got) == 4)
            assert node.flow.used == 3 * 1_000_512
            await node.stop_worker("gate-2")
            await until(lambda: node.flow.used == 2 * 1_000_512)
        await until(lambda: not node.sessions)
        for gate in gates:
            gate.free.set()
        await until(lambda: node.flow.used == 0)


@pytest.mark.rule("FL-1")
@async_test
async def test_small_messages_in_an_inbox_are_counted_and_given_back() -> None:
    async with Node("node") as node:
        gate = Gate(node, "gate", inbox=1_000)
        for _ in range(500):
            await node.send("gate", bytes(100))
        assert 400 * 612 <= node.flow.used <= 500 * 612
        gate.free.set()
        await until(lambda: len(gate.got) == 500)
        assert node.flow.used == 0
        for _ in range(300):
            await node.send("gate", bytes(100))
        await until(lambda: len(gate.got) == 800)
        assert node.flow.used == 0


@pytest.mark.rule("FL-1")
@pytest.mark.parametrize(("size", "messages"), [(8_000, 60), (10_000, 40)])
@async_test
async def test_what_an_inbox_does_not_count_is_set_aside_until_it_is_empty(
    size: int, messages: int
) -> None:
    async with Node("node") as node:
        gate = Gate(node, "gate", inbox=1_000)
        for _ in range(messages):
            await node.send("gate", bytes(size))
        assert node.flow.used == 0  # nothing was counted one by one
        assert node.flow.aside >= messages * (size + OVERHEAD)
        gate.free.set()
        await until(lambda: len(gate.got) == messages)
        await until(lambda: node.flow.aside == 0)


@pytest.mark.rule("FL-1")
@pytest.mark.parametrize("size", [8_000, 10_000])
@async_test
async def test_a_node_that_holds_more_than_a_quarter_sets_nothing_aside(size: int) -> None:
    async with Node("node", limits=Limits(budget=4 * MIB)) as node:
        gates = [Gate(node, name, inbox=1_000) for name in ("one", "other")]
        for gate in ("one", "other"):
            for _ in range(40):
                await node.send(gate, bytes(size))
        assert node.flow.aside == MIB  # of the first inbox
        assert node.flow.used > 0  # of the other
        for each in gates:
            each.free.set()
        await until(lambda: node.flow.aside == 0)
        assert node.flow.used == 0


@pytest.mark.rule("FL-1")
@async_test
async def test_a_worker_that_is_stopped_gives_back_what_its_inbox_set_aside() -> None:
    async with Node("node") as node:
        Gate(node, "gate", inbox=1_000)
        for _ in range(40):
            await node.send("gate", bytes(10_000))
        assert node.flow.aside == MIB
        await node.stop_worker("gate")
        await until(lambda: node.flow.aside == 0)


@pytest.mark.rule("FL-4")
@async_test
async def test_what_a_worker_sends_on_waits_outside_of_it() -> None:
    async with Node("node", limits=QUIET) as node:
        gate = Gate(node, "gate", inbox=1)
        seen: list[bytes] = []

        async def forward(message: Message, context: Context) -> None:
            seen.append(message.payload)
            verdict = await context.forward()
            assert verdict.outcome in (Outcome.DELIVERED, Outcome.QUEUED)

        node.start_worker(("door",), forward, passing=True)
        journal = Recorder(node)
        payloads = [b"%d" % number for number in range(50)]
        for payload in payloads:
            await node.send("door => gate", payload)
        await until(lambda: len(seen) == 50)
        assert journal.counts()["QUEUED"] > 40
        gate.free.set()
        await until(lambda: gate.got == payloads)
        await node.close()
        journal.check_outcomes()


@pytest.mark.rule("FL-3", "WK-4")
@async_test
async def test_who_sends_through_a_forwarding_worker_is_held_by_the_workers_name() -> None:
    limits = Limits(heartbeat=0, receiver=2 * MIB)
    async with Node("node", limits=limits) as node, Node("client", limits=limits) as client:
        gate = Gate(node, "gate", inbox=1)
        collect(node, "door")
        listening = await node.listen("tcp://127.0.0.1:0")
        await client.connect(listening.url, name="node")
        payloads = [b"%-2000d" % number for number in range(6_000)]

        async def stream() -> None:
            for payload in payloads:
                await client.send("node => door => gate", payload)

        streaming = asyncio.ensure_future(stream())
        await until(lambda: client.sessions[0].held_names == ("0#door",))
        gate.free.set()
        await streaming
        await until(lambda: gate.got == payloads)


@pytest.mark.rule("FL-4")
@async_test
async def test_a_handler_that_gives_a_policy_waits_as_it_says() -> None:
    async with Node("node", limits=Limits(heartbeat=0, receiver=10_000)) as node:
        gate = Gate(node, "gate", inbox=1)
        ended: list[Reason | None] = []

        async def handle(_: Message, context: Context) -> None:
            ended.append((await context.forward(policy=FAIL)).reason)

        node.start_worker(("door",), handle, passing=True)
        for _ in range(4):
            await node.send("door => gate", b"x")
        await until(lambda: len(ended) == 4)
        assert ended[-1] is Reason.QUEUE_FULL
        gate.free.set()


@pytest.mark.rule("FL-3", "WK-6")
@async_test
async def test_what_waits_in_a_line_that_does_not_move_is_dropped_after_the_stall_limit() -> None:
    async with Node("node", limits=Limits(heartbeat=0, stall=0.4)) as node:
        gate = Gate(node, "gate", inbox=1)
        echo(node)
        journal = Recorder(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            for number in range(5):
                peer.send(b"%d" % number, Address(0, b"gate"))
            await until(lambda: journal.counts()["QUEUE_FULL"] == 3)
            assert node.flow.used == 0
            gate.free.set()
            await until(lambda: gate.got == [b"0", b"1"])


@pytest.mark.rule("FL-3")
@async_test
async def test_a_slow_worker_that_goes_on_working_loses_nothing() -> None:
    async with Node("node", limits=Limits(heartbeat=0, stall=0.5)) as node:
        got: list[bytes] = []

        async def slowly(message: Message, context: Context) -> None:  # noqa: ARG001
            await asyncio.sleep(0.1)
            got.append(message.payload)

        node.start_worker(("slow",), slowly, inbox=8)
        journal = Recorder(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            for number in range(20):
                peer.send(b"%d" % number, Address(0, b"slow"))
            await until(lambda: len(got) == 20)
            assert journal.counts()["QUEUE_FULL"] == 0


@pytest.mark.rule("FL-3")
@async_test
async def test_a_hold_that_is_not_renewed_lapses_and_go_ends_it_at_once() -> None:
    async with Node("node", limits=QUIET) as node:
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            peer.greet(flow.CAPABILITY)
            await until(lambda: node.sessions and node.sessions[0].peer)
            (session,) = node.sessions
            peer.send_control(flow.encode(flow.Hold(["0#a", "0#b", "not an address", "0#c"])))
            peer.send_control(flow.encode(flow.Hold(["0#a", "0#b"])))
            await until(lambda: session.held_names)
            assert list(session.held_names) == ["0#a", "0#b"]
            assert not session.is_ready
            free = await node.send(f"{session.name} => c", b"free")
            assert free.outcome is Outcome.FORWARDED
            waits = [
                asyncio.ensure_future(node.send(f"{session.name} => {name}", b"?"))
                for name in ("a", "b")
            ]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in waits)
            peer.send_control(flow.encode(flow.Go(["0#a", "0#never held"])))
            peer.send_control(flow.encode(flow.Go(["0#a"])))
            assert (await waits[0]).outcome is Outcome.FORWARDED
            assert list(session.held_names) == ["0#b"]
            assert (await waits[1]).outcome is Outcome.FORWARDED  # after five seconds
            assert session.is_ready


@pytest.mark.rule("FL-5")
@async_test
async def test_a_peer_may_not_have_questions_open_without_number() -> None:
    async with Node("hub", hub=True, limits=QUIET) as hub, Node("top", hub=True) as top:
        above = await top.listen("tcp://127.0.0.1:0")
        listening = await hub.listen("tcp://127.0.0.1:0")
        parent = await hub.connect(above.url, parent=True)
        async with dialled(listening.place) as peer:
            for number in range(2_000):
                ask = hierarchy.Resolve(number, f"nobody-{number}")
                peer.send_control(hierarchy.encode(ask))
            await until(lambda: hub.flow.unanswered > 0)
            asker = next(session for session in hub.sessions if session is not parent)
            await until(lambda: asker.questions == 0)
            assert parent.is_open


@pytest.mark.rule("FL-5")
@async_test
async def test_a_peer_that_asks_and_does_not_read_the_answers_is_disconnected() -> None:
    limits = Limits(heartbeat=0, control=20_000)
    async with Node("hub", hub=True, limits=limits) as hub:
        journal = Recorder(hub)
        echo(hub)
        listening = await hub.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            peer.greet(flow.CAPABILITY)
            await until(lambda: hub.sessions and hub.sessions[0].peer)
            peer.stop_reading()
            for _ in range(100):  # so that the link does not drain
                peer.send(bytes(100_000))
                await asyncio.sleep(0)
            await until(lambda: hub.sessions[0].is_paused)
            for number in range(2_000):
                peer.send_control(hierarchy.encode(hierarchy.Resolve(number, "echo")))
            await until(lambda: not hub.sessions)
            closed = journal.sessions[-1]
            assert closed.reason is Reason.QUEUE_FULL
            assert "does not read the answers" in closed.detail
        assert hub.flow.used == 0


@pytest.mark.rule("FL-5")
@async_test
async def test_control_overtakes_messages_that_wait() -> None:
    async with Node("node", limits=QUIET) as node:
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            peer.greet(flow.CAPABILITY)
            await until(lambda: node.sessions and node.sessions[0].peer)
            (session,) = node.sessions
            peer.send_control(flow.encode(flow.Hold(["0#a"])))
            await until(lambda: session.held_names)
            waits = asyncio.ensure_future(node.send(f"{session.name} => a", b"?"))
            session.send_control(flow.encode(flow.Hold(["0#told"])))
            await until(lambda: peer.told == [flow.Hold(["0#told"])])
            assert not waits.done()
            peer.send_control(flow.encode(flow.Go(["0#a"])))
            await waits


@pytest.mark.rule("FL-1")
@async_test
async def test_over_the_budget_the_largest_are_not_read_and_others_are() -> None:
    limits = Limits(heartbeat=0, budget=2 * MIB, receiver=MIB)
    async with Node("node", limits=limits) as node, Node("honest", limits=QUIET) as honest:
        echo(node)
        gates = [Gate(node, f"gate-{number}", inbox=1_000) for number in range(8)]
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            peer.greet(flow.CAPABILITY)
            await until(lambda: node.sessions and node.sessions[0].peer)
            (greedy,) = node.sessions
            for number in range(200):
                peer.send(bytes(50_000), Address(0, b"gate-%d" % (number % 8)))
                await asyncio.sleep(0)
            await until(lambda: greedy.is_stopped)
            assert not node.flow.sessions[0].is_read
            answer = await honest.request(f"{listening.address} => echo", b"!", timeout=ANSWER)
            assert answer.payload == b"!"
            assert node.flow.used <= 1.25 * limits.budget + 50_512
            for gate in gates:
                gate.free.set()
            await until(lambda: not greedy.is_stopped)
            await until(lambda: node.flow.used == 0)


@pytest.mark.rule("FL-1")
@async_test
async def test_far_over_the_budget_what_arrives_is_shed() -> None:
    limits = Limits(heartbeat=0, budget=100_000)
    async with Node("node", limits=limits) as node:
        gates = [Gate(node, f"gate-{number}", inbox=100) for number in range(20)]
        ended = [
            (await node.send(f"gate-{number % 20}", bytes(1_000), policy=FAIL)).reason
            for number in range(2_000)
        ]
        assert Reason.QUEUE_FULL in ended
        assert node.flow.shed > 0
        assert node.flow.used <= 1.5 * limits.budget
        for gate in gates:
            gate.free.set()
        await until(lambda: node.flow.used == 0)
        assert (await node.send("gate-0", b"x", policy=FAIL)).reason is None


async def stand_still(node: Node, peer: Peer) -> Session:
    """Ask for answers and read none of them, until the node is over its budget with them alone."""
    peer.greet(flow.CAPABILITY)
    await until(lambda: node.sessions and node.sessions[0].peer)
    (session,) = node.sessions
    peer.stop_reading()
    while not (session.is_paused and session.is_stopped):
        peer.send(bytes(50_000), Address(0, b"echo"))
        await asyncio.sleep(0.001)
    return session


@pytest.mark.rule("FL-1")
@async_test
async def test_a_session_that_stands_still_over_the_budget_is_looked_at_and_sheds() -> None:
    """Its peer may not read since it is over its own budget: each would wait for the other."""
    limits = Limits(heartbeat=0, budget=MIB // 2, stall=0.1)
    async with Node("node", hub=True, limits=limits) as node:
        echo(node)
        gate = Gate(node, "gate")
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            session = await stand_still(node, peer)
            for _ in range(3):
                peer.send(bytes(50_000), Address(0, b"gate"))
            peer.send_control(hierarchy.encode(hierarchy.Announce([("found", False, None)])))
            await until(lambda: "found" in node.router.table.snapshot(node.now()))
            assert node.flow.shed > 0
            assert node.flow.used <= 1.5 * limits.budget
            assert peer.link is not None
            peer.link.resume_reading()
            await until(lambda: not session.is_paused and not session.is_stopped)
            gate.free.set()
            await until(lambda: node.flow.used == 0)


@pytest.mark.rule("FL-1")
@async_test
async def test_a_session_without_a_link_is_not_kept_among_those_that_are_not_read() -> None:
    limits = Limits(heartbeat=0, budget=MIB // 2)
    async with Node("node", limits=limits) as node:
        echo(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        async with dialled(listening.place) as peer:
            session = await stand_still(node, peer)
        await until(lambda: not node.sessions)
        assert not session.is_stopped


@pytest.mark.rule("FL-1")
@async_test
async def test_copies_for_a_session_that_does_not_read_are_bounded_in_bytes() -> None:
    limits = Limits(heartbeat=0, receiver=MIB)
    async with Node("hub", hub=True, limits=limits) as hub:
        journal = Recorder(hub)
        listening = await hub.listen("tcp://127.0.0.1:0")
        async with stopped_leaf(hub, listening.place, "stuck") as leaf:
            leaf.send_control(hierarchy.encode(hierarchy.Subscribe([("hub/news/*", "stuck")])))
            await until(lambda: len(hub.router.subscriptions) == 1)
            for _ in range(300):
                await hub.publish("news", bytes(100_000), policy=Queue(60))
                await asyncio.sleep(0)
            assert journal.counts()["QUEUE_FULL"] > 100
            assert hub.flow.used < 3 * limits.receiver
            assert hub.flow.pressed == 0
            (largest,) = hub.flow.receivers
            assert (largest.messages, largest.bytes <= MIB) == (10, True)
        await until(lambda: hub.flow.used == 0)
        journal.check_outcomes()


@pytest.mark.rule("FL-3")
@async_test
async def test_a_new_link_voids_what_was_held() -> None:
    async with Node("node", limits=QUIET) as node, Node("client", limits=QUIET) as client:
        gate = Gate(node, "gate", inbox=1)
        listening = await node.listen("tcp://127.0.0.1:0")
        session = await client.connect(listening.url, name="node")
        sending = [
            asyncio.ensure_future(client.send("node => gate", bytes(50_000))) for _ in range(200)
        ]
        await until(lambda: session.held_names)
        openings = session.openings
        session.abort_link()
        await until(lambda: not session.held_names)
        gate.free.set()
        await until(lambda: session.openings > openings)
        verdicts = await asyncio.gather(*sending)
        assert {verdict.reason for verdict in verdicts} <= {None, Reason.TRANSPORT_DOWN}
        await until(lambda: node.flow.used == client.flow.used == 0)


class _Told:
    """A session, as far as a room tells it what to read."""

    def __init__(self) -> None:
        self.is_read = True

    def stop_for(self, room: Room) -> None:
        del room
        self.is_read = False

    def read_on(self, room: Room) -> None:
        del room
        self.is_read = True


@pytest.mark.rule("FL-3")
@async_test
async def test_a_receiver_is_not_slow_because_its_process_was_held_up() -> None:
    node: Any = SimpleNamespace(limits=Limits())
    session: Any = _Told()
    room = Room(NodeFlow(node), WaitingLine(), "receiver")
    room.glance(session)
    time.sleep(0.15)  # noqa: ASYNC251 - nothing runs, neither the receiver nor a timer
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not session.is_read  # the receiver has yet to show how it gets on
    await until(lambda: session.is_read)  # it does not: nobody else waits for it any longer
    room.glance(session)
    assert session.is_read
