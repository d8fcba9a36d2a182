"""A simulated journal tells the truth beside it: by the core alone, without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.pipeline.journals import read
from tests.pipeline.replay import act
from waystation.core.address import LOCAL, Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Verdict
from waystation.core.router import Router
from waystation.core.routing import RoutingEntry
from waystation.core.visits import Trace, step_of, tied, traced
from waystation.journal.check import check
from waystation.journal.schema import SCHEMAS, VERSION_KEY, version_in
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import SAMPLE, TRUTH, write_fleet
from waystation.simulate.truth import KINDS
from waystation.testing.oracle import Row, Tables, entries_of, evidence_of, in_order

FLEET = Fleet(nodes=30, participants=600, messages=12_000, seed=4)
INJECTED = {"TRANSPORT_DOWN", "QUEUE_FULL", "FAILED", "DUPLICATE"}
"""What the tables of a node cannot know."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("truth") / "journal"
    write_fleet(FLEET, directory)
    return directory


@pytest.fixture(scope="module")
def journal(fleet: Path) -> Tables:
    return of_version_2(read(fleet))


@pytest.fixture(scope="module")
def gappy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gaps") / "journal"
    write_fleet(Fleet(30, 600, 12_000, 4, gaps=True), directory)
    return directory


def of_version_2(tables: Tables) -> Tables:
    return {**tables, "messages": [{**row, "version": 2} for row in tables["messages"]]}


def truth(directory: Path, table: str) -> list[Row]:
    rows: list[Row] = pq.read_table(directory / TRUTH / table).to_pylist()
    return rows


def traces_of(journal: Tables) -> dict[str, list[Trace]]:
    ways: dict[str, list[Any]] = defaultdict(list)
    for row in journal["messages"]:
        ways[row["message_id"]].append(step_of(row))
    evidence = evidence_of(journal)
    return tied({id: traced(id, steps, evidence) for id, steps in ways.items()})


@pytest.fixture(scope="module")
def traces(journal: Tables) -> dict[str, list[Trace]]:
    return traces_of(journal)


def test_every_file_is_of_version_2_and_the_journal_is_sound(fleet: Path) -> None:
    assert check(fleet) == []
    for table in SCHEMAS:
        paths = list((fleet / table).rglob("*.parquet"))
        assert paths, table
        assert {version_in(pq.read_metadata(path).metadata) for path in paths} == {2}
    assert VERSION_KEY.decode() == "waystation.version"


# The ways of messages


def test_every_visit_but_the_first_follows_exactly_one(traces: dict[str, list[Trace]]) -> None:
    rules: Counter[int] = Counter()
    for found in traces.values():
        [trace] = found  # each message has one origin
        first, *later = trace.visits
        assert first.follows is None
        assert first.first.origin == trace.origin
        rules.update(visit.rule for visit in later)
    assert set(rules) == {2}


def test_copies_that_nothing_follows_are_those_that_vanished(
    fleet: Path, traces: dict[str, list[Trace]]
) -> None:
    told = Counter(
        (id, visit.node, step.next_node, step.recipient)
        for id, [trace] in traces.items()
        for visit in trace.visits
        for step, fate in zip(visit.steps, visit.fates, strict=True)
        if fate == "vanished"
    )
    names = ("message_id", "node", "next_node", "recipient")
    vanished = [row for row in truth(fleet, "copies") if row["outcome"] == "VANISHED"]
    assert told == Counter(tuple(row[name] for name in names) for row in vanished)
    kinds = {row["copy"] is None for row in vanished}
    assert kinds == {True, False}  # of messages to one, and of broadcasts


def test_what_counts_as_lost_is_what_the_truth_says(
    fleet: Path, traces: dict[str, list[Trace]]
) -> None:
    told = Counter(
        (id, loss.recipient, loss.recipient and trace.visits[loss.visit].node, loss.reason)
        for id, [trace] in traces.items()
        for loss in trace.losses
    )
    # Of several leaves without a subscriber the last one counts, and which one that was is not
    # known to the millisecond.
    lost = Counter(
        (row["message_id"], row["recipient"], row["recipient"] and row["node"], row["reason"])
        for row in truth(fleet, "copies")
        if row["lost"]
    )
    assert told == lost
    assert all(trace.unknown_copies == 0 for [trace] in traces.values())


