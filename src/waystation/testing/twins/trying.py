"""Run the twins of a seed, and compare; run those of many, and count."""

from __future__ import annotations

import logging
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from msgspec import Struct, field

import waystation
from waystation.testing.twins.comparing import CLASSES, Compared, Difference, compared
from waystation.testing.twins.kinds import CONTROLS, KINDS, Told, Twins, with_trouble
from waystation.testing.twins.running import run
from waystation.testing.twins.script import script_of
from waystation.whatif.changes import changes_of
from waystation.whatif.verdicts import SAME

LEAST: Final = 0.95
"""The precision and the recall that each verdict is to have."""

MOST_UNKNOWN: Final = 0.20
"""The share of what differs that may be unknown."""

MOST_UNKNOWN_OF_ALL: Final = 0.05
"""The same of all."""


class Tried(Struct):
    """What came of a seed."""

    seed: int
    kind: str
    is_control: bool
    compared: Compared
    told: Told = {}
    differences: list[Difference] = []


def twins_of(seed: int, kind: str, *, control: bool = False) -> Twins:
    """The two scripts of a seed."""
    chance = random.Random(f"change {seed}")  # noqa: S311 - it must repeat
    script = with_trouble(script_of(seed), chance)
    return (CONTROLS if control else KINDS)[kind](script, chance)


def try_twins(seed: int, kind: str, *, control: bool = False) -> Tried:
    """Run the twins of a seed, and compare what was forecast with what came."""
    logging.disable(logging.ERROR)  # what a node complains about under faults is no news here
    twins = twins_of(seed, kind, control=control)
    found = Tried(seed, kind, control, Compared({}), differences=[])
    with tempfile.TemporaryDirectory(prefix="waystation-twins-") as name:
        first = run(twins.without, Path(name) / "first")
        second = run(twins.changed, Path(name) / "second")
        found.told = twins.told(first)
        for one in compared(twins.without, first, second, changes_of(found.told)):
            found.compared.add(one.forecast, one.true)
            if (one.forecast, one.true) != (SAME, SAME):
                found.differences.append(one)
    return found


class Figures(Struct):
    """What came of many seeds."""

    seeds: int
    version: str = waystation.__version__
    fleets: dict[str, int] = field(default_factory=dict)  # by kind
    kinds: dict[str, Compared] = field(default_factory=dict)
    controls: dict[str, int] = field(default_factory=dict)  # forecasts of a change, by kind

    @property
    def total(self) -> Compared:
        """All kinds together."""
        found = Compared({})
        for one in self.kinds.values():
            found.merge(one)
        return found

    def add(self, tried: Tried) -> None:
        """Count what came of a seed."""
        if tried.is_control:
            counts = tried.compared.counts
            altered = sum(n for key, n in counts.items() if not key.startswith(f"{SAME} "))
            self.controls[tried.kind] = self.controls.get(tried.kind, 0) + altered
            return
        self.fleets[tried.kind] = self.fleets.get(tried.kind, 0) + 1
        self.kinds.setdefault(tried.kind, Compared({})).merge(tried.compared)

    def problems(self) -> Iterator[str]:
        """What is not as good as it is to be."""
        total = self.total
        for verdict in CLASSES:
            for name, share in (("precision", total.precision), ("recall", total.recall)):
                value = share(verdict)
                if value is not None and value < LEAST:
                    yield f"{name} of {verdict} is {value:.3f}, less than {LEAST}"
        if total.unknown > MOST_UNKNOWN:
            yield f"{total.unknown:.1%} of what differs is unknown"
        if total.unknown_of_all >= MOST_UNKNOWN_OF_ALL:
            yield f"{total.unknown_of_all:.1%} of all is unknown"
        for kind, altered in self.controls.items():
            if altered:
                yield f"the control of {kind} alters {altered} fates"


def try_many(seeds: Sequence[int], processes: int | None = None) -> Iterator[Tried]:
    """The twins of seeds, all kinds in turn, and the control of each kind once."""
    kinds = list(KINDS)
    asked = [(seed, kinds[seed % len(kinds)], False) for seed in seeds]
    asked += [(seed, kind, True) for seed, kind in enumerate(CONTROLS)]
    if processes == 1:
        yield from map(_try_one, asked)
        return
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        yield from pool.map(_try_one, asked)


def _try_one(asked: tuple[int, str, bool]) -> Tried:
    seed, kind, control = asked
    return try_twins(seed, kind, control=control)
