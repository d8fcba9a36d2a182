"""A provider that is killed, and one that was restarted: real processes, and no goodbye."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.node.test_hubs import knows, leaf
from tests.node.test_routing_scenarios import OFFER, TRUCK, changes, fleet
from waystation.core.outcome import Reason
from waystation.node import FAIL, Node, Queue, Wait
from waystation.testing import DEADLINE, Recorder, async_test, until

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def provider(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that offers `truck-7` behind this hub; it is killed in the end."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.node.provider_child",
        url,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        async with asyncio.timeout(2 * DEADLINE):
            assert await child.stdout.readline() == b"registered\n"
        yield child
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGKILL)
        await child.wait()


async def pid_behind(node: Node) -> int:
    return int((await node.request(TRUCK, b"?", policy=Wait(persist=True))).payload)


@pytest.mark.rule("RE-3", "RE-12")
@async_test
async def test_a_provider_that_was_killed_and_restarted_is_reachable_again() -> None:
    async with (
        fleet("here", "there") as [_, (here, url), (there, _)],
        leaf("consumer", url) as consumer,
    ):
        heard = Recorder(here)
        published: list[int] = []
        consumer.subscribe("truck", "position", callback=lambda m: published.append(int(m.payload)))
        async with provider(url) as first:
            for node in (here, consumer):
                assert await pid_behind(node) == first.pid
            assert len(await there.discover(*OFFER)) == 1
            assert await pid_behind(there) == first.pid
        await until(lambda: not knows(here, TRUCK))
        assert (await here.send(TRUCK, b"?", policy=FAIL)).reason is Reason.NO_ROUTE
        parked = await here.send(TRUCK, b"publish", policy=Queue(60, persist=True))
        assert parked.outcome == "QUEUED"
        async with provider(url) as second:
            assert second.pid != first.pid
            for node in (here, consumer, there):  # each the way it knew before
                assert await pid_behind(node) == second.pid
            await until(lambda: published == [second.pid])
        await until(lambda: not knows(here, TRUCK))
        assert changes(heard) == [("put", True, True), ("remove", True, True)] * 2
