"""UDP: one multicast datagram for everybody, one of the usual sort for a member (LA-9).

A member has two sockets: one of its own, at its physical address, over which it sends everything,
and one that receives what is sent to the multicast address. The network may lose, double and
reorder datagrams; the streams see to that. Every datagram begins with the name of its group, since
several may share an address.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from waystation.core.budget import OVERHEAD
from waystation.core.identity import Physical, Uuid
from waystation.errors import LocalError
from waystation.groups.carrier import Carrier
from waystation.groups.direct import greeting
from waystation.groups.settings import CarrierSettings
from waystation.net.datagrams import (
    Datagram,
    DatagramSocket,
    OpenSocket,
    SocketAddress,
    multicast_receiver,
    multicast_sender,
)
from waystation.net.hosts import is_ipv4, is_multicast, own_host_towards
from waystation.net.place import parse_place
from waystation.net.sockets import listening_at

if TYPE_CHECKING:
    from waystation.groups.streams import Streams

LIMIT: Final = 65_000
"""No packet is larger; the network itself takes 65,507 bytes, with the greeting."""

LONGEST: Final = 65_535
BUFFER: Final = 4 << 20
"""Bytes that the system is asked to keep for each socket."""

WAITING: Final = 4 << 20
"""Bytes that wait while the system takes none; more are lost, and sent again later (FL-1)."""

_log = logging.getLogger("waystation.group")


class Multicast(Carrier):
    """Members that receive one multicast address."""

    limit = LIMIT

    def __init__(
        self, place: str, interface: str | None, settings: CarrierSettings, owner: Streams
    ) -> None:
        self.owner = owner
        self.sockets: list[DatagramSocket] = []  # the first one sends
        self._place = place
        self._everybody = host, port = parse_place(place)
        if not is_multicast(host) or not port:
            raise LocalError(
                f"invalid multicast address {place}",
                rule="LA-9",
                hint="give one of 224.0.0.0 to 239.255.255.255 and a port, as udp://239.1.2.3:45588",
            )
        self._interface = interface
        self._greeting = greeting(settings.group)
        self._waiting: deque[Datagram] = deque()
        self.waiting_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether the sockets are there."""
        return bool(self.sockets)

    async def open(self) -> tuple[Physical, ...]:
        """Open both sockets."""
        return self._open(self._interface or self._default_interface())

    def start(self) -> None:
        """Say hello."""
        self.owner.opened()

    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Send a datagram to a member's place."""
        del uuid
        address = None if place is None else parse_place(place)
        if address is not None and is_ipv4(address[0]):  # no name is looked up for a datagram
            self._send(packet, address)

    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """Send one datagram to everybody."""
        del notice
        self._send(packet, self._everybody)

    async def move(self, places: Sequence[str]) -> tuple[Physical, ...]:
        """Use another interface, the host of the first place."""
        before = self.sockets
        found = self._open(parse_place(places[0])[0])
        for each in before:
            each.close()
        return found

    def close(self) -> None:
        """Close the sockets."""
        for each in self.sockets:
            each.close()
        self.sockets = []

    def _open(self, interface: str) -> tuple[Physical, ...]:
        opened: list[DatagramSocket] = []
        try:
            with listening_at(f"{interface} for {self._place}"):
                opened.append(self._socket(multicast_sender(interface, BUFFER)))
                opened.append(self._socket(multicast_receiver(interface, self._everybody, BUFFER)))
        except BaseException:
            for each in opened:
                each.close()
            raise
        self.sockets = opened
        return (opened[0].place,)

    def _socket(self, opened: OpenSocket) -> DatagramSocket:
        return DatagramSocket(opened, LONGEST, self._received, self._drain, _note_failure)

    def _default_interface(self) -> str:
        """The address that the system would send a multicast from."""
        try:
            return own_host_towards(self._place)
        except OSError:  # no way leads there; the machine itself is always there
            return "127.0.0.1"

    def _received(self, datagrams: list[Datagram]) -> None:
        """Hand in what is for our group; where it came from does not matter (LA-11)."""
        head = self._greeting
        packets = [data[len(head) :] for data, _ in datagrams if data.startswith(head)]
        if packets:
            self.owner.take_packets(packets)

    def _send(self, packet: bytes, to: SocketAddress) -> None:
        if not self.sockets:
            return
        datagram = self._greeting + packet
        is_sent = not self._waiting and self.sockets[0].send(datagram, to)
        size = len(datagram) + OVERHEAD
        if not is_sent and self.waiting_bytes + size <= WAITING:
            self._waiting.append((datagram, to))
            self.waiting_bytes += size

    def _drain(self) -> None:
        while self._waiting and self.sockets and self.sockets[0].send(*self._waiting[0]):
            datagram, _ = self._waiting.popleft()
            self.waiting_bytes -= len(datagram) + OVERHEAD


def _note_failure(error: OSError) -> None:
    """Log it: the peer may be gone, and its silence will show that."""
    _log.debug("a datagram was not taken: %s", error)
