"""A bug that only faults bring to light, found in simulated time.

A till asks a bank to book amounts, and asks again when no reply came. The bank books whatever it
is asked to: when only the reply was lost, an amount is booked twice. With `careful=True` the bank
knows a booking by its number, and no seed finds anything.
"""

from __future__ import annotations

import asyncio
import sys

from waystation import Node, WaystationError
from waystation.core.message import Message
from waystation.node import Context
from waystation.testing.simulation import Simulation

BOOKINGS = 50


class Bank:
    """Books what it is asked to."""

    def __init__(self, *, careful: bool) -> None:
        self.booked: list[bytes] = []
        self._careful = careful

    async def run(self) -> None:
        """Be a node that takes bookings."""
        node = Node("bank")
        node.start_worker(("bookings",), self.book)
        await node.listen("tcp://bank:4000")
        await asyncio.Event().wait()

    async def book(self, message: Message, context: Context) -> None:
        """Book, and say so."""
        if not (self._careful and message.payload in self.booked):
            self.booked.append(message.payload)
        await context.reply(b"booked")


async def till() -> None:
    """Have everything booked, however often one has to ask."""
    node = Node("till")
    for number in range(BOOKINGS):
        while True:
            try:
                await node.request("tcp#bank:4000 => bookings", b"%d" % number, timeout=2)
                break
            except WaystationError:
                await asyncio.sleep(0.5)


def bookings(seed: int, *, careful: bool) -> list[bytes]:
    """What the bank has booked in the end."""
    bank = Bank(careful=careful)

    async def main(simulation: Simulation) -> list[bytes]:
        network, chance = simulation.network, simulation.chance
        here, there = network.machine("till"), network.machine("bank")
        network.latency = (0.01, 0.1)
        there.run(bank.run)
        await asyncio.sleep(1)
        done = here.run(till)
        while not done.done():  # now and then nothing goes one way, or the other
            way = chance.choice([(here, there), (there, here)])
            network.block(*way)
            await asyncio.sleep(chance.uniform(0, 5))
            network.unblock(*way)
            await asyncio.sleep(chance.uniform(0, 5))
        return bank.booked

    return Simulation(seed).run(main)


def main(careful: bool) -> None:
    for seed in range(20):
        booked = bookings(seed, careful=careful)
        twice = sorted({int(number) for number in booked if booked.count(number) > 1})
        if twice:
            print(f"seed {seed}: booked twice: {', '.join(map(str, twice))}")
            return
    print("20 seeds, nothing was booked twice")


if __name__ == "__main__":
    main(careful="--careful" in sys.argv)
