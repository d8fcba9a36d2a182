"""A connection to one gossip router, as a member uses it (GR-1, GR-2).

It registers its member, hands in what comes, and notices when the router no longer answers. What to
send over which of several routers, and connecting again, is the business of routers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from waystation.core.identity import Uuid
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.groups.router_protocol import make_protocol
from waystation.groups.settings import CarrierSettings
from waystation.net.connection import BATCH, Connection, ConnectionLimits, Failure
from waystation.net.dialer import dial

if TYPE_CHECKING:
    from waystation.groups.routers import Routers

CONTROL: Final = 1 << 20
"""Bytes of packets that may wait beyond the messages; more are lost, and come again later (FL-5).

These are about members and what has arrived. They are few, and messages do not wait in front of
them: a connection takes messages only while the other side reads."""

MISSED_BEATS: Final = 3


class ClientConnection(Connection):
    """A connection that was dialled; the other side owes no greeting. `ended` tells its end.

    `writable` is called when it `has_room` for messages again.
    """

    def __init__(self, place: str, settings: CarrierSettings, writable: Callable[[], None]) -> None:
        limits = settings.limits
        super().__init__(
            ConnectionLimits(first_byte=None, frame=limits.frame, linger=limits.linger)
        )
        self.place = place
        self._writable = writable
        self._beyond = 0  # bytes that were put while there was no room
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._settings = settings

    async def dial(self) -> None:
        """Connect; an OSError says why that is not possible."""
        seconds, tls = self._settings.limits.dial, self._settings.tls
        await dial(lambda _: self, [self.place], timeout=seconds, tls=tls, handshake=seconds)

    @property
    def has_room(self) -> bool:
        """Whether it takes messages."""
        if self.transport is None:  # it is being dialled
            return self._size <= self.limits.high_water
        return not self.peer_is_slow

    def put(self, *pieces: bytes) -> None:
        """Write a packet with the others of this turn, or lose it where too many wait."""
        if not self.has_room:
            self._beyond += sum(map(len, pieces))
            if self._beyond > CONTROL:
                return
        for piece in pieces:
            self.queue(piece)
        if self._size >= BATCH and self.is_open:
            self.flush()

    def on_open(self) -> None:
        """Write what waits."""
        self.peer_spoke()
        self.flush()
        self.on_clear()

    def on_clear(self) -> None:
        """Have more messages brought, if there is room for them."""
        if self.has_room:
            self._beyond = 0
            self._writable()

    def count_unfinished(self) -> int:
        """Nothing, of a peer that says nothing."""
        return 0

    def on_closed(self, failure: Failure | None) -> None:
        """Wake whoever waits for the end."""
        del failure
        if not self.ended.done():
            self.ended.set_result(None)


class RouterConnection(ClientConnection):
    """One connection to a router: registers its member, and hands in what the router says."""

    def __init__(self, place: str, settings: CarrierSettings, owner: Routers) -> None:
        super().__init__(place, settings, owner.writable)
        self.roster: dict[Uuid, None] = {}  # who is registered there
        self.is_ready = False  # this member is registered itself, and knows the others
        self._owner = owner
        self._protocol = make_protocol(settings.dialect, settings.group, settings.token)
        self._beat_interval = settings.limits.beat
        self._missed_beats = 0
        self.register()
        self.ask()

    def send(self, destination: Uuid | None, packet: bytes) -> None:
        """Take a packet to a member or to all, with the others of this turn."""
        self.put(self._protocol.message(self._owner.own.uuid, destination, packet))

    def ask(self) -> None:
        """Ask who is there."""
        self.queue(self._protocol.ask())

    def register(self) -> None:
        """Tell the router who we are, and where."""
        self.queue(self._protocol.register(self._owner.own))

    def leave(self) -> None:
        """Say goodbye, write what is left, and end."""
        if self.is_open:
            self.stop_timer()
            self.queue(self._protocol.unregister(self._owner.own))
            self.close()

    def on_open(self) -> None:
        """Register, and ask for the others."""
        super().on_open()
        self.start_timer(self._beat_interval, self._beat)

    @property
    def is_with_stranger(self) -> bool:
        """Always: the router may be JGroups' own."""
        return True

    def on_data(self, data: bytes) -> None:
        """Hand in what the router said."""
        self._missed_beats = 0
        try:
            said = self._protocol.read(data)
        except DecodeError as error:
            self.fail(Reason.MALFORMED, str(error))
            return
        owner = self._owner
        if said.packets:
            owner.packets_came(self, said.packets)
        for uuid in said.gone:
            owner.member_gone(self, uuid)
        for members in said.lists:
            owner.list_came(self, members)
        if said.refused:
            self.fail(Reason.REFUSED, "the router refused the registration")
        elif said.error is not None:
            self.fail(Reason.MALFORMED, str(said.error))

    def count_unfinished(self) -> int:
        """What is there of a frame."""
        return self._protocol.pending

    def on_closed(self, failure: Failure | None) -> None:
        """Go on over another router, and connect again."""
        self.is_ready = False
        detail = "the router closed the connection" if failure is None else failure.detail
        self._owner.router_lost(self, detail)
        super().on_closed(failure)

    def _beat(self) -> None:
        self._missed_beats += 1
        if self._missed_beats > MISSED_BEATS:
            silence = self._missed_beats * self._beat_interval
            self.fail(Reason.TRANSPORT_DOWN, f"the router said nothing for {silence:g} s")
            return
        self.queue(self._protocol.beat())
        self.start_timer(self._beat_interval, self._beat)
        self._owner.beat()
        self.flush()
