"""Run the benchmarks: all, or those whose names are given."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks.harness import Report, fail


def main(names: list[str]) -> None:
    """Run each benchmark in its own turn and write its results."""
    known = sorted(
        path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
    )
    for name in names:
        if name not in known:
            fail(f"there is no benchmark {name!r}; choose from {', '.join(known)}")
    for name in names or known:
        module = importlib.import_module(f"benchmarks.bench_{name}")
        print(f"{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        report = Report(name, getattr(module, "PACKAGES", ()), keep=getattr(module, "KEEP", False))
        module.run(report)
        report.write()
        print(f"  -> benchmarks/results/{name}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
