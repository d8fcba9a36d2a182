"""The whole demonstration, shortened: a fleet of processes, and the findings from its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cli.live_commands import Commands
from tests.demo.alive import is_alive, started_by
from waystation.demo.faults import FaultKind
from waystation.demo.fleet import PROCESSES
from waystation.pipeline import TABLES

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
