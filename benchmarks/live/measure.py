"""The work that every live subject does, and how its processes are started, heard and ended.

Here stands only what is the same for all subjects: nothing of any one messaging system.

The work. A driver sends to a sink, over one hop or over two with something in the middle; every
role is a process of its own on 127.0.0.1. A message is `size` random bytes and, beside them, an id
of 32 hexadecimal digits that is made anew for each. The sink answers the last of every so many
messages with that message's own id and payload; before that it answers a first one, the greeting,
so that the clock starts when all connections stand:

- one way: the sink answers once, to the last of `count` messages, and nothing else is acknowledged.
  The rate is `count` by the time from before the first send until that answer.
- round trip: the sink answers each message, and the driver waits for each answer before it goes on.

The processes. The parent starts roles as `python -m <module of the subject> <part as JSON>`. A role
that others depend on prints `ready <port>`, the driver prints `result <figures>`; both into a pipe.
The parent waits a limited time, notices the early end of any role, and always ends all of them.
Each also asks the kernel to be ended with the parent, should that be killed (Linux).

A pinned run binds all threads of the driver to one core and all of the sink to another, so a
system with I/O threads of its own gets no third core for them.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple, Self

import msgspec

LIMIT_S = 60
"""No single measurement takes longer; whoever gives a larger count must know that."""

WARM_UP = 100
"""Round trips before those that are timed."""

DRIVER_CORE, SINK_CORE = 0, 1
"""The cores of a pinned run; what stands in the middle goes where the kernel puts it."""

_LOOK_S = 0.1
_END_S = 3.0
_ROOT = Path(__file__).parents[2]

Kind = Literal["one way", "round trip"]


class LiveError(Exception):
    """A measurement did not come to its end; the text has the last words of the processes."""


class Measured(NamedTuple):
    """The figures of one subject: messages per second, and round trips in microseconds."""

    rate: float
    p50: float
    p99: float


class Work(msgspec.Struct, frozen=True):
    """What is to be done."""

    kind: Kind
    hops: int
    size: int
    count: int

    @property
    def answer_every(self) -> int:
        """Of how many messages the sink answers the last."""
        return self.count if self.kind == "one way" else 1


class Part(msgspec.Struct, frozen=True):
    """What a process is told: its role, the work, the port to connect to (0: none), its core.

    `style` is the subject's own word for how it plays the role, where it has several ways.
    """

    role: str
    work: Work
    style: str = ""
    port: int = 0
    core: int | None = None


# --- in the parent ---------------------------------------------------------------------------


class Process:
    """A started process and what it has said so far."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.said = ""
        self._popen = subprocess.Popen(  # noqa: S603 - programs of our own and of the lock file
            command,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def listen(self, seconds: float) -> None:
        """Wait so long for more words."""
        assert self._popen.stdout is not None
        pipe = self._popen.stdout.fileno()
        if select.select([pipe], [], [], seconds)[0]:
            self.said += os.read(pipe, 65_536).decode(errors="replace")

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def end(self) -> None:
        """End it: asked first, then not asked."""
        self._popen.terminate()
        try:
            self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(_END_S)
        assert self._popen.stdout is not None
        self._popen.stdout.close()


class Company:
    """The processes of one measurement; leaving the context ends them all, the last one first."""

    def __init__(self, module: str, work: Work, *, style: str, pinned: bool) -> None:
        self.work = work
        self._module = module
        self._style = style
        self._pinned = pinned
        self._processes: list[Process] = []
        self._ends = ExitStack()
        self._deadline = time.monotonic() + LIMIT_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def start(self, role: str, port: int = 0) -> int:
        """Start a role that connects to `port`; the port it is ready at."""
        said = self._run(role, self._command(role, port), r"^ready (\d+)\n")
        return int(said[1])

    def drive(self, port: int) -> list[float]:
        """Start the driver; the figures it gives."""
        said = self._run("driver", self._command("driver", port), r"^result ([^\n]+)\n")
        return [float(figure) for figure in said[1].split()]

    def run_program(self, name: str, command: Sequence[str], awaited: str) -> re.Match[str]:
        """Start a program that is not a role of ours; what it said that was awaited."""
        return self._run(name, [sys.executable, "-m", __name__, *command], awaited)

    def folder(self) -> Path:
        """A new folder, gone with the company."""
        return Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="live-")))

    def _run(self, name: str, command: Sequence[str], awaited: str) -> re.Match[str]:
        process = Process(name, command)
        self._ends.callback(process.end)
        self._processes.append(process)
        pattern = re.compile(awaited, re.MULTILINE | re.DOTALL)
        while not (found := pattern.search(process.said)):
            self._check()
            process.listen(_LOOK_S)
        return found

    def _command(self, role: str, port: int) -> list[str]:
        cores = {"driver": DRIVER_CORE, "sink": SINK_CORE} if self._pinned else {}
        part = Part(role, self.work, self._style, port, cores.get(role))
        return [sys.executable, "-m", self._module, msgspec.json.encode(part).decode()]

    def _check(self) -> None:
        ended = [process for process in self._processes if process.has_ended()]
        if ended and not self._still_speaking(ended):
            raise LiveError(f"the {ended[0].name} ended early{self._last_words()}")
        if time.monotonic() > self._deadline:
            raise LiveError(f"not done within {LIMIT_S} s{self._last_words()}")

    @staticmethod
    def _still_speaking(ended: Sequence[Process]) -> bool:
        """Whether one that ended has left words in its pipe: a driver ends after its result."""
        before = [process.said for process in ended]
        for process in ended:
            process.listen(0)
        return before != [process.said for process in ended]

    def _last_words(self) -> str:
        for process in self._processes:
            process.listen(0)
        words = (
            f"\n--- {each.name}\n{each.said[-2_000:]}" for each in self._processes if each.said
        )
        return "".join(words)


