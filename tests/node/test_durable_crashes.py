"""What is left of durable messages after a crash, for each moment that it can come at (DU-3).

Each test is a cell of the table in docs/explanation/durable.md. A crash here is `Store.abandon`:
what was not committed is gone, as when the process is killed. `test_durable_kills` really kills.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waystation.core.message import Message
from waystation.core.outcome import Outcome
from waystation.node import Context, Node, StoreSettings
from waystation.node.store import Store
from waystation.testing import Fleet, until
from waystation.testing.recorder import Recorder
from waystation.testing.workers import collect


def settings(directory: Path) -> StoreSettings:
    return StoreSettings(directory=directory, fsync="off", pause=0.01, answer=0.3)


def store_of(node: Node) -> Store:
    store = node._kernel.custody.store  # noqa: SLF001
    assert store is not None
    return store


async def crash(fleet: Fleet, node: Node) -> None:
    """Let a node vanish with what is not on disk."""
    await asyncio.to_thread(store_of(node).abandon)
    await fleet.kill(node)


def payloads(found: list[Message]) -> list[bytes]:
    return [message.payload for message in found]


def count(node: Node) -> int:
    return 0 if node.custody is None else node.custody.messages


def was_delivered(recorder: Recorder) -> bool:
    """Whether a message was handled and that is on disk: it is recorded after the commit."""
    delivered = [
        one.verdict for one in recorder.messages if one.verdict.outcome is Outcome.DELIVERED
    ]
    return any(verdict.recipient == "archive" for verdict in delivered)


class Handler:
    """A worker that keeps what it handled, and with which attempt; `hold` lets it hang."""

    def __init__(self, node: Node, *, hold: bool = False) -> None:
        self.seen: list[tuple[bytes, int]] = []
        self._hold = hold
        node.start_worker(("archive",), self.handle)

    async def handle(self, message: Message, context: Context) -> None:
        self.seen.append((message.payload, context.attempt))
        if self._hold:
            await asyncio.Event().wait()


@pytest.mark.rule("DU-3")
def test_sender_before_its_write_nothing_was_promised(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        node = await fleet.node("sender", store=settings(tmp_path))
        stuck = block(store_of(node))
        sending = asyncio.create_task(node.send("archive", b"1", durable=True))
        await asyncio.sleep(0)
        store_of(node)._crashed.set()  # noqa: SLF001
        stuck()
        await crash(fleet, node)
        assert not sending.done()
        sending.cancel()
        again = await fleet.node("sender", store=settings(tmp_path))
        assert count(again) == 0

    Fleet().run(scenario)


def block(store: Store) -> Callable[[], None]:
    """Let the thread of a store wait from now on; returns what lets it go on."""
    entered, free = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        entered.set()
        free.wait(60)  # a test that fails does not hang

    store.submit(wait)
    assert entered.wait(60)
    return free.set


@pytest.mark.rule("DU-3")
def test_sender_after_its_write_it_is_delivered_by_the_next_process(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        node = await fleet.node("sender", store=settings(tmp_path))
        receipt: Any = await node.send("archive", b"1", durable=True)
        assert receipt.outcome is Outcome.QUEUED
        await crash(fleet, node)
        again = await fleet.node("sender", store=settings(tmp_path))
        found = collect(again, "archive")
        await until(lambda: payloads(found) == [b"1"])
        assert found[0].id == receipt.id

    Fleet().run(scenario)


@pytest.mark.rule("DU-3")
def test_next_node_before_its_write_it_is_offered_again(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=settings(tmp_path / "hub"))
        truck = await fleet.leaf("truck", hub, store=settings(tmp_path / "truck"))
        collect(truck, "archive")
        await fleet.ready()
        go_on = block(store_of(truck))
        await hub.send("archive", b"1", durable=True)
        await until(lambda: store_of(truck).backlog)
        store_of(truck)._crashed.set()  # noqa: SLF001
        go_on()
        await crash(fleet, truck)
        assert count(hub) == 1
        again = await fleet.leaf("truck", hub, store=settings(tmp_path / "truck"))
        assert count(again) == 0
        found = collect(again, "archive")
        await until(lambda: payloads(found) == [b"1"])
        await until(lambda: count(hub) == 0 == count(again))

    Fleet().run(scenario)


@pytest.mark.rule("DU-3")
def test_next_node_after_its_write_and_before_its_answer_arrives(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=settings(tmp_path / "hub"))
        truck = await fleet.leaf("truck", hub, store=settings(tmp_path / "truck"))
        handler, recorder = Handler(truck), fleet.recorder(truck)
        await fleet.ready()
        sent = asyncio.create_task(hub.send("archive", b"1", durable=True))
        await until(lambda: handler.seen)  # it is written there by now
        fleet.cut(hub, truck)
        await sent
        await until(lambda: was_delivered(recorder))
        await crash(fleet, truck)
        again = await fleet.leaf("truck", hub, store=settings(tmp_path / "truck"))
        second = Handler(again)
        await until(lambda: count(hub) == 0)
        assert (handler.seen, second.seen) == ([(b"1", 1)], [])

    Fleet().run(scenario)


@pytest.mark.rule("DU-3")
def test_former_holder_before_it_forgets(tmp_path: Path) -> None:
    """It offers again what the other has: that is known there as a repetition."""

    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        phone = await fleet.leaf("phone", hub, store=settings(tmp_path / "phone"))
        truck = await fleet.leaf("truck", hub, store=settings(tmp_path / "truck"))
        handler = Handler(truck)
        await fleet.ready()
        await phone.send("archive", b"0", durable=True)  # it knows the way from now on
        await until(lambda: handler.seen and count(phone) == 0)
        await phone.send("archive", b"1", durable=True)
        go_on = block(store_of(phone))
        await until(lambda: len(handler.seen) == 2)
        store_of(phone)._crashed.set()  # noqa: SLF001
        go_on()
        await crash(fleet, phone)
        again = await fleet.leaf("phone", hub, store=settings(tmp_path / "phone"))
        await until(lambda: count(again) == 0)
        await again.send("archive", b"2", durable=True)
        await until(lambda: len(handler.seen) == 3)
        assert handler.seen == [(b"0", 1), (b"1", 1), (b"2", 1)]

    Fleet().run(scenario)


@pytest.mark.rule("DU-3")
def test_receiver_while_its_handler_runs(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        node = await fleet.node("node", store=settings(tmp_path))
        handler = Handler(node, hold=True)
        await node.send("archive", b"1", durable=True)
        await until(lambda: handler.seen)
        await crash(fleet, node)
        again = await fleet.node("node", store=settings(tmp_path))
        second = Handler(again)
        await until(lambda: second.seen)
        assert (handler.seen, second.seen) == ([(b"1", 1)], [(b"1", 2)])

    Fleet().run(scenario)


@pytest.mark.rule("DU-3")
def test_receiver_between_its_handlers_end_and_the_record(tmp_path: Path) -> None:
    """The only moment at which a message that was handled comes again; `attempt` says so."""

    async def scenario(fleet: Fleet) -> None:
        node = await fleet.node("node", store=settings(tmp_path))
        store, handled = store_of(node), list[bytes]()
        go_on: list[Callable[[], None]] = []

        @node.worker("archive")
        async def archive(message: Message, context: Context) -> None:  # noqa: ARG001
            go_on.append(block(store))
            handled.append(message.payload)

        await node.send("archive", b"1", durable=True)
        await until(lambda: handled and store.backlog)
        store._crashed.set()  # noqa: SLF001
        go_on[0]()
        await crash(fleet, node)
        again = await fleet.node("node", store=settings(tmp_path))
        second = Handler(again)
        await until(lambda: second.seen)
        assert (handled, second.seen) == ([b"1"], [(b"1", 2)])

    Fleet().run(scenario)


@pytest.mark.rule("DU-3")
def test_receiver_after_the_record(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        node = await fleet.node("node", store=settings(tmp_path))
        handler, recorder = Handler(node), fleet.recorder(node)
        await node.send("archive", b"1", durable=True)
        await until(lambda: was_delivered(recorder))
        await crash(fleet, node)
        again = await fleet.node("node", store=settings(tmp_path))
        second = Handler(again)
        await again.send("archive", b"2", durable=True)
        await until(lambda: second.seen)
        assert (handler.seen, second.seen) == ([(b"1", 1)], [(b"2", 1)])

    Fleet().run(scenario)


def test_the_page_names_the_test_of_each_moment() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "durable.md"
    named = re.findall(r"\| `(test_\w+)` \|", page.read_text(encoding="utf-8"))
    cells = [name for name in globals() if name.startswith(("test_sender", "test_next"))]
    cells += [name for name in globals() if name.startswith(("test_former", "test_receiver"))]
    assert sorted(named) == sorted(cells)
