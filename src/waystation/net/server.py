"""Listening: one server for every kind of connection, with the same guards for all of them.

A server makes a `Connection` of each that connects, within its limit. It ends those whose TLS
handshake takes too long, bounds what all of them hold of unfinished frames, says in the log when
the system has no descriptors left, and drains in order. What a refused or failed client means is
told to its owner by the connections.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, cast

from msgspec import Struct

from waystation.core.budget import MIB, Account
from waystation.net.connection import BaseConnection, ConnectionState
from waystation.net.place import parse_place, place_of
from waystation.net.secured_listener import SecuredListener, explain
from waystation.net.sockets import listening_at
from waystation.net.tls import Tls

SWEEP: Final = 1.0
"""Seconds between two looks for handshakes that take too long, or a quarter of their time."""

QUIET: Final = 60.0
"""Seconds for which complaints of one kind are only counted, after one was logged."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})


class ServerLimits(Struct, frozen=True, kw_only=True):
    """How many connections a server has, and how long it waits for them; times are in seconds.

    `connections` counts TLS handshakes as well; None is no limit, for owners with one of their own.
    A peer has `handshake` seconds for TLS. All connections together hold at most `input` bytes of
    frames that are not complete; over it those with the largest are ended.
    """

    connections: int | None = None
    handshake: float = 10.0
    input: int = 256 * MIB
    backlog: int = 1024


class InputBudget:
    """How many bytes of unfinished frames the connections of one listener hold together."""

    def __init__(self, limit: int, connections: Callable[[], Iterable[BaseConnection]]) -> None:
        self.account = Account(limit)
        self._connections = connections

    def take(self, size: int) -> None:
        """Count more bytes, or fewer; over the limit, end who holds most, until it is kept."""
        self.account.take(size)
        while self.account.is_over:
            max(self._connections(), key=lambda connection: connection.unfinished).on_over_budget()


class Server:
    """A listening socket and the connections that it accepted.

    `make` makes the protocol of each that connects, or gives None to refuse it. The counters
    `opened` and `refused` only ever grow; servers of one owner may share the latter.
    """

    def __init__(
        self,
        make: Callable[[], BaseConnection | None],
        *,
        limits: ServerLimits | None = None,
        tls: Tls | None = None,
        log: logging.Logger,
        refused: Counter[str] | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        self.place = ""
        self.draining = False
        self.opened = 0
        self.refused: Counter[str] = Counter() if refused is None else refused  # by cause
        self.connections: dict[BaseConnection, None] = {}  # in the order in which they came
        self.input_budget = InputBudget(self.limits.input, lambda: self.connections)
        self._make = make
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self.certificate: bytes | None = None  # the hash of its own, with TLS
        self._log = log
        self._complaints: dict[str, tuple[float, int]] = {}  # when, and how many since, by kind
        self._pending: dict[BaseConnection, float] = {}  # until when each must be established
        self._server: asyncio.Server | SecuredListener | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self, place: str) -> None:
        """Listen; port 0 takes a free one, and `place` says which."""
        context = None
        if self._tls is not None:
            self._context = context = self._tls.for_listener()
            self.certificate = self._tls.own_hash()
        self.loop = asyncio.get_running_loop()
        host, port = parse_place(place)
        with listening_at(place):
            if context is None:
                self._server = await self.loop.create_server(
                    self._accept, host, port, backlog=self.limits.backlog
                )
            else:
                self._server = SecuredListener(
                    self._make_one, self._handshake_failed, context, self.limits.handshake
                )
                await self._server.start(host, port, self.limits.backlog)
        self.place = place_of(self._server.sockets[0].getsockname())
        self._sweep_interval = min(SWEEP, self.limits.handshake / 4)
        self._sweeper = self.loop.call_later(self._sweep_interval, self._sweep)

    def renew_certificate(self) -> None:
        """Use the certificate that is in its file now for the connections to come (ID-5)."""
        if self._tls is not None and self._context is not None:
            self._tls.renew(self._context)
            self.certificate = self._tls.own_hash()

    def close(self) -> None:
        """Accept no more connections; the open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._sweeper is not None and self._is_idle:
            self._sweeper.cancel()

    async def drain(self, seconds: float) -> None:
        """Accept nobody, wait until all connections ended, and abort those that do not in time.

        The owner has closed each connection in its own way before.
        """
        self.draining = True
        if isinstance(self._server, SecuredListener):
            self._server.abandon()
        self.close()
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()

    def complain(self, kind: str, who: str, detail: str) -> None:
        """Log a problem with a peer; of many of one kind, one line a minute."""
        now = self.loop.time()
        last, more = self._complaints.get(kind, (now - QUIET, 0))
        if now - last < QUIET:
            self._complaints[kind] = (last, more + 1)
            return
        self._complaints[kind] = (now, 0)
        others = f" (and {more} more like it)" if more else ""
        self._log.warning("%s: %s: %s%s", kind, who, detail, others)

    def refuse(self, cause: str, who: str, detail: str) -> None:
        """Count and log that a peer was refused."""
        self.refused[cause] += 1
        self.complain(f"refused: {cause}", who, detail)

    # What connections tell

    def take(self, connection: BaseConnection) -> bool:
        """Count a connection that is established; False when the server is ending."""
        self._pending.pop(connection, None)
        if self.draining:
            return False
        self.opened += 1
        self.connections[connection] = None
        self._empty.clear()
        return True

    def forget(self, connection: BaseConnection) -> None:
        """Note that a connection ended."""
        self._pending.pop(connection, None)
        self.connections.pop(connection, None)
        if not self.connections:
            self._empty.set()

    # How it works

    def _accept(self) -> asyncio.BaseProtocol:
        return cast("asyncio.BaseProtocol", self._make_one() or _Refused())

    def _make_one(self) -> BaseConnection | None:
        """The connection of a client, unless it is refused."""
        most = self.limits.connections
        if most is not None and len(self.connections) + len(self._pending) >= most:
            self.refuse("connections", "a client", f"over the limit of {most} connections")
            return None
        made = None if self.draining else self._make()
        if made is not None:
            made.server = self
            made.input_budget = self.input_budget
            self._pending[made] = self.loop.time() + self.limits.handshake + 1
        return made

    def _handshake_failed(
        self, connection: BaseConnection, place: str, error: ssl.SSLError | None
    ) -> None:
        """Count and log a failed handshake; a client that ended it, or says nothing, has none."""
        if error is not None:
            self.refuse("tls", place, explain(error))
        self._pending.pop(connection, None)
        self._give_up(connection)

    @staticmethod
    def _give_up(connection: BaseConnection) -> None:
        if connection.state is ConnectionState.CONNECTING:
            connection.state = ConnectionState.CLOSED
            connection.on_handshake_failed()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in [c for c, until in self._pending.items() if until < now]:
            del self._pending[connection]
            self._give_up(connection)
        if not self._is_idle:
            self._look_for_descriptors()
            self._sweeper = self.loop.call_later(self._sweep_interval, self._sweep)

    @property
    def _is_idle(self) -> bool:
        """Whether nobody can come any more, and nobody is there."""
        return self._server is None and not self.connections and not self._pending

    def _look_for_descriptors(self) -> None:
        """Say so when nothing can be accepted; event loops are silent about it, or drop peers."""
        try:
            os.close(os.dup(0))
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self.complain(
                    "out of file descriptors",
                    self.place,
                    "no connection can be accepted; raise the limit (ulimit -n)",
                )


class _Refused(asyncio.Protocol):
    """A connection that was refused."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End it."""
        cast("asyncio.Transport", transport).abort()
