"""Write docs/explanation/promises.md: the promises, and figures of the last long run of the lab.

python scripts/write_promises.py           write it
python scripts/write_promises.py --check   fail if it is not up to date

The figures are in src/waystation/testing/lab/figures.json, which the lab writes:
python -m waystation.testing.lab --seeds 20000 --figures src/waystation/testing/lab/figures.json
"""

from __future__ import annotations

from typing import Any

import generated  # type: ignore[import-not-found] # it is beside this file
import msgspec

from waystation.testing.lab.promises import PROMISES
from waystation.testing.lab.safeguards import SAFEGUARDS

PAGE = generated.ROOT / "docs/explanation/promises.md"
FIGURES = generated.ROOT / "src/waystation/testing/lab/figures.json"

BEGINNING = """# What is promised

Each promise in one sentence, with what it does *not* promise, and how it is tried. The
[lab](../how-to/simulate-faults.md#the-lab) runs whole fleets in simulated time, breaks them by
chance, and judges what happened by these promises; `make lab` does so for every change. This page
is written by `scripts/write_promises.py`.
"""


def page() -> str:
    """The whole page."""
    parts = [BEGINNING, _promises(), _figures(), _safeguards()]
    return "\n".join(parts)


def _promises() -> str:
    lines = ["| | promise | not promised | how it is tried |", "|---|---|---|---|"]
    lines += [f"| {one.id} | {one.text} | {one.but} | {one.tested} |" for one in PROMISES]
    return "\n".join(lines) + "\n"


def _figures() -> str:
    found: dict[str, Any] = msgspec.json.decode(FIGURES.read_bytes())
    faults = sum(found["faults"].values())
    violations = sum(map(len, found["violations"].values()))
    seeds = [f"{id} by seed {seed}" for id, some in found["violations"].items() for seed in some]
    which = ", ".join(seeds) or "nothing"
    kinds = ", ".join(f"{kind} {times:,}" for kind, times in sorted(found["faults"].items()))
    fleets = ", ".join(f"{name} {times:,}" for name, times in sorted(found["fleets"].items()))
    return f"""## The last long run

| | |
|---|---:|
| version | {found["version"]} |
| seeds | {found["seeds"]:,} |
| messages | {found["messages"]:,} |
| faults injected | {faults:,} |
| violations | {violations:,} |

Violated: {which}. Why a known seed does so stands under "not promised".

Fleets: {fleets}. Faults: {kinds}.
"""


def _safeguards() -> str:
    lines = [
        "## Without its safeguards",
        "",
        "A checker that finds nothing may be right, or blind. So each safeguard can be turned off",
        "in the lab, and a checker must then fail:",
        "`python -m waystation.testing.lab --without copies --seeds 200`.",
        "",
        "| switch | safeguard | violated without it | seed |",
        "|---|---|---|---:|",
    ]
    lines += [
        f"| `{name}` | {one.what} | {' or '.join(sorted(one.promises, key=_number))} | {one.seed} |"
        for name, one in SAFEGUARDS.items()
    ]
    return "\n".join(lines) + "\n"


def _number(promise: str) -> int:
    return int(promise[1:])


if __name__ == "__main__":
    generated.main({PAGE: page()})
