"""`waystation.Group`: a member of a group, for those who use one (LA, GR).

What goes on between the members is the business of streams.py; here are names instead of UUIDs,
waiting instead of refusing, iterators instead of calls, and the record of all of it (OB-4).
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from waystation.core.discovery import Discovery, Way
from waystation.core.expiry import NEVER, Expiry, expiry_after
from waystation.core.gossip import MemberChange, MemberKind
from waystation.core.identity import AddressCache, LogicalAddress, Mapping, Selection, Uuid
from waystation.core.message import not_bytes_error
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.errors import LocalError, UnreachableError, quote
from waystation.groups.carrier import Carrier
from waystation.groups.direct import Direct
from waystation.groups.ledger import EVERYONE, Entry, Ledger, Note, Observed, Observer, message_id
from waystation.groups.member import GroupLimits, Member
from waystation.groups.multicast import Datagrams
from waystation.groups.packets import EVERYBODY
from waystation.groups.router_client import Access
from waystation.groups.router_protocol import check_dialect
from waystation.groups.routers import Tunnel
from waystation.groups.sequences import Item
from waystation.groups.streams import Exchange, Letter, chance
from waystation.groups.via import Via, parse_via
from waystation.net.tls import Tls

SETTLE: Final = 1.0
"""Seconds that a member that connects waits for the answers of those it was told of."""

MULTICAST_SETTLE: Final = 0.25
"""Seconds that it waits for answers to a multicast: nobody knows how many there will be."""

Handler: TypeAlias = Callable[[Member, Sequence[bytes | None]], None]


class Changes:
    """The changes of a membership from the moment it was asked for; bounded, the oldest go."""

    def __init__(self, most: int) -> None:
        self.lost = 0
        self._found: deque[MemberChange] = deque()
        self._most = most
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MemberChange:
        while not self._found:
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._found.popleft()

    def put(self, change: MemberChange) -> None:
        """One more change."""
        if len(self._found) >= self._most:
            self._found.popleft()
            self.lost += 1
        self._found.append(change)
        self._wake()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


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
            raise LocalError(f"{quote(group)} is no name of a group", rule="GR-2", hint="give text")
        self.group = group
        self.limits = limits or GroupLimits()
        self.ledger = Ledger(group)
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
        self._access = Access(
            group=group,
            dialect=check_dialect(dialect, token),
            tls=tls,
            token=token,
            beat=self.limits.beat,
            dial=self.limits.dial,
            linger=self.limits.linger,
        )
        self._interface = interface
        self._selection = selection
        self._wait = wait
        self._journal_at = journal
        self._exchange: Exchange | None = None
        self._inbox: deque[Entry] = deque()
        self._readers: list[asyncio.Future[None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._changes: list[Changes] = []
        self._verdicts: dict[Uuid | None, Verdict] = {}

    # From connect to close

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Join the group, as a new member (LA-2); `async with` does it.

        Raises UnreachableError when there is no way to the group within the time for it. With
        `wait=None` it returns at once, and goes on trying.
        """
        if self._exchange is not None and not self._exchange.is_closed:
            raise LocalError(
                f"this member of {quote(self.group)} is connected already",
                rule="LA-2",
                hint="close it first, or make another",
            )
        address = LogicalAddress.fresh(self._name, socket.gethostname(), secrets.token_bytes(16))
        limits = self.limits
        # With a stamp its word about itself counts more than what a router says of it.
        cache = AddressCache(
            Mapping(address, (), 1),
            self._selection,
            age_ms=int(limits.cache_age * 1000),
            capacity=limits.cache_size,
        )
        hosts = self._via.places if self._via.way is Way.HOSTS else ()
        discovery: Discovery[Letter] = Discovery(
            cache, self._via.way, jitter=chance, hosts=hosts, max_waiting=limits.waiting
        )
        exchange = Exchange(discovery, limits, self._carrier, self)
        try:
            places = await exchange.carrier.open()
            if self._journal_at is not None:
                self.ledger.open_journal(self._journal_at, address.name)
        except BaseException:
            exchange.carrier.close()
            raise
        if places:
            cache.move(places)
        self._exchange = exchange
        self._inbox.clear()
        self._verdicts.clear()
        exchange.start()
        self.changed(MemberKind.JOIN, exchange.own)
        try:
            await self._settle(exchange)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the group: what was sent may still arrive, and the others forget us (LA-8)."""
        exchange = self._exchange
        if exchange is None or exchange.is_closed:
            return
        await exchange.close()
        self._end(exchange)
        await self.ledger.close_journal()

    def shut(self) -> None:
        """Leave the group without waiting for anything."""
        exchange = self._exchange
        if exchange is not None and not exchange.is_closed:
            exchange.shut()
            self._end(exchange)

    def _end(self, exchange: Exchange) -> None:
        self.changed(MemberKind.LEAVE, exchange.own)
        for entry in self._inbox:
            self.ledger.tell_received(entry, exchange.own, Reason.TRANSPORT_DOWN)
        self._inbox.clear()
        for changes in self._changes:
            changes.end()
        self._changes.clear()
        self._wake(self._readers)
        self._wake(self._waiters)

    # Who is there

    @property
    def me(self) -> Member:
        """This member."""
        return Member.of(self._connected().own)

    @property
    def is_connected(self) -> bool:
        """Whether it is between its connect and its close."""
        return self._exchange is not None and not self._exchange.is_closed

    @property
    def is_open(self) -> bool:
        """Whether there is a way to others now."""
        exchange = self._exchange
        return exchange is not None and not exchange.is_closed and exchange.carrier.is_open

    @property
    def counts(self) -> Counter[str]:
        """How many messages were dropped here, by reason."""
        return self._connected().counts

    async def members(self) -> list[Member]:
        """Everybody in the group, this member first."""
        exchange = self._connected()
        return [Member.of(exchange.own), *exchange.view.values()]

    def changes(self) -> Changes:
        """The changes of the membership from now on, to be read with `async for`."""
        self._connected()
        changes = Changes(self.limits.changes)
        self._changes.append(changes)
        return changes

    async def move(self, *listen: str) -> None:
        """Be reached at these places instead, as the same member (LA-10)."""
        if not listen:
            raise LocalError("a member moves nowhere", rule="LA-10", hint="say where to listen")
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
        (LA-6). Where too much is on its way already it waits for room, `wait` seconds at the most.
        A message that is not there within `ttl` seconds need not arrive any more.
        """
        if payload.__class__ is not bytes:
            raise not_bytes_error(payload)
        if to.__class__ is Member and ttl is None and not self.ledger.observers:
            verdict = self._send_at_once(to.address.uuid, payload)
            if verdict is not None:
                return verdict
        exchange = self._connected()
        uuid = None if to is None else self._uuid_of(exchange, to)
        expiry = NEVER
        if ttl is not None:
            expiry = expiry_after(exchange.now_ms(), int(_seconds(ttl) * 1000))
        refusal = self._refusal(exchange, uuid, payload)
        if refusal is not None:
            return self._drop(to, payload, expiry, refusal)
        if uuid is None:
            return await self._send_all(exchange, payload, expiry, _deadline(ttl, wait))
        if exchange.is_full(uuid):
            reason = await self._wait_for_room(exchange, uuid, _deadline(ttl, wait), ttl, wait)
            if reason is not None:
                return self._drop(to, payload, expiry, reason)
        return self._send_one(exchange, uuid, payload, expiry)

    def post(self, uuid: Uuid, payload: bytes, note: Note | None = None) -> None:
        """Send to a member without waiting; for whoever sees to the room itself (`is_full`)."""
        exchange = self._connected()
        if exchange.discovery.reachable(uuid):
            exchange.send(uuid, payload, NEVER, note)
        else:
            exchange.queue(uuid, Letter(payload, NEVER, note))

    def is_full(self, uuid: Uuid) -> bool:
        """Whether so much is on its way to a member that senders have to wait."""
        return self._connected().is_full(uuid)

    # Receiving

    async def messages(self) -> AsyncIterator[tuple[Member, bytes]]:
        """Who sent what, in the order in which it came; ends when the group is closed.

        Several readers share the messages. While nobody reads, senders have to wait.
        """
        inbox = self._inbox
        half = self.limits.inbox // 2
        exchange = self._connected()
        while True:
            while inbox:
                entry = inbox.popleft()
                if len(inbox) == half:
                    exchange.inflow.feed()
                if self.ledger.observers:
                    self.ledger.tell_received(entry, exchange.own, None)
                yield entry[0], entry[1]
            exchange.inflow.feed()
            if exchange.is_closed:
                return
            reader = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            await reader

    def hold(self, member: Member) -> None:
        """Take nothing more from a member for now: it will have to wait."""
        self._connected().inflow.hold(member.uuid)

    def release(self, member: Member) -> None:
        """Take messages from a member again."""
        self._connected().inflow.release(member)

    # Observing

    def observe(self, observer: Observer) -> None:
        """Have a function called with every change and every outcome, as it happens (OB-4)."""
        self.ledger.observers.append(observer)

    # What the exchange tells

    def changed(self, kind: MemberKind, mapping: Mapping) -> None:
        """Pass a change of the membership on."""
        change = MemberChange(kind, self.group, mapping)
        self._verdicts.pop(mapping.uuid, None)
        for changes in self._changes:
            changes.put(change)
        for act in list(self.on_change):
            act(change)
        self.ledger.tell_change(change)

    def received(
        self, member: Member, payloads: Sequence[bytes | None], first: int, *, to_all: bool
    ) -> None:
        """Put messages into the inbox."""
        if self.handler is not None:
            self.handler(member, payloads)
            return
        add = self._inbox.append
        for number, payload in enumerate(payloads, first):
            if payload is not None:
                add((member, payload, number, to_all))
        if self._readers:
            self._wake(self._readers)

    def has_room(self) -> bool:
        """Whether the inbox takes more."""
        return len(self._inbox) < self.limits.inbox

    def arrived(self, items: Iterable[Item], uuid: Uuid | None) -> None:
        """Tell who wants to know."""
        del uuid
        for item in items:
            if item[2] is not None:
                item[2].ended(None)

    def dropped(self, note: Any, uuid: Uuid | None, reason: Reason) -> None:
        """Tell who wants to know."""
        del uuid
        if note is not None:
            note.ended(reason)

    def room(self) -> None:
        """Let those who wait look again."""
        if self._waiters:
            self._wake(self._waiters)

    def cut_off(self, detail: str) -> None:
        """Tell who wants to know."""
        for act in list(self.on_cut):
            act(detail)

    # How it works

    def _carrier(self, exchange: Exchange) -> Carrier:
        via, access = self._via, self._access
        if via.way is Way.TUNNEL:
            return Tunnel(via.places, access, exchange)
        if via.way is Way.MULTICAST:
            return Datagrams(via.places[0], self._interface, access, exchange)
        routers = via.places if via.way is Way.ROUTER else ()
        return Direct(self._listen, via.places, routers, access, exchange)

    def _connected(self) -> Exchange:
        if self._exchange is None:
            raise LocalError(
                f"this member of {quote(self.group)} is not connected",
                rule="LA-2",
                hint="use it within `async with`",
            )
        return self._exchange

    async def _settle(self, exchange: Exchange) -> None:
        """Wait for a way to the others, and for a moment for their answers."""
        if self._wait is None:
            return
        try:
            async with asyncio.timeout(_seconds(self._wait)):
                await exchange.ready.wait()
        except TimeoutError:
            detail = exchange.carrier.failure or f"no answer within {self._wait:g} s"
            places = ", ".join(self._via.places)
            raise UnreachableError(f"the group {self.group} at {places}", detail) from None
        loop = asyncio.get_running_loop()
        if self._via.way is Way.MULTICAST:
            await asyncio.sleep(MULTICAST_SETTLE)
            return
        deadline = loop.time() + SETTLE
        # An event instead would have to be looked at with every packet, for ever.
        while loop.time() < deadline and not exchange.is_settled():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _uuid_of(self, exchange: Exchange, to: Member | LogicalAddress | str) -> Uuid:
        if isinstance(to, (Member, LogicalAddress)):
            return to.uuid
        if not isinstance(to, str):
            raise LocalError(
                f"{quote(to)} is no member", rule="LA-1", hint="give a member, or its name"
            )
        if to == exchange.own.member.name:
            return exchange.own.uuid
        for uuid, member in reversed(exchange.view.items()):  # the one that joined last
            if member.name == to:
                return uuid
        return EVERYBODY

    def _refusal(self, exchange: Exchange, uuid: Uuid | None, payload: bytes) -> Reason | None:
        if exchange.is_closed:
            return Reason.REFUSED
        if not exchange.takes(len(payload)):
            return Reason.TOO_LARGE
        if uuid is None:
            return None if exchange.view else Reason.NO_ROUTE
        if uuid == EVERYBODY or exchange.cache.said_goodbye(uuid):
            return Reason.NO_ROUTE
        return None

    def _send_at_once(self, uuid: Uuid, payload: bytes) -> Verdict | None:
        """The usual case, in few steps: a member that can be reached, and nobody has to wait."""
        exchange, verdict = self._exchange, self._verdicts.get(uuid)
        if exchange is None or verdict is None:
            return None
        out, limits = exchange.lanes.get(uuid), self.limits
        if (
            out is None
            or out.next - out.base >= limits.window
            or out.size >= limits.window_bytes
            or len(payload) > exchange.largest
        ):
            return None
        exchange.send_on(out, uuid, payload)
        return verdict

    def _send_one(self, exchange: Exchange, uuid: Uuid, payload: bytes, expiry: Expiry) -> Verdict:
        if uuid == exchange.own.uuid:
            return self._deliver_here(exchange, payload)
        verdict = self._verdicts.get(uuid)
        if exchange.discovery.reachable(uuid):
            if verdict is None:
                verdict = self._forwarded(exchange, uuid)
            note = None
            if self.ledger.observers:
                note = self._noted(exchange, uuid, payload, expiry, verdict)
            exchange.send(uuid, payload, expiry, note)
            return verdict
        queued = Verdict(Outcome.QUEUED, None, self._name_of(exchange, uuid))
        note = None  # its number is not known yet, nor is its id
        if self.ledger.observers:
            arrival = self.ledger.arrival(
                exchange.own.member.name, queued.recipient, payload, expiry
            )
            self.ledger.tell_end(arrival, queued)
            note = Observed(self.ledger, arrival, self._forwarded(exchange, uuid))
        exchange.queue(uuid, Letter(payload, expiry, note))
        return queued

    async def _send_all(
        self, exchange: Exchange, payload: bytes, expiry: Expiry, deadline: float | None
    ) -> Verdict:
        if not exchange.shares:
            verdicts = [
                self._send_one(exchange, uuid, payload, expiry) for uuid in list(exchange.view)
            ]
            await self._let_catch_up(exchange, list(exchange.view), deadline)
            return next((v for v in verdicts if v.outcome is Outcome.FORWARDED), verdicts[0])
        if exchange.is_full(None):
            await self._let_catch_up(exchange, [None], deadline)
            if exchange.is_full(None):
                exchange.leave_behind()
        if exchange.is_closed:
            return self._drop(None, payload, expiry, Reason.REFUSED)
        verdict = self._verdicts.get(None)
        if verdict is None:
            address = self.ledger.address(EVERYONE)
            verdict = Verdict(Outcome.FORWARDED, None, EVERYONE, address)
            self._verdicts[None] = verdict
        note = (
            self._noted(exchange, None, payload, expiry, verdict) if self.ledger.observers else None
        )
        exchange.send_all(payload, expiry, note)
        return verdict

    async def _let_catch_up(
        self, exchange: Exchange, uuids: list[Uuid | None], deadline: float | None
    ) -> None:
        """Wait for those who are slow, but not for long."""
        patience = asyncio.get_running_loop().time() + self.limits.laggards
        limit = patience if deadline is None else min(patience, deadline)
        while any(exchange.is_full(uuid) for uuid in uuids):
            if await self._wait_once(limit):
                return

    async def _wait_for_room(
        self,
        exchange: Exchange,
        uuid: Uuid,
        deadline: float | None,
        ttl: float | None,
        wait: float | None,
    ) -> Reason | None:
        while exchange.is_full(uuid):
            if await self._wait_once(deadline):
                by_ttl = ttl is not None and (wait is None or ttl < wait)
                return Reason.EXPIRED if by_ttl else Reason.QUEUE_FULL
        return Reason.REFUSED if exchange.is_closed else None

    async def _wait_once(self, deadline: float | None) -> bool:
        """Wait until there may be room; True when the time is over."""
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            return True
        waiter = loop.create_future()
        self._waiters.append(waiter)
        timer = None
        if deadline is not None:
            timer = loop.call_at(deadline, _finish, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
        return False

    def _deliver_here(self, exchange: Exchange, payload: bytes) -> Verdict:
        me = Member.of(exchange.own)
        if not self.has_room():
            return self._drop(me, payload, NEVER, Reason.QUEUE_FULL)
        self.received(me, [payload], 0, to_all=False)
        return Verdict(Outcome.DELIVERED, None, me.name)

    def _forwarded(self, exchange: Exchange, uuid: Uuid) -> Verdict:
        name = self._name_of(exchange, uuid)
        verdict = Verdict(Outcome.FORWARDED, None, name, self.ledger.address(name))
        if uuid in exchange.view:
            self._verdicts[uuid] = verdict
        return verdict

    def _name_of(self, exchange: Exchange, uuid: Uuid | None) -> str | None:
        if uuid is None:
            return EVERYONE
        known = exchange.cache.lookup(uuid)
        return None if known is None else known.member.name

    # Records

    def _noted(
        self,
        exchange: Exchange,
        uuid: Uuid | None,
        payload: bytes,
        expiry: Expiry,
        verdict: Verdict,
    ) -> Note:
        """What tells the observers how a message ended; both ends find the same id for it."""
        number = (exchange.all if uuid is None else exchange.stream(uuid)).next
        id = message_id(exchange.own.uuid, EVERYBODY if uuid is None else uuid, number)
        sender = exchange.own.member.name
        return Observed(
            self.ledger,
            self.ledger.arrival(sender, verdict.recipient, payload, expiry, id),
            verdict,
        )

    def _drop(
        self,
        to: Member | LogicalAddress | str | None,
        payload: bytes,
        expiry: Expiry,
        reason: Reason,
    ) -> Verdict:
        exchange = self._connected()
        exchange.counts[reason.value] += 1
        name = EVERYONE if to is None else str(to)
        verdict = Verdict.dropped(reason, name)
        if self.ledger.observers:
            self.ledger.tell_end(
                self.ledger.arrival(exchange.own.member.name, name, payload, expiry), verdict
            )
        return verdict

    @staticmethod
    def _wake(waiting: list[asyncio.Future[None]]) -> None:
        for waiter in waiting:
            _finish(waiter)
        waiting.clear()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _seconds(value: float) -> float:
    if not value >= 0:
        raise LocalError(f"{quote(value)} seconds", rule="LA-6", hint="give a number from 0 on")
    return value


def _deadline(ttl: float | None, wait: float | None) -> float | None:
    bounds = [_seconds(bound) for bound in (ttl, wait) if bound is not None]
    return asyncio.get_running_loop().time() + min(bounds) if bounds else None
