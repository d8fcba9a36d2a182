"""The report on tables that Spark built finds the known losses of a simulated fleet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from waystation import pipeline
from waystation.pipeline.fleet import Fleet
from waystation.pipeline.fleet_journal import TRUTH, write_fleet
from waystation.pipeline.report import write_report
from waystation.pipeline.report.facts import gather
from waystation.pipeline.report.reading import Tables

pytestmark = pytest.mark.timeout(600)  # Spark on a loaded machine takes its time


def test_all_losses_of_a_simulated_fleet_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    journal, tables = tmp_path / "journal", tmp_path / "tables"
    fleet = Fleet(nodes=6, participants=40, messages=4_000, seed=11)
    write_fleet(fleet, journal)
    messages = pipeline.read_journal(spark, journal).messages
    pipeline.traces(messages).write.parquet(str(tables / "traces"))
    pipeline.health(messages).write.parquet(str(tables / "health"))
    truth = Counter(pq.read_table(journal / TRUTH / "losses").column("reason").to_pylist())
    facts = gather(Tables(tables), lambda _: None)
    assert facts.hops.vanished.total() == truth.pop("VANISHED")
    assert facts.total.reasons == truth
    written = write_report(tables, tmp_path / "report.html")
    assert (written.messages, written.drops) == (4_000, truth.total())
