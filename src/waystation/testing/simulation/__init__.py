"""Whole fleets in one process and in virtual time, repeatable from a seed."""

from waystation.testing.simulation.loop import SimulatedLoop, SimulationError
from waystation.testing.simulation.network import Network
from waystation.testing.simulation.process import Machine, Process, ProcessState
from waystation.testing.simulation.simulation import Simulation

__all__ = [
    "Machine",
    "Network",
    "Process",
    "ProcessState",
    "SimulatedLoop",
    "Simulation",
    "SimulationError",
]
