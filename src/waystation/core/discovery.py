"""Finding members: discovery, WHO-HAS, I-HAVE and INVALIDATE as a state machine (LA-6 .. LA-11).

Inputs are method calls, each with `now`; every one returns effects, which the caller must carry out
in order. Nothing here knows where a packet came from: a member is identified by the mapping that it
sends, and never by the source address of a socket (LA-11).

    what a member receives              what it does
    DiscoveryRequest(mapping)           learns the mapping, replies with its own
    DiscoveryResponse(mapping)          learns the mapping
    WhoHas(uuid, asker's mapping)       learns the mapping; replies I-HAVE if it is that member
    IHave(mapping)                      learns the mapping
    Invalidate(uuid)                    forgets the member, drops what waits for it

A learned mapping releases the messages that waited for it, in the order they were sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec import Struct

from waystation.core.expiry import NEVER, Expiry, check_expiry
from waystation.core.identity import AddressCache, Mapping, Physical, Uuid, check_places
from waystation.core.outcome import Reason
from waystation.errors import LocalError

Body = TypeVar("Body")

FIRST_WAIT_MS: Final = 250
LONGEST_WAIT_MS: Final = 8_000
"""Wait for a reply to WHO-HAS before it is sent again: doubling from the first to the second."""

ENOUGH_REPLIES: Final = 32
"""So many replies to a discovery request are enough: in a larger group on a tunnel, about this many
members reply; in a smaller one all."""


class DiscoveryMethod(Enum):
    """How members find each other (LA-9)."""

    MULTICAST = "UDP multicast"
    HOSTS = "a list of physical addresses"
    ROUTER = "a gossip router for finding, direct connections for talking"
    TUNNEL = "a gossip router for both"


class DiscoveryRequest(Struct, frozen=True, tag=True):
    """Sent by a joining member, with its own mapping, to find the others (LA-7)."""

    mapping: Mapping


class DiscoveryResponse(Struct, frozen=True, tag=True):
    """The reply to a DiscoveryRequest, with the mapping of the sender (LA-7)."""

    mapping: Mapping


class WhoHas(Struct, frozen=True, tag=True):
    """Asks for the mapping of a member; carries the asker's mapping, so that others can reply."""

    uuid: Uuid
    asker: Mapping


class IHave(Struct, frozen=True, tag=True):
    """The reply to WhoHas; also sent by a member whose addresses changed.

    `hearsay` says that the mapping is not that of the sender itself.
    """

    mapping: Mapping
    hearsay: bool = False


class Invalidate(Struct, frozen=True, tag=True):
    """Sent by a member that closes, so that the others forget it (LA-8)."""

    uuid: Uuid


Notice: TypeAlias = DiscoveryRequest | DiscoveryResponse | WhoHas | IHave | Invalidate


class ToEveryone(Struct, frozen=True):
    """Destination: all members, by multicast or through the router's tunnel."""


class ToPhysical(Struct, frozen=True):
    """Destination: a physical address, regardless of the cache."""

    physical: Physical


class ToMember(Struct, frozen=True):
    """Destination: a member; through the tunnel it has no physical address."""

    uuid: Uuid
    physical: Physical | None


class SendNotice(Struct, frozen=True):
    """Effect: send a notice."""

    notice: Notice
    to: ToEveryone | ToPhysical | ToMember


class AskRouter(Struct, frozen=True):
    """Effect: ask the gossip router for the members of the group; `on_members` takes the reply."""


class Transmit(Struct, Generic[Body], frozen=True):
    """Effect: send a message, together with changes of the cache (LA-5)."""

    body: Body
    to: ToEveryone | ToMember
    changes: tuple[Mapping, ...] = ()


class Drop(Struct, Generic[Body], frozen=True):
    """Effect: drop a message, for this reason; without a UUID it was to everyone."""

    body: Body
    uuid: Uuid | None
    reason: Reason


Effect: TypeAlias = SendNotice | AskRouter | Transmit[Body] | Drop[Body]

EVERYONE: Final = ToEveryone()


class _Waiting(Struct, Generic[Body]):
    uuid: Uuid
    body: Body
    expiry: Expiry


class _Search(Struct):
    """The search for one member: the messages that wait for it, and when to repeat WHO-HAS."""

    waiting: OrderedDict[int, None]
    asked: int = 0
    alarm: int = 0


