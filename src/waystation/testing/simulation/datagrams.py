"""Datagram sockets of the simulated network."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from waystation.testing.simulation.process import Process

if TYPE_CHECKING:
    from waystation.testing.simulation.network import Network

QUEUE: Final = 1_000
"""Datagrams that a socket keeps for a program that does not read them; further ones are lost."""


class SentOrder:
    """The order of what one socket sends to another."""

    last_arrival = 0.0


class DatagramSocket:
    """A socket as `waystation.net.datagrams` uses it."""

    def __init__(self, network: Network, process: Process) -> None:
        self.process = process
        self.address = ("", 0)
        self._network = network
        self._peer: tuple[str, int] | None = None
        self._waiting: deque[tuple[bytes, tuple[str, int]]] = deque()
        self._readable: Callable[[], None] | None = None
        self._closed = False
        self._orders: dict[DatagramSocket, SentOrder] = {}
        process.sockets[self] = None

    def setblocking(self, flag: bool) -> None:
        """Never wait, as ever."""

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Receive a multicast address; other options mean nothing here."""
        if (level, option) == (socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP):
            assert socket.inet_ntoa(value[:4]) == self.address[0]

    def bind(self, address: tuple[str, int]) -> None:
        """Receive what is sent there."""
        host, port = address
        if not host or host.startswith(("0.", "127.")):
            host = self.process.machine.address
        self.address = (host, port or self._network.free_port(self.process.machine))
        self._network.bind_datagrams(self, self.address)

    def connect(self, address: tuple[str, int]) -> None:
        """Send there, and receive from there only."""
        self._peer = address
        if not self.address[1]:
            self.bind(("", 0))

    def getsockname(self) -> tuple[str, int]:
        """Where it receives."""
        return self.address

    def getpeername(self) -> tuple[str, int]:
        """Where it sends to."""
        assert self._peer is not None
        return self._peer

    def fileno(self) -> int:
        """Negative once it is closed."""
        return -1 if self._closed else 0

    def send(self, data: bytes) -> int:
        """Send to the peer."""
        return self.sendto(data, self.getpeername())

    def sendto(self, data: bytes, address: tuple[str, int]) -> int:
        """Send to an address."""
        if not self.address[1]:
            self.bind(("", 0))
        self._network.send_datagram(self, bytes(data), address)
        return len(data)

    def recvfrom(self, size: int) -> tuple[bytes, tuple[str, int]]:
        """The next datagram."""
        if not self._waiting:
            raise BlockingIOError
        data, source = self._waiting.popleft()
        return data[:size], source

    def on_readable(self, act: Callable[[], None] | None) -> None:
        """Have a function called when there is something to read."""
        self._readable = act

    def arrival(self, data: bytes, source: tuple[str, int]) -> Callable[[], None]:
        """What to do when a datagram arrives."""

        def arrive() -> None:
            if self._closed or (self._peer is not None and source != self._peer):
                return
            if len(self._waiting) < QUEUE:
                self._waiting.append((data, source))
            if self._readable is not None:
                self._readable()

        return arrive

    def order_to(self, target: DatagramSocket) -> SentOrder:
        """The order in which what is sent from here arrives there."""
        return self._orders.setdefault(target, SentOrder())

    def close(self) -> None:
        """Receive nothing more."""
        self._closed = True
        self._network.unbind_datagrams(self)
        self.process.sockets.pop(self, None)
