"""One subject does one step, in a process of its own: `python -m benchmarks.pipeline.child`.

Prints a line at the beginning and after each turn, and one of JSON at the end: how long the first
turn took, how long the others, and what the result comes to. Starting the subject is not counted.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import seconds


def subject_of(name: str, journal: Path, out: Path) -> Any:
    if name == "waystation":
        from benchmarks.pipeline.spark_subject import Spark  # noqa: PLC0415

        return Spark(journal, out)
    if name == "DuckDB":
        from benchmarks.pipeline.duckdb_subject import DuckDB  # noqa: PLC0415

        return DuckDB(journal, out)
    from benchmarks.pipeline.polars_subject import Polars  # noqa: PLC0415

    return Polars(journal, out)


def main(name: str, step: str, journal: str, turns: str) -> None:
    with tempfile.TemporaryDirectory(prefix="tables-", dir=Path(journal).parent) as out:
        run(subject_of(name, Path(journal), Path(out)), step, int(turns))


def run(subject: Any, step: str, turns: int) -> None:
    work = getattr(subject, step)
    times = []
    print("turn", flush=True)
    for _ in range(turns + 1):
        times.append(seconds(work))
        print("turn", flush=True)
    digest = subject.digest(step) if step != "cross_join" else []
    print(json.dumps({"cold": times[0], "warm": times[1:], "digest": digest}), flush=True)
    subject.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
