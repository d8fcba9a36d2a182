"""A node without a store gives messages into the custody of its peer (DU-1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.test_durable import dead_rows, durable_rows, payloads, quick
from tests.node.test_durable_crashes import block, store_of
from waystation.core.access import Access, AccessRule
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.outcome import Reason
from waystation.errors import LocalError, NoReplyError
from waystation.node import Node
from waystation.testing import Fleet, until
from waystation.testing.workers import collect


def message(node: Node, to: str | Route, payload: bytes, ttl: float | None = None) -> Message:
    route = Route.parse(to) if isinstance(to, str) else to
    return Message(route, Route(), payload, node.new_id(), node.expiry_in(ttl))


@pytest.mark.rule("DU-1")
def test_a_deposit_is_confirmed_when_the_peer_has_it_on_disk(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path, ttl=1_000))
        task = await fleet.leaf("task", hub)
        await fleet.ready()
        (session,) = task.sessions
        each = [message(task, f"truck-{n % 3}", b"%d" % n) for n in range(900)]
        assert await task.deposit(session, each) == [None] * 900
        assert hub.custody is not None
        assert hub.custody.messages == 900
        await fleet.stop(task)
        found = collect(hub, "truck-0", "truck-1", "truck-2")
        await until(lambda: len(found) == 900)
        for truck in range(3):
            theirs = [one for one in found if int(one.payload) % 3 == truck]
            assert payloads(theirs) == [b"%d" % n for n in range(truck, 900, 3)]
        lives = {one.expiry - hub.now() for one in found}
        assert max(lives) <= 1_031_000  # what has no expiry lives as long as the store says

    Fleet().run(scenario)


@pytest.mark.rule("DU-1")
def test_nobody_is_told_before_it_is_on_disk(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path))
        task = await fleet.leaf("task", hub)
        await fleet.ready()
        (session,) = task.sessions
        go_on = block(store_of(hub))
        with pytest.raises(NoReplyError, match="take custody"):
            await task.deposit(session, [message(task, "truck-7", b"")], timeout=0.2)
        assert durable_rows(fleet.recorder(hub)) == []
        go_on()
        await until(lambda: durable_rows(fleet.recorder(hub)) == [("QUEUED", None, None)])

    Fleet().run(scenario)


@pytest.mark.rule("DU-5")
def test_a_deposit_that_is_refused_says_why(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        access = Access([AccessRule(True, ("task",), ("allowed", "full"))])
        store = quick(tmp_path, receiver_messages=1)
        hub = await fleet.hub("hub", store=store, access=access)
        task = await fleet.leaf("task", hub)
        await fleet.ready()
        (session,) = task.sessions
        for to, reasons in (
            ("full", [None]),
            ("full", [Reason.QUEUE_FULL]),
            ("secret", [Reason.REFUSED]),
        ):
            assert await task.deposit(session, [message(task, to, b"")]) == reasons
        assert dead_rows(tmp_path) == []  # the hub never had them

    Fleet().run(scenario)


def test_a_peer_without_a_store_cannot_have_custody() -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        task = await fleet.leaf("task", hub)
        await fleet.ready()
        (session,) = task.sessions
        with pytest.raises(LocalError, match="'hub' has no store"):
            await task.deposit(session, [message(task, "truck-7", b"")])

    Fleet().run(scenario)


@pytest.mark.rule("DU-8")
def test_a_deposited_broadcast_reaches_durable_subscriptions(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path))
        task = await fleet.leaf("task", hub)
        await fleet.ready()
        (session,) = task.sessions
        async with hub.subscribe("garage/news", durable="archive") as subscription:
            topic = Route((Address(MULTICAST, b"garage/news"),))
            assert await task.deposit(session, [message(task, topic, b"open")]) == [None]
            assert (await anext(subscription)).payload == b"open"

    Fleet().run(scenario)
