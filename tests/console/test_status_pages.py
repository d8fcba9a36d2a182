"""Paging of a status: a part of the rows, their total, and messages in between."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.node.live import QUICK
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry
from waystation.node import Node
from waystation.node import status as module
from waystation.node.status import STATUS, Question, Snapshot, Status
from waystation.testing import DEADLINE, async_test, echo, until


def fill(node: Node, count: int, place: bytes = b"a:1") -> None:
    for number in range(count):
        name = f"truck-{number:05}"
        node.put_route(RoutingEntry(name, Address(1, place), local=False))


@async_test
async def test_routes_are_paged_with_their_total() -> None:
    async with Node("hub") as node:
        status = Status(node)
        fill(node, 1_000)
        first = status.snapshot(Question(routes=10))
        assert [route.participant for route in first.routes][::9] == ["truck-00000", "truck-00009"]
        assert first.routes_fitting == 1_000
        last = status.snapshot(Question(routes=10, skip_routes=995))
        assert [route.participant for route in last.routes] == [
            f"truck-{number:05}" for number in range(995, 1_000)
        ]
        beyond = status.snapshot(Question(routes=10, skip_routes=2_000))
        assert (beyond.routes, beyond.routes_fitting) == ([], 1_000)
        found = status.snapshot(Question(routes=3, filter="*-0099*", skip_routes=8))
        assert [route.participant for route in found.routes] == ["truck-00998", "truck-00999"]
        assert found.routes_fitting == 10
        assert status.snapshot(Question(routes=3, skip_routes=-5)).routes == first.routes[:3]


@async_test
async def test_what_was_not_requested_is_not_counted() -> None:
    async with Node("hub") as node:
        seen = Status(node).snapshot(Question(routes=0, sessions=0))
        assert (seen.routes_fitting, seen.sessions_fitting, seen.subscriptions_fitting) == (
            None,
            None,
            None,
        )


@async_test
async def test_routes_over_one_address_are_found_without_a_scan() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_TABLE", 50)
        async with Node("hub") as node:
            status = Status(node)
            fill(node, 60)
            node.put_route(RoutingEntry("car-1", Address(1, b"b:1"), local=False))
            seen = status.snapshot(Question(over="1#b:1"))
            assert [route.participant for route in seen.routes] == ["car-1"]
            assert seen.routes_fitting == 1
            one = status.snapshot(Question(filter="car-1", over="1#a:1"))
            assert (one.routes, one.routes_fitting) == ([], 0)
            assert status.snapshot(Question(over="what is this")).routes == []
            everything = status.snapshot(Question())
            assert (everything.routes, everything.routes_fitting) == ([], None)


@async_test
async def test_sessions_and_subscriptions_can_be_searched() -> None:
    async with Node("hub", hub=True, limits=QUICK) as hub, Node("truck", limits=QUICK) as truck:
        status = Status(hub)
        listener = await hub.listen("tcp://127.0.0.1:0")
        echo(truck)
        await truck.connect(listener.url, parent=True)
        await until(lambda: hub.sessions and hub.sessions[0].peer == "truck")
        truck.subscribe("garage", "temperature", "eu/+")
        hub.subscribe("garage", "pressure", "*")
        await until(lambda: len(hub.router.subscriptions) == 2)
        await until(lambda: "echo" in hub.router.table.snapshot(0))

        [session] = status.snapshot(Question(find_sessions="tru*")).sessions
        assert (session.peer, session.parent, session.participants >= 1) == ("truck", False, True)
        nobody = status.snapshot(Question(find_sessions="car*"))
        assert (nobody.sessions, nobody.sessions_fitting, nobody.sessions_total) == ([], 0, 1)
        seen = status.snapshot(Question(subscriptions=5, find_subscriptions="*temp*"))
        assert [found.pattern for found in seen.subscriptions] == ["garage/temperature/eu/+"]
        assert (seen.subscriptions_fitting, seen.subscriptions_total, seen.hub) == (1, 2, True)
        both = status.snapshot(Question(subscriptions=1, skip_subscriptions=1))
        assert (len(both.subscriptions), both.subscriptions_fitting) == (1, 2)
        assert Status(truck).snapshot().sessions[0].parent


@async_test
async def test_messages_pass_while_a_large_table_is_searched() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STRIDE", 10)
        async with Node("hub") as node:
            status = Status(node)
            status.start()
            echo(node)
            fill(node, 1_000)
            question = msgspec.json.encode(Question(filter="truck-*7"))
            asked = asyncio.create_task(node.request(STATUS, question, timeout=DEADLINE))
            await asyncio.sleep(0)
            passed = 0
            while not asked.done():
                await node.request("echo", b"", timeout=DEADLINE)
                passed += 1
            seen = msgspec.json.decode(asked.result().payload, type=Snapshot)
            assert seen.routes_fitting == 100
            assert passed > 3
            status.stop()


def test_the_status_of_an_older_node_is_understood() -> None:
    old = (
        b'{"node":"hub","at":1,"uptime":1.0,"counts":{},"rates":{},"bytes":0,"bytes_rate":0.0,'
        b'"routes_total":1,"routes":[],"sessions_total":0,"sessions":[],"session_events":{},'
        b'"journal_lost":null}'
    )
    seen = msgspec.json.decode(old, type=Snapshot)
    assert (seen.subscriptions, seen.hub) == ([], False)
