"""The small HTTP port for people and monitoring: GET /metrics and GET /health, nothing else.

Each connection gets one answer and ends. A request is a few lines, and comes within a few seconds.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final, cast

import msgspec

from waystation.gossip_router.metrics import CONTENT_TYPE, exposition
from waystation.gossip_router.server import GossipServer
from waystation.net.place import place_of
from waystation.net.sockets import open_listener

_HEAD_LIMIT: Final = 8192
_SECONDS: Final = 5.0
_CONNECTIONS: Final = 64


class Monitor:
    """The HTTP port of one router."""

    def __init__(self, router: GossipServer) -> None:
        self.router = router
        self.place = ""
        self.open = 0
        self._server: asyncio.Server | None = None

    async def start(self, place: str) -> None:
        """Listen; port 0 takes a free one, and `place` says which."""
        self._server = await open_listener(lambda: _Request(self), place)
        self.place = place_of(self._server.sockets[0].getsockname())

    def close(self) -> None:
        """Accept no more questions."""
        if self._server is not None:
            self._server.close()

    def answer(self, method: str, path: str) -> tuple[HTTPStatus, str, str]:
        """The status, the type and the text for a request."""
        if method not in {"GET", "HEAD"}:
            return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "GET is all there is\n"
        match path.partition("?")[0]:
            case "/metrics":
                text = exposition(self.router.counts, self.router.gauges())
                return HTTPStatus.OK, CONTENT_TYPE, text
            case "/health":
                draining = self.router.draining
                status = HTTPStatus.SERVICE_UNAVAILABLE if draining else HTTPStatus.OK
                health = {
                    "status": "draining" if draining else "ok",
                    "listening": self.router.place,
                }
                return status, "application/json", msgspec.json.encode(health).decode() + "\n"
        return HTTPStatus.NOT_FOUND, "text/plain", "there are /metrics and /health\n"


class _Request(asyncio.Protocol):
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._head = bytearray()
        self._done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._monitor.open += 1
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(_SECONDS, self._transport.abort)
        if self._monitor.open > _CONNECTIONS:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._monitor.open -= 1
        self._alarm.cancel()

    def data_received(self, data: bytes) -> None:
        if self._done:
            return
        self._head += data
        if b"\r\n\r\n" not in self._head:
            if len(self._head) > _HEAD_LIMIT:
                self._reply(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "text/plain", "too long\n")
            return
        words = bytes(self._head).split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._reply(HTTPStatus.BAD_REQUEST, "text/plain", "that is no HTTP/1.1\n")
            return
        self._reply(*self._monitor.answer(words[0], words[1]), body=words[0] != "HEAD")

    def _reply(self, status: HTTPStatus, kind: str, text: str, *, body: bool = True) -> None:
        self._done = True
        raw = text.encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + (raw if body else b""))
        self._transport.close()
