"""Direct TCP connections between members, with or without routers to find each other by (LA-9).

A member listens at one or more places, and dials the places of others. Packets go out over the
connections that it dialled, and come in over those that it accepted: who sent one stands in the
packet, never in the socket (LA-11). A connection begins with a greeting that names the group; then
every packet has its length in front.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, cast

from waystation.core.identity import Physical, Uuid
from waystation.errors import LocalError
from waystation.groups.carrier import CarrierOwner
from waystation.groups.router_client import Access
from waystation.groups.routers import Routers
from waystation.net.backoff import Backoff
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import open_listener, prepare, reason_of

GREETING: Final = b"WSGM\x01"
"""The first bytes of a connection: our members, and the version of what follows."""

UNSENT: Final = 16 << 20
"""With so many bytes waiting for a peer, nothing more is given to it: it comes again later."""

FIRST_COOLING: Final = 0.1
LONGEST_COOLING: Final = 2.0
"""Seconds before a place that did not answer is dialled again: doubling between these two."""

LIMIT: Final = 16 << 20

_LENGTH: Final = struct.Struct(">I")
_NAME: Final = struct.Struct(">H")


def greeting(group: str) -> bytes:
    r"""What stands before the first packet of a connection.

    >>> greeting("fleet")
    b'WSGM\x01\x00\x05fleet'
    """
    name = group.encode()
    return GREETING + _NAME.pack(len(name)) + name


class Packets:
    r"""A stream of packets with their lengths in front, in pieces of any size.

    >>> packets = Packets()
    >>> packets.feed(b"\0\0\0\2hi\0\0"), packets.feed(b"\0\1!")
    ([b'hi'], [b'!'])
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.is_broken = False
        self._limit = limit
        self._held = b""
        self._pieces: list[bytes] = []
        self._size = self._need = 0  # bytes in the pieces, and before they are worth a look

    def feed(self, data: bytes) -> list[bytes]:
        """The packets that these bytes complete; none any more once a length was too large."""
        if self._size:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces, self._size = [], 0
        position, end = 0, len(data)
        found: list[bytes] = []
        while end - position >= 4 and not self.is_broken:
            (length,) = _LENGTH.unpack_from(data, position)
            self.is_broken = length > self._limit
            after = position + 4 + length
            if after > end:
                self._need = after - position
                break
            found.append(data[position + 4 : after])
            position = after
        else:
            self._need = 4
        if position < end and not self.is_broken:
            self._pieces, self._size = [data[position:]], end - position
        return found


class Road(asyncio.Protocol):
    """The way to one place: dialled when something is to go there."""

    def __init__(self, direct: Direct, place: Physical) -> None:
        self.place = place
        self._direct = direct
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._dialling: asyncio.Task[None] | None = None
        self._cool_until = 0.0
        self._cooling = Backoff(first=FIRST_COOLING, most=LONGEST_COOLING)

    @property
    def is_open(self) -> bool:
        """Whether somebody answered, and is still there."""
        return self._transport is not None

    def send(self, packet: bytes) -> None:
        """Take a packet there, with the others of this turn; dial if need be."""
        transport = self._transport
        if transport is None:
            if self._dialling is None and not self._dial():
                return
        elif transport.get_write_buffer_size() > UNSENT:
            return
        if self._size <= UNSENT:
            self._pieces += (_LENGTH.pack(len(packet)), packet)
            self._size += len(packet)

    def flush(self) -> None:
        """Write what this turn brought."""
        if self._transport is not None and self._pieces:
            pieces, self._pieces, self._size = self._pieces, [], 0
            self._transport.write(b"".join(pieces))

    def close(self) -> None:
        """Write what is left, and end."""
        if self._dialling is not None:
            self._dialling.cancel()
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, and write what waits."""
        self._transport = cast("asyncio.Transport", transport)
        prepare(transport.get_extra_info("socket"), self._direct.access.dead)
        self._transport.write(greeting(self._direct.access.group))
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Nothing is said here."""

    def connection_lost(self, error: Exception | None) -> None:
        """Have what was lost sent again, over this place or another."""
        del error
        self._transport = None
        self._pieces, self._size = [], 0
        self._direct.road_ended(self, answered=True)

    def _dial(self) -> bool:
        loop = asyncio.get_running_loop()
        if self._direct.is_closed or loop.time() < self._cool_until:
            return False
        self._dialling = loop.create_task(self._connect(), name=f"waystation dial {self.place}")
        return True

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        access = self._direct.access
        try:
            host, port = parse_place(self.place)
            async with asyncio.timeout(access.dial):
                await loop.create_connection(
                    lambda: self,
                    host,
                    port,
                    ssl=access.tls.for_dialler() if access.tls else None,
                    server_hostname=(access.tls.name or host) if access.tls else None,
                )
        except (OSError, ValueError) as error:  # a TimeoutError, too, is an OSError
            why = reason_of(error) if isinstance(error, OSError) else str(error)
            self._direct.failure = f"{self.place}: {why or 'no answer'}"
            self._cool_until = loop.time() + self._cooling.next()
            self._pieces, self._size = [], 0
            self._dialling = None
            self._direct.road_ended(self, answered=False)
        else:
            self._dialling = None
            self._cooling.reset()
            self._direct.road_opened(self)


