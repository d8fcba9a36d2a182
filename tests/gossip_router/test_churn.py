"""Many members, of which some come and go all the time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gossip_router.churn import Crowd
from tests.gossip_router.clients import serving
from tests.node.live import runs_on_every_loop
from waystation.core.gossip import MemberKind
from waystation.gossip_router.server import SLICE
from waystation.testing import async_test, until


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def come_and_go(members: int, changes: int) -> None:
    async with serving() as (server, told):
        before = count_descriptors()
        crowd = Crowd(server.place)
        await crowd.enter(members)
        await crowd.settle()
        for _ in range(changes):
            await crowd.change()
        await crowd.settle()
        assert crowd.seen.suspects == 0
        kinds = [record.change.kind for record in told]
        assert kinds.count(MemberKind.LEAVE) == changes
        assert MemberKind.SUSPECT not in kinds
        crowd.end()
        await until(lambda: not server.clients())
        await until(lambda: count_descriptors() == before)


@pytest.mark.rule("GR-8")
@runs_on_every_loop
async def test_nobody_who_leaves_in_order_is_suspected() -> None:
    await come_and_go(members=50, changes=100)


@pytest.mark.fault
@pytest.mark.rule("GR-8")
@async_test
async def test_nobody_of_many_who_leave_in_order_is_suspected() -> None:
    await come_and_go(members=1_000, changes=1_000)


@pytest.mark.rule("GR-8")
@runs_on_every_loop
async def test_everybody_in_a_large_group_learns_of_every_death() -> None:
    members, dead = SLICE + 50, 5  # more than are told in one turn
    async with serving(suspect_after=0.1) as (server, _):
        crowd = Crowd(server.place)
        await crowd.enter(members)
        await crowd.settle()
        for _ in range(dead):
            crowd.members.popleft().vanish()
        expected = dead * (members - dead)
        await until(lambda: crowd.seen.suspects >= expected)
        await asyncio.gather(*(member.ask() for member in crowd.members))
        assert crowd.seen.suspects == expected
        crowd.end()
        await until(lambda: not server.clients())
