"""Clocks that no session measured: the traffic between the nodes tells how far they differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.core.journeys import MINUTE, NODES, SECOND
from tests.pipeline.frames import assert_same, collected
from tests.pipeline.test_session_history import numbers
from tests.pipeline.watched import assert_up_to_date, engine, sliced, take_in
from tests.why.fleets import KNOWN, MadeUp, write_journal
from waystation import pipeline
from waystation.core.corrections import HOUR, TRAFFIC, hour_of
from waystation.pipeline.clocks import clocks_by_hour
from waystation.pipeline.inprocess import nodes_of, survey, traces_in
from waystation.pipeline.kernels.evidence import Known
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.kernels.passing import delays_of, ends_of, peers_by_hour
from waystation.pipeline.listing import Wanted, list_journal
from waystation.pipeline.surveying import all_links, facts_of, known_in
from waystation.testing import oracle
from waystation.testing.oracle import Tables

AHEAD = {node: (2 * number - 7) * MINUTE for number, node in enumerate(NODES)}


class Fleet(NamedTuple):
    """A journal in files, and its rows."""

    place: Path
    rows: Tables

    def data(self) -> list[FileData]:
        return list(nodes_of(list_journal(str(self.place), Wanted()), Wanted()))

    def known(self) -> Known:
        return known_in(self.data())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Nodes whose clocks are minutes apart; no session measured anything."""
    return made(tmp_path_factory.mktemp("unmeasured"), MadeUp(11, 900, AHEAD, measured=False))


def made(place: Path, found: MadeUp) -> Fleet:
    rows = found.journal()
    write_journal(place, rows)
    return Fleet(place, rows)


@pytest.mark.rule("TM-3")
def test_messages_both_ways_tell_how_far_clocks_are_apart(fleet: Fleet) -> None:
    [links] = fleet.known().estimated.values()
    assert {link.node for link in links} == set(KNOWN)
    for link in links:
        assert link.source == TRAFFIC
        true = AHEAD[link.peer] - AHEAD[link.node]
        assert 2 * abs(link.offset_us - true) <= link.rtt_us + 1
        assert link.rtt_us < 2 * MINUTE


@pytest.mark.rule("TM-3")
def test_it_is_what_one_message_after_the_other_tells(fleet: Fleet) -> None:
    known = fleet.known()
    assert known.hours == oracle.corrections_by_hour(fleet.rows)
    [ahead] = known.hours.values()
    spread = {AHEAD[node] - ahead[node] for node in KNOWN}
    assert max(spread) - min(spread) < MINUTE < max(AHEAD.values()) - min(AHEAD.values())


@pytest.mark.rule("SP-8")
def test_traces_are_timed_with_it(fleet: Fleet) -> None:
    columns = ["message_id", "origin", "started", "ended", "outcome", "hops"]
    found = numbers(traces_in(fleet.data(), fleet.known()).select(columns))
    wanted = [{name: row[name] for name in columns} for row in oracle.traces(fleet.rows)]
    assert_same(found, wanted)
    uncorrected = numbers(traces_in(fleet.data(), Known()).select(columns))
    assert Counter(map(str, found)) != Counter(map(str, uncorrected))


@pytest.mark.rule("TM-3")
def test_losses_and_incidents_are_found_with_it(fleet: Fleet) -> None:
    [ahead] = fleet.known().hours.values()
    found = survey(str(fleet.place)).found
    assert found.losses
    off = {incident.node for incident in found.incidents if incident.kind == "clock"}
    assert off == {node for node, us in ahead.items() if abs(us) > SECOND}


def test_spark_says_the_same(spark: SparkSession, fleet: Fleet) -> None:
    journal = pipeline.read_journal(spark, fleet.place)
    known = fleet.known()
    assert {
        hour: sorted(links) for hour, links in pipeline.known_of(journal).estimated.items()
    } == {hour: sorted(links) for hour, links in known.estimated.items()}
    assert pipeline.known_of(journal).hours == known.hours
    found = collected(pipeline.built(journal, "clocks"))
    assert_same(found, numbers(clocks_by_hour(known.estimated)))


