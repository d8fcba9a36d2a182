"""The console as a whole: a fleet that is watched, and a web server that shows it.

The only file here that listens; the sockets are those of net/asgi.py.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from waystation.console.auth import AuthMiddleware, TokenAuth, check_token
from waystation.console.fleet import Fleet
from waystation.console.pages import Pages
from waystation.console.sending import Sender
from waystation.console.views import Views
from waystation.core.budget import MIB
from waystation.net.asgi import HttpServer
from waystation.net.connection import ConnectionLimits
from waystation.net.hosts import HostNames, is_loopback
from waystation.net.place import parse_place
from waystation.net.server import ServerLimits
from waystation.node import Node

_DRAIN: Final = 3.0  # seconds to write the remaining responses at the end
_LIMITS: Final = ServerLimits(connections=1000, input=16 * MIB, backlog=128)
_BUSY: Final = 500  # connections; with more, requests get 503

_log = logging.getLogger("waystation.console")


class Settings(Struct, frozen=True, kw_only=True):
    """What the console watches, and where it listens.

    If other machines can reach it, a token is required: `token`, or a random one. `allowed` are
    additional host names to accept, such as that of a proxy. At most `kept` sent messages are
    remembered, and in flight at the same time; after the end of a message, its rows in the journal
    are awaited for `journal_wait` seconds, since journals are flushed once a second. A
    client has `request` seconds for the head of a request, and again for its body. Durable
    messages of `stores`, directories of nodes on this machine, are shown, retried and dropped.
    """

    connect: tuple[str, ...]
    listen: str = "127.0.0.1:8480"
    token: str | None = None
    allowed: tuple[str, ...] = ()
    journal: Path | None = None
    tables: Path | None = None
    stores: tuple[Path, ...] = ()
    interval: float = 1.0
    kept: int = 50
    journal_wait: float = 3.0
    request: float = 10.0


class Console:
    """A running console; `url` is its address, with the token if that is a random one."""

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    @asynccontextmanager
    async def running(cls, node: Node, settings: Settings) -> AsyncIterator[Console]:
        """Run a console over a node that can reach all URLs; the node is not closed."""
        host, port = parse_place(settings.listen)
        made = None
        if settings.token is None and not is_loopback(host):
            made = secrets.token_urlsafe(24)
        token = made if settings.token is None else check_token(settings.token)
        host_names = HostNames(host, settings.allowed)
        fleet = Fleet(node, settings.interval)
        sender = Sender(
            node, settings.journal, kept=settings.kept, journal_wait=settings.journal_wait
        )
        views = Views(fleet, sender, settings.journal, settings.tables, settings.stores)
        auth = TokenAuth(token, port)
        pages = Pages(fleet, sender, views, auth)
        server = HttpServer(
            AuthMiddleware(pages.app, host_names, auth),
            limits=_LIMITS,
            connection_limits=ConnectionLimits(first_byte=settings.request, frame=settings.request),
            body=settings.request,
            busy=_BUSY,
            log=_log,
        )
        try:
            await server.start(settings.listen)
            auth.port = parse_place(server.place)[1]  # if it was 0, any would do
            await fleet.watch(settings.connect)
            yield cls(f"http://{server.place}/" + (f"login?token={made}" if made else ""))
        finally:
            pages.end()
            await server.drain(_DRAIN)
            await sender.close()
            await fleet.close()
