"""Finding members: discovery, WHO-HAS, I-HAVE and INVALIDATE as a state machine (LA-6 .. LA-11).

Inputs are method calls, each with `now`; every one returns the effects that somebody with sockets
must carry out, in order. Nothing here knows where a packet came from: a member is who it says it
is, in the mapping that it sends, and never the source address of a socket (LA-11).

    what a member hears                 what it does
    DiscoveryRequest(mapping)           learns the mapping, answers with its own
    DiscoveryResponse(mapping)          learns the mapping
    WhoHas(uuid, asker's mapping)       learns the mapping; is it the one asked for: I-HAVE
    IHave(mapping)                      learns the mapping
    Invalidate(uuid)                    forgets the member, drops what waits for it

Whatever is learnt releases what waited for it, in the order it was sent.
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
"""How long an answer to WHO-HAS is awaited before it is asked again: doubling between these two."""

ALL_ANSWER: Final = 32
"""In the tunnel, of more members than these about so many answer a discovery request."""


class Way(Enum):
    """How members find each other (LA-9)."""

    MULTICAST = "UDP multicast"
    HOSTS = "a list of physical addresses"
    ROUTER = "a gossip router for finding, direct connections for talking"
    TUNNEL = "a gossip router for both"


class DiscoveryRequest(Struct, frozen=True, tag=True):
    """Who is there? Asked by a member that joins, with its own mapping (LA-7)."""

    mapping: Mapping


class DiscoveryResponse(Struct, frozen=True, tag=True):
    """I am there: the answer, with the mapping of who answers (LA-7)."""

    mapping: Mapping


class WhoHas(Struct, frozen=True, tag=True):
    """Where is this member? With the mapping of who asks, so that the answer finds its way."""

    uuid: Uuid
    asker: Mapping


class IHave(Struct, frozen=True, tag=True):
    """There it is: the answer to WhoHas, and what a member says when its addresses change.

    `hearsay` says that it does not come from the member itself.
    """

    mapping: Mapping
    hearsay: bool = False


class Invalidate(Struct, frozen=True, tag=True):
    """Forget this member: it has closed (LA-8)."""

    uuid: Uuid


Notice: TypeAlias = DiscoveryRequest | DiscoveryResponse | WhoHas | IHave | Invalidate


class ToEveryone(Struct, frozen=True):
    """By multicast, or through the router's tunnel."""


class ToPhysical(Struct, frozen=True):
    """To a physical address, past the cache."""

    physical: Physical


class ToMember(Struct, frozen=True):
    """To a member; through the tunnel, without a physical address."""

    uuid: Uuid
    physical: Physical | None


class Tell(Struct, frozen=True):
    """Effect: send a notice."""

    notice: Notice
    to: ToEveryone | ToPhysical | ToMember


class AskRouter(Struct, frozen=True):
    """Effect: ask the gossip router for the members of the group; answer with `on_members`."""


class Transmit(Struct, Generic[Body], frozen=True):
    """Effect: send a message, and with it the changes of the cache (LA-5)."""

    body: Body
    to: ToEveryone | ToMember
    changes: tuple[Mapping, ...] = ()


class Drop(Struct, Generic[Body], frozen=True):
    """Effect: a message ends here, for this reason; without a UUID it was to everyone."""

    body: Body
    uuid: Uuid | None
    reason: Reason


Effect: TypeAlias = Tell | AskRouter | Transmit[Body] | Drop[Body]

EVERYONE: Final = ToEveryone()


class _Waiting(Struct, Generic[Body]):
    uuid: Uuid
    body: Body
    expiry: Expiry


class _Search(Struct):
    """The search for one member: the messages that wait for it, and when to ask again."""

    waiting: OrderedDict[int, None]
    asked: int = 0
    alarm: int = 0


