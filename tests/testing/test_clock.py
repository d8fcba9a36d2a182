from __future__ import annotations

import asyncio

from waystation.core.outcome import Outcome, Reason
from waystation.node import Node
from waystation.testing import ManualClock


def test_time_passes_when_a_test_says_so() -> None:
    clock = ManualClock(start=10.0)
    assert clock() == clock() == 10_000_000_000
    clock.advance(0.5)
    assert clock() == 10_500_000_000
    clock.advance(-1)
    assert clock() == 9_500_000_000


def test_a_node_tells_the_time_by_it_and_never_goes_back() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with Node("node", clock=clock) as node:
            first = node.now()
            clock.advance(-100)
            assert node.now() >= first
            clock.advance(200)
            assert node.now() == clock() // 1_000_000

            node.worker("sink")(lambda message, context: None)  # noqa: ARG005
            expiry = node.expiry_in(5)
            assert (await node.send("sink", b"", ttl=5)).outcome is Outcome.DELIVERED
            clock.advance(6)
            assert node.now() > expiry
            assert (await node.send("sink", b"", ttl=0)).reason is Reason.EXPIRED

    asyncio.run(scenario())
