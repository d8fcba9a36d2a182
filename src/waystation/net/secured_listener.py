"""Accepting connections over TLS, so that it is known who failed to get in, and why.

An event loop's own server tells nobody of a handshake that failed. So the sockets are accepted
here, and each handshake is a task, which ends with it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from waystation.net.connection import BaseConnection
from waystation.net.place import place_of
from waystation.net.tasks import Tasks

_PAUSE: Final = 1.0
"""Seconds to wait when the system has no descriptors left."""

Failed = Callable[[BaseConnection, str, ssl.SSLError | None], None]
"""Told of a handshake that came to nothing: from where, and why; None if the client just went."""


class SecuredListener:
    """Listens on every address of a host; `make` makes a connection of each, or refuses it."""

    def __init__(
        self,
        make: Callable[[], BaseConnection | None],
        failed: Failed,
        context: ssl.SSLContext,
        handshake: float,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self._make = make
        self._failed = failed
        self._context = context
        self._handshake = handshake
        self._accepting = Tasks()
        self._handshakes = Tasks()

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Listen; an OSError says why that is not possible."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((info[0], info[4]) for info in found):
                self.sockets.append(_listening(family, address, backlog))
        except OSError:
            self.close()
            raise
        for listening in self.sockets:
            self._accepting.start(self._accept(listening), "TLS listener", endless=True)

    def close(self) -> None:
        """Accept no more; handshakes that have begun go on."""
        self._accepting.cancel()
        for listening in self.sockets:
            listening.close()

    def abandon(self) -> None:
        """End the handshakes that are under way."""
        self._handshakes.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError:  # no descriptors, or the client is gone already
                await asyncio.sleep(_PAUSE)
                continue
            made = self._make()
            if made is None:
                accepted.close()
            else:
                work = self._shake_hands(made, accepted, place_of(address))
                self._handshakes.start(work, "TLS handshake")

    async def _shake_hands(self, made: BaseConnection, accepted: socket.socket, place: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: cast("asyncio.BaseProtocol", made),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake,
            )
        except ssl.SSLError as error:
            self._failed(made, place, error)
        except (OSError, asyncio.CancelledError) as error:
            self._failed(made, place, None)
            if not isinstance(error, OSError):
                raise


def _listening(family: int, address: object, backlog: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)  # type: ignore[arg-type]
        made.listen(backlog)
    except OSError:
        made.close()
        raise
    return made


def explain(error: ssl.SSLError) -> str:
    """Why a handshake failed, in words.

    >>> explain(ssl.SSLError(1, "[SSL: HTTP_REQUEST] http request (_ssl.c:1000)"))
    'http request'
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    said = str(error.strerror or error)
    reason = getattr(error, "reason", None) or said.partition("] ")[2].partition(" (_ssl")[0]
    words = (reason or said).replace("_", " ").lower()
    if "alert" in words:
        return f"it refused us: {words.partition('alert ')[2]}"
    return words