class Discovery(Generic[Body]):
    r"""One member's part in finding the others.

    >>> from waystation.core.identity import LogicalAddress
    >>> me = Mapping(LogicalAddress(bytes(15) + b"\1", "a"), ("10.0.0.1:7800",))
    >>> you = Mapping(LogicalAddress(bytes(15) + b"\2", "b"), ("10.0.0.2:7800",))
    >>> a = Discovery(AddressCache(me), Way.MULTICAST, jitter=lambda: 1.0)
    >>> [effect] = a.send(you.uuid, "hello", expiry=9_000, now=0)
    >>> effect == Tell(WhoHas(you.uuid, me), EVERYONE)
    True
    >>> a.send(you.uuid, "hello again", expiry=9_000, now=1)
    []
    >>> [effect.body for effect in a.on_notice(IHave(you), now=20)]
    ['hello', 'hello again']
    """

    def __init__(
        self,
        cache: AddressCache,
        way: Way,
        *,
        jitter: Callable[[], float],
        hosts: Iterable[Physical] = (),
        max_waiting: int = 10_000,
    ) -> None:
        self.cache = cache
        self.way = way
        self.hosts = check_places(hosts)
        self.max_waiting = max_waiting
        if max_waiting < 0:
            raise LocalError(
                f"{max_waiting} messages may wait", rule="LA-6", hint="give a number from 0 on"
            )
        self._jitter = jitter
        self._waiting: OrderedDict[int, _Waiting[Body]] = OrderedDict()  # by number, oldest first
        self._searches: dict[Uuid, _Search] = {}
        self._number = 0  # the last one given to a message or to an alarm
        self._alarms: list[tuple[Expiry, int, Uuid]] = []  # a heap: when, number, for whom
        if way is Way.HOSTS and not self.hosts:
            raise LocalError(
                "discovery by a list of physical addresses has an empty list",
                rule="LA-9",
                hint="give `hosts`, or choose another way",
            )

    @property
    def waiting(self) -> int:
        """How many messages wait for an address."""
        return len(self._waiting)

    def start(self) -> list[Effect[Body]]:
        """Look for the others, and let them know of us (LA-9)."""
        if self.way is Way.ROUTER:
            return [AskRouter()]
        return self._ask(DiscoveryRequest(self.cache.own))

    def close(self) -> list[Effect[Body]]:
        """Say goodbye (LA-8). What still waits is dropped."""
        effects: list[Effect[Body]] = [
            Drop(item.body, item.uuid, Reason.TRANSPORT_DOWN) for item in self._waiting.values()
        ]
        self._waiting.clear()
        self._searches.clear()
        self._alarms.clear()
        return effects + self._tell_all(Invalidate(self.cache.own.uuid))

    def move(self, physical: Iterable[Physical]) -> list[Effect[Body]]:
        """We are reached elsewhere from now on: tell them, under the same identity (LA-10)."""
        return self._tell_all(IHave(self.cache.move(physical)))

    def send(self, uuid: Uuid, body: Body, *, expiry: Expiry, now: Expiry) -> list[Effect[Body]]:
        """Send to one member, or have the message wait until its address is known (LA-6)."""
        check_expiry(expiry, rule="LA-6")
        if now >= expiry:
            return [Drop(body, uuid, Reason.EXPIRED)]
        if self.reachable(uuid):
            return [self._transmit(uuid, body)]
        return self._wait(uuid, body, expiry, now)

    def send_all(
        self, members: Iterable[Uuid], body: Body, *, expiry: Expiry, now: Expiry
    ) -> list[Effect[Body]]:
        """Send to all members; those whose address is not known get theirs when it is (LA-6).

        Where one packet reaches everyone, one is sent, and nobody waits.
        """
        check_expiry(expiry, rule="LA-6")
        if now >= expiry:
            return [Drop(body, None, Reason.EXPIRED)]
        if self.way in (Way.MULTICAST, Way.TUNNEL):
            return [Transmit(body, EVERYONE, self.cache.changes_for_all())]
        effects: list[Effect[Body]] = []
        others = [uuid for uuid in dict.fromkeys(members) if uuid != self.cache.own.uuid]
        for uuid in others:
            effects += self.send(uuid, body, expiry=expiry, now=now)
        return effects if others else [Drop(body, None, Reason.NO_ROUTE)]

    def reachable(self, uuid: Uuid) -> bool:
        """Whether a message to this member can go out now."""
        if self.way is Way.TUNNEL or uuid == self.cache.own.uuid:
            return True
        mapping = self.cache.lookup(uuid)
        return mapping is not None and bool(mapping.physical)

    def ask_for(self, uuid: Uuid) -> list[Effect[Body]]:
        """Ask once where a member is, of whom something came and nothing is known."""
        if self.way is Way.ROUTER:
            return [AskRouter()]
        return self._ask(WhoHas(uuid, self.cache.own))

    def failed(self, uuid: Uuid, physical: Physical) -> None:
        """A physical address stopped working; the next one chosen is another (LA-4)."""
        self.cache.failed(uuid, physical)

    def on_notice(self, notice: Notice, now: Expiry) -> list[Effect[Body]]:
        """Another member said something."""
        if isinstance(notice, Invalidate):
            self.cache.invalidate(notice.uuid, now)
            return self._give_up(notice.uuid, Reason.NO_ROUTE)
        if isinstance(notice, WhoHas):
            return self._learn(notice.asker, now) + self._on_who_has(notice)
        if isinstance(notice, IHave):
            return self._learn(notice.mapping, now, first_hand=not notice.hearsay)
        effects = self._learn(notice.mapping, now)
        if isinstance(notice, DiscoveryRequest) and self._is_to_answer():
            effects += self._answer(DiscoveryResponse(self.cache.own), notice.mapping)
        return effects

    def on_changes(self, changes: Iterable[Mapping], now: Expiry) -> list[Effect[Body]]:
        """A message carried changes of its sender's cache (LA-5)."""
        effects: list[Effect[Body]] = []
        for mapping in changes:
            effects += self._learn(mapping, now, first_hand=False)
        return effects

    def on_members(self, members: Iterable[Mapping], now: Expiry) -> list[Effect[Body]]:
        """The gossip router answered: learn its members, then ask each of them directly (LA-9)."""
        effects: list[Effect[Body]] = []
        for mapping in members:
            uuid = mapping.uuid
            new = self.cache.lookup(uuid) is None
            effects += self._learn(mapping, now)
            if new and self.cache.lookup(uuid) is not None and self.way is Way.ROUTER:
                request = DiscoveryRequest(self.cache.own)
                effects += [Tell(request, ToPhysical(place)) for place in mapping.physical]
        return effects

    def wake_at(self) -> Expiry:
        """When `wake` has something to do next; NEVER when it has not."""
        while self._alarms and self._silent(self._alarms[0]):
            heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else NEVER

    def wake(self, now: Expiry) -> list[Effect[Body]]:
        """Time has passed: drop what has expired, ask again for who has not answered (LA-6)."""
        effects: list[Effect[Body]] = []
        again: list[Uuid] = []
        while self.wake_at() <= now and self._alarms:
            _, number, uuid = heappop(self._alarms)
            if number in self._waiting:
                effects.append(self._withdraw(number, Reason.EXPIRED))
            else:
                again.append(uuid)
        for uuid in again:
            if uuid in self._searches:  # else its last message has just expired
                effects += self._ask_for(uuid, now)
        return effects

    def _set_alarm(self, when: Expiry, number: int, uuid: Uuid) -> None:
        heappush(self._alarms, (when, number, uuid))
        if len(self._alarms) > 64 + 2 * (len(self._waiting) + len(self._searches)):
            self._alarms = [alarm for alarm in self._alarms if not self._silent(alarm)]
            heapify(self._alarms)

    def _on_who_has(self, notice: WhoHas) -> list[Effect[Body]]:
        if notice.uuid == self.cache.own.uuid:
            return self._answer(IHave(self.cache.own), notice.asker)
        # Only a few are asked where there is a list of addresses: they answer for all they know.
        known = self.cache.lookup(notice.uuid)
        if self.way is Way.HOSTS and known is not None and known.physical:
            return self._answer(IHave(known, hearsay=True), notice.asker)
        return []

    def _silent(self, alarm: tuple[Expiry, int, Uuid]) -> bool:
        """Whether an alarm no longer means anything."""
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
            self._set_alarm(expiry, number, uuid)
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
        self._set_alarm(now + int(wait * (0.5 + 0.5 * self._jitter())), search.alarm, uuid)
        return self.ask_for(uuid)

    def _ask(self, notice: Notice) -> list[Effect[Body]]:
        if self.way is Way.HOSTS:
            return [Tell(notice, ToPhysical(host)) for host in self.hosts]
        return [Tell(notice, EVERYONE)]

    def _tell_all(self, notice: Notice) -> list[Effect[Body]]:
        """Tell everybody that we know of."""
        if self.way in (Way.MULTICAST, Way.TUNNEL):
            return [Tell(notice, EVERYONE)]
        known = [mapping for mapping in self.cache.mappings() if mapping.physical]
        told = {place for mapping in known for place in mapping.physical}
        others = (mapping.uuid for mapping in known if mapping.uuid != self.cache.own.uuid)
        members: list[Effect[Body]] = [Tell(notice, self._to(uuid)) for uuid in others]
        # Somebody there may know us though we never heard of them.
        return members + [Tell(notice, ToPhysical(host)) for host in self.hosts if host not in told]

    def _is_to_answer(self) -> bool:
        """Whether a request gets an answer from here.

        Through the tunnel every joiner is told of everybody by the router: in a large group a few
        answers do, or a thousand members would send a million.
        """
        if self.way is not Way.TUNNEL or len(self.cache) <= ALL_ANSWER:
            return True
        return self._jitter() * len(self.cache) < ALL_ANSWER

    def _answer(self, notice: Notice, asker: Mapping) -> list[Effect[Body]]:
        """Answer who asked, unless that is ourselves or somebody who cannot be reached."""
        uuid = asker.uuid
        if uuid == self.cache.own.uuid or not self.reachable(uuid):
            return []
        return [Tell(notice, self._to(uuid))]

    def _to(self, uuid: Uuid) -> ToMember:
        return ToMember(uuid, None if self.way is Way.TUNNEL else self.cache.select(uuid))

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
