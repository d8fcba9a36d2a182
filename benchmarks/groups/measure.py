"""What is measured of groups: how soon all know each other, how fast they talk, how soon again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from benchmarks.groups.receiver import GROUP
from benchmarks.groups.routers import Router
from waystation.groups import Group, GroupLimits
from waystation.node import run

CALM = GroupLimits(beat=30.0, dial=60.0)
"""In a crowd within one process nobody is to be suspected for being slow."""

AT_ONCE = 50
"""So many members connect at the same moment."""


def cold_start(count: int) -> float:
    """Seconds until so many members, in this process, all know each other through a router."""

    async def start(place: str) -> float:
        groups = [
            Group(GROUP, name=f"m{n}", via=f"gossip://{place}", limits=CALM, wait=300)
            for n in range(count)
        ]
        begin = time.perf_counter()
        for first in range(0, count, AT_ONCE):
            await asyncio.gather(*(group.connect() for group in groups[first : first + AT_ONCE]))
        await _until_all_know(groups, 0.001 * max(1, count / 10))
        elapsed = time.perf_counter() - begin
        for group in groups:
            group.leave()
        return elapsed

    with Router() as router:
        return run(start(router.place))


async def _until_all_know(groups: Sequence[Group], pause: float) -> None:
    """Wait until each knows as many as there are."""
    waiting = list(groups)
    while waiting:
        waiting = [group for group in waiting if len(await group.members()) < len(groups)]
        await asyncio.sleep(pause)


def rate(via: str, size: int, count: int) -> float:
    """Messages per second from this process to a member in another one."""

    async def send() -> float:
        options = {"interface": "127.0.0.1"} if via.startswith("udp") else {}
        command = [sys.executable, "-m", "benchmarks.groups.receiver", via, str(count)]
        receiver = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert receiver.stdout is not None
        await receiver.stdout.readline()  # it is ready
        payload = bytes(size)
        async with Group(GROUP, name="sender", via=via, **options) as group:  # type: ignore[arg-type]
            await _until_all_know([group, group], 0.01)
            members = await group.members()
            for _ in range(count):
                await group.send(payload, to=members[1])
            found = float(await receiver.stdout.readline())
            await receiver.wait()
        return found

    return run(send())


class Recovery(NamedTuple):
    """Seconds without a message, and of these, how many after the new router listened."""

    gap: float
    after: float


def recoveries(kind: str, times: int, routers: int) -> list[Recovery]:
    """What happens each time that the router in use is killed, and started again at once.

    With one router the gap includes the start of the new one; with two the other takes over.
    """
    running = [Router() for _ in range(routers)]
    for router in running:
        router.start()
    try:
        return run(_recoveries(kind, times, running))
    finally:
        for router in running:
            router.kill()


async def _recoveries(kind: str, times: int, routers: Sequence[Router]) -> list[Recovery]:
    via = [f"{kind}://{router.place}" for router in routers]
    limits = GroupLimits(beat=5.0, grace=600.0)
    found: list[Recovery] = []
    async with (
        Group(GROUP, name="a", via=via, limits=limits) as a,
        Group(GROUP, name="b", via=via, limits=limits) as b,
    ):
        await _until_all_know([a, b], 0.01)
        arrivals: list[float] = []

        async def listen() -> None:
            async for _ in b.messages():
                arrivals.extend([time.perf_counter()])

        async def speak() -> None:
            while True:
                await a.send(b"x", to="b", wait=0)
                await asyncio.sleep(0.001)

        tasks = [asyncio.ensure_future(listen()), asyncio.ensure_future(speak())]
        for number in range(times):
            router = routers[number % len(routers)]
            await asyncio.sleep(0.3)
            del arrivals[:-1]
            killed = time.perf_counter()
            await asyncio.to_thread(router.kill)
            await asyncio.to_thread(router.start)
            listened = time.perf_counter()
            await _until_fresh(arrivals)
            await asyncio.sleep(1.0)  # so that all are back before the next one goes
            after = [killed, *(at for at in arrivals if at >= killed)]
            gap, end = max((late - early, late) for early, late in pairwise(after))
            found.append(Recovery(gap, max(0.0, end - listened)))
        for task in tasks:
            task.cancel()
    return found


async def _until_fresh(arrivals: list[float]) -> None:
    """Wait until messages arrive again."""
    start = time.perf_counter()
    while len([at for at in arrivals if at > start]) < 20:  # noqa: ASYNC110 - it is a list
        await asyncio.sleep(0.005)
