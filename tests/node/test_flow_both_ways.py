"""Two nodes that both have more to send than their budgets hold: neither waits for the other."""

from __future__ import annotations

import asyncio

import pytest

from waystation.core.message import Message
from waystation.node import Context, Limits, Node
from waystation.testing.simulation import Machine, Simulation
from waystation.transports.tcp import Tcp, TcpLimits

LIMITS = Limits(
    heartbeat=2.0, budget=256 * 1024, share=192 * 1024, receiver=64 * 1024, control=64 * 1024
)
MESSAGES = 40


@pytest.mark.rule("FL-1")
def test_two_nodes_over_their_budgets_do_not_wait_for_each_other() -> None:
    got: list[str] = []

    async def node(name: str, other: str, *, listens: bool) -> None:
        here = Node(
            name, hub=listens, limits=LIMITS, transports=[Tcp(limits=TcpLimits(frame=128 * 1024))]
        )

        async def work(message: Message, context: Context) -> None:
            del message, context
            await asyncio.sleep(0.01)
            got.append(name)

        here.start_worker((f"work-{name}",), work, inbox=4)
        if listens:
            await here.listen(f"tcp://{name}:4000")
        else:
            await here.connect(f"tcp://{other}:4000", name="up", parent=True)
        await asyncio.sleep(5)
        sends = [here.send(f"work-{other}", bytes(60_000)) for _ in range(MESSAGES)]
        await asyncio.gather(*sends)
        await asyncio.Event().wait()

    async def main(simulation: Simulation) -> None:
        network = simulation.network
        one, other = (network.machine(name) for name in ("a", "b"))
        one.run(lambda: node("a", "b", listens=True))
        await asyncio.sleep(1)
        other.run(lambda: node("b", "a", listens=False))
        await asyncio.sleep(3)
        await cut(simulation, one, other)
        await asyncio.sleep(200)

    Simulation(seed=1).run(main)
    assert sorted(got) == ["a"] * MESSAGES + ["b"] * MESSAGES


async def cut(simulation: Simulation, one: Machine, other: Machine) -> None:
    """Let nothing through while both begin to send."""
    simulation.network.partition([one], [other])
    await asyncio.sleep(4)
    simulation.network.heal()
