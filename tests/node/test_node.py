from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.rule_errors import breaks
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError, NoReplyError, UndeliverableError
from waystation.node import FAIL, Context, Node, Queue, Wait
from waystation.testing import Recorder, async_test, settle, until


def outcomes(journal: Recorder) -> list[tuple[bytes, str, str | None]]:
    return [(r.arrival.message.payload, *_words(r.verdict)) for r in journal.messages]


def _words(verdict: Any) -> tuple[str, str | None]:
    return verdict.outcome.value, verdict.reason and verdict.reason.value


@asynccontextmanager
async def a_node(**options: Any) -> AsyncIterator[tuple[Node, Recorder]]:
    async with Node("garage", **options) as node:
        yield node, Recorder(node)


def collector(node: Node, *names: str, **options: Any) -> list[tuple[str, bytes]]:
    """A worker that keeps the address and the payload of whatever it gets."""
    got: list[tuple[str, bytes]] = []

    @node.worker(*names, **options)
    def collect(message: Message, context: Context) -> None:
        got.append((context.address.name, message.payload))

    return got


@pytest.mark.rule("WK-3")
@async_test
async def test_a_request_gets_its_answer() -> None:
    async with a_node() as (node, journal):

        @node.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            await context.reply(message.payload.upper(), ttl=5)

        answer = await node.request("echo", b"hello")
        assert answer.payload == b"HELLO"
        assert str(answer.return_route) == "0#echo"
        await settle()
        assert sorted(outcomes(journal)) == [
            (b"HELLO", "DELIVERED", None),
            (b"hello", "DELIVERED", None),
        ]


@pytest.mark.rule("WK-1")
@async_test
async def test_a_worker_is_told_which_of_its_addresses_was_used() -> None:
    async with a_node() as (node, journal):
        got = collector(node, "one", "two")
        await node.send("two", b"a")
        await node.send("one", b"b")
        await settle()
        assert got == [("two", b"a"), ("one", b"b")]
        assert [record.verdict.recipient for record in journal.messages] == ["two", "one"]


@pytest.mark.rule("WK-4")
@pytest.mark.rule("WK-2")
@async_test
async def test_an_address_in_the_middle_of_a_route_forwards_by_default() -> None:
    async with a_node() as (node, _):
        hop = collector(node, "hop")

        @node.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            assert str(message.return_route).startswith("0#hop => 0#request-")
            await context.reply(b"via " + message.payload)

        answer = await node.request("hop => echo", b"hop")
        assert answer.payload == b"via hop"
        assert str(answer.return_route) == "0#hop => 0#echo"
        assert hop == []


@pytest.mark.rule("WK-4")
@pytest.mark.rule("WK-7")
@async_test
async def test_a_worker_may_look_at_what_passes_and_send_it_elsewhere() -> None:
    async with a_node() as (node, _):
        got = collector(node, "end", "detour")

        @node.worker("hop", passing=True)
        async def hop(message: Message, context: Context) -> None:
            if message.payload == b"straight":
                await context.forward(Address(0, b"inner"))
            else:
                await context.reroute(Route.parse("detour"), message.return_route)

        await node.send("hop => end", b"straight")
        await node.send("hop => end", b"astray")
        await settle()
        assert got == [("end", b"straight"), ("detour", b"astray")]


@pytest.mark.rule("WK-7")
@async_test
async def test_a_worker_may_start_workers_while_it_handles_a_message() -> None:
    async with a_node() as (node, _):

        @node.worker("listener")
        async def listen(message: Message, context: Context) -> None:
            name = f"session-{message.payload.decode()}"

            @node.worker(name)
            async def session(_: Message, context: Context) -> None:
                await context.reply(b"from " + context.address.data)

            await context.reply(name.encode())

        opened = await node.request("listener", b"7")
        assert (await node.request(opened.payload.decode(), b"")).payload == b"from session-7"


@pytest.mark.rule("WK-5")
@async_test
async def test_one_message_at_a_time_in_order_while_other_workers_go_on() -> None:
    async with a_node() as (node, _):
        log: list[str] = []
        go_on = asyncio.Event()

        @node.worker("slow")
        async def slow(message: Message, _: Context) -> None:
            log.append(f"begin {message.payload.decode()}")
            await go_on.wait()
            log.append(f"end {message.payload.decode()}")

        quick = collector(node, "quick")
        for payload in (b"1", b"2"):
            await node.send("slow", payload)
        await node.send("quick", b"meanwhile")
        await settle()
        assert quick == [("quick", b"meanwhile")]
        assert log == ["begin 1"]
        go_on.set()
        await until(lambda: log == ["begin 1", "end 1", "begin 2", "end 2"])


