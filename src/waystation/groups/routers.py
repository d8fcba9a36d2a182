"""Several gossip routers at once: who is registered where, and which way a packet goes (GR-12).

Every member registers with all of its routers. Packets go over one of them as long as that lasts,
so that their order is kept; who is not registered there gets them over another. A member is gone
when no router sees it any more, and not before.

In a tunnel the routers carry everything; between direct members they only say who is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from waystation.core.identity import Mapping, Physical, Uuid
from waystation.groups.packets import EVERYBODY, sender_of
from waystation.groups.router_client import RouterClient
from waystation.groups.settings import CarrierSettings

if TYPE_CHECKING:
    from waystation.groups.streams import Streams

REFRESH: Final = 5.0
"""Seconds between questions who is there, in a small group; in a large one they are longer."""

PER_SECOND: Final = 20
"""This many members make them a second longer."""

GRACE: Final = 3.0
"""Seconds that a member has to register again, when no router lists it any more."""


class Routers:
    """The routers of one member; as a carrier, the tunnel through them (LA-9)."""

    limit = 8 << 20

    def __init__(self, places: Sequence[str], settings: CarrierSettings, owner: Streams) -> None:
        self.clients = [RouterClient(place, settings, self) for place in places]
        self.current: RouterClient | None = None
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._elsewhere: list[tuple[RouterClient, Uuid]] = []  # who is not at the current one
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
        return self.current is not None

    @property
    def failure(self) -> str:
        """Why none is."""
        return "; ".join(dict.fromkeys(each.failure for each in self.clients if each.failure))

    async def open(self) -> tuple[Physical, ...]:
        """Nothing to open: in a tunnel a member has no place."""
        return ()

    def start(self) -> None:
        """Connect to all of them."""
        for client in self.clients:
            client.start()

    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Take a packet to a member, over a router that knows it."""
        del place
        client = self.current
        if client is not None and uuid not in client.roster:
            client = self._client_with(uuid) or client
        if client is not None:
            client.send(uuid, packet)

    def to_place(self, place: Physical, packet: bytes) -> None:
        """There are no places in a tunnel."""

    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """Take a packet to everybody."""
        if notice:
            for client in self._ready():
                client.send(None, packet)
        elif self.current is not None:
            self.current.send(None, packet)
            for client, uuid in self._elsewhere:
                client.send(uuid, packet)

    def ask(self) -> None:
        """Ask all of them who is there."""
        self._asked_at = self._loop.time()
        for client in self._ready():
            client.ask()

    async def move(self, places: Sequence[str]) -> tuple[Physical, ...]:
        """Nothing to move in a tunnel."""
        del places
        return ()

    def moved(self) -> None:
        """Tell all of them where we are now."""
        for client in self._ready():
            client.register()

    def flush(self) -> None:
        """Write what this turn brought."""
        for client in self.clients:
            client.flush()

    def close(self) -> None:
        """Leave them all."""
        for client in self.clients:
            client.close()

    async def wait_closed(self) -> None:
        """Wait until the connections are gone."""
        await asyncio.gather(*(client.wait_closed() for client in self.clients))

    # What the clients tell

    def packets_came(self, router: RouterClient, packets: Sequence[bytes]) -> None:
        """Hand packets in; whoever sent one is registered there."""
        roster, own = router.roster, self.own.uuid
        for packet in packets:
            sender = sender_of(packet)
            if sender not in roster and sender not in (own, EVERYBODY):
                roster.add(sender)
                self._missing[sender] = None
                if router is not self.current or self._elsewhere:
                    self._choose()
        self._owner.take_packets(packets)

    def list_came(self, router: RouterClient, members: list[Mapping]) -> None:
        """Compare with what was known, and hand the list in."""
        was_ready, router.is_ready = router.is_ready, True
        router.roster = {mapping.uuid for mapping in members}
        router.roster.discard(self.own.uuid)
        self._refresh = REFRESH + len(members) / PER_SECOND
        self._choose()
        if not was_ready:
            self._owner.opened()  # first, so that they know who speaks to them
        self._owner.listed([mapping for mapping in members if mapping.uuid != self.own.uuid])
        self._look_for_missing()
        if not was_ready:
            self._owner.rerouted(None)

    def member_gone(self, router: RouterClient, uuid: Uuid) -> None:
        """Find another way to a member that a router lost, if there is one."""
        if uuid == self.own.uuid:
            return
        router.roster.discard(uuid)
        self._choose()
        if self._client_with(uuid) is not None:
            self._owner.rerouted(uuid)
        else:
            self._missing.pop(uuid, None)
            self._owner.vanished(uuid)

    def beat(self, router: RouterClient) -> None:
        """Ask now and then who is there."""
        if self._loop.time() - self._asked_at >= self._refresh:
            self.ask()
            for other in self.clients:
                if other is not router:
                    other.flush()

    def router_lost(self, router: RouterClient, detail: str) -> None:
        """Go on over another router."""
        was_current = router is self.current
        self._choose()
        if self.current is None:
            self._owner.cut_off(detail)
        elif was_current:
            self._owner.rerouted(None)

    # How it works

    def _ready(self) -> list[RouterClient]:
        return [client for client in self.clients if client.is_ready]

    def _client_with(self, uuid: Uuid) -> RouterClient | None:
        for client in self.clients:
            if client.is_ready and uuid in client.roster:
                return client
        return None

    def _choose(self) -> None:
        """Keep to the current router while it is there."""
        ready = self._ready()
        if self.current not in ready:
            self.current = ready[0] if ready else None
        self._elsewhere = []
        seen = set() if self.current is None else set(self.current.roster)
        for client in ready:
            self._elsewhere += [(client, uuid) for uuid in client.roster - seen]
            seen |= client.roster

    def _look_for_missing(self) -> None:
        now = self._loop.time()
        listed = set().union(*(client.roster for client in self._ready()))
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