@pytest.mark.rule("SP-3")
def test_a_watched_journal_gets_the_same_tables(tmp_path: Path, fleet: Fleet) -> None:
    target = tmp_path / "journal"
    names = sliced(fleet.place, tmp_path / "pieces", 400)
    found = None
    for part in (names[: len(names) // 2], names):
        for name in part:
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                (tmp_path / "pieces" / name).rename(place)
        found = found or engine(target, tmp_path)
        take_in(found, target)
    assert found is not None
    found.close()
    assert_up_to_date(tmp_path / "tables", target, ("clocks", "traces", "losses", "incidents"))


@pytest.mark.rule("TM-3")
def test_where_sessions_measured_no_traffic_is_read(tmp_path: Path) -> None:
    measured = made(tmp_path, MadeUp(11, 300, AHEAD))
    assert measured.known().estimated == {}
    assert any(facts_of(one).unmeasured for one in measured.data())  # but others connect them


def test_a_node_that_measurements_do_not_reach_is_connected_by_its_traffic(tmp_path: Path) -> None:
    whole = MadeUp(11, 900, AHEAD).journal()
    whole["sessions"] = [row for row in whole["sessions"] if row["peer"] != "c"]
    write_journal(tmp_path, whole)
    known = Fleet(tmp_path, whole).known()
    [links] = known.estimated.values()
    assert all("c" in (link.node, link.peer) for link in links)
    assert known.hours == oracle.corrections_by_hour(whole)
    [ahead] = known.hours.values()
    assert abs(ahead["c"] - ahead["a"] - (AHEAD["c"] - AHEAD["a"])) < MINUTE


def test_an_hour_in_which_a_session_measured_needs_no_traffic(fleet: Fleet) -> None:
    links = all_links(facts_of(one) for one in fleet.data())
    assert links == {}
    hours = {hour for one in fleet.data() for hour in peers_by_hour(one)}
    assert {hour % HOUR for hour in hours} == {0}
    for one in fleet.data():
        assert not list(ends_of(one, {}))
        assert not list(ends_of(one, {max(hours) + HOUR: KNOWN}))


def test_a_message_that_went_the_same_way_twice_tells_nothing() -> None:
    ends = pa.table(
        {
            "message_id": ["once", "once", "twice", "twice", "twice", "half"],
            "sender": ["a"] * 6,
            "receiver": ["b"] * 6,
            "sent_at": [7, None, 8, 9, None, 10],
            "received_at": [None, 57, None, None, 90, None],
        }
    )
    assert delays_of(ends).to_pylist() == [
        {
            "sender": "a",
            "receiver": "b",
            "sent_hour": 0,
            "received_hour": 0,
            "least_us": 50,
            "messages": 1,
        }
    ]


@pytest.mark.parametrize("told", [True, False])
def test_peers_are_found_whatever_footers_tell(tmp_path: Path, fleet: Fleet, told: bool) -> None:
    """Row groups of single rows have one peer each; without statistics all rows are read."""
    for path in fleet.place.glob("messages/node=*/*.parquet"):
        place = tmp_path / path.relative_to(fleet.place)
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = pq.read_table(path, partitioning=None)
        pq.write_table(rows, place, row_group_size=1 if told else 500, write_statistics=told)
    for one in nodes_of(list_journal(str(tmp_path), Wanted()), Wanted()):
        wanted: dict[int, set[str]] = {}
        for row in fleet.rows["messages"]:
            names = {row[name] for name in ("from_node", "next_node")} - {None}
            if row["node"] == one.node and names:
                wanted.setdefault(hour_of(row["received_at"]), set()).update(names)
        assert peers_by_hour(one) == wanted