@pytest.mark.rule("WK-5")
def test_a_worker_that_raises_loses_that_one_message_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with a_node() as (node, journal):

            @node.worker("picky")
            async def picky(message: Message, _: Context) -> None:
                if message.payload == b"bad":
                    raise ValueError(message.payload)

            for payload in (b"good", b"bad", b"fine"):
                assert (await node.send("picky", payload)).outcome is Outcome.DELIVERED
            await settle()
            assert outcomes(journal) == [
                (b"good", "DELIVERED", None),
                (b"bad", "DROPPED", "FAILED"),
                (b"fine", "DELIVERED", None),
            ]

    with caplog.at_level(logging.ERROR, "waystation.node"):
        asyncio.run(scenario())
    [entry] = caplog.records
    assert "worker picky failed on message" in entry.getMessage()


@async_test
async def test_a_busy_worker_lets_the_others_have_their_turn() -> None:
    async with a_node() as (node, _):
        busy = collector(node, "busy")
        for number in range(200):
            assert node.post(Message(Route.parse("busy"), Route(), b"%d" % number)).reason is None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < len(busy) < 200
        await settle()
        assert [payload for _, payload in busy] == [b"%d" % number for number in range(200)]


@asynccontextmanager
async def a_stuck_worker(node: Node) -> AsyncIterator[asyncio.Event]:
    """A worker with room for one message, which handles none until it is told to."""
    go = asyncio.Event()

    @node.worker("stuck", inbox=1)
    async def stuck(_: Message, __: Context) -> None:
        await go.wait()

    await node.send("stuck", b"in hand")
    await settle()
    await node.send("stuck", b"in box")
    yield go
    go.set()


@async_test
async def test_a_full_inbox_fails_a_send_that_does_not_want_to_wait() -> None:
    async with a_node() as (node, journal), a_stuck_worker(node):
        sent = await node.send("stuck", b"no", policy=FAIL)
        assert (sent.outcome, sent.reason) == (Outcome.DROPPED, Reason.QUEUE_FULL)
        assert node.post(Message(Route.parse("stuck"), Route(), b"either")) == sent.verdict
        assert outcomes(journal) == [
            (b"no", "DROPPED", "QUEUE_FULL"),
            (b"either", "DROPPED", "QUEUE_FULL"),
        ]


@async_test
async def test_a_full_inbox_makes_a_sender_wait_until_there_is_room() -> None:
    async with a_node() as (node, journal), a_stuck_worker(node) as go:
        sending = asyncio.create_task(node.send("stuck", b"patient"))
        await settle()
        assert not sending.done()
        go.set()
        assert (await sending).outcome is Outcome.DELIVERED
        await settle()
        assert [payload for payload, *_ in outcomes(journal)] == [
            b"in hand",
            b"in box",
            b"patient",
        ]


@async_test
async def test_a_sender_waits_no_longer_than_its_deadline() -> None:
    async with a_node() as (node, journal), a_stuck_worker(node):
        verdict = await node.send("stuck", b"late", policy=Wait(0.01))
        assert verdict.reason is Reason.QUEUE_FULL
        assert outcomes(journal) == [(b"late", "DROPPED", "QUEUE_FULL")]


@pytest.mark.rule("OB-1")
@async_test
async def test_a_sender_that_is_cancelled_takes_its_message_along_and_that_is_heard() -> None:
    async with a_node() as (node, journal), a_stuck_worker(node) as go:
        sending = asyncio.create_task(node.send("stuck", b"withdrawn"))
        await settle()
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()
        assert outcomes(journal) == [(b"withdrawn", "DROPPED", "QUEUE_FULL")]
        accepted = asyncio.create_task(node.send("stuck", b"in already"))
        await settle()
        go.set()
        await settle()
        accepted.cancel()
        await settle()
        assert [payload for payload, *_ in outcomes(journal)].count(b"in already") == 1


