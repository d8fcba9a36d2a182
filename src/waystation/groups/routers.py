"""Several gossip routers at once: who is registered where, and which way a packet goes (GR-12).

Every member registers with all of its routers. Packets go over one of them as long as that lasts,
so that their order is kept; who is not registered there gets them over another. A member is gone
when no router sees it any more, and not before.

In a tunnel the routers carry everything; between direct members they only say who is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from waystation.core.identity import Mapping, Physical, Uuid
from waystation.groups.carrier import Carrier
from waystation.groups.packets import EVERYBODY, sender_of
from waystation.groups.router_client import RouterConnection
from waystation.groups.settings import CarrierSettings
from waystation.net.backoff import Backoff
from waystation.net.dialer import keep
from waystation.net.tasks import Tasks

if TYPE_CHECKING:
    from waystation.groups.streams import Streams

REFRESH: Final = 5.0
"""Seconds between questions who is there, in a small group; in a large one they are longer."""

PER_SECOND: Final = 20
"""This many members make them a second longer."""

GRACE: Final = 3.0
"""Seconds that a member has to register again, when no router lists it any more."""

FIRST_WAIT: Final = 0.05
LONGEST_WAIT: Final = 0.5
"""Seconds between attempts to reach a router: doubling between these two, with a share of chance.

Short, because everything waits for it; a router takes thousands of attempts in a second.
"""


class Routers(Carrier):
    """The routers of one member; as a carrier, the tunnel through them (LA-9)."""

    limit = 8 << 20

    def __init__(self, places: Sequence[str], settings: CarrierSettings, owner: Streams) -> None:
        self.connections: dict[str, RouterConnection] = {}  # the last one to each place
        self.current: RouterConnection | None = None
        self._places = places
        self._settings = settings
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._keepers = Tasks()
        self._failures: dict[str, str] = {}  # of the routers that are not there, by place
        self._elsewhere: list[tuple[RouterConnection, Uuid]] = []  # who is not at the current one
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
        return "; ".join(dict.fromkeys(self._failures.values()))

    def start(self) -> None:
        """Connect to all of them, again whenever a connection is gone."""
        for place in self._places:
            backoff = Backoff(first=FIRST_WAIT, most=LONGEST_WAIT)
            keeping = keep(partial(self._connect, place), backoff=backoff)
            self._keepers.start(keeping, f"router {place}", endless=True)

    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Take a packet to a member, over a router that knows it; there are no places."""
        del place
        router = self._way_to(uuid)
        if router is not None:
            router.send(uuid, packet)

    def has_room(self, uuid: Uuid, place: Physical | None) -> bool:
        """Whether the router takes messages; without any, they are lost as they always were."""
        del place
        router = self.current if uuid == EVERYBODY else self._way_to(uuid)
        return router is None or router.has_room

    def writable(self) -> None:
        """Have more messages brought."""
        self._owner.writable()

    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """Take a packet to everybody."""
        if notice:
            for router in self._ready():
                router.send(None, packet)
        elif self.current is not None:
            self.current.send(None, packet)
            for router, uuid in self._elsewhere:
                router.send(uuid, packet)

    def ask(self) -> None:
        """Ask all of them who is there."""
        self._asked_at = self._loop.time()
        for router in self._ready():
            router.ask()

    def moved(self) -> None:
        """Tell all of them where we are now."""
        for router in self._ready():
            router.register()

    def flush(self) -> None:
        """Write what this turn brought."""
        for router in self.connections.values():
            if router.is_ready:
                router.flush()

    def close(self) -> None:
        """Leave them all; nobody waits for that."""
        self._keepers.cancel()
        for router in self.connections.values():
            router.leave()

    async def wait_closed(self) -> None:
        """Wait until the connections are gone."""
        await self._keepers.stop()
        ends = [each.ended for each in self.connections.values() if each.transport is not None]
        if ends:
            await asyncio.wait(ends, timeout=self._settings.limits.linger + 1)

    # What the connections tell

    def packets_came(self, router: RouterConnection, packets: Sequence[bytes]) -> None:
        """Hand packets in; whoever sent one is registered there."""
        roster, own = router.roster, self.own.uuid
        for packet in packets:
            sender = sender_of(packet)
            if sender not in roster and sender not in (own, EVERYBODY):
                roster[sender] = None
                self._missing[sender] = None
                if router is not self.current or self._elsewhere:
                    self._choose()
        self._owner.take_packets(packets)

    def list_came(self, router: RouterConnection, members: list[Mapping]) -> None:
        """Compare with what was known, and hand the list in."""
        was_ready, router.is_ready = router.is_ready, True
        others = [mapping for mapping in members if mapping.uuid != self.own.uuid]
        router.roster = dict.fromkeys(mapping.uuid for mapping in others)
        self._refresh = REFRESH + len(members) / PER_SECOND
        self._choose()
        if not was_ready:
            self._owner.opened()  # first, so that they know who speaks to them
        self._owner.listed(others)
        self._look_for_missing()
        if not was_ready:
            self._owner.rerouted(None)

    def member_gone(self, router: RouterConnection, uuid: Uuid) -> None:
        """Find another way to a member that a router lost, if there is one."""
        if uuid == self.own.uuid:
            return
        router.roster.pop(uuid, None)
        self._choose()
        if self._router_of(uuid) is not None:
            self._owner.rerouted(uuid)
        else:
            self._missing.pop(uuid, None)
            self._owner.vanished(uuid)

    def beat(self) -> None:
        """Ask now and then who is there."""
        if self._loop.time() - self._asked_at >= self._refresh:
            self._ask_now()

    def router_lost(self, router: RouterConnection, detail: str) -> None:
        """Go on over another router."""
        self._failures[router.place] = detail
        if self._owner.is_closed:
            return
        was_current = router is self.current
        self._choose()
        if self.current is None:
            self._owner.cut_off(detail)
        elif was_current:
            self._owner.rerouted(None)

    # How it works

    async def _connect(self, place: str) -> bool:
        router = self.connections[place] = RouterConnection(place, self._settings, self)
        self._failures.pop(place, None)
        try:
            await router.dial()
        except OSError as error:
            self.router_lost(router, str(error))
            return False
        await router.ended
        return True

    def _way_to(self, uuid: Uuid) -> RouterConnection | None:
        router = self.current
        if router is not None and uuid not in router.roster:
            router = self._router_of(uuid) or router
        return router

    def _ready(self) -> list[RouterConnection]:
        return [router for router in self.connections.values() if router.is_ready]

    def _router_of(self, uuid: Uuid) -> RouterConnection | None:
        return next((router for router in self._ready() if uuid in router.roster), None)

    def _choose(self) -> None:
        """Keep to the current router while it is there."""
        ready = self._ready()
        if self.current not in ready:
            self.current = ready[0] if ready else None
        self._elsewhere = []
        seen = set() if self.current is None else set(self.current.roster)
        for router in ready:
            self._elsewhere += [(router, uuid) for uuid in router.roster if uuid not in seen]
            seen.update(router.roster)

    def _look_for_missing(self) -> None:
        now = self._loop.time()
        listed = {uuid: None for router in self._ready() for uuid in router.roster}
        missing = self._missing
        missing |= listed
        if len(missing) == len(listed):
            return
        for uuid in [uuid for uuid in missing if uuid not in listed]:
            since = missing[uuid]
            if since is None:
                missing[uuid] = now
                self._loop.call_later(GRACE, self._ask_now)
            elif now - since >= GRACE:
                del missing[uuid]
                self._owner.vanished(uuid)

    def _ask_now(self) -> None:
        self.ask()
        self.flush()
