"""Nobody is told of what is not on disk yet: no record, no count, no other node (DU-2, DU-7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.node.test_durable import durable_rows, quick
from tests.node.test_durable_crashes import block, store_of
from waystation.core.address import Address, Route
from waystation.core.custody import Letter, Pair
from waystation.core.message import Message
from waystation.node import Context, Node
from waystation.testing import Fleet, Recorder, until
from waystation.testing.waiting import settle
from waystation.testing.workers import collect
from waystation.wire import custody as wire
from waystation.wire.custody import Answer, Take

CUSTODY = Address(0, wire.WORKER.encode())


def counts(node: Node) -> tuple[int, int]:
    """Messages in custody, and dead letters."""
    assert node.custody is not None
    return node.custody.messages, node.custody.dead


@pytest.mark.rule("DU-1")
def test_a_message_counts_when_it_is_on_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path, messages=1)) as node:
            go_on = block(store_of(node))
            sending = asyncio.create_task(node.send("archive", b"hello", durable=True))
            await until(lambda: store_of(node).backlog)
            assert counts(node) == (0, 0)
            assert (await node.send("archive", b"", durable=True)).reason is not None  # its room
            go_on()
            await sending
            assert counts(node) == (1, 0)

    asyncio.run(scenario())


@pytest.mark.rule("DU-7")
def test_a_handled_message_is_recorded_and_its_room_is_free_after_the_commit(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path, messages=1)) as node:
            recorder, go_on = Recorder(node), list[Callable[[], None]]()

            @node.worker("archive")
            async def archive(message: Message, context: Context) -> None:  # noqa: ARG001
                go_on.append(block(store_of(node)))

            await node.send("archive", b"1", durable=True)
            await until(lambda: go_on and store_of(node).backlog)
            assert durable_rows(recorder) == [("QUEUED", None, None)]
            assert counts(node) == (1, 0)
            assert (await node.send("archive", b"", durable=True)).reason is not None
            go_on[0]()
            await until(lambda: ("DELIVERED", 1, None) in durable_rows(recorder))
            assert counts(node) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.rule("DU-7")
@pytest.mark.parametrize(
    ("attempts", "row", "after"),
    [(5, ("QUEUED", 1, None), (1, 0)), (1, ("FAILED", 1, None), (0, 1))],
)
def test_a_failed_attempt_is_recorded_after_the_commit(
    tmp_path: Path, attempts: int, row: Any, after: tuple[int, int]
) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path, attempts=attempts, pause=60)) as node:
            recorder, go_on = Recorder(node), list[Callable[[], None]]()

            @node.worker("archive")
            async def archive(message: Message, context: Context) -> None:  # noqa: ARG001
                go_on.append(block(store_of(node)))
                raise ValueError("no")

            await node.send("archive", b"1", durable=True)
            await until(lambda: go_on and store_of(node).backlog)
            assert durable_rows(recorder) == [("QUEUED", None, None)]
            assert counts(node) == (1, 0)
            go_on[0]()
            await until(lambda: row in durable_rows(recorder))
            assert counts(node) == after

    asyncio.run(scenario())


@pytest.mark.rule("DU-7")
def test_attempts_are_counted_across_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        attempts: list[int] = []

        def handle(message: Message, context: Context) -> None:  # noqa: ARG001
            attempts.append(context.attempt)
            raise ValueError("no")

        for process in range(3):
            async with Node("hub", store=quick(tmp_path, pause=60)) as node:
                recorder = Recorder(node)
                node.start_worker(("archive",), handle)
                if process == 0:
                    await node.send("archive", b"1", durable=True)
                await until(partial(was_queued_again, recorder))
        # A process may have been about to hand it over when it ended: that may count too.
        assert attempts[0] == 1
        assert 2 <= attempts[1] <= 3
        assert attempts[1] < attempts[2] <= 5

    asyncio.run(scenario())


def was_queued_again(recorder: Recorder) -> bool:
    return any(row[0] == "QUEUED" and row[1] for row in durable_rows(recorder))


class Scripted:
    """A node whose word about custody is given by the test."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.offers: list[tuple[Message, Take]] = []
        self.answers: list[Answer] = []
        node.start_worker((wire.WORKER,), self._hear, reserved=True)

    def _hear(self, message: Message, _: Context) -> None:
        told = wire.read(message.payload)
        if isinstance(told, Take):
            self.offers.append((message, told))
        elif isinstance(told, Answer):
            self.answers.append(told)

    async def offer(self, id: str, pair: Pair, *letters: Letter) -> None:
        """Offer letters over its only session."""
        (session,) = self.node.sessions
        expiry, names = self.node.expiry_in(60), self.node.router.types.name
        payload = wire.take(id, pair, 1, letters, expiry, names)
        onward = Route((session.address, CUSTODY))
        message = Message(onward, Route((CUSTODY,)), payload, self.node.new_id(), expiry)
        await self.node.route(message)

    async def answer(self, offer: tuple[Message, Take]) -> None:
        """Say that it has what was offered."""
        message, told = offer
        payload = wire.encode(Answer(told.transfer, self.node.name))
        await self.node.send(message.return_route, payload)


