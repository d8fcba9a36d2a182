"""One seed: make a fleet, let it work, break it, mend it, keep the history, and judge it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from waystation.testing.lab.checks import CHECKS
from waystation.testing.lab.fleet import Fleet, Plan
from waystation.testing.lab.history import History
from waystation.testing.lab.journals import judged
from waystation.testing.lab.nemesis import KILLS, MOST, Nemesis
from waystation.testing.lab.safeguards import SAFEGUARDS
from waystation.testing.lab.topology import TOPOLOGIES
from waystation.testing.simulation import Simulation, SimulationError

MOST_EVENTS: Final = 400_000
"""A fleet of the lab needs a tenth of that."""

ENTRIES: Final = "P8"
AUDIT: Final = "P13"
"""The promises that the pipeline's kernels check: of changes of routing tables, of messages."""

Violations = dict[str, list[str]]
"""What was violated, by promise."""


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    faults: Collection[int] | None = None,
    directory: Path | None = None,
) -> History:
    """The history of a seed; its topology and its faults are drawn from the seed as well.

    With `faults` only those of these numbers happen. In the directory the history and the journals
    are kept.
    """
    chance = random.Random(f"fleet {seed}")  # noqa: S311 - it must repeat
    topology = list(TOPOLOGIES.values())[seed % len(TOPOLOGIES)](chance)
    simulation = Simulation(seed, most_events=MOST_EVENTS)
    fleet = Fleet(simulation, topology, plan or Plan())
    history = fleet.history

    async def main(simulation: Simulation) -> None:
        for node in fleet.names:
            fleet.start(node)
        await Nemesis(fleet, faults).run()
        simulation.network.heal()
        await asyncio.sleep(history.quiet_from + fleet.plan.quiet - fleet.now())
        await fleet.look()

    with fleet.installed():
        try:
            simulation.run(main)
        except SimulationError as error:
            history.problem = str(error)
        history.noted = sorted(fleet.disks.differences())
    history.ended = fleet.now()
    if directory is not None:
        history.write(directory / "history.json")
        fleet.disk.seal(directory / "journal")
    return history


def judge(history: History, journal: Path | None = None) -> Violations:
    """What a history violates, and with its journals what the pipeline finds wrong in those."""
    found = {promise: list(check(history)) for promise, check in CHECKS.items()}
    if journal is not None and journal.exists() and not history.problem:
        found |= {ENTRIES: [], AUDIT: []}
        for about_messages, sentence in judged(journal):
            found[AUDIT if about_messages else ENTRIES].append(sentence)
    return {promise: sentences for promise, sentences in found.items() if sentences}


class Trial(Struct, frozen=True):
    """What came of a seed."""

    seed: int
    topology: str
    violations: Violations
    messages: int
    faults: dict[str, int]  # by kind


def try_out(
    seed: int,
    plan: Plan | None = None,
    faults: Collection[int] | None = None,
    without: str | None = None,
) -> Trial:
    """Run a seed and judge it, journals and all, perhaps without one of the safeguards."""
    off = contextlib.nullcontext if without is None else SAFEGUARDS[without].off
    with tempfile.TemporaryDirectory(prefix="waystation-lab-") as name, off():
        directory = Path(name)
        history = run_seed(seed, plan=plan, faults=faults, directory=directory)
        violations = judge(history, directory / "journal")
    kinds = Counter(fault.kind for fault in history.faults)
    return Trial(seed, history.topology.name, violations, len(history.sent), dict(kinds))


def try_seed(
    seed: int,
    plan: Plan | None = None,
    faults: Collection[int] | None = None,
    without: str | None = None,
) -> Violations:
    """What a seed violates."""
    return try_out(seed, plan, faults, without).violations


def shrink(seed: int, promise: str) -> tuple[Plan, list[int]]:
    """A smaller run of a seed that still violates a promise: fewer faults, fewer messages."""
    plan, faults = Plan(), list(range(MOST + KILLS))
    for number in list(faults):
        fewer = [other for other in faults if other != number]
        if promise in try_seed(seed, plan, fewer):
            faults = fewer
    for smaller in _smaller(plan):
        if promise not in try_seed(seed, smaller, faults):
            break
        plan = smaller
    return plan, faults


def _smaller(plan: Plan) -> Iterator[Plan]:
    messages = plan.messages
    while messages > 20:
        messages //= 2
        yield Plan(messages=messages)
