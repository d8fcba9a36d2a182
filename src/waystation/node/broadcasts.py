"""Publishing and subscribing: broadcasts by partition, without a list of subscribers (MC).

A broadcast is a message to `multicast#<id>`. It goes once to every address behind a matching
subscription, and up: to the parents of a leaf, or over the global transport of a hub. Nobody waits
for a slow receiver, except the publisher itself if it wants to.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from msgspec import structs

from waystation.core.address import LOCAL, Address, Route
from waystation.core.copies import Copies, Copy
from waystation.core.custody import CustodyArrival
from waystation.core.expiry import NEVER
from waystation.core.message import NO_ID, Arrival, Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.multicast import SubscriptionChange, SubscriptionKind, pattern_of
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import (
    NO_SOURCE,
    OWN_SOURCE,
    ChangeRecord,
    SessionKind,
    SessionRecord,
    SessionRole,
    Source,
)
from waystation.core.router import FanOut
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError, quote
from waystation.node.counting import MessageInbox
from waystation.node.policy import Policy, Queue, Wait, check_seconds
from waystation.node.receiver import (
    InboxReceiver,
    NoRoom,
    Outbound,
    ReadyReceiver,
    Receiver,
    Verdicts,
    verdicts_of,
)
from waystation.transports.transport import Broadcaster, BrokerState

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

_FIRST: Final = Copy.FIRST  # looked up for each broadcast
_FORWARDED: Final = Outcome.FORWARDED

_log = logging.getLogger("waystation.node")

Callback: TypeAlias = Callable[[Message], Awaitable[Any] | Any]


class Subscription(InboxReceiver):
    """What one subscriber receives: an async iterator of messages, or calls of its callback.

    A broadcast is DELIVERED when the subscriber takes it. One that finds `inbox` of them waiting is
    dropped for this subscriber, QUEUE_FULL, unless its publisher is in this node and waits.
    """

    def __init__(self, kernel: Kernel, pattern: str, address: Address, inbox: int) -> None:
        verdict = Verdict(Outcome.DELIVERED, None, address.name, address)
        super().__init__(verdict, MessageInbox(kernel.flow, inbox, address.name))
        self.pattern = pattern
        self.address = address
        self._kernel = kernel
        self._closed = False
        self._reader: asyncio.Task[None] | None = None
        self._in_hand: CustodyArrival | None = None  # which the reader has, and has not finished
        self.is_kept: asyncio.Future[None] | None = None  # done when it is on disk, if durable

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._inbox)} waiting"
        return f"<Subscription to {self.pattern}: {state}>"

    async def __aenter__(self) -> Self:
        """Return when the parents, if there are any, send what is published to it.

        A durable subscription is on disk then, and the parents were told to keep it.
        """
        try:
            if self.is_kept is not None:
                await asyncio.shield(self.is_kept)
            await self._kernel.readiness.wait(names=False)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        if self._reader is not None and asyncio.current_task() is not self._reader:
            raise LocalError(
                f"the subscription to {quote(self.pattern)} calls its callback",
                rule="MC-8",
                hint="subscribe without callback= to read it",
            )
        return self

    async def __anext__(self) -> Message:
        inbox = self._inbox
        self.finish(None)
        while not self._closed:
            if not inbox.items:
                if inbox.is_read:
                    raise LocalError(
                        f"another task already reads the subscription to {quote(self.pattern)}",
                        rule="MC-8",
                        hint="subscribe once for each reader",
                    )
                await inbox.woken()
                continue
            arrival = inbox.take()
            kernel, message = self._kernel, arrival.message
            if isinstance(arrival, CustodyArrival):
                if message.expired(kernel.tick() // 1000):
                    arrival.settle(Reason.EXPIRED)
                    continue
                self._in_hand = arrival
                return message
            if message.expiry is not NEVER and message.expired(kernel.tick() // 1000):
                kernel.drop(arrival, Reason.EXPIRED, self.address.name)
            else:
                kernel.end(arrival, self.verdict)
                return message
        raise StopAsyncIteration

    def finish(self, reason: Reason | None, error: BaseException | None = None) -> None:
        """Acknowledge what the reader has, or tell why it was not handled (DU-7)."""
        arrival, self._in_hand = self._in_hand, None
        if arrival is not None:
            arrival.settle(reason, error)

    async def unsubscribe(self) -> None:
        """Receive nothing more, and end a durable subscription for good (DU-8)."""
        custody = self._kernel.custody
        if custody.store is not None:
            custody.kept.ended(self.pattern, self.address.name)
        await self.close()

    async def close(self) -> None:
        """Receive nothing more; what was not taken yet is dropped, NO_ROUTE."""
        self.stop(Reason.NO_ROUTE)
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
            await asyncio.wait([self._reader])

    def stop(self, reason: Reason) -> None:
        """Leave the node."""
        if self._closed:
            return
        self._closed = True
        kernel, name = self._kernel, self.address.name
        kernel.broadcasts.remove_subscriber(self.pattern, name, OWN_SOURCE)
        kernel.remove_receiver(self.address)
        for arrival in self._inbox.empty():
            if isinstance(arrival, CustodyArrival):
                arrival.settle(Reason.NO_ROUTE)  # it waits until there is a subscriber again
            else:
                kernel.drop(arrival, reason, name)
        self.finish(Reason.NO_ROUTE)
        self._inbox.wake_reader()

    def read_by(self, callback: Callback) -> None:
        """Call a function with each message from now on."""
        self._reader = self._kernel.tasks.start(
            self._read(callback),
            f"subscription {self.pattern}",
            if_failed=lambda: self.stop(Reason.FAILED),
        )

    async def _read(self, callback: Callback) -> None:
        async for message in self:
            try:
                result = callback(message)
                if result is not None:
                    await result
            except (Exception, asyncio.CancelledError):  # it costs this one message
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # else it was one that it waited for
                    raise
                self.finish(Reason.FAILED, sys.exception())
                _log.exception("a subscriber to %s failed on message %s", self.pattern, message.id)


class _Publisher(ReadyReceiver):
    """The receiver at a name that only publishes: it refuses what is sent there."""

    __slots__ = ("_kernel", "verdict")

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel = kernel
        self.verdict = Verdict.dropped(Reason.REFUSED, name)

    def offer(self, arrival: Arrival) -> Verdict:
        return self._kernel.end(arrival, self.verdict)


class Broadcasts:
    """The broadcasts of one node."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._providers: dict[str, bool] = {}  # names that only publish; whether they are visible
        self.broadcasters: dict[Broadcaster, str] = {}  # and the name of the session with each
        self._patterns_of: dict[str, dict[str, None]] = {}  # the patterns of each provider
        self._heard_globally: dict[str, None] = {}  # the patterns that the broadcasters were told
        self._copies = Copies()
        kernel.router.types.register("multicast", MULTICAST)

    def use(self, broadcaster: Broadcaster) -> None:
        """Publish globally over a transport, and hear what others publish there (MC-12)."""
        transport = broadcaster.type_name
        session = self.broadcasters[broadcaster] = f"{transport}-{secrets.token_hex(8)}"
        self._kernel.router.has_global_transport = True
        broadcaster.attach(
            partial(self.arrive_from_outside, session),
            partial(self._tell_connection, session, transport),
        )
        for pattern in self._heard_globally:
            broadcaster.subscribe(pattern)
        for pattern in self._kernel.router.subscriptions.patterns():
            self._listen_globally(pattern)

    # Subscribing

    def subscribe(
        self,
        provider: str,
        broadcast: str,
        partition: str | Iterable[str],
        inbox: int,
        durable: tuple[str, float] | None = None,
    ) -> Subscription:
        """Start to receive what matches; a `durable` subscription has a name, and is kept."""
        kernel = self._kernel
        pattern = pattern_of(provider, broadcast, partition)
        name = f"subscriber-{kernel.new_id()[-16:]}"
        if durable is not None:
            name = kernel.custody.subscriber(durable[0])
        address = Address(LOCAL, name.encode())
        subscription = Subscription(kernel, pattern, address, inbox)
        kernel.add_receiver(address, subscription, RoutingEntry(address.name, address, local=True))
        self.add_subscriber(pattern, address.name, OWN_SOURCE)
        if durable is not None:
            seconds = int(check_seconds(durable[1]))
            subscription.is_kept = kernel.custody.kept.made(pattern, name, seconds)
        return subscription

    def add_subscriber(self, pattern: str, receiver: str, source: Source = NO_SOURCE) -> bool:
        """Subscribe a participant to a pattern (MC-8); returns False if it was subscribed."""
        change = self._kernel.router.subscriptions.subscribe(pattern, receiver)
        if change is not None:
            self._follow(change, source)
        return change is not None

    def remove_subscriber(self, pattern: str, receiver: str, source: Source = NO_SOURCE) -> bool:
        """End a subscription of a participant; returns whether there was one."""
        change = self._kernel.router.subscriptions.unsubscribe(pattern, receiver)
        if change is not None:
            self._follow(change, source)
        return change is not None

    def drop_subscriber(self, receiver: str, source: Source = NO_SOURCE) -> int:
        """End all subscriptions of a participant that is gone; returns their number."""
        changes = self._kernel.router.subscriptions.unsubscribe_all(receiver)
        for change in changes:
            self._follow(change, source)
        return len(changes)

    def provider_changed(self, provider: str) -> None:
        """Subscribe globally to a provider that is no longer local (MC-12, MC-13)."""
        for pattern in self._patterns_of.get(provider, ()):
            self._listen_globally(pattern)

    def close(self) -> None:
        """End the subscriptions of this node, and what it published as."""
        for receiver in list(self._kernel.receivers.values()):
            if isinstance(receiver, Subscription):
                receiver.stop(Reason.TRANSPORT_DOWN)
        for name in list(self._providers):
            self._kernel.remove_receiver(Address(LOCAL, name.encode()))
        self._providers.clear()

    # Publishing

    async def publish(
        self, multicast_id: str, message: Message, policy: Policy, visible: bool | None
    ) -> list[Verdict]:
        """Send a message to its subscribers; returns a verdict for each copy, at least one."""
        self._announce_publisher(multicast_id.partition("/")[0], visible)
        kernel = self._kernel
        arrival = Arrival(message, kernel.stamp(), from_global=False, multicast_id=multicast_id)
        self._copies.meet(message.id, multicast_id, upward=True)
        verdicts: list[Verdict] = []
        full = self._fan_out(arrival, verdicts)
        try:
            while full:
                verdicts += await self._wait(full.pop(0), arrival, policy)
        finally:  # of a publisher that was cancelled while it waited for one of them
            for receiver in full:
                kernel.waiting.drop(receiver, arrival)
        return verdicts

    def arrive(self, arrival: Arrival) -> Verdict:
        """Pass on what a peer published; a receiver without room for it goes without."""
        multicast_id = arrival.message.onward_route.addresses[0].data.decode(errors="replace")
        message, via = arrival.message, arrival.via
        received_at, from_global, sender = arrival.received_at, arrival.from_global, arrival.sender
        arrival = Arrival(message, received_at, from_global, multicast_id, via, None, sender)
        copy = self._meet(arrival)
        verdicts: list[Verdict] = []
        if copy is _FIRST:
            full = self._fan_out(arrival, verdicts)
        else:  # those here had their copies of the first
            verdicts.append(self._kernel.drop(arrival, Reason.DUPLICATE))
            goes_up = copy is Copy.FIRST_UPWARD and self._decide(arrival).upward
            full = self._send_up(arrival, verdicts) if goes_up else []
        for receiver in full:
            verdicts += self._keep_or_drop(receiver, arrival)
        return verdicts[0]

    def arrive_from_outside(self, session: str, multicast_id: str, message: Message) -> None:
        """Pass on what came over the global transport to the receivers here, and no further."""
        kernel = self._kernel
        address = Address(MULTICAST, multicast_id.encode())
        if message.onward_route.first != address:
            message = message.rerouted(Route((address,)), message.return_route)
        if message.id == NO_ID:
            message = structs.replace(message, id=kernel.new_id())
        if not kernel.permissions.admits_broadcast(multicast_id):
            kernel.refuse(message, session)
            return
        self.arrive(Arrival(message, kernel.stamp(), from_global=True, via=session))

    def _meet(self, arrival: Arrival) -> Copy:
        """What a copy is to this node (FL-6)."""
        message, multicast_id = arrival.message, arrival.multicast_id
        assert multicast_id is not None
        if len(message.return_route.addresses) >= self._kernel.router.hop_limit:
            return _FIRST  # it ends here, and another may have come a shorter way
        expired = message.expired(arrival.received_at // 1000)
        upward = not arrival.from_global
        return self._copies.meet(message.id, multicast_id, upward=upward, expired=expired)

    def _announce_publisher(self, provider: str, visible: bool | None) -> None:
        """Make the publisher a participant, so that hubs know whether it is visible.

        A worker is one already, as visible as it was started.
        """
        kernel, known = self._kernel, self._providers.get(provider)
        if known is not None:
            if visible is None or visible is known:
                return
        elif kernel.worker(provider) is not None:
            self._check_visible(provider, visible)
            return
        else:
            kernel.free_address(provider)
            visible = visible is not False
        address = Address(LOCAL, provider.encode())
        self._providers[provider] = visible
        entry = RoutingEntry.of(provider, address, local=True, visible=visible)
        kernel.add_receiver(address, _Publisher(kernel, provider), entry)
        kernel.hierarchy.announce_changes()

    def _check_visible(self, worker: str, visible: bool | None) -> None:
        """Raise LocalError if a publisher wants another visibility than its worker has."""
        entry = self._kernel.entry(worker)
        if visible is None or entry is None or entry.visible is visible:
            return
        is_not, start = ("not ", "True") if visible else ("", "False")
        raise LocalError(
            f"cannot publish with visible={visible} as {quote(worker)}: "
            f"that is a worker which is {is_not}visible",
            rule="MC-10",
            hint=f"start it with node.worker({worker!r}, visible={start}), or leave `visible` out",
        )

    def _decide(self, arrival: Arrival) -> FanOut:
        """Ask the rules who gets it."""
        multicast_id = arrival.multicast_id
        assert multicast_id is not None
        return self._kernel.router.fan_out(multicast_id, arrival, arrival.received_at // 1000)

    def _fan_out(self, arrival: Arrival, verdicts: list[Verdict]) -> list[Receiver]:
        """Offer a message to all its receivers; returns those that have no room."""
        kernel = self._kernel
        fan_out = self._decide(arrival)
        verdicts += [kernel.end(arrival, one) for one in fan_out.verdicts if one.address is None]
        full: list[Receiver] = []
        for address, theirs in _by_address(fan_out):
            receiver = kernel.receiver_of_copy(address, arrival.message, theirs)
            if receiver is None:
                down = Reason.TRANSPORT_DOWN
                kernel.drop_each(arrival, down, theirs)
                verdicts += (Verdict.dropped(down, one.recipient) for one in theirs)
            elif (verdict := receiver.offer(arrival)).reason is None:
                verdicts += theirs
            elif type(verdict) is NoRoom:
                full.append(receiver)
            else:
                verdicts += _for_each(receiver, verdict)
        if fan_out.upward:
            full += self._send_up(arrival, verdicts)
        return full

    def _send_up(self, arrival: Arrival, verdicts: list[Verdict]) -> list[Receiver]:
        """Send a copy to the parents, or to everybody over the global transport (MC-10).

        Returns the copies to parents that have no room.
        """
        kernel, message = self._kernel, arrival.message
        full: list[Receiver] = []
        for parent in kernel.hierarchy.parents:
            verdict = Verdict(_FORWARDED, None, None, parent.address)
            copy = Outbound(parent, message, (verdict,))
            verdict = copy.offer(arrival)
            if type(verdict) is NoRoom:
                full.append(copy)
            else:
                verdicts.append(verdict)
        if not kernel.hierarchy.parents:
            assert arrival.multicast_id is not None
            topic = Address(MULTICAST, arrival.multicast_id.encode())
            up = Verdict(_FORWARDED, None, None, topic)
            for broadcaster, session in self.broadcasters.items():
                on_end = partial(self._end_upward, arrival, up, session)
                reason = broadcaster.publish(arrival.multicast_id, message, on_end)
                verdicts.append(up if reason is None else kernel.drop(arrival, reason, out=session))
        return full

    def _end_upward(
        self, arrival: Arrival, up: Verdict, session: str, reason: Reason | None
    ) -> None:
        """Record what became of a copy for the global transport (OB-7)."""
        self._kernel.end(arrival, up if reason is None else Verdict.dropped(reason), session)

    def _tell_connection(self, session: str, transport: str, told: BrokerState) -> None:
        """Record that the connection to a broker was made or lost (OB-10)."""
        kernel = self._kernel
        place = Address(kernel.router.types.numbers[transport], told.place.encode())
        kernel.notify(
            SessionRecord(
                SessionKind.OPENED if told.is_open else SessionKind.CLOSED,
                session,
                str(place),
                None,
                None if told.is_open else Reason.TRANSPORT_DOWN,
                told.detail,
                kernel.tick(),
                SessionRole.GLOBAL,
                transport,
            )
        )

    async def _wait(self, receiver: Receiver, arrival: Arrival, policy: Policy) -> Verdicts:
        """Wait for a receiver that is slow, as the publisher wants it."""
        verdict = receiver.offer(arrival)  # it may have caught up while another was waited for
        if type(verdict) is NoRoom:
            if isinstance(policy, Queue):
                return self._keep_or_drop(receiver, arrival)
            if isinstance(policy, Wait):
                policy = Wait(policy.seconds)  # a copy waits for room, and for nobody else
            verdict = await self._kernel.waiting.wait(receiver, arrival, policy)
        return _for_each(receiver, verdict)

    def _keep_or_drop(self, receiver: Receiver, arrival: Arrival) -> Verdicts:
        """Let a message wait for a slow session; a slow subscriber goes without it."""
        kernel = self._kernel
        limit = kernel.waiting.QUEUE_LIMIT
        if not isinstance(receiver, Outbound) or receiver.waiting() >= limit:
            return _for_each(receiver, kernel.waiting.drop(receiver, arrival))
        return _for_each(receiver, kernel.waiting.hold(receiver, arrival, None))

    # Telling others

    def _follow(self, change: SubscriptionChange, source: Source) -> None:
        """Tell of a change; the first subscription to a pattern, and the last, concern others."""
        kernel, pattern = self._kernel, change.pattern
        kernel.notify(ChangeRecord(change, kernel.tick(), *source))
        if kernel.hierarchy.parents:
            kernel.hierarchy.announcements.subscription_changed(change)
        if not change.edge:
            return
        provider = pattern.partition("/")[0]
        if change.kind is SubscriptionKind.SUBSCRIBE:
            self._patterns_of.setdefault(provider, {})[pattern] = None
            self._listen_globally(pattern)
            return
        del self._patterns_of[provider][pattern]
        if not self._patterns_of[provider]:
            del self._patterns_of[provider]
        if pattern in self._heard_globally:
            del self._heard_globally[pattern]
            for broadcaster in self.broadcasters:
                broadcaster.unsubscribe(pattern)

    def _listen_globally(self, pattern: str) -> None:
        kernel = self._kernel
        known = pattern in self._heard_globally
        if not known and kernel.router.listens_globally(pattern, kernel.tick() // 1000):
            self._heard_globally[pattern] = None
            for broadcaster in self.broadcasters:
                broadcaster.subscribe(pattern)


def _by_address(fan_out: FanOut) -> Iterable[tuple[Address, Verdicts]]:
    """The copies to send, each with the verdicts on those behind its address."""
    if len(fan_out.copies) == len(fan_out.verdicts):
        return zip(fan_out.copies, zip(fan_out.verdicts, strict=True), strict=True)
    behind: dict[Address, list[Verdict]] = {address: [] for address in fan_out.copies}
    for verdict in fan_out.verdicts:
        if verdict.address is not None:
            behind[verdict.address].append(verdict)
    return ((address, tuple(theirs)) for address, theirs in behind.items())


def _for_each(receiver: Receiver, verdict: Verdict) -> Verdicts:
    """The verdict on a copy, for each participant behind its receiver."""
    verdicts, reason = verdicts_of(receiver), verdict.reason
    if reason is None:
        return verdicts
    return tuple(Verdict.dropped(reason, one.recipient) for one in verdicts)