def letter_to(receiver: str, node: Node) -> Letter:
    message = Message(Route.parse(receiver), Route(), b"hello", node.new_id(), node.expiry_in(60))
    return Letter(1, message, node.now())


@pytest.mark.rule("DU-2")
def test_no_other_node_is_told_that_a_message_has_ended_before_that_is_on_disk(
    tmp_path: Path,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path))
        peer = Scripted(await fleet.leaf("peer", hub))
        go_on: list[Callable[[], None]] = []

        @hub.worker("archive")
        async def archive(message: Message, context: Context) -> None:  # noqa: ARG001
            go_on.append(block(store_of(hub)))

        await fleet.ready()
        pair, letter = Pair("other", "peer", "archive"), letter_to("archive", peer.node)
        await peer.offer("first", pair, letter)
        await until(lambda: peer.answers and go_on and store_of(hub).backlog)
        await peer.offer("second", pair, letter)
        waiting = store_of(hub).backlog
        await until(lambda: store_of(hub).backlog > waiting or len(peer.answers) > 1)
        await settle()
        assert [one.transfer for one in peer.answers] == ["first"]
        go_on[0]()
        await until(lambda: len(peer.answers) == 2)
        assert peer.answers[1] == Answer("second", "hub", [1])

    Fleet().run(scenario)


@pytest.mark.rule("DU-2")
def test_two_nodes_that_offer_each_other_the_same_message_do_not_both_forget_it(
    tmp_path: Path,
) -> None:
    """It happens when an answer is lost and the route turns round: then both have it."""

    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path, answer=1_000))
        peer = Scripted(await fleet.leaf("peer", hub))
        collect(peer.node, "truck-7")
        await fleet.ready()
        sent: Any = await hub.send("truck-7", b"hello", durable=True)
        await until(lambda: peer.offers)
        message, told = peer.offers[0]
        (theirs,) = wire.letters_of(told, message.expiry, Route(), {})
        assert theirs.message.id == sent.id
        await peer.offer("back", told.pair, theirs)  # which the hub has, and says so
        await until(lambda: peer.answers)
        assert peer.answers[0] == Answer("back", "hub")
        await peer.answer(peer.offers[0])  # of an offer made before that
        await until(lambda: len(peer.offers) == 2)  # it is still there, and offered again
        assert counts(hub) == (1, 0)
        await peer.answer(peer.offers[1])
        await until(lambda: counts(hub) == (0, 0))

    Fleet().run(scenario)


@pytest.mark.rule("DU-3")
def test_no_handler_begins_before_it_is_on_disk_that_it_may_have(tmp_path: Path) -> None:
    """Neither for a message that waited, when a new one comes with that note."""

    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path)) as node:
            await node.send("archive", b"1", durable=True)
            await until(lambda: node.custody and node.custody.parked == 1)
            go_on = block(store_of(node))
            found = collect(node, "archive")
            sending = asyncio.create_task(node.send("archive", b"2", durable=True))
            await until(lambda: store_of(node).backlog >= 2)
            await settle()
            assert found == []
            go_on()
            await sending
            await until(lambda: len(found) == 2)

    asyncio.run(scenario())


@pytest.mark.rule("DU-8")
def test_a_hub_is_told_of_a_durable_subscription_after_it_is_on_disk(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub"))
        leaf = await fleet.leaf("leaf", hub, store=quick(tmp_path / "leaf"))
        await fleet.ready()
        go_on = block(store_of(leaf))
        subscription = leaf.subscribe("garage/news", durable="archive")
        entering = asyncio.create_task(subscription.__aenter__())
        await until(lambda: store_of(leaf).backlog)
        await leaf.ready()
        kept = hub._kernel.custody.kept  # noqa: SLF001
        assert (len(kept), entering.done()) == (0, False)
        go_on()
        await entering
        assert len(kept) == 1  # so what is published from now on waits there
        await subscription.close()

    Fleet().run(scenario)
