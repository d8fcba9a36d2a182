"""One gossip router, as a member uses it: a connection that opens again by itself (GR-1, GR-2).

It registers its member whenever it is there, hands in what comes, and notices when the router no
longer answers. What to send over which of several routers is the business of routers.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from waystation.core.identity import Mapping, Uuid
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.groups.router_protocol import make_protocol
from waystation.groups.settings import CarrierSettings
from waystation.net.backoff import Backoff
from waystation.net.connection import Connection, ConnectionLimits, Failure
from waystation.net.dialer import dial, keep

if TYPE_CHECKING:
    from waystation.groups.routers import Routers

UNSENT: Final = 32 << 20
"""With more bytes than this waiting for a router, it gets no packets: they come again later."""

MISSED_BEATS: Final = 3
FIRST_WAIT: Final = 0.05
LONGEST_WAIT: Final = 0.5
"""Seconds between attempts to reach a router: doubling between these two, with a share of chance.

Short, because everything waits for it; a router takes thousands of attempts in a second.
"""


class ClientConnection(Connection):
    """A connection that was dialled; the other side owes no greeting. `ended` tells its end."""

    def __init__(self, settings: CarrierSettings) -> None:
        super().__init__(ConnectionLimits(first_byte=None, linger=settings.limits.linger))
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._settings = settings

    async def dial(self, place: str) -> None:
        """Connect; an OSError says why that is not possible."""
        seconds, tls = self._settings.limits.dial, self._settings.tls
        await dial(lambda _: self, [place], timeout=seconds, tls=tls, handshake=seconds)

    def on_open(self) -> None:
        """Write what waits."""
        self.peer_spoke()
        self.flush()

    def on_closed(self, failure: Failure | None) -> None:
        """Wake whoever waits for the end."""
        del failure
        if not self.ended.done():
            self.ended.set_result(None)


class RouterConnection(ClientConnection):
    """One connection to a router: registers its member, and hands in what the router says."""

    def __init__(self, client: RouterClient, settings: CarrierSettings) -> None:
        super().__init__(settings)
        self.protocol = make_protocol(settings.dialect, settings.group, settings.token)
        self._client = client
        self._beat_interval = settings.limits.beat
        self._missed_beats = 0
        self.queue(self.protocol.register(client.own))
        self.queue(self.protocol.ask())

    def on_open(self) -> None:
        """Register, and ask for the others."""
        self._client.connection_opened(self)
        super().on_open()
        self.start_timer(self._beat_interval, self._beat)

    def on_data(self, data: bytes) -> None:
        """Hand in what the router said."""
        self._missed_beats = 0
        try:
            said = self.protocol.read(data)
        except DecodeError as error:
            self.fail(Reason.MALFORMED, str(error))
            return
        owner, client = self._client.owner, self._client
        if said.packets:
            owner.packets_came(client, said.packets)
        for uuid in said.gone:
            owner.member_gone(client, uuid)
        for members in said.lists:
            owner.list_came(client, members)
        if said.refused:
            self.fail(Reason.REFUSED, "the router refused the registration")
        elif said.error is not None:
            self.fail(Reason.MALFORMED, str(said.error))

    def on_closed(self, failure: Failure | None) -> None:
        """Have the client connect again."""
        self._client.connection_ended(failure)
        super().on_closed(failure)

    def _beat(self) -> None:
        self._missed_beats += 1
        if self._missed_beats > MISSED_BEATS:
            silence = self._missed_beats * self._beat_interval
            self.fail(Reason.TRANSPORT_DOWN, f"the router said nothing for {silence:g} s")
            return
        self.queue(self.protocol.beat())
        self.start_timer(self._beat_interval, self._beat)
        self._client.owner.beat(self._client)
        self.flush()


class RouterClient:
    """The way to one router."""

    def __init__(self, place: str, settings: CarrierSettings, owner: Routers) -> None:
        self.place = place
        self.owner = owner
        self.roster: set[Uuid] = set()  # who is registered there
        self.is_ready = False  # this member is registered itself, and knows the others
        self.failure = ""
        self._settings = settings
        self._connection: RouterConnection | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def own(self) -> Mapping:
        """The member to register."""
        return self.owner.own

    def start(self) -> None:
        """Connect, and connect again whenever the connection is gone."""
        if self._keeper is None:
            backoff = Backoff(first=FIRST_WAIT, most=LONGEST_WAIT)
            self._keeper = asyncio.get_running_loop().create_task(
                keep(self._connect, backoff=backoff), name=f"waystation router {self.place}"
            )

    def send(self, destination: Uuid | None, packet: bytes) -> None:
        """Take a packet to a member or to all, with the others of this turn."""
        connection = self._connection
        if connection is not None and connection.unsent <= UNSENT:
            connection.queue(connection.protocol.message(self.own.uuid, destination, packet))

    def ask(self) -> None:
        """Ask who is there."""
        if self._connection is not None:
            self._connection.queue(self._connection.protocol.ask())

    def register(self) -> None:
        """Tell the router anew who we are, and where."""
        if self._connection is not None:
            self._connection.queue(self._connection.protocol.register(self.own))

    def flush(self) -> None:
        """Write what this turn brought."""
        if self._connection is not None:
            self._connection.flush()

    def close(self) -> None:
        """Leave, write what is left, and end; nothing waits for it."""
        if self._keeper is not None:
            self._keeper.cancel()
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.stop_timer()
            connection.queue(connection.protocol.unregister(self.own))
            connection.close()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, if there is one."""
        if self._keeper is not None:
            await asyncio.wait([self._keeper])
        if self._connection is not None:
            await asyncio.wait([self._connection.ended], timeout=self._settings.limits.linger + 1)

    def connection_opened(self, connection: RouterConnection) -> None:
        """Use a connection."""
        self._connection = connection

    def connection_ended(self, failure: Failure | None) -> None:
        """Note the end."""
        self._connection = None
        self.is_ready = False
        self.roster.clear()
        self.failure = "the router closed the connection" if failure is None else failure.detail
        if self._keeper is not None and not self._keeper.cancelling():
            self.owner.router_lost(self, self.failure)

    async def _connect(self) -> bool:
        connection = RouterConnection(self, self._settings)
        self.failure = ""
        try:
            await connection.dial(self.place)
        except OSError as error:
            self.failure = str(error)
            self.owner.router_lost(self, self.failure)
            return False
        await connection.ended
        return True
