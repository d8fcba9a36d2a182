"""The console as a whole: a fleet that is watched, and a web server that shows it.

The only file here that opens a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from uvicorn import Config, Server

from waystation.console.auth import (
    AllowedHosts,
    AuthMiddleware,
    TokenAuth,
    check_token,
    is_loopback,
)
from waystation.console.fleet import Fleet
from waystation.console.pages import Pages
from waystation.console.sending import Sender
from waystation.console.views import Views
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import listening_at
from waystation.node import Node

_DRAIN: Final = 3  # seconds that answers have to be written at the end
_BACKLOG: Final = 128
_CONNECTIONS: Final = 500  # at a time; more are told to come later


class Settings(Struct, frozen=True, kw_only=True):
    """What the console watches, and where it listens.

    If other machines can reach it, a token is required: `token`, or a random one. `allowed` are
    additional host names to accept, such as that of a proxy.
    """

    connect: tuple[str, ...]
    listen: str = "127.0.0.1:8480"
    token: str | None = None
    allowed: tuple[str, ...] = ()
    journal: Path | None = None
    tables: Path | None = None
    interval: float = 1.0


class _Server(Server):
    """A server that leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Console:
    """A running console; `url` is its address, with the token if that is a random one."""

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    @asynccontextmanager
    async def running(cls, node: Node, settings: Settings) -> AsyncIterator[Console]:
        """Run a console over a node that can reach all URLs; the node is not closed."""
        host, _ = parse_place(settings.listen)
        made = None
        if settings.token is None and not is_loopback(host):
            made = secrets.token_urlsafe(24)
        token = made if settings.token is None else check_token(settings.token)
        with _bound(settings.listen) as listener:
            place = place_of(listener.getsockname())
            auth = TokenAuth(token, listener.getsockname()[1])
            fleet = Fleet(node, settings.interval)
            sender = Sender(node, settings.journal)
            views = Views(fleet, sender, settings.journal, settings.tables)
            pages = Pages(fleet, sender, views, auth)
            server = _server(AuthMiddleware(pages.app, AllowedHosts(host, settings.allowed), auth))
            try:
                await fleet.watch(settings.connect)
                async with _serving(server, listener, pages):
                    yield cls(f"http://{place}/" + (f"login?token={made}" if made else ""))
            finally:
                await sender.close()
                await fleet.close()


def _server(guard: AuthMiddleware) -> _Server:
    return _Server(
        Config(
            guard,
            lifespan="off",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_DRAIN,
        )
    )


@asynccontextmanager
async def _serving(server: _Server, listener: socket.socket, pages: Pages) -> AsyncIterator[None]:
    task = asyncio.create_task(server.serve([listener]), name="waystation console pages")
    try:
        yield
    finally:
        pages.end()
        server.should_exit = True
        await task


@contextlib.contextmanager
def _bound(place: str) -> Iterator[socket.socket]:
    """A listening socket at a place."""
    host, port = parse_place(place)
    with listening_at(place):
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    with listener:
        yield listener
