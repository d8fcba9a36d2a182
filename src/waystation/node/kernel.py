"""The kernel of a node: who receives, what becomes of a message, and who is told (AD-5, OB-1).

`take` is the one function that a message enters by, wherever it comes from. It asks the rules and
acts on their answer, by plain calls: nothing is created for a message but the message itself. Those
who bring messages differ only in what they do when nobody has room: a sender waits as its policy
says (`Node.send`, `Node.route`), a callback does not wait (`post`), and what a peer or a worker
sent stands in the line of its receiver (`arrive`, `send_on`). `end` is the one function by which
every message leaves (OB-1).

Who receives is read from the routing table: each change of it to a name of this node passes through
`_follow`, which alone writes `receivers`. So a name that has no entry has no receiver, and node and
rules agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import structs

from waystation.core.access import Access
from waystation.core.address import LOCAL, Address
from waystation.core.clock import Clock, SteadyClock
from waystation.core.expiry import NEVER, Expiry, expiry_after
from waystation.core.grants import Grants
from waystation.core.message import INTERNAL, Arrival, Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.outcome import Reason, Verdict
from waystation.core.record import (
    NO_SOURCE,
    OWN_SOURCE,
    Cause,
    ChangeRecord,
    ClockRecord,
    MessageRecord,
    Record,
    Source,
)
from waystation.core.router import Router
from waystation.core.routing import REPLACES, RouteChange, RouteKind, RoutingEntry
from waystation.core.tokens import Token
from waystation.errors import LocalError, quote
from waystation.net.tasks import Tasks
from waystation.node.broadcasts import Broadcasts
from waystation.node.custody import Custody
from waystation.node.flow import NodeFlow
from waystation.node.hierarchy import Hierarchy
from waystation.node.identities import Identities
from waystation.node.ids import new_ids
from waystation.node.links import Limits, Links
from waystation.node.permissions import Permissions
from waystation.node.policy import check_seconds
from waystation.node.readiness import Readiness
from waystation.node.receiver import NoRoom, Outbound, Receiver, Verdicts, verdicts_of
from waystation.node.requests import REQUEST_PREFIX, PendingRequest, Requests, error_reply
from waystation.node.session import Session
from waystation.node.store import StoreSettings
from waystation.node.waiting import Waiting
from waystation.node.worker import Worker, WorkerAddress
from waystation.wire.custody import WORKER as CUSTODY
from waystation.wire.identity import PrivateIdentity

if TYPE_CHECKING:
    from waystation.node.directory import ProviderDirectory

CHANNEL_PREFIX: Final = "secure-channel-"
"""How the names of the ends of secure channels begin."""

RESERVED: Final = (INTERNAL, REQUEST_PREFIX, CHANNEL_PREFIX)
"""How names begin that only the node itself gives."""

PURGE_INTERVAL: Final = 10_000_000
"""Microseconds after which a put frees the memory of entries that have expired."""

_NOT_FROM_HERE: Final = (Session, type(None))

_log = logging.getLogger("waystation.node")

Observer: TypeAlias = Callable[[Record], None]
Carrier: TypeAlias = Callable[[Message, Address], Reason | None]
"""Sends a message to an address of its type; returns the reason if that is impossible."""


class Stage(Enum):
    """The life of a node, in this order."""

    RUNNING = auto()
    DRAINING = auto()  # nothing new is taken; what workers send still goes out
    CLOSED = auto()  # whatever is sent is refused


class Kernel:
    """The inside of one node, shared by all its parts."""

    def __init__(
        self,
        name: str,
        *,
        hop_limit: int,
        clock: Clock,
        limits: Limits,
        access: Access | None,
        grants: Grants | None,
        token: bytes | None,
        tokens: Iterable[Token],
        identity: PrivateIdentity | None,
        hub: bool,
        dial_for_peers: bool,
        store: StoreSettings | None = None,
    ) -> None:
        self.name = name
        self.router = Router(hop_limit=hop_limit)
        self._hop_limit = self.router.hop_limit  # asked for each message
        self.limits = limits
        self.flow = NodeFlow(self)
        self.account = self.flow.account  # of what was received and is not settled (FL-1)
        self.access = access
        self.permissions = Permissions(self, grants)
        self.stage = Stage.RUNNING
        self.new_id = new_ids()
        self.clock = clock if isinstance(clock, SteadyClock) else None
        self._peek_clock = clock if self.clock is None else self.clock.read
        # For messages: at the first of them the clock is pinned (TM-1).
        self.read_clock = clock if self.clock is None else self._pin_and_read
        self.pinned_clock: SteadyClock | None = None  # which may be read without a call
        self._loop: asyncio.AbstractEventLoop | None = None  # once the clock is watched
        self._clock_was_off = False
        self.latest = 0  # the instant that `tick` told last
        self.observers: list[Observer] = []
        self.incarnation = 0  # of the journal that one of them keeps
        self.carriers: dict[int, Carrier] = {}
        self.tasks = Tasks()  # of the workers and subscriptions, and the one that closes the node
        self.workers: dict[Worker, None] = {}  # those that run, in the order of their start
        self.receivers: dict[bytes, Receiver] = {}  # by local address; written by `_follow` only
        # By the names of this node's receivers: their local addresses, and the entries to them.
        self._own: dict[str, tuple[bytes, Receiver, RoutingEntry]] = {}
        self._purge_at = 0
        self.hierarchy = Hierarchy(self, hub=hub)
        self.readiness = Readiness(self)
        self.broadcasts = Broadcasts(self)
        self.requests = Requests(self)
        self.waiting = Waiting(self)
        self.links = Links(self, token, tokens, Identities(identity), dial_for_peers=dial_for_peers)
        self.directory: ProviderDirectory  # given by the node, whose workers and requests it uses
        self.custody = Custody(self, store)

    @property
    def is_closed(self) -> bool:
        """Whether everything is refused."""
        return self.stage is _CLOSED

    def close(self, workers: Iterable[Worker]) -> None:
        """Refuse everything from now on, and drop what waits, also for the stopped workers."""
        self.stage = Stage.CLOSED
        if self.clock is not None:
            self.clock.unwatch(self._clock_changed)
        for worker in workers:
            worker.drop_all(Reason.TRANSPORT_DOWN)
        for receiver in list(self.receivers.values()):
            if isinstance(receiver, PendingRequest):
                receiver.give_up(Reason.REFUSED)
        self.requests.deadlines.close()
        self.waiting.reject_all()
        self.flow.close()
        self.hierarchy.close()

    async def stop_workers(self, drain: float) -> list[Worker]:
        """Let the workers handle what they have for a while, then stop them; returns them all."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + drain
        # An event instead would have to be set for every message.
        while clock() < deadline and (  # noqa: ASYNC110
            any(worker.at_work for worker in self.workers) or self.links.has_waiting
        ):
            await asyncio.sleep(0.001)
        workers = list(self.workers)
        for worker in workers:
            worker.stop(Reason.TRANSPORT_DOWN)
        await asyncio.gather(*(worker.task for worker in workers), return_exceptions=True)
        return workers

    # The clock

    def tick(self) -> int:
        """The instant, in microseconds: it never goes back, and never comes twice."""
        peek_clock = self._peek_clock  # a variable is called sooner than what an attribute holds
        now = peek_clock() // 1000
        if now <= self.latest:
            now = self.latest + 1
        self.latest = now
        return now

    def stamp(self) -> int:
        """The instant for a message: from the first one on the clock is not set any more."""
        read_clock = self.read_clock  # a variable is called sooner than what an attribute holds
        now = read_clock() // 1000
        if now <= self.latest:
            now = self.latest + 1
        self.latest = now
        return now

    def pin_clock(self) -> None:
        """Let the clock be slewed and not set from now on, and notice when it is off (TM-1)."""
        clock = self.clock
        if clock is None or self._loop is not None:
            return
        clock.pin()
        self.read_clock = clock.read
        self.pinned_clock = clock
        with contextlib.suppress(RuntimeError):  # nobody runs it yet
            self._loop = asyncio.get_running_loop()
            clock.watch(self._clock_changed)
            self._tell_clock()

    def _pin_and_read(self) -> int:
        self.pin_clock()
        return self._peek_clock()

    @property
    def clock_off_us(self) -> int:
        """How far the wall clock is ahead of the node's, if that is too far to follow; else 0."""
        clock = self.clock
        return clock.offset_us() if clock is not None and clock.is_off else 0

    def _clock_changed(self) -> None:
        """Come back to the node's own thread: whoever shares the clock may have noticed."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._tell_clock)

    def _tell_clock(self) -> None:
        """Tell that the wall clock is too far off to be followed, or no longer is."""
        clock = self.clock
        assert clock is not None
        self.links.measure_clocks()
        if clock.is_off == self._clock_was_off:
            return
        self._clock_was_off = clock.is_off
        offset = clock.offset_us()
        direction = "ahead of" if offset > 0 else "behind"
        detail = f"the wall clock is {abs(offset) / 1e6:.3f} s {direction} the clock of the node"
        if clock.is_off:
            _log.error("node %s: %s, which goes on by itself", self.name, detail)
        else:
            _log.warning("node %s: %s, which follows it again", self.name, detail)
        self.notify(ClockRecord(offset, detail, self.tick()))

    def expiry_in(self, seconds: float | None) -> Expiry:
        """The expiry of what lives this many seconds from now; NEVER for None."""
        if seconds is None:
            return NEVER
        return expiry_after(self.stamp() // 1000, int(check_seconds(seconds) * 1000))

    # How a message enters

    def post(
        self, message: Message, *, from_global: bool = False, replies_to: str | None = None
    ) -> Verdict:
        """Take a message from a caller that cannot wait: without room it is dropped."""
        arrival = Arrival(message, self.stamp(), from_global, replies_to=replies_to)
        verdict = self.take(arrival)
        return self.waiting.drop(verdict.receiver, arrival) if type(verdict) is NoRoom else verdict

    def send_on(self, message: Message) -> Verdict:
        """Take a message from a worker, which never waits: without room it stands in a line."""
        arrival = Arrival(message, self.tick())
        verdict = self.take(arrival)
        return (
            self.waiting.send_on(verdict.receiver, arrival) if type(verdict) is NoRoom else verdict
        )

    def come_out(self, message: Message, outside: Message, sender: str | None) -> None:
        """Take a message that was sealed in another; without room it waits as that would have."""
        arrival = Arrival(message, self.tick(), sender=sender)
        verdict = self.take(arrival)
        if type(verdict) is NoRoom:
            self.waiting.keep(verdict.receiver, arrival, outside)

    def arrive(self, message: Message, from_global: bool, via: str) -> None:
        """Take a message that came over a session; without room it waits for its receiver.

        `tick` was called for it, or for those that came with it.
        """
        self.latest = at = self.latest + 1
        arrival = Arrival(message, at, from_global, None, via)
        verdict = self.take(arrival)
        if type(verdict) is NoRoom:
            self.waiting.keep(verdict.receiver, arrival)

    def refuse(
        self, message: Message, via: str | None = None, sender: str | None = None
    ) -> Verdict:
        """Drop a message that its sender is not allowed to send."""
        return self.drop(Arrival(message, self.tick(), via=via, sender=sender), Reason.REFUSED)

    def allows(self, message: Message, peer: str) -> bool:
        """Whether a peer may send along the route of a message: to every address in it."""
        return (
            self.access is None
            or self.access.admits(peer, message.onward_route)
            or self.custody.is_custody(message)  # what is inside is judged there
        )

    def change_limits(self, limits: Limits) -> None:
        """Have other limits from now on."""
        self.limits = self.links.limits = limits
        self.account.limit = limits.budget

    # What becomes of it

    def take(self, arrival: Arrival) -> Verdict:
        """Decide what becomes of a message, and do it; NoRoom if its receiver is full."""
        message = arrival.message
        addresses = message.onward_route.addresses
        if addresses:
            first = addresses[0]
            receiver: Receiver | None
            if first.type == LOCAL:
                receiver = self.receivers.get(first.data)
            elif first.type == MULTICAST:
                return self.broadcasts.arrive(arrival)
            else:
                receiver = self.links.by_place.get(first)
                if receiver is not None and self.is_foreign(message):
                    receiver = None
            # Every receiver has an entry that never expires, so the table need not be asked: only
            # what the rules check before it is checked here.
            if (
                receiver is not None
                and (message.expiry is NEVER or arrival.received_at < message.expiry * 1000)
                and len(message.return_route.addresses) < self._hop_limit
                and self.stage is not _CLOSED
            ):
                return receiver.offer(arrival)
        return self._decide(arrival)

    def _decide(self, arrival: Arrival) -> Verdict:
        """Ask the rules, and do as they say."""
        if self.stage is _CLOSED:
            return self.drop(arrival, Reason.REFUSED)
        verdict = self.router.decide(arrival.message, arrival.received_at // 1000)
        recipient, address = verdict.recipient, verdict.address
        if verdict.reason is Reason.NO_ROUTE and recipient is not None:
            if recipient == CUSTODY:  # received from the first such message on
                self.custody.serve()
                return self.take(structs.replace(arrival, received_at=self.tick()))
            if recipient.startswith(CHANNEL_PREFIX):  # has ended; nobody else may have the message
                return self.drop(arrival, Reason.NO_ROUTE, recipient)
            return self.waiting.receiver(recipient, Reason.NO_ROUTE, recipient).offer(arrival)
        if address is None:
            return self.end(arrival, verdict)
        carry = self.carriers.get(address.type)
        if carry is None:
            hop = self._next_hop(arrival.message, verdict, address)
            if isinstance(hop, Reason):
                return self.drop(arrival, hop, recipient)
            return hop.offer(arrival)
        reason = carry(arrival.message, address)
        return self.end(arrival, verdict if reason is None else Verdict.dropped(reason, recipient))

    def _next_hop(self, message: Message, verdict: Verdict, address: Address) -> Receiver | Reason:
        """The receiver that leads to an address, or the reason why there is none."""
        to_place = message.onward_route.first == address
        if address.type == LOCAL:  # of a session: a leaf or a parent told of the participant
            session = self.receivers.get(address.data)
            if not isinstance(session, Session):
                return Reason.TRANSPORT_DOWN
        elif address.type not in self.links.transports:
            return Reason.UNKNOWN_TYPE
        elif to_place and self.is_foreign(message):
            return Reason.REFUSED  # peers do not choose whom this node connects to
        else:
            session = self.links.reach(address)
            if session is None:
                return self.waiting.receiver(address, Reason.TRANSPORT_DOWN, verdict.recipient)
            self.waiting.appeared(address)  # what waits for it was sent before
        return session if to_place else Outbound(session, message, (verdict,))

    def is_foreign(self, message: Message) -> bool:
        """Whether a peer may have sent the message, and this node does not connect for peers.

        What comes from here has only workers and requests of this node in its return route.
        """
        if self.links.dial_for_peers:
            return False
        receivers = self.receivers
        return any(
            hop.type != LOCAL or receivers.get(hop.data).__class__ in _NOT_FROM_HERE
            for hop in message.return_route.addresses
        )

    # How it ends

    def end(self, arrival: Arrival, verdict: Verdict, out: str | None = None) -> Verdict:
        """Record the outcome of a message; its last owner calls this, exactly once (OB-1).

        `out` is the session that it left over, or waited for.
        """
        if self.observers:
            self.notify(MessageRecord(arrival, verdict, self.tick(), out))
        if verdict.reason is not None:
            self._note_drop(arrival.message, verdict)
        return verdict

    def drop(
        self,
        arrival: Arrival,
        reason: Reason,
        recipient: str | None = None,
        out: str | None = None,
    ) -> Verdict:
        """Record that a message was dropped."""
        return self.end(arrival, Verdict.dropped(reason, recipient), out)

    def end_all(self, ended: Iterable[tuple[Arrival, Verdicts]], out: str) -> None:
        """Record the outcomes of messages that the link of a session has written."""
        if self.observers:
            at = self.tick()
            for arrival, verdicts in ended:
                self.notify(MessageRecord(arrival, verdicts[0], at, out))
                for verdict in verdicts[1:]:
                    self.notify(MessageRecord(arrival, verdict, at, out))

    def drop_each(
        self, arrival: Arrival, reason: Reason, verdicts: Verdicts, out: str | None = None
    ) -> Verdict:
        """Record that a copy was dropped for all behind its receiver; returns the first.

        It is one copy, so it ends at one instant.
        """
        dropped = [Verdict.dropped(reason, verdict.recipient) for verdict in verdicts]
        if self.observers:
            at = self.tick()
            for verdict in dropped:
                self.notify(MessageRecord(arrival, verdict, at, out))
        self._note_drop(arrival.message, dropped[0])
        return dropped[0]

    def drop_for(self, receiver: Receiver, arrival: Arrival, reason: Reason) -> Verdict:
        """Record that a message was dropped which a receiver did not take."""
        return self.drop_each(arrival, reason, verdicts_of(receiver), receiver.out)

    def notify(self, record: Record) -> None:
        """Call the observers; an exception in one does not affect the others."""
        for observer in self.observers:
            try:
                observer(record)
            except Exception:  # noqa: BLE001 - the node goes on, whatever it is
                _log.exception("an observer of node %s failed", self.name)

    def _note_drop(self, message: Message, verdict: Verdict) -> None:
        """Log a drop, and send the error reply if the message was a request."""
        reason = verdict.reason
        assert reason is not None
        _log.debug(
            "node %s dropped %s for %s: %s", self.name, message.id, verdict.recipient, reason
        )
        back = message.return_route.addresses
        if len(back) == 1:
            asker = self.receivers.get(back[0].data)
            if isinstance(asker, PendingRequest) and asker.asked == message.id:
                asker.give_up(reason)
        elif back and self.stage is not _CLOSED:
            reply = error_reply(message, reason, self.name, self.new_id())
            if reply is not None:
                self.post(reply, replies_to=message.id)

    # Who receives

    def add_receiver(self, address: Address, receiver: Receiver, entry: RoutingEntry) -> None:
        """Add a receiver of this node under its local address, with its routing entry.

        Called again for the same receiver, it replaces the entry.
        """
        self._own[entry.participant] = (address.data, receiver, entry)
        self._put(entry, OWN_SOURCE)

    def remove_receiver(self, address: Address, name: str | None = None) -> None:
        """Remove a receiver and its entry; `name` saves decoding the address."""
        name = name or address.name
        if address.data in self.receivers:  # or the table refused its entry (RE-15)
            self.remove_route(name, OWN_SOURCE)
        del self._own[name]
        if self.hierarchy.is_hub:
            self.hierarchy.claims.own_name_gone(name)
        self.hierarchy.contests.own_name_gone(name)

    def remove_worker(self, worker: Worker) -> None:
        """Take all names from a worker that still has them."""
        for address in worker.addresses:
            if self.worker(address.name) is worker:
                self.remove_receiver(address)

    def entry(self, participant: str) -> RoutingEntry | None:
        """The routing entry of a participant, unless it has none or that has expired."""
        return self.router.table.lookup(participant, self.tick() // 1000)

    def put_route(self, entry: RoutingEntry, source: Source = NO_SOURCE) -> RouteChange:
        """Put an entry into the routing table; the rules decide whether it is accepted (RE).

        Raises LocalError for an entry that nobody here could follow: over the name of a worker, a
        session or a subscriber of this node, or to a local address that is no session's.
        """
        is_session = isinstance(self.receivers.get(entry.address.data), Session)
        if entry.participant in self._own:
            existing = self.entry(entry.participant)
            replaces = existing is None or REPLACES[existing.local, entry.local]
            if replaces and not (existing and _lead_to_same(existing, entry)):
                self.check_not_own(entry.participant, rule="RE-3")
        elif entry.local and entry.address.type == LOCAL and not is_session:
            raise LocalError(
                f"the local entry for {quote(entry.participant)} points at {entry.address}, "
                "where there is no session",
                rule="RE-1",
                hint="start a worker of that name, or give the address of a session",
            )
        return self._put(entry, source)

    def check_not_own(self, participant: str, *, rule: str) -> None:
        """Raise LocalError for a name that belongs to a receiver of this node."""
        if participant in self._own:
            raise LocalError(
                f"{quote(participant)} is a worker, session, subscriber or request of this node",
                rule=rule,
                hint="stop or close that first, or choose another name",
            )

    def remove_route(self, participant: str, source: Source = NO_SOURCE) -> RouteChange | None:
        """Remove the entry of a participant; None if there was none."""
        at = self.tick()
        change = self.router.table.remove(participant, at // 1000)
        if change is not None:
            self._follow(change, at, source)
        return change

    def remove_routes_over(self, address: Address) -> list[RouteChange]:
        """Remove every entry that points at a session, since it ended (RE-12)."""
        at = self.tick()
        changes = self.router.table.remove_address(address, at // 1000)
        for change in changes:
            self._follow(change, at, (Cause.SESSION_CLOSED, address.name, None))
        return changes

    def remember_sender(self, message: Message, session: Session) -> None:
        """Keep the return route to a sender from outside until its request expires (RE-13)."""
        back = message.return_route.addresses
        if len(back) < 2 or back[-1].type != LOCAL:
            return
        name = back[-1].name
        claims = self.hierarchy.claims
        if not name or self.is_reserved(name) or claims.is_recent(name):
            return
        if self.permissions.keeps_from(session, name):
            return
        if claims.may_add(session, name):
            session.participants[name] = None
            entry = RoutingEntry.of_request(name, session.address, message.expiry)
            with contextlib.suppress(LocalError):  # for the name of a session, which stays that
                self.put_route(entry, (Cause.REQUEST, session.name, message.id))

    def free_address(self, name: str, *, reserved: bool = False) -> Address:
        """The local address of this name, if no receiver of this node has it."""
        address = Address.parse(name, self.router.types.numbers)
        if address.type != LOCAL or (self.is_reserved(address.name) and not reserved):
            raise LocalError(
                f"{quote(name)} cannot be the name of a worker or session",
                rule="WK-1",
                hint=f"give one of type 0 that does not begin with {' or '.join(RESERVED)}",
            )
        if address.name in self._own:
            raise LocalError(
                f"there is already a worker or session {quote(name)}",
                rule="WK-1",
                hint="choose another name, or stop that one",
            )
        return address

    def is_own_name(self, name: str) -> bool:
        """Whether a name belongs to this node itself, and cannot be announced by others."""
        return name in self._own or name.startswith(RESERVED)

    def has_none_of(self, names: Collection[str]) -> bool:
        """Whether none of these names belongs to this node itself."""
        return self._own.keys().isdisjoint(names) and not any(
            [name.startswith(RESERVED) for name in names]  # noqa: C419 - a generator takes longer
        )

    def own_receiver(self, name: str) -> Receiver | None:
        """The receiver that has this name, even if the table refused its entry (RE-15)."""
        own = self._own.get(name)
        return None if own is None else own[1]

    @staticmethod
    def is_reserved(name: str) -> bool:
        """Whether only the node itself gives such names; they mean nothing elsewhere."""
        return name.startswith(RESERVED)

    def session_of(self, message: Message) -> Session | None:
        """The session that a message came over; None if that has ended, or it began here."""
        first = message.return_route.first
        receiver = None if first is None else self.receivers.get(first.data)
        return receiver if isinstance(receiver, Session) else None

    def worker(self, name: str) -> Worker | None:
        """The worker that has this name among its own."""
        receiver = self.own_receiver(name)
        return receiver.worker if isinstance(receiver, WorkerAddress) else None

    def receiver_of_copy(
        self, address: Address, message: Message, verdicts: Verdicts
    ) -> Receiver | None:
        """The receiver of a copy for those behind an address, if there is one now."""
        receiver: Receiver | None = None
        if address.type == LOCAL:
            receiver = self.receivers.get(address.data)
        elif address.type in self.links.transports:
            receiver = self.links.reach(address)
        return Outbound(receiver, message, verdicts) if isinstance(receiver, Session) else receiver

    @property
    def wants_each_claimed(self) -> bool:
        """Whether somebody wants to know of each participant that a leaf claims."""
        return bool(
            self.observers
            or self.hierarchy.questions.wanted
            or self.router.has_global_transport
            or self.waiting.waited_for
            or self.custody.absent
        )

    def put_all_claimed(self, entries: dict[str, RoutingEntry], address: Address) -> None:
        """Put the entries of participants that a leaf claims, as `put_claimed` does, all at once.

        They never expire, and nobody wants to know of each of them.
        """
        self.latest = at = self.latest + len(entries)
        if at >= self._purge_at:
            self._purge(at)
        table = self.router.table
        if not table.put_new(entries, address):
            for entry in entries.values():  # some have entries that lead elsewhere
                table.put(entry, at // 1000)

    def put_claimed(self, entry: RoutingEntry) -> None:
        """Put the entry of a participant that a leaf claims, and whose name is not our own.

        That changes no receiver, and the parents are told of the claim, so `_follow` is not needed.
        `tick` was called for it, or for those that came with it.
        """
        self.latest = at = self.latest + 1
        if at >= self._purge_at:
            self._purge(at)
        change = self.router.table.put(entry, at // 1000)
        if self.observers:
            self.notify(ChangeRecord(change, at, Cause.ANNOUNCED, entry.address.name))
        if self.hierarchy.questions.wanted:
            self.hierarchy.questions.participant_came(entry)
        if self.router.has_global_transport:
            self.broadcasts.provider_changed(entry.participant)
        if self.waiting.waited_for:
            self.waiting.appeared(entry.participant)
        if self.custody.absent:
            self.custody.appeared(entry.participant)

    def remove_claimed(self, participant: str, source: Source) -> None:
        """Remove the entry of a participant that a leaf claimed, and whose name is not our own.

        The parents are told of the claim that has gone, so `_follow` is not needed here, either.
        """
        at = self.tick()
        change = self.router.table.remove(participant, at // 1000)
        if change is None:
            return
        if self.observers:
            self.notify(ChangeRecord(change, at, *source))
        self.hierarchy.questions.participant_gone(participant)
        if self.router.has_global_transport:
            self.broadcasts.provider_changed(participant)

    def _purge(self, at: int) -> None:
        self._purge_at = at + PURGE_INTERVAL
        self.router.table.purge(at // 1000)
        self.hierarchy.claims.purge(at // 1000)

    def _put(self, entry: RoutingEntry, source: Source) -> RouteChange:
        at = self.tick()
        if at >= self._purge_at:
            self._purge(at)
        change = self.router.table.put(entry, at // 1000)
        self._follow(change, at, source)
        if self.waiting.waited_for:
            self.waiting.appeared(entry.participant)
        if self.custody.absent:
            self.custody.appeared(entry.participant)
        return change

    def _follow(self, change: RouteChange, at: int, source: Source) -> None:
        """Follow a change of the routing table: all but those of what leaves claim come here."""
        own = self._own.get(change.entry.participant)
        if own is not None and change.refusal is None:
            data, receiver, entry = own
            if change.kind is RouteKind.PUT and _lead_to_same(change.entry, entry):
                self.receivers[data] = receiver
            else:
                self.receivers.pop(data, None)
        if self.observers:
            self.notify(ChangeRecord(change, at, *source))
        if change.refusal is not None:
            return
        hierarchy = self.hierarchy
        if hierarchy.is_hub or hierarchy.parents:
            hierarchy.route_changed(change)
        if self.router.has_global_transport:
            self.broadcasts.provider_changed(change.entry.participant)


_CLOSED: Final = Stage.CLOSED


def _lead_to_same(one: RoutingEntry, other: RoutingEntry) -> bool:
    return one is other or (one.local, one.address) == (other.local, other.address)
