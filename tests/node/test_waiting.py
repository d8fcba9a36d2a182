"""Messages for somebody who is not there: they wait as their sender wants, and end exactly once."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, Self

import pytest

from tests.node.live import RawPeer
from tests.node.test_hubs import QUIET, hub, knows, leaf
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.errors import LocalError, UndeliverableError
from waystation.net.place import place_of
from waystation.node import FAIL, Limits, Node, Queue, Wait
from waystation.node.waiting import Waiting
from waystation.testing import (
    DEADLINE,
    Gate,
    ManualClock,
    Recorder,
    async_test,
    collect,
    echo,
    settle,
    until,
)
from waystation.wire.ockam import PREFACE

PERSIST = Wait(persist=True)
KEEP = Queue(60, persist=True)


def free_place() -> str:
    """A place where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return place_of(found.getsockname())


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def waiting_for(node: Node) -> dict[Any, int]:
    """Whom messages wait for, and how many of them."""
    waited_for = node._kernel.waiting.waited_for
    return {key: absent.waiting() for key, absent in waited_for.items()}


# A name that nobody has


@pytest.mark.rule("WK-5", "OB-1")
@async_test
async def test_what_waits_for_a_name_comes_in_order_as_soon_as_somebody_has_it() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        waiting = [
            asyncio.ensure_future(node.send("truck", payload, policy=PERSIST))
            for payload in numbered(20)
        ]
        await settle()
        assert waiting_for(node) == {"truck": 20}
        assert journal.messages == []
        got = collect(node, "truck")
        verdicts = await asyncio.gather(*waiting)
        await until(lambda: len(got) == 20)
        assert payloads(got) == numbered(20)
        assert {verdict.outcome for verdict in verdicts} == {Outcome.DELIVERED}
        assert waiting_for(node) == {}
        journal.check_outcomes()


@pytest.mark.rule("OB-1", "OB-3")
@async_test
async def test_a_parked_message_is_told_as_queued_and_then_as_what_became_of_it() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        verdict = await node.send("truck", b"1", policy=KEEP)
        assert (verdict.outcome, verdict.recipient) == (Outcome.QUEUED, "truck")
        got = collect(node, "truck")
        await until(lambda: got)
        await settle()
        assert journal.outcomes() == [(b"1", "QUEUED"), (b"1", "DELIVERED")]
        journal.check_outcomes()


@pytest.mark.rule("WK-5")
@async_test
async def test_what_is_sent_when_somebody_has_just_appeared_comes_behind_what_waited() -> None:
    async with Node("garage") as node:
        await node.send("truck", b"0", policy=KEEP)
        got = collect(node, "truck")
        await node.send("truck", b"1")
        await until(lambda: len(got) == 2)
        assert payloads(got) == numbered(2)


@pytest.mark.parametrize("policy", [FAIL, Wait(), Wait(5), Queue(5)])
@async_test
async def test_without_persist_nobody_waits_for_a_name_that_nobody_has(policy: Any) -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        sent = await node.send("truck", b"", policy=policy)
        assert sent.verdict == Verdict.dropped(Reason.NO_ROUTE, "truck")
        assert waiting_for(node) == {}
        journal.check_outcomes()


@pytest.mark.rule("OB-1")
@async_test
async def test_a_message_whose_life_is_over_while_it_waits_is_expired() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        clock = asyncio.get_running_loop().time
        begin = clock()
        sent = await node.send("truck", b"1", ttl=0.05, policy=PERSIST)
        assert clock() - begin < 20
        assert sent.verdict == Verdict.dropped(Reason.EXPIRED, "truck")
        journal.check_outcomes()


@pytest.mark.rule("OB-2")
@async_test
async def test_a_parked_message_whose_life_is_over_is_expired_also_if_it_might_wait_longer() -> (
    None
):
    async with Node("garage") as node:
        journal = Recorder(node)
        await node.send("truck", b"1", ttl=0.05, policy=KEEP)
        await until(lambda: len(journal.messages) == 2)
        assert journal.outcomes() == [(b"1", "QUEUED"), (b"1", "EXPIRED")]


