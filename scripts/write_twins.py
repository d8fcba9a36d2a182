"""Write docs/explanation/what-if.md: how good forecasts are, by the last run of the twins.

python scripts/write_twins.py           write it
python scripts/write_twins.py --check   fail if it is not up to date

The figures are in src/waystation/testing/twins/figures.json, which the twins write:
python -m waystation.testing.twins --seeds 200 --figures src/waystation/testing/twins/figures.json
"""

from __future__ import annotations

import generated  # type: ignore[import-not-found] # it is beside this file
import msgspec

from waystation.testing.twins.comparing import CLASSES, Compared
from waystation.testing.twins.trying import Figures

PAGE = generated.ROOT / "docs/explanation/what-if.md"
FIGURES = generated.ROOT / "src/waystation/testing/twins/figures.json"

BEGINNING = """# How good a what-if is

[A what-if](../how-to/ask-what-if.md) forecasts a past that never was. So it is tried on pasts that
can be had both ways: fleets of real nodes in simulated time, each run twice from one seed, without
and with a change. Everything that comes from outside is the same in both runs: what is sent and
when, what breaks, and how long the network takes at each instant. The journal of the first run and
the change are given to the what-if; its verdicts are compared with what became of each message in
the second run. `python -m waystation.testing.twins --seeds 200` does that; this page is written by
`scripts/write_twins.py` from the figures of its last run.
"""

END = """Precision is the share of what was forecast to be saved, lost or moved that was; recall is
the share of what was that had been forecast so. What the forecast calls unknown counts in neither,
and has a column of its own. "Differ" are the messages whose fate differs in the two runs or in the
forecast; the last two columns say how many of them a forecast has right, and how many one that
says "nothing changes". Answers are not compared: an application that gets other messages gives
other answers.

## Changes that alter nothing

For each kind there is a control: a change of that kind that must alter nothing, such as a longer
life for routes that never expire.

"""


def page() -> str:
    """The whole page."""
    found = msgspec.json.decode(FIGURES.read_bytes(), type=Figures)
    total = found.total
    said = f"""
| | |
|---|---:|
| version | {found.version} |
| pairs of runs | {sum(found.fleets.values()):,} |
| messages for a receiver | {total.all:,} |
| unknown, of all | {total.unknown_of_all:.2%} |

"""
    return BEGINNING + said + _kinds(found) + "\n" + END + _controls(found)


def _kinds(found: Figures) -> str:
    names = " | ".join(f"{verdict}: precision | recall" for verdict in CLASSES)
    right = "differ | unknown | right | right if nothing changes"
    lines = [f"| change | fleets | {names} | {right} |", "|---|" + "---:|" * 11]
    lines += [_line(kind, found.fleets[kind], one) for kind, one in found.kinds.items()]
    lines.append(_line("**all**", sum(found.fleets.values()), found.total))
    return "\n".join(lines) + "\n"


def _line(name: str, fleets: int, one: Compared) -> str:
    shares = (share(verdict) for verdict in CLASSES for share in (one.precision, one.recall))
    cells = ["" if share is None else f"{share:.3f}" for share in shares]
    cells += [f"{one.differing:,}", f"{one.unknown:.1%}", f"{one.right:,}"]
    cells.append(f"{one.right_if_nothing_changes:,}")
    return f"| {name} | {fleets} | {' | '.join(cells)} |"


def _controls(found: Figures) -> str:
    lines = ["| change | fates that are forecast to change |", "|---|---:|"]
    lines += [f"| {kind} | {altered:,} |" for kind, altered in found.controls.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    generated.main({PAGE: page()})
