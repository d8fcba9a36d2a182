"""What all our TCP sockets have in common: how they are set up, and how a listener fails."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_ACKNOWLEDGED: Final = struct.Struct("120xQ")
"""Where `tcpi_bytes_acked` stands in what Linux tells of a connection."""


def new_socket(family: int, kind: int) -> socket.socket:
    """A socket that never blocks; a loop that simulates its network makes one of that."""
    make = getattr(asyncio.get_running_loop(), "make_socket", socket.socket)
    made: socket.socket = make(family, kind)
    made.setblocking(False)
    return made


def prepare(
    found: socket.socket | None, dead: float, *, user_timeout: bool = False
) -> socket.socket | None:
    """Send small messages at once, and have the system probe a quiet peer's machine.

    After `dead` seconds without a sign of life, the system ends the connection. With `user_timeout`
    it also does so when the peer acknowledges nothing of what was sent for that long; without it,
    a peer that lives and is slow to read keeps its connection. Returns it, if it is TCP's.
    """
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(dead / 2)))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(dead / 6)))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    if user_timeout:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(dead * 1000))
    return found


def acknowledge_at_once(found: socket.socket) -> None:
    """Have the system acknowledge at once what it has received, this one time.

    A sender that has not set TCP_NODELAY holds back a small packet until the one before it is
    acknowledged, and the system by default waits 40 ms for something to send along with that.
    """
    if _QUICKACK is not None:
        with suppress(OSError):
            found.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


def acknowledged_bytes(found: socket.socket | None) -> int | None:
    """How many bytes the peer's system has taken so far; None where the system does not tell."""
    if found is None:
        return None
    try:
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
        acknowledged: int = _ACKNOWLEDGED.unpack(info)[0]
    except (AttributeError, OSError, struct.error):
        return None  # not TCP, not Linux, or closed
    return acknowledged


def reason_of(error: OSError) -> str:
    """Why the system did not do it, without the call that it refused."""
    if isinstance(error, ssl.SSLError):  # whose number is OpenSSL's and not the system's
        return str(error)
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)  # such as that of a resolver, which has numbers of its own


@contextmanager
def listening_at(place: str) -> Iterator[None]:
    """Have an error while a listener opens say where that was, and what to do."""
    try:
        yield
    except OSError as error:
        problem = f"cannot listen on {place}: {reason_of(error)}"
        hint = "give an address of this machine and a port that is free, or 0 for any"
        raise OSError(error.errno, f"{problem}; {hint}") from error
