"""Machines and the processes that run on them: started, stopped, killed, switched off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from waystation.core.clock import SteadyClock, use_clock
from waystation.testing.simulation.loop import CURRENT, SimulationError

if TYPE_CHECKING:
    from waystation.testing.simulation.network import Network
    from waystation.testing.simulation.streams import SimulatedServer, SimulatedTransport

EPOCH: Final = 1_700_000_000 * 10**9
"""What every wall clock says when a simulation begins, in nanoseconds."""


class ProcessState(Enum):
    """The life of a process."""

    RUNNING = "it runs"
    STOPPED = "it is stopped (SIGSTOP); its system still takes what arrives"
    DEAD = "it was killed, or its machine was switched off"


class Process:
    """One life of a program on a machine."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.number = number
        self.state = ProcessState.RUNNING
        self.transports: dict[SimulatedTransport, None] = {}
        self.servers: dict[SimulatedServer, None] = {}
        self.sockets: dict[Any, None] = {}
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)
        self.context.run(use_clock, SteadyClock(machine.read_clock, machine.read_boottime))
        self._held: list[asyncio.Handle] = []

    def __repr__(self) -> str:
        return f"<{self.machine.name}/{self.number} {self.state.name}>"

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether a callback of this process may run; if it is stopped, the callback waits."""
        if self.state is ProcessState.RUNNING:
            return True
        if self.state is ProcessState.STOPPED:
            self._held.append(handle)
        return False

    def go_on(self) -> list[asyncio.Handle]:
        """Run again; returns what has waited meanwhile."""
        self.state = ProcessState.RUNNING
        held, self._held = self._held, []
        return held

    def die(self) -> None:
        """Do nothing any more."""
        self.state = ProcessState.DEAD
        self._held.clear()


class Machine:
    """A machine with an address and a clock of its own; one program runs on it at a time."""

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.is_on = True
        self.process: Process | None = None
        self._network = network
        self._set_at, self._set_to = 0.0, EPOCH  # when the clock was last set, and to what
        self._drift = 0.0
        self._lives: list[Process] = []
        self._started = 0

    def __repr__(self) -> str:
        return f"<machine {self.name}>"

    # Its clock

    def read_clock(self) -> int:
        """The wall clock, in nanoseconds since the epoch."""
        passed = self._network.loop.time() - self._set_at
        return self._set_to + round(passed * (1 + self._drift) * 1e9)

    def read_boottime(self) -> int:
        """The time since the machine was started, in nanoseconds: nobody can set that."""
        return round(self._network.loop.time() * 1e9)

    def set_clock(self, *, ahead: float) -> None:
        """Let the clock jump; it may also go back."""
        self._set_to = self.read_clock() + round(ahead * 1e9)
        self._set_at = self._network.loop.time()

    def set_drift(self, drift: float) -> None:
        """Let the clock run faster from now on: 0.001 gains a millisecond in a second."""
        self.set_clock(ahead=0.0)
        self._drift = drift

    # What runs on it

    def run(self, program: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Start a program, in a new process; switches the machine on if it is off."""
        if self.process is not None and self.process.state is not ProcessState.DEAD:
            raise SimulationError(f"{self.name} runs a program already: kill it first")
        self.is_on = True
        self._started += 1
        self.process = Process(self, self._started)
        self._lives.append(self.process)
        task: asyncio.Task[Any] = self._network.loop.create_task(
            program(), context=self.process.context.copy()
        )
        return task

    def stop(self) -> None:
        """Stop the process for a while, as SIGSTOP does."""
        self._living().state = ProcessState.STOPPED

    def go_on(self) -> None:
        """Let a stopped process go on, as SIGCONT does."""
        self._network.loop.resume(self._living().go_on())

    def kill(self) -> None:
        """End the process at once, as `kill -9` does; its system closes its connections."""
        process = self._living()
        process.die()
        self._network.close_all_of(process)

    def switch_off(self) -> None:
        """Switch the machine off: nobody is told, and nothing that arrives is answered."""
        self._living().die()
        self.is_on = False
        self._network.forget_all_of(self._living())

    def forget_former_lives(self) -> None:
        """Let go of what processes that are over have left, in a simulation of many."""
        for process in self._lives[:-1]:
            for task in process.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            process.tasks.clear()
        del self._lives[:-1]

    @property
    def lives(self) -> list[Process]:
        """The processes that have run on it."""
        return self._lives

    def _living(self) -> Process:
        if self.process is None:
            raise SimulationError(f"nothing was ever run on {self.name}")
        return self.process
