"""The pipeline's steps on Spark beside DuckDB and Polars: histories, verdicts, multicast, traces.

All read the same simulated journals (pipeline/journals.py), write the finished table as Parquet,
and what they find is compared. Each subject does each step in a process of its own: "cold" is the
first time there, "warm" the median of the next; memory is the peak of the process and all it
started. Who takes more memory than there is left is stopped, and has no figure.
The histories of DuckDB and Polars are folded by the pipeline's own code, for want of a faster way.
WAYSTATION_BENCH_ROWS says how many rows (1000000,10000000), WAYSTATION_BENCH_DATA where they lie,
WAYSTATION_BENCH_SUBJECTS who takes part, WAYSTATION_BENCH_STEPS in what.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness import Report
from benchmarks.pipeline import journals
from benchmarks.processes import free_bytes, stop_tree, tree_bytes, tree_seconds

PACKAGES = ("pyspark", "pyarrow", "numpy", "duckdb", "polars")
KEEP = True  # the results of sizes and steps that are not asked for
OURS = "waystation"
SUBJECTS = os.environ.get("WAYSTATION_BENCH_SUBJECTS", "waystation,DuckDB,Polars").split(",")
STEPS = os.environ.get(
    "WAYSTATION_BENCH_STEPS", "route_history,expected,entries,traces,multicast,regular"
).split(",")
ROWS = [
    int(rows) for rows in os.environ.get("WAYSTATION_BENCH_ROWS", "1000000,10000000").split(",")
]
TURNS = 3
LARGE = 20_000_000  # from here on one turn is long enough to be told apart from noise
MOST_PUBLICATIONS = 10_000_000
PATTERNS = (100_000, 1_000_000)
PAIRS = (10_000, 1_000)  # publications and patterns of a cross join that ends
_LOOK_SECONDS = 0.5  # a look takes time from who is looked at
_LEFT_FOR_OTHERS = 2 * 2**30


def run(report: Report) -> None:
    for rows in ROWS:
        size = f"{rows / 1e6:g} M rows"
        if "route_history" in STEPS:
            compare(report, f"route_history, {size}", "route_history", journals.routes(rows), rows)
        if "expected" in STEPS:
            case = f"expected with histories, {size}"
            compare(report, case, "expected", journals.messages(rows), rows)
        if "entries" in STEPS:
            case = f"expected with 100 k entries a node, {size}"
            compare(report, case, "expected", journals.hubs(rows), rows)
        if "traces" in STEPS:
            compare(report, f"traces, {size}", "traces", journals.messages(rows), rows)
    largest = min(max(ROWS), MOST_PUBLICATIONS)
    if "multicast" in STEPS:
        for patterns in (count for count in PATTERNS if count <= largest):
            case = f"multicast, {largest / 1e6:g} M publications, {patterns / 1e6:g} M patterns"
            compare(report, case, "expected", journals.publications(largest, patterns), largest)
    if "regular" in STEPS:
        cross_join(report, largest)


def compare(report: Report, case: str, step: str, journal: Path, rows: int) -> None:
    """One step by all subjects; their results must be the same."""
    kinds = ("cold", "warm", "processor time", "memory")
    if report.has(*(f"{case}, {kind}" for kind in kinds)):
        return
    warm_up(journal)
    turns = 1 if rows >= LARGE else TURNS
    tried = {name: measured(name, step, journal, turns) for name in SUBJECTS}
    found = {name: result for name, result in tried.items() if result is not None}
    for name in SUBJECTS:
        if name not in found:
            print(f"  {case}: {name} took more memory than there was left", flush=True)
    digests = {json.dumps(result["digest"]) for result in found.values()}
    if len(digests) > 1 or (OURS in SUBJECTS and OURS not in found):
        raise AssertionError(f"{case}: {digests}")
    for name, result in found.items():
        report.add(f"{case}, cold", name, result["cold"], "s")
    medians = {name: statistics.median(result["warm"]) for name, result in found.items()}
    for name, value in medians.items():
        report.add(f"{case}, warm", name, value, "s")
    count = journals.rows_in(journal, "routes" if step == "route_history" else "messages")
    rates = {name: count / value for name, value in medians.items()}
    report.note(f"{case}, warm", rates, "rows/s")
    for name, result in found.items():
        processor = statistics.median(result["processor"])
        report.add(f"{case}, processor time", name, processor, "s")
    for name, result in found.items():
        report.add(f"{case}, memory", name, result["memory"] / 2**20, "MiB")


def cross_join(report: Report, rows: int) -> None:
    """What a regular expression against every pattern would take, from a size where it ends."""
    publications, patterns = PAIRS
    journal = journals.publications(publications, patterns)
    result = measured(OURS, "cross_join", journal, 1)
    assert result is not None
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


def measured(name: str, step: str, journal: Path, turns: int) -> dict[str, Any] | None:
    """Run a subject in a process of its own, and watch how much memory it takes; None if too much.

    It tells on a line of its own when each turn begins and ends, so that its processor time, and
    that of all it started, can be read then.
    """
    command = [sys.executable, "-m", "benchmarks.pipeline.child", name, step]
    command += [str(journal), str(turns)]
    most = free_bytes() - _LEFT_FOR_OTHERS
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        peak, over = [0], threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_SECONDS):
                peak[0] = max(peak[0], tree_bytes(process.pid))
                if peak[0] > most:
                    stop_tree(process.pid)

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert process.stdout is not None
        lines, spent = [], []
        for line in process.stdout:
            if line.startswith("turn"):
                spent.append(tree_seconds(process.pid))
            else:
                lines.append(line)
        over.set()
        watcher.join()
    if peak[0] > most:
        return None
    if process.returncode:
        raise AssertionError(f"{name} could not do {step}")
    processor = [after - before for before, after in pairwise(spent[1:])]  # without the cold one
    return {**json.loads(lines[-1]), "memory": peak[0], "processor": processor}
