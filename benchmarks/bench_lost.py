"""What one participant went without, out of millions of rows: `waystation lost`.

Whole processes, from their start to the last line printed, on the journal and on the tables that
were built from it. DuckDB only counts the participant's drops in the journal; it says neither what
vanished nor why. WAYSTATION_BENCH_ROWS says how many messages (3150000, which is 14 M rows), and
WAYSTATION_BENCH_DATA where they lie.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.bench_why import took
from benchmarks.harness import Report, in_turns, medians_of
from benchmarks.pipeline import journals
from waystation import pipeline
from waystation.demo.processes import WAYSTATION
from waystation.simulate.simulate import simulate

PACKAGES = ("pyarrow", "duckdb", "pyspark")
MESSAGES = int(os.environ.get("WAYSTATION_BENCH_ROWS", "3150000"))
TURNS = 5
_DUCKDB = """
import sys, duckdb
files, name = sys.argv[1:]
query = "select count(*) from read_parquet(?) where recipient = ? and outcome = 'DROPPED'"
print(duckdb.execute(query, [files, name]).fetchall())
"""


def run(report: Report) -> None:
    directory = journals.KEPT / f"lost-{MESSAGES}"
    journal, tables = directory / "journal", directory / "tables"
    if not (tables / "losses").is_dir():
        spark = pipeline.session("waystation benchmarks")
        if not journal.is_dir():
            simulate(spark, journal, nodes=200, participants=20_000, messages=MESSAGES)
        pipeline.build(journal, tables, spark=spark)
        spark.stop()
    name = somebody(tables)
    files = str(journal / "messages" / "*" / "*.parquet")
    lost = [*WAYSTATION, "lost", "--participant", name, "--json"]
    measures = {
        "waystation, journal": lambda: took([*lost, "--journal", str(journal)]),
        "waystation, tables": lambda: took([*lost, "--tables", str(tables)]),
        "DuckDB, drops only": lambda: took([sys.executable, "-c", _DUCKDB, files, name]),
    }
    for subject, value in medians_of(in_turns(measures, TURNS)).items():
        report.add(f"lost, one participant of {MESSAGES / 1e6:g} M messages", subject, value, "s")


def somebody(tables: Path) -> str:
    """A participant with an ordinary number of losses."""
    rows = ds.dataset(tables / "losses").to_table(
        columns=["recipient"], filter=pc.field("recipient").is_valid()
    )
    ranked = Counter(rows.column("recipient").to_pylist()).most_common()
    name: str = ranked[len(ranked) // 2][0]
    return name
