"""The figures of a run of the lab, which the docs quote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

import waystation

if TYPE_CHECKING:
    from waystation.testing.lab.running import Trial


class Figures(Struct):
    """How much was tried, and what was found."""

    seeds: int
    version: str = waystation.__version__
    messages: int = 0
    fleets: dict[str, int] = {}  # by topology
    faults: dict[str, int] = {}  # by kind
    violations: dict[str, list[int]] = {}  # seeds by promise

    def add(self, trial: Trial) -> None:
        """Count what came of a seed."""
        self.messages += trial.messages
        self.fleets[trial.topology] = self.fleets.get(trial.topology, 0) + 1
        for kind, times in trial.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + times
        for promise in trial.violations:
            self.violations.setdefault(promise, []).append(trial.seed)
