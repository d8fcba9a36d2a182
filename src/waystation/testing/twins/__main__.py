"""Run fleets twice, without and with a change, and judge what a what-if forecasts of the second.

    python -m waystation.testing.twins --seeds 200                   the seeds 0 to 199
    python -m waystation.testing.twins --seed 17                     one of them, with each mistake
    python -m waystation.testing.twins --seed 17 --kind sticky       with another change
    python -m waystation.testing.twins --seeds 200 --figures FILE    write what came of it as JSON

Ends with 1 if the forecasts are not as good as they are to be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from waystation.testing.twins.comparing import CLASSES, Compared, Fate, Row
from waystation.testing.twins.kinds import KINDS
from waystation.testing.twins.trying import Figures, Tried, try_many, try_twins


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the command line says."""
    asked = _parser().parse_args(arguments)
    if asked.seed is not None:
        kind = asked.kind or list(KINDS)[asked.seed % len(KINDS)]
        return _show(try_twins(asked.seed, kind, control=asked.control))
    figures = Figures(asked.seeds)
    seeds = range(asked.seeds)
    if asked.kind is not None:
        seeds = range(list(KINDS).index(asked.kind), asked.seeds, len(KINDS))
    for tried in try_many(seeds):
        figures.add(tried)
    if asked.figures is not None:
        text = msgspec.json.format(msgspec.json.encode(figures), indent=2)
        asked.figures.write_bytes(text + b"\n")
    for kind, found in figures.kinds.items():
        print(_line(kind, found))
    print(_line("all", figures.total))
    problems = list(figures.problems())
    for problem in problems:
        print(problem)
    print(f"{asked.seeds} seeds, {len(problems)} problems")
    return int(bool(problems))


def _line(name: str, found: Compared) -> str:
    shares = []
    for verdict in CLASSES:
        known = (found.precision(verdict), found.recall(verdict))
        shares.append(f"{verdict} " + "/".join("-" if s is None else f"{s:.3f}" for s in known))
    unknown = f"unknown {found.unknown:.3f}"
    right = f"right {found.right} of {found.differing}"
    return f"{name:20} {'  '.join(shares)}  {unknown}  {right}  ({found.all:,} in all)"


def _show(tried: Tried) -> int:
    print(f"{tried.kind}: {tried.told}")
    for one in tried.differences:
        mark = " " if one.forecast == one.true else "!"
        ends = f"{_end(one.was)} -> {_end(one.came)}"
        print(f"{mark} {one.key} forecast {one.forecast}, true {one.true}: {ends}{_why(one.row)}")
    print(_line(tried.kind, tried.compared))
    return 0


def _end(fate: Fate | None) -> str:
    return "nothing" if fate is None else " ".join(filter(None, fate))


def _why(row: Row | None) -> str:
    """What was forecast, and why."""
    if row is None:
        return ""
    end = Fate(row["after_outcome"], row["after_reason"], row["after_node"])
    return f"; forecast {_end(end)}: {row['why']}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m waystation.testing.twins", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=200, help="number of seeds, from 0 on")
    parser.add_argument("--seed", type=int, help="run this seed only, and show what differs")
    parser.add_argument("--kind", choices=KINDS, help="try this kind of change")
    parser.add_argument("--control", action="store_true", help="with --seed: its control")
    parser.add_argument("--figures", type=Path, help="file for the figures of the run, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
