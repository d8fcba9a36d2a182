"""The demonstration itself: the fleet starts, works, is broken on purpose, rests, and ends.

Everything happens in one thread, which looks at the journals and draws while it waits. However it
ends, no process is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from waystation.demo.deeds import Deed, Deeds
from waystation.demo.fleet import LEAVES, OVER, PROCESSES, Fleet, Pace
from waystation.demo.following import Drop, Following
from waystation.demo.leaf import REST, RESTING
from waystation.demo.place import Place
from waystation.demo.view import Picture, View
from waystation.interruptions import undisturbed

_TURN: Final = 0.05  # seconds between two turns of whoever waits
_LOOK: Final = 0.25  # seconds between two looks at the journals
_QUIET: Final = 1.0  # seconds without a new row, after which nothing is under way
_REST: Final = 60.0  # seconds after which the fleet ends, at rest or not


class Performance(Struct, frozen=True):
    """What was done, and what the journals said while it was."""

    deeds: list[Deed]
    drops: list[Drop]
    counts: dict[str, dict[str, int]]  # by node, and outcome or reason
    seconds: float


def perform(place: Place, pace: Pace, view: View) -> Performance:
    """Run the fleet, break it, and end it; its journals are complete then."""
    began = time.monotonic()
    stage = _Stage(place, pace, view)
    try:
        stage.play()
    finally:
        with undisturbed():
            stage.fleet.processes.end_all()
    following = stage.following
    return Performance(
        stage.deeds.done,
        following.drops,
        {node: dict(found) for node, found in following.counts.items()},
        time.monotonic() - began,
    )


class _Stage:
    """The fleet, and whoever watches it."""

    def __init__(self, place: Place, pace: Pace, view: View) -> None:
        self.following = Following(place.journal)
        self.fleet = Fleet(place, pace, self.wait)
        self.deeds = Deeds(self.fleet, self.following, self.wait, view.say)
        self._place = place
        self._view = view
        self._next_look = 0.0

    def play(self) -> None:
        """From the first process to the last."""
        say = self._view.say
        say(f"starting {len(PROCESSES)} processes on this machine")
        self.fleet.start(say)
        self.deeds.do_all()
        self._place.write("deeds.json", self.deeds.done)
        say("the traffic ends, and what is under way arrives")
        self._rest()
        say("the fleet ends")
        self.fleet.end()
        self.following.look()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is so; whoever ended by itself meanwhile is an error."""
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
        """Let the traffic end, and wait until nothing is under way."""
        leaves = [self.fleet.processes[name] for name in LEAVES]
        for leaf in leaves:
            leaf.order(REST)
        self.wait(lambda: all(RESTING in leaf.lines() for leaf in leaves), _REST)
        resting = time.monotonic()

        def is_quiet() -> bool:
            return time.monotonic() - max(resting, self.following.changed_at) >= _QUIET

        self.wait(is_quiet, _REST)

    def _look(self) -> None:
        if time.monotonic() < self._next_look:
            return
        following = self.following
        following.look()
        absent = frozenset(self.fleet.absent)
        self._view.draw(Picture(OVER, absent, following.counts, following.rates()))
        self._next_look = time.monotonic() + _LOOK
