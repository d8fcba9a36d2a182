"""Direct TCP connections between members, with or without routers to find each other by (LA-9).

A member listens at one or more places, and dials the places of others. Packets go out over the
connections that it dialled, and come in over those that it accepted: who sent one stands in the
packet, never in the socket (LA-11). A connection begins with a greeting that names the group; then
every packet has its length in front.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from waystation.core.discovery import DiscoveryMethod
from waystation.core.identity import Physical, Uuid
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.groups.carrier import Carrier
from waystation.groups.router_client import ClientConnection
from waystation.groups.routers import Routers
from waystation.groups.settings import CarrierSettings
from waystation.net.backoff import Backoff
from waystation.net.connection import Connection, ConnectionLimits, Failure
from waystation.net.hosts import own_host_towards
from waystation.net.place import parse_place, place_of
from waystation.net.server import Server, ServerLimits
from waystation.net.tasks import Tasks

if TYPE_CHECKING:
    from waystation.groups.streams import Streams

GREETING: Final = b"WSGM\x01"
"""The first bytes of a connection: our members, and the version of what follows."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds before a place that did not answer is dialled again: doubling between these two."""

LIMIT: Final = 16 << 20

_LENGTH: Final = struct.Struct(">I")
_NAME: Final = struct.Struct(">H")

_log = logging.getLogger("waystation.group")


def greeting(group: str) -> bytes:
    r"""What stands before the first packet of a connection.

    >>> greeting("fleet")
    b'WSGM\x01\x00\x05fleet'
    """
    name = group.encode()
    return GREETING + _NAME.pack(len(name)) + name


