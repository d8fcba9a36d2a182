"""Runs the demonstration: starts the fleet, injects faults, lets the traffic finish, and stops it.

Everything runs in one thread, which reads the journals and updates the display while it waits.
However it ends, no process is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from waystation.demo.console import DemoConsole
from waystation.demo.directory import DemoDirectory
from waystation.demo.faults import Fault, FaultInjector
from waystation.demo.fleet import LEAVES, PROCESSES, TRANSPORTS, Fleet, Pace
from waystation.demo.leaf import REST, RESTING
from waystation.demo.live_counts import Drop, LiveCounts
from waystation.demo.view import Picture, View
from waystation.interruptions import undisturbed

_TURN: Final = 0.05  # seconds between checks of a condition
_LOOK: Final = 0.25  # seconds between reads of the journals
_QUIET: Final = 1.0  # seconds without a new row, after which no message is in flight
_REST: Final = 60.0  # maximum seconds to wait for the traffic to finish


class DemoRun(Struct, frozen=True):
    """The injected faults, and what the journals recorded meanwhile."""

    faults: list[Fault]
    drops: list[Drop]
    counts: dict[str, dict[str, int]]  # by node, and outcome or reason
    seconds: float


def run_demo(
    directory: DemoDirectory, pace: Pace, view: View, console: DemoConsole | None = None
) -> DemoRun:
    """Run the fleet, inject the faults, and stop it, so that its journals are complete.

    A console is opened as soon as the fleet runs; it is not closed here.
    """
    began = time.monotonic()
    runner = _Runner(directory, pace, view, console)
    try:
        runner.run()
    finally:
        with undisturbed():
            runner.fleet.processes.end_all()
    live = runner.live
    return DemoRun(
        runner.faults.done,
        live.drops,
        {node: dict(found) for node, found in live.counts.items()},
        time.monotonic() - began,
    )


class _Runner:
    """Runs the fleet, and keeps the display up to date."""

    def __init__(
        self, directory: DemoDirectory, pace: Pace, view: View, console: DemoConsole | None
    ) -> None:
        self._console = console
        self.live = LiveCounts(directory.journal)
        self.fleet = Fleet(directory, pace, self.wait)
        self.faults = FaultInjector(self.fleet, self.live, self.wait, view.say)
        self._directory = directory
        self._view = view
        self._next_look = 0.0

    def run(self) -> None:
        """Run the whole demonstration."""
        say = self._view.say
        say(f"starting {len(PROCESSES)} processes on this machine")
        self.fleet.start(say)
        if self._console is not None:
            say(f"the console is at {self._console.open(self.fleet, self.wait)}")
        self.faults.inject_all()
        self._directory.write("deeds.json", self.faults.done)
        say("waiting for messages in flight")
        self._rest()
        say("stopping the fleet")
        self.fleet.end()
        self.live.look()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition; raises if a process ends unexpectedly meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            self._look()
            if condition():
                return True
            self.fleet.check()
            if time.monotonic() >= deadline:
                return False
            time.sleep(_TURN)

    def _rest(self) -> None:
        """Stop the traffic, and wait until no message is in flight."""
        leaves = [self.fleet.processes[name] for name in LEAVES]
        for leaf in leaves:
            leaf.order(REST)
        self.wait(lambda: all(RESTING in leaf.lines() for leaf in leaves), _REST)
        resting = time.monotonic()

        def is_quiet() -> bool:
            return time.monotonic() - max(resting, self.live.changed_at) >= _QUIET

        self.wait(is_quiet, _REST)

    def _look(self) -> None:
        if time.monotonic() < self._next_look:
            return
        live = self.live
        live.look()
        absent = frozenset(self.fleet.absent)
        self._view.draw(Picture(TRANSPORTS, absent, live.counts, live.rates()))
        self._next_look = time.monotonic() + _LOOK
