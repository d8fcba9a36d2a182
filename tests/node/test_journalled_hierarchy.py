"""What a hub and its leaves wrote down is enough to rebuild their tables, broadcasts included."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.journal.traffic import entries
from tests.node.test_hubs import QUIET, knows
from tests.node.test_journalled_node import Tables
from tests.node.test_routing_scenarios import OFFER, TRUCK
from waystation.core.address import Route
from waystation.core.message import Arrival, Message
from waystation.core.multicast import ADDRESS_TYPE
from waystation.core.routing import RoutingEntry
from waystation.journal import Journal
from waystation.journal.read import Entry
from waystation.node import FAIL, Node, Queue, Wait
from waystation.testing import collect, echo, run_checked, settle, until

IDS = ("a/news", "a/news/x", "a/news/x/y", "b/news", "hub/news/x")


class State:
    """The tables of a live node, at an instant."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.now = node.now()
        self.table: dict[str, RoutingEntry] = node.router.table.snapshot(self.now)
        self.matched = [set(node.router.subscriptions.match(id)) for id in IDS]
        self.subscribed = set(node.router.subscriptions.snapshot())


async def traffic(center: Node, a: Node, b: Node) -> None:
    """All that changes tables: participants, subscriptions, questions, losses of connections."""
    echo(a, TRUCK)
    sink = collect(b, "sink")
    heard: list[bytes] = []
    subscriptions = [
        b.subscribe("a", "news", partition, callback=lambda m: heard.append(m.payload))
        for partition in ("", "*", "+", "x/y")
    ]
    center.subscribe("+", "news", "x", callback=lambda _: None)
    await until(lambda: knows(center, TRUCK) and knows(center, "sink"))
    await until(lambda: len(center.router.subscriptions) == 5)
    await b.request(TRUCK, b"?")
    await a.register(TRUCK, *OFFER, ttl=60)
    await b.discover(*OFFER)
    await a.send("sink", b"1", ttl=60)
    await a.send("nobody", b"2", policy=FAIL)
    await center.send("late", b"3", policy=Queue(60, persist=True))
    collect(b, "late")
    await a.publish("news", b"4", partition="x")
    await a.publish("news", b"5", ttl=60)
    await center.publish("news", b"6", partition="x")
    await a.publish("silence", b"7")
    await until(lambda: sorted(heard) == [b"4", b"4", b"5", b"5"])
    await subscriptions[0].close()
    a.sessions[0].abort_link()
    await until(lambda: not knows(center, TRUCK))
    await until(lambda: knows(center, TRUCK))
    await b.stop_worker("sink")
    await until(lambda: not knows(center, "sink"))
    answer = await b.request(TRUCK, b"again", policy=Wait(persist=True))
    assert answer.payload == b"again"
    assert len(sink) == 1


async def live(directory: Path) -> dict[str, State]:
    """Run the traffic; the tables of each node at the moment its journal ends."""
    center, a, b = (
        Node("hub", hub=True, limits=QUIET),
        Node("a", limits=QUIET),
        Node("b", limits=QUIET),
    )
    journals = [Journal(directory, node.name) for node in (center, a, b)]
    ends = [
        node.observe(journal.note) for node, journal in zip((center, a, b), journals, strict=True)
    ]
    listening = await center.listen("tcp://127.0.0.1:0")
    for node in (a, b):
        await node.connect(listening.url, name="hub", parent=True)
    await traffic(center, a, b)
    await settle()
    states = {node.name: State(node) for node in (center, a, b)}
    for end in ends:
        end()  # the journals end here, with the tables as they are
    for node in (a, b, center):
        await node.close(drain=1)
    for journal in journals:
        await asyncio.to_thread(journal.close)
    return states


def replayed(node: Node, history: list[Entry]) -> Tables:
    """The tables that a journal tells of."""
    tables = Tables(node)
    for entry in history:
        tables.replay(entry)
    return tables


@pytest.fixture(scope="module")
def journalled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, State]]:
    directory = tmp_path_factory.mktemp("journal")
    states: dict[str, State] = {}

    async def scenario() -> None:
        states.update(await live(directory))

    run_checked(scenario)
    return directory, states


@pytest.mark.rule("OB-4")
@pytest.mark.parametrize("name", ["hub", "a", "b"])
def test_the_journal_of_a_hub_and_its_leaves_replays_to_the_same_tables(
    journalled: tuple[Path, dict[str, State]], name: str
) -> None:
    directory, states = journalled
    state = states[name]
    tables = replayed(state.node, list(entries(directory, nodes=frozenset({name}))))
    assert tables.router.table.snapshot(state.now) == state.table
    assert set(tables.router.subscriptions.snapshot()) == state.subscribed
    assert [set(tables.router.subscriptions.match(id)) for id in IDS] == state.matched


@pytest.mark.rule("OB-1", "OB-4")
@pytest.mark.parametrize("name", ["hub", "a", "b"])
def test_every_broadcast_went_to_whom_the_rules_say(
    journalled: tuple[Path, dict[str, State]], name: str
) -> None:
    directory, states = journalled
    history = list(entries(directory, nodes=frozenset({name})))
    told: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for entry in history:
        if entry.table == "messages" and entry.fields["kind"] == "multicast":
            row = entry.fields
            told.setdefault((row["message_id"], row["received_at"]), []).append(row)
    assert told
    for (_, received_at), rows in told.items():
        before = [entry for entry in history if entry.at <= received_at]
        tables = replayed(states[name].node, before)
        tables.router.has_parent = name != "hub"
        expected = expected_of(tables, rows[0])
        actual = {(row["recipient"], row["outcome"], row["reason"]) for row in rows}
        up = {row for row in actual if row[0] is None and row[1] == "FORWARDED"}
        assert actual - up == expected
        assert len(rows) == len(actual)  # one row for each, and none twice
        if name != "hub":  # a leaf passes on what it published, and nothing else
            assert bool(up) is not rows[0]["from_global"]


def expected_of(tables: Tables, row: dict[str, Any]) -> set[tuple[str | None, str, str | None]]:
    """Who gets a broadcast, by the rules."""
    message = Message.of(_route(row["onward"]), _route(row["return"]), b"", id=row["message_id"])
    assert message.onward_route.addresses[0].type == ADDRESS_TYPE
    facts = (row["received_at"], row["from_global"], row["multicast_id"], row["via"])
    arrival = Arrival(message, *facts)
    fan_out = tables.router.fan_out(row["multicast_id"], arrival, row["received_at"] // 1_000)
    return {(v.recipient, v.outcome.value, v.reason) for v in fan_out.verdicts}


def _route(addresses: list[str]) -> Route:
    return Route.parse(" => ".join(addresses))
