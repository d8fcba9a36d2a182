"""`waystation.Group`: a member of a group, for those who use one (LA, GR).

What goes on between the members is the business of streams.py; here are names instead of UUIDs,
waiting instead of refusing, iterators instead of calls, and the record of all of it (OB-4).
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Self, TypeAlias

from msgspec import Struct

from waystation.core.budget import OVERHEAD
from waystation.core.discovery import Discovery, DiscoveryMethod
from waystation.core.expiry import NEVER, Expiry, expiry_after
from waystation.core.gossip import MemberChange, MemberKind
from waystation.core.identity import (
    AddressCache,
    LogicalAddress,
    Mapping,
    Selection,
    Uuid,
    uuid_text,
)
from waystation.core.membership import Member
from waystation.core.message import not_bytes_error
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.sequences import OnEnd
from waystation.errors import LocalError, UnreachableError, quote
from waystation.groups.carrier import Carrier
from waystation.groups.direct import Direct
from waystation.groups.multicast import Multicast
from waystation.groups.packets import EVERYBODY
from waystation.groups.records import EVERYONE, Entry, Observer, Records, message_id
from waystation.groups.router_protocol import check_dialect
from waystation.groups.routers import Routers
from waystation.groups.settings import CarrierSettings, GroupLimits, Via, parse_via
from waystation.groups.streams import Streams, Waiting
from waystation.net.hosts import host_name
from waystation.net.tls import Tls

_log = logging.getLogger("waystation.group")

SETTLE: Final = 1.0
"""Seconds that a member that connects waits for the answers of those it was told of."""

MULTICAST_SETTLE: Final = 0.25
"""Seconds that it waits for answers to a multicast: nobody knows how many there will be."""

LARGEST: Final = 10
"""So many members have a number of their own in a status: those to whom most is on its way."""

To: TypeAlias = Member | LogicalAddress | str
Handler: TypeAlias = Callable[[Member, Sequence[bytes | None]], None]


class GroupStatus(Struct, frozen=True, kw_only=True):
    """How much a member holds, in bytes: for other members, and for who reads its messages.

    `held` bytes of `budget` are on their way and not acknowledged; `largest` names the ten members
    to whom most is. `waiting_bytes` wait for an address (LA-6). `dropped` counts by reason.
    """

    budget: int
    held: int
    largest: tuple[tuple[str, int], ...]
    inbox: int
    inbox_bytes: int
    waiting_bytes: int
    dropped: dict[str, int]


class Changes:
    """The changes of a membership from the moment it was asked for; bounded, the oldest go."""

    def __init__(self, most: int) -> None:
        self.lost = 0
        self._found: deque[MemberChange] = deque()
        self._most = most
        self._news = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MemberChange:
        while not self._found:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._found.popleft()

    def put(self, change: MemberChange) -> None:
        """One more change."""
        if len(self._found) >= self._most:
            self._found.popleft()
            self.lost += 1
        self._found.append(change)
        self._news.set()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        self._news.set()


class Group:
    """A member of a group, connected from `async with` to its end.

    >>> async def main(router):
    ...     async with (
    ...         Group("fleet", name="hub", via=f"gossip://{router}") as hub,
    ...         Group("fleet", name="truck-7", via=f"gossip://{router}") as truck,
    ...     ):
    ...         await truck.send(b"here I am")
    ...         async for sender, payload in hub.messages():
    ...             return str(sender), payload
    """

    def __init__(
        self,
        group: str,
        *,
        via: str | Iterable[str],
        name: str | None = None,
        listen: str | Sequence[str] | None = None,
        dialect: str = "jgroups5",
        tls: Tls | None = None,
        token: str | bytes = b"",
        interface: str | None = None,
        selection: Selection | None = None,
        limits: GroupLimits | None = None,
        wait: float | None = 5.0,
        journal: str | Path | None = None,
    ) -> None:
        if not isinstance(group, str) or not group:
            raise LocalError(f"invalid group name {quote(group)}", rule="GR-2", hint="give text")
        self.group = group
        self.limits = limits or GroupLimits()
        self._records = Records(group)
        self.handler: Handler | None = None
        """Called with messages instead of handing them to `messages()`."""
        self.on_cut: list[Callable[[str], None]] = []
        """Called when there is no way to anybody for now."""
        self.on_change: list[Callable[[MemberChange], None]] = []
        """Called with every change of the membership."""
        self._via: Via = parse_via(via)
        self._name = name
        self._listen = [listen] if isinstance(listen, str) else list(listen or ())
        token = token.encode() if isinstance(token, str) else token
        self._settings = CarrierSettings(
            group=group,
            dialect=check_dialect(dialect, token),
            tls=tls,
            token=token,
            limits=self.limits,
        )
        self._interface = interface
        self._selection = selection
        self._wait = wait
        self._journal_at = journal
        self._streams: Streams | None = None
        self._inbox: deque[Entry] = deque()
        self._inbox_size = 0  # bytes in those
        self._arrived = asyncio.Event()  # something for `messages`, or its end
        self._has_room = asyncio.Event()  # for those who wait to send
        self._changes: list[Changes] = []
        self._forwarded_to_all = Verdict(
            Outcome.FORWARDED, None, EVERYONE, self._records.address(EVERYONE)
        )

    # From connect to close

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Join the group, as a new member (LA-2); `async with` does it.

        Raises UnreachableError when there is no way to the group within the time for it. With
        `wait=None` it returns at once, and goes on trying.
        """
        if self.is_connected:
            raise LocalError(
                f"this member of {quote(self.group)} is connected already",
                rule="LA-2",
                hint="close it first, or make another",
            )
        address = LogicalAddress.fresh(self._name, host_name(), secrets.token_bytes(16))
        limits = self.limits
        # With a stamp its word about itself counts more than what a router says of it.
        cache = AddressCache(
            Mapping(address, (), 1),
            self._selection,
            age_ms=int(limits.cache_age * 1000),
            capacity=limits.cache_size,
        )
        hosts = self._via.places if self._via.method is DiscoveryMethod.HOSTS else ()
        discovery: Discovery[Waiting] = Discovery(
            cache, self._via.method, jitter=random.random, hosts=hosts, max_waiting=limits.waiting
        )
        streams = Streams(discovery, limits, self._carrier, self)
        try:
            places = await streams.carrier.open()
            if self._journal_at is not None:
                self._records.open_journal(self._journal_at, address.name)
        except BaseException:
            streams.carrier.close()
            raise
        if places:
            cache.move(places)
        self._streams = streams
        self._inbox.clear()
        self._inbox_size = 0
        self._arrived, self._has_room = asyncio.Event(), asyncio.Event()
        streams.start()
        self.changed(MemberKind.JOIN, streams.own)
        try:
            await self._settle(streams)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the group: what was sent may still arrive, and the others forget us (LA-8)."""
        if self._streams is not None:
            await self._streams.close()
        await self._records.close_journal()

    def leave(self) -> None:
        """Leave the group without waiting for anything."""
        if self._streams is not None:
            self._streams.leave()

    shut = leave  # as it was called first

    # Who is there

    @property
    def me(self) -> Member:
        """This member."""
        return Member.of(self._connected().own)

    @property
    def is_connected(self) -> bool:
        """Whether it is between its connect and its close."""
        return self._streams is not None and not self._streams.is_closed

    @property
    def is_open(self) -> bool:
        """Whether there is a way to others now."""
        return self.is_connected and self._connected().carrier.is_open

    @property
    def counts(self) -> Counter[str]:
        """How many messages were dropped here, by reason."""
        return self._connected().counts

    def status(self) -> GroupStatus:
        """How much is held here for others, and for who reads."""
        streams = self._connected()
        largest = streams.held.largest(LARGEST)
        return GroupStatus(
            budget=self.limits.budget,
            held=streams.held.total.used,
            largest=tuple(
                (EVERYONE if peer is None else str(peer.member or uuid_text(peer.uuid)), size)
                for peer, size in largest
            ),
            inbox=len(self._inbox),
            inbox_bytes=self._inbox_size,
            waiting_bytes=streams.unresolved.used,
            dropped=dict(streams.counts),
        )

    async def members(self) -> list[Member]:
        """Everybody in the group, this member first."""
        streams = self._connected()
        return [Member.of(streams.own), *streams.others()]

    def changes(self) -> Changes:
        """The changes of the membership from now on, to be read with `async for`."""
        self._connected()
        changes = Changes(self.limits.changes)
        self._changes.append(changes)
        return changes

    async def move(self, *listen: str) -> None:
        """Be reached at these places instead, as the same member (LA-10)."""
        if not listen:
            raise LocalError("no place to move to", rule="LA-10", hint="say where to listen")
        await self._connected().move(listen)

    # Sending

    async def send(
        self,
        payload: bytes,
        *,
        to: Member | LogicalAddress | str | None = None,
        ttl: float | None = None,
        wait: float | None = None,
    ) -> Verdict:
        """Send to one member, or to all others; returns the outcome here (OB-3).

        FORWARDED says that it is on its way, QUEUED that the member's address is being asked for
        (LA-6). Where too much is on its way already it waits for room for up to `wait` seconds.
        A message that is not there within `ttl` seconds need not arrive any more.
        """
        if payload.__class__ is not bytes:
            raise not_bytes_error(payload)
        if to.__class__ is Member and ttl is None and not self._records.observers:
            verdict = self._send_at_once(to.address.uuid, payload)
            if verdict is not None:
                return verdict
        streams = self._connected()
        uuid = None if to is None else self._uuid_of(streams, to)
        ttl_ms = None if ttl is None else int(_seconds(ttl) * 1000)
        expiry = NEVER if ttl_ms is None else expiry_after(streams.now_ms(), ttl_ms)
        refusal = self._refusal(streams, uuid, payload)
        if refusal is not None:
            return self._drop(to, payload, expiry, refusal)
        if uuid is None:
            return await self._send_all(streams, payload, expiry, _deadline(ttl, wait))
        if streams.is_full(uuid):
            reason = await self._wait_for_room(streams, uuid, ttl, wait)
            if reason is not None:
                return self._drop(to, payload, expiry, reason)
        return self._send_one(streams, uuid, payload, expiry)

    def post(self, uuid: Uuid, payload: bytes, on_end: OnEnd | None = None) -> None:
        """Send to a member without waiting; for callers that look at `is_full` first.

        `on_end` is called once: with None when the message has arrived, else with the reason why it
        was dropped.
        """
        streams = self._connected()
        if not streams.takes_post(uuid, len(payload)):
            streams.counts[Reason.QUEUE_FULL.value] += 1
            if on_end is not None:
                on_end(Reason.QUEUE_FULL)
        elif streams.discovery.reachable(uuid):
            streams.send(uuid, payload, NEVER, on_end)
        else:
            streams.queue(uuid, payload, NEVER, on_end)

    def is_full(self, uuid: Uuid) -> bool:
        """Whether so much is on its way to a member that senders have to wait."""
        return self._connected().is_full(uuid)

    # Receiving

    async def messages(self) -> AsyncIterator[tuple[Member, bytes]]:
        """Who sent what, in the order in which it came; ends when the group is closed.

        Several readers share the messages. While nobody reads, senders have to wait.
        """
        inbox = self._inbox
        streams = self._connected()
        inbound = streams.inbound
        while True:
            while inbox:
                entry = inbox.popleft()
                self._inbox_size -= len(entry[1])
                if inbound.starved and self._is_half_empty():
                    inbound.room_again()
                if self._records.observers:
                    self._records.add_received(entry, streams.own, None)
                yield entry[0], entry[1]
            inbound.room_again()
            if streams.is_closed:
                return
            self._arrived.clear()
            await self._arrived.wait()

    def hold(self, member: Member) -> None:
        """Take nothing more from a member for now: it will have to wait."""
        streams = self._connected()
        streams.inbound.hold(streams.membership.peer(member.uuid))

    def release(self, member: Member) -> None:
        """Take messages from a member again."""
        streams = self._connected()
        streams.inbound.release(streams.membership.peer(member.uuid), member)

    # Observing

    def observe(self, observer: Observer) -> None:
        """Have a function called with every change and every outcome, as it happens (OB-4)."""
        self._records.observers.append(observer)

    # What the streams tell

    def changed(self, kind: MemberKind, mapping: Mapping) -> None:
        """Pass a change of the membership on."""
        change = MemberChange(kind, self.group, mapping)
        for changes in self._changes:
            changes.put(change)
        for act in list(self.on_change):
            act(change)
        self._records.add_change(change)

    def received(
        self, member: Member, payloads: Sequence[bytes | None], first: int, *, to_all: bool
    ) -> None:
        """Put messages into the inbox."""
        if self.handler is not None:
            try:
                self.handler(member, payloads)
            except Exception:  # noqa: BLE001 - the connection that brought them is not to end for it
                _log.exception("the handler of %s failed", self.group)
            return
        add = self._inbox.append
        size = 0
        for number, payload in enumerate(payloads, first):
            if payload is not None:
                add((member, payload, number, to_all))
                size += len(payload)
        self._inbox_size += size
        self._arrived.set()

    def has_room(self) -> bool:
        """Whether the inbox takes more; an empty one takes a packet of any size."""
        return len(self._inbox) < self.limits.inbox and self._inbox_size < self.limits.inbox_bytes

    def _is_half_empty(self) -> bool:
        limits = self.limits
        few = 2 * len(self._inbox) <= limits.inbox
        return few and 2 * self._inbox_size <= limits.inbox_bytes

    def room(self) -> None:
        """Let those who wait look again."""
        self._has_room.set()

    def cut_off(self, detail: str) -> None:
        """Tell who wants to know."""
        for act in list(self.on_cut):
            act(detail)

    def left(self) -> None:
        """Nothing more is sent or received."""
        own = self._connected().own
        self.changed(MemberKind.LEAVE, own)
        for entry in self._inbox:
            self._records.add_received(entry, own, Reason.TRANSPORT_DOWN)
        self._inbox.clear()
        self._inbox_size = 0
        for changes in self._changes:
            changes.end()
        self._changes.clear()
        self._arrived.set()
        self._has_room.set()

    # How it works

    def _carrier(self, streams: Streams) -> Carrier:
        via, settings = self._via, self._settings
        if via.method is DiscoveryMethod.TUNNEL:
            return Routers(via.places, settings, streams)
        if via.method is DiscoveryMethod.MULTICAST:
            return Multicast(via.places[0], self._interface, settings, streams)
        routers = via.places if via.method is DiscoveryMethod.ROUTER else ()
        return Direct(self._listen, via.places, routers, settings, streams)

    def _connected(self) -> Streams:
        if self._streams is None:
            raise LocalError(
                f"this member of {quote(self.group)} is not connected",
                rule="LA-2",
                hint="use it within `async with`",
            )
        return self._streams

    async def _settle(self, streams: Streams) -> None:
        """Wait for a way to the others, and for a moment for their answers."""
        if self._wait is None:
            return
        try:
            async with asyncio.timeout(_seconds(self._wait)):
                await streams.ready.wait()
        except TimeoutError:
            detail = streams.carrier.failure or f"no answer within {self._wait:g} s"
            places = ", ".join(self._via.places)
            raise UnreachableError(f"the group {self.group} at {places}", detail) from None
        loop = asyncio.get_running_loop()
        if self._via.method is DiscoveryMethod.MULTICAST:
            await asyncio.sleep(MULTICAST_SETTLE)
            return
        deadline = loop.time() + SETTLE
        # An event instead would have to be looked at with every packet, for ever.
        while loop.time() < deadline and not streams.is_settled():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _uuid_of(self, streams: Streams, to: To) -> Uuid:
        if isinstance(to, (Member, LogicalAddress)):
            return to.uuid
        if not isinstance(to, str):
            raise LocalError(
                f"invalid recipient {quote(to)}", rule="LA-1", hint="give a member, or its name"
            )
        if to == streams.own.member.name:
            return streams.own.uuid
        for member in reversed(streams.others()):  # the one that joined last
            if member.name == to:
                return member.uuid
        return EVERYBODY

    def _refusal(self, streams: Streams, uuid: Uuid | None, payload: bytes) -> Reason | None:
        if streams.is_closed:
            return Reason.REFUSED
        if len(payload) > streams.largest:
            return Reason.TOO_LARGE
        if uuid is None:
            return None if streams.members else Reason.NO_ROUTE
        if uuid == EVERYBODY or streams.cache.said_goodbye(uuid):
            return Reason.NO_ROUTE
        return None

    def _send_at_once(self, uuid: Uuid, payload: bytes) -> Verdict | None:
        """The usual case, in few steps: a member that can be reached, and nobody has to wait."""
        streams = self._streams
        if streams is None or (peer := streams.members.get(uuid)) is None:
            return None
        verdict, out, limits = peer.verdict, peer.outgoing, self.limits
        if (
            verdict is None
            or out is None
            or out.next - out.base >= limits.window
            or out.size >= out.mark
            or len(payload) > streams.largest
        ):
            return None
        streams.send_on(out, peer, payload)
        return verdict

    def _send_one(self, streams: Streams, uuid: Uuid, payload: bytes, expiry: Expiry) -> Verdict:
        if uuid == streams.own.uuid:
            return self._deliver_here(streams, payload)
        if streams.discovery.reachable(uuid):
            verdict = self._forwarded(streams, uuid)
            on_end = self._record_end(streams, uuid, payload, expiry, verdict)
            streams.send(uuid, payload, expiry, on_end)
            return verdict
        if not streams.unresolved.has_room(len(payload) + OVERHEAD):
            known = streams.cache.lookup(uuid)
            to = uuid_text(uuid) if known is None else known.member
            return self._drop(to, payload, expiry, Reason.QUEUE_FULL)
        queued = Verdict(Outcome.QUEUED, None, self._name_of(streams, uuid))
        on_end = None  # its number is not known yet, nor is its id
        if self._records.observers:
            sender = streams.own.member.name
            arrival = self._records.arrival(sender, queued.recipient, payload, expiry)
            self._records.add_outcome(arrival, queued)
            on_end = self._records.on_end(arrival, self._forwarded(streams, uuid))
        streams.queue(uuid, payload, expiry, on_end)
        return queued

    async def _send_all(
        self, streams: Streams, payload: bytes, expiry: Expiry, deadline: float | None
    ) -> Verdict:
        if not streams.shares:
            return await self._send_each(streams, payload, expiry, deadline)
        if streams.is_full(None):
            await self._let_catch_up(streams, [None], deadline)
            if streams.is_full(None):
                streams.leave_behind()
        if streams.is_closed:
            return self._drop(None, payload, expiry, Reason.REFUSED)
        verdict = self._forwarded_to_all
        on_end = self._record_end(streams, None, payload, expiry, verdict)
        streams.send_all(payload, expiry, on_end)
        return verdict

    async def _send_each(
        self, streams: Streams, payload: bytes, expiry: Expiry, deadline: float | None
    ) -> Verdict:
        """Send to each member; who has no room is waited for once, and loses what comes (FL-3)."""
        verdicts: list[Verdict] = []
        late: list[Uuid] = []
        for uuid, peer in list(streams.members.items()):
            if streams.is_lagging(uuid):
                verdicts.append(self._drop(peer.member, payload, expiry, Reason.QUEUE_FULL))
            elif streams.is_full(uuid):
                late.append(uuid)
            else:
                verdicts.append(self._send_one(streams, uuid, payload, expiry))
        if late:
            await self._let_catch_up(streams, late, deadline)
        for uuid in late:
            member = streams.members.get(uuid)
            if member is None or streams.is_closed:
                verdicts.append(self._drop(None, payload, expiry, Reason.TRANSPORT_DOWN))
            elif streams.is_full(uuid):
                streams.lagging.add(uuid)
                verdicts.append(self._drop(member.member, payload, expiry, Reason.QUEUE_FULL))
            else:
                verdicts.append(self._send_one(streams, uuid, payload, expiry))
        return next((v for v in verdicts if v.outcome is Outcome.FORWARDED), verdicts[0])

    async def _let_catch_up(
        self, streams: Streams, uuids: Sequence[Uuid | None], deadline: float | None
    ) -> None:
        """Wait for those who are slow, but not for long."""
        latest = asyncio.get_running_loop().time() + self.limits.laggards
        limit = latest if deadline is None else min(latest, deadline)
        while any(streams.is_full(uuid) for uuid in uuids):
            if await self._wait_once(limit):
                return

    async def _wait_for_room(
        self, streams: Streams, uuid: Uuid, ttl: float | None, wait: float | None
    ) -> Reason | None:
        deadline = _deadline(ttl, wait)
        while streams.is_full(uuid):
            if await self._wait_once(deadline):
                by_ttl = ttl is not None and (wait is None or ttl < wait)
                return Reason.EXPIRED if by_ttl else Reason.QUEUE_FULL
        return Reason.REFUSED if streams.is_closed else None

    async def _wait_once(self, deadline: float | None) -> bool:
        """Wait until there may be room; True when the time is over."""
        self._has_room.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await self._has_room.wait()
        except TimeoutError:
            return True
        return False

    def _deliver_here(self, streams: Streams, payload: bytes) -> Verdict:
        me = Member.of(streams.own)
        if not self.has_room():
            return self._drop(me, payload, NEVER, Reason.QUEUE_FULL)
        self.received(me, [payload], 0, to_all=False)
        return Verdict(Outcome.DELIVERED, None, me.name)

    def _forwarded(self, streams: Streams, uuid: Uuid) -> Verdict:
        """The verdict on what goes to a member; the same one while it is a member."""
        peer = streams.members.get(uuid)
        if peer is not None and peer.verdict is not None:
            return peer.verdict
        name = self._name_of(streams, uuid)
        verdict = Verdict(Outcome.FORWARDED, None, name, self._records.address(name))
        if peer is not None:
            peer.verdict = verdict
        return verdict

    def _name_of(self, streams: Streams, uuid: Uuid) -> str | None:
        known = streams.cache.lookup(uuid)
        return None if known is None else known.member.name

    # Records

    def _record_end(
        self, streams: Streams, uuid: Uuid | None, payload: bytes, expiry: Expiry, verdict: Verdict
    ) -> OnEnd | None:
        """What tells the observers how a message ended; both ends find the same id for it."""
        if not self._records.observers:
            return None
        receiver = EVERYBODY if uuid is None else uuid
        id = message_id(streams.own.uuid, receiver, streams.next_number(uuid))
        sender = streams.own.member.name
        arrival = self._records.arrival(sender, verdict.recipient, payload, expiry, id)
        return self._records.on_end(arrival, verdict)

    def _drop(self, to: To | None, payload: bytes, expiry: Expiry, reason: Reason) -> Verdict:
        streams = self._connected()
        streams.counts[reason.value] += 1
        name = EVERYONE if to is None else str(to)
        verdict = Verdict.dropped(reason, name)
        if self._records.observers:
            self._records.add_outcome(
                self._records.arrival(streams.own.member.name, name, payload, expiry), verdict
            )
        return verdict


def _seconds(value: float) -> float:
    if not value >= 0:
        raise LocalError(f"invalid time {quote(value)}", rule="LA-6", hint="give 0 seconds or more")
    return value


def _deadline(ttl: float | None, wait: float | None) -> float | None:
    bounds = [_seconds(bound) for bound in (ttl, wait) if bound is not None]
    return asyncio.get_running_loop().time() + min(bounds) if bounds else None