@pytest.mark.rule("OB-2")
@async_test
async def test_a_wait_that_ends_with_the_life_of_a_message_is_expired_whatever_the_clock_says() -> (
    None
):
    async with Node("garage", clock=ManualClock()) as node:  # always a little behind the loop's
        verdict = await node.send("truck", b"1", ttl=0.05, policy=PERSIST)
        assert verdict.reason is Reason.EXPIRED


@async_test
async def test_a_queue_that_is_over_before_the_message_is_tells_so() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        await node.send("truck", b"1", ttl=60, policy=Queue(0.05, persist=True))
        await until(lambda: len(journal.messages) == 2)
        assert journal.outcomes() == [(b"1", "QUEUED"), (b"1", "EXPIRED")]
        journal.check_outcomes()


@async_test
async def test_a_wait_that_is_over_before_the_message_is_tells_that_nobody_came() -> None:
    async with Node("garage") as node:
        verdict = await node.send("truck", b"1", policy=Wait(0.05, persist=True))
        assert verdict.reason is Reason.NO_ROUTE


@pytest.mark.rule("OB-1")
@async_test
async def test_a_sender_that_is_cancelled_takes_its_message_along() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        first, second, third = (
            asyncio.ensure_future(node.send("truck", payload, policy=PERSIST))
            for payload in numbered(3)
        )
        await settle()
        second.cancel()
        await settle()
        assert journal.outcomes() == [(b"1", "NO_ROUTE")]
        got = collect(node, "truck")
        await asyncio.gather(first, third)
        await until(lambda: len(got) == 2)
        assert payloads(got) == [b"0", b"2"]
        await settle()
        journal.check_outcomes()


@pytest.mark.rule("OB-1")
@async_test
async def test_what_waits_when_the_node_closes_is_accounted_for() -> None:
    node = Node("garage")
    journal = Recorder(node)
    waiting = [asyncio.ensure_future(node.send("truck", b"w", policy=PERSIST)) for _ in range(5)]
    asking = asyncio.ensure_future(node.request("truck", b"r", policy=PERSIST))
    await node.send("truck", b"q", policy=KEEP)
    await settle()
    await node.close()
    verdicts = await asyncio.gather(*waiting)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.DROPPED}
    with pytest.raises(UndeliverableError):
        await asking
    await settle()
    assert len(journal.messages) == 8  # one of them was QUEUED first
    journal.check_outcomes()
    assert waiting_for(node) == {}


@pytest.mark.rule("OB-1")
@async_test
async def test_what_waits_when_the_node_closes_is_told_before_close_returns() -> None:
    node = Node("garage")
    journal = Recorder(node)
    await node.send("truck", b"q", policy=KEEP)
    await node.close()
    journal.check_outcomes()


@pytest.mark.rule("OB-1")
@async_test
async def test_somebody_who_appears_and_is_gone_before_it_was_read_from_is_waited_for_again() -> (
    None
):
    async with Node("garage") as node:
        journal = Recorder(node)
        waiting = [
            asyncio.ensure_future(node.send("truck", payload, policy=PERSIST))
            for payload in numbered(4)
        ]
        await settle()
        Gate(node, "truck", inbox=1)
        await settle()  # one is being handled, one is in the inbox, two wait for room
        await node.stop_worker("truck")
        await settle()
        ended = journal.outcomes()
        assert ended == [(b"0", "FAILED"), (b"1", "NO_ROUTE")]
        got = collect(node, "truck")
        await asyncio.gather(*waiting)
        await until(lambda: len(got) == 2)
        assert payloads(got) == [b"2", b"3"]
        await settle()
        journal.check_outcomes()