def test_whoever_got_a_message_got_it_in_truth(fleet: Path, traces: dict[str, list[Trace]]) -> None:
    told = {id: trace.delivered for id, [trace] in traces.items() if trace.delivered}
    got = [row for row in truth(fleet, "copies") if row["outcome"] == "DELIVERED"]
    assert told == Counter(row["message_id"] for row in got)


def test_requests_have_answers_that_come_back_the_same_way(
    traces: dict[str, list[Trace]],
) -> None:
    answers = [trace for [trace] in traces.values() if trace.answers]
    assert len(answers) > 100
    requests = [traces[str(answer.answers)][0] for answer in answers]
    assert all(request.answered_by is not None and request.legs == 2 for request in requests)
    assert sum(request.symmetric is True for request in requests) > 0.9 * len(requests)


# What nodes decide


def test_the_router_decides_as_the_rows_say(journal: Tables) -> None:
    checked = 0
    for decided, rows in decisions(journal):
        final = [row for row in rows if row["outcome"] != "QUEUED"]
        told = Counter(
            (row["outcome"], row["reason"], row["recipient"], row["next_hop"])
            for row in final
            if row["reason"] not in INJECTED
        )
        left = Counter(decided) - told
        assert told - Counter(decided) == Counter(), (decided, rows)
        injected = sum(row["reason"] in INJECTED for row in final)
        assert left.total() == injected, (decided, rows)
        checked += len(final)
    assert checked > 30_000


def decisions(journal: Tables) -> Iterator[tuple[list[tuple[Any, ...]], list[Row]]]:
    """For each visit, what the router decides at that time, and its rows."""
    changes: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for table in ("routes", "subscriptions", "sessions"):
        for row in journal[table]:
            changes[row["node"], row["incarnation"]].append({**row, "table": table})
    visits: dict[tuple[str, int], list[list[Row]]] = defaultdict(list)
    for (_, node, incarnation, _), rows in entries_of(journal["messages"]).items():
        visits[node, incarnation].append(rows)
    for key, entered in visits.items():
        router = Router(version=2)
        router.types.register("tcp", 1)
        waiting = in_order(changes[key])[::-1]
        for rows in sorted(entered, key=lambda rows: rows[0]["received_at"]):
            now = rows[0]["received_at"]
            while waiting and waiting[-1]["at"] <= now:
                apply(router, waiting.pop())
            if rows[0]["reason"] != "DUPLICATE":  # what came before is not in the tables
                yield [*decide(router, rows[0], now)], rows


def apply(router: Router, change: Row) -> None:
    now = change["at"] // 1_000
    if change["table"] == "routes":
        act(router.table, change, change["at"])
    elif change["table"] == "subscriptions":
        getattr(router.subscriptions, change["kind"])(change["pattern"], change["receiver"])
    elif change["kind"] == "open":
        place = Address.parse(change["place"])
        router.table.put(RoutingEntry(change["session"], place, local=False), now)
        router.has_parent |= change["role"] == "parent"
    elif change["kind"] == "close":
        router.table.remove(change["session"], now)


def decide(router: Router, row: Row, at: int) -> Iterator[tuple[Any, ...]]:
    message = Message(
        Route(tuple(map(Address.parse, row["onward"]))),
        Route(tuple(map(Address.parse, row["return"]))),
        b"",
        row["message_id"],
        NEVER if row["expiry"] is None else row["expiry"] // 1_000,
    )
    now = at // 1_000
    if row["kind"] == "multicast":
        arrival = Arrival(message, at, from_global=row["from_global"], via=row["via"])
        decision = router.fan_out(row["multicast_id"], arrival, now)
        yield from (told(verdict, None) for verdict in decision.verdicts)
        if decision.upward:
            yield "FORWARDED", None, None, row_of_parent(row["node"])
        return
    last = [address.name for address in message.onward_route.addresses if address.type == LOCAL][-1]
    yield told(router.decide(message, now), last)