@async_test
async def test_a_queued_message_goes_in_when_there_is_room_or_expires() -> None:
    async with a_node() as (node, journal), a_stuck_worker(node) as go:
        for payload, seconds in ((b"expires", 0.01), (b"waits", 10)):
            verdict = await node.send("stuck", payload, policy=Queue(seconds))
            assert verdict.outcome is Outcome.QUEUED
        await until(lambda: (b"expires", "DROPPED", "EXPIRED") in outcomes(journal))
        go.set()
        await settle()
        assert outcomes(journal) == [
            (b"expires", "QUEUED", None),
            (b"waits", "QUEUED", None),
            (b"expires", "DROPPED", "EXPIRED"),
            (b"in hand", "DELIVERED", None),
            (b"in box", "DELIVERED", None),
            (b"waits", "DELIVERED", None),
        ]


@pytest.mark.rule("OB-3")
@pytest.mark.rule("AD-6")
@async_test
async def test_send_returns_the_outcome_and_every_drop_is_heard() -> None:
    async with a_node(hop_limit=2) as (node, journal):
        collector(node, "here")
        back = Route.parse("a => b")
        cases = [
            (Message(Route.parse("nobody"), Route(), b"1"), "NO_ROUTE"),
            (Message(Route(), Route(), b"2"), "NO_ROUTE"),
            (Message(Route.parse("9#x"), Route(), b"3"), "UNKNOWN_TYPE"),
            (Message(Route.parse("here"), Route(), b"4", expiry=1), "EXPIRED"),
            (Message(Route.parse("here"), back, b"5"), "HOP_LIMIT"),
        ]
        for message, reason in cases:
            assert (await node.route(message)).reason == reason
            assert node.post(message).reason == reason
        assert outcomes(journal) == [
            (message.payload, "DROPPED", reason) for message, reason in cases for _ in "ab"
        ]


@pytest.mark.rule("AD-2")
@async_test
async def test_address_types_are_registered_at_run_time() -> None:
    async with a_node() as (node, journal):
        carried: list[tuple[str, bytes]] = []

        def pigeon(message: Message, address: Address) -> Reason | None:
            carried.append((str(address), message.payload))
            return Reason.TRANSPORT_DOWN if message.payload == b"storm" else None

        number = node.register_type("pigeon", pigeon)
        node.router.table.put(
            RoutingEntry("island", Address(number, b"loft-3"), local=False), now=0
        )
        assert (await node.send("pigeon#loft-7 => x", b"hi")).outcome is Outcome.FORWARDED
        assert (await node.send("island", b"ho")).outcome is Outcome.FORWARDED
        assert (await node.send("island", b"storm")).reason is Reason.TRANSPORT_DOWN
        assert carried == [
            (f"{number}#loft-7", b"hi"),
            (f"{number}#loft-3", b"ho"),
            (f"{number}#loft-3", b"storm"),
        ]
        assert [words[1:] for words in outcomes(journal)] == [
            ("FORWARDED", None),
            ("FORWARDED", None),
            ("DROPPED", "TRANSPORT_DOWN"),
        ]
        node.router.table.put(RoutingEntry("mars", Address(99, b"x"), local=False), now=0)
        assert (await node.send("mars", b"")).reason is Reason.UNKNOWN_TYPE


@async_test
async def test_time_never_goes_back_in_a_node() -> None:
    seconds = iter([*range(1_000, 1_010), *[500] * 100])
    async with a_node(clock=lambda: next(seconds) * 1_000_000_000) as (node, journal):
        collector(node, "here")
        for _ in range(8):
            await node.send("here", b"")
        await settle()
        received = [record.arrival.received_at for record in journal.messages]
        assert received == sorted(set(received))
        assert received[-1] >= 1_008_000_000


@async_test
async def test_a_request_that_cannot_be_delivered_says_why_at_once() -> None:
    async with a_node() as (node, _):
        with pytest.raises(UndeliverableError, match="to 0#nobody was dropped: NO_ROUTE") as caught:
            await node.request("nobody", b"")
        assert (caught.value.route, caught.value.reason) == ("0#nobody", "NO_ROUTE")


