"""Datagram sockets: opened, read in batches, and written without ever waiting."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from waystation.net.place import parse_place, place_of
from waystation.net.sockets import listening_at, new_socket, reason_of

READS: Final = 128
"""This many datagrams are read in one turn of the event loop, before others have theirs."""

SocketAddress: TypeAlias = tuple[Any, ...]
"""Where a datagram goes or comes from, as the system writes it."""

OpenSocket: TypeAlias = socket.socket
"""A socket that one of the functions below opened."""

Datagram: TypeAlias = tuple[bytes, SocketAddress]


class DatagramSocket:
    """A socket whose datagrams are handed in by batches.

    At most `longest` bytes of each are read. `received` gets what one turn brought, `writable` is
    called when the system takes datagrams again after it took none, `failed` gets the system's
    errors, as when nobody is at the peer's port.
    """

    def __init__(
        self,
        opened: OpenSocket,
        longest: int,
        received: Callable[[list[Datagram]], None],
        writable: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self.is_full = False  # the system takes no datagram at the moment
        self.place = place_of(opened.getsockname())
        self._socket = opened
        self._longest = longest
        self._received = received
        self._writable = writable
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(opened, self._read)

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._socket.fileno() >= 0

    @property
    def peer(self) -> SocketAddress:
        """Where a connected socket sends to."""
        found: SocketAddress = self._socket.getpeername()
        return found

    def send(self, datagram: bytes, to: SocketAddress | None = None) -> bool:
        """Send a datagram, to the connected peer by default; False if it was not taken."""
        if self.is_full:
            return False
        try:
            if to is None:
                self._socket.send(datagram)
            else:
                self._socket.sendto(datagram, to)
        except (BlockingIOError, InterruptedError):
            self.is_full = True
            self._loop.add_writer(self._socket, self._drain)
            return False
        except OSError as error:
            self._failed(error)
        return True

    def close(self) -> None:
        """Close the socket."""
        if self.is_open:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _read(self) -> None:
        batch: list[Datagram] = []
        receive, longest = self._socket.recvfrom, self._longest
        for _ in range(READS):
            try:
                batch.append(receive(longest))
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._failed(error)
                break
        if batch:
            self._received(batch)

    def _drain(self) -> None:
        self.is_full = False
        self._loop.remove_writer(self._socket)
        self._writable()


async def resolve_datagram(place: str) -> list[tuple[int, SocketAddress]]:
    """The address families and addresses of a place."""
    host, port = parse_place(place)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return [(family, address) for family, _, _, _, address in found]


async def bound_socket(place: str, buffer: int) -> OpenSocket:
    """A socket that receives what is sent to a place; port 0 takes a free one."""
    with listening_at(place):
        family, address = (await resolve_datagram(place))[0]
        with _datagram_socket(family, buffer) as made:
            made.bind(address)
    return made


async def dialled_socket(places: Sequence[str], buffer: int) -> OpenSocket:
    """A socket that sends to the first of these places that there is a way to.

    An OSError says why there is none; whether somebody is there, nobody knows yet.
    """
    errors: list[str] = []
    for place in places:
        try:
            candidates = await resolve_datagram(place)
        except (OSError, ValueError) as error:  # the latter from names that no resolver takes
            errors.append(f"{place}: {error}")
            continue
        for family, address in candidates:
            try:
                return connected_socket(family, address, buffer)
            except OSError as error:
                errors.append(f"{place_of(address)}: {reason_of(error)}")
    raise ConnectionError("; ".join(errors) or "no address to connect to")


def connected_socket(family: int, address: SocketAddress, buffer: int) -> OpenSocket:
    """A socket that sends to one place and receives from there only."""
    with _datagram_socket(family, buffer) as made:
        made.connect(address)
    return made


def multicast_sender(interface: str, buffer: int) -> OpenSocket:
    """A socket of its own on an interface, which also sends to multicast addresses from there."""
    with _datagram_socket(socket.AF_INET, buffer) as made:
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        # What is sent on the loopback interface is for this machine alone.
        ttl = 0 if interface.startswith("127.") else 1
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        made.bind((interface, 0))
    return made


def multicast_receiver(interface: str, group: tuple[str, int], buffer: int) -> OpenSocket:
    """A socket that receives a multicast address, beside those of others on this machine."""
    host, port = group
    with _datagram_socket(socket.AF_INET, buffer) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        joined = struct.pack("4s4s", socket.inet_aton(host), socket.inet_aton(interface))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
    return made


@contextmanager
def _datagram_socket(family: int, buffer: int) -> Iterator[OpenSocket]:
    """A new socket, which is closed if it cannot be set up."""
    made = new_socket(family, socket.SOCK_DGRAM)
    try:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            made.setsockopt(socket.SOL_SOCKET, option, buffer)
        yield made
    except BaseException:
        made.close()
        raise
