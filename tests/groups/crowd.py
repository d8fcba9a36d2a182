"""What the tests of groups share: members, routers that come and go, and what members hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from tests.node.live import PATIENCE
from waystation.core.gossip import MemberChange
from waystation.core.identity import LogicalAddress
from waystation.gossip_router import GossipServer, Settings
from waystation.groups.group import Group
from waystation.groups.member import GroupLimits, Member
from waystation.net.place import parse_place

QUICK = GroupLimits(beat=0.5, grace=1.0, dial=2.0)
"""Members that soon notice who is gone."""

LASTING = GroupLimits(beat=5.0, grace=60.0)
"""Members that never give up within a test."""


class Routers:
    """Gossip routers that can be killed and started again on the same port."""

    def __init__(self) -> None:
        self.servers: list[GossipServer] = []
        self.places: list[str] = []

    async def start(self, place: str = "127.0.0.1:0") -> GossipServer:
        server = GossipServer(Settings(linger=0.2))
        await server.start(place)
        self.servers.append(server)
        self.places.append(server.place)
        return server

    async def kill(self, index: int) -> None:
        """Let a router vanish: its connections are reset, and nothing that waits is written."""
        server = self.servers[index]
        for client in server.clients():
            client.abort()
        await server.drain()

    async def restart(self, index: int) -> None:
        server = GossipServer(Settings(linger=0.2))
        await server.start(self.places[index])
        self.servers[index] = server

    def via(self, kind: str = "gossip") -> str:
        return f"{kind}://{','.join(self.places)}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            if not server.draining:
                await server.drain()


@asynccontextmanager
async def routers(count: int = 1) -> AsyncIterator[Routers]:
    """So many routers."""
    async with Routers() as found:
        for _ in range(count):
            await found.start()
        yield found


class Ear:
    """Everything that a member hears from now on."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.heard: list[tuple[str, bytes]] = []
        self.changes: list[MemberChange] = []
        changes = group.changes()
        self.tasks = [
            asyncio.ensure_future(self._listen()),
            asyncio.ensure_future(self._watch(changes)),
        ]

    async def _listen(self) -> None:
        async for sender, payload in self.group.messages():
            self.heard.append((str(sender), payload))

    async def _watch(self, changes: Any) -> None:
        async for change in changes:
            self.changes.append(change)

    def payloads(self, sender: str | None = None) -> list[bytes]:
        return [payload for name, payload in self.heard if sender in (None, name)]

    def events(self) -> list[tuple[str, str]]:
        return [(change.kind.value, str(change.mapping.member)) for change in self.changes]


@asynccontextmanager
async def members(
    names: Iterable[str], via: str | list[str], *, limits: GroupLimits = LASTING, **options: Any
) -> AsyncIterator[list[Group]]:
    """Members of one group, which all know each other."""
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(
                Group("fleet", name=name, via=via, limits=limits, **options)
            )
            for name in names
        ]
        await everybody_knows(found)
        yield found


async def names(group: Group) -> set[str]:
    return {str(member) for member in await group.members()}


def known(group: Group) -> set[bytes]:
    """The others that a member knows."""
    exchange = group._exchange
    assert exchange is not None
    return set(exchange.view)


async def everybody_knows(groups: list[Group], seconds: float = PATIENCE) -> None:
    """Wait until all know each other, and nobody else."""
    everybody = {group.me.uuid for group in groups}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not _all_know(groups, everybody):
        assert loop.time() < deadline, "they never all knew each other"
        await asyncio.sleep(0.002 * max(1, len(groups) / 10))


def _all_know(groups: list[Group], everybody: set[bytes]) -> bool:
    others = len(everybody) - 1
    if any(g._exchange is None or len(g._exchange.view) != others for g in groups):
        return False
    return all(known(g) == everybody - {g.me.uuid} for g in groups)


def named(group: Group, name: str) -> Member:
    """The member of this name that another one knows."""
    exchange = group._exchange
    assert exchange is not None
    (found,) = [member for member in exchange.view.values() if member.name == name]
    return found


async def stream(group: Group, count: int, to: Any = None, every: int = 50) -> None:
    """Send numbers, and let others run now and then."""
    for number in range(count):
        await group.send(b"%d" % number, to=to)
        if number % every == 0:
            await asyncio.sleep(0.001)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def stranger(name: str = "stranger") -> LogicalAddress:
    """A member that nobody knows."""
    return LogicalAddress(b"nobody is there.", name)


async def vanish(group: Group) -> None:
    """End a member without a word to anybody, as a crash does."""
    exchange = group._exchange
    assert exchange is not None
    exchange.is_closed = True
    exchange.lanes.clear()
    for timer in exchange._timers.values():
        timer.cancel()
    exchange._timers.clear()
    carrier: Any = exchange.carrier
    for stub in stubs(group):
        stub._closing = True
        stub._keeper.cancel()
        stub._stop_timer()
        if stub._transport is not None:
            stub._transport.abort()
    for server in getattr(carrier, "_servers", {}).values():
        server.close()
    for doorway in list(getattr(carrier, "doorways", ())):
        doorway.abort()
    for road in getattr(carrier, "_roads", {}).values():
        carrier.is_closed = True
        road.close()
    for transport in getattr(carrier, "_transports", ()):
        transport.close()
    group._end(exchange)
    await asyncio.sleep(0.01)


def stubs(group: Group) -> list[Any]:
    """The connections of a member to its routers."""
    exchange = group._exchange
    assert exchange is not None
    carrier: Any = exchange.carrier
    found = getattr(carrier, "routers", None) or getattr(carrier, "_routers", None)
    return [] if found is None else list(found._stubs)


def port_of(place: str) -> int:
    return parse_place(place)[1]
