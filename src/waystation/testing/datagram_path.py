"""A way between two UDP peers on which things go wrong when they are told to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waystation.net.place import parse_place, place_of


class DatagramPath:
    """A proxy for datagrams. Who was cut off stays cut off: only a new socket gets through again.

    Beside the faults of every path, `lose` drops each datagram whose turn it is.
    """

    def __init__(self, target: str) -> None:
        self._target = parse_place(target)
        self._loop = asyncio.get_running_loop()
        self._front = _bound_socket()
        self._ways: dict[tuple[object, ...], socket.socket] = {}
        self._cut: set[tuple[object, ...]] = set()
        self._frozen = False
        self._refusing = False
        self._left: int | None = None
        self._lost: frozenset[int] = frozenset()
        self._passed = 0
        self.place = place_of(self._front.getsockname())
        self._loop.add_reader(self._front, self._forward)

    def cut(self) -> None:
        """Let nobody through who has come this way."""
        self._left = None
        self._cut.update(self._ways)
        for way in self._ways.values():
            self._loop.remove_reader(way)
            way.close()
        self._ways.clear()

    def cut_after(self, size: int) -> None:
        """Do so after so many more bytes to the listener."""
        self._left = size

    def freeze(self) -> None:
        """Drop everything, both ways."""
        self._frozen = True

    def thaw(self) -> None:
        """Let datagrams through again; what came meanwhile is gone."""
        self._frozen = False

    def refuse(self, *, refuse: bool) -> None:
        """Drop what comes from new sockets, or no longer."""
        self._refusing = refuse

    def lose(self, *numbers: int) -> None:
        """Drop the datagrams to the listener with these numbers, counted from now and 0."""
        self._passed = 0
        self._lost = frozenset(numbers)

    def close(self) -> None:
        """End it."""
        self.cut()
        self._loop.remove_reader(self._front)
        self._front.close()

    def _forward(self) -> None:
        for _ in range(256):
            try:
                data, source = self._front.recvfrom(65536)
            except OSError:
                return
            self._pass(data, source)

    def _pass(self, data: bytes, source: tuple[object, ...]) -> None:
        number, self._passed = self._passed, self._passed + 1
        way = self._ways.get(source)
        new = way is None
        if self._frozen or source in self._cut or (new and self._refusing) or number in self._lost:
            return
        if way is None:
            way = self._ways[source] = _bound_socket()
            way.connect(self._target)
            self._loop.add_reader(way, self._back, way, source)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self.cut()
                return
        with contextlib.suppress(OSError):  # nobody is there
            way.send(data)

    def _back(self, way: socket.socket, source: tuple[object, ...]) -> None:
        for _ in range(256):
            try:
                data = way.recv(65536)
            except OSError:
                return
            if not self._frozen:
                with contextlib.suppress(OSError):
                    self._front.sendto(data, source)


def _bound_socket() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.setblocking(False)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
    found.bind(("127.0.0.1", 0))
    return found


@asynccontextmanager
async def udp_path(target: str) -> AsyncIterator[DatagramPath]:
    """A faulty path to a UDP listener, on this machine's loopback interface."""
    path = DatagramPath(target)
    try:
        yield path
    finally:
        path.close()
