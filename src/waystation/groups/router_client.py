"""One connection to one gossip router, which opens again by itself (GR-1, GR-2).

It registers its member whenever it is there, hands in what comes, and notices when the router no
longer answers. What to send over which of several routers is the business of routers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, cast

from msgspec import Struct

from waystation.core.identity import Mapping, Uuid
from waystation.errors import DecodeError
from waystation.groups.router_protocol import Speech, speech
from waystation.net.backoff import Backoff
from waystation.net.place import parse_place
from waystation.net.sockets import prepare, reason_of
from waystation.net.tls import Tls

UNSENT: Final = 32 << 20
"""With so many bytes waiting for a router, nothing more is given to it: it comes again later."""

MISSED_BEATS: Final = 3
FIRST_WAIT: Final = 0.05
LONGEST_WAIT: Final = 0.5
"""Seconds between attempts to reach a router: doubling between these two, with a share of chance.

Short, because everything waits for it; a router takes thousands of attempts in a second.
"""


class Access(Struct, frozen=True, kw_only=True):
    """What a member needs to use routers; times are in seconds."""

    group: str
    dialect: str = "jgroups5"
    tls: Tls | None = None
    token: bytes = b""
    beat: float = 2.0
    dial: float = 3.0
    linger: float = 1.0
    dead: float = 30.0


class StubOwner(Protocol):
    """Whoever has several stubs."""

    @property
    def own(self) -> Mapping:
        """The member to register."""
        ...

    def heard_packets(self, stub: Stub, packets: Sequence[bytes]) -> None:
        """These packets came."""
        ...

    def heard_list(self, stub: Stub, members: list[Mapping]) -> None:
        """The members of the group, as this router knows them."""
        ...

    def heard_gone(self, stub: Stub, uuid: Uuid) -> None:
        """The router lost a member."""
        ...

    def beat(self, stub: Stub) -> None:
        """Some time has passed, and the router lives."""
        ...

    def lost(self, stub: Stub, detail: str) -> None:
        """The router is gone, or was never there."""
        ...


class Stub(asyncio.Protocol):
    """The way to one router."""

    def __init__(self, place: str, access: Access, owner: StubOwner) -> None:
        self.place = place
        self.roster: set[Uuid] = set()  # who is registered there
        self.is_ready = False  # it is registered itself, and knows the others
        self.failure = ""
        self._access = access
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._speech: Speech | None = None
        self._pieces: list[bytes] = []
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._keeper: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent = 0  # beats
        self._closing = False

    # What the owner asks for

    def start(self) -> None:
        """Connect, and connect again whenever the connection is gone."""
        if self._keeper is None:
            name = f"waystation router {self.place}"
            self._keeper = self._loop.create_task(self._keep(), name=name)

    def send(self, destination: Uuid | None, packet: bytes) -> None:
        """Take a packet to a member or to all, with the others of this turn."""
        transport, words = self._transport, self._speech
        if transport is None or words is None or transport.get_write_buffer_size() > UNSENT:
            return
        self._pieces.append(words.message(self._owner.own.uuid, destination, packet))

    def ask(self) -> None:
        """Ask who is there."""
        if self._speech is not None:
            self._pieces.append(self._speech.ask())

    def register(self) -> None:
        """Tell the router anew who we are, and where."""
        if self._speech is not None:
            self._pieces.append(self._speech.register(self._owner.own))

    def flush(self) -> None:
        """Write what this turn brought."""
        pieces = self._pieces
        if not pieces:
            return
        self._pieces = []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def close(self) -> None:
        """Leave, write what is left, and end; nothing waits for it."""
        if self._closing:
            return
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
        transport = self._transport
        if transport is None or self._speech is None:
            return
        self._pieces.append(self._speech.unregister(self._owner.own))
        self.flush()
        self._stop_timer()
        if transport.can_write_eof():
            transport.write_eof()  # a close with unread bytes would take back what was written
            self._timer = self._loop.call_later(self._access.linger, transport.abort)
        else:
            transport.close()

    async def closed(self) -> None:
        """Wait until the connection is gone, if there is one."""
        if self._keeper is not None:
            await asyncio.wait([self._keeper])
        if self._transport is not None:
            await asyncio.wait([self._gone], timeout=self._access.linger + 1)

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register, and ask for the others."""
        self._transport = cast("asyncio.Transport", transport)
        if self._closing:
            self._transport.abort()
            return
        access = self._access
        prepare(transport.get_extra_info("socket"), access.dead)
        self._speech = speech(access.dialect, access.group, access.token)
        self._silent = 0
        self._pieces = []
        self.register()
        self.ask()
        self.flush()
        self._timer = self._loop.call_later(access.beat, self._beat)

    def data_received(self, data: bytes) -> None:
        """Hand in what the router said."""
        self._silent = 0
        if self._speech is None or self._closing:
            return
        try:
            heard = self._speech.read(data)
        except DecodeError as error:
            self._fail(str(error))
            return
        owner = self._owner
        if heard.packets:
            owner.heard_packets(self, heard.packets)
        for uuid in heard.gone:
            owner.heard_gone(self, uuid)
        for members in heard.lists:
            owner.heard_list(self, members)
        if heard.refused:
            self._fail("the router refused the registration")
        elif heard.error is not None:
            self._fail(str(heard.error))

    def eof_received(self) -> None:
        """Let the connection end."""

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end, and have the keeper connect again."""
        self._stop_timer()
        self._transport = self._speech = None
        self._pieces = []
        self.is_ready = False
        self.roster.clear()
        if not self._gone.done():
            self._gone.set_result(None)
        if error is not None or not self.failure:
            self.failure = str(error) if error is not None else "the router closed the connection"
        if not self._closing:
            self._owner.lost(self, self.failure)

    # How it works

    async def _keep(self) -> None:
        backoff = Backoff(first=FIRST_WAIT, most=LONGEST_WAIT)
        while True:
            if await self._dial():
                await self._gone
                backoff.reset()
            else:
                self._owner.lost(self, self.failure)
            await asyncio.sleep(backoff.next())

    async def _dial(self) -> bool:
        host, port = parse_place(self.place)
        tls = self._access.tls
        self._gone = self._loop.create_future()
        self.failure = ""
        try:
            async with asyncio.timeout(self._access.dial):
                await self._loop.create_connection(
                    lambda: self,
                    host,
                    port,
                    ssl=tls.for_dialler() if tls else None,
                    server_hostname=(tls.name or host) if tls else None,
                )
        except TimeoutError:
            self.failure = f"{self.place}: no answer within {self._access.dial:g} s"
        except OSError as error:
            self.failure = f"{self.place}: {reason_of(error)}"
        except ValueError as error:  # from names that no resolver takes
            self.failure = f"{self.place}: {error}"
        else:
            return True
        return False

    def _beat(self) -> None:
        self._timer = None
        self._silent += 1
        if self._silent > MISSED_BEATS or self._speech is None:
            self._fail(f"the router said nothing for {self._silent * self._access.beat:g} s")
            return
        self._pieces.append(self._speech.beat())
        self._timer = self._loop.call_later(self._access.beat, self._beat)
        self._owner.beat(self)
        self.flush()

    def _fail(self, detail: str) -> None:
        self.failure = detail
        if self._transport is not None:
            self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