class Doorway(asyncio.Protocol):
    """A connection that somebody else dialled: packets come in, after the right greeting."""

    def __init__(self, direct: Direct, at: Physical) -> None:
        self.at = at
        self._direct = direct
        self._transport: asyncio.Transport | None = None
        self._expected = greeting(direct.access.group)
        self._greeted = b""
        self._is_in = False
        self._packets = Packets()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the greeting."""
        self._transport = cast("asyncio.Transport", transport)
        prepare(transport.get_extra_info("socket"), self._direct.access.dead)
        self._direct.doorways.add(self)

    def data_received(self, data: bytes) -> None:
        """Hand in the packets."""
        if not self._is_in:
            data = self._greet(data)
            if not self._is_in:
                return
        packets = self._packets.feed(data)
        if packets:
            self._direct.owner.packets(packets)
        if self._packets.is_broken:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody misses it."""
        del error
        self._direct.doorways.discard(self)

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    def _greet(self, data: bytes) -> bytes:
        """What comes behind the greeting; a wrong one ends the connection."""
        self._greeted += data
        expected = self._expected
        size = min(len(self._greeted), len(expected))
        if self._greeted[:size] != expected[:size]:
            self.abort()
            return b""
        self._is_in = len(self._greeted) >= len(expected)
        return self._greeted[len(expected) :]


class Direct:
    """Connections from member to member."""

    limit = LIMIT

    def __init__(
        self,
        listen: Sequence[str],
        known: Sequence[str],
        routers: Sequence[str],
        access: Access,
        owner: CarrierOwner,
    ) -> None:
        self.access = access
        self.owner = owner
        self.is_closed = False
        self.failure = ""
        self.doorways: set[Doorway] = set()
        self._listen = list(listen)
        self._known = known
        self._routers = Routers(routers, access, owner) if routers else None
        self._servers: dict[Physical, asyncio.Server] = {}
        self._roads: dict[Physical, Road] = {}
        self._touched: dict[Physical, Road] = {}

    @property
    def is_open(self) -> bool:
        """Whether others can be reached."""
        return bool(self._servers) and not self.is_closed

    async def open(self) -> tuple[Physical, ...]:
        """Listen, by default where the first known place sees us."""
        listen = self._listen or [f"{_own_host(self._known[0])}:0"]
        return await self._open_all(listen)

    def start(self) -> None:
        """Find the others."""
        if self._routers is not None:
            self._routers.start()
        else:
            self.owner.opened()

    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Take a packet to a member at one of its places."""
        del uuid
        if place is not None:
            self.to_place(place, packet)

    def to_place(self, place: Physical, packet: bytes) -> None:
        """Take a packet to whoever is at a place."""
        if place in self._servers or self.is_closed:
            return  # that is here
        road = self._roads.get(place)
        if road is None:
            road = self._roads[place] = Road(self, place)
        road.send(packet)
        self._touched[place] = road

    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """There is no such way: each member gets its own copy."""
        raise AssertionError((packet, notice))

    def ask(self) -> None:
        """Ask the routers who is there."""
        if self._routers is not None:
            self._routers.ask()

    def flush(self) -> None:
        """Write what this turn brought."""
        for road in self._touched.values():
            road.flush()
        self._touched.clear()
        if self._routers is not None:
            self._routers.flush()

    async def move(self, places: Sequence[str]) -> tuple[Physical, ...]:
        """Listen there, and no longer where it was; who is connected there has to dial again."""
        stay = {place for place in self._servers if place in places}
        leaving = [place for place in self._servers if place not in stay]
        found = await self._open_all([place for place in places if place not in stay])
        for place in leaving:
            self._servers.pop(place).close()
        for doorway in [doorway for doorway in self.doorways if doorway.at in leaving]:
            doorway.abort()
        return (*stay, *found)

    def moved(self) -> None:
        """Tell the routers."""
        if self._routers is not None:
            self._routers.register()

    def close(self) -> None:
        """End all connections."""
        if self.is_closed:
            return
        self.flush()
        self.is_closed = True
        for server in self._servers.values():
            server.close()
        for road in self._roads.values():
            road.close()
        if self._routers is not None:
            self._routers.close()

    async def closed(self) -> None:
        """Wait until what was left is written."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.access.linger
        while any(road.is_open for road in self._roads.values()):
            if loop.time() >= deadline:
                break
            await asyncio.sleep(0.005)
        for doorway in list(self.doorways):
            doorway.abort()
        if self._routers is not None:
            await self._routers.closed()

    # What roads tell

    def road_opened(self, road: Road) -> None:
        """Somebody answers there."""
        self.owner.place_answered(road.place)

    def road_ended(self, road: Road, *, answered: bool) -> None:
        """A connection broke, or nobody answered."""
        if not self.is_closed:
            self.owner.place_failed(road.place, gone=not answered)

    async def _open_all(self, places: Sequence[str]) -> tuple[Physical, ...]:
        found: list[Physical] = []
        try:
            for place in places:
                found += [await self._open(place)]
        except BaseException:
            for place in found:
                self._servers.pop(place).close()
            raise
        return tuple(found)

    async def _open(self, place: str) -> Physical:
        host, _ = parse_place(place)
        if host in {"0.0.0.0", "::"}:  # noqa: S104 - that is what is refused
            raise LocalError(
                f"{place} is no place where others can reach a member",
                rule="LA-3",
                hint="give each address that they are to use",
            )
        tls = self.access.tls
        at: list[Physical] = []
        make: Callable[[], Doorway] = lambda: Doorway(self, at[0])  # noqa: E731
        context = tls.for_listener() if tls else None
        server = await open_listener(make, place, backlog=1024, tls=context)
        at.append(place_of(server.sockets[0].getsockname()))
        self._servers[at[0]] = server
        return at[0]


def _own_host(known: str) -> str:
    """The address of this machine from which a place is reached; nothing is sent there."""
    host, port = parse_place(known)
    family, _, _, _, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        found = str(probe.getsockname()[0])
    return f"[{found}]" if ":" in found else found
