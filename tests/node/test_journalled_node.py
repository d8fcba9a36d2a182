"""What live nodes write down is what the rules say, and enough to rebuild their tables."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.traffic import entries
from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Message
from waystation.core.record import ChangeRecord
from waystation.core.router import Router
from waystation.core.routing import RoutingEntry
from waystation.journal import Journal
from waystation.journal.read import Entry
from waystation.node import FAIL, Context, Node
from waystation.testing import ManualClock, MemoryNetwork, settle

NAMES = ("a", "b", "c", "ghost")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from(NAMES)),
        st.tuples(st.just("stop"), st.sampled_from(NAMES)),
        st.tuples(
            st.just("put"),
            st.builds(
                RoutingEntry,
                participant=st.sampled_from(NAMES),
                address=st.sampled_from([Address(6, b"right"), Address(200, b"moon")]),
                local=st.just(False),
                visible=st.booleans(),
                expiry=st.one_of(st.just(NEVER), st.integers(1_000, 1_000_400)),
                sticky=st.booleans(),
            ),
        ),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("pass"), st.integers(0, 200)),
        st.tuples(st.just("subscribe"), st.sampled_from(["p/x", "p/+", "p/x/*"])),
        st.tuples(st.just("unsubscribe"), st.sampled_from(["p/x", "p/+", "p/x/*"])),
        st.tuples(
            st.just("send"),
            st.sampled_from(
                ["a", "b", "ghost", "a => b", "mem#right => a", "mem#nowhere => a", "77#x"]
            ),
        ),
        st.tuples(st.just("send, soon over"), st.sampled_from(NAMES)),
    ),
    max_size=25,
)


class Tables:
    """The tables of a node, from its journal."""

    def __init__(self, node: Node) -> None:
        self.router = Router(hop_limit=node.router.hop_limit)
        for name, number in node.router.types.numbers.items():
            if name != "local" and node.router.types.routes(number):
                self.router.types.register(name, number)

    def replay(self, entry: Entry) -> None:
        row, now = entry.fields, entry.at // 1_000
        if entry.table == "subscriptions":
            getattr(self.router.subscriptions, row["kind"])(row["pattern"], row["receiver"])
        elif entry.table == "routes" and row["kind"] == "remove":
            self.router.table.remove(row["participant"], now)
        elif entry.table == "routes":
            expiry = NEVER if row["expiry"] is None else row["expiry"] // 1_000
            put = RoutingEntry(
                row["participant"],
                Address.parse(row["address"]),
                row["local"],
                row["visible"],
                expiry,
                row["sticky"],
            )
            assert self.router.table.put(put, now).accepted == row["accepted"]


def expected(tables: Tables, row: dict[str, Any]) -> tuple[str, str | None, str | None]:
    message = Message(
        Route.parse(" => ".join(row["onward"])),
        Route.parse(" => ".join(row["return"])),
        bytes(row["bytes"]),
        row["message_id"],
        NEVER if row["expiry"] is None else row["expiry"] // 1_000,
    )
    verdict = tables.router.decide(message, row["received_at"] // 1_000)
    forwarded = verdict.outcome == "FORWARDED"
    if forwarded and verdict.address and not tables.router.types.routes(verdict.address.type):
        return "DROPPED", "UNKNOWN_TYPE", None  # no transport goes where the entry points
    return verdict.outcome, verdict.reason, str(verdict.address) if forwarded else None


def is_here(node: Node, name: str) -> bool:
    entry = node.router.table.lookup(name, node.now())
    return entry is not None and entry.local


async def act(node: Node, journal: Journal, clock: ManualClock, step: tuple[str, Any]) -> None:
    kind, value = step
    if kind == "start" and not is_here(node, value):
        node.start_worker((value,), lambda *_: None)
    elif kind == "stop" and is_here(node, value):
        await settle()  # what it has is handled, so that nothing is dropped
        await node.stop_worker(value)
    elif kind == "put":
        node.put_route(value)
    elif kind == "remove" and not is_here(node, value):
        node.remove_route(value)
    elif kind == "pass":
        clock.advance(value / 1_000)
    elif kind in ("subscribe", "unsubscribe"):
        change = getattr(node.router.subscriptions, kind)(value, "a")
        if change is not None:
            journal.note(ChangeRecord(change, node.now() * 1_000))
    elif kind == "send":
        await node.send(value, b"payload")
    elif kind == "send, soon over":
        await node.send(value, b"payload", ttl=0, policy=FAIL)


@pytest.mark.rule("OB-1", "OB-3", "OB-4")
@given(steps=steps)
def test_the_journal_of_random_traffic_replays_to_the_tables_and_outcomes_of_the_live_node(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    directory: Path = tmp_path_factory.mktemp("journal")

    async def live() -> tuple[Node, int, dict[str, RoutingEntry], list[list[str]]]:
        network, clock = MemoryNetwork(), ManualClock(start=1_000.0)
        right = Node("right", transports=[network.transport()])
        await right.listen("mem://right")
        left = Node("left", transports=[network.transport()], clock=clock)
        journal = Journal(directory, "left")
        end_journal = left.observe(journal.note)
        for step in steps:
            await act(left, journal, clock, step)
        await asyncio.sleep(0.001)
        now = left.now()
        snapshot = left.router.table.snapshot(now)
        matched = [list(left.router.subscriptions.match(id)) for id in ("p/x", "p/x/y")]
        end_journal()  # with all the tables as they are
        await left.close(drain=1)
        await right.close()
        journal.close()
        return left, now, snapshot, matched

    node, now, snapshot, matched = asyncio.run(asyncio.wait_for(live(), 60))
    history = list(entries(directory))
    tables = Tables(node)
    for entry in history:
        tables.replay(entry)
    assert tables.router.table.snapshot(now) == snapshot
    assert [list(tables.router.subscriptions.match(id)) for id in ("p/x", "p/x/y")] == matched
    check_outcomes(node, history)


def check_outcomes(node: Node, history: list[Entry]) -> None:
    """Replay once more, and ask the rules about each message at the moment it came in."""
    arrivals = sorted(
        (entry for entry in history if entry.table == "messages"),
        key=lambda entry: entry.fields["received_at"],
    )
    entered = [entry.fields["received_at"] for entry in arrivals]
    assert len(set(entered)) == len(entered)  # each names one entry of a message into the node
    tables = Tables(node)
    changes = [entry for entry in history if entry.table in ("routes", "subscriptions")]
    for entry in arrivals:
        while changes and changes[0].at <= entry.fields["received_at"]:
            tables.replay(changes.pop(0))
        row = entry.fields
        actual = row["outcome"], row["reason"], row["next_hop"]
        nobody_there = actual == ("DROPPED", "TRANSPORT_DOWN", None)
        assert nobody_there or actual == expected(tables, row)


@pytest.mark.rule("OB-4")
def test_a_node_keeps_a_journal_of_all_that_it_did(tmp_path: Path) -> None:
    async def main() -> None:
        async with Node("garage", journal=tmp_path) as node:

            @node.worker("echo")
            async def echo(message: Message, context: Context) -> None:
                await context.reply(message.payload)

            await node.request("echo", b"hello")
            await node.send("nobody", b"")

    asyncio.run(main())
    told = [(entry.table, entry.fields.get("kind")) for entry in entries(tmp_path)]
    assert told[0] == ("nodes", "start")
    assert told[-1] == ("nodes", "stop")
    outcomes = [
        (entry.fields["outcome"], entry.fields["recipient"], entry.fields["reason"])
        for entry in entries(tmp_path)
        if entry.table == "messages"
    ]
    assert ("DELIVERED", "echo", None) in outcomes
    assert any(
        outcome == "DELIVERED" and (recipient or "").startswith("request-")
        for outcome, recipient, _ in outcomes
    )
    assert outcomes[-1][2] == "NO_ROUTE"
