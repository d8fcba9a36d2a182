"""Clients that mean harm, or die at the worst moment: they go, and everybody else is served."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.gossip_router.clients import Client2, Client5, Raw, serving, uuid
from tests.node.live import runs_on_every_loop
from tests.transports.certificates import authority
from waystation.gossip_router import GossipServer
from waystation.gossip_router.client import Client
from waystation.testing import DEADLINE, async_test, until
from waystation.wire import jgroups2, jgroups5

MANY = 300
MESSAGE = jgroups5.Message("g", uuid(1), None, b"still here")
LARGE = jgroups5.encode(jgroups5.Message("g", uuid(1), None, bytes(10_000)))


async def opened(server: GossipServer, member: Client5, first: bytes = b"") -> list[Raw]:
    """Many connections, each with its first bytes; the member sends heartbeats meanwhile."""
    found: list[Raw] = []
    for _ in range(MANY):
        found.append(await Raw.open(server))
        found[-1].send(first)
        if not len(found) % 20:
            await works(member)
    return found


async def works(member: Client5) -> None:
    """The member is served: it gets what it sends to itself."""
    member.say(MESSAGE)
    assert MESSAGE in await member.sync()


@runs_on_every_loop
async def test_many_that_connect_and_say_nothing_are_given_up() -> None:
    async with serving(silence=2.0) as (server, _), await Client5.open(server) as member:
        await member.join("g", 1)
        silent = await opened(server, member)
        while server.counts.disconnected["silent"] < MANY:
            await works(member)
            await asyncio.sleep(0.05)
        for each in silent:
            assert await each.ended() == b""
            each.writer.close()
        await until(lambda: len(server.clients()) == 1)
        await works(member)


@runs_on_every_loop
async def test_many_idle_members_stay_and_cost_nobody_anything() -> None:
    async with serving(silence=1.0) as (server, _), await Client5.open(server) as member:
        await member.join("g", 1)
        idle = []
        for number in range(2, MANY + 2):
            idle.append(await Client5.open(server))
            idle[-1].say(jgroups5.Register("idle", uuid(number), "m"))
            await works(member)
        await until(lambda: server.counts.members["join"] == MANY + 1)
        for _ in range(30):  # longer than silence; no client of 5.x has to send heartbeats
            await works(member)
            await asyncio.sleep(0.05)
        assert len(server.clients()) == MANY + 1
        for each in idle:
            each.writer.close()
        await until(lambda: len(server.clients()) == 1)
        assert list(server.rosters) == [(next(iter(server.rosters))[0], "g")]


@runs_on_every_loop
async def test_many_half_frames_are_given_up() -> None:
    async with serving(frame=2.0) as (server, _), await Client5.open(server) as member:
        await member.join("g", 1)
        lazy = await opened(server, member, LARGE[:5_000])
        while server.counts.disconnected["unfinished"] < MANY:
            await works(member)
            await asyncio.sleep(0.05)
        for each in lazy:
            assert await each.ended() == b""
            each.writer.close()


@async_test
async def test_handshakes_that_nobody_finishes_are_given_up_and_count_as_connections() -> None:
    tls = authority().tls("127.0.0.1")
    async with serving(tls=tls, silence=1.0, connections=20) as (server, _):
        silent = [await Raw.open(server) for _ in range(20)]
        async with await Raw.open(server) as late:
            assert await late.ended() == b""
        assert server.counts.refused["connections"] == 1
        for each in silent:
            await each.ended()
            each.writer.close()
        async with asyncio.timeout(DEADLINE):
            while not await joins(server):
                pass


async def joins(server: GossipServer) -> bool:
    """Whether there is room for one more."""
    try:
        context = authority().tls().for_dialler()
        async with await Client5.open(server, ssl=context) as member:
            await member.join("g", 1)
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return True


@pytest.mark.parametrize("generation", [2, 5])
@async_test
async def test_garbage_behind_a_registration_ends_that_client_alone(generation: int) -> None:
    chance = random.Random(generation)
    async with serving() as (server, _), await Client5.open(server) as member:
        await member.join("g", 1)
        for turn in range(100):
            kind: Any = Client5 if generation == 5 else Client2
            async with await kind.open(server) as bad:
                await bad.join("other", 5)
                bad.send(chance.randbytes(chance.randrange(1, 3_000)))
                bad.writer.write_eof()
                await bad.ended()
            if not turn % 10:
                await works(member)
        await until(lambda: len(server.clients()) == 1)
        assert [group for _, group in server.rosters] == ["g"]
        await works(member)


# Every state that a client can be in, when one side or the other ends it.


async def greeting(server: GossipServer, number: int) -> Raw:
    """Connected, and silent."""
    del number
    return await Raw.open(server)


async def idle(server: GossipServer, number: int) -> Raw:
    """A member with nothing to do."""
    return await (await Client5.open(server)).join("g", number)


async def within_frame(server: GossipServer, number: int) -> Raw:
    """It owes the rest of a frame."""
    client = await idle(server, number)
    client.send(LARGE[:100])
    return client


async def within_structure(server: GossipServer, number: int) -> Raw:
    """It owes the rest of a structure of 2.12."""
    client = await (await Client2.open(server)).join("old", number)
    client.send(jgroups2.encode(jgroups2.Connect("old", uuid(number), "m" * 500))[:100])
    return client


async def behind(server: GossipServer, number: int) -> Raw:
    """It asked for more than one turn allows."""
    client = await idle(server, number)
    client.send(jgroups5.encode(jgroups5.Heartbeat()) * 50_000)
    return client


def large_for(number: int) -> bytes:
    return jgroups5.encode(jgroups5.Message("g", uuid(number), None, bytes(10_000)))


async def too_much(server: GossipServer, sender: Raw, data: bytes) -> None:
    """Send it again and again, until a client takes no more and the systems' buffers are full."""

    def is_enough() -> bool:
        if not sender.writer.transport.get_write_buffer_size():
            sender.send(data)
        return any(found.peer_is_slow for found in server.clients())

    await until(is_enough)


