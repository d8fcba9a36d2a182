"""A fleet simulated and built in a process of its own: `python -m benchmarks.scaling.child JOB`.

The job and the answer are JSON. Starting Spark is not counted, and neither is a first small fleet,
after which Java has seen every step once. With `processors`, the process and all that it starts
have no others. What tasks handed each other comes from Spark's log of events.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import seconds
from benchmarks.scaling.fleets import bytes_of, files_of, fleet_of
from waystation import pipeline
from waystation.simulate.fleet import Fleet
from waystation.simulate.simulate import simulate

WARM_UP = Fleet(18, 300, 5_000, seed=9)


def measured(**job: Any) -> dict[str, Any]:
    """Have a job done in another process."""
    command = [sys.executable, "-m", "benchmarks.scaling.child", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main(job: dict[str, Any]) -> None:
    if "processors" in job:
        os.sched_setaffinity(0, job["processors"])
    directory = Path(job["directory"])
    events = directory / "events"
    events.mkdir(parents=True, exist_ok=True)
    spark = pipeline.session("scale", master=job["master"], config=_config(events))
    _make(spark, WARM_UP, directory / "small")
    pipeline.build(directory / "small", directory / "small-tables", spark=spark)
    journal = Path(job["journal"])
    answer: dict[str, Any] = {"simulate": None}
    if not journal.exists():
        answer["simulate"] = seconds(lambda: _make(spark, fleet_of(job["cells"]), journal))
    before = _exchanged(events)
    summary = pipeline.build(journal, directory / "tables", spark=spark)
    answer["build"] = summary.seconds
    answer["tables"] = {name: table.seconds for name, table in summary.tables.items()}
    answer["rows"] = summary.rows_in
    answer["bytes"] = {table: bytes_of(journal / table) for table in summary.rows_in}
    answer["written"] = {name: table.bytes for name, table in summary.tables.items()}
    answer["files"] = files_of(journal)
    answer["listing"] = seconds(lambda: pipeline.read_journal(spark, journal))
    spark.stop()
    answer["exchanged"] = _exchanged(events) - before
    print(json.dumps(answer), flush=True)


def _config(events: Path) -> dict[str, str]:
    return {
        "spark.driver.memory": "4g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def _make(spark: Any, fleet: Fleet, journal: Path) -> None:
    simulate(
        spark,
        journal,
        nodes=fleet.nodes,
        participants=fleet.participants,
        messages=fleet.messages,
        seed=fleet.seed,
    )


def _exchanged(events: Path) -> int:
    """The bytes that tasks wrote for others, so far."""
    total = 0
    for log in events.iterdir():
        for line in log.read_text("utf-8").splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and event.get("Task Metrics"):
                total += event["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"]
    return total


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
