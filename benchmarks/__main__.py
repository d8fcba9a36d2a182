"""Run the benchmarks: all, or those whose names are given.

With RESUME=1 in the environment a run goes on where the last one of this commit was interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

from benchmarks.harness import Report, fail, source_revision


def main(names: list[str]) -> None:
    """Run each benchmark in its own turn and write its results."""
    known = sorted(
        path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
    )
    for name in names:
        if name not in known:
            fail(f"there is no benchmark {name!r}; choose from {', '.join(known)}")
    revision, began = source_revision(), time.monotonic()
    resume = os.environ.get("RESUME", "") not in {"", "0"}
    if resume and not revision:
        print("measured anew: what is measured differs from what is committed")
    for name in names or known:
        start = time.monotonic()
        module = importlib.import_module(f"benchmarks.bench_{name}")
        print(f"{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        report = Report(
            name,
            getattr(module, "PACKAGES", ()),
            keep=getattr(module, "KEEP", False),
            revision=revision,
            resume=resume,
        )
        if report.is_finished:
            print("  measured before")
            continue
        module.run(report)
        report.write()
        print(f"  -> benchmarks/results/{name}.json, {time.monotonic() - start:.0f} s")
    print(f"all of it: {(time.monotonic() - began) / 60:.0f} min")


if __name__ == "__main__":
    main(sys.argv[1:])
