"""The whole demonstration, shortened: a fleet of processes, and the findings from its tables."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from tests.cli.live_commands import Commands
from tests.demo.alive import is_alive, started_by
from tests.why.test_why_agrees import assert_agrees, told_of
from waystation.demo.faults import FaultKind
from waystation.demo.findings import SLACK
from waystation.demo.fleet import PROCESSES
from waystation.pipeline import TABLES
from waystation.why import explain
from waystation.why.source import Row
from waystation.why.tables import TableLookup, explain_from_tables

CARD = re.compile(r'title="([0-9,]+)"><b>[^<]*</b><span>([^<]*)</span>')

pytestmark = pytest.mark.timeout(600)  # ten processes, and Spark, on a loaded machine


@pytest.fixture
def call(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Commands in this process, with the session of the tests."""
    del spark  # the existing session is used
    return Commands(capsys)


def test_every_fault_is_found_in_the_tables(call: Commands, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    code, printed, said = call("demo", "--out", str(out), "--seconds", "1", "--json")
    assert code == 0, said
    summary = json.loads(printed)

    kinds = [fault["deed"]["kind"] for fault in summary["faults"]]
    assert kinds == list(FaultKind)
    assert all(fault["found"] and fault["lost"] for fault in summary["faults"])
    assert "truck-3 were dropped at hub-a between" in summary["faults"][1]["sentences"][0]
    assert len(summary["audit"]) == 1, "the audit shows what no fault explains"
    assert summary["unexplained"] == []

    assert set(summary["tables"]) == set(TABLES)
    assert summary["tables"]["rejects"] == 0
    assert "<html" in Path(summary["report"]).read_text("utf-8")
    assert json.loads((out / "demo.json").read_text()) == summary

    assert len(started_by(out)) == len(PROCESSES) + 2  # a truck and a hub restarted
    assert not any(map(is_alive, started_by(out)))

    for where in ("--journal", "journal"), ("--tables", "tables"):
        code, printed, said = call("why", summary["lost_message"], where[0], str(out / where[1]))
        assert (code, said) == (0, "")
        assert "dropped at hub-a, NO_ROUTE: truck-2 had left" in printed
    check_that_why_agrees(out / "journal", out / "tables")
    check_that_counts_agree(call, out, Path(summary["report"]).read_text("utf-8"))
    check_that_each_deed_is_one_incident(summary, out / "tables")


SHOWS_AS = {
    FaultKind.KILLED: "node_crashed",
    FaultKind.EXPIRED: "route_expired",
    FaultKind.STALLED: "slow_receiver",
    FaultKind.RESTARTED: "node_stopped",
    FaultKind.UNHEARD: "no_subscriber",
}


def check_that_each_deed_is_one_incident(summary: Row, tables: Path) -> None:
    """Each deed is one incident of its kind, and nothing else cost anything."""
    incidents = TableLookup(tables).rows("incidents")
    meant = []
    for fault in summary["faults"]:
        fitting = [one for one in incidents if is_incident_of(fault["deed"], one)]
        assert len(fitting) == 1, (fault["deed"], incidents)
        assert fitting[0]["lost"]
        meant += fitting
    costly = [one for one in incidents if one["lost"] and one not in meant]
    assert len(costly) <= len(summary["others"]), costly  # a busy machine may add some


def is_incident_of(deed: Row, incident: Row) -> bool:
    """Whether an incident is about what was done, to whom, and then."""
    kind, subject = FaultKind(deed["kind"]), deed["subject"]
    about = {
        FaultKind.EXPIRED: incident["node"] == "hub-a" and incident["participants"] == [subject],
        FaultKind.UNHEARD: f" {subject}/alarm/" in incident["cause"],
    }
    return bool(
        incident["kind"] == SHOWS_AS[kind]
        and about.get(kind, incident["node"] == subject)
        and deed["began"] - SLACK <= incident["started"] <= deed["ended"] + SLACK
    )


def check_that_counts_agree(call: Commands, out: Path, page: str) -> None:
    """The table `traces`, `lost` from journal and tables, and the report count the same losses."""
    rows = [row for row in TableLookup(out / "tables").rows("traces") if not row["internal"]]
    count = sum(row["lost_copies"] for row in rows)
    assert count
    vanished = sum(one["reason"] == "VANISHED" for row in rows for one in row["lost"])
    for where in ("--journal", "journal"), ("--tables", "tables"):
        code, printed, said = call("lost", where[0], str(out / where[1]), "--json")
        assert (code, said) == (0, "")
        told = json.loads(printed)
        assert len(told["losses"]) == count
        assert sum(one["reason"] == "VANISHED" for one in told["losses"]) == vanished
        assert sum(incident["lost"] for incident in told["incidents"]) == count
        assert all(one["cause"] for one in told["losses"])
    cards = {name: number for number, name in CARD.findall(page)}
    assert cards["losses"] == f"{count:,}"
    assert cards["of them lost between nodes"] == f"{vanished:,}"


def check_that_why_agrees(journal: Path, tables: Path) -> None:
    """Tables and `why`, from either, say the same: of what went wrong, and of some that did not."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in TableLookup(tables).rows("traces"):
        found[row["message_id"]].append(row)
    wrong = [id for id, rows in found.items() if not all(row["complete"] for row in rows)]
    assert wrong
    for id in {*wrong[:40], *list(found)[::40]}:
        from_journal, from_tables = explain(journal, id), explain_from_tables(tables, id)
        rows = sorted(found[id], key=lambda row: row["started"])
        assert_agrees(from_journal, rows)
        assert_agrees(from_tables, rows)
        ends = [
            ([replace(way, summary="", notes=()) for way in told.ways], told_of(told)[2])
            for told in (from_journal, from_tables)
        ]
        assert ends[0] == ends[1]  # the journal tells more of why
