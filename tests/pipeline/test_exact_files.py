"""Whatever else is in a journal, the tables are those of its valid rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.frames import assert_same, collected
from tests.pipeline.journals import BEGIN, busy, journal_of, write
from waystation import pipeline
from waystation.testing import oracle
from waystation.testing.oracle import Row, Tables, day_of

pytestmark = pytest.mark.timeout(600)  # Spark on a loaded machine takes its time

YEAR_10000 = 253_402_300_800_000_000

BAD: dict[str, list[dict[str, Any]]] = {
    "routes": [
        {"kind": "putt"},
        {"kind": None},
        {"participant": None},
        {"participant": ""},
        {"kind": "put", "address": "no type#x"},
        {"kind": "put", "local": None},
        {"at": None},
        {"at": YEAR_10000},
        {"kind": "put", "expiry": -1},
    ],
    "subscriptions": [{"kind": "join"}, {"pattern": "p/*/x"}, {"pattern": None}, {"receiver": ""}],
    "messages": [
        {"message_id": "xyz"},
        {"kind": "broadcast"},
        {"kind": "multicast", "multicast_id": None},
        {"outcome": "EATEN"},
        {"onward": None},
        {"bytes": -1},
        {"received_at": YEAR_10000},
    ],
    "nodes": [{"kind": "sleep"}, {"at": -5}],
    "sessions": [{"kind": "nap"}, {"session": None}],
}


def worsened(rows: Tables) -> tuple[Tables, int]:
    """The journal with invalid rows among the valid ones, and their number."""
    mixed, count = {}, 0
    for table, own in rows.items():
        bad = [{**own[number], **wrong} for number, wrong in enumerate(BAD[table])]
        last = {(row["node"], row["incarnation"]): row["seq"] for row in oracle.in_order(own)}
        for number, row in enumerate(bad):
            row["seq"] = last[row["node"], row["incarnation"]] + 1_000 + number
        mixed[table] = [*own, *bad]
        count += len(bad)
    return mixed, count


def tables_of(journal: pipeline.Journal) -> dict[str, list[Row]]:
    history = pipeline.route_history(journal.routes)
    subscribed = pipeline.subscription_history(journal.subscriptions)
    expected = pipeline.expected(journal.messages, history, subscribed)
    frames = {
        "route_history": history,
        "expected": expected,
        "audit": pipeline.audit(expected, journal.messages, journal.routes),
    }
    return {name: collected(frame) for name, frame in frames.items()}


def check(found: dict[str, list[Row]], rows: Tables) -> None:
    for table, own in found.items():
        assert_same(own, getattr(oracle, table)(rows))


@pytest.mark.rule("SP-5")
def test_invalid_rows_are_rejects_and_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = journal_of(list(map(busy, range(200, 206))))
    assert set(rows) == set(BAD) - {"sessions"}
    mixed, count = worsened(rows)
    journal = pipeline.read_journal(spark, write(tmp_path / "journal", mixed, chunk=40))
    check(tables_of(journal), rows)
    rejects = collected(pipeline.rejects(journal))
    assert len(rejects) == count
    for reject in rejects:
        assert reject["problem"]
        assert reject["source_table"] == reject["table"]
        assert reject["day"] == day_of(BEGIN)
        assert reject["file"].startswith(f"{reject['table']}/node=")
        assert isinstance(json.loads(reject["row"]), dict)
    kept = {table: sum(row["table"] == table for row in rejects) for table in rows}
    assert kept == {table: len(BAD[table]) for table in rows}


@pytest.mark.rule("SP-5")
def test_one_invalid_address_fails_no_table_of_a_build(spark: SparkSession, tmp_path: Path) -> None:
    """Its text stays in the dictionary of its column when the row is already a reject."""
    rows = journal_of([busy(210), busy(211, version=2)])
    spoiled = {table: list(own) for table, own in rows.items()}
    for number, bad in enumerate(("0#x y", "", "999#z")):
        wrong = {"onward": [bad, "0#a"], "seq": 100_000 + number}
        spoiled["messages"].append({**rows["messages"][number], **wrong})
    for name, own in (("sound", rows), ("spoiled", spoiled)):
        journal = write(tmp_path / name, own, chunk=10_000)
        pipeline.build(journal, tmp_path / f"{name}-tables", spark=spark)
    for table in pipeline.TABLES:
        found, wanted = (
            Counter(map(str, pq.read_table(tmp_path / f"{name}-tables" / table).to_pylist()))
            for name in ("spoiled", "sound")
        )
        assert (found - wanted).total() == (3 if table == "rejects" else 0), table
        assert not wanted - found, table


def test_rows_in_two_files_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """As after a crash during a compaction."""
    rows = journal_of([busy(300), busy(301)])
    write(tmp_path / "journal", rows, chunk=9)
    journal = pipeline.read_journal(spark, write(tmp_path / "journal", rows, chunk=10_000))
    check(tables_of(journal), rows)


def test_tables_without_files_are_empty(spark: SparkSession, tmp_path: Path) -> None:
    messages = journal_of([busy(400)])["messages"]
    write(tmp_path / "journal", {"messages": messages})
    journal = pipeline.read_journal(spark, tmp_path / "journal")
    check(tables_of(journal), {"messages": messages})
    assert messages[0]["at"] >= BEGIN
    nothing = pipeline.read_journal(spark, write(tmp_path / "nothing", {}))
    assert tables_of(nothing) == {"route_history": [], "expected": [], "audit": []}
