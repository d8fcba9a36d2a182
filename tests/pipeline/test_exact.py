"""Every table, row for row, against the oracle and against the core, on random journals.

One journal holds hundreds of nodes, each with a life of its own; Spark sees it once for each test.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.frames import assert_same, collected
from tests.pipeline.journals import BEGIN, busy, journal_of, many, scenarios_2, write
from tests.pipeline.replay import Replay
from waystation import pipeline
from waystation.testing import oracle
from waystation.testing.oracle import Row, Tables

pytestmark = pytest.mark.timeout(600)  # Spark on a loaded machine takes its time

LONG = os.environ.get("WAYSTATION_HYPOTHESIS") == "faults"
SCENARIOS, LIVES = (300, 300) if LONG else (24, 24)


@pytest.fixture(scope="module")
def rows() -> Tables:
    first = secrets.randbelow(10**9) if LONG else 0
    print(f"the long lives are busy({first}) and so on")  # noqa: T201 - shown when it fails
    return journal_of([*many(SCENARIOS), *(busy(first + number) for number in range(LIVES))])


@pytest.fixture(scope="module")
def journal(
    spark: SparkSession, rows: Tables, tmp_path_factory: pytest.TempPathFactory
) -> pipeline.Journal:
    directory = tmp_path_factory.mktemp("random") / "journal"
    return pipeline.read_journal(spark, write(directory, rows, seed=1))


@pytest.fixture(scope="module")
def history(journal: pipeline.Journal) -> list[Row]:
    return collected(pipeline.route_history(journal.routes))


def test_route_history_is_what_the_oracle_says(rows: Tables, history: list[Row]) -> None:
    assert_same(history, oracle.route_history(rows))


def test_subscription_history_is_what_the_oracle_says(
    journal: pipeline.Journal, rows: Tables
) -> None:
    found = collected(pipeline.subscription_history(journal.subscriptions))
    assert_same(found, oracle.subscription_history(rows))


@pytest.mark.rule("SP-1")
def test_the_routing_table_at_any_instant_is_what_the_core_held(
    rows: Tables, history: list[Row]
) -> None:
    replay = Replay(rows)
    changes: dict[tuple[str, int], set[int]] = defaultdict(set)
    held: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in history:
        name = row["node"], row["incarnation"]
        changes[name] |= {row["valid_from"] - 1, row["valid_from"], row["valid_to"] or BEGIN}
        held[name].append(row)
    for node, incarnation in oracle.ends_of_incarnations(rows):
        for at in {BEGIN, BEGIN + 10**9, *changes[node, incarnation]}:
            entries = {
                entry.participant: (str(entry.address), entry.local, entry.visible, entry.sticky)
                for entry in replay.table(node, incarnation, at).values()
            }
            found = {
                row["participant"]: (row["address"], row["local"], row["visible"], row["sticky"])
                for row in oracle.at_instant(held[node, incarnation], at)
            }
            assert found == entries, (node, incarnation, at)


@pytest.mark.rule("SP-1")
def test_routing_table_shows_what_a_history_holds_at_an_instant(
    journal: pipeline.Journal, history: list[Row]
) -> None:
    frame = pipeline.route_history(journal.routes)
    for later in (3_000, 7_001):
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=BEGIN + later)
        found = collected(pipeline.routing_table(frame, at))
        wanted = oracle.at_instant(history, BEGIN + later)
        names = ("node", "participant", "address", "expiry")
        assert wanted
        assert_same(_only(found, names), _only(wanted, names))


def _only(rows: list[Row], names: tuple[str, ...]) -> list[Row]:
    return [{name: row[name] for name in names} for row in rows]


@pytest.mark.rule("SP-2")
def test_expected_is_what_the_core_decides(journal: pipeline.Journal, rows: Tables) -> None:
    frame = pipeline.expected(
        journal.messages,
        pipeline.route_history(journal.routes),
        pipeline.subscription_history(journal.subscriptions),
    )
    found = collected(frame)
    assert_same(found, oracle.expected(rows))
    decided = [
        {
            "message_id": id,
            "node": node,
            "at": at,
            "recipient": verdict.recipient,
            "address": None if verdict.address is None else str(verdict.address),
            "outcome": str(verdict.outcome),
            "reason": None if verdict.reason is None else str(verdict.reason),
        }
        for id, node, at, verdict in Replay(rows).verdicts()
    ]
    assert_same([{name: row[name] for name in decided[0]} for row in found], decided)


def test_audit_is_what_the_oracle_says(journal: pipeline.Journal, rows: Tables) -> None:
    frame = pipeline.audit(
        pipeline.expected(
            journal.messages,
            pipeline.route_history(journal.routes),
            pipeline.subscription_history(journal.subscriptions),
        ),
        journal.messages,
        journal.routes,
    )
    found = collected(frame)
    assert {row["verdict"] for row in found} == {"ok", "missing", "unexpected", "different"}
    assert_same(found, oracle.audit(rows))


def test_traces_are_what_the_oracle_says(journal: pipeline.Journal, rows: Tables) -> None:
    assert_same(collected(pipeline.traces(journal.messages)), oracle.traces(rows))


def test_health_is_what_the_oracle_says(journal: pipeline.Journal, rows: Tables) -> None:
    def rounded(table: list[Row]) -> list[Row]:
        return [{**row, **{p: round(row[p], 6) for p in ("p50_ms", "p99_ms")}} for row in table]

    found = collected(pipeline.health(journal.messages))
    assert_same(rounded(found), rounded(oracle.health(rows)))


@pytest.mark.rule("SP-2")
def test_version_2_is_judged_alike_from_files_and_from_frames(
    spark: SparkSession, tmp_path: Path
) -> None:
    lives = [busy(700 + number, version=2) for number in range(6)]
    rows = journal_of([*lives, *many(4, scenarios_2), busy(700)])
    journal = pipeline.read_journal(spark, write(tmp_path / "journal", rows, seed=1))
    histories = (
        pipeline.route_history(journal.routes),
        pipeline.subscription_history(journal.subscriptions),
    )
    expected = pipeline.expected(journal.messages, *histories)
    assert_same(collected(expected), oracle.expected(rows))
    audit = pipeline.audit(expected, journal.messages, journal.routes)
    assert_same(collected(audit), oracle.audit(rows))
    messages = journal.messages.where("true")
    sessions = pipeline.built(journal, "session_history")
    from_frames = pipeline.expected(messages, *histories, sessions)
    assert_same(collected(from_frames), oracle.expected(rows))
    from_frames = pipeline.audit(from_frames, messages, journal.routes)
    assert_same(collected(from_frames), oracle.audit(rows))


def test_any_frame_with_the_columns_of_the_contract_gives_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Frames read by Spark itself, not by read_journal."""
    lives = [life for life in map(busy, range(100, 110)) if life.incarnations[0][0]]
    rows = journal_of(lives[:3])  # with start rows: these frames do not include other tables
    directory = write(tmp_path / "journal", rows, chunk=10_000)
    names = ("routes", "subscriptions", "messages", "nodes")
    routes, subscriptions, messages, nodes = (
        spark.read.parquet(str(directory / name)) for name in names
    )
    expected = pipeline.expected(
        messages,
        pipeline.route_history(routes, nodes),
        pipeline.subscription_history(subscriptions, nodes),
    )
    assert_same(collected(pipeline.audit(expected, messages, routes)), oracle.audit(rows))
