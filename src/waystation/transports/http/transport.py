"""HTTP, for networks and clients that have nothing else: the transport, its limits and its counts.

Sending is a POST, receiving is a GET that waits, and both are about a channel: an unguessable id
that stands for one link. Messages travel as Ockam's frames, or as JSON for people. How requests are
answered stands in server.py, what is kept for a client in channel.py, the JSON form in
json_messages.py, and how a node dials in client.py. The web server is loaded when the first
transport is made, never before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct, field, structs

from waystation.core.budget import MIB
from waystation.errors import LocalError
from waystation.net.connection import ConnectionLimits
from waystation.net.server import ServerLimits
from waystation.net.tls import Tls
from waystation.transports.tcp import TcpLimits
from waystation.transports.transport import Link, LinkOwner, Listener

if TYPE_CHECKING:
    from types import ModuleType


class HttpLimits(TcpLimits, frozen=True, kw_only=True):
    """Those of TCP, and those of requests; times are in seconds.

    `frame` is the largest message in bytes; one POST may have as many and `batch` more. A listener
    has at most `channels` and `connections`. A client has `greeting` seconds for the TLS handshake
    and for the head of a request, and `body` seconds for the rest, or longer as long as 4 KiB of it
    come for each second. A channel without a request for `idle` seconds ends. For the clients of a
    listener `budget` bytes may be held together: then each has an equal part, and a quarter above
    it the channel ends that holds most. A GET waits no longer than `wait`; a POST waits for room
    for `hold` seconds before the client is told to retry. An unused connection stays open for
    `keep` seconds.
    """

    batch: int = 256 * 1024
    budget: int = 256 * MIB
    channels: int = 10_000
    connections: int = 30_000
    body: float = 30.0
    idle: float = 60.0
    wait: float = 25.0
    hold: float = 10.0
    keep: float = 75.0

    def of_connections(self) -> ConnectionLimits:
        """The part that a connection of a listener needs."""
        return structs.replace(super().of_connections(), frame=self.greeting)

    @property
    def post(self) -> int:
        """The most bytes in the body of one request or answer."""
        return self.frame + self.batch

    def of_servers(self) -> ServerLimits:
        """The part that a listener needs."""
        return ServerLimits(
            connections=self.connections,
            handshake=self.greeting,
            input=self.input,
            backlog=self.backlog,
        )


class OpenedChannel(Struct, frozen=True):
    """What a listener says of a channel that it opened, and of its limits."""

    id: str
    frame: int
    post: int
    wait: float
    idle: float


class HttpCounts(Struct):
    """What the listeners of a transport have seen since it was made.

    The causes of `refused_connections` are `connections`, for those over the limit, and `tls`.
    """

    opened: int = 0  # channels
    refused: int = 0  # channels that nobody wanted, or one too many
    expired: int = 0  # channels without a request for too long
    refused_connections: Counter[str] = field(default_factory=Counter)  # by cause
    held_back: int = 0  # requests that were told to retry
    too_large: int = 0  # requests
    malformed: int = 0  # requests


class Http:
    """Messages over HTTP/1.1: addresses `http#host:port`, with or without TLS.

    `hosts` are further names under which browsers, and programs on this machine, may ask for a
    listener, as behind a proxy. IP addresses and the host that it listens at are always good.

    >>> from waystation.node import Node
    >>> async def main():
    ...     async with Node("hub", transports=[Http()]) as hub, Node("a", transports=[Http()]) as a:
    ...         hub.start_worker(("echo",), lambda message, context: context.reply(b"hello"))
    ...         listener = await hub.listen("http://127.0.0.1:0")
    ...         return (await a.request(f"http#{listener.place} => echo", b"")).payload
    >>> import asyncio
    >>> asyncio.run(main())
    b'hello'
    """

    type_name: ClassVar[str] = "http"

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        limits: HttpLimits | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        self.limits = limits or HttpLimits()
        self.counts = HttpCounts()
        self.hosts = hosts
        self.tls = tls
        self._server: Any = _load("server")
        self._client: Any = _load("client")

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> Listener:
        """Listen; port 0 takes a free one."""
        listener: Listener = await self._server.listen(self, place, accept)
        return listener

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a channel at the first of these places that gives one."""
        link: Link = await self._client.dial(self, places, owner)
        return link


def _load(name: str) -> ModuleType:
    try:
        return import_module(f"waystation.transports.http.{name}")
    except ModuleNotFoundError as error:
        raise LocalError(
            f"HTTP needs the package {error.name}, which is not installed",
            rule="AD-2",
            hint="pip install 'waystation[http]'",
        ) from error
