"""Try many fleets in simulated time, and judge each of them.

    python -m waystation.testing.lab --seeds 200          the seeds 0 to 199
    python -m waystation.testing.lab --seed 17            one of them again, with all it violates
    python -m waystation.testing.lab --seed 17 --shrink   the smallest run that still fails
    python -m waystation.testing.lab --check DIR          judge a history that was kept before
    python -m waystation.testing.lab --seeds 200 --without copies    turn a safeguard off, and see
    python -m waystation.testing.lab --seeds 5000 --figures FILE     write what came of it as JSON

Known violations stand in known.json beside this file, by promise and seed. They are expected
strictly: a seed that no longer fails has to be taken off the list. Ends with 1 if anything else was
violated, or a known violation was not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from waystation.testing.lab.figures import Figures
from waystation.testing.lab.fleet import Plan
from waystation.testing.lab.history import History
from waystation.testing.lab.running import (
    Trial,
    Violations,
    judge,
    run_seed,
    shrink,
    try_out,
    try_seed,
)
from waystation.testing.lab.safeguards import SAFEGUARDS

KNOWN: Final = Path(__file__).with_name("known.json")
SHOWN: Final = 3
"""Violations of one promise that are shown for a seed among many."""

SHRUNK: Final = 3
"""Violations for which a smaller run is looked for; that takes some twenty runs each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the lab as the command line says."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # what a node complains about under faults is no news here
    if asked.check is not None:
        if not (asked.check / "history.json").is_file():
            parser.error(f"{asked.check} has no history.json; give a directory that --keep wrote")
        return _tell(judge(History.read(asked.check / "history.json"), asked.check / "journal"))
    if asked.seed is None and asked.without is not None:
        return _ablate(asked.without, asked.seeds)
    if asked.seed is None:
        return run_many(asked.seeds, write_known=asked.write_known, figures=asked.figures)
    if asked.shrink:
        return _shrink(asked.seed)
    plan, faults = Plan(messages=asked.messages), asked.faults
    if asked.keep is None:
        return _tell(try_seed(asked.seed, plan, faults, asked.without))
    asked.keep.mkdir(parents=True, exist_ok=True)
    history = run_seed(asked.seed, plan=plan, faults=faults, directory=asked.keep)
    return _tell(judge(history, asked.keep / "journal"))


def run_many(seeds: int, *, write_known: bool = False, figures: Path | None = None) -> int:
    """Try seeds on all cores; the last line says how many, and how many violations."""
    known = {} if write_known else _known()
    found: dict[str, list[int]] = {}
    violations = 0
    total = Figures(seeds)
    for trial in _try_all(range(seeds)):
        total.add(trial)
        seed, violated = trial.seed, trial.violations
        for promise, sentences in violated.items():
            found.setdefault(promise, []).append(seed)
            if seed in known.get(promise, ()) or write_known:
                continue
            violations += 1
            _show(seed, promise, sentences, smaller=violations <= SHRUNK)
        for promise, listed in known.items():
            if seed in listed and promise not in violated:
                violations += 1
                print(f"seed {seed}: {promise} holds now; take the seed off {KNOWN.name}")
    if write_known:
        KNOWN.write_text(_as_json(found))
    if figures is not None:
        figures.write_bytes(msgspec.json.format(msgspec.json.encode(total), indent=2) + b"\n")
    print(f"{seeds} seeds, {violations} violations")
    return int(violations > 0)


def _ablate(name: str, seeds: int) -> int:
    """Look for the first seed that fails without a safeguard; ends with 1 if there is none."""
    safeguard = SAFEGUARDS[name]
    for seed in range(seeds):
        plan = Plan(messages=safeguard.messages)
        violated = safeguard.promises & try_seed(seed, plan, without=name).keys()
        if violated:
            print(f"without {name}, seed {seed} violates {', '.join(sorted(violated))}")
            return 0
    print(f"without {name}, {seeds} seeds, 0 violations: nothing notices that it is missing")
    return 1


def _try_all(seeds: Sequence[int]) -> Iterator[Trial]:
    ignore_interrupts = (signal.SIGINT, signal.SIG_IGN)  # the parent says when to end
    pool = ProcessPoolExecutor(
        os.cpu_count(), initializer=signal.signal, initargs=ignore_interrupts
    )
    try:
        yield from pool.map(_quietly, seeds, chunksize=2)
    finally:
        pool.shutdown(cancel_futures=True)


def _quietly(seed: int) -> Trial:
    logging.disable(logging.ERROR)
    return try_out(seed)


def _known() -> dict[str, set[int]]:
    return {promise: set(seeds) for promise, seeds in json.loads(KNOWN.read_text()).items()}


def _as_json(found: dict[str, list[int]]) -> str:
    lines = (f"  {json.dumps(promise)}: {seeds}" for promise, seeds in sorted(found.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _show(seed: int, promise: str, sentences: list[str], *, smaller: bool) -> None:
    print(f"seed {seed} violates {promise}, {len(sentences)} times:")
    for sentence in sentences[:SHOWN]:
        print(f"    {sentence}")
    print(f"    again:   python -m waystation.testing.lab --seed {seed}")
    if smaller:
        print(f"    smaller: {_smaller(seed, promise)}")


def _tell(violated: Violations) -> int:
    for promise, sentences in violated.items():
        for sentence in sentences:
            print(f"{promise}: {sentence}")
    print(f"1 seeds, {len(violated)} violations")
    return int(bool(violated))


def _shrink(seed: int) -> int:
    violated = try_seed(seed)
    for promise in violated:
        print(f"{promise}: {_smaller(seed, promise)}")
    return int(bool(violated))


def _smaller(seed: int, promise: str) -> str:
    """The command for the smallest run found in which a seed violates a promise."""
    plan, faults = shrink(seed, promise)
    numbers = ",".join(map(str, faults))
    return (
        f"python -m waystation.testing.lab --seed {seed} --messages {plan.messages} "
        f"--faults '{numbers}'"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"invalid number {text!r}; give 1 or more")
    return int(text)


def _numbers(text: str) -> list[int]:
    numbers = [part.strip() for part in text.split(",") if part.strip()]
    if not all(map(str.isdecimal, numbers)):
        raise argparse.ArgumentTypeError(f"invalid numbers {text!r}; write them as 0,2")
    return [int(number) for number in numbers]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m waystation.testing.lab", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=_count, default=200, help="number of seeds, from 0 on")
    parser.add_argument("--seed", type=int, help="run this seed only, and show all it violates")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller run that fails")
    parser.add_argument(
        "--faults", type=_numbers, help="let only the faults of these numbers happen: 0,2"
    )
    parser.add_argument("--messages", type=_count, default=Plan().messages, help="messages to send")
    parser.add_argument("--keep", type=Path, help="directory for the history and the journals")
    parser.add_argument("--check", type=Path, help="judge what an earlier run kept in a directory")
    parser.add_argument(
        "--without", choices=SAFEGUARDS, help="turn a safeguard off, and see whether that is seen"
    )
    parser.add_argument("--figures", type=Path, help="file for the figures of the run, as JSON")
    parser.add_argument(
        "--write-known", action="store_true", help=f"write what is violated now to {KNOWN.name}"
    )
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
