"""What a peer said before its connection died, and nobody has read yet.

When a write fails, an event loop ends the transport at once. What the peer had sent before that is
still in our system then: that it leaves, perhaps, which is not the same as having died. So it is
read before the end is told.

Over TLS the loop has closed the socket when it tells us. There a second descriptor keeps it open
until then, and what is found is decrypted here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_PIECE: Final = 64 * 1024
_MOST: Final = 16 << 20
"""Bytes that are read at most; a system holds less for one connection."""


class LastWords:
    """Reads them when a connection is lost, and is closed after that."""

    __slots__ = ("_incoming", "_secured", "_socket")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._socket: socket.socket | None = None
        self._secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._incoming: ssl.MemoryBIO | None = getattr(self._secured, "incoming", None)
        if self._incoming is not None:
            self._socket = _second(transport)

    def read(self, transport: asyncio.BaseTransport) -> Iterator[bytes]:
        """What was sent and not read, in pieces."""
        if self._secured is None:
            self._socket = _second(transport)
        found = self._socket
        if found is None:
            return
        if self._secured is None:
            yield from _received(found)
        elif self._incoming is not None:
            for data in _received(found):
                self._incoming.write(data)
                yield from _decrypted(self._secured)

    def close(self) -> None:
        """Give the second descriptor back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _second(transport: asyncio.BaseTransport) -> socket.socket | None:
    """The socket of a transport once more; None where there is none, as in a simulated network."""
    found = transport.get_extra_info("socket")
    try:
        copy = socket.socket(fileno=os.dup(found.fileno()))
    except (AttributeError, OSError, TypeError, ValueError):
        return None
    copy.setblocking(False)
    return copy


def _received(found: socket.socket) -> Iterator[bytes]:
    with suppress(OSError):  # there is no more, or it has said so before
        for _ in range(_MOST // _PIECE):
            data = found.recv(_PIECE)
            if not data:
                return
            yield data


def _decrypted(secured: ssl.SSLObject) -> Iterator[bytes]:
    with suppress(ssl.SSLError):  # it needs more, or has ended
        while data := secured.read(_PIECE):
            yield data
