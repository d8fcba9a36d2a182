"""The console of a demonstration: a process that watches the fleet, and outlives it.

While the fleet runs it shows both hubs live; afterwards its view of the past shows the whole run.
"""

from __future__ import annotations

import re
import signal
import time
from typing import Final

from waystation.demo.directory import DemoDirectory
from waystation.demo.fleet import HUBS, Fleet, Wait
from waystation.demo.processes import GRACE, WAYSTATION, Child
from waystation.errors import LocalError

START: Final = 60.0
"""Seconds that the console has to become ready, even on a busy machine."""

_READY: Final = re.compile(r"^the console is at (\S+)$")
_LOOK: Final = 0.2  # seconds between checks that it still runs


class DemoConsole:
    """The console of a demonstration; `url` is where it is, once it was opened."""

    def __init__(self, directory: DemoDirectory, place: str) -> None:
        self._directory = directory
        self._place = place
        self._child: Child | None = None
        self.url = ""

    def open(self, fleet: Fleet, wait: Wait) -> str:
        """Start the console of a running fleet; returns its URL."""
        hubs = [option for hub in HUBS for option in ("--connect", fleet.url(hub, "tcp"))]
        journal = str(self._directory.journal)
        command = (*WAYSTATION, "console", *hubs, "--journal", journal, "--listen", self._place)
        child = Child("console", command, self._directory.logs / "console.log", takes_orders=False)
        self._child = child

        def is_over() -> bool:
            return bool(self._found(child)) or not child.is_running

        wait(is_over, START)
        self.url = self._found(child)
        if not self.url:
            last = next(reversed(child.lines()), "it said nothing")
            raise LocalError(f"no console: {last}", rule="OB-4", hint=f"see {child.log}")
        return self.url

    def _found(self, child: Child) -> str:
        return next((match[1] for line in child.lines() if (match := _READY.match(line))), "")

    def stay(self) -> None:
        """Wait until it is interrupted, or the console ends."""
        while self._child is not None and self._child.is_running:
            time.sleep(_LOOK)

    def close(self) -> None:
        """Stop the console."""
        if self._child is not None and self._child.is_running:
            self._child.signal(signal.SIGTERM)
            if not self._child.wait(time.monotonic() + GRACE):
                self._child.kill()
