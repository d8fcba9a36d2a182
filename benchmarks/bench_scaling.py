"""A build on one core and on two: in one process, and on the workers of a standalone cluster.

All build the same simulated journal, after a small one that is not counted. One core means that all
processes of the run share it; on the cluster each worker has one, and the driver what is left: with
two workers on a machine of two cores, nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, fail
from benchmarks.scaling.child import measured
from benchmarks.scaling.fleets import scratch
from waystation.testing.spark import Cluster

PACKAGES = ("pyspark", "pyarrow", "numpy")
CELLS = int(os.environ.get("WAYSTATION_BENCH_CELLS", "2").split(",")[0])


def run(report: Report) -> None:
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        fail("scaling is measured on a machine with at least two cores")
    with scratch() as directory:
        journal = directory / "journal"
        both = _built("local[2]", journal, directory / "two", processors)
        one = _built("local[1]", journal, directory / "one", processors[:1])
        rows = sum(both["rows"].values())
        case = f"build, {rows / 1e6:.2g} M rows, in one process"
        _note(report, case, rows, {"two cores": both, "one core": one})
        found = {}
        for count, name in ((2, "two workers"), (1, "one worker")):
            with _cluster(directory / name, processors[:count]) as cluster:
                found[name] = _built(cluster.url, journal, directory / name / "build", processors)
        _note(report, f"build, {rows / 1e6:.2g} M rows, on a cluster", rows, found)


def _built(master: str, journal: Path, directory: Path, processors: list[int]) -> dict[str, Any]:
    return measured(
        master=master,
        journal=str(journal),
        directory=str(directory),
        cells=CELLS,
        processors=processors,
    )


def _note(report: Report, case: str, rows: int, found: dict[str, dict[str, Any]]) -> None:
    report.note(case, {name: rows / answer["build"] for name, answer in found.items()}, "rows/s")
    more, fewer = found.values()
    for table, taken in more["tables"].items():
        report.add(
            f"{case}, {table}", "speed-up by the second", fewer["tables"][table] / taken, "x"
        )


@contextmanager
def _cluster(directory: Path, processors: list[int]) -> Iterator[Cluster]:
    """A cluster with a worker for each of these processors, which has no other."""
    everywhere = os.sched_getaffinity(0)
    with Cluster(directory, workers=0, memory="2g") as cluster:
        for number in processors:
            os.sched_setaffinity(0, [number])  # what is started now inherits it
            cluster.add_worker(f"worker-{number}")
        os.sched_setaffinity(0, everywhere)
        for worker in cluster.workers:
            worker.wait()
        yield cluster
