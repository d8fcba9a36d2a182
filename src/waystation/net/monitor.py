"""The small HTTP port for monitoring: GET /metrics and GET /health, nothing else.

Node, gossip router and broker share it. Each connection gets one response and ends. A request is a
few lines, and has to be complete within a few seconds.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final, Protocol

from msgspec import Struct, json

from waystation.net.connection import Connection, ConnectionLimits
from waystation.net.hosts import HostNames, host_name
from waystation.net.metrics import CONTENT_TYPE
from waystation.net.place import parse_place
from waystation.net.server import Server, ServerLimits

_log = logging.getLogger("waystation.monitor")

_HEAD_LIMIT: Final = 8192
_SERVER_LIMITS: Final = ServerLimits(connections=64)


class Health(Struct, frozen=True, kw_only=True):
    """Whether a program takes new work, and where it listens."""

    draining: bool
    listening: str | list[str]


class Monitored(Protocol):
    """A program that can be monitored."""

    def metrics(self) -> str:
        """The text for Prometheus."""

    def health(self) -> Health:
        """Whether it takes new work."""


class Monitor(Server):
    """The HTTP port of one program; a client has `timeout` seconds for its request."""

    def __init__(self, subject: Monitored, *, timeout: float = 5.0) -> None:
        self._subject = subject
        limits = ConnectionLimits(first_byte=timeout, linger=timeout)
        super().__init__(lambda: _Request(self, limits), limits=_SERVER_LIMITS, log=_log)

    def is_known_as(self, host: str) -> bool:
        """Whether it may be asked under a name.

        A page of another site can have its own name point to this machine, and read through the
        browser what only this machine may read.
        """
        names = HostNames(parse_place(self.place)[0], [host_name()])
        return not names.is_local or host in names

    def respond(self, method: str, path: str) -> tuple[HTTPStatus, str, bytes]:
        """The status, the content type and the body for a request."""
        if method not in {"GET", "HEAD"}:
            return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"only GET is supported\n"
        match path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE, self._subject.metrics().encode()
            case "/health":
                health = self._subject.health()
                status = HTTPStatus.SERVICE_UNAVAILABLE if health.draining else HTTPStatus.OK
                word = "draining" if health.draining else "ok"
                body = json.encode({"status": word, "listening": health.listening})
                return status, "application/json", body + b"\n"
        return HTTPStatus.NOT_FOUND, "text/plain", b"try /metrics or /health\n"


class _Request(Connection):
    """One connection; the first-byte deadline holds for the whole request."""

    __slots__ = ("_head", "_monitor")

    def __init__(self, monitor: Monitor, limits: ConnectionLimits) -> None:
        super().__init__(limits)
        self._monitor = monitor
        self._head = bytearray()

    def on_data(self, data: bytes) -> None:
        """Respond as soon as the head is complete."""
        self._head += data
        if b"\r\n\r\n" not in self._head:
            if len(self._head) > _HEAD_LIMIT:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self._respond(status, "text/plain", b"the request is too large\n")
            return
        first, *headers = bytes(self._head).decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._respond(HTTPStatus.BAD_REQUEST, "text/plain", b"not an HTTP/1.1 request\n")
            return
        if not all(map(self._monitor.is_known_as, filter(None, map(_host, headers)))):
            text = b"this program is not known by that name\n"
            self._respond(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", text)
            return
        status, kind, body = self._monitor.respond(words[0], words[1])
        self._respond(status, kind, body, send_body=words[0] != "HEAD")

    def count_unfinished(self) -> int:
        """The head, for which the first-byte deadline holds as well."""
        return len(self._head)

    def _respond(
        self, status: HTTPStatus, kind: str, body: bytes, *, send_body: bool = True
    ) -> None:
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.write(head.encode("latin-1") + (body if send_body else b""))
        self.close()


def _host(header: str) -> str:
    """The name in a header Host; empty for other headers."""
    name, _, value = header.partition(":")
    return value.strip() if name.strip().lower() == "host" else ""