class PacketDecoder:
    r"""A stream of packets with their lengths in front, in pieces of any size.

    >>> decoder = PacketDecoder()
    >>> decoder.feed(b"\0\0\0\2hi\0\0"), decoder.feed(b"\0\1!")
    ([b'hi'], [b'!'])
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.is_broken = False
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = self._need = 0  # bytes in the pieces, and before they are worth a look

    @property
    def held(self) -> int:
        """How many bytes there are of a packet that is not complete."""
        return self._size

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


class AcceptedConnection(Connection):
    """A connection that another member dialled: packets come in, after the right greeting."""

    def __init__(self, direct: Direct, server: Server, limits: ConnectionLimits) -> None:
        super().__init__(limits)
        self._direct = direct
        self._refuse = server.refuse
        self._greeting = b""  # as much as came of it
        self._decoder = PacketDecoder()

    def on_data(self, data: bytes) -> None:
        """Hand in the packets."""
        if self.is_greeting:
            data = self._after_greeting(data)
            if not data:
                return
        decoder = self._decoder
        packets = decoder.feed(data)
        if packets:
            self._direct.owner.take_packets(packets)
        if decoder.is_broken:
            self.fail(Reason.TOO_LARGE, f"a packet of more than {LIMIT} bytes")

    def count_unfinished(self) -> int:
        """What is there of a packet; the greeting has the first-byte deadline."""
        return self._decoder.held

    def on_closed(self, failure: Failure | None) -> None:
        """Count and log why it was not kept; that its machine is gone, the streams notice."""
        if failure is not None and failure.reason is not Reason.TRANSPORT_DOWN:
            self._refuse(failure.reason.value, self.place, failure.detail)

    def _after_greeting(self, data: bytes) -> bytes:
        """What comes behind the greeting; a wrong one ends the connection."""
        self._greeting = got = self._greeting + data
        expected = self._direct.greeting
        size = min(len(got), len(expected))
        if got[:size] != expected[:size]:
            self.fail(Reason.REFUSED, "the greeting is not that of a member of this group")
        elif size == len(expected):
            self.peer_spoke()
            _log.debug("%s: greeted", self.place)
            return got[size:]
        return b""


class DialledConnection(ClientConnection):
    """A connection to a place of another member, which says nothing over it."""

    def __init__(self, destination: Destination, direct: Direct) -> None:
        super().__init__(destination.place, direct.settings, direct.owner.writable)
        self._destination = destination
        self.queue(direct.greeting)

    def on_closed(self, failure: Failure | None) -> None:
        """Have what was lost sent again, over this place or another."""
        super().on_closed(failure)
        self._destination.connection_ended(self)


class Destination:
    """One place of another member: dialled when something is to go there."""

    def __init__(self, direct: Direct, place: Physical) -> None:
        self.place = place
        self.connection: DialledConnection | None = None  # open, or being dialled
        self._direct = direct
        self._dialling = Tasks()
        self._dialled_at = self._retry_at = 0.0
        self._backoff = Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)

    def send(self, packet: bytes) -> None:
        """Take a packet there, with the others of this turn; dial if need be."""
        connection = self.connection or self._dial()
        if connection is not None:
            connection.put(_LENGTH.pack(len(packet)), packet)

    def flush(self) -> None:
        """Write what this turn brought."""
        if self.connection is not None and self.connection.is_open:
            self.connection.flush()

    def close(self) -> None:
        """Write what is left, and end."""
        self._dialling.cancel()
        if self.connection is not None:
            self.connection.close()

    def connection_ended(self, connection: DialledConnection) -> None:
        """A connection broke, or was closed; one that did not last is not dialled again at once."""
        if self.connection is connection:
            self.connection = None
            now = asyncio.get_running_loop().time()
            if now - self._dialled_at >= LONGEST_PAUSE:
                self._backoff.reset()
            else:
                self._retry_at = now + self._backoff.next()
            self._direct.owner.place_failed(self.place, gone=False)

    def _dial(self) -> DialledConnection | None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            return None
        self._dialled_at = loop.time()
        self.connection = DialledConnection(self, self._direct)
        self._dialling.start(self._connect(self.connection), f"dial {self.place}")
        return self.connection

    async def _connect(self, connection: DialledConnection) -> None:
        direct = self._direct
        try:
            await connection.dial()
        except OSError as error:
            _log.debug("%s: %s", self.place, error)
            self.connection = None
            self._retry_at = asyncio.get_running_loop().time() + self._backoff.next()
            direct.owner.place_failed(self.place, gone=True)
        else:
            direct.owner.membership.place_answered(self.place)


class Direct(Carrier):
    """Connections from member to member."""

    limit = LIMIT

    def __init__(
        self,
        listen: Sequence[str],
        known: Sequence[str],
        routers: Sequence[str],
        settings: CarrierSettings,
        owner: Streams,
    ) -> None:
        self.settings = settings
        self.owner = owner
        self.greeting = greeting(settings.group)
        self.is_closed = False
        self.servers: dict[Physical, Server] = {}
        self.destinations: dict[Physical, Destination] = {}
        self.routers = Routers(routers, settings, owner)
        self._listen = listen or [place_of((own_host_towards(known[0]), 0))]
        self._unflushed: dict[Physical, Destination] = {}

    @property
    def is_open(self) -> bool:
        """Whether others can be reached."""
        return bool(self.servers) and not self.is_closed

    @property
    def failure(self) -> str:
        """Why no router says who is there."""
        return self.routers.failure

    async def open(self) -> tuple[Physical, ...]:
        """Listen."""
        return await self._open_all(self._listen)

    def start(self) -> None:
        """Find the others."""
        self.routers.start()
        if self.owner.method is DiscoveryMethod.HOSTS:
            self.owner.opened()

    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Take a packet to whoever is at a place."""
        del uuid
        if place is None or place in self.servers or self.is_closed:
            return  # that is here, or nowhere
        destination = self.destinations.get(place)
        if destination is None:
            destination = self.destinations[place] = Destination(self, place)
        destination.send(packet)
        self._unflushed[place] = destination

    def has_room(self, uuid: Uuid, place: Physical | None) -> bool:
        """Whether the connection to a place takes messages, if there is one."""
        del uuid
        destination = None if place is None else self.destinations.get(place)
        connection = None if destination is None else destination.connection
        return connection is None or connection.has_room

    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """There is no such way: each member gets its own copy."""
        raise AssertionError((packet, notice))

    def ask(self) -> None:
        """Ask the routers who is there."""
        self.routers.ask()

    def flush(self) -> None:
        """Write what this turn brought."""
        for destination in self._unflushed.values():
            destination.flush()
        self._unflushed.clear()
        self.routers.flush()

    async def move(self, places: Sequence[str]) -> tuple[Physical, ...]:
        """Listen there, and no longer where it was; who is connected there has to dial again."""
        stay = [place for place in self.servers if place in places]
        leaving = [place for place in self.servers if place not in stay]
        found = await self._open_all([place for place in places if place not in stay])
        for place in leaving:
            _end(self.servers.pop(place))
        return (*stay, *found)

    def moved(self) -> None:
        """Tell the routers."""
        self.routers.moved()

    def close(self) -> None:
        """Accept nobody, write what is left, and end."""
        if self.is_closed:
            return
        self.flush()
        self.is_closed = True
        for server in self.servers.values():
            server.close()
        for destination in self.destinations.values():
            destination.close()
        self.routers.close()

    async def wait_closed(self) -> None:
        """Wait until what was left is written, and end all connections."""
        open_ones = [each.connection for each in self.destinations.values()]
        ends = [each.ended for each in open_ones if each is not None and each.transport is not None]
        if ends:
            await asyncio.wait(ends, timeout=self.settings.limits.linger + 1)  # all end by then
        for server in self.servers.values():
            _end(server)
        await self.routers.wait_closed()
        await asyncio.sleep(0)  # in which aborted connections close their sockets

    async def _open_all(self, places: Sequence[str]) -> tuple[Physical, ...]:
        found: list[Physical] = []
        try:
            for place in places:
                found += [await self._open(place)]
        except BaseException:
            for place in found:
                self.servers.pop(place).close()
            raise
        return tuple(found)

    async def _open(self, place: str) -> Physical:
        host, _ = parse_place(place)
        if host in {"0.0.0.0", "::"}:  # noqa: S104 - that is what is refused
            raise LocalError(
                f"other members cannot reach {place}",
                rule="LA-3",
                hint="listen on each address that they are to use",
            )
        limits = self.settings.limits
        of_connections = ConnectionLimits(
            first_byte=limits.greeting, frame=limits.frame, linger=limits.linger
        )
        server = Server(
            lambda: AcceptedConnection(self, server, of_connections),
            limits=ServerLimits(
                connections=limits.connections, handshake=limits.greeting, input=limits.input
            ),
            tls=self.settings.tls,
            log=_log,
        )
        await server.start(place)
        self.servers[server.place] = server
        return server.place


def _end(server: Server) -> None:
    """Accept nobody, and end the connections that are there."""
    server.close()
    for connection in list(server.connections):
        connection.abort()
