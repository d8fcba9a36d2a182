"""A run of the live lab: processes in namespaces, faults, and the history that is left of it."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from waystation.testing.lab.history import (
    Change,
    Fault,
    Got,
    History,
    Row,
    Sent,
    SessionEvent,
    Start,
    Table,
)
from waystation.testing.lab.topology import Topology
from waystation.testing.live.child import LivePlan
from waystation.testing.live.namespaces import Network, SmallDisk

TOPOLOGY: Final = Topology(
    "live",
    {"hub-a": [], "hub-b": ["hub-a"]},
    {"leaf-1": ["hub-a"], "leaf-2": ["hub-b"], "leaf-3": ["hub-b"]},
    stores=["hub-a", "leaf-1", "leaf-2", "leaf-3"],
)

WARM_UP: Final = 5.0
RECOVERY: Final = 75.0
CALM: Final = 10.0
QUIET: Final = 20.0
RATE: Final = 4.0
"""Messages that each node sends in a second."""

PATIENCE: Final = 600.0
"""Seconds that processes have to start."""

DISK: Final = 64
"""Megabytes of each disk."""


class Processes:
    """The nodes, each in its namespace."""

    def __init__(self, directory: Path, network: Network, seed: int) -> None:
        self._directory = directory
        self._network = network
        self._seed = seed
        self.began = time.monotonic()
        self.lives: dict[str, int] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def now(self) -> float:
        """Seconds since the lab began."""
        return time.monotonic() - self.began

    def start(self, name: str) -> None:
        """Begin a life of a node."""
        self.lives[name] = self.lives.get(name, 0) + 1
        own = self._directory / name
        plan = LivePlan(
            TOPOLOGY,
            name,
            self.lives[name],
            self._seed,
            str(own),
            str(self._directory / "journal"),
            self._network.addresses,
            self.began,
            RATE,
        )
        path = self._directory / f"{name}.json"
        path.write_bytes(msgspec.json.encode(plan))
        words = (sys.executable, "-m", "waystation.testing.live.child", str(path))
        with (self._directory / f"{name}.err").open("ab") as errors:
            self._running[name] = subprocess.Popen(  # noqa: S603 - our own
                self._network.command(name, *words), stderr=errors
            )

    def wait_until_started(self) -> None:
        """Wait until the latest life of each has begun: it takes long to start where much runs."""
        deadline = time.monotonic() + PATIENCE
        for name, life in self.lives.items():
            lines = self._directory / name / "lines"
            word = f'"{name}",{life}]'.encode()
            while not (lines.exists() and word in lines.read_bytes()):
                if time.monotonic() > deadline:
                    log = (self._directory / f"{name}.err").read_text()
                    raise TimeoutError(f"{name} does not start: {log[-2000:]}")
                time.sleep(0.2)

    def tell_all(self, number: signal.Signals) -> None:
        """Send all of them a signal."""
        for name in self._running:
            self.send(name, number)

    def kill(self, name: str) -> None:
        """End it at once."""
        process = self._running[name]
        process.kill()
        process.wait()

    def send(self, name: str, number: signal.Signals) -> None:
        """Send it a signal."""
        self._running[name].send_signal(number)

    def end(self) -> None:
        """Let all say what they know, and end."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


