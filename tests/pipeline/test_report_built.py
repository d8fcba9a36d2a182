"""The report on tables that Spark built finds the known losses of a simulated fleet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from waystation import pipeline
from waystation.report import write_report
from waystation.report.facts import gather
from waystation.report.reading import Tables
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import TRUTH, write_fleet

pytestmark = pytest.mark.timeout(600)  # Spark on a loaded machine takes its time


def test_all_losses_of_a_simulated_fleet_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    journal, tables = tmp_path / "journal", tmp_path / "tables"
    fleet = Fleet(nodes=6, participants=40, messages=4_000, seed=11)
    write_fleet(fleet, journal)
    messages = pipeline.read_journal(spark, journal).messages
    pipeline.traces(messages).write.parquet(str(tables / "traces"))
    pipeline.health(messages).write.parquet(str(tables / "health"))
    copies = pq.read_table(journal / TRUTH / "copies").to_pylist()
    reasons = Counter(row["reason"] for row in copies if row["reason"] not in (None, "DUPLICATE"))
    facts = gather(Tables(tables), lambda _: None)
    told = facts.hops.lost.total() + facts.hops.internal  # what nodes send for themselves is apart
    assert told == sum(row["lost"] for row in copies)
    assert facts.hops.vanished.total() == facts.hops.lost["VANISHED"] == reasons.pop("VANISHED")
    assert facts.total.reasons == reasons
    assert facts.hops.places == {}  # each session says who is at its other end
    written = write_report(tables, tmp_path / "report.html")
    sent = {row["message_id"] for row in copies}
    assert (written.messages, written.drops) == (len(sent), reasons.total())
