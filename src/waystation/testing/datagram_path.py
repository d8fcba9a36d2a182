"""A way between two UDP peers on which things go wrong when they are told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
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

BUFFER: Final = 4 * 1024 * 1024
"""Bytes that the system keeps for each socket, so that only what shall be lost is lost."""

LONGEST: Final = 65536
"""Bytes of the longest datagram."""


class DatagramPath:
    """A proxy for datagrams. Who was cut off stays cut off: only a new socket gets through again.

    Beside the faults of every path, `lose` drops each datagram whose turn it is.
    """

    def __init__(self, front: OpenSocket, target: tuple[int, SocketAddress]) -> None:
        self._front = _watched(front, self._forward)
        self._target = target
        self._ways: dict[SocketAddress, DatagramSocket] = {}
        self._cut: set[SocketAddress] = set()
        self._frozen = False
        self._refusing = False
        self._left: int | None = None
        self._lost: frozenset[int] = frozenset()
        self._passed = 0
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

    def lose(self, *numbers: int) -> None:
        """Drop the datagrams to the listener with these numbers, counted from now and 0."""
        self._passed = 0
        self._lost = frozenset(numbers)

    def close(self) -> None:
        """End it."""
        self.cut()
        self._front.close()

    def _forward(self, batch: list[Datagram]) -> None:
        for data, source in batch:
            self._pass(data, source)

    def _pass(self, data: bytes, source: SocketAddress) -> None:
        number, self._passed = self._passed, self._passed + 1
        way = self._ways.get(source)
        refused = way is None and self._refusing
        if self._frozen or refused or source in self._cut or number in self._lost:
            return
        if way is None:
            opened = connected_socket(*self._target, BUFFER)
            way = self._ways[source] = _watched(opened, partial(self._back, source))
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self.cut()
                return
        way.send(data)

    def _back(self, source: SocketAddress, batch: list[Datagram]) -> None:
        for data, _ in batch:
            if not self._frozen:
                self._front.send(data, source)


def _watched(opened: OpenSocket, received: Callable[[list[Datagram]], None]) -> DatagramSocket:
    """A socket of a path: what the system does not take, or nobody receives, is lost."""
    return DatagramSocket(opened, LONGEST, received, lambda: None, lambda error: None)  # noqa: ARG005


@asynccontextmanager
async def udp_path(target: str) -> AsyncIterator[DatagramPath]:
    """A faulty path to a UDP listener, on this machine's loopback interface."""
    front = await bound_socket("127.0.0.1:0", BUFFER)
    path = DatagramPath(front, (await resolve_datagram(target))[0])
    try:
        yield path
    finally:
        path.close()
