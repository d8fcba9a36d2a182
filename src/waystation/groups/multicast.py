"""UDP: one multicast datagram for everybody, one of the usual sort for a member (LA-9).

A member has two sockets: one that hears what is sent to the multicast address, and one of its own,
at its physical address, over which it sends everything. The network may lose, double and reorder
datagrams; the streams see to that. Every datagram begins with the name of its group, since several
may share an address.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from waystation.core.identity import Physical, Uuid
from waystation.errors import LocalError
from waystation.groups.carrier import CarrierOwner
from waystation.groups.direct import greeting
from waystation.groups.router_client import Access
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import listening_at

LIMIT: Final = 65_000
"""No packet is larger; the network itself takes 65,507 bytes, with the greeting."""

BUFFER: Final = 4 << 20
"""So many bytes the system is asked to keep for us."""


class Ear(asyncio.DatagramProtocol):
    """One socket's events."""

    def __init__(self, datagrams: Datagrams) -> None:
        self._datagrams = datagrams
        self._greeting = greeting(datagrams.access.group)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """Hand in what is for our group; where it came from does not matter (LA-11)."""
        del addr
        if data.startswith(self._greeting):
            self._datagrams.owner.packets([data[len(self._greeting) :]])

    def error_received(self, exc: Exception) -> None:
        """Nobody may be there any more: their silence will tell."""
        del exc


class Datagrams:
    """Members that hear one multicast address."""

    limit = LIMIT

    def __init__(
        self, place: str, interface: str | None, access: Access, owner: CarrierOwner
    ) -> None:
        self.access = access
        self.owner = owner
        self.failure = ""
        host, port = parse_place(place)
        self._everybody = (host, port)
        if not _is_multicast(host) or not port:
            raise LocalError(
                f"{place} is no multicast address with a port",
                rule="LA-9",
                hint="give one of 224.0.0.0 to 239.255.255.255, as udp://239.1.2.3:45588",
            )
        self._interface = interface
        self._transports: list[asyncio.DatagramTransport] = []
        self._greeting = greeting(access.group)

    @property
    def is_open(self) -> bool:
        """Whether the sockets are there."""
        return bool(self._transports)

    async def open(self) -> tuple[Physical, ...]:
        """Open both sockets."""
        interface = self._interface or _default_interface(self._everybody)
        return await self._open(interface)

    def start(self) -> None:
        """Say hello."""
        self.owner.opened()

    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Send a datagram to a member's place."""
        del uuid
        if place is not None:
            self.to_place(place, packet)

    def to_place(self, place: Physical, packet: bytes) -> None:
        """Send a datagram to a place."""
        host, port = parse_place(place)
        if self._transports and _is_address(host):  # no name is looked up for a datagram
            self._transports[0].sendto(self._greeting + packet, (host, port))

    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """Send one datagram to everybody."""
        del notice
        if self._transports:
            self._transports[0].sendto(self._greeting + packet, self._everybody)

    def ask(self) -> None:
        """There are no routers."""

    def flush(self) -> None:
        """Nothing is kept: a datagram is written at once."""

    async def move(self, places: Sequence[str]) -> tuple[Physical, ...]:
        """Use another interface, the host of the first place."""
        before = self._transports
        self._transports = []
        found = await self._open(parse_place(places[0])[0])
        for transport in before:
            transport.close()
        return found

    def moved(self) -> None:
        """The multicast has told everybody."""

    def close(self) -> None:
        """Close the sockets."""
        for transport in self._transports:
            transport.close()
        self._transports = []

    async def closed(self) -> None:
        """Nothing is left to wait for."""
        await asyncio.sleep(0)

    async def _open(self, interface: str) -> tuple[Physical, ...]:
        loop = asyncio.get_running_loop()
        opened: list[asyncio.DatagramTransport] = []
        try:
            with listening_at(f"{interface} for {place_of(self._everybody)}"):
                for sock in (_sender(interface), _hearer(interface, self._everybody)):
                    made, _ = await loop.create_datagram_endpoint(lambda: Ear(self), sock=sock)
                    opened.append(made)
        except BaseException:
            for transport in opened:
                transport.close()
            raise
        self._transports = opened
        return (place_of(opened[0].get_extra_info("sockname")),)


def _is_address(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return False
    return True


def _is_multicast(host: str) -> bool:
    return _is_address(host) and 224 <= socket.inet_aton(host)[0] <= 239


def _sender(interface: str) -> socket.socket:
    """The member's own socket."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    # What is sent on the loopback interface is for this machine alone.
    made.setsockopt(
        socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0 if interface.startswith("127.") else 1
    )
    made.bind((interface, 0))
    return made


def _hearer(interface: str, everybody: tuple[str, int]) -> socket.socket:
    """The socket that hears the multicast address, beside those of others on this machine."""
    host, port = everybody
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    made.bind((host, port))
    joined = struct.pack("4s4s", socket.inet_aton(host), socket.inet_aton(interface))
    made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
    return made


def _default_interface(everybody: tuple[str, int]) -> str:
    """The address that the system would send a multicast from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(everybody)
        except OSError:  # no way leads there; the machine itself is always there
            return "127.0.0.1"
        return str(probe.getsockname()[0])
