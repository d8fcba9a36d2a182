"""`why` says of every message what `traces` says, from a journal and from tables (SP-8)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.journeys import MINUTE, NODES, SHORT
from tests.why.fleets import (
    KNOWN,
    InMemory,
    MadeUp,
    TablesInMemory,
    TablesOf,
    damaged,
    write_journal,
    write_tables,
)
from waystation import leaf
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry
from waystation.core.visits import Fate
from waystation.node import FAIL, Limits, Node
from waystation.testing import async_test, collect, oracle, until
from waystation.testing.oracle import Row, Tables
from waystation.why import Explanation, explain, explanation_lines
from waystation.why.journal import JournalSource
from waystation.why.lookup import MessageLookup
from waystation.why.story import explained
from waystation.why.tables import TableSource, explain_from_tables


def assert_agrees(told: Explanation, rows: list[Row]) -> None:
    """The same outcome, reason, counts and order of steps of each origin."""
    assert len(told.ways) == len(rows)
    for number, (way, row) in enumerate(zip(told.ways, rows, strict=True)):
        same = ("origin", "outcome", "reason", "delivered", "lost_copies", "unknown_copies")
        more = ("left_fleet", "complete", "looped", "hops", "started", "ended", "answers")
        for name in (*same, *more, "internal"):
            assert getattr(way, name) == row[name], name
        hops = [hop for hop in told.hops if hop.way == number]
        first = told.hops.index(hops[0])
        steps = [
            (hop.node, hop.received_at, hop.depth, step.at, step.outcome, step.reason)
            for hop in hops
            for step in hop.steps
        ]
        names = ("node", "received_at", "depth", "at", "outcome", "reason")
        assert steps == [tuple(step[name] for name in names) for step in row["path"]]
        follows = [hop.follows for hop in hops for _ in hop.steps]
        assert [None if f is None else f - first for f in follows] == [
            step["follows"] for step in row["path"]
        ]


def told_of(told: Explanation) -> tuple[Any, ...]:
    """What a reader learns: how it ended, and of each hop all but what the rules say."""
    hops = [
        (hop.node, hop.received_at, hop.clock_ahead_us, hop.way, hop.follows, hop.depth, hop.steps)
        for hop in told.hops
    ]
    return told.summary, told.ways, hops


def assert_told_alike(
    lookup: InMemory, tables: TablesInMemory, traces: dict[str, list[Row]]
) -> None:
    """From a journal and from tables, as the oracle has it."""
    for id, rows in traces.items():
        from_journal = explained(JournalSource(lookup, id, lookup.message(id)), id)
        from_tables = explained(TableSource(tables, id, tables.traces(id)), id)
        assert_agrees(from_journal, rows)
        assert told_of(from_journal) == told_of(from_tables)


def of_each_message(journal: Tables) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in oracle.traces(journal):
        found[row["message_id"]].append(row)
    return found


@pytest.mark.rule("SP-8")
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.frozensets(st.sampled_from(KNOWN)))
def test_why_and_traces_say_the_same_of_every_message(seed: int, old: frozenset[str]) -> None:
    journal = MadeUp(seed, 6).journal(old=old)
    with TemporaryDirectory() as directory:
        source, tables = Path(directory) / "journal", Path(directory) / "tables"
        write_journal(source, journal)
        write_tables(tables, journal)
        for id, rows in of_each_message(journal).items():
            from_journal, from_tables = explain(source, id), explain_from_tables(tables, id)
            assert_agrees(from_journal, rows)
            assert_agrees(from_tables, rows)
            assert told_of(from_journal) == told_of(from_tables)
            assert list(explanation_lines(from_journal))


@pytest.mark.rule("SP-8")
@given(
    st.integers(0, 2**32), st.frozensets(st.sampled_from(KNOWN)), st.integers(0, 2**32) | st.none()
)
@example(951424, frozenset({"b"}), None)
def test_whatever_became_of_journals_both_tell_the_same(
    seed: int, old: frozenset[str], damage: int | None
) -> None:
    journal = MadeUp(seed, 6).journal(old=old)
    if damage is not None:
        journal = damaged(journal, damage)
    assert_told_alike(InMemory(journal), TablesInMemory(journal), of_each_message(journal))


@pytest.mark.rule("SP-8")
@async_test
async def test_what_live_nodes_record_is_explained_alike(tmp_path: Path) -> None:
    async with Node("hub", hub=True, journal=tmp_path, limits=Limits(heartbeat=0.0)) as hub:
        got = collect(hub, "sink")

        @hub.worker("echo")
        async def answer(_message: object, _context: object) -> bytes:
            return b"!"

        far = RoutingEntry("far", Address.parse("1#127.0.0.1:1"), local=False)
        for seconds in (0, 60):  # renewed
            hub.put_route(replace(far, expiry=hub.now() + 1_000 * seconds + 20))
        listening = await hub.listen("tcp://127.0.0.1:0")
        async with leaf(listening.url, name="truck", journal=tmp_path) as truck:
            await truck.request("echo", b"?", timeout=9)
            await truck.send("sink", b"!")
            await truck.publish("a/news", b"nobody hears it")
            for name in ("far", "fra", "sink"):
                await hub.send(name, b"!", policy=FAIL, ttl=0.0 if name == "sink" else None)
            await until(lambda: got)
    tables, lookup = TablesOf(tmp_path), MessageLookup(tmp_path)
    ids = {row["message_id"] for row in tables.rows("traces")}
    assert len(ids) >= 6
    entries = 0
    for id in ids:
        told = explained(JournalSource(lookup, id, lookup.message(id)), id)
        found = explained(TableSource(tables, id, tables.traces(id)), id)
        assert told_of(told) == told_of(found)
        for mine, other in zip(told.hops, found.hops, strict=True):
            assert mine.explanation == other.explanation
            assert mine.as_expected == other.as_expected
            for one, same in zip(mine.expected, other.expected, strict=True):
                if one.entry is not None:
                    assert one == same
                    entries += 1
    assert entries >= 3


def test_the_table_of_traces_alone_tells_what_became_of_each_copy() -> None:
    journal = MadeUp(3, 40).journal()
    whole, alone = TablesInMemory(journal), TablesInMemory(journal, "traces")
    vanished = 0
    for id in of_each_message(journal):
        told, found = (
            explained(TableSource(some, id, some.traces(id)), id) for some in (whole, alone)
        )
        assert [way.summary for way in found.ways] == [way.summary for way in told.ways]
        steps = [step.fate for hop in found.hops for step in hop.steps]
        assert steps == [step.fate for hop in told.hops for step in hop.steps]
        assert not any("keeps no journal here" in remark for remark in found.remarks)
        vanished += steps.count("vanished")
    assert vanished


@pytest.mark.rule("SP-8")
@pytest.mark.rule("TM-3")
def test_clocks_that_only_traffic_tells_of_are_the_same_to_why_and_traces(tmp_path: Path) -> None:
    ahead = {node: 4 * number * MINUTE for number, node in enumerate(NODES)}
    journal = MadeUp(3, 500, ahead, measured=False).journal()
    source, tables = tmp_path / "journal", tmp_path / "tables"
    write_journal(source, journal)
    write_tables(tables, journal)
    rows = of_each_message(journal)
    corrected = 0
    for id in sorted(rows)[::10]:
        from_journal, from_tables = explain(source, id), explain_from_tables(tables, id)
        assert_agrees(from_journal, rows[id])
        assert_agrees(from_tables, rows[id])
        corrected += any(hop.clock_ahead_us for hop in from_journal.hops)
    assert corrected


@pytest.mark.rule("SP-8")
@pytest.mark.rule("TM-3")
def test_a_thousand_messages_over_clocks_three_minutes_apart(tmp_path: Path) -> None:
    ahead = {node: (3 - 6 * (number % 2)) * MINUTE for number, node in enumerate(NODES)}
    fleet = MadeUp(7, 1_150, ahead)
    journal = fleet.journal()
    write_journal(tmp_path, journal)
    traces, lookup = of_each_message(journal), InMemory(journal)
    told = 0
    for number, (id, journeys) in enumerate(fleet.journeys.items()):
        found = explained(JournalSource(lookup, id, lookup.message(id)), id)
        assert_agrees(found, traces[id])
        if number % 20 == 0:
            assert explain(tmp_path, id) == found
        if len(journeys) == 1:
            [journey] = journeys
            told += 1
            for hop in found.hops:
                true = journey.truth[hop.node, hop.received_at]
                former = None if hop.follows is None else found.hops[hop.follows]
                came = None if former is None else (former.node, former.received_at)
                assert came == true.follows
                for step, fate in zip(hop.steps, true.fates, strict=True):
                    # Of nodes whose record may end early, other messages may show that it did not.
                    assert step.fate == fate or (
                        step.next_node in SHORT and step.fate == Fate.VANISHED
                    )
    assert told >= 1_000