class Faults:
    """Breaks one thing after the other, and mends it."""

    def __init__(
        self, processes: Processes, network: Network, disks: dict[str, SmallDisk], seed: int
    ) -> None:
        self.done: list[Fault] = []
        self._processes = processes
        self._network = network
        self._disks = disks
        self._chance = random.Random(f"live {seed}")  # noqa: S311 - it should repeat
        self._names = list(TOPOLOGY.parents)

    def go_on_until(self, end: float) -> None:
        """Break things until then; half of the time somebody is killed."""
        kinds, weights = list(_KINDS), [12, 2, 2, 2, 2, 1, 1]
        while self._processes.now() < end:
            kind = self._chance.choices(kinds, weights)[0]
            at = self._processes.now()
            nodes = _KINDS[kind](self, self._chance)
            self.done.append(Fault(kind, at, self._processes.now(), nodes, len(self.done)))
            time.sleep(self._chance.uniform(0.1, 2.0))

    def kill(self, chance: random.Random) -> tuple[str, ...]:
        """`kill -9`, and start again; nobody is killed before it has begun."""
        name = chance.choice(self._names)
        self._processes.wait_until_started()
        self._processes.kill(name)
        time.sleep(chance.uniform(0.0, 1.0))
        self._processes.start(name)
        return (name,)

    def stop(self, chance: random.Random) -> tuple[str, ...]:
        """Stop a process for a while."""
        name = chance.choice(self._names)
        self._processes.send(name, signal.SIGSTOP)
        time.sleep(chance.uniform(0.5, 10.0))
        self._processes.send(name, signal.SIGCONT)
        return (name,)

    def partition(self, chance: random.Random) -> tuple[str, ...]:
        """Cut a node off from all others."""
        return self._cut(chance, ("in", "out"))

    def one_way(self, chance: random.Random) -> tuple[str, ...]:
        """Let a node hear nobody."""
        return self._cut(chance, ("in",))

    def _cut(self, chance: random.Random, ways: tuple[str, ...]) -> tuple[str, ...]:
        name = chance.choice(self._names)
        others = [other for other in self._names if other != name]
        self._network.cut(name, others, ways=ways)
        time.sleep(chance.uniform(0.5, 8.0))
        self._network.mend(name, others, ways=ways)
        return (name,)

    def lose(self, chance: random.Random) -> tuple[str, ...]:
        """Lose some of the packets that arrive at a node."""
        name = chance.choice(self._names)
        self._network.lose(name, chance.choice((1, 10, 30)))
        time.sleep(chance.uniform(1.0, 8.0))
        self._network.lose(name, 0)
        return (name,)

    def move(self, chance: random.Random) -> tuple[str, ...]:
        """Give a leaf another address: its connections are gone, and nobody tells it."""
        name = chance.choice(list(TOPOLOGY.leaves))
        self._network.move(name)
        return (name,)

    def fill(self, chance: random.Random) -> tuple[str, ...]:
        """Fill the disk of a node."""
        name = chance.choice(TOPOLOGY.stores)
        self._disks[name].fill()
        time.sleep(chance.uniform(0.5, 5.0))
        self._disks[name].clear()
        return (name,)


_KINDS: Final[Mapping[str, Callable[[Faults, random.Random], tuple[str, ...]]]] = {
    "kill": Faults.kill,
    "stop": Faults.stop,
    "partition": Faults.partition,
    "one way": Faults.one_way,
    "lose": Faults.lose,
    "move": Faults.move,
    "fill disk": Faults.fill,
}


def run_live(directory: Path, seed: int, seconds: float) -> History:
    """Break a live fleet for so long, let it recover, and read what it wrote down."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(list(TOPOLOGY.parents)))
        disks: dict[str, SmallDisk] = {}
        for name in TOPOLOGY.parents:
            disks[name] = SmallDisk(directory / name, DISK)
            stack.callback(disks[name].unmount)
        processes = Processes(directory, network, seed)
        stack.callback(processes.end)
        for name in TOPOLOGY.parents:
            processes.start(name)
        processes.wait_until_started()
        time.sleep(WARM_UP)
        faults = Faults(processes, network, disks, seed)
        faults.go_on_until(processes.now() + seconds)
        processes.wait_until_started()
        time.sleep(RECOVERY)
        calm_from = processes.now()
        time.sleep(CALM)
        processes.tell_all(signal.SIGUSR1)
        quiet_from = processes.now()
        time.sleep(QUIET)
        processes.end()
        history = read_lines(directory, seed)
        history.ended = processes.now()
    history.faults = faults.done
    history.calm_from, history.quiet_from = calm_from, quiet_from
    history.lives = processes.lives
    return history


_LISTS: Final[Mapping[str, Any]] = {
    "got": Got,
    "rows": Row,
    "changes": Change,
    "sessions": SessionEvent,
}


def read_lines(directory: Path, seed: int) -> History:
    """The history that the processes wrote down, in the order of time."""
    history = History(seed, TOPOLOGY)
    sent: dict[str, Sent] = {}
    for name in TOPOLOGY.parents:
        for line in (directory / name / "lines").read_bytes().splitlines():
            _take_line(history, sent, name, line)
    history.sent = sorted(sent.values(), key=lambda one: one.at)
    for kind in _LISTS:
        getattr(history, kind).sort(key=lambda one: one.at)
    return history


def _take_line(history: History, sent: dict[str, Sent], name: str, line: bytes) -> None:
    try:
        kind, fact = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return  # the last words of a process that was killed
    if kind in _LISTS:
        getattr(history, kind).append(msgspec.convert(fact, _LISTS[kind]))
    elif kind in {"sent", "told"}:
        one = msgspec.convert(fact, Sent)
        sent[one.uid] = one
    elif kind == "started":
        history.starts.append(Start(*fact))
    elif kind == "subscribed":
        history.subscribed[name] = fact
    elif kind == "table":
        history.tables.append(msgspec.convert(fact, Table))
    elif kind == "undone":
        history.undone[name] = fact
    elif kind == "problem":
        history.problem = fact
