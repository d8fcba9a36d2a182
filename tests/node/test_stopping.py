"""Whatever a handler does, its worker goes on or ends, and every message has one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.node.live import LOOPS, runs_on_every_loop
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.net.tasks import COUNTS
from waystation.node import FAIL, Context, Node
from waystation.testing import Recorder, async_test, collect, settle, until


async def _until_cancelled() -> None:
    await asyncio.Event().wait()


# A task that somebody else cancels


@pytest.mark.rule("WK-5", "OB-1", "FL-4")
@runs_on_every_loop
async def test_a_worker_outlives_a_cancelled_task_that_its_handler_waits_for() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        awaited: list[asyncio.Task[None]] = []

        @node.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            if message.payload == b"wait":
                awaited.append(asyncio.ensure_future(_until_cancelled()))
                await awaited[0]
            await context.reply(message.payload)

        await node.send("echo", b"wait")
        await until(lambda: awaited)
        awaited[0].cancel()
        assert (await node.request("echo", b"2")).payload == b"2"
        await settle()
        assert (b"wait", "FAILED") in journal.outcomes()
        journal.check_outcomes()


@pytest.mark.rule("FL-4")
@async_test
async def test_a_subscriber_outlives_a_cancelled_task_that_its_callback_waits_for() -> None:
    async with Node("garage") as node:
        awaited: list[asyncio.Task[None]] = []
        got: list[bytes] = []

        async def callback(message: Message) -> None:
            if message.payload == b"wait":
                awaited.append(asyncio.ensure_future(_until_cancelled()))
                await awaited[0]
            got.append(message.payload)

        node.subscribe("garage", "news", callback=callback)
        await node.publish("news", b"wait")
        await until(lambda: awaited)
        awaited[0].cancel()
        await node.publish("news", b"2")
        await until(lambda: got == [b"2"])


# A handler that stops its own worker


@pytest.mark.rule("WK-1", "OB-1", "FL-4")
@runs_on_every_loop
async def test_a_handler_may_stop_its_own_worker() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        began = asyncio.Event()
        goes_on = asyncio.Event()

        @node.worker("once", "alias", inbox=2)
        async def once(_: Message, context: Context) -> None:
            began.set()
            await goes_on.wait()
            await context.node.stop_worker("once")

        await node.send("once", b"1")
        await began.wait()
        sending = [asyncio.ensure_future(node.send("alias", b"%d" % i)) for i in (2, 3, 4)]
        await settle()
        goes_on.set()
        for verdict in await asyncio.gather(*sending):
            assert verdict.reason in (None, Reason.NO_ROUTE, Reason.QUEUE_FULL)
        await until(lambda: len(journal.messages) == 4)
        assert journal.outcomes()[0][0] in (b"1", b"2")
        assert (b"1", "DELIVERED") in journal.outcomes()
        assert journal.counts()["DELIVERED"] == 1
        journal.check_outcomes()
        assert (await node.send("once", b"5", policy=FAIL)).reason is Reason.NO_ROUTE
        got = collect(node, "once")
        await node.send("once", b"6")
        await until(lambda: got)


@pytest.mark.rule("OB-1", "FL-4")
@async_test
async def test_two_handlers_that_stop_each_others_workers_leave_no_message_without_outcome() -> (
    None
):
    async with Node("garage") as node:
        journal = Recorder(node)
        both = asyncio.Barrier(2)

        @node.worker("a")
        async def a(message: Message, context: Context) -> None:
            if message.payload == b"1":
                await both.wait()
                await context.node.stop_worker("b")

        @node.worker("b")
        async def b(message: Message, context: Context) -> None:
            if message.payload == b"1":
                await both.wait()
                await context.node.stop_worker("a")

        for name in ("a", "b"):
            for payload in (b"1", b"2"):
                await node.send(name, payload)
        await until(lambda: len(journal.messages) == 4)
        journal.check_outcomes()


@pytest.mark.rule("OB-1", "FL-4")
@async_test
async def test_a_handler_that_ignores_being_stopped_is_the_last_of_its_worker() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        began = asyncio.Event()

        @node.worker("stubborn")
        async def stubborn(_: Message, __: Context) -> None:
            began.set()
            try:
                await _until_cancelled()
            except asyncio.CancelledError:
                return

        await node.send("stubborn", b"1")
        await began.wait()
        await asyncio.wait_for(node.stop_worker("stubborn"), 30)
        assert journal.outcomes() == [(b"1", "DELIVERED")]


# A handler that closes its node


@pytest.mark.rule("OB-1", "FL-4")
@runs_on_every_loop
async def test_a_handler_may_close_its_node() -> None:
    node = Node("garage")
    journal = Recorder(node)

    began = asyncio.Event()
    goes_on = asyncio.Event()

    @node.worker("stop")
    async def stop(_: Message, context: Context) -> None:
        began.set()
        await goes_on.wait()
        await context.node.close()
        await context.reply(b"closed")  # what a handler sends still goes out

    asking = asyncio.ensure_future(node.request("stop", b"1"))
    await began.wait()
    await node.send("stop", b"2")
    goes_on.set()
    assert (await asking).payload == b"closed"
    await asyncio.wait_for(node.close(), 30)
    assert {(b"1", "DELIVERED"), (b"2", "DELIVERED")} <= set(journal.outcomes())
    journal.check_outcomes()
    assert [task for task in asyncio.all_tasks() if "worker" in task.get_name()] == []


@pytest.mark.rule("FL-4")
@async_test
async def test_a_subscriber_may_close_its_node() -> None:
    node = Node("garage")
    closed = asyncio.Event()

    async def callback(_: Message) -> None:
        await node.close()
        closed.set()

    node.subscribe("garage", "news", callback=callback)
    await node.publish("news", b"1")
    await asyncio.wait_for(closed.wait(), 30)


@pytest.mark.rule("OB-1", "FL-4")
@async_test
async def test_a_node_waits_for_a_handler_that_stopped_its_own_worker() -> None:
    node = Node("garage")
    journal = Recorder(node)
    stopped = asyncio.Event()
    goes_on = asyncio.Event()

    @node.worker("once")
    async def once(_: Message, context: Context) -> None:
        await context.node.stop_worker("once")
        stopped.set()
        await goes_on.wait()

    await node.send("once", b"1")
    await stopped.wait()
    closing = asyncio.ensure_future(node.close(drain=20))
    await settle()
    assert not closing.done()
    goes_on.set()
    await closing
    assert journal.outcomes() == [(b"1", "DELIVERED")]


# Closing twice


@pytest.mark.rule("FL-4")
@runs_on_every_loop
async def test_who_closes_a_node_again_waits_until_it_is_closed() -> None:
    node = Node("garage")
    began = asyncio.Event()
    goes_on = asyncio.Event()
    handled: list[bytes] = []

    @node.worker("slow")
    async def slow(message: Message, _: Context) -> None:
        began.set()
        await goes_on.wait()
        handled.append(message.payload)

    await node.send("slow", b"1")
    await began.wait()
    first = asyncio.ensure_future(node.close(drain=20))
    second = asyncio.ensure_future(node.close(drain=20))
    await settle()
    assert not first.done()
    assert not second.done()
    goes_on.set()
    await second
    assert handled == [b"1"]
    await first
    await node.close()


@pytest.mark.rule("FL-4")
@async_test
async def test_closing_goes_on_when_who_asked_for_it_is_cancelled() -> None:
    node = Node("garage")
    began = asyncio.Event()
    goes_on = asyncio.Event()

    @node.worker("slow")
    async def slow(_: Message, __: Context) -> None:
        began.set()
        await goes_on.wait()

    await node.send("slow", b"1")
    await began.wait()
    closing = asyncio.ensure_future(node.close(drain=20))
    await settle()
    closing.cancel()
    await asyncio.wait([closing])
    goes_on.set()
    await asyncio.wait_for(node.close(), 30)


@async_test
async def test_an_invalid_time_to_drain_leaves_the_node_as_it_is() -> None:
    async with Node("garage") as node:
        got = collect(node, "sink")
        with pytest.raises(LocalError, match="invalid number of seconds"):
            await node.close(drain=-1)
        await node.send("sink", b"1")
        await until(lambda: got)


# Two readers of one subscription


@pytest.mark.rule("MC-8", "FL-4")
@runs_on_every_loop
async def test_a_second_reader_of_a_subscription_gets_an_error() -> None:
    async with Node("garage") as node:
        subscription = node.subscribe("garage", "news")
        first = asyncio.ensure_future(anext(subscription))
        await settle()
        with pytest.raises(LocalError, match="already reads"):
            await asyncio.wait_for(anext(subscription), 30)
        await node.publish("news", b"1")
        assert (await first).payload == b"1"


@async_test
async def test_a_reader_that_gave_up_makes_way_for_another() -> None:
    async with Node("garage") as node:
        subscription = node.subscribe("garage", "news")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(subscription), 0.01)
        await node.publish("news", b"1")
        assert (await asyncio.wait_for(anext(subscription), 30)).payload == b"1"


# A worker whose task ends, whoever ended it


@pytest.mark.rule("FL-4", "OB-1")
@runs_on_every_loop
async def test_a_worker_whose_task_somebody_cancels_leaves_no_message_without_outcome() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        tasks: list[asyncio.Task[None] | None] = []
        before = COUNTS.failed

        @node.worker("fragile", inbox=2)
        async def fragile(_: Message, __: Context) -> None:
            tasks.append(asyncio.current_task())
            await _until_cancelled()

        sending = [asyncio.ensure_future(node.send("fragile", b"%d" % i)) for i in range(5)]
        await until(lambda: tasks)
        assert tasks[0] is not None
        tasks[0].cancel()
        await asyncio.gather(*sending)
        assert (await node.send("fragile", b"late")).reason is Reason.NO_ROUTE
        await until(lambda: len(journal.messages) == 6)
        journal.check_outcomes()
        assert COUNTS.failed == before + 1
        assert (b"0", "FAILED") in journal.outcomes()
        assert journal.counts().keys() <= {"FAILED", "NO_ROUTE", "QUEUE_FULL"}
        got = collect(node, "fragile")
        await node.send("fragile", b"next")
        await until(lambda: got)


@pytest.mark.rule("FL-4", "OB-1")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_handler_that_ends_the_program_leaves_no_message_without_outcome(loop: str) -> None:
    journals: list[Recorder] = []

    async def main() -> None:
        node = Node("garage")
        journals.append(Recorder(node))

        @node.worker("fatal")
        async def fatal(_: Message, __: Context) -> None:
            raise SystemExit(3)

        for payload in (b"1", b"2"):
            await node.send("fatal", payload)
        await _until_cancelled()

    with pytest.raises(SystemExit), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
    assert journals[0].outcomes() == [(b"1", "FAILED"), (b"2", "NO_ROUTE")]


# Whatever a handler does with one message, all have an outcome

Deed = Callable[[Context], Awaitable[object]]


async def _raise(_: Context) -> None:
    raise ValueError("no thanks")


async def _raise_cancelled(_: Context) -> None:
    raise asyncio.CancelledError


async def _await_a_cancelled_task(_: Context) -> None:
    awaited = asyncio.ensure_future(_until_cancelled())
    asyncio.get_running_loop().call_soon(awaited.cancel)
    await awaited


async def _cancel_itself(_: Context) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def _stop_its_worker(context: Context) -> None:
    await context.node.stop_worker(context.address.name)


async def _close(context: Context) -> None:
    await context.node.close()


async def _close_at_once(context: Context) -> None:
    await context.node.close(drain=0)
    await asyncio.sleep(0)


async def _close_twice(context: Context) -> None:
    await context.node.close()
    await context.node.close()


async def _send_to_itself(context: Context) -> None:
    await context.node.send(context.address.name, b"more", policy=FAIL)


@pytest.mark.rule("FL-4", "OB-1")
@pytest.mark.parametrize(
    ("deed", "its_own", "behind"),
    [
        (_raise, "FAILED", {"DELIVERED"}),
        (_raise_cancelled, "FAILED", {"DELIVERED"}),
        (_await_a_cancelled_task, "FAILED", {"DELIVERED"}),
        (_cancel_itself, "FAILED", {"NO_ROUTE"}),
        (_stop_its_worker, "DELIVERED", {"NO_ROUTE"}),
        (_close, "DELIVERED", {"DELIVERED"}),
        (_close_at_once, "TRANSPORT_DOWN", {"TRANSPORT_DOWN"}),
        (_close_twice, "DELIVERED", {"DELIVERED"}),
        (_send_to_itself, "DELIVERED", {"DELIVERED", "QUEUE_FULL"}),
    ],
)
@runs_on_every_loop
async def test_whatever_a_handler_does_every_message_has_one_outcome(
    deed: Deed, its_own: str, behind: set[str]
) -> None:
    node = Node("garage")
    journal = Recorder(node)

    @node.worker("busy", inbox=8)
    async def busy(message: Message, context: Context) -> None:
        if message.payload == b"2":
            await deed(context)

    for number in range(5):
        await node.send("busy", b"%d" % number)
    await until(lambda: len(journal.messages) >= 5)
    await asyncio.wait_for(node.close(), 30)
    journal.check_outcomes()
    ended = dict(journal.outcomes())
    assert [ended[b"0"], ended[b"1"]] == ["DELIVERED", "DELIVERED"]
    assert ended[b"2"] == its_own
    assert {word for payload, word in ended.items() if payload not in (b"0", b"1", b"2")} <= behind


@pytest.mark.rule("FL-4")
@async_test
async def test_a_subscriber_outlives_a_callback_that_raises() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        got: list[bytes] = []

        def callback(message: Message) -> None:
            if message.payload == b"bad":
                raise ValueError("no thanks")
            got.append(message.payload)

        node.subscribe("garage", "news", callback=callback)
        for payload in (b"1", b"bad", b"2"):
            await node.publish("news", payload)
        await until(lambda: got == [b"1", b"2"])
        journal.check_outcomes()