@async_test
async def test_a_request_without_an_answer_ends_at_its_deadline_and_leaves_nothing() -> None:
    async with a_node() as (node, journal):
        collector(node, "mute")
        with pytest.raises(NoReplyError, match=r"no reply from 0#mute within 0\.01 s") as caught:
            await node.request("mute", b"", timeout=0.01)
        assert (caught.value.route, caught.value.seconds) == ("0#mute", 0.01)
        assert set(node.router.table.snapshot(now=0)) == {"mute"}
        [mute, asked, ended] = [(c.kind.value, c.entry.participant) for c in journal.routes]
        assert (mute, asked[0], ended[0]) == (("put", "mute"), "put", "remove")
        assert asked[1].startswith("request-")
        assert ended[1] == asked[1]


@async_test
async def test_a_second_answer_is_dropped_and_changes_nothing() -> None:
    async with a_node() as (node, journal):

        @node.worker("stutter")
        async def stutter(_: Message, context: Context) -> None:
            await context.reply(b"a")
            await context.reply(b"b")

        assert (await node.request("stutter", b"q")).payload == b"a"
        await settle()
        assert sorted(outcomes(journal)) == [
            (b"a", "DELIVERED", None),
            (b"b", "DROPPED", "DUPLICATE"),
            (b"q", "DELIVERED", None),
        ]


@async_test
async def test_a_worker_is_a_routing_entry_for_as_long_as_it_runs() -> None:
    async with a_node() as (node, journal):
        got = collector(node, "a", "b")
        assert set(node.router.table.snapshot(now=0)) == {"a", "b"}
        node.post(Message(Route.parse("a"), Route(), b"unread"))
        await node.stop_worker("b")
        assert node.router.table.snapshot(now=0) == {}
        assert (await node.send("a", b"gone")).reason is Reason.NO_ROUTE
        assert got == []
        assert outcomes(journal) == [
            (b"unread", "DROPPED", "NO_ROUTE"),
            (b"gone", "DROPPED", "NO_ROUTE"),
        ]
        with pytest.raises(LocalError, match=r"there is no worker 'a'", check=breaks("WK-1")):
            await node.stop_worker("a")


@async_test
async def test_closing_lets_workers_finish_and_refuses_what_is_new() -> None:
    async with a_node() as (node, journal):
        late: list[str | None] = []

        @node.worker("slow")
        async def slow(_: Message, context: Context) -> None:
            await until(lambda: node.draining)
            late.append((await context.node.send("slow", b"new")).reason)

        await node.send("slow", b"old")
        await settle()
        await node.close()
        assert late == [Reason.REFUSED]
        assert outcomes(journal) == [(b"new", "DROPPED", "REFUSED"), (b"old", "DELIVERED", None)]
        assert node.router.table.snapshot(now=0) == {}


@pytest.mark.rule("FL-4")
@pytest.mark.parametrize("drain", [0, 0.01])
@async_test
async def test_closing_drops_what_was_not_handled_in_time(drain: float) -> None:
    async with a_node() as (node, journal), a_stuck_worker(node):
        await node.close(drain=drain)
        assert outcomes(journal) == [
            (b"in hand", "DROPPED", "TRANSPORT_DOWN"),
            (b"in box", "DROPPED", "TRANSPORT_DOWN"),
        ]


@async_test
async def test_what_makes_no_worker_is_refused_by_name_and_rule() -> None:
    async with a_node() as (node, _):
        collector(node, "taken")
        for names, options in (((), {}), (("x",), {"inbox": 0})):
            with pytest.raises(LocalError, match=r"invalid worker: names", check=breaks("WK-1")):
                collector(node, *names, **options)
        with pytest.raises(
            LocalError, match=r"there is already a worker or session 'taken'", check=breaks("WK-1")
        ):
            collector(node, "free", "taken")
        with pytest.raises(
            LocalError,
            match=r"duplicate name among those of a worker: \('twice', '0#twice'\)",
            check=breaks("WK-1"),
        ):
            collector(node, "twice", "0#twice")
        with pytest.raises(
            LocalError, match=r"'1#far' cannot be the name of a worker", check=breaks("WK-1")
        ):
            collector(node, "1#far")
        assert set(node.router.table.snapshot(now=0)) == {"taken"}
        with pytest.raises(LocalError, match=r"seconds -1", check=breaks("WK-6")):
            await node.send("taken", b"", ttl=-1)
        with pytest.raises(LocalError, match=r"seconds 'soon'", check=breaks("WK-6")):
            await node.request("taken", b"", timeout="soon")  # type: ignore[arg-type]
