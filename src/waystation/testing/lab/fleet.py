"""A fleet in the simulation: a machine for everybody, and the programs that run on them."""

from __future__ import annotations

from msgspec import Struct

from waystation.testing.lab.history import History
from waystation.testing.lab.journals import SimulatedDisk
from waystation.testing.lab.life import Life
from waystation.testing.lab.members import MemberLife, RouterLife
from waystation.testing.lab.nodes import NodeLife
from waystation.testing.lab.topology import Topology
from waystation.testing.simulation import Machine, Simulation


class Plan(Struct, frozen=True, kw_only=True):
    """How much is sent, and when; times are virtual seconds."""

    messages: int = 2_000
    warm_up: float = 5.0
    faults_until: float = 60.0
    recovery: float = 75.0  # more than the 60 s for which a parent's answer is remembered
    calm: float = 15.0
    quiet: float = 30.0


class Fleet:
    """Everybody in a topology, each on its machine."""

    def __init__(self, simulation: Simulation, topology: Topology, plan: Plan) -> None:
        self.simulation = simulation
        self.plan = plan
        self.disk = SimulatedDisk()
        self.history = History(simulation.seed, topology)
        self.names = topology.names
        self.machines: dict[str, Machine] = {
            name: simulation.network.machine(name) for name in self.names
        }
        self.lives: dict[str, Life] = {}
        self.slow: dict[str, float] = {}  # seconds that a receiver takes for each message
        active = plan.faults_until + plan.recovery + plan.calm
        self.rate = plan.messages / active / (len(self.names) - len(topology.routers))
        self.history.calm_from = plan.faults_until + plan.recovery
        self.history.quiet_from = active
        self._by_address = {machine.address: name for name, machine in self.machines.items()}

    def now(self) -> float:
        """The virtual time."""
        return self.simulation.loop.time()

    def start(self, name: str) -> None:
        """Begin a life of somebody."""
        number = self.history.lives[name] = self.history.lives.get(name, 0) + 1
        topology = self.history.topology
        if name in topology.routers:
            life: Life = RouterLife(self, name, number)
        elif name in topology.members:
            life = MemberLife(self, name, number)
        else:
            life = NodeLife(self, name, number)
        self.lives[name] = life
        self.machines[name].run(life.run)

    async def look(self) -> None:
        """Note what everybody knows at the end."""
        for name, life in self.lives.items():
            if isinstance(life, NodeLife):
                self.history.tables.append(life.table())
            elif isinstance(life, MemberLife):
                self.history.views[name] = await life.view()

    def node_at(self, place: str) -> str | None:
        """The node on whose machine a place is: `tcp#10.77.0.3:4000`, or `tcp#hub-a:4000`."""
        host = place.rpartition("#")[2].rpartition(":")[0]
        return host if host in self.machines else self._by_address.get(host)
