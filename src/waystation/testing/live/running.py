"""A run of the live lab: processes in namespaces, faults, and the history that is left of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final, TypeAlias

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
from waystation.testing.live import child
from waystation.testing.live.broker import Mosquitto
from waystation.testing.live.child import LivePlan
from waystation.testing.live.namespaces import Network, SmallDisk

BROKER: Final = "broker"
TOPOLOGY: Final = Topology(
    "live",
    {"hub-a": [], "hub-b": ["hub-a"]},
    {"leaf-1": ["hub-a"], "leaf-2": ["hub-b"], "leaf-3": ["hub-b"]},
    stores=["hub-a", "leaf-1", "leaf-2", "leaf-3"],
    brokers=[BROKER],
    over_mqtt=["hub-b"],
)
BEHIND_ROUTERS: Final = ("leaf-3",)

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

SUPERVISED: Final = ("cannot open the store", "ConnectionError: the broker at")
"""What a process says that ends when it starts, since its disk is full or the broker is away.

It is started again, as a service manager would do.
"""

_FORKS: Final = multiprocessing.get_context("forkserver")


class Processes:
    """The nodes, each in its namespace."""

    def __init__(self, directory: Path, network: Network, seed: int) -> None:
        self._directory = directory
        self._network = network
        self._seed = seed
        self.began = time.monotonic()
        self.lives: dict[str, int] = {}
        self._running: dict[str, ForkServerProcess] = {}
        _FORKS.set_forkserver_preload([child.__name__])  # so they start without importing anything

    def now(self) -> float:
        """Seconds since the lab began."""
        return time.monotonic() - self.began

    def start(self, name: str) -> None:
        """Begin a life of a node."""
        self.lives[name] = self.lives.get(name, 0) + 1
        plan = LivePlan(
            TOPOLOGY,
            name,
            self.lives[name],
            self._seed,
            self._network.space(name),
            str(self._directory / name),
            str(self._beside(name)),
            str(self._directory / "journal"),
            dict(self._network.addresses),
            self.began,
            RATE,
        )
        Path(f"{self._beside(name)}.error").unlink(missing_ok=True)
        process = self._running[name] = _FORKS.Process(target=child.run, args=(plan,), daemon=True)
        process.start()

    def _beside(self, name: str) -> Path:
        return self._directory / f"{name}-told"

    def wait_until_started(self) -> None:
        """Wait until the latest life of each has begun; what could not start is tried again."""
        deadline = time.monotonic() + PATIENCE
        for name in self.lives:
            while not self._has_begun(name) and self._running[name].is_alive():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{name} does not start: {self._error(name)}")
                time.sleep(0.02)
            self._revive(name)

    def _has_begun(self, name: str) -> bool:
        started = Path(f"{self._beside(name)}.started")
        return started.exists() and started.read_text() == str(self.lives[name])

    def _revive(self, name: str) -> None:
        """Start a process again that ended by itself, if it may."""
        if self._running[name].is_alive():
            return
        error = self._error(name)
        if not any(reason in error for reason in SUPERVISED):
            raise RuntimeError(f"{name} has ended by itself: {error}")
        self.start(name)

    def _error(self, name: str) -> str:
        path = Path(f"{self._beside(name)}.error")
        return path.read_text()[-2000:] if path.exists() else ""

    def tell_all(self, number: signal.Signals) -> None:
        """Send all of them a signal."""
        for name in self._running:
            self.send(name, number)

    def kill(self, name: str) -> None:
        """End it at once."""
        process = self._running[name]
        process.kill()
        process.join()

    def send(self, name: str, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        process = self._running[name]
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, number)

    def end(self) -> None:
        """Let all say what they know, and end."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.join(60)
            process.kill()
            process.join()


