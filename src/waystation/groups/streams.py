"""One member among the others: who is there, what goes to whom, and what came (LA, GR-12).

Here meet the rules of discovery (core/discovery.py), streams (sequences.py) and a carrier, which
takes packets out and hands them in. What users see is built on it in group.py. Nothing is awaited
here, and nothing is created per message but what is kept of it: messages of one turn of the loop
share packets, packets of one turn share a write.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from waystation.core.discovery import (
    ALL_ANSWER,
    AskRouter,
    Discovery,
    DiscoveryRequest,
    Drop,
    Effect,
    IHave,
    Invalidate,
    Tell,
    ToEveryone,
    ToMember,
    ToPhysical,
    Transmit,
    Way,
    WhoHas,
)
from waystation.core.expiry import NEVER, Expiry
from waystation.core.gossip import MemberKind
from waystation.core.identity import AddressCache, Mapping, Physical, Uuid
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.groups.carrier import Carrier
from waystation.groups.inflow import Inflow, Receiver
from waystation.groups.member import GroupLimits, Member
from waystation.groups.packets import (
    EVERYBODY,
    Ack,
    Data,
    Told,
    decode,
    encode_ack,
    encode_data,
    encode_notice,
    sender_of,
)
from waystation.groups.sequences import (
    FIRST_PATIENCE,
    Bundle,
    Item,
    Outgoing,
    ToAll,
    first_number,
)

TICK: Final = 0.05
"""Seconds between looks at what is on its way."""

ACK_DELAY: Final = 0.02
"""Seconds that an acknowledgement waits for others to go with it, in a small group."""

AGAIN: Final = 0.05
"""Seconds before a gap makes the same messages go again."""

SILENT_BEATS: Final = 4

PURGE: Final = 60.0
"""Seconds between looks at who left long ago, at the most."""

_SHARED: Final = frozenset({Way.TUNNEL, Way.MULTICAST})
"""One packet reaches everybody."""

_WATCHED: Final = frozenset({Way.HOSTS, Way.MULTICAST})
"""No router notices who is gone."""


class Letter(Struct, frozen=True, gc=False):
    """A message that waits for the address of its receiver."""

    payload: bytes
    expiry: Expiry
    note: Any


class ExchangeOwner(Receiver, Protocol):
    """The group."""

    def changed(self, kind: MemberKind, mapping: Mapping) -> None:
        """Something happened to a member."""
        ...

    def arrived(self, items: Iterable[Item], uuid: Uuid | None) -> None:
        """A member, or everybody, has got these."""
        ...

    def dropped(self, note: Any, uuid: Uuid | None, reason: Reason) -> None:
        """A message ended here; `note` is what was given with it."""
        ...

    def room(self) -> None:
        """There may be room for who waits to send."""
        ...

    def cut_off(self, detail: str) -> None:
        """There is no way to anybody for now."""
        ...


MakeCarrier: TypeAlias = Callable[["Exchange"], Carrier]


class Exchange:
    """The state of one member, from its connect to its close."""

    def __init__(
        self,
        discovery: Discovery[Letter],
        limits: GroupLimits,
        make_carrier: MakeCarrier,
        owner: ExchangeOwner,
    ) -> None:
        self.discovery = discovery
        self.cache: AddressCache = discovery.cache
        self.way = discovery.way
        self.limits = limits
        self.view: dict[Uuid, Member] = {}  # the others, in the order in which they came
        self.counts: Counter[str] = Counter()  # what was dropped, by reason
        self.is_closed = False
        self.out: dict[Uuid, Outgoing] = {}
        self.lanes: dict[Uuid, Outgoing] = {}  # the same to members that can be reached now
        self.all = ToAll(limits.window)
        self._owner = owner
        self._own_uuid = discovery.cache.own.uuid
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[Uuid, None] = {}  # with messages that were never sent
        self._all_dirty = False
        self._unaware: dict[Uuid, None] = {}  # do not know where what goes to all begins for them
        self._behind: dict[Uuid, int] = {}  # did not keep up: what they have missed since then
        self._again: dict[tuple[Uuid, bool], float] = {}  # when a gap was last filled
        self._sought: dict[Uuid, float] = {}  # whom a packet came from, and nobody knows
        self._heard: dict[Uuid, float] = {}
        self._dead: set[Physical] = set()  # places where nobody answers
        self._answered: set[Uuid] = set()  # who said something itself
        self._strange: dict[Uuid, float] = {}  # no members, and something is on its way to them
        self._flush_due = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._purge_at = 0.0
        self.ready = asyncio.Event()  # a way to the others is there
        self.inflow = Inflow(limits.window, owner, self._soon, self._acknowledge_later)
        self.carrier = make_carrier(self)
        self.largest = self.carrier.limit - 8_192

    @property
    def own(self) -> Mapping:
        """Who this member is, and where it is reached now."""
        return self.cache.own

    @property
    def shares(self) -> bool:
        """Whether one packet reaches everybody."""
        return self.way in _SHARED

    def now_ms(self) -> int:
        """The instant, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    # From open to close

    def start(self) -> None:
        """Look for the others."""
        self.carrier.start()
        self._set("beat", self.limits.beat, self._beat)

    async def move(self, places: Sequence[str]) -> None:
        """Be reached elsewhere from now on, as the same member (LA-10)."""
        found = await self.carrier.move(places)
        self._run(self.discovery.move(found))
        self.carrier.moved()
        self._owner.changed(MemberKind.ADDRESS, self.own)

    async def close(self) -> None:
        """Say goodbye, and end (LA-8)."""
        if self.is_closed:
            return
        self._flush()
        await self._arrive(self.limits.linger)
        self.shut()
        await self.carrier.closed()

    def shut(self) -> None:
        """Say goodbye and end, without waiting for anybody."""
        if self.is_closed:
            return
        self._acknowledge_all()  # or their senders would think that it was lost
        self._run(self.discovery.close())
        self._flush()
        self.is_closed = True
        self.lanes.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for uuid, out in self.out.items():
            self._drop_items(out.give_up(), uuid, Reason.TRANSPORT_DOWN)
        self._drop_items(self.all.give_up(), None, Reason.TRANSPORT_DOWN)
        self.carrier.close()
        self._owner.room()

    async def _arrive(self, seconds: float) -> None:
        """Wait until everything has arrived, as long as there is time for that."""
        deadline = self._loop.time() + seconds
        while self._loop.time() < deadline and self.carrier.is_open:
            if not len(self.all) and not any(len(self.out[uuid]) for uuid in self._present()):
                return
            await asyncio.sleep(0.005)

    def _present(self) -> list[Uuid]:
        return [uuid for uuid in self.out if uuid in self.view]

    # Sending

    def takes(self, size: int) -> bool:
        """Whether a message is small enough."""
        return size <= self.largest

    def is_full(self, uuid: Uuid | None) -> bool:
        """Whether a sender to a member, or to all, has to wait."""
        out = self.all if uuid is None else self.out.get(uuid)
        limits = self.limits
        return out is not None and (len(out) >= limits.window or out.size >= limits.window_bytes)

    def stream(self, uuid: Uuid) -> Outgoing:
        """What goes to a member."""
        out = self.out.get(uuid)
        if out is None:
            start = first_number(self.now_ms())
            out = self.out[uuid] = Outgoing(self.limits.window, start)
        return out

    def send(self, uuid: Uuid, payload: bytes, expiry: Expiry, note: Any) -> None:
        """Send to a member that can be reached."""
        out = self.stream(uuid)
        if uuid in self.view:
            self.lanes[uuid] = out
        self.send_on(out, uuid, payload, expiry, note)

    def send_on(
        self, out: Outgoing, uuid: Uuid, payload: bytes, expiry: Expiry = NEVER, note: Any = None
    ) -> None:
        """Send on a member's lane."""
        if self._all_dirty:
            self._flush_all()  # what was said before goes out before
        out.push(payload, expiry, note)
        if uuid not in self._dirty:
            self._dirty[uuid] = None
            self._soon()

    def send_all(self, payload: bytes, expiry: Expiry, note: Any) -> None:
        """Send to all members at once, where that is possible."""
        if self._dirty:
            self._flush_ones()
        self.all.push(payload, expiry, note)
        if not self._all_dirty:
            self._all_dirty = True
            self._soon()

    def queue(self, uuid: Uuid, letter: Letter) -> None:
        """Have a message wait until the address of its receiver is known (LA-6)."""
        now = self.now_ms()
        self._run(self.discovery.send(uuid, letter, expiry=letter.expiry, now=now))
        self._keep_ticking()

    def leave_behind(self) -> None:
        """Wait no longer for members that do not keep up: they lose what they have not got.

        When they say that they have room again, they get what is sent from then on.
        """
        for uuid in self.all.last_ones():
            if len(self.all.acked) > 1:  # else each of them is counted as it is dropped
                lost = self.all.unsent - 1 - self.all.acked[uuid]
                self.counts[Reason.QUEUE_FULL.value] += lost
            self._behind[uuid] = self.all.unsent
            self._leave_all(uuid, Reason.QUEUE_FULL)

    # What the carrier tells

    def packets(self, packets: Sequence[bytes]) -> None:
        """Take packets apart, and do what they ask for."""
        if self.is_closed:
            return
        own = self._own_uuid
        for raw in packets:
            if sender_of(raw) == own:
                continue  # what we said to all
            try:
                packet = decode(raw)
            except DecodeError:
                self.counts[Reason.MALFORMED.value] += 1
                continue
            if packet.receiver not in (own, EVERYBODY):
                self.counts[Reason.NO_ROUTE.value] += 1  # for who was here before us (LA-2)
            elif isinstance(packet, Data):
                self._on_data(packet)
            elif isinstance(packet, Ack):
                self._on_ack(packet)
            else:
                self._on_notice(packet)

    def opened(self) -> None:
        """Say hello to everybody."""
        self._run(self.discovery.start())
        self.ready.set()
        self._soon()

    def listed(self, members: Sequence[Mapping]) -> None:
        """Learn the members that a router knows."""
        self._run(self.discovery.on_members(members, self.now_ms()))
        for mapping in members:
            self._review(mapping.uuid)
        self._soon()

    def vanished(self, uuid: Uuid) -> None:
        """Suspect a member that nobody sees any more."""
        member = self.view.pop(uuid, None)
        if member is None:
            return
        self._heard.pop(uuid, None)
        self._behind.pop(uuid, None)
        self.lanes.pop(uuid, None)
        self._answered.discard(uuid)
        self.cache.leave(uuid, self.now_ms())
        self._leave_all(uuid, Reason.TRANSPORT_DOWN)
        mapping = self.cache.lookup(uuid) or Mapping(member.address, member.physical)
        self._owner.changed(MemberKind.SUSPECT, mapping)
        self._owner.room()

    def rerouted(self, uuid: Uuid | None) -> None:
        """Send again what may have been lost with the way that it took."""
        for each in list(self.out) if uuid is None else [uuid]:
            self._send_again(each)
        if self.shares:
            for each in self.all.behind() if uuid is None else [uuid]:
                self._send_all_again(each)
        self._soon()

    def place_failed(self, place: Physical, *, gone: bool) -> None:
        """Use other places of who is there (LA-4); without any, suspect it."""
        if gone:
            if len(self._dead) > self.limits.cache_size:
                self._dead.clear()
            self._dead.add(place)
        for uuid, member in list(self.view.items()):
            if place not in member.physical:
                continue
            self.discovery.failed(uuid, place)
            if self.way is Way.HOSTS and self._dead.issuperset(member.physical):
                self.vanished(uuid)
            else:
                self._send_again(uuid)
        self._soon()

    def place_answered(self, place: Physical) -> None:
        """Somebody is there."""
        self._dead.discard(place)

    def is_settled(self) -> bool:
        """Whether all that this member knew of when it came have answered, or will not."""
        if self.way is Way.HOSTS:
            places = {place for member in self.view.values() for place in member.physical}
            places.update(self.own.physical, self._dead)
            return places.issuperset(self.discovery.hosts)
        if self.way is Way.TUNNEL:
            return len(self.view) > ALL_ANSWER or self._answered.issuperset(self.view)
        return all(
            uuid in self._answered or self._dead.issuperset(member.physical)
            for uuid, member in self.view.items()
        )

    def cut_off(self, detail: str) -> None:
        """Pass on that nobody can be reached; direct connections need no router."""
        if self.way is Way.TUNNEL and not self.is_closed:
            self._owner.cut_off(detail)

    # Packets

    def _on_data(self, data: Data) -> None:
        uuid = data.sender
        member = self.view.get(uuid) or self._revive(uuid)
        if member is None:
            return
        self._heard[uuid] = self._loop.time()
        if data.changes:
            self._learn_changes(data.changes)
        lost = self.inflow.accept(member, data)
        if lost:
            self.counts[Reason.QUEUE_FULL.value] += lost

    def _acknowledge_later(self) -> None:
        if "acks" not in self._timers:
            delay = ACK_DELAY * (1 + len(self.view) / 50)
            self._set("acks", delay, self._acknowledge_all)

    def _acknowledge_all(self) -> None:
        self.inflow.make_all_due()
        self._flush()

    def _on_ack(self, ack: Ack) -> None:
        uuid = ack.sender
        if uuid in self.view:
            self._heard[uuid] = self._loop.time()
        out = self.out.get(uuid)
        if out is not None:
            done = out.acknowledge(ack.one)
            if done:
                self._owner.arrived(done, uuid)
            out.credit = ack.credit
            if out.unsent < out.next:
                self._dirty[uuid] = None
                self._soon()
            if ack.gap_one and self._may_go_again(uuid, to_all=False):
                self._send_again(uuid)
        if uuid in self.all.acked:
            self._arrived_at_all(self.all.acknowledge_from(uuid, ack.all))
            if ack.gap_all and self._may_go_again(uuid, to_all=True):
                self._send_all_again(uuid)
        elif ack.credit and uuid in self._behind:  # it has room again
            missed = self.all.next - self._behind.pop(uuid)
            self.counts[Reason.QUEUE_FULL.value] += missed
            self._enter(uuid)
        self._owner.room()

    def _may_go_again(self, uuid: Uuid, *, to_all: bool) -> bool:
        """Whether a gap is to be filled now: not for every packet that shows it."""
        now = self._loop.time()
        if now - self._again.get((uuid, to_all), 0.0) < AGAIN:
            return False
        self._again[uuid, to_all] = now
        return True

    def _leave_all(self, uuid: Uuid, reason: Reason) -> None:
        """Wait no longer for a member to get what went to all; what only it was to get is lost."""
        done = self.all.leave(uuid)
        if self.all.acked:
            self._arrived_at_all(done)
        else:
            self._drop_items(done, None, reason)

    def _arrived_at_all(self, done: list[Item]) -> None:
        if done:
            self._owner.arrived(done, None)

    def _on_notice(self, told: Told) -> None:
        notice = told.notice
        if isinstance(notice, Invalidate):
            self._run(self.discovery.on_notice(notice, self.now_ms()))
            self._farewell(notice.uuid)
            return
        mapping = notice.asker if isinstance(notice, WhoHas) else notice.mapping
        if mapping.uuid == told.sender:
            self._heard[told.sender] = self._loop.time()
            self._answered.add(told.sender)
        self._run(self.discovery.on_notice(notice, self.now_ms()))
        if isinstance(notice, IHave) and notice.hearsay:
            self._greet(mapping.uuid)
        else:
            self._review(mapping.uuid)
        self._soon()

    def _learn_changes(self, changes: Iterable[Mapping]) -> None:
        self._run(self.discovery.on_changes(changes, self.now_ms()))
        for mapping in changes:
            if mapping.uuid in self.view:
                self._review(mapping.uuid)
            else:
                self._greet(mapping.uuid)

    # Who is there

    def _review(self, uuid: Uuid) -> None:
        """Compare what is known of a member with what the group was told."""
        mapping = self.cache.lookup(uuid)
        if mapping is None or uuid == self._own_uuid:
            return
        member = self.view.get(uuid)
        if member is None:
            self._join(mapping)
        elif (member.physical, member.name) != (mapping.physical, mapping.member.name):
            self.view[uuid] = Member.of(mapping)
            self._owner.changed(MemberKind.ADDRESS, mapping)
            self._send_again(uuid)

    def _join(self, mapping: Mapping) -> None:
        uuid = mapping.uuid
        self._end_predecessors(mapping)
        self.view[uuid] = Member.of(mapping)
        self._strange.pop(uuid, None)
        self._heard[uuid] = self._loop.time()
        self.cache.learn(mapping)  # it lives
        self._enter(uuid)
        self._owner.changed(MemberKind.JOIN, mapping)
        if self.way is Way.HOSTS:
            self._introduce(uuid)
        self._send_again(uuid)

    def _end_predecessors(self, mapping: Mapping) -> None:
        """Whoever was reached there before is gone: one place has one member (LA-2)."""
        if mapping.physical:
            places = set(mapping.physical)
            for uuid, member in list(self.view.items()):
                if uuid != mapping.uuid and member.physical and places >= set(member.physical):
                    self.vanished(uuid)

    def _introduce(self, uuid: Uuid) -> None:
        """Tell a new member of the others: its list may name only some of them."""
        for other in self.view:
            known = self.cache.lookup(other)
            if other != uuid and known is not None and known.physical:
                to = ToMember(uuid, self.cache.select(uuid))
                self._run([Tell(IHave(known, hearsay=True), to)])

    def _greet(self, uuid: Uuid) -> None:
        """Ask a member that others spoke of whether it is there."""
        mapping = self.cache.lookup(uuid)
        if mapping is None or uuid in self.view or self.shares or not mapping.physical:
            return
        if uuid != self._own_uuid:
            to = ToMember(uuid, self.cache.select(uuid))
            self._run([Tell(DiscoveryRequest(self.own), to)])

    def _revive(self, uuid: Uuid) -> Member | None:
        """The member that a packet came from; who is not known is asked for."""
        mapping = self.cache.lookup(uuid)
        if mapping is not None:
            self._join(mapping)
            return self.view[uuid]
        now = self._loop.time()
        if not self.cache.said_goodbye(uuid) and now - self._sought.get(uuid, -1.0) > 0.25:
            if len(self._sought) > self.limits.cache_size:
                self._sought.clear()
            self._sought[uuid] = now
            self._run(self.discovery.ask_for(uuid))
        return None

    def _farewell(self, uuid: Uuid) -> None:
        member = self.view.pop(uuid, None)
        self.inflow.forget(uuid)
        self._heard.pop(uuid, None)
        self._behind.pop(uuid, None)
        self.lanes.pop(uuid, None)
        self._answered.discard(uuid)
        self._strange.pop(uuid, None)
        out = self.out.pop(uuid, None)
        if out is not None:
            self._drop_items(out.give_up(), uuid, Reason.NO_ROUTE)
        self._leave_all(uuid, Reason.NO_ROUTE)
        if member is not None:
            mapping = Mapping(member.address, member.physical)
            self._owner.changed(MemberKind.INVALIDATE, mapping)
        self._owner.room()

    # Effects and packets out

    def _run(self, effects: Iterable[Effect[Letter]]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self._tell(effect)
            elif isinstance(effect, Transmit):
                assert isinstance(effect.to, ToMember)  # nobody else is waited for
                letter = effect.body
                self.send(effect.to.uuid, letter.payload, letter.expiry, letter.note)
            elif isinstance(effect, Drop):
                self.counts[effect.reason.value] += 1
                self._owner.dropped(effect.body.note, effect.uuid, effect.reason)
            else:
                assert isinstance(effect, AskRouter)
                self.carrier.ask()
        self._soon()

    def _tell(self, effect: Tell) -> None:
        to, own = effect.to, self._own_uuid
        if isinstance(to, ToEveryone):
            self.carrier.to_all(encode_notice(own, EVERYBODY, effect.notice), notice=True)
        elif isinstance(to, ToPhysical):
            self.carrier.to_place(to.physical, encode_notice(own, EVERYBODY, effect.notice))
        else:
            packet = encode_notice(own, to.uuid, effect.notice)
            self.carrier.to_one(to.uuid, to.physical, packet)

    def _put(self, uuid: Uuid, bundle: Bundle, base: int, *, to_all: bool = False) -> None:
        changes = self.cache.changes_for(uuid) if bundle.payloads else ()
        data = Data(self._own_uuid, uuid, to_all, bundle.first, base, bundle.payloads, changes)
        self.carrier.to_one(uuid, self.cache.select(uuid), encode_data(data))

    def _enter(self, uuid: Uuid) -> None:
        """Have a member get what goes to all from now on."""
        if self.shares:
            self.all.join(uuid)
            self._unaware[uuid] = None

    def _synchronise(self) -> None:
        """Tell new members from which number on they get what goes to all, before the first."""
        for uuid in self._unaware:
            number = self.all.acked.get(uuid)
            if number is not None:
                self._put(uuid, Bundle(number + 1, []), number + 1, to_all=True)
        self._unaware.clear()

    def _send_again(self, uuid: Uuid, *, most: int | None = None) -> None:
        out = self.out.get(uuid)
        if out is None or not len(out) or not self.discovery.reachable(uuid):
            return
        for bundle in out.take_again(self.now_ms(), most=most) or [Bundle(out.base, [])]:
            self._put(uuid, bundle, out.base)
        self._drop_expired(out, uuid)
        self._soon()

    def _send_all_again(self, uuid: Uuid, *, most: int | None = None) -> None:
        if uuid not in self.all.acked:
            return
        base = max(self.all.acked[uuid] + 1, self.all.base)
        missing = self.all.missing(uuid, self.now_ms(), most=most)
        for bundle in missing or [Bundle(base, [])]:
            self._put(uuid, bundle, base, to_all=True)
        self._soon()

    def _soon(self) -> None:
        """Write at the end of this turn."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self.is_closed:
            return
        self._flush_ones()
        if self._all_dirty:
            self._flush_all()
        for ack in self.inflow.take_acks(self._own_uuid):
            if self.discovery.reachable(ack.receiver):
                place = self.cache.select(ack.receiver)
                self.carrier.to_one(ack.receiver, place, encode_ack(ack))
        self.carrier.flush()
        self._keep_ticking()

    def _flush_ones(self) -> None:
        for uuid in self._dirty:
            out = self.out.get(uuid)
            if out is not None:
                for bundle in out.take_fresh(self.now_ms()):
                    self._put(uuid, bundle, out.base)
                self._drop_expired(out, uuid)
        self._dirty.clear()

    def _flush_all(self) -> None:
        self._all_dirty = False
        if self._unaware:
            self._synchronise()
        for bundle in self.all.take_fresh(self.now_ms()):
            changes = self.cache.changes_for_all()
            data = Data(self._own_uuid, EVERYBODY, True, bundle.first, 0, bundle.payloads, changes)
            self.carrier.to_all(encode_data(data), notice=False)
        self._drop_expired(self.all, None)

    # Time

    def _set(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        def ring() -> None:
            del self._timers[name]
            act()

        self._timers[name] = self._loop.call_later(seconds, ring)

    def _keep_ticking(self) -> None:
        if "tick" not in self._timers and not self.is_closed and self._is_busy():
            self._set("tick", TICK, self._tick)

    def _is_busy(self) -> bool:
        return bool(
            len(self.all) or self.discovery.waiting or any(len(o) for o in self.out.values())
        )

    def _tick(self) -> None:
        now = self._loop.time()
        if self.discovery.wake_at() != NEVER:
            self._run(self.discovery.wake(self.now_ms()))
        for uuid, out in self.out.items():
            if len(out) and out.lost_patience(now):
                if out.patience > 2 * FIRST_PATIENCE:
                    self._try_elsewhere(uuid)
                self._send_again(uuid, most=1)
        if len(self.all) and self.all.lost_patience(now):
            for uuid in self.all.behind():
                self._send_all_again(uuid, most=1)
        self._flush()
        self._keep_ticking()

    def _try_elsewhere(self, uuid: Uuid) -> None:
        """Use another place of a member that does not answer at this one (LA-4).

        A connection over an interface that is gone may look alive for a long time.
        """
        place = self.cache.select(uuid)
        known = self.cache.lookup(uuid)
        if place is not None and known is not None and len(known.physical) > 1:
            self.discovery.failed(uuid, place)

    def _beat(self) -> None:
        self._set("beat", self.limits.beat, self._beat)
        self._show_life()
        if self.way in _WATCHED:
            self._suspect_the_silent()
        self._give_up_strangers()
        if self._loop.time() >= self._purge_at:
            self._purge()
        self._flush()

    def _purge(self) -> None:
        """Forget members that left long ago (LA-3)."""
        self._purge_at = self._loop.time() + min(PURGE, self.limits.cache_age / 2)
        self._again.clear()
        for uuid in self.cache.purge(self.now_ms()):
            self.inflow.forget(uuid)
            self.out.pop(uuid, None)

    def _show_life(self) -> None:
        if self.way is Way.MULTICAST:
            self._run([Tell(IHave(self.own), ToEveryone())])
        elif self.way is Way.HOSTS:
            self._run(self.discovery.start())  # somebody of the list may be there by now
            for uuid in self.view:
                to = ToMember(uuid, self.cache.select(uuid))
                self._run([Tell(IHave(self.own), to)])

    def _suspect_the_silent(self) -> None:
        oldest = self._loop.time() - SILENT_BEATS * self.limits.beat
        for uuid in [uuid for uuid in self.view if self._heard.get(uuid, 0.0) < oldest]:
            self.vanished(uuid)

    def _give_up_strangers(self) -> None:
        """Drop what is on its way to members that have been gone for a while."""
        now = self._loop.time()
        for uuid, out in list(self.out.items()):
            if uuid in self.view:
                continue
            if not len(out):
                del self.out[uuid]
                continue
            since = self._strange.setdefault(uuid, now)
            if now - since >= self.limits.grace:
                del self._strange[uuid], self.out[uuid]
                self._drop_items(out.give_up(), uuid, Reason.TRANSPORT_DOWN)
                self._owner.room()

    def _drop_expired(self, out: Outgoing, uuid: Uuid | None) -> None:
        if out.expired:
            expired, out.expired = out.expired, []
            self._drop_items(expired, uuid, Reason.EXPIRED)

    def _drop_items(self, items: Iterable[Item], uuid: Uuid | None, reason: Reason) -> None:
        for item in items:
            self.counts[reason.value] += 1
            self._owner.dropped(item[2], uuid, reason)


def chance() -> float:
    """A share of chance, for waits."""
    return random.random()  # noqa: S311 - no secret
