"""One node of the live lab: the same program as in the simulation, in a process of its own.

What happens is appended to a file, a line for each: a line that was written survives the process.
That file is on none of the disks that are filled.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from waystation.core.record import Record
from waystation.journal import Journal
from waystation.node import StoreSettings
from waystation.testing.lab.around import Around
from waystation.testing.lab.history import History, Sent
from waystation.testing.lab.nodes import HUB_TOPICS, NodeLife
from waystation.testing.lab.topology import Topology

_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG
_NETWORK: Final = 0x40000000  # CLONE_NEWNET


class LivePlan(Struct):
    """What a process of the live lab is."""

    topology: Topology
    name: str
    life: int
    seed: int
    space: str  # the network namespace that it lives in
    directory: str  # on its own disk: its store
    beside: str  # the path of what is written beside that: with .lines, .log, .error and .started
    journal: str
    addresses: dict[str, str]
    began: float  # by CLOCK_MONOTONIC
    rate: float


class Lines:
    """A file of facts, each with the name of the list in the history that it belongs to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, kind: str, fact: object) -> None:
        """Write a fact."""
        os.write(self._file, msgspec.json.encode([kind, fact]) + b"\n")


class LineList(list[Any]):
    """A list of the history that is written down instead of kept."""

    def __init__(self, lines: Lines, kind: str) -> None:
        super().__init__()
        self._lines = lines
        self._kind = kind

    def append(self, fact: object) -> None:
        """Write a fact."""
        self._lines.add(self._kind, fact)


class LiveFleet(Around):
    """The fleet around one process."""

    sizes = (10, 100, 1_000)

    def __init__(self, plan: LivePlan) -> None:
        self._plan = plan
        self.rate = plan.rate
        self.slow: dict[str, float] = {}
        self.lines = Lines(Path(f"{plan.beside}.lines"))
        self.history = History(plan.seed, plan.topology, quiet_from=math.inf)
        for kind in ("sent", "got", "rows", "changes", "sessions"):
            setattr(self.history, kind, LineList(self.lines, kind))
        Path(f"{plan.beside}.started").write_text(str(plan.life))
        self.journal = Journal(plan.journal, plan.name, flush_seconds=0.5)
        self._by_address = {address: name for name, address in plan.addresses.items()}

    def now(self) -> float:
        """Seconds since the lab began, the same for all."""
        return time.monotonic() - self._plan.began

    def node_at(self, place: str) -> str | None:
        """The node that has an address, or a topic at the broker."""
        where = place.rpartition("#")[2]
        if where.startswith(HUB_TOPICS):
            return where.removeprefix(HUB_TOPICS)
        return self._by_address.get(where.rpartition(":")[0])

    def host_of(self, name: str) -> str:
        """The address of a node, which only leaves change."""
        return self._plan.addresses[name]

    def store_of(self, name: str) -> StoreSettings:
        """A directory on the disk of that node."""
        del name
        return StoreSettings(directory=Path(self._plan.directory) / "store")

    def journals_of(self, name: str) -> list[Callable[[Record], None]]:
        """The real journal."""
        del name
        return [self.journal.note]

    def give_up(self, why: str) -> None:
        """Say so, and end."""
        self.lines.add("problem", why)
        os.kill(os.getpid(), signal.SIGKILL)

    def be_quiet(self) -> None:
        """Send nothing from now on."""
        self.history.quiet_from = self.now()

    def told(self, sent: Sent) -> None:
        """Write down what became of it."""
        self.lines.add("told", sent)


async def main(plan: LivePlan) -> None:
    """Run until killed, or told to end: then say what the node knows."""
    fleet = LiveFleet(plan)
    fleet.lines.add("started", [fleet.now(), plan.name, plan.life])
    life = NodeLife(fleet, plan.name, plan.life)
    ends = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, fleet.be_quiet)
    running = asyncio.get_running_loop().create_task(life.run())
    waiting = asyncio.get_running_loop().create_task(ends.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    fleet.lines.add("subscribed", fleet.history.subscribed[plan.name])
    fleet.lines.add("table", life.table())
    fleet.lines.add("undone", life.undone())
    fleet.lines.add("waiting", life.waiting())
    fleet.journal.close()
    os._exit(0)  # as it is: a node that closes has more to say


def run(plan: LivePlan) -> None:
    """Be a node of the live lab."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_DIE_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
    os.dup2(os.open(f"{plan.beside}.error", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    space = os.open(f"/run/netns/{plan.space}", os.O_RDONLY)
    if libc.setns(space, _NETWORK):
        raise OSError(ctypes.get_errno(), f"cannot enter the namespace {plan.space}")
    logging.basicConfig(filename=f"{plan.beside}.log", level=logging.WARNING)
    asyncio.run(main(plan))
