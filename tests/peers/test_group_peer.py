"""Our groups through JGroups' own routers, 2.12 and 5.x, alone and beside ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from tests.groups.crowd import (
    LASTING,
    Ear,
    Routers,
    everybody_knows,
    members,
    named,
    names,
    numbers,
    router_connections,
    stream,
)
from tests.groups.crowd import routers as our_routers
from tests.peers import jgroups_peer
from tests.peers.jgroups_peer import Generation, real_router
from waystation.groups import Group
from waystation.testing import async_test, until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(jgroups_peer.FETCH_SECONDS + 300)]

DIALECT = {2: "jgroups2", 5: "jgroups5"}
generations = pytest.mark.parametrize("generation", [2, 5])


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    jgroups_peer.built()


@asynccontextmanager
async def one_after_the_other(
    names: Iterable[str], via: list[str], dialect: str
) -> AsyncIterator[list[Group]]:
    """Members of one group, each registered with every router before the next one comes.

    When several make a group at the same moment, the router of 2.12 forgets one or hangs up on it.
    """
    async with AsyncExitStack() as stack:
        found = []
        for name in names:
            joining = Group("fleet", name=name, via=via, limits=LASTING, dialect=dialect)
            group = await stack.enter_async_context(joining)
            await until(partial(is_everywhere, group))
            found.append(group)
        await everybody_knows(found)
        yield found


def is_everywhere(group: Group) -> bool:
    """Whether all routers of a group's list have answered."""
    return all(client.is_ready for client in router_connections(group))


@pytest.mark.ci
@pytest.mark.rule("GR-11")
@generations
@pytest.mark.parametrize("kind", ["gossip", "gossip+tcp"])
@async_test
async def test_our_members_meet_at_the_real_router(generation: Generation, kind: str) -> None:
    with real_router(generation) as (_, port):
        via = f"{kind}://127.0.0.1:{port}"
        dialect = DIALECT[generation]
        async with members(["a", "b"], via, dialect=dialect) as (a, b):
            async with Group("fleet", name="c", via=via, dialect=dialect) as c:
                assert await names(c) == {"a", "b", "c"}
                await everybody_knows([a, b, c])
                ears = [Ear(group) for group in (a, b, c)]
                await asyncio.gather(
                    stream(a, 1_000), stream(b, 1_000), stream(c, 1_000, to=named(c, "a"))
                )
                await until(lambda: [len(ear.heard) for ear in ears] == [2_000, 1_000, 2_000])
                assert ears[0].payloads("b") == ears[0].payloads("c") == numbers(1_000)
                assert ears[2].payloads("a") == ears[2].payloads("b") == numbers(1_000)
            await everybody_knows([a, b])


@pytest.mark.rule("GR-11")
@generations
@async_test
async def test_the_real_router_dies_and_another_takes_its_place(generation: Generation) -> None:
    async with Routers() as ours, AsyncExitStack() as stack:
        with real_router(generation) as (process, port):
            via = f"gossip://127.0.0.1:{port}"
            dialect = DIALECT[generation]
            a, b = await stack.enter_async_context(members(["a", "b"], via, dialect=dialect))
            ear = Ear(b)
            sending = asyncio.ensure_future(stream(a, 1_000, to=named(a, "b")))
            await until(lambda: len(ear.heard) > 100)
            process.kill()
            await until(lambda: not a.is_open)
        await ours.start(f"127.0.0.1:{port}")  # in its place comes ours
        await sending
        await until(lambda: ear.payloads() == numbers(1_000))
        await stack.aclose()


@pytest.mark.rule("GR-12")
@generations
@pytest.mark.parametrize("dies", ["ours", "theirs"])
@async_test
async def test_ours_and_theirs_side_by_side_and_one_dies_under_traffic(
    generation: Generation, dies: str
) -> None:
    with real_router(generation) as (process, port):
        async with our_routers() as ours:
            via = [f"gossip://127.0.0.1:{port}", ours.via()]
            dialect = DIALECT[generation]
            async with one_after_the_other(["a", "b", "c"], via, dialect) as (a, b, c):
                ears = [Ear(b), Ear(c)]
                sending = asyncio.gather(stream(a, 3_000), stream(a, 3_000, to=named(a, "b")))
                await until(lambda: len(ears[0].heard) > 200)
                if dies == "theirs":
                    process.kill()
                else:
                    await ours.kill(0)
                await sending
                await until(lambda: len(ears[0].heard) == 6_000 and len(ears[1].heard) == 3_000)
                assert ears[1].payloads() == numbers(3_000)
                assert sorted(ears[0].payloads()) == sorted(2 * numbers(3_000))
                assert ears[0].events() == ears[1].events() == []
