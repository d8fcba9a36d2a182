"""What the tests of groups share: members, routers that come and go, and what members hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from waystation.core.gossip import MemberChange
from waystation.core.identity import LogicalAddress
from waystation.core.membership import Member
from waystation.gossip_router import GossipServer, Settings
from waystation.groups import Group, GroupLimits
from waystation.groups.router_client import RouterConnection
from waystation.groups.routers import Routers as GroupRouters
from waystation.groups.streams import Streams
from waystation.net.place import parse_place
from waystation.testing import DEADLINE

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


def streams_of(group: Group) -> Streams:
    """What is behind a member, for what no user can see or break."""
    assert group._streams is not None
    return group._streams


def carrier_of(group: Group) -> Any:
    return streams_of(group).carrier


def known(group: Group) -> set[bytes]:
    """The others that a member knows."""
    return set(streams_of(group).members)


async def everybody_knows(groups: list[Group], seconds: float = DEADLINE) -> None:
    """Wait until all know each other, and nobody else."""
    everybody = {group.me.uuid for group in groups}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not _all_know(groups, everybody):
        assert loop.time() < deadline, "they never all knew each other"
        await asyncio.sleep(0.002 * max(1, len(groups) / 10))


def _all_know(groups: list[Group], everybody: set[bytes]) -> bool:
    others = len(everybody) - 1
    if any(len(streams_of(group).members) != others for group in groups):
        return False
    return all(known(g) == everybody - {g.me.uuid} for g in groups)


def named(group: Group, name: str) -> Member:
    """The member of this name that another one knows."""
    (found,) = [member for member in streams_of(group).others() if member.name == name]
    return found


def forget(group: Group, other: Group) -> Member:
    """Have a member lose the address of another one; says whom it lost."""
    streams, uuid = streams_of(group), other.me.uuid
    streams.cache._evict(uuid)
    streams.members[uuid].verdict = None
    return named(group, other.me.name)


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
    streams, carrier = streams_of(group), carrier_of(group)
    streams.is_closed = True
    for peer in streams.peers.values():
        peer.verdict = None
    for timer in streams._timers.values():
        timer.cancel()
    streams._timers.clear()
    carrier.is_closed = True
    keepers = getattr(routers_of(group), "_keepers", None)
    if keepers is not None:
        keepers.cancel()
    for connection in router_connections(group):
        connection.abort()
    for place in list(getattr(carrier, "servers", ())):
        lose_place(group, place)
    for destination in getattr(carrier, "destinations", {}).values():
        if destination.connection is not None:
            destination.connection.abort()
    for socket in getattr(carrier, "sockets", ()):
        socket.close()
    group.left()
    await asyncio.sleep(0.01)


def lose_place(group: Group, place: str) -> None:
    """Take a place from a member, as when its interface is gone."""
    server = carrier_of(group).servers.pop(place)
    server.close()
    for connection in list(server.connections):
        connection.abort()


def routers_of(group: Group) -> GroupRouters | None:
    """The routers of a member, as it knows them."""
    carrier = carrier_of(group)
    return carrier if isinstance(carrier, GroupRouters) else getattr(carrier, "routers", None)


def router_connections(group: Group) -> list[RouterConnection]:
    """The last connection of a member to each of its routers."""
    found = routers_of(group)
    return [] if found is None else list(found.connections.values())


def port_of(place: str) -> int:
    return parse_place(place)[1]