class Faults:
    """Breaks one thing after the other, and mends it."""

    def __init__(
        self,
        processes: Processes,
        network: Network,
        disks: dict[str, SmallDisk],
        broker: Mosquitto,
        seed: int,
    ) -> None:
        self.done: list[Fault] = []
        self._processes = processes
        self._network = network
        self._disks = disks
        self._broker = broker
        self._chance = random.Random(f"live {seed}")  # noqa: S311 - it should repeat
        self._names = list(TOPOLOGY.parents)

    def go_on_until(self, end: float, kills: int) -> None:
        """Break things until then, and until so many were killed; mostly somebody is."""
        kinds, weights = list(_KINDS), [each[1] for each in _KINDS.values()]
        while self._processes.now() < end or self.kills < kills:
            kind = self._chance.choices(kinds, weights)[0]
            self._processes.wait_until_started()
            at = self._processes.now()
            nodes = _KINDS[kind][0](self, self._chance)
            self.done.append(Fault(kind, at, self._processes.now(), nodes, len(self.done)))
            time.sleep(self._chance.uniform(0.1, 2.0))

    @property
    def kills(self) -> int:
        """How many nodes were killed."""
        return sum(fault.kind == "kill" for fault in self.done)

    def kill(self, chance: random.Random) -> tuple[str, ...]:
        """`kill -9`, and start again; nobody is killed before it has begun."""
        name = chance.choice(self._names)
        self._processes.kill(name)
        time.sleep(chance.uniform(0.0, 1.0))
        self._processes.start(name)
        return (name,)

    def kill_broker(self, chance: random.Random) -> tuple[str, ...]:
        """Kill the broker, and start it again: all sessions and all that it kept are gone."""
        self._broker.kill()
        time.sleep(chance.uniform(0.0, 5.0))
        self._broker.start()
        return (BROKER,)

    def stop(self, chance: random.Random) -> tuple[str, ...]:
        """Stop a process for a while."""
        name = chance.choice([*self._names, BROKER])
        tell = self._broker.send if name == BROKER else partial(self._processes.send, name)
        tell(signal.SIGSTOP)
        time.sleep(chance.uniform(0.5, 10.0))
        tell(signal.SIGCONT)
        return (name,)

    def partition(self, chance: random.Random) -> tuple[str, ...]:
        """Cut a node off from all others."""
        return self._cut(chance, ("in", "out"))

    def one_way(self, chance: random.Random) -> tuple[str, ...]:
        """Let a node hear nobody."""
        return self._cut(chance, ("in",))

    def _cut(self, chance: random.Random, ways: tuple[str, ...]) -> tuple[str, ...]:
        name = chance.choice(self._names)
        others = [other for other in (*self._names, BROKER) if other != name]
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
        leaves = [leaf for leaf in TOPOLOGY.leaves if leaf not in BEHIND_ROUTERS]
        return self._move(chance.choice(leaves))

    def translate_anew(self, chance: random.Random) -> tuple[str, ...]:
        """Let the router of a leaf have another address, and forget what it has translated."""
        return self._move(chance.choice(BEHIND_ROUTERS))

    def _move(self, name: str) -> tuple[str, ...]:
        self._network.move(name)
        return (name,)

    def fill(self, chance: random.Random) -> tuple[str, ...]:
        """Fill the disk of a node."""
        name = chance.choice(TOPOLOGY.stores)
        self._disks[name].fill()
        time.sleep(chance.uniform(0.5, 5.0))
        self._disks[name].clear()
        return (name,)


_Kind: TypeAlias = Callable[[Faults, random.Random], tuple[str, ...]]

_KINDS: Final[Mapping[str, tuple[_Kind, int]]] = {
    "kill": (Faults.kill, 40),
    "kill broker": (Faults.kill_broker, 2),
    "stop": (Faults.stop, 2),
    "partition": (Faults.partition, 2),
    "one way": (Faults.one_way, 2),
    "lose": (Faults.lose, 2),
    "move": (Faults.move, 2),
    "translate anew": (Faults.translate_anew, 2),
    "fill disk": (Faults.fill, 1),
}
"""What can be broken, and how often one is chosen."""


def run_live(
    directory: Path, mosquitto: Path, seed: int, seconds: float, kills: int = 0
) -> History:
    """Break a live fleet for so long, let it recover, and read what it wrote down."""
    with contextlib.ExitStack() as stack:
        names = [*TOPOLOGY.parents, BROKER]
        network = stack.enter_context(Network(names, BEHIND_ROUTERS))
        broker = Mosquitto(BROKER, mosquitto, network, directory)
        stack.callback(broker.kill)
        broker.start()
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
        faults = Faults(processes, network, disks, broker, seed)
        faults.go_on_until(processes.now() + seconds, kills)
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
        for line in (directory / f"{name}-told.lines").read_bytes().splitlines():
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
    elif kind in {"undone", "waiting"}:
        getattr(history, kind)[name] = fact
    elif kind == "problem":
        history.problem = fact
