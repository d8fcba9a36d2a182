"""A worker that has nothing to do begins at once with a message that came alone.

To its handler, and to everybody else, that looks as if its task had been woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from tests.node.live import RawPeer, runs_on_every_loop, serving
from waystation.core.address import Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.node import Context, Node, Session
from waystation.testing import Recorder, settle, until

_mark: ContextVar[str] = ContextVar("mark", default="nothing")


class Stage:
    """A node with a worker `one`, and a session whose messages the test hands in itself."""

    def __init__(self, node: Node, journal: Recorder, session: Session, peer: RawPeer) -> None:
        self.node = node
        self.journal = journal
        self.session = session
        self.peer = peer
        self._count = 0

    def message(self, payload: bytes = b"") -> Message:
        """A message to the worker, as it comes from the peer."""
        back = Route((self.session.address, *Route.parse("app").addresses))
        return Message(Route.parse("one"), back, payload, self.node.new_id())

    async def receive(self, *messages: Message, then: Callable[[], object] = lambda: None) -> None:
        """Hand messages in where no task runs, as the event loop does; and do something then."""
        done = asyncio.get_running_loop().create_future()

        def act() -> None:
            self.session.received(messages)
            then()
            done.set_result(None)

        asyncio.get_running_loop().call_soon(act)
        await done

    @property
    def ends(self) -> list[Reason | Outcome]:
        """How the messages to the worker ended."""
        return [
            record.verdict.reason or record.verdict.outcome
            for record in self.journal.messages
            if record.verdict.recipient == "one"
        ]


@asynccontextmanager
async def staged(handler: Callable[[Message, Context], Any]) -> AsyncIterator[Stage]:
    async with serving() as (node, journal, place):
        node.start_worker(("one",), handler)
        peer = await RawPeer.dial(place)
        peer.send("echo", b"are you there")
        assert (await peer.hear()).payload == b"are you there"
        [session] = node.sessions
        yield Stage(node, journal, session, peer)
        peer.writer.close()


def task_of_worker() -> asyncio.Task[Any]:
    [found] = [task for task in asyncio.all_tasks() if task.get_name() == "waystation worker one"]
    return found


@pytest.mark.rule("WK-5")
@runs_on_every_loop
async def test_a_message_that_came_alone_is_handled_before_the_loop_takes_another_turn() -> None:
    handled: list[bytes] = []
    by_then: list[list[bytes]] = []

    async def handle(message: Message, context: Context) -> None:
        handled.append(message.payload)
        await context.reply(message.payload)

    async with staged(handle) as stage:
        for payload in (b"first", b"second"):
            await stage.receive(stage.message(payload), then=lambda: by_then.append(handled.copy()))
            assert (await stage.peer.hear()).payload == payload
        assert by_then == [[b"first"], [b"first", b"second"]]
        assert stage.ends == [Outcome.DELIVERED] * 2


@runs_on_every_loop
async def test_what_a_handler_returns_is_the_reply_then_as_well() -> None:
    async with staged(lambda message, _: message.payload) as stage:
        await stage.receive(stage.message(b"hello"))
        assert (await stage.peer.hear()).payload == b"hello"


@pytest.mark.rule("WK-5")
@runs_on_every_loop
async def test_several_messages_wait_for_the_task_and_keep_their_order() -> None:
    handled: list[bytes] = []
    by_then: list[int] = []

    async with staged(lambda message, _: handled.append(message.payload)) as stage:
        several = [stage.message(b"%d" % number) for number in range(5)]
        await stage.receive(*several[:3], then=lambda: by_then.append(len(handled)))
        await stage.receive(several[3])
        await stage.receive(several[4])
        await until(lambda: len(handled) == 5)
        assert by_then == [0]
        assert handled == [b"0", b"1", b"2", b"3", b"4"]


@runs_on_every_loop
async def test_nothing_is_handled_inside_of_another_task() -> None:
    tasks: list[asyncio.Task[Any] | None] = []
    async with staged(lambda *_: tasks.append(asyncio.current_task())) as stage:
        stage.session.received([stage.message()])
        assert tasks == []
        await until(lambda: len(tasks) == 1)
        assert tasks == [task_of_worker()]


@pytest.mark.rule("WK-5")
@runs_on_every_loop
async def test_a_handler_that_waits_goes_on_in_the_task_that_it_was_in_all_along() -> None:
    gate = asyncio.Event()
    tasks: list[asyncio.Task[Any] | None] = []
    marks: list[str] = []
    handled: list[bytes] = []

    async def handle(message: Message, _: Context) -> None:
        tasks.append(asyncio.current_task())
        _mark.set("set by the handler")
        async with asyncio.timeout(60):
            await gate.wait()
            await asyncio.sleep(0)
        tasks.append(asyncio.current_task())
        marks.append(_mark.get())
        handled.append(message.payload)

    async with staged(handle) as stage:
        await stage.receive(stage.message(b"first"), then=lambda: tasks.append(None))
        await stage.receive(stage.message(b"second"))
        await settle()
        assert tasks == [task_of_worker(), None]
        assert handled == []
        gate.set()
        await until(lambda: len(handled) == 2)
        assert handled == [b"first", b"second"]
        assert marks == ["set by the handler"] * 2
        assert set(tasks) == {task_of_worker(), None}
        assert _mark.get() == "nothing"


@runs_on_every_loop
async def test_a_handler_may_wait_for_what_others_wait_for() -> None:
    shared: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    got: list[str] = []

    async def other() -> None:
        got.append(await shared)

    async def handle(*_: object) -> None:
        got.append(await shared)

    async with staged(handle) as stage:
        others = [asyncio.ensure_future(other())]
        # One that comes between the beginning of the handler and its task's turn.
        await stage.receive(
            stage.message(), then=lambda: others.append(asyncio.ensure_future(other()))
        )
        await settle()
        shared.set_result("it")
        await until(lambda: len(got) == 3)
        await asyncio.gather(*others)
        assert stage.ends == [Outcome.DELIVERED]


@runs_on_every_loop
async def test_a_handler_that_fails_at_once_costs_one_message() -> None:
    async def handle(message: Message, _: Context) -> None:
        if message.payload == b"bad":
            raise ValueError("no")

    async with staged(handle) as stage:
        for payload in (b"bad", b"good"):
            await stage.receive(stage.message(payload))
        await until(lambda: len(stage.ends) == 2)
        assert stage.ends == [Reason.FAILED, Outcome.DELIVERED]


@pytest.mark.parametrize("waits", [False, True])
@runs_on_every_loop
async def test_a_handler_may_stop_its_own_worker(waits: bool) -> None:
    async def handle(_: Message, context: Context) -> None:
        await context.node.stop_worker("one")
        if waits:
            await asyncio.sleep(0.001)

    async with staged(handle) as stage:
        task = task_of_worker()
        await stage.receive(stage.message())
        await until(task.done)
        assert not task.cancelled()
        assert stage.ends == [Outcome.DELIVERED]
        await stage.receive(stage.message())
        await until(lambda: len(stage.ends) == 2)
        assert stage.ends[1] is Reason.NO_ROUTE


@runs_on_every_loop
async def test_a_handler_is_cancelled_where_it_waits_even_before_its_task_had_a_turn() -> None:
    heard: list[str] = []

    async def handle(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            heard.append("cancelled")
            raise

    async with staged(handle) as stage:
        task = task_of_worker()
        await stage.receive(stage.message(), then=task.cancel)
        await until(task.done)
        assert heard == ["cancelled"]
        assert stage.ends == [Reason.FAILED]


@runs_on_every_loop
async def test_what_a_handler_sends_to_its_own_worker_comes_next() -> None:
    handled: list[bytes] = []

    async def handle(message: Message, context: Context) -> None:
        handled.append(message.payload)
        if message.payload == b"first":
            await context.node.send("one", b"second")
            handled.append(b"end of first")

    async with staged(handle) as stage:
        await stage.receive(stage.message(b"first"))
        await until(lambda: len(handled) == 3)
        assert handled == [b"first", b"end of first", b"second"]


@runs_on_every_loop
async def test_an_idle_worker_sets_nothing_of_the_budget_aside() -> None:
    sizes: Sequence[int] = [9_000] * 200
    handled: list[int] = []
    async with staged(lambda message, _: handled.append(len(message.payload))) as stage:
        for size in sizes:
            await stage.receive(stage.message(bytes(size)))
        await until(lambda: handled == sizes)
        assert stage.node.flow.used == 0
        assert stage.node.flow.aside == 0
