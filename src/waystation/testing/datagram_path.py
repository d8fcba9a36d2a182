"""A way between two UDP peers on which things go wrong when they are told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from waystation.net.datagrams import (
    Datagram,
    DatagramSocket,
    OpenSocket,
    SocketAddress,
    bound_socket,
    connected_socket,
    resolve_datagram,
)

_BUFFER: Final = 4 * 1024 * 1024
_LONGEST: Final = 65536


class DatagramPath:
    """A proxy for datagrams. Who was cut off stays cut off: only a new socket gets through again.

    Beside the faults of every path, `lose` drops each datagram whose turn it is.
    """

    def __init__(self, front: OpenSocket, target: tuple[int, SocketAddress]) -> None:
        self._target = target
        self._front = DatagramSocket(front, _LONGEST, self._forward, _ignore, _ignore)
        self._ways: dict[SocketAddress, DatagramSocket] = {}
        self._cut: set[SocketAddress] = set()
        self._frozen = False
        self._refusing = False
        self._left: int | None = None
        self._lost: frozenset[int] = frozenset()
        self._passed = 0
        self._counted_from = 0  # bytes
        self.place = self._front.place

    def cut(self) -> None:
        """Let nobody through who has come this way."""
        self._left = None
        self._cut.update(self._ways)
        for way in self._ways.values():
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

    def lose(self, *numbers: int, at_least: int = 0) -> None:
        """Drop the datagrams to the listener with these numbers, counted from now and 0.

        Only those of `at_least` so many bytes are counted, and dropped.
        """
        self._passed = 0
        self._counted_from = at_least
        self._lost = frozenset(numbers)

    def close(self) -> None:
        """End it."""
        self.cut()
        self._front.close()

    def _forward(self, datagrams: list[Datagram]) -> None:
        for data, source in datagrams:
            self._pass(data, source)

    def _pass(self, data: bytes, source: SocketAddress) -> None:
        number = -1
        if len(data) >= self._counted_from:
            number, self._passed = self._passed, self._passed + 1
        way = self._ways.get(source)
        new = way is None
        if self._frozen or source in self._cut or (new and self._refusing) or number in self._lost:
            return
        if way is None:
            way = self._ways[source] = DatagramSocket(
                connected_socket(*self._target, _BUFFER),
                _LONGEST,
                partial(self._back, source),
                _ignore,
                _ignore,
            )
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self.cut()
                return
        way.send(data)

    def _back(self, source: SocketAddress, datagrams: list[Datagram]) -> None:
        for data, _ in datagrams:
            if not self._frozen:
                self._front.send(data, source)


def _ignore(_: OSError | None = None) -> None:
    """Let a datagram be lost, as when nobody is there."""


@asynccontextmanager
async def udp_path(target: str) -> AsyncIterator[DatagramPath]:
    """A faulty path to a UDP listener, on this machine's loopback interface."""
    family_and_address = (await resolve_datagram(target))[0]
    path = DatagramPath(await bound_socket("127.0.0.1:0", _BUFFER), family_and_address)
    try:
        yield path
    finally:
        path.close()
