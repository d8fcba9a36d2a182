"""Many members of which some leave and others come, at a steady pace: what that costs a router."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.router.asker import asking
from benchmarks.router.subjects import Subject
from tests.gossip_router.churn import Crowd

MEMBERS = 2_000
PACE = 50
"""So many members leave, and come, in a second."""

SECONDS = 20.0
AFTER = 3.0
"""Seconds in which what was held back is told."""

NEWS_EVERY = 25
"""One of so many who leave does so while the router writes to everybody."""


class Churn(NamedTuple):
    """What was seen: the delay of a list of members, SUSPECTs, and descriptors that were kept."""

    p50: float  # of the seconds that a list took
    p99: float
    suspects: int
    descriptors: int


def churn(
    subject: Subject, members: int = MEMBERS, pace: int = PACE, seconds: float = SECONDS
) -> Churn:
    """Have members come and go at a router."""
    with subject.start() as running:
        return asyncio.run(_measure(running.pid, running.port, members, pace, seconds))


async def _measure(pid: int, port: int, members: int, pace: int, seconds: float) -> Churn:
    before = descriptors_of(pid)
    crowd = Crowd(f"127.0.0.1:{port}")
    await crowd.enter(members)
    await crowd.settle()
    delays: list[float] = []
    with asking(port, delays):
        start = time.perf_counter()
        for number in range(int(pace * seconds)):
            await crowd.change(news=number % NEWS_EVERY == 0)
            await asyncio.sleep(max(0.0, start + (number + 1) / pace - time.perf_counter()))
    await asyncio.sleep(AFTER)
    suspects = crowd.seen.suspects
    crowd.end()
    await asyncio.sleep(AFTER)
    delays.sort()
    p50, p99 = (delays[int(len(delays) * share)] for share in (0.5, 0.99))
    return Churn(p50, p99, suspects, descriptors_of(pid) - before)


def descriptors_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
