"""The console as a whole: its node watches, its server shows, until it is told to end.

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

from waystation.console.fleet import Fleet
from waystation.console.guard import Doors, Guard, check_token
from waystation.console.pages import Pages
from waystation.console.post import Post
from waystation.console.views import Views
from waystation.net.asgi import HttpServer
from waystation.net.connection import ConnectionLimits
from waystation.net.hosts import HostNames, is_loopback
from waystation.net.place import parse_place
from waystation.net.server import ServerLimits
from waystation.node import Node

_DRAIN: Final = 3.0  # seconds that answers have to be written at the end
_LIMITS: Final = ServerLimits(connections=1000, frame=10.0, backlog=128)
_BUSY: Final = 500  # connections from which on requests are told to come later

_log = logging.getLogger("waystation.console")


class Settings(Struct, frozen=True, kw_only=True):
    """What the console watches, and where it shows it.

    Where others than this machine can come, a token is needed: `token`, or one that is made.
    `allowed` are further names that the page may be asked for under, as behind a proxy.
    """

    connect: tuple[str, ...]
    listen: str = "127.0.0.1:8480"
    token: str | None = None
    allowed: tuple[str, ...] = ()
    journal: Path | None = None
    tables: Path | None = None
    interval: float = 1.0


class Console:
    """A running console: `url` is where it is, with the token if one was made."""

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    @asynccontextmanager
    async def running(cls, node: Node, settings: Settings) -> AsyncIterator[Console]:
        """Watch and show, over a node that can reach all places; it is not closed by this."""
        host, port = parse_place(settings.listen)
        made = None
        if settings.token is None and not is_loopback(host):
            made = secrets.token_urlsafe(24)
        token = made if settings.token is None else check_token(settings.token)
        host_names = HostNames(host, settings.allowed)
        fleet = Fleet(node, settings.interval)
        post = Post(node, settings.journal)
        views = Views(fleet, post, settings.journal, settings.tables)
        doors = Doors(token, port)
        pages = Pages(fleet, post, views, doors)
        server = HttpServer(
            Guard(pages.app, host_names, doors),
            limits=_LIMITS,
            connection_limits=ConnectionLimits(),
            busy=_BUSY,
            log=_log,
        )
        try:
            await server.start(settings.listen)
            doors.port = parse_place(server.place)[1]  # if it was 0, any would do
            await fleet.watch(settings.connect)
            yield cls(f"http://{server.place}/" + (f"login?token={made}" if made else ""))
        finally:
            pages.end()
            await server.drain(_DRAIN)
            await post.close()
            await fleet.close()
