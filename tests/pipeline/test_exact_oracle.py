"""The oracle of the pipeline agrees with the core, so what agrees with the oracle is right."""

from __future__ import annotations

from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.journals import (
    BEGIN,
    Scenario,
    busy,
    journal_of,
    read,
    scenarios,
    scenarios_2,
    write,
)
from tests.pipeline.replay import Replay
from waystation.core.address import Address
from waystation.core.expiry import NEVER
from waystation.core.multicast import Subscriptions, is_multicast_id
from waystation.core.routing import RoutingEntry
from waystation.testing import oracle
from waystation.testing.oracle import Row, Tables


def check_against_core(journal: Tables) -> None:
    replay = Replay(journal)
    history, subscribed = oracle.route_history(journal), oracle.subscription_history(journal)
    incarnations = oracle.ends_of_incarnations(journal)
    for at in instants(history, subscribed):
        routes = by_incarnation(oracle.at_instant(history, at))
        patterns = by_incarnation(oracle.at_instant(subscribed, at))
        for node, incarnation in incarnations:
            held = {row["participant"]: as_entry(row) for row in routes[node, incarnation]}
            assert held == replay.table(node, incarnation, at), (node, incarnation, at)
            pairs = {(row["pattern"], row["receiver"]) for row in patterns[node, incarnation]}
            assert pairs == set(replay.subscriptions(node, incarnation, at).snapshot())
    assert oracle.decisions(journal) == replay.acceptances()
    expected = Counter(
        (row["message_id"], row["node"], row["at"], *map(row.get, _VERDICT))
        for row in oracle.expected(journal)
    )
    decided = Counter(
        (id, node, at, v.outcome, v.reason, v.recipient, v.address and str(v.address))
        for id, node, at, v in replay.verdicts()
    )
    assert expected == decided


_VERDICT = ("outcome", "reason", "recipient", "address")


def instants(*histories: list[Row]) -> list[int]:
    """Every time at which something changed, and the times next to it."""
    found = {BEGIN, BEGIN + 10**9}
    for interval in (row for history in histories for row in history):
        for at in (interval["valid_from"], interval["valid_to"]):
            if at is not None:
                found |= {at - 1, at, at + 1}
    return sorted(found)


def by_incarnation(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["node"], row["incarnation"]].append(row)
    return groups


def as_entry(row: Row) -> RoutingEntry:
    expiry = NEVER if row["expiry"] is None else row["expiry"] // 1_000
    address = Address.parse(row["address"])
    return RoutingEntry(
        row["participant"], address, row["local"], row["visible"], expiry, row["sticky"]
    )


@pytest.mark.rule("SP-1", "SP-2")
@given(scenario=scenarios)
def test_the_oracle_agrees_with_the_core(
    scenario: Scenario,
) -> None:
    check_against_core(journal_of([scenario]))


@pytest.mark.parametrize("seed", range(6))
def test_the_oracle_agrees_with_the_core_over_a_long_time(seed: int) -> None:
    check_against_core(journal_of([busy(seed)]))


@pytest.mark.rule("SP-2")
@given(scenario=scenarios_2)
def test_the_oracle_agrees_with_the_core_on_version_2(scenario: Scenario) -> None:
    check_version_2_against_core(journal_of([scenario]))


@pytest.mark.parametrize("seed", range(6))
def test_the_oracle_agrees_with_the_core_on_a_long_life_of_version_2(seed: int) -> None:
    assert check_version_2_against_core(journal_of([busy(seed, version=2)])) > 10


def check_version_2_against_core(journal: Tables) -> int:
    """Compare what both decide; returns the number of visits."""
    expected = defaultdict(list)
    for row in oracle.expected(journal):
        expected[row["message_id"], row["node"], row["incarnation"], row["received_at"]].append(row)
    replayed = Replay(journal).second_verdicts()
    for visit, verdicts, goes_up in replayed:
        above = [row for row in expected[visit] if _is_upward(row)]
        assert bool(above) == goes_up, visit
        found = Counter(
            (row["outcome"], row["reason"], row["address"])
            for row in expected[visit]
            if not _is_upward(row)
        )
        decided = Counter((v.outcome, v.reason, v.address and str(v.address)) for v in verdicts)
        assert found == decided, visit
        names = {verdict.recipient for verdict in verdicts} - {None}
        assert names <= {row["recipient"] for row in expected[visit]}
    return len(replayed)


def _is_upward(row: Row) -> bool:
    return row["outcome"] == "FORWARDED" and row["recipient"] is None and row["address"] is None


segments = st.sampled_from(["p", "x", "y", "+", "*", "Z9", "ä", ""])
texts = st.lists(segments, min_size=1, max_size=6).map("/".join)


@given(pattern=texts, id=texts)
def test_the_oracle_matches_as_the_core_does(pattern: str, id: str) -> None:
    assert oracle.is_id(id) == is_multicast_id(id)
    subscriptions = Subscriptions()
    try:
        subscriptions.subscribe(pattern, "a")
    except ValueError:
        return
    if oracle.is_id(id):
        assert oracle.matches(pattern, id) == bool(subscriptions.match(id))


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = journal_of([busy(1), busy(2)])
    found = read(write(tmp_path, journal, seed=3))
    assert set(found) == set(journal)
    for table, rows in found.items():
        by_place = itemgetter("node", "incarnation", "seq")
        written = sorted(journal[table], key=by_place)
        for row, as_written in zip(sorted(rows, key=by_place), written, strict=True):
            assert row == {**dict.fromkeys(row), **as_written}  # what was added later is null
