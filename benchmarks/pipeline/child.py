"""One subject does one step, in a process of its own: `python -m benchmarks.pipeline.child`.

Prints one line of JSON: how long the first time took, how long the others, and what the result
comes to. Starting the subject is not counted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import seconds


def subject_of(name: str, journal: Path) -> Any:
    if name == "waystation":
        from benchmarks.pipeline.spark_subject import Spark  # noqa: PLC0415

        return Spark(journal)
    if name == "DuckDB":
        from benchmarks.pipeline.duckdb_subject import DuckDB  # noqa: PLC0415

        return DuckDB(journal)
    from benchmarks.pipeline.polars_subject import Polars  # noqa: PLC0415

    return Polars(journal)


def main(name: str, step: str, journal: str, turns: str) -> None:
    subject = subject_of(name, Path(journal))
    work = getattr(subject, step)
    times = [seconds(work) for _ in range(int(turns) + 1)]
    digest = subject.digest(step) if step != "cross_join" else []
    print(json.dumps({"cold": times[0], "warm": times[1:], "digest": digest}), flush=True)
    subject.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
