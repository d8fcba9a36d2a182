"""The pipeline's steps on Spark beside DuckDB and Polars: histories, verdicts, multicast, traces.

All read the same simulated journals (pipeline/journals.py), from Parquet to the finished table, and
what they find is compared. Each subject does each step in a process of its own: "cold" is the first
time there, "warm" the median of the next; memory is the peak of the process and all it started.
The histories of DuckDB and Polars are folded by the pipeline's own code, for want of a faster way.
WAYSTATION_BENCH_ROWS says how many rows (1000000,10000000), WAYSTATION_BENCH_DATA where they lie.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.harness import Report
from benchmarks.pipeline import journals

PACKAGES = ("pyspark", "pyarrow", "numpy", "duckdb", "polars")
SUBJECTS = ("waystation", "DuckDB", "Polars")
TURNS = 3
ROWS = [
    int(rows) for rows in os.environ.get("WAYSTATION_BENCH_ROWS", "1000000,10000000").split(",")
]
PATTERNS = (100_000, 1_000_000)
PAIRS = (10_000, 1_000)  # publications and patterns of a cross join that ends
_LOOK_SECONDS = 0.05


def run(report: Report) -> None:
    for rows in ROWS:
        size = f"{rows / 1e6:g} M rows"
        compare(report, f"route_history, {size}", "route_history", journals.routes(rows), rows)
        fleet = journals.messages(rows)
        compare(report, f"expected with histories, {size}", "expected", fleet, rows)
        compare(report, f"traces, {size}", "traces", fleet, rows)
    largest = max(ROWS)
    for patterns in (count for count in PATTERNS if count <= largest):
        case = f"multicast, {largest / 1e6:g} M publications, {patterns / 1e6:g} M patterns"
        compare(report, case, "expected", journals.publications(largest, patterns), largest)
    cross_join(report, largest)


def compare(report: Report, case: str, step: str, journal: Path, rows: int) -> None:
    """One step by all subjects; their results must be the same."""
    warm_up(journal)
    found = {name: measured(name, step, journal) for name in SUBJECTS}
    digests = {json.dumps(result["digest"]) for result in found.values()}
    if len(digests) > 1:
        raise AssertionError(f"{case}: {digests}")
    for name, result in found.items():
        report.add(f"{case}, cold", name, result["cold"], "s")
    medians = {name: statistics.median(result["warm"]) for name, result in found.items()}
    for name, value in medians.items():
        report.add(f"{case}, warm", name, value, "s")
    report.note(f"{case}, warm", {name: rows / value for name, value in medians.items()}, "rows/s")
    for name, result in found.items():
        report.add(f"{case}, memory", name, result["memory"] / 2**20, "MiB")


def cross_join(report: Report, rows: int) -> None:
    """What a regular expression against every pattern would take, from a size where it ends."""
    publications, patterns = PAIRS
    journal = journals.publications(publications, patterns)
    result = measured("waystation", "cross_join", journal)
    took = statistics.median(result["warm"])
    pairs_a_second = publications * patterns / took
    case = f"regular expressions, {publications:,} x {patterns:,}"
    report.add(case, "Spark cross join", took, "s")
    for count in PATTERNS:
        case = f"the same for {rows / 1e6:g} M x {count / 1e6:g} M, computed"
        report.add(case, "Spark cross join", rows * count / pairs_a_second / 3_600, "h")


def warm_up(journal: Path) -> None:
    """Have the journal in the memory of the system for whoever comes first."""
    for path in journal.rglob("*.parquet"):
        path.read_bytes()


def measured(name: str, step: str, journal: Path) -> dict[str, Any]:
    """Run a subject in a process of its own, and watch how much memory it takes."""
    command = [sys.executable, "-m", "benchmarks.pipeline.child", name, step]
    command += [str(journal), str(TURNS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        peak, over = [0], threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_SECONDS):
                peak[0] = max(peak[0], tree_bytes(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        over.set()
        watcher.join()
    if process.returncode:
        raise AssertionError(f"{name} could not do {step}")
    return {**json.loads(lines[-1]), "memory": peak[0]}


def tree_bytes(pid: int) -> int:
    """The memory of a process and all it started (Linux); what they share counts once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        own = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1_024
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = {int(child) for task in tasks for child in task.read_text().split()}
    except OSError:  # it has ended
        return 0
    return own + sum(map(tree_bytes, children))
