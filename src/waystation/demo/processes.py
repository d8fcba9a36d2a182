"""The processes of a demonstration: start them, read their output, and end them by pid.

Each writes to its own log, which also shows when it is ready. Each is in its own session, so that
Ctrl-C in the terminal reaches only the demonstration, which then stops them in order; and each ends
by itself if the demonstration is killed.
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

from waystation.demo.directory import DemoDirectory
from waystation.errors import LocalError
from waystation.testing.end_with_parent import end_with_parent

WAYSTATION: Final = (sys.executable, "-c", "from waystation.cli import main; main()")
"""The command line of this installation."""

GRACE: Final = 8.0
"""Seconds that a process has to stop when asked to, before it is killed."""

_LOOK: Final = 0.02  # seconds between checks of a stopping process
_RULE: Final = "OB-4"
_OPTION: Final = "WAYSTATION_"


class ProcessInfo(Struct, frozen=True):
    """A process in `processes.json`."""

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
            self._said = written.tell()  # what is before is from an earlier process
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
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def info(self) -> ProcessInfo:
        """Its entry in `processes.json`."""
        code = self._process.poll()
        state = "running" if code is None else f"ended with {code}"
        return ProcessInfo(self.name, self.pid, self.command, str(self.log), state)

    def lines(self) -> list[str]:
        """All complete lines that this process has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._said)
            said = log.read()
        return said[: said.rfind(b"\n") + 1].decode(errors="replace").splitlines()

    def order(self, words: str) -> None:
        """Send a command to its standard input, unless it has ended."""
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
        """Kill it, and wait until it has ended."""
        self._process.kill()
        self._gone()

    def wait(self, deadline: float) -> bool:
        """Wait for its end, until a time of the monotonic clock; return whether it ended."""
        while self._process.poll() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK)
        self._gone()
        return True

    def _gone(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # of a command that it never read
                self._process.stdin.close()


def _environment() -> dict[str, str]:
    """This environment without WAYSTATION_ variables, which are meant for the demo command."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OPTION)}


class Processes:
    """All processes of a demonstration, including those that have ended."""

    def __init__(self, directory: DemoDirectory) -> None:
        self._directory = directory
        self._all: list[Child] = []
        self._latest: dict[str, Child] = {}

    def __getitem__(self, name: str) -> Child:
        return self._latest[name]

    def start(self, name: str, command: Iterable[str], *, takes_orders: bool = False) -> Child:
        """Start a process."""
        log = self._directory.logs / f"{name}.log"
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
                last = next(reversed(child.lines()), "no output")
                raise LocalError(
                    f"{name} ended unexpectedly: {last}", rule=_RULE, hint=f"see {child.log}"
                )

    def end(self, names: Iterable[str], *, grace: float = GRACE) -> None:
        """Ask these to stop, and kill those that do not in time."""
        asked = [self._latest[name] for name in names if name in self._latest]
        self._end(asked, grace)

    def end_all(self) -> None:
        """Stop everything that still runs, all at once."""
        self._end(self._all, GRACE)

    def note(self) -> None:
        """Write `processes.json`."""
        self._directory.write("processes.json", [child.info for child in self._all])

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