async def blocked(server: GossipServer, number: int) -> Raw:
    """It does not read the answers to what it asks."""
    client = await idle(server, number)
    client.stop_reading()
    await too_much(server, client, jgroups5.encode(jgroups5.GetMembers("g")) * 1_000)
    return client


async def stuck(server: GossipServer, number: int) -> Raw:
    """It does not read what others send to it, and they are held back for it."""
    client = await idle(server, number)
    client.stop_reading()
    sender = await Client5.open(server)
    await too_much(server, sender, large_for(number) * 200)
    sender.reset()
    return client


async def held_back(server: GossipServer, number: int) -> Raw:
    """It sends to a member that does not read."""
    receiver = await idle(server, number)
    receiver.stop_reading()
    client = await Client5.open(server)
    await too_much(server, client, large_for(number) * 200)
    receiver.reset()
    return client


async def rejected(server: GossipServer, number: int) -> Raw:
    """The router has ended it, and waits for its end."""
    client = await idle(server, number)
    client.send(bytes(4))
    await until(lambda: server.counts.refused["malformed"] > 0)
    return client


async def gone(server: GossipServer, number: int) -> Raw:
    """It said goodbye."""
    client = await idle(server, number)
    client.send(jgroups5.encode(jgroups5.Goodbye()))
    return client


State = Callable[[GossipServer, int], Awaitable[Raw]]
STATES: list[State] = [
    greeting,
    idle,
    within_frame,
    within_structure,
    behind,
    blocked,
    stuck,
    held_back,
    rejected,
    gone,
]
LIMITS: dict[str, Any] = {"queue": 200_000, "patience": 30.0, "slow_receiver": "shed"}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["reset", "end"])
@runs_on_every_loop
async def test_a_client_may_end_in_any_state(state: State, how: str) -> None:
    async with serving(**LIMITS) as (server, _), await Client5.open(server) as member:
        await member.join("g", 1)
        client = await state(server, 2)
        if how == "reset":
            client.reset()
        else:
            client.read_again()
            client.writer.write_eof()
            await client.ended()
            client.writer.close()
        await until(lambda: len(server.clients()) == 1)
        await works(member)


@pytest.mark.parametrize("state", STATES)
@runs_on_every_loop
async def test_the_router_may_give_a_client_up_in_any_state(state: State) -> None:
    async with serving(**LIMITS) as (server, _), await Client5.open(server) as member:
        await member.join("g", 1)
        [kept] = server.clients()
        client = await state(server, 2)
        for found in server.clients():
            if found is not kept:
                server.give_up(found, "stuck", "the test says so")
        await until(lambda: server.clients() == [kept])
        await works(member)
        client.writer.transport.abort()


@pytest.mark.parametrize("state", STATES)
@runs_on_every_loop
async def test_the_router_may_end_while_a_client_is_in_any_state(state: State) -> None:
    async with serving(linger=0.3, **LIMITS) as (server, _):
        client = await state(server, 2)
        await server.drain()
        await until(lambda: not server.clients())
        client.writer.transport.abort()


class Full:
    """A transport whose peer never reads."""

    def __init__(self) -> None:
        self.unsent = 0
        self.lost: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.lost)


@async_test
async def test_any_number_of_stuck_receivers_is_given_up_at_once() -> None:
    """When the first goes, the others are told; and none of them has room to be told anything."""
    async with serving(queue=1_000, slow_receiver="shed") as (server, _):
        for number in range(1, 1_001):
            client, transport = Client(server), Full()
            transport.lost = lambda client=client: client.connection_lost(None)  # type: ignore[misc]
            client.connection_made(transport)  # type: ignore[arg-type]
            join = jgroups5.encode(jgroups5.Register("g", uuid(number), "m"))
            client.get_buffer(-1)[: len(join)] = join
            client.buffer_updated(len(join))
            transport.unsent = 1_000_000
        async with await Client5.open(server) as first:
            first.say(jgroups5.Message("g", None, None, bytes(2_000)))
            await first.join("g", 5_000)
            first.reset()
        await until(lambda: server.counts.disconnected["stuck"] == 1_000)
        await until(lambda: not server.rosters)
        assert server.counts.members["suspect"] == 1_001
