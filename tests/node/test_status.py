"""What a node tells of itself: counts that agree with the records, and bounded answers."""

from __future__ import annotations

import msgspec
import pytest

from tests.node.live import QUICK
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry
from waystation.node import Node
from waystation.node import status as module
from waystation.node.status import STATUS, Question, Snapshot, Status
from waystation.testing import DEADLINE, Recorder, async_test, echo, until


async def ask(node: Node, route: str, question: bytes = b"") -> Snapshot:
    answer = await node.request(route, question, timeout=DEADLINE)
    return msgspec.json.decode(answer.payload, type=Snapshot)


@async_test
async def test_counts_are_those_of_the_records() -> None:
    async with Node("hub", limits=QUICK) as hub, Node("leaf", limits=QUICK) as leaf:
        heard, status = Recorder(hub), Status(hub)
        echo(hub)
        listening = await hub.listen("tcp://127.0.0.1:0")
        await leaf.connect(listening.url, name="hub", wait=DEADLINE)
        for _ in range(5):
            await leaf.request("hub => echo", b"12345", timeout=DEADLINE)
        await leaf.send("hub => nobody", b"1")
        await until(lambda: heard.counts()["NO_ROUTE"])
        seen = status.snapshot()
        assert seen.counts == dict(heard.counts())
        assert seen.bytes == sum(len(r.arrival.message.payload) for r in heard.messages)
        assert seen.session_events == {"opened": 1}
        [session] = seen.sessions
        assert (session.peer, session.open, session.opened_here) == ("leaf", True, False)
        assert (session.messages_in, session.messages_out) == (6, 5)
        assert seen.sessions_total == 1
        assert seen.journal_lost is None


@async_test
async def test_drops_of_what_nodes_say_to_each_other_are_counted_apart() -> None:
    async with Node("hub", limits=QUICK) as hub:
        status = Status(hub)
        echo(hub)
        await hub.send("waystation.directory", b"who is there?")
        await hub.send("nobody", b"1")
        await hub.request("echo", b"2")
        seen = status.snapshot()
        assert seen.counts == {"DELIVERED": 2, "NO_ROUTE": 1}
        assert seen.internal_drops == {"NO_ROUTE": 1}


@async_test
async def test_peers_ask_the_worker() -> None:
    async with Node("hub", limits=QUICK) as hub, Node("leaf", limits=QUICK) as leaf:
        status = Status(hub)
        status.start()
        listening = await hub.listen("tcp://127.0.0.1:0")
        await leaf.connect(listening.url, name="hub", wait=DEADLINE)
        seen = await ask(leaf, f"hub => {STATUS}")
        assert seen.node == "hub"
        assert STATUS in [route.participant for route in seen.routes]
        for nonsense in (b"{", b"[]", b"x" * 5_000, b'{"routes": "many"}'):
            assert (await ask(leaf, f"hub => {STATUS}", nonsense)).node == "hub"
        status.stop()


@async_test
async def test_routes_are_told_up_to_a_number_and_by_a_pattern() -> None:
    async with Node("hub") as hub:
        status = Status(hub)
        expiry = hub.now() + 100_000
        for number in range(2_000):
            name = f"truck-{number}"
            hub.put_route(RoutingEntry(name, Address(1, b"a:1"), local=False, expiry=expiry))
        seen = status.snapshot(Question(routes=3))
        assert (len(seen.routes), seen.routes_total) == (3, 2_000)
        assert len(status.snapshot(Question(routes=10**9)).routes) == module.MOST
        assert status.snapshot(Question(routes=-1)).routes == []
        [one] = status.snapshot(Question(filter="truck-7")).routes
        assert (one.participant, one.address, one.expiry) == ("truck-7", "1#a:1", expiry)
        assert len(status.snapshot(Question(filter="truck-199*", routes=99)).routes) == 11
        assert status.snapshot(Question(filter="nobody")).routes == []


@async_test
async def test_a_large_table_is_not_gone_through() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_TABLE", 1)
        async with Node("hub") as hub:
            status = Status(hub)
            echo(hub, "a")
            echo(hub, "b")
            assert status.snapshot().routes == []
            assert len(status.snapshot(Question(filter="a")).routes) == 1


@async_test
async def test_rates_are_those_of_the_last_seconds() -> None:
    async with Node("hub") as hub:
        status = Status(hub)
        for _ in range(10):
            await hub.send("nobody", b"xx")
        seen = status.snapshot()
        assert seen.counts == {"NO_ROUTE": 10}
        assert seen.rates["NO_ROUTE"] > 0
        assert seen.bytes_rate > 0
        for _ in range(module.WINDOW + 1):  # so many quiet seconds later
            status._tick()
        seen = status.snapshot()
        assert seen.rates == {"NO_ROUTE": 0.0}
        assert seen.bytes_rate == 0.0
        status.stop()