class Discovery(Generic[Body]):
    r"""How one member finds the others.

    >>> from waystation.core.identity import LogicalAddress
    >>> me = Mapping(LogicalAddress(bytes(15) + b"\1", "a"), ("10.0.0.1:7800",))
    >>> you = Mapping(LogicalAddress(bytes(15) + b"\2", "b"), ("10.0.0.2:7800",))
    >>> a = Discovery(AddressCache(me), DiscoveryMethod.MULTICAST, jitter=lambda: 1.0)
    >>> [effect] = a.send(you.uuid, "hello", expiry=9_000, now=0)
    >>> effect == SendNotice(WhoHas(you.uuid, me), EVERYONE)
    True
    >>> a.send(you.uuid, "hello again", expiry=9_000, now=1)
    []
    >>> [effect.body for effect in a.on_notice(IHave(you), now=20)]
    ['hello', 'hello again']
    """

    def __init__(
        self,
        cache: AddressCache,
        method: DiscoveryMethod,
        *,
        jitter: Callable[[], float],
        hosts: Iterable[Physical] = (),
        max_waiting: int = 10_000,
    ) -> None:
        self.cache = cache
        self.method = method
        self.hosts = check_places(hosts)
        self.max_waiting = max_waiting
        if max_waiting < 0:
            raise LocalError(
                f"invalid max_waiting {max_waiting}", rule="LA-6", hint="give 0 or more"
            )
        self._jitter = jitter
        self._waiting: OrderedDict[int, _Waiting[Body]] = OrderedDict()  # by number, oldest first
        self._searches: dict[Uuid, _Search] = {}
        self._number = 0  # the last number given to a message or a timer
        self._timers: list[tuple[Expiry, int, Uuid]] = []  # a heap: when, number, for whom
        if method is DiscoveryMethod.HOSTS and not self.hosts:
            raise LocalError(
                "discovery by a list of addresses needs at least one",
                rule="LA-9",
                hint="give `hosts`, or choose another method",
            )

    @property
    def waiting(self) -> int:
        """Number of messages that wait for an address."""
        return len(self._waiting)

    def start(self) -> list[Effect[Body]]:
        """Start discovery, which also announces this member (LA-9)."""
        if self.method is DiscoveryMethod.ROUTER:
            return [AskRouter()]
        return self._ask(DiscoveryRequest(self.cache.own))

    def close(self) -> list[Effect[Body]]:
        """Send INVALIDATE (LA-8), and drop what still waits."""
        effects: list[Effect[Body]] = [
            Drop(item.body, item.uuid, Reason.TRANSPORT_DOWN) for item in self._waiting.values()
        ]
        self._waiting.clear()
        self._searches.clear()
        self._timers.clear()
        return effects + self._tell_all(Invalidate(self.cache.own.uuid))

    def move(self, physical: Iterable[Physical]) -> list[Effect[Body]]:
        """Announce new physical addresses under the same identity (LA-10)."""
        return self._tell_all(IHave(self.cache.move(physical)))

    def send(self, uuid: Uuid, body: Body, *, expiry: Expiry, now: Expiry) -> list[Effect[Body]]:
        """Send to one member; the message waits until its address is known (LA-6)."""
        check_expiry(expiry, rule="LA-6")
        if now >= expiry:
            return [Drop(body, uuid, Reason.EXPIRED)]
        if self.reachable(uuid):
            return [self._transmit(uuid, body)]
        return self._wait(uuid, body, expiry, now)

    def send_all(
        self, members: Iterable[Uuid], body: Body, *, expiry: Expiry, now: Expiry
    ) -> list[Effect[Body]]:
        """Send to all members; copies for unknown addresses wait until they are known (LA-6).

        Where one packet reaches everyone, one is sent and nothing waits.
        """
        check_expiry(expiry, rule="LA-6")
        if now >= expiry:
            return [Drop(body, None, Reason.EXPIRED)]
        if self.method in (DiscoveryMethod.MULTICAST, DiscoveryMethod.TUNNEL):
            return [Transmit(body, EVERYONE, self.cache.changes_for_all())]
        effects: list[Effect[Body]] = []
        others = [uuid for uuid in dict.fromkeys(members) if uuid != self.cache.own.uuid]
        for uuid in others:
            effects += self.send(uuid, body, expiry=expiry, now=now)
        return effects if others else [Drop(body, None, Reason.NO_ROUTE)]

    def reachable(self, uuid: Uuid) -> bool:
        """Whether a message to this member can be sent now."""
        if self.method is DiscoveryMethod.TUNNEL or uuid == self.cache.own.uuid:
            return True
        mapping = self.cache.lookup(uuid)
        return mapping is not None and bool(mapping.physical)

    def ask_for(self, uuid: Uuid) -> list[Effect[Body]]:
        """Send one WHO-HAS for an unknown member that sent something."""
        if self.method is DiscoveryMethod.ROUTER:
            return [AskRouter()]
        return self._ask(WhoHas(uuid, self.cache.own))

    def failed(self, uuid: Uuid, physical: Physical) -> None:
        """Note that a physical address stopped working, so that another is chosen next (LA-4)."""
        self.cache.failed(uuid, physical)

    def on_notice(self, notice: Notice, now: Expiry) -> list[Effect[Body]]:
        """Handle a notice from another member."""
        if isinstance(notice, Invalidate):
            self.cache.invalidate(notice.uuid, now)
            return self._give_up(notice.uuid, Reason.NO_ROUTE)
        if isinstance(notice, WhoHas):
            return self._learn(notice.asker, now) + self._on_who_has(notice)
        if isinstance(notice, IHave):
            return self._learn(notice.mapping, now, first_hand=not notice.hearsay)
        effects = self._learn(notice.mapping, now)
        if isinstance(notice, DiscoveryRequest) and self._should_reply():
            effects += self._reply(DiscoveryResponse(self.cache.own), notice.mapping)
        return effects

    def on_changes(self, changes: Iterable[Mapping], now: Expiry) -> list[Effect[Body]]:
        """Handle changes of its sender's cache that a message carried (LA-5)."""
        effects: list[Effect[Body]] = []
        for mapping in changes:
            effects += self._learn(mapping, now, first_hand=False)
        return effects

    def on_members(self, members: Iterable[Mapping], now: Expiry) -> list[Effect[Body]]:
        """Handle the gossip router's reply: learn its members, and ask each directly (LA-9)."""
        effects: list[Effect[Body]] = []
        for mapping in members:
            uuid = mapping.uuid
            new = self.cache.lookup(uuid) is None
            effects += self._learn(mapping, now)
            if (
                new
                and self.cache.lookup(uuid) is not None
                and self.method is DiscoveryMethod.ROUTER
            ):
                request = DiscoveryRequest(self.cache.own)
                effects += [SendNotice(request, ToPhysical(place)) for place in mapping.physical]
        return effects

    def wake_at(self) -> Expiry:
        """When to call `wake` next; NEVER if there is nothing to do."""
        while self._timers and self._is_obsolete(self._timers[0]):
            heappop(self._timers)
        return self._timers[0][0] if self._timers else NEVER

    def wake(self, now: Expiry) -> list[Effect[Body]]:
        """Drop what has expired, and repeat WHO-HAS for members that did not reply (LA-6)."""
        effects: list[Effect[Body]] = []
        again: list[Uuid] = []
        while self.wake_at() <= now and self._timers:
            _, number, uuid = heappop(self._timers)
            if number in self._waiting:
                effects.append(self._withdraw(number, Reason.EXPIRED))
            else:
                again.append(uuid)
        for uuid in again:
            if uuid in self._searches:  # otherwise its last message has just expired
                effects += self._ask_for(uuid, now)
        return effects

    def _set_timer(self, when: Expiry, number: int, uuid: Uuid) -> None:
        heappush(self._timers, (when, number, uuid))
        if len(self._timers) > 64 + 2 * (len(self._waiting) + len(self._searches)):
            self._timers = [alarm for alarm in self._timers if not self._is_obsolete(alarm)]
            heapify(self._timers)

    def _on_who_has(self, notice: WhoHas) -> list[Effect[Body]]:
        if notice.uuid == self.cache.own.uuid:
            return self._reply(IHave(self.cache.own), notice.asker)
        # With a list of addresses only a few members are asked, so they reply for others as well.
        known = self.cache.lookup(notice.uuid)
        if self.method is DiscoveryMethod.HOSTS and known is not None and known.physical:
            return self._reply(IHave(known, hearsay=True), notice.asker)
        return []

    def _is_obsolete(self, alarm: tuple[Expiry, int, Uuid]) -> bool:
        """Whether a timer is obsolete."""
        _, number, uuid = alarm
        search = self._searches.get(uuid)
        return search is None or not (number == search.alarm or number in search.waiting)

    def _transmit(self, uuid: Uuid, body: Body) -> Transmit[Body]:
        return Transmit(body, self._to(uuid), self.cache.changes_for(uuid))

    def _wait(self, uuid: Uuid, body: Body, expiry: Expiry, now: Expiry) -> list[Effect[Body]]:
        self._number = number = self._number + 1
        self._waiting[number] = _Waiting(uuid, body, expiry)
        search = self._searches.get(uuid)
        effects: list[Effect[Body]] = []
        if search is None:
            search = self._searches[uuid] = _Search(OrderedDict())
            effects = self._ask_for(uuid, now)
        search.waiting[number] = None
        if expiry != NEVER:
            self._set_timer(expiry, number, uuid)
        if len(self._waiting) > self.max_waiting:
            oldest = next(iter(self._waiting))
            effects.append(self._withdraw(oldest, Reason.QUEUE_FULL))
        return effects

    def _withdraw(self, number: int, reason: Reason) -> Drop[Body]:
        item = self._waiting.pop(number)
        waiting = self._searches[item.uuid].waiting
        del waiting[number]
        if not waiting:
            del self._searches[item.uuid]
        return Drop(item.body, item.uuid, reason)

    def _ask_for(self, uuid: Uuid, now: Expiry) -> list[Effect[Body]]:
        search = self._searches[uuid]
        wait = min(FIRST_WAIT_MS << min(search.asked, 16), LONGEST_WAIT_MS)
        search.asked += 1
        self._number = search.alarm = self._number + 1
        self._set_timer(now + int(wait * (0.5 + 0.5 * self._jitter())), search.alarm, uuid)
        return self.ask_for(uuid)

    def _ask(self, notice: Notice) -> list[Effect[Body]]:
        if self.method is DiscoveryMethod.HOSTS:
            return [SendNotice(notice, ToPhysical(host)) for host in self.hosts]
        return [SendNotice(notice, EVERYONE)]

    def _tell_all(self, notice: Notice) -> list[Effect[Body]]:
        """Send a notice to all known members."""
        if self.method in (DiscoveryMethod.MULTICAST, DiscoveryMethod.TUNNEL):
            return [SendNotice(notice, EVERYONE)]
        known = [mapping for mapping in self.cache.mappings() if mapping.physical]
        told = {place for mapping in known for place in mapping.physical}
        others = (mapping.uuid for mapping in known if mapping.uuid != self.cache.own.uuid)
        members: list[Effect[Body]] = [SendNotice(notice, self._to(uuid)) for uuid in others]
        # A member at one of these hosts may know us although we do not know it.
        return members + [
            SendNotice(notice, ToPhysical(host)) for host in self.hosts if host not in told
        ]

    def _should_reply(self) -> bool:
        """Whether to reply to a discovery request.

        Through the tunnel the router tells every joiner all members, so in a large group a few
        replies are enough; otherwise a thousand members would send a million.
        """
        if self.method is not DiscoveryMethod.TUNNEL or len(self.cache) <= ENOUGH_REPLIES:
            return True
        return self._jitter() * len(self.cache) < ENOUGH_REPLIES

    def _reply(self, notice: Notice, asker: Mapping) -> list[Effect[Body]]:
        """Reply to the asker, unless that is this member or cannot be reached."""
        uuid = asker.uuid
        if uuid == self.cache.own.uuid or not self.reachable(uuid):
            return []
        return [SendNotice(notice, self._to(uuid))]

    def _to(self, uuid: Uuid) -> ToMember:
        return ToMember(
            uuid, None if self.method is DiscoveryMethod.TUNNEL else self.cache.select(uuid)
        )

    def _learn(
        self, mapping: Mapping, now: Expiry, *, first_hand: bool = True
    ) -> list[Effect[Body]]:
        self.cache.learn(mapping, first_hand=first_hand)
        uuid = mapping.uuid
        if uuid not in self._searches or not self.reachable(uuid):
            return []
        return self._release(uuid, now)

    def _release(self, uuid: Uuid, now: Expiry) -> list[Effect[Body]]:
        effects: list[Effect[Body]] = []
        for number in self._searches.pop(uuid).waiting:
            item = self._waiting.pop(number)
            if now >= item.expiry:
                effects.append(Drop(item.body, uuid, Reason.EXPIRED))
            else:
                effects.append(self._transmit(uuid, item.body))
        return effects

    def _give_up(self, uuid: Uuid, reason: Reason) -> list[Effect[Body]]:
        search = self._searches.pop(uuid, None)
        if search is None:
            return []
        dropped = [self._waiting.pop(number) for number in search.waiting]
        return [Drop(item.body, uuid, reason) for item in dropped]