def told(verdict: Verdict, last_name: str | None) -> tuple[Any, ...]:
    sent = verdict.outcome == "FORWARDED"
    next_hop = str(verdict.address) if sent else None
    reason = None if verdict.reason is None else str(verdict.reason)
    return str(verdict.outcome), reason, verdict.recipient or last_name, next_hop


def row_of_parent(leaf: str) -> str:
    return f"0#hub-{leaf.split('-')[1]}"


# Faults


def test_every_loss_has_one_fault(fleet: Path) -> None:
    faults, copies = truth(fleet, "faults"), truth(fleet, "copies")
    lost = Counter(row["message_id"] for row in copies if row["lost"])
    assert Counter(id for fault in faults for id in fault["losses"]) == lost
    assert {fault["kind"] for fault in faults} <= set(KINDS)
    for fault in faults:
        assert fault["to_time"] is None or fault["from_time"] <= fault["to_time"]


def test_a_fault_of_a_node_or_link_is_there_even_if_it_cost_nothing(
    fleet: Path, journal: Tables
) -> None:
    faults = truth(fleet, "faults")
    ended = Counter(
        fault["kind"]
        for fault in {(f["kind"], f["node"], f["from_time"]): f for f in faults}.values()
    )
    stops = sum(row["kind"] == "stop" for row in journal["nodes"])
    starts = Counter(row["node"] for row in journal["nodes"] if row["kind"] == "start")
    crashes = sum(count - 1 for count in starts.values()) - stops
    assert (ended["node_stopped"], ended["node_crashed"]) == (stops, crashes)
    assert ended["link_lost"] > 0


def test_clocks_that_are_off_show_in_the_sessions(fleet: Path, journal: Tables) -> None:
    off = {
        fault["node"]
        for fault in truth(fleet, "faults")
        if fault["kind"] == "clock" and "off" in (fault["detail"] or "")
    }
    assert off
    told = {
        row["peer"]
        for row in journal["sessions"]
        if row["kind"] == "clock" and abs(row["offset_us"]) > 2_000_000
    }
    assert told & off


# Gaps


def test_a_journal_with_gaps_lacks_what_the_truth_says(fleet: Path, gappy: Path) -> None:
    assert check(gappy) == []
    whole, holes = read(fleet), read(gappy)
    assert {row["node"] for row in whole["nodes"]} > {row["node"] for row in holes["nodes"]}
    shares = {row["detail"] for row in holes["nodes"] if row["kind"] == "start"}
    assert shares == {"waystation 0.2.0 sample=1.0", f"waystation 0.2.0 sample={SAMPLE}"}
    kept = Counter(row["message_id"] for row in holes["messages"] if row["outcome"] == "DELIVERED")
    copies = [row for row in truth(gappy, "copies") if row["outcome"] == "DELIVERED"]
    assert kept == Counter(row["message_id"] for row in copies if row["recorded"])
    assert not all(row["recorded"] for row in copies)
    gaps = [fault for fault in truth(gappy, "faults") if fault["kind"] == "journal_gap"]
    assert gaps
    same = ("message_id", "node", "outcome", "reason")
    assert [[row[name] for name in same] for row in truth(fleet, "copies")] == [
        [row[name] for name in same] for row in truth(gappy, "copies")
    ]


def test_gaps_make_copies_unknown_and_none_vanish(gappy: Path) -> None:
    traces = traces_of(of_version_2(read(gappy)))
    vanished = {
        (id, trace.visits[loss.visit].node)
        for id, found in traces.items()
        for trace in found
        for loss in trace.losses
        if loss.reason == "VANISHED"
    }
    copies = truth(gappy, "copies")
    assert vanished <= {
        (row["message_id"], row["node"]) for row in copies if row["outcome"] == "VANISHED"
    }
    assert sum(trace.unknown_copies for found in traces.values() for trace in found) > 0