@pytest.mark.rule("WK-5", "WK-6")
@async_test
async def test_who_appears_with_a_small_inbox_gets_everything_in_order() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        waiting = [
            asyncio.ensure_future(node.send("truck", payload, policy=PERSIST))
            for payload in numbered(50)
        ]
        await settle()
        for payload in numbered(100)[50:]:
            await node.send("truck", payload, policy=KEEP)
        await settle()
        gate = Gate(node, "truck", inbox=2)
        await settle()
        assert gate.got == []
        gate.free.set()
        await asyncio.gather(*waiting)
        await until(lambda: len(gate.got) == 100)
        assert gate.got == numbered(100)
        await settle()
        journal.check_outcomes()


@pytest.mark.rule("WK-6")
@async_test
async def test_no_more_than_so_many_are_parked_for_one_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Waiting, "QUEUE_LIMIT", 3)
    async with Node("garage") as node:
        journal = Recorder(node)
        verdicts = [await node.send("truck", payload, policy=KEEP) for payload in numbered(5)]
        assert [verdict.outcome for verdict in verdicts] == ["QUEUED"] * 3 + ["DROPPED"] * 2
        assert verdicts[-1].reason is Reason.QUEUE_FULL
        assert (await node.send("car", b"", policy=KEEP)).outcome is Outcome.QUEUED
        got = collect(node, "truck")
        await until(lambda: len(got) == 3)
        await settle()
        assert payloads(got) == numbered(3)
        assert (await node.send("truck", b"again", policy=KEEP)).outcome is Outcome.DELIVERED
        await until(lambda: len(got) == 4)
        await node.close()
        await settle()
        journal.check_outcomes()


@async_test
async def test_those_who_gave_up_do_not_count_as_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waiting, "QUEUE_LIMIT", 3)
    async with Node("garage") as node:
        journal = Recorder(node)
        for _ in range(3):
            await node.send("truck", b"old", policy=Queue(0, persist=True))
        await until(lambda: journal.counts()["EXPIRED"] == 3)
        assert (await node.send("truck", b"new", policy=KEEP)).outcome is Outcome.QUEUED


@async_test
async def test_nothing_is_left_of_those_whom_nobody_waits_for_any_more() -> None:
    async with Node("garage") as node:
        for number in range(20):
            await node.send(f"truck-{number}", b"", policy=Wait(0.001, persist=True))
        await until(lambda: waiting_for(node) == {}, seconds=DEADLINE)


@async_test
async def test_nothing_is_left_of_those_who_gave_up_on_a_link() -> None:
    async with Node("garage", limits=QUIET) as node:
        session = await node.connect(f"tcp://{free_place()}", name="up", wait=None)
        for _ in range(100):
            await node.send("up => echo", b"", policy=Wait(0.001))
        assert session.waiting() < 100


@pytest.mark.rule("OB-1")
@async_test
async def test_a_message_that_gets_room_in_the_turn_of_its_deadline_ends_once() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        gate = Gate(node, "truck", inbox=1)
        for payload in numbered(2):  # one is being handled, one fills the inbox
            await node.send("truck", payload)
            await settle()
        late = asyncio.ensure_future(node.send("truck", b"2", policy=Wait(0.02, persist=True)))
        await settle()
        gate.free.set()
        time.sleep(0.05)  # noqa: ASYNC251 - so that the room and the deadline come in one turn
        await late
        await until(lambda: len(gate.got) >= 2)
        await node.close()
        journal.check_outcomes()


@async_test
async def test_a_time_to_wait_that_is_none_is_an_error_and_leaves_nothing() -> None:
    async with Node("garage") as node:
        with pytest.raises(LocalError, match="invalid number of seconds"):
            await node.send("truck", b"", policy=Wait(-1, persist=True))
        with pytest.raises(LocalError, match="invalid number of seconds"):
            await node.send("truck", b"", policy=Queue(-1, persist=True))
        assert waiting_for(node) == {}


# What peers send


