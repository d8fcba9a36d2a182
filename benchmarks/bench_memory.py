"""What memory a build takes: a hundred million rows on a cluster whose executors have little.

Two workers of one core each, executors with EXECUTOR_MEMORY (`spark.executor.memory`). What counts
is all of an executor: Java, and the Python processes that it started. The largest sum that was seen
stands beside what the executor may have. WAYSTATION_BENCH_ROWS says how many rows of `messages`
(100000000), WAYSTATION_BENCH_DATA where they lie.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.pipeline import journals
from benchmarks.processes import children_of, tree_bytes
from benchmarks.scaling.fleets import scratch
from waystation import pipeline
from waystation.testing.spark import Cluster, SparkProcess

PACKAGES = ("pyspark", "pyarrow", "numpy")
ROWS = int(os.environ.get("WAYSTATION_BENCH_ROWS", "100000000").split(",")[0])
EXECUTOR_MEMORY = 2  # GiB
_LOOK_SECONDS = 0.5
_EXECUTOR = "CoarseGrainedExecutorBackend"


def run(report: Report) -> None:
    journal = journals.messages(ROWS)
    memory = f"{EXECUTOR_MEMORY}g"
    with scratch() as directory, Cluster(directory / "cluster", memory=memory) as cluster:
        config = {"spark.executor.memory": memory}
        spark = pipeline.session("memory", master=cluster.url, config=config)
        peaks = Peaks(cluster.workers)
        summary = pipeline.build(journal, directory / "tables", spark=spark)
        peaks.stop()
        spark.stop()
    rows = sum(summary.rows_in.values())
    case = f"build, {rows / 1e6:.4g} M rows, two executors, memory of one"
    report.add(case, "may have", EXECUTOR_MEMORY * 2**10, "MiB")
    report.add(case, "Java and Python, peak", peaks.whole / 2**20, "MiB")
    report.add(case, "Python alone, peak", peaks.python / 2**20, "MiB")


class Peaks:
    """The most that an executor has had, seen by looking now and then."""

    def __init__(self, workers: list[SparkProcess]) -> None:
        self.whole = self.python = 0
        self._workers = workers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for worker in self._workers:
                for pid in _executors(worker.pid):
                    self.whole = max(self.whole, tree_bytes(pid))
                    self.python = max(self.python, sum(map(tree_bytes, children_of(pid))))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def _executors(pid: int) -> Iterator[int]:
    """The executors among all that a process started."""
    for child in children_of(pid):
        try:
            found = _EXECUTOR in Path(f"/proc/{child}/cmdline").read_text()
        except OSError:  # it has ended
            continue
        if found:
            yield child
        else:
            yield from _executors(child)
