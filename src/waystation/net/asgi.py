"""HTTP: an ASGI application behind `Server`, with its limits and deadlines.

uvicorn reads the requests and writes the answers: each connection has one of its protocols, made
as uvicorn's own server makes them, and nothing of it is subclassed. Sockets, TLS, the number of
connections, deadlines and the end are those of `Connection` and `Server`, as everywhere else.

It needs the package uvicorn, which only this file imports.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any, Final, TypeAlias, cast

import h11
from uvicorn.config import Config
from uvicorn.server import ServerState

from waystation.core.clock import now_ns
from waystation.core.outcome import Reason
from waystation.net.connection import Connection, ConnectionLimits, Failure
from waystation.net.server import Server, ServerLimits
from waystation.net.tls import Tls

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application. It finds the `HttpConnection` of a request in `scope["state"]`."""

_NOTHING: Final = (None, False)
_HEAD: Final = (None, True)
_STILL_SENDS: Final = (h11.SEND_BODY, h11.ERROR)

# A request that is no HTTP is a warning to uvicorn, which would fill the log; see `complain`.
_errors: Final = logging.getLogger("waystation.net.asgi")
_errors.setLevel(logging.ERROR)


class HttpServer(Server):
    """A listening socket whose requests an ASGI application answers.

    A client has `connection_limits.first_byte` seconds for its first head, and `.frame` for each
    that follows and for the rest of a body that was answered already. Any other body has `body`
    seconds, or longer as long as enough of it comes (MINIMUM_RATE). An unused connection stays open
    for `keep` seconds. From `busy` connections on, requests are answered with 503.
    """

    def __init__(
        self,
        app: Application,
        *,
        limits: ServerLimits,
        connection_limits: ConnectionLimits,
        body: float = 30.0,
        keep: float = 5.0,
        busy: int | None = None,
        tls: Tls | None = None,
        log: logging.Logger,
        refused: Counter[str] | None = None,
    ) -> None:
        super().__init__(
            lambda: HttpConnection(self, connection_limits),
            limits=limits,
            tls=tls,
            log=log,
            refused=refused,
        )
        self.body = body
        self._app = app
        self._state = ServerState()
        self._config = Config(
            self._serve,
            interface="asgi3",
            lifespan="off",
            http="h11",
            ws="none",
            log_config=None,
            proxy_headers=False,
            limit_concurrency=busy,
            timeout_keep_alive=cast("int", keep),
        )
        self._config.load()
        self._dated = 0

    def stop(self) -> None:
        """Accept nobody, and end each connection when its request is answered."""
        self.close()
        for connection in list(self.connections):
            cast("HttpConnection", connection).stop()

    async def drain(self, seconds: float) -> None:
        """Stop, wait until all requests are answered, and abort those that are not in time."""
        self.stop()
        await super().drain(seconds)
        late = list(self._state.tasks)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def make_protocol(self, connection: HttpConnection) -> Any:
        """The uvicorn protocol that reads and writes the HTTP of a connection."""
        made: Any = self._config.http_protocol_class(  # type: ignore[call-arg]
            config=self._config,
            server_state=self._state,
            app_state={"connection": connection},
        )
        made.logger = _errors
        made.access_log = False  # the path of a request may have a secret in it
        return made

    def refresh_date(self) -> None:
        """Have answers say the time, which uvicorn leaves to its own server."""
        now = now_ns() // 10**9
        if now != self._dated:
            self._dated = now
            self._state.default_headers = [(b"date", formatdate(now, usegmt=True).encode())]

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope["state"]["connection"]
        connection.begin_request()
        try:
            await self._app(scope, receive, send)
        finally:
            connection.end_request()


class HttpConnection(Connection):
    """One client. To uvicorn, the connection is the transport, with all that it needs of one."""

    __slots__ = ("_owner", "_part", "_protocol", "_requests", "when_closed")

    def __init__(self, owner: HttpServer, limits: ConnectionLimits) -> None:
        super().__init__(limits)
        self._owner = owner
        self._protocol: Any = None
        self._requests = 0  # under way
        self._part: tuple[Any, bool] = _NOTHING  # what is being read, as `_note_request` tells
        self.when_closed: Callable[[], None] | None = None  # for a request that waits

    def begin_request(self) -> None:
        """Note that the head of a request is complete."""
        self._requests += 1
        self.peer_spoke()

    def end_request(self) -> None:
        """Note that a request was answered; what comes next may have begun already."""
        self._requests -= 1
        self.when_closed = None
        if self._protocol is not None:
            self._note_request(0)

    def stop(self) -> None:
        """End when the request under way is answered, at once if there is none."""
        if self.is_open:
            self._protocol.shutdown()

    # What uvicorn asks for, beside `write`, `close` and when to read

    def is_closing(self) -> bool:
        """Whether nothing is written any more."""
        return not self.is_open

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known about the socket."""
        transport = self.transport
        return default if transport is None else transport.get_extra_info(name, default)

    # What the connection tells

    def on_open(self) -> None:
        """Let uvicorn begin."""
        self._protocol = self._owner.make_protocol(self)
        self._protocol.connection_made(self)

    def on_data(self, data: bytes) -> None:
        """Read requests. Between two of them, what comes is the beginning of a head."""
        self._owner.refresh_date()
        is_head = not self._requests
        try:
            self._protocol.data_received(data)
        except h11.ProtocolError as error:  # in the body of a request that is being answered
            self.fail(Reason.MALFORMED, str(error))
        if is_head and not self.is_open:
            self._owner.complain("invalid HTTP request", self.place, "answered with 400")

    def data_received(self, data: bytes) -> None:
        """Read, and see what is left in part: uvicorn tells when a request or its head is whole."""
        if self.is_open:
            self.on_data(data)
            if self._protocol is not None:
                self._note_request(len(data))

    def _note_request(self, size: int) -> None:
        """Note how much there is of a head or of a body, if one has begun and is not whole."""
        conn, cycle = self._protocol.conn, self._protocol.cycle
        if conn.their_state is h11.SEND_BODY:
            is_answered = cycle.response_complete
            is_new = (cycle, is_answered) != self._part
            self._part = (cycle, is_answered)
            self.change_frame_time(self.limits.frame if is_answered else self._owner.body)
            self.note_unfinished(self.unfinished + size if size else 1, is_new=is_new)
        elif conn.their_state is h11.IDLE:
            is_new = self._part != _HEAD
            self._part = _HEAD
            self.change_frame_time(self.limits.frame)
            held = len(conn.trailing_data[0])
            self.note_unfinished(held, is_new=is_new or not self.unfinished)
        else:
            self._part = _NOTHING
            self.note_unfinished(0, is_new=False)

    def on_crowded(self) -> None:
        """Let the application wait."""
        self._protocol.pause_writing()

    def on_clear(self) -> None:
        """Let it go on."""
        self._protocol.resume_writing()

    def on_closed(self, failure: Failure | None) -> None:
        """Tell requests under way that the client is gone."""
        del failure
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(None)
        if self.when_closed is not None:
            self.when_closed()

    def say_goodbye(self, transport: asyncio.Transport) -> None:
        """End at once, unless the client still sends: then it has to read its answer first."""
        if self._protocol is not None and self._protocol.conn.their_state in _STILL_SENDS:
            super().say_goodbye(transport)
        else:
            transport.close()
