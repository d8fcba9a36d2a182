"""One message out of ten million rows: `waystation why` beside DuckDB looking for its rows.

Both are whole processes, from their start to the last line printed. DuckDB only finds the rows;
`why` also reads the routes that decided each hop and says what the rules would have done.
WAYSTATION_BENCH_ROWS says how many rows (10000000), WAYSTATION_BENCH_DATA where they lie.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.harness import Report, in_turns, medians_of, seconds
from benchmarks.pipeline import journals
from waystation.demo.processes import WAYSTATION

PACKAGES = ("pyarrow", "duckdb")
ROWS = int(os.environ.get("WAYSTATION_BENCH_ROWS", "10000000"))
TURNS = 7
_DUCKDB = """
import sys, duckdb
files, id = sys.argv[1:]
query = "select * from read_parquet(?, hive_partitioning = true) where message_id = ? order by seq"
found = duckdb.execute(query, [files, id]).fetchall()
assert found
print(*found, sep="\\n")
"""


def run(report: Report) -> None:
    journal = journals.messages(ROWS)
    ids = iter(some_ids(journal, 2 * TURNS))
    files = str(journal / "messages" / "*" / "*.parquet")
    measures = {
        "waystation": lambda: took([*WAYSTATION, "why", next(ids), "--journal", str(journal)]),
        "DuckDB, rows only": lambda: took([sys.executable, "-c", _DUCKDB, files, next(ids)]),
    }
    for name, value in medians_of(in_turns(measures, TURNS)).items():
        report.add(f"why, one of {ROWS / 1e6:g} M rows", name, value, "s")


def some_ids(journal: Path, count: int) -> list[str]:
    """Ids of messages of different nodes, and of different times."""
    files = sorted((journal / "messages").rglob("*.parquet"))
    ids = []
    for number in range(count):
        file = files[number * len(files) // count]
        column = pq.read_table(file, columns=["message_id"]).column(0)
        ids.append(column[number * len(column) // count].as_py())
    return ids


def took(command: list[str]) -> float:
    return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))  # noqa: S603
