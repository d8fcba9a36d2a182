"""A change of a route or subscription says whose word it was, where the node knows (OB-10)."""

from __future__ import annotations

from tests.node.test_hubs import hub, knows, leaf
from tests.node.test_routing_scenarios import ask, asked_from_outside
from waystation.core.multicast import SubscriptionChange
from waystation.core.record import Cause, ChangeRecord, Record
from waystation.core.routing import RouteChange
from waystation.node import Node
from waystation.testing import async_test, echo, until


def changes(node: Node) -> list[ChangeRecord]:
    """The changes of a node from now on."""
    heard: list[ChangeRecord] = []

    def hear(record: Record) -> None:
        if isinstance(record, ChangeRecord):
            heard.append(record)

    node.observe(hear)
    return heard


def causes(heard: list[ChangeRecord], participant: str) -> list[Cause | None]:
    return [
        record.cause
        for record in heard
        if isinstance(record.change, RouteChange) and record.change.entry.participant == participant
    ]


@async_test
async def test_workers_and_subscriptions_of_the_node_are_its_own_doing() -> None:
    async with Node("alone") as node:
        heard = changes(node)
        echo(node)
        await node.stop_worker("echo")
        subscription = node.subscribe("alone", "news", callback=lambda _: None)
        await subscription.close()
        assert causes(heard, "echo") == [Cause.WORKER, Cause.WORKER]
        subscribed = [one for one in heard if isinstance(one.change, SubscriptionChange)]
        assert [record.cause for record in subscribed] == [Cause.WORKER, Cause.WORKER]


@async_test
async def test_what_goes_with_a_session_names_it() -> None:
    async with hub() as (center, url):
        heard = changes(center)
        async with leaf("a", url) as a:
            echo(a, "truck-7")
            await until(lambda: knows(center, "truck-7"))
            [session] = center.sessions
            a.sessions[0].abort_link()
            await until(lambda: Cause.SESSION_CLOSED in causes(heard, "truck-7"))
        [closed] = [
            record
            for record in heard
            if record.cause is Cause.SESSION_CLOSED
            and record.session == session.name
            and isinstance(record.change, RouteChange)
            and record.change.entry.participant == "truck-7"
        ]
        assert closed.message_id is None


@async_test
async def test_what_a_leaf_says_names_its_session() -> None:
    async with hub() as (center, url):
        heard = changes(center)
        async with leaf("a", url) as a:
            echo(a, "truck-7")
            subscription = a.subscribe("a", "news", callback=lambda _: None)
            await until(lambda: knows(center, subscription.address.name))
            await a.stop_worker("truck-7")
            await subscription.close()
            await until(lambda: not knows(center, subscription.address.name))
            [session] = center.sessions
        assert causes(heard, "truck-7") == [Cause.ANNOUNCED, Cause.WITHDRAWN]
        subscribed = [one for one in heard if isinstance(one.change, SubscriptionChange)]
        assert [one.cause for one in subscribed] == [Cause.ANNOUNCED, Cause.WITHDRAWN]
        assert {one.session for one in subscribed} == {session.name}


@async_test
async def test_the_way_back_to_a_stranger_names_its_request() -> None:
    async with asked_from_outside() as (_, node, peer):
        heard = changes(node)
        await ask(node, peer, 60)
        [session] = node.sessions
        [put] = [record for record in heard if record.cause is Cause.REQUEST]
        assert put.session == session.name
        assert put.message_id is not None
        assert len(put.message_id) == 32
