"""The processes of a demonstration: started, heard when they are ready, and ended by their pid.

Each writes to a log of its own, and what it says there is how one learns that it is ready. Each is
a session of its own, so that Ctrl-C in the terminal reaches only the demonstration, which then ends
them in order; and each ends by itself should the demonstration be killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from waystation.demo.place import Place
from waystation.errors import LocalError
from waystation.testing.end_with_parent import end_with_parent

WAYSTATION: Final = (sys.executable, "-c", "from waystation.cli import main; main()")
"""The command line of this very installation."""

GRACE: Final = 8.0
"""Seconds that a process has to end when it is asked to; then it is killed."""

_LOOK: Final = 0.02  # seconds between two looks at a process that is to end
_RULE: Final = "OB-4"
_OPTION: Final = "WAYSTATION_"


class Told(Struct, frozen=True):
    """A process, as `processes.json` tells of it."""

    name: str
    pid: int
    command: list[str]
    log: str
    state: str  # running, or how it ended


class Child:
    """One process of the fleet."""

    def __init__(self, name: str, command: Iterable[str], log: Path, *, takes_orders: bool) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        with log.open("ab") as written:
            self._said = written.tell()  # what is before was said by an earlier process
            self._process = subprocess.Popen(  # noqa: S603 - a program of our own
                end_with_parent(self.command),
                stdin=subprocess.PIPE if takes_orders else subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
            )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def told(self) -> Told:
        """What `processes.json` says of it."""
        code = self._process.poll()
        state = "running" if code is None else f"ended with {code}"
        return Told(self.name, self.pid, self.command, str(self.log), state)

    def lines(self) -> list[str]:
        """All whole lines that this process has said so far."""
        with self.log.open("rb") as log:
            log.seek(self._said)
            said = log.read()
        return said[: said.rfind(b"\n") + 1].decode(errors="replace").splitlines()

    def order(self, words: str) -> None:
        """Tell it to do something; one that has ended does not hear it."""
        orders: IO[bytes] | None = self._process.stdin
        assert orders is not None
        if self.is_running:
            with suppress(BrokenPipeError):  # it is just ending
                orders.write(words.encode() + b"\n")
                orders.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without asking, and see that it has ended."""
        self._process.kill()
        self._gone()

    def wait(self, deadline: float) -> bool:
        """Whether it ended before an instant of the monotonic clock."""
        while self._process.poll() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK)
        self._gone()
        return True

    def _gone(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # of an order that it never read
                self._process.stdin.close()


def _environment() -> dict[str, str]:
    """Our environment without options for commands: those that are meant for the demonstration."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OPTION)}


class Processes:
    """All processes of a demonstration, those that have ended included."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._all: list[Child] = []
        self._latest: dict[str, Child] = {}

    def __getitem__(self, name: str) -> Child:
        return self._latest[name]

    def start(self, name: str, command: Iterable[str], *, takes_orders: bool = False) -> Child:
        """Start a process."""
        log = self._place.logs / f"{name}.log"
        child = Child(name, command, log, takes_orders=takes_orders)
        self._all.append(child)
        self._latest[name] = child
        self.note()
        return child

    def check(self, expected_to_run: Iterable[str]) -> None:
        """Raise if one of these has ended."""
        for name in expected_to_run:
            child = self._latest[name]
            if not child.is_running:
                last = next(reversed(child.lines()), "it said nothing")
                raise LocalError(
                    f"{name} ended by itself: {last}", rule=_RULE, hint=f"see {child.log}"
                )

    def end(self, names: Iterable[str], *, grace: float = GRACE) -> None:
        """Ask these to end, and kill what has not done so in time."""
        asked = [self._latest[name] for name in names if name in self._latest]
        self._end(asked, grace)

    def end_all(self) -> None:
        """End whatever still runs, all at once."""
        self._end(self._all, GRACE)

    def note(self) -> None:
        """Write down which processes there are."""
        self._place.write("processes.json", [child.told for child in self._all])

    def _end(self, children: Iterable[Child], grace: float) -> None:
        running = [child for child in children if child.is_running]
        for child in running:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        for child in running:
            if not child.wait(deadline):
                child.kill()
        if running:
            self.note()