@pytest.mark.rule("WK-5", "OB-1")
@async_test
async def test_what_a_peer_sends_to_nobody_waits_as_long_as_the_limits_say() -> None:
    limits = Limits(heartbeat=0, appear=60)
    async with Node("garage", limits=limits) as node:
        journal = Recorder(node)
        echo(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        peer = await RawPeer.dial(listening.place)
        for payload in numbered(5):
            peer.send("truck", payload)
        peer.send("echo", b"not held up")
        assert (await peer.hear()).payload == b"not held up"
        assert waiting_for(node) == {"truck": 5}
        got = collect(node, "truck")
        await until(lambda: len(got) == 5)
        assert payloads(got) == numbered(5)
        await settle()
        journal.check_outcomes()
        peer.close()


@pytest.mark.rule("OB-1", "OB-2")
@async_test
async def test_what_a_peer_sent_and_nobody_took_in_time_is_told_to_who_asked() -> None:
    limits = Limits(heartbeat=0, appear=0.05)
    async with Node("garage", limits=limits) as node, Node("asks", limits=QUIET) as asks:
        journal = Recorder(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        with pytest.raises(UndeliverableError, match="by node 'garage': NO_ROUTE"):
            await asks.request(f"tcp#{listening.place} => truck", b"?")
        assert journal.counts()["NO_ROUTE"] == 1
        journal.check_outcomes()


@pytest.mark.rule("OB-1")
@async_test
async def test_what_a_peer_sent_to_nobody_waits_on_when_the_peer_is_gone() -> None:
    limits = Limits(heartbeat=0, appear=60)
    async with Node("garage", limits=limits) as node:
        journal = Recorder(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        peer = await RawPeer.dial(listening.place)
        peer.send("truck", b"1")
        await until(lambda: waiting_for(node) == {"truck": 1})
        peer.close()
        await until(lambda: not node.sessions)
        got = collect(node, "truck")
        await until(lambda: got)
        await settle()
        journal.check_outcomes()


@async_test
async def test_a_peer_cannot_make_a_node_wait_for_names_without_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Waiting, "QUEUE_LIMIT", 100)
    async with Node("garage", limits=Limits(heartbeat=0, appear=60)) as node:
        journal = Recorder(node)
        echo(node)
        listening = await node.listen("tcp://127.0.0.1:0")
        peer = await RawPeer.dial(listening.place)
        for number in range(1_000):
            peer.send(f"ghost-{number}", b"")
        peer.send("echo", b"all were heard")
        await peer.hear()
        peer.close()
        assert sum(waiting_for(node).values()) <= 100
        assert journal.counts()["QUEUE_FULL"] >= 900


# A participant behind a hub


@pytest.mark.rule("WK-5", "OB-1")
@async_test
async def test_a_participant_that_lost_its_connection_gets_what_came_meanwhile() -> None:
    async with hub() as (center, url):
        journal = Recorder(center)
        async with leaf("a", url) as a:
            collect(a, "truck")
            await until(lambda: knows(center, "truck"))
        await until(lambda: not knows(center, "truck"))
        waiting = [
            asyncio.ensure_future(center.send("truck", payload, policy=PERSIST))
            for payload in numbered(10)
        ]
        await settle()
        async with leaf("a", url) as a:
            got = collect(a, "truck")
            await asyncio.gather(*waiting)
            await until(lambda: len(got) == 10)
            assert payloads(got) == numbered(10)
        journal.check_outcomes()


@async_test
async def test_a_leaf_asks_again_until_its_hub_knows() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        verdict = await a.send("truck", b"1", policy=KEEP)
        assert verdict.outcome is Outcome.QUEUED
        assert (await a.send("truck", b"2")).reason is Reason.NO_ROUTE  # the hub was asked
        got = collect(center, "truck")
        await until(lambda: got)
        assert payloads(got) == [b"1"]


@async_test
async def test_a_leaf_waits_for_somebody_whom_it_has_sent_to_before_as_for_anybody() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        async with leaf("b", url) as b:
            echo(b, "truck")
            await until(lambda: knows(center, "truck"))
            assert (await a.request("truck", b"1")).payload == b"1"
        await until(lambda: not knows(center, "truck"))
        asking = asyncio.ensure_future(a.request("truck", b"2", timeout=20, policy=PERSIST))
        await settle()
        async with leaf("b", url) as b:
            echo(b, "truck")
            assert (await asking).payload == b"2"


@async_test
async def test_what_waited_before_there_was_a_parent_is_asked_for_when_there_is_one() -> None:
    async with hub() as (center, url), Node("a", limits=QUIET) as a:
        got = collect(center, "truck")
        await a.send("truck", b"1", policy=KEEP)
        await a.connect(url, name="hub", parent=True)
        await until(lambda: got, seconds=DEADLINE)


@pytest.mark.rule("OB-1")
@async_test
async def test_a_leaf_that_closes_while_its_hub_is_asked_leaves_nothing_behind() -> None:
    async with hub() as (_, url):
        node = Node("a", limits=QUIET)
        journal = Recorder(node)
        await node.connect(url, name="hub", parent=True)
        await node.send("truck", b"1", policy=KEEP)
        waiting = asyncio.ensure_future(node.send("car", b"2"))
        await asyncio.sleep(0)
        await node.close()
        assert (await waiting).outcome is Outcome.DROPPED
        await settle()
        journal.check_outcomes()


# A place that cannot be reached


@pytest.mark.rule("OB-1")
@async_test
async def test_a_place_that_comes_up_later_gets_what_waited_in_order() -> None:
    place = free_place()
    async with Node("garage", limits=QUIET) as node, Node("late", limits=QUIET) as late:
        journal = Recorder(node)
        got = collect(late, "truck")
        waiting = [
            asyncio.ensure_future(node.send(f"tcp#{place} => truck", payload, policy=PERSIST))
            for payload in numbered(5)
        ]
        await settle()
        await node.send(f"tcp#{place} => truck", b"5", policy=KEEP)
        await until(lambda: waiting_for(node))
        refused = [record.kind for record in journal.sessions]
        assert refused  # it was tried
        await late.listen(f"tcp://{place}")
        await asyncio.gather(*waiting)
        await until(lambda: len(got) == 6)
        assert payloads(got) == numbered(6)
        await until(lambda: journal.counts()["FORWARDED"] == 6)
        journal.check_outcomes()


@async_test
async def test_without_persist_an_unreachable_place_is_told_at_once() -> None:
    place = free_place()
    async with Node("garage", limits=QUIET) as node:
        journal = Recorder(node)
        for _ in range(2):  # the second finds that it was just tried
            verdict = await node.send(f"tcp#{place} => truck", b"")
            assert verdict.reason is Reason.TRANSPORT_DOWN
        assert waiting_for(node) == {}
        journal.check_outcomes()


@pytest.mark.rule("OB-1", "OB-2")
@async_test
async def test_what_waits_for_a_place_that_never_comes_up_is_expired() -> None:
    place = free_place()
    async with Node("garage", limits=QUIET) as node:
        journal = Recorder(node)
        verdict = await node.send(f"tcp#{place} => truck", b"", ttl=0.4, policy=PERSIST)
        assert verdict.outcome is Outcome.DROPPED
        journal.check_outcomes()
        await node.close()
        journal.check_outcomes()


@pytest.mark.rule("WK-5")
@async_test
async def test_a_newer_message_to_a_place_does_not_overtake_those_that_wait_for_it() -> None:
    place = free_place()
    async with Node("garage", limits=QUIET) as node, Node("late", limits=QUIET) as late:
        got = collect(late, "truck")
        await node.send(f"tcp#{place} => truck", b"0", policy=KEEP)
        await until(lambda: waiting_for(node))
        await late.listen(f"tcp://{place}")
        node._links.unreachable.clear()  # as after a while
        await node.send(f"tcp#{place} => truck", b"1", policy=KEEP)
        await until(lambda: len(got) == 2)
        assert payloads(got) == numbered(2)


@pytest.mark.rule("OB-1")
@async_test
async def test_a_node_that_closes_while_a_place_is_tried_accounts_for_what_waits() -> None:
    place = free_place()
    node = Node("garage", limits=QUIET)
    journal = Recorder(node)
    waiting = [
        asyncio.ensure_future(node.send(f"tcp#{place} => truck", b"", policy=PERSIST))
        for _ in range(3)
    ]
    await node.send(f"tcp#{place} => truck", b"", policy=KEEP)
    await until(lambda: waiting_for(node))
    await node.close()
    verdicts = await asyncio.gather(*waiting)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.DROPPED}
    await settle()
    journal.check_outcomes()
    assert len(journal.messages) == 5


# A session without a link


@pytest.mark.rule("WK-6", "OB-1")
@async_test
async def test_a_send_waits_for_a_session_that_is_down_and_not_for_ever() -> None:
    async with Node("leaf", limits=Limits(reconnect=0.05)) as leaf:
        journal = Recorder(leaf)
        await leaf.connect(f"tcp://{free_place()}", name="hub", wait=None)
        for route in ("hub => echo", "hub"):
            assert (await leaf.send(route, b"1")).reason is Reason.TRANSPORT_DOWN
        patient = asyncio.ensure_future(leaf.send("hub => echo", b"2", policy=PERSIST))
        timed = asyncio.ensure_future(leaf.send("hub => echo", b"3", policy=Wait(60)))
        assert (await leaf.send("hub => echo", b"4")).reason is Reason.TRANSPORT_DOWN
        await settle()
        assert not patient.done()
        assert not timed.done()
        await leaf.close()
        assert (await patient).reason is Reason.REFUSED
        assert (await timed).reason is Reason.TRANSPORT_DOWN
        journal.check_outcomes()


@pytest.mark.rule("WK-6")
@async_test
async def test_by_default_that_is_30_seconds() -> None:
    assert Limits().reconnect == 30
    async with Node("leaf") as leaf:
        await leaf.connect(f"tcp://{free_place()}", name="hub", wait=None)
        sending = asyncio.ensure_future(leaf.send("hub => echo", b"1"))
        await asyncio.sleep(0.1)
        assert not sending.done()
        await leaf.close()
        assert (await sending).reason is Reason.TRANSPORT_DOWN


@pytest.mark.rule("WK-6", "MC-10")
@async_test
async def test_a_publisher_waits_for_a_parent_that_is_down_and_not_for_ever() -> None:
    async with Node("leaf", limits=Limits(reconnect=0.05)) as leaf:
        await leaf.connect(f"tcp://{free_place()}", name="hub", wait=None, parent=True)
        published = await leaf.publish("news", b"1")
        assert [copy.reason for copy in published] == [Reason.TRANSPORT_DOWN]


@pytest.mark.rule("WK-6")
@async_test
async def test_the_time_without_a_link_begins_when_it_is_lost() -> None:
    """What waits for a slow link goes on waiting, and when the link is lost, it waits anew."""
    limits = Limits(heartbeat=0.0, reconnect=0.3)
    async with Node("sender", limits=limits) as sender:
        async with SilentPeer() as peer:  # accepts, and reads nothing
            session = await sender.connect(f"tcp://{peer.place}", name="peer", wait=DEADLINE)
            sending = [
                asyncio.ensure_future(sender.send("peer => sink", bytes(1_000_000)))
                for _ in range(40)
            ]
            await until(lambda: session.is_paused)
            await asyncio.sleep(0.7)  # more than twice the time
            assert not all(each.done() for each in sending)
            assert session.is_open
        verdicts = await asyncio.gather(*sending)
        assert {verdict.reason for verdict in verdicts} == {None, Reason.TRANSPORT_DOWN}


class SilentPeer:
    """Accepts a connection, says that it speaks the format, and reads nothing."""

    async def __aenter__(self) -> Self:
        self._writers: list[asyncio.StreamWriter] = []
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.place = place_of(self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        writer.write(PREFACE)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        del reader
