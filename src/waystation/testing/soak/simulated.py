"""Hours in simulated time: a fleet of the lab whose leaves are killed every minute."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from waystation.testing.lab.fleet import Fleet, Plan
from waystation.testing.lab.journals import SimulatedDisk
from waystation.testing.lab.nodes import NodeLife
from waystation.testing.lab.topology import Topology
from waystation.testing.simulation import Simulation
from waystation.testing.soak.watching import Watch, of_process

TOPOLOGY: Final = Topology(
    "soak",
    {"hub-a": []},
    {f"leaf-{n}": ["hub-a"] for n in (1, 2, 3)},
    stores=["hub-a", "leaf-1", "leaf-2", "leaf-3"],
)
RATE: Final = 2.0
"""Messages of the whole fleet in a second."""

LOOKS: Final = 40


def soak_simulated(seconds: float, seed: int = 0) -> Watch:
    """Let the fleet run; what it had at each look."""
    simulation = Simulation(seed, most_events=10**9)
    plan = Plan(
        messages=round(seconds * RATE), faults_until=seconds, recovery=0.0, calm=0.0, quiet=0.0
    )
    fleet = Fleet(simulation, TOPOLOGY, plan)
    watch, chance = Watch(), random.Random(seed)  # noqa: S311 - it must repeat

    async def main(simulation: Simulation) -> None:
        del simulation
        for name in fleet.names:
            fleet.start(name)
        next_look = seconds / LOOKS
        while fleet.now() < seconds:
            await asyncio.sleep(min(60.0, next_look / 2))
            name = chance.choice(list(TOPOLOGY.leaves))
            fleet.machines[name].kill()
            await asyncio.sleep(1.0)
            fleet.start(name)
            _forget(fleet)
            if fleet.now() >= next_look:
                next_look += seconds / LOOKS
                await asyncio.sleep(5.0)
                watch.note(**_look(fleet))

    with fleet.installed():
        simulation.run(main)
    return watch


def _forget(fleet: Fleet) -> None:
    """Keep no history: it is the fleet that must not grow, and not what is noted of it."""
    for kind in ("sent", "got", "rows", "changes", "sessions", "starts"):
        getattr(fleet.history, kind).clear()
    fleet.disk.__dict__.update(SimulatedDisk().__dict__)
    for machine in fleet.machines.values():
        machine.forget_former_lives()


def _look(fleet: Fleet) -> dict[str, float]:
    """What the hub has, and this process for all of them."""
    hub = fleet.lives["hub-a"]
    assert isinstance(hub, NodeLife)
    kernel = hub.node._kernel  # noqa: SLF001 - what it remembers is told nowhere
    held = hub.node.custody
    process = fleet.machines["hub-a"].process
    assert process is not None
    return {
        **of_process(),
        "tasks": len(process.tasks),
        "sessions": len(kernel.links.sessions),
        "receivers": len(kernel.receivers),
        "entries": len(kernel.router.table.snapshot(hub.node.now())),
        "in custody": 0 if held is None else held.messages,
        "pairs": 0 if held is None else held.pairs,
    }
