"""A fleet in the simulation: a machine for everybody, and the programs that run on them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from unittest.mock import patch

from msgspec import Struct

from waystation.core.record import Record
from waystation.errors import WaystationError
from waystation.node import StoreSettings, custody
from waystation.testing.lab.around import Around
from waystation.testing.lab.disks import Disks
from waystation.testing.lab.guarding import IntruderLife
from waystation.testing.lab.history import History, Sent, Start
from waystation.testing.lab.journals import SimulatedDisk, SimulatedJournal
from waystation.testing.lab.life import Life
from waystation.testing.lab.members import BrokerLife, MemberLife, RouterLife
from waystation.testing.lab.nodes import HUB_TOPICS, NodeLife
from waystation.testing.lab.stores import SimulatedStore, StoreDisk
from waystation.testing.lab.topology import Topology
from waystation.testing.simulation import Machine, Simulation
from waystation.testing.simulation.process import Process

CANARY: Final = b"sealed leaf-"
"""What a sealed message begins with before it is sealed, and nothing else does."""

SMALL: Final = (10, 100, 1_000)
LARGE: Final = (20_000, 60_000, 100_000)


class Plan(Struct, frozen=True, kw_only=True):
    """How much is sent, and when; times are virtual seconds."""

    messages: int = 2_000
    warm_up: float = 5.0
    faults_until: float = 60.0
    recovery: float = 75.0  # more than the 60 s for which a parent's answer is remembered
    calm: float = 15.0
    quiet: float = 30.0


class Fleet(Around):
    """Everybody in a topology, each on its machine."""

    def __init__(self, simulation: Simulation, topology: Topology, plan: Plan) -> None:
        self.simulation = simulation
        self.plan = plan
        self.disk = SimulatedDisk()
        self.disks = Disks(simulation, simulation.seed, topology.on_disk)
        chance = random.Random(f"stores {simulation.seed}")  # noqa: S311 - it must repeat
        self.stores = {name: StoreDisk(chance) for name in topology.stores}
        self.history = History(simulation.seed, topology)
        self.names = topology.names
        self.sizes = LARGE if topology.budget else SMALL
        self.machines: dict[str, Machine] = {
            name: simulation.network.machine(name) for name in self.names
        }
        self.lives: dict[str, Life] = {}
        self.slow: dict[str, float] = {}  # seconds that a receiver takes for each message
        active = plan.faults_until + plan.recovery + plan.calm
        silent = len(topology.routers) + len(topology.brokers)
        self.rate = plan.messages / active / (len(self.names) - silent)
        self.history.calm_from = plan.faults_until + plan.recovery
        self.history.quiet_from = active
        self._by_address = {machine.address: name for name, machine in self.machines.items()}
        if topology.guards:
            simulation.network.tap = self._listen_in

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the nodes of this process have the stores and the disks of this fleet."""
        with patch.object(custody, "Store", self._open_store), self.disks.mounted():
            yield

    def now(self) -> float:
        """The virtual time."""
        return self.simulation.loop.time()

    def start(self, name: str) -> None:
        """Begin a life of somebody."""
        number = self.history.lives[name] = self.history.lives.get(name, 0) + 1
        self.history.starts.append(Start(self.now(), name, number))
        life = self.lives[name] = self._kind_of(name)(self, name, number)
        self.machines[name].run(life.run)

    def _kind_of(self, name: str) -> type[Life]:
        topology = self.history.topology
        kinds: dict[type[Life], list[str]] = {
            RouterLife: topology.routers,
            MemberLife: topology.members,
            BrokerLife: topology.brokers,
            IntruderLife: topology.intruders,
        }
        return next((kind for kind, names in kinds.items() if name in names), NodeLife)

    async def look(self) -> None:
        """Note what everybody knows at the end."""
        history = self.history
        for name, life in self.lives.items():
            if isinstance(life, NodeLife):
                history.tables.append(life.table())
                history.undone[name] = life.undone()
                history.waiting[name] = life.waiting()
                if history.topology.lists:
                    with contextlib.suppress(WaystationError):
                        history.found[name] = await life.providers()
            elif isinstance(life, MemberLife):
                history.views[name] = await life.view()

    def node_at(self, place: str) -> str | None:
        """The node on whose machine a place is: `tcp#10.77.0.3:4000`, or `tcp#hub-a:4000`."""
        where = place.rpartition("#")[2]
        if where.startswith(HUB_TOPICS):
            return where.removeprefix(HUB_TOPICS)
        host = where.rpartition(":")[0]
        return host if host in self.machines else self._by_address.get(host)

    def host_of(self, name: str) -> str:
        """Its own name: that is how the simulated network calls its machine."""
        return name

    def store_of(self, name: str) -> StoreSettings:
        """A store that is named after the node."""
        return StoreSettings(directory=name)

    def journals_of(self, name: str) -> list[Callable[[Record], None]]:
        """A journal in memory, and for some another one on a disk with faults."""
        notes: list[Callable[[Record], None]] = [SimulatedJournal(self.disk, name).note]
        if name in self.history.topology.on_disk:
            notes.insert(0, self.disks.journal_of(name).note)
        return notes

    def give_up(self, why: str) -> None:
        """End the simulation."""
        self.simulation.give_up(why)

    def told(self, sent: Sent) -> None:
        """Do nothing: the history has the same object."""

    def _open_store(self, settings: StoreSettings) -> SimulatedStore:
        return SimulatedStore(settings, self.stores[Path(settings.directory).name])

    def _listen_in(self, source: Process, target: Process, data: bytes) -> None:
        """Look for what only the two ends of a secure channel may read (ID-4)."""
        if CANARY in data:
            names = f"{source.machine.name} to {target.machine.name}"
            self.history.leaks.append(f"a sealed message can be read from {names}")
