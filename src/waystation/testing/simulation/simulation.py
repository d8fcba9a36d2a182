"""One simulation: a seed, a network, and everything that happens on it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from waystation.net import randomness
from waystation.testing.simulation.loop import SimulatedLoop
from waystation.testing.simulation.network import Network

T = TypeVar("T")


class Simulation:
    """Runs a program on a loop with virtual time and a simulated network.

    The same seed gives the same history, to the last event: whatever is drawn at random, here or in
    the code under test, comes from it. A simulation that has not ended after `most_events`
    callbacks never will, and raises SimulationError.

    >>> async def main(simulation):
    ...     await asyncio.sleep(3600)
    ...     return simulation.loop.time()
    >>> Simulation(seed=7).run(main)
    3600.0
    """

    def __init__(self, seed: int, *, most_events: int = 10_000_000) -> None:
        self.seed = seed
        self.chance = random.Random(f"simulation {seed}")  # noqa: S311 - it must repeat
        self.network = Network(random.Random(f"network {seed}"))  # noqa: S311
        self.loop = SimulatedLoop(self.network, most_events)
        self.network.loop = self.loop

    def run(self, main: Callable[[Simulation], Coroutine[Any, Any, T]]) -> T:
        """Run a program to its end; a simulation runs once."""
        with _seeded(self.seed):
            try:
                return self.loop.run_until_complete(main(self))
            finally:
                self._bury()
                self.loop.close()

    def give_up(self, why: str) -> None:
        """End the simulation with a SimulationError: it will never settle."""
        self.loop.given_up = why

    def _bury(self) -> None:
        """End what still waits: it belongs to processes that are over, and must not go on."""
        for machine in self.network.machines.values():
            for process in machine.lives:
                process.die()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(Exception):
                task.get_coro().close()


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Have everything that is drawn at random come from the seed, also by `secrets`."""
    source = random.Random(f"system {seed}")  # noqa: S311
    before, state = random._urandom, random.getstate()  # type: ignore[attr-defined]
    many = randomness.random_bytes
    random._urandom = randomness.random_bytes = source.randbytes  # type: ignore[attr-defined]
    random.seed(seed)
    try:
        yield
    finally:
        random._urandom = before  # type: ignore[attr-defined]
        randomness.random_bytes = many
        random.setstate(state)