class Subject(NamedTuple):
    """A messaging system under measurement.

    `module` holds its roles; `stage` starts all of them but the driver, and returns the port that
    the driver connects to.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    stage: Callable[[Company], int]
    style: str = ""

    def one_way(self, hops: int, size: int, count: int, *, pinned: bool = False) -> float:
        """Messages per second, without an acknowledgement for each."""
        (rate,) = self._figures(Work("one way", hops, size, count), pinned=pinned)
        return rate

    def round_trip(
        self, hops: int, size: int, count: int, *, pinned: bool = False
    ) -> tuple[float, float]:
        """The median and the 99th percentile in microseconds, one request at a time."""
        p50, p99 = self._figures(Work("round trip", hops, size, count), pinned=pinned)
        return p50, p99

    def measure(
        self, hops: int, size: int, *, messages: int, requests: int, pinned: bool = False
    ) -> Measured:
        """Both kinds of work, one after the other."""
        rate = self.one_way(hops, size, messages, pinned=pinned)
        return Measured(rate, *self.round_trip(hops, size, requests, pinned=pinned))

    def versions(self) -> dict[str, str]:
        """The versions of what is measured."""
        return {package: metadata.version(package) for package in self.packages}

    def _figures(self, work: Work, *, pinned: bool) -> list[float]:
        check_work(work)
        with Company(self.module, work, style=self.style, pinned=pinned) as company:
            return company.drive(self.stage(company))


def check_work(work: Work) -> None:
    """Refuse what no subject can do."""
    if work.hops not in {1, 2}:
        raise LiveError(f"{work.hops} hops: give 1 or 2")
    if work.size < 0 or work.count < 1:
        raise LiveError(f"{work.count} messages of {work.size} bytes: give at least 1 of 0")


# --- in the roles ----------------------------------------------------------------------------


def play(role: Callable[[Part], None]) -> None:
    """Be the role that the command line names."""
    end_with_parent()
    part = msgspec.json.decode(sys.argv[1], type=Part)
    if part.core is not None:
        os.sched_setaffinity(0, {part.core})
    role(part)


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends; stays so through exec."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))


def say_ready(port: int) -> None:
    """Tell the parent that this role can be connected to, or is connected (then 0)."""
    print(f"ready {port}", flush=True)


def say_rate(count: int, seconds: float) -> None:
    """Tell the parent the result of one-way work."""
    print(f"result {count / seconds}", flush=True)


def say_trips(nanoseconds: Sequence[int]) -> None:
    """Tell the parent the result of round trips."""
    ordered = sorted(nanoseconds)
    p50, p99 = (ordered[int((len(ordered) - 1) * share)] / 1_000 for share in (0.5, 0.99))
    print(f"result {p50} {p99}", flush=True)


def payload_of(size: int) -> bytes:
    """The bytes that all messages of a run share; random, so that nobody compresses them."""
    return random.Random(size).randbytes(size)


def id_of(number: int) -> str:
    """The id of a message; each is made when it is sent, as in a program that traces."""
    return f"{number:032x}"


def check_answer(answered: tuple[str, bytes], expected: tuple[str, bytes]) -> None:
    """The sink answers with the last message: the right one, and whole."""
    if answered != expected:
        got, wanted = (f"{id} with {len(payload)} B" for id, payload in (answered, expected))
        raise LiveError(f"the answer was to {got}, not to {wanted}")


if __name__ == "__main__":  # a program that is not ours: see Company.run_program
    end_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is wanted
