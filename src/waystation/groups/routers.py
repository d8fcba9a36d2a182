"""Several gossip routers at once: who is registered where, and which way a packet goes (GR-12).

Every member registers with all of its routers. Packets go over one of them as long as that lasts,
so that their order is kept; who is not registered there gets them over another. A member is gone
when no router sees it any more, and not before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from waystation.core.identity import Mapping, Physical, Uuid
from waystation.groups.carrier import CarrierOwner
from waystation.groups.packets import EVERYBODY, sender_of
from waystation.groups.router_client import Access, Stub

REFRESH: Final = 5.0
"""Seconds between questions who is there, in a small group; in a large one they are longer."""

PER_SECOND: Final = 20
"""So many members more make them a second longer."""

GRACE: Final = 3.0
"""Seconds that a member has to register again, when no router lists it any more."""


class Routers:
    """The routers of one member."""

    def __init__(self, places: Sequence[str], access: Access, owner: CarrierOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._stubs = [Stub(place, access, self) for place in places]
        self._current: Stub | None = None
        self._elsewhere: list[tuple[Stub, Uuid]] = []  # who is not where the current one is
        self._missing: dict[Uuid, float | None] = {}  # everybody: since when no router lists it
        self._asked_at = 0.0
        self._refresh = REFRESH

    @property
    def own(self) -> Mapping:
        """The member to register."""
        return self._owner.own

    @property
    def is_open(self) -> bool:
        """Whether a router is there."""
        return self._current is not None

    @property
    def failure(self) -> str:
        """Why none is."""
        return "; ".join(dict.fromkeys(stub.failure for stub in self._stubs if stub.failure))

    def start(self) -> None:
        """Connect to all of them."""
        for stub in self._stubs:
            stub.start()

    def send(self, uuid: Uuid, packet: bytes) -> None:
        """Take a packet to a member, over a router that knows it."""
        stub = self._current
        if stub is not None and uuid not in stub.roster:
            stub = self._other(uuid) or stub
        if stub is not None:
            stub.send(uuid, packet)

    def send_all(self, packet: bytes, *, notice: bool) -> None:
        """Take a packet to everybody."""
        if notice:
            for stub in self._ready():
                stub.send(None, packet)
        elif self._current is not None:
            self._current.send(None, packet)
            for stub, uuid in self._elsewhere:
                stub.send(uuid, packet)

    def ask(self) -> None:
        """Ask all of them who is there."""
        self._asked_at = self._loop.time()
        for stub in self._ready():
            stub.ask()

    def register(self) -> None:
        """Tell all of them where we are now."""
        for stub in self._ready():
            stub.register()

    def flush(self) -> None:
        """Write what this turn brought."""
        for stub in self._stubs:
            stub.flush()

    def close(self) -> None:
        """Leave them all."""
        for stub in self._stubs:
            stub.close()

    async def closed(self) -> None:
        """Wait until the connections are gone."""
        await asyncio.gather(*(stub.closed() for stub in self._stubs))

    # What stubs tell

    def heard_packets(self, stub: Stub, packets: Sequence[bytes]) -> None:
        """Hand packets in; whoever sent one is registered there."""
        roster, own = stub.roster, self.own.uuid
        for packet in packets:
            sender = sender_of(packet)
            if sender not in roster and sender not in (own, EVERYBODY):
                roster.add(sender)
                self._missing[sender] = None
                if stub is not self._current or self._elsewhere:
                    self._choose()
        self._owner.packets(packets)

    def heard_list(self, stub: Stub, members: list[Mapping]) -> None:
        """Compare with what was known, and hand the list in."""
        was_ready, stub.is_ready = stub.is_ready, True
        stub.roster = {mapping.uuid for mapping in members}
        stub.roster.discard(self.own.uuid)
        self._refresh = REFRESH + len(members) / PER_SECOND
        self._choose()
        if not was_ready:
            self._owner.opened()  # first, so that they know who speaks to them
        self._owner.listed([mapping for mapping in members if mapping.uuid != self.own.uuid])
        self._look_for_missing()
        if not was_ready:
            self._owner.rerouted(None)

    def heard_gone(self, stub: Stub, uuid: Uuid) -> None:
        """Find another way to a member that a router lost, if there is one."""
        if uuid == self.own.uuid:
            return
        stub.roster.discard(uuid)
        self._choose()
        if self._other(uuid) is not None:
            self._owner.rerouted(uuid)
        else:
            self._missing.pop(uuid, None)
            self._owner.vanished(uuid)

    def beat(self, stub: Stub) -> None:
        """Ask now and then who is there."""
        if self._loop.time() - self._asked_at >= self._refresh:
            self.ask()
            for other in self._stubs:
                if other is not stub:
                    other.flush()

    def lost(self, stub: Stub, detail: str) -> None:
        """Go on over another router."""
        was_current = stub is self._current
        self._choose()
        if self._current is None:
            self._owner.cut_off(detail)
        elif was_current:
            self._owner.rerouted(None)

    # How it works

    def _ready(self) -> list[Stub]:
        return [stub for stub in self._stubs if stub.is_ready]

    def _other(self, uuid: Uuid) -> Stub | None:
        for stub in self._stubs:
            if stub.is_ready and uuid in stub.roster:
                return stub
        return None

    def _choose(self) -> None:
        """Keep to the current router while it is there."""
        ready = self._ready()
        if self._current not in ready:
            self._current = ready[0] if ready else None
        self._elsewhere = []
        seen = set() if self._current is None else set(self._current.roster)
        for stub in ready:
            self._elsewhere += [(stub, uuid) for uuid in stub.roster - seen]
            seen |= stub.roster

    def _look_for_missing(self) -> None:
        now = self._loop.time()
        listed = set().union(*(stub.roster for stub in self._ready()))
        missing = self._missing
        for uuid in listed:
            missing[uuid] = None
        if len(missing) == len(listed):
            return
        for uuid in [uuid for uuid in missing if uuid not in listed]:
            since = missing[uuid]
            if since is None:
                missing[uuid] = now
                self._loop.call_later(GRACE, self._ask_again)
            elif now - since >= GRACE:
                del missing[uuid]
                self._owner.vanished(uuid)

    def _ask_again(self) -> None:
        self.ask()
        self.flush()


class Tunnel:
    """The routers carry everything: no member needs an address of its own (LA-9)."""

    limit = 8 << 20

    def __init__(self, places: Sequence[str], access: Access, owner: CarrierOwner) -> None:
        self.routers = Routers(places, access, owner)

    @property
    def is_open(self) -> bool:
        """Whether a router is there."""
        return self.routers.is_open

    @property
    def failure(self) -> str:
        """Why none is."""
        return self.routers.failure

    async def open(self) -> tuple[Physical, ...]:
        """Nothing to open: in a tunnel a member has no place."""
        return ()

    def start(self) -> None:
        """Connect to the routers."""
        self.routers.start()

    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Take a packet to a member."""
        del place
        self.routers.send(uuid, packet)

    def to_place(self, place: Physical, packet: bytes) -> None:
        """There are no places here."""

    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """Take a packet to everybody."""
        self.routers.send_all(packet, notice=notice)

    def ask(self) -> None:
        """Ask who is there."""
        self.routers.ask()

    def flush(self) -> None:
        """Write what this turn brought."""
        self.routers.flush()

    async def move(self, places: Sequence[str]) -> tuple[Physical, ...]:
        """Nothing to move."""
        del places
        return ()

    def moved(self) -> None:
        """Nothing to tell."""

    def close(self) -> None:
        """Leave the routers."""
        self.routers.close()

    async def closed(self) -> None:
        """Wait until the connections are gone."""
        await self.routers.closed()
