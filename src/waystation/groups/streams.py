"""One member among the others: who is there, what goes to whom, and what came (LA, GR-12).

Here meet the rules of discovery (core/discovery.py), of membership (core/membership.py) and of
numbered messages (sequences.py), and a carrier, which takes packets out and hands them in. What
users see is built on it in group.py. Nothing is awaited here for a message, and nothing is created
but what is kept of it: messages of one turn of the loop share packets, packets of one turn share a
write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as ReadOnlyDict
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from waystation.core.budget import OVERHEAD, Account
from waystation.core.clock import current_clock, now_ns
from waystation.core.discovery import (
    ENOUGH_REPLIES,
    AskRouter,
    Discovery,
    DiscoveryMethod,
    DiscoveryRequest,
    Drop,
    IHave,
    Invalidate,
    Notice,
    SendNotice,
    ToEveryone,
    ToMember,
    Transmit,
    WhoHas,
)
from waystation.core.discovery import Effect as DiscoveryEffect
from waystation.core.expiry import NEVER, Expiry
from waystation.core.gossip import MemberKind
from waystation.core.identity import AddressCache, Mapping, Physical, Uuid
from waystation.core.membership import (
    Effect,
    Event,
    Member,
    Membership,
    Peer,
    Sharing,
    SharingEffect,
    SharingEvent,
    State,
    sharing_step,
)
from waystation.core.outcome import Reason
from waystation.core.sequences import (
    FIRST_TIMEOUT,
    Bundle,
    Item,
    OnEnd,
    Outgoing,
    ToAll,
    first_number,
)
from waystation.core.shares import Shares
from waystation.errors import DecodeError
from waystation.groups.carrier import Carrier
from waystation.groups.inbound import Inbound
from waystation.groups.packets import (
    EVERYBODY,
    Ack,
    Data,
    NoticePacket,
    decode,
    encode_ack,
    encode_data,
    encode_notice,
    sender_of,
)
from waystation.groups.settings import GroupLimits

if TYPE_CHECKING:
    from waystation.groups.group import Group

TICK: Final = 0.05
"""Seconds between looks at what is on its way."""

ACK_DELAY: Final = 0.02
"""Seconds that an acknowledgement waits for others to go with it, in a small group."""

FILL_INTERVAL: Final = 0.05
"""Seconds before a gap makes the same messages go again."""

ASK_INTERVAL: Final = 0.25
"""Seconds before an unknown sender is asked for again."""

SILENT_BEATS: Final = 4

POSTS: Final = 4
"""Windows full of messages that may be kept for a member whose senders do not wait."""

AT_ONCE: Final = 4
"""Packets that are sent between two looks whether the way takes more."""

UNCOUNTED: Final = 32 * 1024
"""So many bytes may be on their way to a member without being counted."""

PURGE_INTERVAL: Final = 60.0
"""Seconds between looks at who left long ago, or half the age at which members are forgotten."""

_SHARED: Final = frozenset({DiscoveryMethod.TUNNEL, DiscoveryMethod.MULTICAST})
"""One packet reaches everybody."""

_WATCHED: Final = frozenset({DiscoveryMethod.HOSTS, DiscoveryMethod.MULTICAST})
"""No router notices who is gone."""

_log = logging.getLogger("waystation.group")

Waiting: TypeAlias = tuple[bytes, Expiry, OnEnd | None]
"""A message that waits for the address of its receiver: payload, expiry, whom to tell its end."""


class Streams:
    """The state of one member, from its connect to its close."""

    def __init__(
        self,
        discovery: Discovery[Waiting],
        limits: GroupLimits,
        make_carrier: Callable[[Streams], Carrier],
        owner: Group,
    ) -> None:
        self.discovery = discovery
        self.cache: AddressCache = discovery.cache
        self.method = discovery.method
        self.shares = self.method in _SHARED  # one packet reaches everybody
        self.limits = limits
        self.membership = Membership(capacity=limits.cache_size)
        self.members = self.membership.members
        self.peers = self.membership.peers
        self.all = ToAll(limits.window)
        self.counts: Counter[str] = Counter()  # what was dropped, by reason
        self.is_closed = False
        self.ready = asyncio.Event()  # there is a way to the others
        self._owner = owner
        self._own_uuid = discovery.cache.own.uuid
        self._loop = asyncio.get_running_loop()
        self._unsent: dict[Peer, None] = {}  # with messages that were never sent
        self._in_flight: dict[Peer, None] = {}  # were sent something, or wait for room
        self._all_unsent = False
        self._crowded: dict[Peer, None] = {}  # with unsent messages, and the way takes none now
        self._all_first = False  # what goes to all waits for that, and was there before those
        self.held: Shares[Peer | None] = Shares(limits.budget)  # on their way to each, and to all
        self.unresolved = Account(limits.waiting_bytes)  # for members whose address is asked for
        self.window_bytes = limits.window_bytes  # for one of them; less when all have too much
        self.lagging: set[Uuid] = set()  # direct members that lose what goes to all
        self._joining: list[Peer] = []  # to be told where what goes to all begins
        self._flush_due = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._purge_at = 0.0
        self._actions: ReadOnlyDict[Effect | SharingEffect, Callable[[Peer], None]] = {
            Effect.ASK_WHERE: self._ask_where,
            Effect.ADMIT: self._admit,
            Effect.TELL_MOVED: partial(self._tell_change, kind=MemberKind.ADDRESS),
            Effect.SUSPECT: self._suspect,
            Effect.DISMISS: partial(self._part_with, kind=MemberKind.INVALIDATE),
            Effect.SEND_AGAIN: self._send_again,
            Effect.DROP_LOST: partial(self._drop_outgoing, reason=Reason.TRANSPORT_DOWN),
            Effect.DROP_UNROUTABLE: partial(self._drop_outgoing, reason=Reason.NO_ROUTE),
            SharingEffect.START: self._start,
            SharingEffect.TELL_START: self._tell_start,
            SharingEffect.COUNT_LOST: self._count_lost,
            SharingEffect.STOP: self._stop,
            SharingEffect.COUNT_MISSED: self._count_missed,
        }
        self.inbound = Inbound(
            limits.window, limits.window_bytes, owner, self._soon, self._acknowledge_later
        )
        self.carrier = make_carrier(self)
        self.largest = self.carrier.limit - 8_192

    @property
    def own(self) -> Mapping:
        """Who this member is, and where it is reached now."""
        return self.cache.own

    def now_ms(self) -> int:
        """The instant, in milliseconds since the epoch."""
        return now_ns() // 1_000_000

    def others(self) -> list[Member]:
        """The other members, in the order in which they joined."""
        return [peer.member for peer in self.members.values() if peer.member is not None]

    # From open to close

    def start(self) -> None:
        """Look for the others; from now on the clock is not set any more (TM-1)."""
        current_clock().pin()
        self.carrier.start()
        self._set("beat", self.limits.beat, self._beat)

    async def move(self, places: Sequence[str]) -> None:
        """Be reached elsewhere from now on, as the same member (LA-10)."""
        found = await self.carrier.move(places)
        self._run(self.discovery.move(found))
        self.carrier.moved()
        self._owner.changed(MemberKind.ADDRESS, self.own)

    async def close(self) -> None:
        """Wait for a while until everything has arrived, say goodbye, and end (LA-8)."""
        self._flush()
        deadline = self._loop.time() + self.limits.linger
        # An event instead would have to be looked at with every acknowledgement.
        while self._is_on_its_way() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self.leave()
        await self.carrier.wait_closed()

    def leave(self) -> None:
        """Say goodbye and end, without waiting for anybody."""
        if self.is_closed:
            return
        self._acknowledge_all()  # or their senders would think that it was lost
        self._run(self.discovery.close())
        self._flush()
        self.is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for peer in self.peers.values():
            peer.verdict = None
            if peer.outgoing is not None:
                self._drop(peer.outgoing.give_up(), Reason.TRANSPORT_DOWN)
        self._drop(self.all.give_up(), Reason.TRANSPORT_DOWN)
        self.carrier.close()
        self._owner.left()

    def _is_on_its_way(self) -> bool:
        if self.is_closed or not self.carrier.is_open:
            return False
        return bool(len(self.all) or any(peer.undelivered for peer in self.members.values()))

    # Sending

    def is_full(self, uuid: Uuid | None) -> bool:
        """Whether a sender to a member, or to all, has to wait."""
        out: Outgoing | None = self.all
        whom: Peer | None = None
        if uuid is not None:
            peer = self.peers.get(uuid)
            out = None if peer is None else peer.outgoing
            whom = peer
        if out is None:
            return False
        if out.size >= out.mark:
            self._count(whom, out)
        return len(out) >= self.limits.window or out.size >= self.window_bytes

    def takes_post(self, uuid: Uuid, size: int) -> bool:
        """Whether something that nobody waits with can be kept for a member, beyond its window."""
        peer = self.peers.get(uuid)
        out = None if peer is None else peer.outgoing
        if out is not None and len(out) >= POSTS * self.limits.window:
            return False
        return self.discovery.reachable(uuid) or self.unresolved.has_room(size + OVERHEAD)

    def is_lagging(self, uuid: Uuid) -> bool:
        """Whether a member lost what went to all, and has not caught up since."""
        if uuid not in self.lagging:
            return False
        peer = self.peers.get(uuid)
        out = None if peer is None else peer.outgoing
        limits = self.limits
        if out is None or (2 * len(out) <= limits.window and 2 * out.size <= self.window_bytes):
            self.lagging.discard(uuid)
            return False
        return True

    def next_number(self, uuid: Uuid | None) -> int:
        """The number of the next message to a member, or to all."""
        return self.all.next if uuid is None else self._outgoing(self.membership.peer(uuid)).next

    def send(self, uuid: Uuid, payload: bytes, expiry: Expiry, on_end: OnEnd | None) -> None:
        """Send to a member that can be reached."""
        peer = self.membership.peer(uuid)
        self.send_on(self._outgoing(peer), peer, payload, expiry, on_end)

    def send_on(
        self,
        out: Outgoing,
        peer: Peer,
        payload: bytes,
        expiry: Expiry = NEVER,
        on_end: OnEnd | None = None,
    ) -> None:
        """Send on a member's outgoing stream."""
        if self._all_unsent:
            self._flush_all()  # what was sent before goes out before
        out.push(payload, expiry, on_end)
        if peer not in self._unsent:
            self._unsent[peer] = None
            self._soon()

    def send_all(self, payload: bytes, expiry: Expiry, on_end: OnEnd | None) -> None:
        """Send to all members at once, where that is possible."""
        if self._unsent:
            self._flush_ones()
        self.all.push(payload, expiry, on_end)
        if not self._all_unsent:
            self._all_unsent = True
            self._soon()

    def queue(self, uuid: Uuid, payload: bytes, expiry: Expiry, on_end: OnEnd | None) -> None:
        """Have a message wait until the address of its receiver is known (LA-6)."""
        message = payload, expiry, on_end
        self.unresolved.take(len(payload) + OVERHEAD)
        self._run(self.discovery.send(uuid, message, expiry=expiry, now=self.now_ms()))

    def leave_behind(self) -> None:
        """Wait no longer for members that do not keep up: they lose what they have not got.

        When they say that they have room again, they get what is sent from then on.
        """
        for uuid in self.all.last_ones():
            self._share(self.peers[uuid], SharingEvent.TOO_SLOW)

    def _outgoing(self, peer: Peer) -> Outgoing:
        if peer.outgoing is None:
            peer.outgoing = Outgoing(self.limits.window, first_number(self.now_ms()))
        return peer.outgoing

    # What the carrier tells

    def take_packets(self, packets: Sequence[bytes]) -> None:
        """Take packets apart, and do what they ask for."""
        if self.is_closed:
            return
        own = self._own_uuid
        for raw in packets:
            if sender_of(raw) == own:
                continue  # what we sent to all
            try:
                packet = decode(raw)
            except DecodeError as error:
                self.counts[Reason.MALFORMED.value] += 1
                _log.debug("%s: dropped a packet: %s", self.own.member, error)
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

    def listed(self, members: Sequence[Mapping]) -> None:
        """Learn the members that a router knows."""
        self._run(self.discovery.on_members(members, self.now_ms()))
        for mapping in members:
            self._review(mapping.uuid, Event.NAMED)

    def vanished(self, uuid: Uuid) -> None:
        """Suspect a member that nobody sees any more."""
        peer = self.peers.get(uuid)
        if peer is not None:
            self._happens(peer, Event.LOST)

    def rerouted(self, uuid: Uuid | None) -> None:
        """Send again what may have been lost with the way that it took."""
        for peer in list(self._in_flight):
            if uuid in (None, peer.uuid):
                self._send_again(peer)
        if self.shares:
            for each in self.all.behind() if uuid is None else [uuid]:
                self._send_all_again(each)
        self.writable()  # what waited for the way that is gone

    def place_failed(self, place: Physical, *, gone: bool) -> None:
        """Use other places of who is there (LA-4); without any, suspect it."""
        if self.is_closed:
            return
        if gone:
            self.membership.place_failed(place)
        for peer in self.membership.at(place):
            self.discovery.failed(peer.uuid, place)
            if self.method is DiscoveryMethod.HOSTS and self.membership.is_unreachable(peer):
                self._happens(peer, Event.LOST)
            else:
                self._send_again(peer)
        self.writable()

    def writable(self) -> None:
        """Send more: the way to somebody takes messages again."""
        if self._crowded or self._all_unsent:
            self._unsent |= self._crowded
            self._crowded.clear()
            self._soon()

    def cut_off(self, detail: str) -> None:
        """Pass on that nobody can be reached; direct connections need no router."""
        if self.method is DiscoveryMethod.TUNNEL and not self.is_closed:
            self._owner.cut_off(detail)

    def is_settled(self) -> bool:
        """Whether all that this member knew of when it came have answered, or will not."""
        membership = self.membership
        if self.method is DiscoveryMethod.HOSTS:
            return membership.cover(self.discovery.hosts, self.own.physical)
        unanswered = membership.unanswered()
        if self.method is DiscoveryMethod.TUNNEL:
            return len(self.members) > ENOUGH_REPLIES or not unanswered
        return all(membership.is_unreachable(peer) for peer in unanswered)

    # Packets

    def _on_data(self, data: Data) -> None:
        peer = self.members.get(data.sender) or self._find_sender(data.sender)
        if peer is None or peer.member is None:
            return
        peer.heard_at = self._loop.time()
        if data.changes:
            self._learn_changes(data.changes)
        lost = self.inbound.accept(peer, peer.member, data)
        if lost:
            self.counts[Reason.QUEUE_FULL.value] += lost

    def _acknowledge_later(self) -> None:
        if "acks" not in self._timers:
            delay = ACK_DELAY * (1 + len(self.members) / 50)
            self._set("acks", delay, self._acknowledge_all)

    def _acknowledge_all(self) -> None:
        self.inbound.make_all_due()
        self._flush()

    def _on_ack(self, ack: Ack) -> None:
        peer = self.peers.get(ack.sender)
        if peer is None:
            return
        peer.heard_at = now = self._loop.time()
        out = peer.outgoing
        if out is not None:
            _tell_arrived(out.acknowledge(ack.one))
            self._count(peer, out)
            out.credit = ack.credit
            if out.unsent < out.next:
                self._unsent[peer] = None
                self._soon()
            if ack.gap_one and now - peer.filled_at >= FILL_INTERVAL:
                peer.filled_at = now
                self._send_again(peer)
        if peer.uuid in self.all.acked:
            _tell_arrived(self.all.acknowledge_from(peer.uuid, ack.all))
            self._count(None, self.all)
            if ack.gap_all and now - peer.filled_all_at >= FILL_INTERVAL:
                peer.filled_all_at = now
                self._send_all_again(peer.uuid)
        elif ack.credit:
            self._share(peer, SharingEvent.ROOM_AGAIN)
        self._owner.room()

    def _on_notice(self, packet: NoticePacket) -> None:
        notice = packet.notice
        _log.debug("%s: %s", self.own.member, notice)
        self._run(self.discovery.on_notice(notice, self.now_ms()))
        if isinstance(notice, Invalidate):
            peer = self.peers.get(notice.uuid)
            if peer is not None:
                self._happens(peer, Event.SAID_GOODBYE)
            return
        mapping = notice.asker if isinstance(notice, WhoHas) else notice.mapping
        if isinstance(notice, IHave) and notice.hearsay:
            self._greet(mapping.uuid)
        else:
            is_own_word = mapping.uuid == packet.sender
            self._review(mapping.uuid, Event.SPOKE if is_own_word else Event.NAMED)

    def _learn_changes(self, changes: Iterable[Mapping]) -> None:
        self._run(self.discovery.on_changes(changes, self.now_ms()))
        for mapping in changes:
            if mapping.uuid in self.members:
                self._review(mapping.uuid, Event.NAMED)
            else:
                self._greet(mapping.uuid)

    # Who is there

    def _happens(self, peer: Peer, event: Event) -> None:
        """Something happened to a peer: do what the table says."""
        for effect in self.membership.happens(peer, event):
            self._actions[effect](peer)

    def _review(self, uuid: Uuid, event: Event) -> None:
        """Compare what is known of a peer with what the group was told."""
        mapping = self.cache.lookup(uuid)
        if mapping is None or uuid == self._own_uuid:
            return
        peer = self.peers.get(uuid) or self.membership.peer(uuid)
        if event is Event.SPOKE:
            peer.heard_at = self._loop.time()
        self._happens(peer, event)
        if peer.mapping is not mapping and peer.has_moved(mapping):
            peer.found_at(mapping)
            self._happens(peer, Event.MOVED)

    def _find_sender(self, uuid: Uuid) -> Peer | None:
        """The peer that messages came from, if its address is known; else it is asked for."""
        if self.cache.said_goodbye(uuid):
            return None
        peer = self.membership.peer(uuid)
        if self.cache.lookup(uuid) is not None:
            self._happens(peer, Event.NAMED)
            return peer
        now = self._loop.time()
        if now - peer.asked_at >= ASK_INTERVAL:
            peer.asked_at = now
            self._happens(peer, Event.STRANGE_MESSAGE)
        return None

    def _greet(self, uuid: Uuid) -> None:
        """Ask a peer that others spoke of whether it is there."""
        mapping = self.cache.lookup(uuid)
        if mapping is None or uuid in self.members or self.shares or not mapping.physical:
            return
        if uuid != self._own_uuid:
            self._tell_one(uuid, DiscoveryRequest(self.own))

    # What the table of membership asks for

    def _ask_where(self, peer: Peer) -> None:
        self._run(self.discovery.ask_for(peer.uuid))

    def _admit(self, peer: Peer) -> None:
        """Let a peer in; one place has one member: whoever was reached there is gone (LA-2)."""
        mapping = self.cache.lookup(peer.uuid)
        assert mapping is not None  # or it would not have joined
        if mapping.physical:
            for other in self.membership.replaced_by(mapping):
                self._happens(other, Event.LOST)
        peer.found_at(mapping)
        peer.heard_at = self._loop.time()
        self.cache.learn(mapping)  # it lives
        self._share(peer, SharingEvent.ENTERED)
        self._owner.changed(MemberKind.JOIN, mapping)
        if self.method is DiscoveryMethod.HOSTS:
            self._introduce(peer)

    def _introduce(self, peer: Peer) -> None:
        """Tell a new member of the others: its list may name only some of them."""
        for uuid in self.members:
            known = self.cache.lookup(uuid)
            if uuid != peer.uuid and known is not None and known.physical:
                self._tell_one(peer.uuid, IHave(known, hearsay=True))

    def _suspect(self, peer: Peer) -> None:
        self.cache.leave(peer.uuid, self.now_ms())
        self._part_with(peer, MemberKind.SUSPECT)

    def _part_with(self, peer: Peer, kind: MemberKind) -> None:
        self._share(peer, SharingEvent.LEFT)
        self._tell_change(peer, kind)
        self._owner.room()

    def _tell_change(self, peer: Peer, kind: MemberKind) -> None:
        peer.verdict = None
        told = peer.mapping
        assert told is not None  # only members are told of
        known = self.cache.lookup(peer.uuid)
        self._owner.changed(kind, known or Mapping(told.member, told.physical))

    def _drop_outgoing(self, peer: Peer, reason: Reason) -> None:
        out, peer.outgoing = peer.outgoing, None
        if peer.state is State.GONE:
            peer.arrivals = None
        self.held.note(peer, 0)
        self._crowded.pop(peer, None)
        self.lagging.discard(peer.uuid)
        if out is not None:
            self._drop(out.give_up(), reason)
        self._owner.room()

    # What goes to all, in one packet

    def _share(self, peer: Peer, event: SharingEvent) -> None:
        """Something happened to a peer's part in it: do what the table says."""
        if self.shares:
            peer.sharing, effects = sharing_step(peer.sharing, event)
            for effect in effects:
                self._actions[effect](peer)

    def _start(self, peer: Peer) -> None:
        self.all.join(peer.uuid)
        self._joining.append(peer)

    def _tell_start(self, peer: Peer) -> None:
        number = self.all.acked[peer.uuid] + 1
        self._put(peer.uuid, Bundle(number, []), number, to_all=True)

    def _count_lost(self, peer: Peer) -> None:
        peer.lagging_from = self.all.unsent
        if len(self.all.acked) > 1:  # else each of them is counted as it is dropped
            lost = self.all.unsent - 1 - self.all.acked[peer.uuid]
            self.counts[Reason.QUEUE_FULL.value] += lost

    def _count_missed(self, peer: Peer) -> None:
        self.counts[Reason.QUEUE_FULL.value] += self.all.next - peer.lagging_from

    def _stop(self, peer: Peer) -> None:
        """What only this peer was to get is lost."""
        done = self.all.leave(peer.uuid)
        if self.all.acked:
            _tell_arrived(done)
        elif peer.sharing is Sharing.LAGGING:
            self._drop(done, Reason.QUEUE_FULL)
        else:
            has_closed = peer.state is State.GONE
            self._drop(done, Reason.NO_ROUTE if has_closed else Reason.TRANSPORT_DOWN)

    # Effects of discovery, and packets out

    def _run(self, effects: Iterable[DiscoveryEffect[Waiting]]) -> None:
        for effect in effects:
            if isinstance(effect, SendNotice):
                self._send_notice(effect)
            elif isinstance(effect, Transmit):
                assert isinstance(effect.to, ToMember)  # nobody else is waited for
                self.unresolved.give_back(len(effect.body[0]) + OVERHEAD)
                self.send(effect.to.uuid, *effect.body)
            elif isinstance(effect, Drop):
                self.unresolved.give_back(len(effect.body[0]) + OVERHEAD)
                self._drop([effect.body], effect.reason)
            else:
                assert isinstance(effect, AskRouter)
                self.carrier.ask()
        self._soon()

    def _send_notice(self, effect: SendNotice) -> None:
        to = effect.to
        receiver = to.uuid if isinstance(to, ToMember) else EVERYBODY
        packet = encode_notice(self._own_uuid, receiver, effect.notice)
        if isinstance(to, ToEveryone):
            self.carrier.to_all(packet, notice=True)
        else:
            self.carrier.to_one(receiver, to.physical, packet)

    def _tell_one(self, uuid: Uuid, notice: Notice) -> None:
        self._send_notice(SendNotice(notice, ToMember(uuid, self.cache.select(uuid))))
        self._soon()

    def _put(self, uuid: Uuid, bundle: Bundle, base: int, *, to_all: bool = False) -> None:
        changes = self.cache.changes_for(uuid) if bundle.payloads else ()
        data = Data(self._own_uuid, uuid, to_all, bundle.first, base, bundle.payloads, changes)
        self.carrier.to_one(uuid, self.cache.select(uuid), encode_data(data))

    def _send_again(self, peer: Peer, *, most: int | None = None) -> None:
        out = peer.outgoing
        if out is None or not len(out) or not self.discovery.reachable(peer.uuid):
            return
        for bundle in out.take_again(self.now_ms(), most=most) or [Bundle(out.base, [])]:
            if not self._has_room(peer.uuid):
                break  # and it comes again later, if it is still missing then
            self._put(peer.uuid, bundle, out.base)
        self._drop_expired(out)
        self._soon()

    def _send_all_again(self, uuid: Uuid, *, most: int | None = None) -> None:
        if uuid not in self.all.acked:
            return
        base = max(self.all.acked[uuid] + 1, self.all.base)
        missing = self.all.missing(uuid, self.now_ms(), most=most)
        for bundle in missing or [Bundle(base, [])]:
            if not self._has_room(uuid):
                break
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
        if self._all_first:
            self._flush_all()
        self._flush_ones()
        if self._all_unsent:
            self._flush_all()
        for ack in self.inbound.take_acks(self._own_uuid):
            if self.discovery.reachable(ack.receiver):
                place = self.cache.select(ack.receiver)
                self.carrier.to_one(ack.receiver, place, encode_ack(ack))
        self.carrier.flush()
        is_busy = len(self.all) or self.discovery.waiting or self._in_flight
        if is_busy and "tick" not in self._timers:
            self._set("tick", TICK, self._tick)

    def _flush_ones(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for peer in unsent:
            out = peer.outgoing
            if out is not None:
                self._in_flight[peer] = None
                self._count(peer, out)
                if self._all_first or not self._send_fresh(peer, out):
                    self._crowded[peer] = None
                self._drop_expired(out)

    def _send_fresh(self, peer: Peer, out: Outgoing) -> bool:
        """Send what was never sent; False when the way takes no more for now."""
        while out.unsent < out.next:
            if not self._has_room(peer.uuid):
                return False
            fresh = out.take_fresh(self.now_ms(), most=AT_ONCE)
            if not fresh:
                return True  # the peer has no room; it will say when it has
            for bundle in fresh:
                self._put(peer.uuid, bundle, out.base)
        return True

    def _flush_all(self) -> None:
        for peer in self._joining:
            self._share(peer, SharingEvent.NEXT_DUE)
        self._joining.clear()
        self._count(None, self.all)
        while self.all.unsent < self.all.next:
            if not self.carrier.has_room(EVERYBODY, None):
                self._all_first = self._all_first or not self._crowded
                return
            fresh = self.all.take_fresh(self.now_ms(), most=AT_ONCE)
            if not fresh:
                break
            for bundle in fresh:
                self._put_to_all(bundle)
        self._all_unsent = self._all_first = False
        self._drop_expired(self.all)

    def _put_to_all(self, bundle: Bundle) -> None:
        changes = self.cache.changes_for_all()
        data = Data(self._own_uuid, EVERYBODY, True, bundle.first, 0, bundle.payloads, changes)
        self.carrier.to_all(encode_data(data), notice=False)

    def _has_room(self, uuid: Uuid) -> bool:
        """Whether the way to a member takes messages now."""
        return self.carrier.has_room(uuid, self.cache.select(uuid))

    def _count(self, whom: Peer | None, out: Outgoing) -> None:
        """Note how much is on its way to a member or to all, per turn or so and not per message."""
        held = self.held
        if out.size > UNCOUNTED or whom in held:
            held.note(whom, out.size)
            most = self.limits.window_bytes
            self.window_bytes = min(most, max(UNCOUNTED, held.part)) if held.is_over else most
        out.mark = min(out.size + UNCOUNTED, self.window_bytes)

    def _drop_expired(self, out: Outgoing) -> None:
        if out.expired:
            expired, out.expired = out.expired, []
            self._drop(expired, Reason.EXPIRED)

    def _drop(self, items: Iterable[Item], reason: Reason) -> None:
        for _, _, on_end in items:
            self.counts[reason.value] += 1
            _log.debug("%s: dropped a message: %s", self.own.member, reason.value)
            if on_end is not None:
                on_end(reason)

    # Time

    def _set(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        def ring() -> None:
            del self._timers[name]
            act()

        self._timers[name] = self._loop.call_later(seconds, ring)

    def _tick(self) -> None:
        now = self._loop.time()
        if self.discovery.wake_at() != NEVER:
            self._run(self.discovery.wake(self.now_ms()))
        for peer in list(self._in_flight):
            out = peer.outgoing
            if out is None or not len(out):
                del self._in_flight[peer]
            elif out.is_overdue(now):
                if out.timeout > 2 * FIRST_TIMEOUT:
                    self._try_elsewhere(peer.uuid)
                self._send_again(peer, most=1)
        if len(self.all) and self.all.is_overdue(now):
            for uuid in self.all.behind():
                self._send_all_again(uuid, most=1)
        self._flush()

    def _try_elsewhere(self, uuid: Uuid) -> None:
        """Use another place of a member that does not answer at this one (LA-4).

        A connection over an interface that is gone may look alive for a long time.
        """
        place = self.cache.select(uuid)
        known = self.cache.lookup(uuid)
        if place is not None and known is not None and len(known.physical) > 1:
            self.discovery.failed(uuid, place)

    def _beat(self) -> None:
        now = self._loop.time()
        self._set("beat", self.limits.beat, self._beat)
        self._show_life()
        if self.method in _WATCHED:
            for peer in self.membership.silent_since(now - SILENT_BEATS * self.limits.beat):
                self._happens(peer, Event.LOST)
        for peer, event in self.membership.overdue(now, self.limits.grace):
            self._happens(peer, event)
        if now >= self._purge_at:
            self._purge_at = now + min(PURGE_INTERVAL, self.limits.cache_age / 2)
            for uuid in self.cache.purge(self.now_ms()):  # who left long ago (LA-3)
                if uuid in self.peers:
                    self._happens(self.peers[uuid], Event.AGED_OUT)
        self._flush()

    def _show_life(self) -> None:
        if self.method is DiscoveryMethod.MULTICAST:
            self._run([SendNotice(IHave(self.own), ToEveryone())])
        elif self.method is DiscoveryMethod.HOSTS:
            self._run(self.discovery.start())  # somebody of the list may be there by now
            for uuid in self.members:
                self._tell_one(uuid, IHave(self.own))


def _tell_arrived(items: Iterable[Item]) -> None:
    """Tell who wants to know that these have arrived."""
    for _, _, on_end in items:
        if on_end is not None:
            on_end(None)
