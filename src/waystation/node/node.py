"""A node: a router, its workers and its sessions, in one process and one event loop (AD, WK).

Messages are passed on by plain calls: a send looks the receiver up and hands the message over, each
worker has one task that empties its inbox, and each session gives what it gets to its link. Nothing
is created per message but the message itself and what its handler gets to see.

What the outcomes mean: a message is DELIVERED when its worker has handled it, and FORWARDED when
the operating system has taken it. `send` returns as soon as it is accepted, with the verdict that
holds unless the worker or the link fails; the observers hear how it ended, exactly once (OB-1).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from waystation.core.access import Access
from waystation.core.address import LOCAL, Address, Route
from waystation.core.directory import Provider, Scope
from waystation.core.expiry import NEVER, Expiry, expiry_after
from waystation.core.message import HOP_LIMIT, Arrival, Message, no_bytes
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.multicast import MulticastId
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import ChangeRecord, MessageRecord, Record
from waystation.core.router import Router
from waystation.core.routing import RouteChange, RoutingEntry
from waystation.errors import LocalError, NoAnswerError, UndeliverableError, quote
from waystation.node.broadcasts import Callback, Multicasts, Subscription
from waystation.node.directory import Registry
from waystation.node.hierarchy import QUESTION_TIME, Hierarchy
from waystation.node.ids import new_ids
from waystation.node.links import Connections, Limits, Listening
from waystation.node.policy import WAIT, Fail, Policy, Queue, Wait, check_seconds
from waystation.node.receiver import Receiver
from waystation.node.runner import stop_signals
from waystation.node.session import Session, Verdicts
from waystation.node.undeliverable import Undeliverable, error_answer, is_error, wants_to_know
from waystation.node.waiting import Absence, Absences, got_in, waits_until
from waystation.node.worker import Handler, Worker
from waystation.transports.tcp import Tcp
from waystation.transports.transport import Transport

if TYPE_CHECKING:
    from waystation.journal import Journal

INBOX: Final = 1_000
"""How many messages wait for a worker before its senders have to."""

PARKED: Final = 10_000
"""How many messages a node keeps for one receiver on behalf of senders that do not wait."""

PURGE: Final = 10_000_000
"""Microseconds after which a put frees the memory of what has expired; nothing grows without."""

_log = logging.getLogger("waystation.node")
_NOT_FROM_HERE: Final = (Session, type(None))
_TIMER_SLACK: Final = 0.005  # seconds; uvloop's timers may be a little early
_ROUTES: Final = 4_096  # texts of routes that a node remembers
_NOWHERE: Final = Route()
REQUEST: Final = "request-"
"""How the names begin under which questions wait for their answers."""

RESERVED: Final = ("waystation.", REQUEST)
"""How names begin that are the node's own."""

Observer: TypeAlias = Callable[[Record], None]
Carrier: TypeAlias = Callable[[Message, Address], Reason | None]
"""Takes a message to an address of its type; says why not, if it cannot."""

_H = TypeVar("_H", bound=Callable[..., Any])


class _Answer:
    """The receiver of one answer."""

    __slots__ = ("_node", "message", "verdict")

    refusal: Final = Reason.QUEUE_FULL

    def __init__(self, node: Node, verdict: Verdict) -> None:
        self.verdict = verdict
        loop = asyncio.get_running_loop()
        self.message: asyncio.Future[Message | Undeliverable | None] = loop.create_future()
        self._node = node

    def offer(self, arrival: Arrival) -> Verdict | None:
        if not self.message.done():
            message = arrival.message
            self.message.set_result(is_error(message) or message)
        return self._node.end(arrival, self.verdict)

    def line_up(self, arrival: Arrival, deadline: float | None) -> asyncio.Future[Verdict | None]:
        raise AssertionError((arrival, deadline))  # there is always room

    def waiting(self) -> int:
        return 0

    def give_up(self, reason: Reason | None = None) -> None:
        """Nobody answered in time, or nobody will."""
        if not self.message.done():
            self.message.set_result(None if reason is None else Undeliverable(reason))


class _Departure:
    """A message to a participant elsewhere, on its way into a session: with that place in front."""

    __slots__ = ("_message", "_session", "verdict")

    def __init__(self, session: Session, message: Message, verdict: Verdict) -> None:
        self._session = session
        self._message = message
        self.verdict = verdict

    @property
    def refusal(self) -> Reason:
        return self._session.refusal

    def offer(self, arrival: Arrival) -> Verdict | None:
        return self._session.offer_for(arrival, self._message, (self.verdict,))

    def line_up(self, arrival: Arrival, deadline: float | None) -> asyncio.Future[Verdict | None]:
        return self._session.line_up_for(arrival, self._message, (self.verdict,), deadline)

    def waiting(self) -> int:
        return self._session.waiting()


class Node:
    """A router, its workers and its sessions with other nodes.

    >>> async def main():
    ...     async with Node("garage") as node:
    ...         @node.worker("echo")
    ...         async def echo(message, context):
    ...             await context.reply(message.payload)
    ...         answer = await node.request("echo", b"hello")
    ...         return answer.payload
    >>> asyncio.run(main())
    b'hello'
    """

    def __init__(
        self,
        name: str,
        *,
        transports: Iterable[Transport] | None = None,
        token: str | bytes | None = None,
        limits: Limits | None = None,
        hop_limit: int = HOP_LIMIT,
        dial_for_peers: bool = False,
        hub: bool = False,
        access: Access | None = None,
        journal: str | Path | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name = name
        self.access = access
        self.router = Router(hop_limit=hop_limit)
        self._read_clock = clock
        self._latest = 0
        self._purge_at = 0
        self.new_id = new_ids()
        self._routes: dict[str, Route] = {}
        self._receivers: dict[bytes, Receiver] = {}
        self._workers: dict[str, Worker] = {}
        self._carriers: dict[int, Carrier] = {}
        self.observers: list[Observer] = []
        self._closing = self._closed = False
        self.limits = limits or Limits()
        self.hierarchy = Hierarchy(self, hub=hub)
        self.multicasts = Multicasts(self)
        self.registry = Registry(self)
        self._absences = Absences(self, self._take)
        self._connections = Connections(
            self, self.limits, _secret(token), dial_for_peers=dial_for_peers
        )
        for transport in transports if transports is not None else (Tcp(),):
            self._connections.use(transport)
        self._journal = None if journal is None else self._start_journal(journal)

    async def __aenter__(self) -> Self:
        self._connections.start_broadcasters()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # Workers

    def worker(
        self, *names: str, inbox: int = INBOX, passing: bool = False, visible: bool = False
    ) -> Callable[[_H], _H]:
        """Make a function, or a class with `__call__`, the handler of these addresses.

        A message whose route goes on behind the worker is forwarded without it (WK-4), unless it
        wants to see the `passing` ones as well. What a `visible` one publishes is for everybody
        (MC-10).
        """

        def start(handler: _H) -> _H:
            made: Any = handler() if inspect.isclass(handler) else handler
            self.start_worker(names, made, inbox=inbox, passing=passing, visible=visible)
            return handler

        return start

    def start_worker(
        self,
        names: tuple[str, ...],
        handler: Handler,
        *,
        inbox: int = INBOX,
        passing: bool = False,
        visible: bool = False,
        reserved: bool = False,
    ) -> Worker:
        """Start a worker; each of its names becomes a local routing entry.

        Names that begin with `waystation.` are `reserved` for what the node offers itself.
        """
        if not names or inbox < 1 or not callable(handler):
            raise LocalError(
                f"a worker with the names {quote(names)}, room for {quote(inbox)} messages and the "
                f"handler {quote(handler)}",
                rule="WK-1",
                hint="give at least one name, room for one message, and something to call",
            )
        free = (self.free_address(name, reserved=reserved) for name in names)
        addresses = tuple(dict.fromkeys(free))
        if len(addresses) < len(names):
            raise LocalError(
                f"a worker has one of the names {quote(names)} twice",
                rule="WK-1",
                hint="once does",
            )
        worker = Worker(self, addresses, handler, inbox, passing=passing)
        for address in addresses:
            self._workers[address.name] = worker
            entry = RoutingEntry(address.name, address, local=True, visible=visible)
            self.add_receiver(address, worker.doors[address.data], entry)
        return worker

    async def stop_worker(self, name: str) -> None:
        """Stop the worker of this name, with all its names; what waits for it has no route."""
        worker = self._workers.get(Address.parse(name).name)
        if worker is None:
            raise LocalError(
                f"there is no worker {quote(name)}", rule="WK-1", hint="start it first"
            )
        for address in worker.addresses:
            del self._workers[address.name]
            self.remove_receiver(address)
        worker.task.cancel()
        await asyncio.wait([worker.task])
        self._drop_all(worker, Reason.NO_ROUTE)

    # Other nodes

    def use(self, transport: Transport) -> None:
        """Carry messages over one more transport; its type becomes routable."""
        self._connections.use(transport)

    def register_type(self, name: str, carrier: Carrier, number: int | None = None) -> int:
        """Route addresses of a type: `carrier` takes messages there (AD-2)."""
        number = self.router.types.register(name, number)
        self._carriers[number] = carrier
        return number

    async def listen(
        self, place: str, *, token: str | bytes | None = None, outside: bool = False
    ) -> Listening:
        """Let peers connect: `tcp://127.0.0.1:4000`; port 0 takes a free one.

        Who comes in from `outside` is no leaf but reached over a global transport: its requests
        leave a way back to it for as long as they live (RE-13), and what it publishes goes to the
        subscribers here and no further (MC-11).
        """
        if self.hierarchy.is_hub:
            self.registry.serve()
        return await self._connections.listen(place, _secret(token), outside=outside)

    async def connect(
        self,
        *places: str,
        name: str | None = None,
        token: str | bytes | None = None,
        wait: float | None = 10.0,
        keep: bool = True,
        parent: bool = False,
    ) -> Session:
        """Open a session with a peer, under a local name that stays.

        Of several places of the peer the first that answers is taken. A session that is kept gets a
        new link by itself whenever it loses the one it has. Returns when it is open; raises
        UnreachableError after `wait` seconds. With None it returns at once and goes on trying.

        With `parent` this node is a leaf of that peer, which must be a hub: it announces its
        participants and subscriptions there, publishes there, and asks there for participants that
        it does not know.
        """
        return await self._connections.connect(
            places, name, _secret(token), wait=wait, keep=keep, parent=parent
        )

    @property
    def sessions(self) -> list[Session]:
        """The sessions that have a link."""
        return list(self._connections.sessions.values())

    # Routes

    def put_route(self, entry: RoutingEntry) -> RouteChange:
        """Say where a participant elsewhere is; the rules decide whether that counts (RE)."""
        at = self.tick()
        if at >= self._purge_at:
            self._purge_at = at + PURGE
            self.router.table.purge(at // 1000)
        change = self.router.table.put(entry, at // 1000)
        self._tell_change(change, at)
        self._absences.appeared(entry.participant)
        return change

    def remove_route(self, participant: str) -> RouteChange | None:
        """Forget where a participant is; None when nothing was known."""
        if participant in self._workers:
            raise LocalError(
                f"{quote(participant)} is a worker of this node",
                rule="RE-11",
                hint="stop it with stop_worker",
            )
        return self.remove_entry(participant)

    # Finding providers

    def host_directory(self) -> None:
        """Be the node that knows the providers of the whole fleet."""
        self.registry.host()

    def ask_directory(self, route: str, *, address: str | None = None) -> None:
        """Use the directory that another node hosts: `tcp#10.0.0.1:4000`.

        `address` is where others reach this node; by default where it listens.
        """
        self.registry.ask_at(route, address)

    async def register(
        self,
        participant: str,
        domain: str,
        name: str,
        *,
        everywhere: bool = False,
        ttl: float | None = None,
    ) -> None:
        """List a participant of this node as a provider: here and at its parents, or everywhere."""
        await self.registry.register(participant, domain, name, everywhere=everywhere, ttl=ttl)

    async def unregister(self, participant: str) -> None:
        """Take a participant off all lists; its worker goes on."""
        await self.registry.unregister(participant)

    async def discover(
        self, domain: str, name: str, scope: Scope = Scope.LOCAL_THEN_GLOBAL
    ) -> list[Provider]:
        """Find who offers something; whoever is elsewhere can then be sent to by name (RE-14)."""
        return await self.registry.discover(domain, name, scope)

    # Broadcasts

    async def publish(
        self,
        broadcast: str,
        payload: bytes,
        *,
        partition: str | Iterable[str] = "",
        ttl: float | None = None,
        provider: str | None = None,
        visible: bool = True,
        policy: Policy = WAIT,
    ) -> list[Verdict]:
        """Send a message to whoever subscribed (MC); returns what became of it, for each of them.

        The provider is this node unless named otherwise. What it publishes leaves the hub that it
        is connected to only if it is `visible`. The policy says what becomes of a copy for a
        subscriber, or a parent, that has no room at the moment.
        """
        multicast_id = str(MulticastId.of(provider or self.name, broadcast, partition))
        if payload.__class__ is not bytes:
            raise no_bytes(payload)
        expiry = NEVER if ttl is None else self.expiry_in(ttl)
        onward = Route((Address(MULTICAST, multicast_id.encode()),))
        message = Message(onward, _NOWHERE, payload, self.new_id(), expiry)
        if self._closing:
            arrival = Arrival(message, self.tick(), multicast_id=multicast_id)
            return [self.end(arrival, Verdict.dropped(Reason.REFUSED))]
        return await self.multicasts.publish(multicast_id, message, policy, visible=visible)

    def subscribe(
        self,
        provider: str,
        broadcast: str,
        partition: str | Iterable[str] = "",
        *,
        callback: Callback | None = None,
        inbox: int = INBOX,
    ) -> Subscription:
        """Receive what matches from now on: by `async for`, or by calls of `callback`.

        In the partition `+` stands for one segment, and `*` at the end for any number of them.
        """
        if self._closing:
            raise LocalError(
                f"node {quote(self.name)} is closed", rule="MC-8", hint="subscribe before"
            )
        subscription = self.multicasts.subscribe(provider, broadcast, partition, inbox)
        if callback is not None:
            subscription.read_by(callback)
        return subscription

    # Sending

    async def send(
        self,
        route: str | Route,
        payload: bytes,
        *,
        ttl: float | None = None,
        policy: Policy = WAIT,
    ) -> Verdict:
        """Send a message that expects no answer; returns its outcome at this node (OB-3)."""
        onward = route if route.__class__ is Route else self._routes.get(route)  # type: ignore[arg-type]
        if onward is None:
            onward = self._parsed(route)
        if payload.__class__ is not bytes:
            raise no_bytes(payload)
        expiry = NEVER if ttl is None else self.expiry_in(ttl)
        message = Message(onward, _NOWHERE, payload, self.new_id(), expiry)
        now = self._read_clock() // 1000  # as `tick` does, without a call
        self._latest = now = now if now > self._latest else self._latest + 1
        arrival = Arrival(message, now)
        if self._closing:
            return self.end(arrival, Verdict.dropped(Reason.REFUSED))
        taken = self._take(arrival)
        return taken if taken.__class__ is Verdict else await self._wait(taken, arrival, policy)

    async def request(
        self,
        route: str | Route,
        payload: bytes,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109 - part of the question: it is the message's ttl too
        policy: Policy = WAIT,
    ) -> Message:
        """Send a message and wait for the answer to it.

        Raises UndeliverableError when the message is dropped on its way, here or at another node of
        ours, and NoAnswerError when nobody answered in time.
        """
        onward = self._parsed(route)
        if payload.__class__ is not bytes:
            raise no_bytes(payload)
        expiry = self.expiry_in(check_seconds(timeout))
        name = f"{REQUEST}{secrets.token_hex(8)}"  # whoever could guess it could answer
        address = Address(LOCAL, name.encode())
        answer = _Answer(self, Verdict(Outcome.DELIVERED, None, name, address))
        self.add_receiver(address, answer, RoutingEntry(name, address, local=True))
        alarm = asyncio.get_running_loop().call_later(timeout, answer.give_up)
        message = Message(onward, Route((address,)), payload, self.new_id(), expiry)
        try:
            if isinstance(policy, Wait) and (policy.seconds is None or policy.seconds > timeout):
                policy = Wait(timeout, policy.persist)
            verdict = await self._route_unless_closing(message, policy)
            if verdict.reason is not None:
                raise UndeliverableError(str(onward), verdict.reason)
            found = await answer.message
        finally:
            alarm.cancel()
            self.remove_receiver(address, name)
        if found is None:
            raise NoAnswerError(str(onward), timeout)
        if isinstance(found, Undeliverable):
            raise UndeliverableError(str(onward), found.reason, found.node)
        return found

    @property
    def patience(self) -> Wait:
        """How long a worker waits by default for who gets its messages; others wait for it."""
        return self._connections.patience

    async def route(self, message: Message, policy: Policy = WAIT) -> Verdict:
        """Send a message to the first address of its onward route (AD-5)."""
        arrival = Arrival(message, self.tick())
        taken = self._take(arrival)
        return taken if taken.__class__ is Verdict else await self._wait(taken, arrival, policy)

    def post(self, message: Message, *, from_global: bool = False) -> Verdict:
        """Like `route`, but without waiting for anything."""
        arrival = Arrival(message, self.tick(), from_global)
        if self._closing:
            return self.end(arrival, Verdict.dropped(Reason.REFUSED))
        taken = self._take(arrival)
        return taken if isinstance(taken, Verdict) else self._no_room(taken, arrival)

    # Observing and closing

    def observe(self, observer: Observer) -> None:
        """Have a function called with everything that happens here, as it happens (OB-4)."""
        self.observers.append(observer)

    async def serve(self, *, drain: float = 5.0) -> None:
        """Run until this process is told to stop (SIGTERM, SIGINT), then close."""
        with stop_signals() as told:
            await told.wait()
            await self.close(drain=drain)

    async def close(self, *, drain: float = 5.0) -> None:
        """Let the workers finish what they have, `drain` seconds at the most, then stop them.

        From now on nothing new is taken, from here or from peers. What the workers send meanwhile
        still goes out. What was not handled in time is TRANSPORT_DOWN.
        """
        if self._closing:
            return
        self._closing = True
        self._connections.stop_listening()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + check_seconds(drain)
        workers = list(dict.fromkeys(self._workers.values()))
        # An event instead would have to be set for every message.
        while loop.time() < deadline and any(w.at_work for w in workers):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for worker in workers:
            worker.task.cancel()
        await asyncio.gather(*(worker.task for worker in workers), return_exceptions=True)
        self._closed = True
        for worker in workers:
            self._drop_all(worker, Reason.TRANSPORT_DOWN)
        for receiver in list(self._receivers.values()):
            if isinstance(receiver, _Answer):
                receiver.give_up(Reason.REFUSED)
        self._absences.turn_away_all()
        await self.registry.close()
        self.multicasts.close()
        await self._connections.close()
        await _turns(3)  # who was turned away tells how its message ended
        for worker in workers:
            for address in worker.addresses:
                self.remove_receiver(address)
        self._workers.clear()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    # For workers, sessions and transports

    def free_address(self, name: str, *, reserved: bool = False) -> Address:
        """The local address of this name, if nobody has it yet."""
        address = Address.parse(name, self.router.types.numbers)
        if address.type != LOCAL or (address.name.startswith(RESERVED) and not reserved):
            raise LocalError(
                f"{quote(name)} is no name for a worker or session",
                rule="WK-1",
                hint=f"give one of type 0 that does not begin with {' or '.join(RESERVED)}",
            )
        if address.data in self._receivers:
            raise LocalError(
                f"there is a worker or session {quote(name)} already",
                rule="WK-1",
                hint="choose another name, or stop that one",
            )
        return address

    def add_receiver(self, address: Address, receiver: Receiver, entry: RoutingEntry) -> None:
        """Send what is addressed to a local address to a receiver, and say so in the table."""
        self._receivers[address.data] = receiver
        self.put_route(entry)

    def remove_receiver(self, address: Address, name: str | None = None) -> None:
        """Undo it; `name` is that of the address, for whoever has it at hand."""
        del self._receivers[address.data]
        self.remove_entry(name or address.name)

    def arrival(self, message: Message) -> Arrival:
        """A message as it enters the node; `tick` was called for it or for those before it."""
        self._latest = at = self._latest + 1
        return Arrival(message, at)

    def arrive(self, message: Message, from_global: bool) -> asyncio.Future[Verdict | None] | None:
        """Let a message from a peer find its receiver; a future when that has no room yet."""
        self._latest = at = self._latest + 1
        arrival = Arrival(message, at, from_global)
        taken = self._take(arrival)
        return None if taken.__class__ is Verdict else self._hold_back(taken, arrival)

    def allows(self, message: Message, peer: str) -> bool:
        """Whether a peer may send along the route of a message: to every address in it."""
        return self.access is None or self.access.admits(peer, message.onward_route)

    def remember_sender(self, message: Message, session: Session) -> None:
        """Keep the way back to who asks from outside, for as long as the question lives (RE-13)."""
        back = message.return_route.addresses
        if len(back) < 2 or back[-1].type != LOCAL:
            return
        name = back[-1].name
        if name and not self.is_private(name) and self.hierarchy.may_add(session, name):
            session.participants.add(name)
            self.put_route(RoutingEntry.of_request(name, session.address, message.expiry))

    def end(self, arrival: Arrival, verdict: Verdict) -> Verdict:
        """Note how a message ended here. Called once for each, by whoever had it last (OB-1)."""
        if self.observers:
            self.tell(MessageRecord(arrival, verdict, self.tick()))
        if verdict.reason is not None:
            self._tell_asker(arrival.message, verdict.reason)
        return verdict

    def lose_all(self, lost: Iterable[tuple[Arrival, Verdicts]]) -> None:
        """Note that a link broke before it had written these, and tell who asked a question."""
        for arrival, verdicts in lost:
            for verdict in verdicts:
                recipient = verdict.recipient if arrival.multicast_id is not None else None
                self.end(arrival, Verdict.dropped(Reason.TRANSPORT_DOWN, recipient))

    def end_all(self, ended: Iterable[tuple[Arrival, Verdicts]]) -> None:
        """Note that all these messages ended at this moment."""
        if self.observers:
            at = self.tick()
            for arrival, verdicts in ended:
                self.tell(MessageRecord(arrival, verdicts[0], at))
                for verdict in verdicts[1:]:
                    self.tell(MessageRecord(arrival, verdict, at))

    def _tell_asker(self, message: Message, reason: Reason) -> None:
        """Answer a question that will have no other answer."""
        back = message.return_route.addresses
        if len(back) == 1:
            asker = self._receivers.get(back[0].data)
            if isinstance(asker, _Answer):
                asker.give_up(reason)
        elif wants_to_know(message, reason, REQUEST) and not self._closed:
            answer = error_answer(message, reason, self.name, self.new_id())
            arrival = Arrival(answer, self.tick())
            taken = self._take(arrival)
            if not isinstance(taken, Verdict):
                self._no_room(taken, arrival)

    def tell(self, record: Record) -> None:
        """Let the observers know; one that raises hurts nobody but itself."""
        for observer in self.observers:
            try:
                observer(record)
            except Exception:  # noqa: BLE001 - the node goes on, whatever it is
                _log.exception("an observer of node %s failed", self.name)

    def expiry_in(self, seconds: float | None) -> Expiry:
        """The instant so many seconds from now; NEVER for None."""
        if seconds is None:
            return NEVER
        return expiry_after(self.tick() // 1000, int(check_seconds(seconds) * 1000))

    def tick(self) -> int:
        """The instant, in microseconds: it never goes back, and never comes twice."""
        now = self._read_clock() // 1000
        if now <= self._latest:
            now = self._latest + 1
        self._latest = now
        return now

    # How a message finds its receiver

    def _take(self, arrival: Arrival) -> Any:
        """What becomes of a message: a Verdict, or the Receiver that has no room for it."""
        message = arrival.message
        addresses = message.onward_route.addresses
        if addresses:
            first = addresses[0]
            if first.type == LOCAL:
                receiver = self._receivers.get(first.data)
            elif first.type == MULTICAST:
                return self.multicasts.arrive(arrival)
            else:
                receiver = self._session_at(first, message)
            # A receiver has an entry that never expires, so the table need not be asked; the other
            # things that come first are looked at here.
            if (
                receiver is not None
                and (message.expiry is NEVER or arrival.received_at < message.expiry * 1000)
                and len(message.return_route.addresses) < self.router.hop_limit
                and not self._closed
            ):
                verdict = receiver.offer(arrival)
                return receiver if verdict is None else verdict
        return self._decide(arrival)

    def _session_at(self, place: Address, message: Message) -> Session | None:
        """The open session to a place, if the message may use it."""
        session = self._connections.by_place.get(place)
        return None if session is None or self._is_foreign(message) else session

    def _decide(self, arrival: Arrival) -> Verdict | Receiver:
        if self._closed:
            return self.end(arrival, Verdict.dropped(Reason.REFUSED))
        verdict = self.router.decide(arrival.message, arrival.received_at // 1000)
        if verdict.reason is Reason.NO_ROUTE and verdict.recipient is not None:
            return self._absences.of(verdict.recipient, Reason.NO_ROUTE, verdict.recipient)
        if verdict.reason is not None:
            return self.end(arrival, verdict)
        return self._carry(arrival, verdict)

    def _carry(self, arrival: Arrival, verdict: Verdict) -> Verdict | Receiver:
        """Take a message out of the node."""
        message, address = arrival.message, verdict.address
        assert address is not None  # what is not dropped goes somewhere
        carrier = self._carriers.get(address.type)
        if address.type == LOCAL:
            behind = self._receivers.get(address.data)
            if isinstance(behind, Session):  # a participant that a leaf or a parent told of
                return self._depart(behind, arrival, verdict)
            reason: Reason | None = Reason.NO_ROUTE
        elif carrier is not None:
            reason = carrier(message, address)
        elif self._connections.transport(address.type) is None:
            reason = Reason.UNKNOWN_TYPE
        elif message.onward_route.first == address and self._is_foreign(message):
            reason = Reason.REFUSED  # peers do not choose whom this node connects to
        else:
            session = self._connections.reach(address)
            if session is not None:
                self._absences.appeared(address)  # what waits for it was sent before
                return self._depart(session, arrival, verdict)
            return self._absences.of(address, Reason.TRANSPORT_DOWN, verdict.recipient)
        if reason is not None:
            verdict = Verdict.dropped(reason, verdict.recipient)
        return self.end(arrival, verdict)

    def _depart(self, session: Session, arrival: Arrival, verdict: Verdict) -> Verdict | Receiver:
        message = arrival.message
        receiver: Receiver = session
        if message.onward_route.first != verdict.address:  # a participant at that place
            receiver = _Departure(session, session.outbound(message), verdict)
        taken = receiver.offer(arrival)
        return receiver if taken is None else taken

    def _is_foreign(self, message: Message) -> bool:
        """Whether a peer may have sent the message, and this node does not dial for peers.

        What comes from here has only workers and requests of this node in its return route.
        """
        if self._connections.dial_for_peers:
            return False
        receivers = self._receivers
        return any(
            hop.type != LOCAL or receivers.get(hop.data).__class__ in _NOT_FROM_HERE
            for hop in message.return_route.addresses
        )

    # Waiting

    async def _route_unless_closing(self, message: Message, policy: Policy) -> Verdict:
        if self._closing:
            return self.end(Arrival(message, self.tick()), Verdict.dropped(Reason.REFUSED))
        return await self.route(message, policy)

    async def _wait(self, receiver: Receiver, arrival: Arrival, policy: Policy) -> Verdict:
        if isinstance(policy, Fail) or self._is_gone(receiver, policy):
            return self._no_room(receiver, arrival)
        if isinstance(policy, Queue):
            return self._park(receiver, arrival, policy)
        room = self._line_up(receiver, arrival, policy)
        try:
            verdict = await room
        except asyncio.CancelledError:
            if room.cancelled() and not got_in(room):
                self._no_room(receiver, arrival)  # the sender takes the message with it
            raise
        return self._gave_up(receiver, arrival, policy) if verdict is None else verdict

    def _is_gone(self, receiver: Receiver, policy: Wait | Queue) -> bool:
        """Whether nobody is there, nobody can be asked, and the sender does not want to wait."""
        return (
            isinstance(receiver, Absence) and not policy.persist and not receiver.can_be_asked_for
        )

    def _line_up(
        self, receiver: Receiver, arrival: Arrival, policy: Wait | Queue
    ) -> asyncio.Future[Verdict | None]:
        seconds = policy.seconds
        if policy.persist:
            seconds = waits_until(arrival, seconds, self.tick())
            return self._absences.pursue(receiver, arrival, self.deadline(seconds))
        if isinstance(receiver, Absence):
            seconds = QUESTION_TIME if seconds is None else min(seconds, QUESTION_TIME)
        return receiver.line_up(arrival, self.deadline(seconds))

    def _park(self, receiver: Receiver, arrival: Arrival, policy: Queue) -> Verdict:
        """Keep a message for a receiver without making its sender wait (WK-6)."""
        recipient = receiver.verdict.recipient
        if receiver.waiting() >= PARKED:
            return self.end(arrival, Verdict.dropped(Reason.QUEUE_FULL, recipient))
        deadline = asyncio.get_running_loop().time() + check_seconds(policy.seconds)
        room = self._line_up(receiver, arrival, policy)

        def expire(room: asyncio.Future[Verdict | None]) -> None:
            if room.result() is not None:
                return
            if asyncio.get_running_loop().time() < deadline - _TIMER_SLACK:
                self._gave_up(receiver, arrival, policy)
            else:
                self.end(arrival, Verdict.dropped(Reason.EXPIRED, recipient))

        room.add_done_callback(expire)
        return self.end(arrival, Verdict(Outcome.QUEUED, None, recipient))

    def _hold_back(
        self, receiver: Receiver, arrival: Arrival
    ) -> asyncio.Future[Verdict | None] | None:
        """Keep a peer's message until there is room for it, and the peer with it."""
        if isinstance(receiver, Absence):
            self._keep_for_absent(receiver, arrival)
            return None
        room = receiver.line_up(arrival, self.deadline(self.limits.stall))

        def give_up(room: asyncio.Future[Verdict | None]) -> None:
            if room.result() is None:
                self._no_room(receiver, arrival)

        room.add_done_callback(give_up)
        return room

    def _keep_for_absent(self, absence: Absence, arrival: Arrival) -> None:
        """Keep a peer's message for somebody who may appear; the peer goes on meanwhile."""
        policy = Wait(self.limits.appear, persist=self.limits.appear > 0)
        if self._is_gone(absence, policy):
            self._no_room(absence, arrival)
            return
        if self._absences.waiting >= PARKED:  # for all names: a peer can make up any number
            self.end(arrival, Verdict.dropped(Reason.QUEUE_FULL, absence.verdict.recipient))
            return
        if not policy.persist:
            policy = WAIT
        room = self._line_up(absence, arrival, policy)

        def give_up(room: asyncio.Future[Verdict | None]) -> None:
            if room.result() is None:
                self._no_room(absence, arrival)

        room.add_done_callback(give_up)

    def _gave_up(self, receiver: Receiver, arrival: Arrival, policy: Wait | Queue) -> Verdict:
        """End a message that waited as long as it could, or for a node that closes."""
        expiry, seconds = arrival.message.expiry, policy.seconds
        lived_out = seconds is None or arrival.received_at / 1000 + seconds * 1000 >= expiry
        if policy.persist and expiry != NEVER and lived_out and not self._closed:
            return self.end(arrival, Verdict.dropped(Reason.EXPIRED, receiver.verdict.recipient))
        return self._no_room(receiver, arrival)

    def _no_room(self, receiver: Receiver, arrival: Arrival) -> Verdict:
        reason = receiver.refusal
        if isinstance(receiver, Absence) and arrival.message.expired(self.tick() // 1000):
            reason = Reason.EXPIRED
        return self.end(arrival, Verdict.dropped(reason, receiver.verdict.recipient))

    def _drop_all(self, worker: Worker, reason: Reason) -> None:
        """End what a stopped worker did not come to."""
        for arrival in worker.inbox.empty():
            recipient = arrival.message.onward_route.addresses[0].name
            self.end(arrival, Verdict.dropped(reason, recipient))

    def deadline(self, seconds: float | None) -> float | None:
        """The instant of the event loop's clock so many seconds from now."""
        if seconds is None:
            return None
        return asyncio.get_running_loop().time() + check_seconds(seconds)

    def _parsed(self, route: str | Route) -> Route:
        if isinstance(route, Route):
            return route
        found = self._routes.get(route)
        if found is None:
            self.router.types.know_usual(route)
            found = Route.parse(route, self.router.types.numbers)
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            self._routes[route] = found
        return found

    def _start_journal(self, directory: str | Path) -> Journal:
        from waystation.journal import Journal  # noqa: PLC0415 - it needs pyarrow

        journal = Journal(directory, self.name)
        self.observe(journal.note)
        return journal

    def remove_entry(self, participant: str) -> RouteChange | None:
        """Forget an entry, whosever it is."""
        at = self.tick()
        change = self.router.table.remove(participant, at // 1000)
        if change is not None:
            self._tell_change(change, at)
        return change

    def remove_routes_over(self, address: Address) -> list[RouteChange]:
        """Forget every entry that points at a session, since it ended (RE-12)."""
        at = self.tick()
        changes = self.router.table.remove_address(address, at // 1000)
        for change in changes:
            self._tell_change(change, at)
        return changes

    def ask_for_absent(self) -> None:
        """Ask the parents for everybody whom messages wait for."""
        self._absences.ask_again()

    def own_address(self) -> str | None:
        """Where others reach this node, as an address; None when it listens nowhere."""
        return self._connections.own_address()

    def is_own_name(self, name: str) -> bool:
        """Whether a name belongs to this node itself, so that no leaf can have it."""
        return name.startswith(RESERVED) or name.encode() in self._receivers

    def is_private(self, name: str) -> bool:
        """Whether a name means something only inside this node."""
        return name.startswith(RESERVED)

    def is_worker(self, name: str) -> bool:
        """Whether there is a worker of this name."""
        return name in self._workers

    def receiver_at(self, address: Address) -> Receiver | None:
        """Who gets what is addressed there, if that can be found out now."""
        if address.type == LOCAL:
            return self._receivers.get(address.data)
        if self._connections.transport(address.type) is None:
            return None
        return self._connections.reach(address)

    def _tell_change(self, change: RouteChange, at: int) -> None:
        if self.observers:
            self.tell(ChangeRecord(change, at))
        if self.hierarchy.parents or self.hierarchy.is_hub:
            self.hierarchy.heard_of(change)
        if self.router.has_global_transport and change.accepted:
            self.multicasts.provider_changed(change.entry.participant)


async def _turns(number: int) -> None:
    """Let everything that is ready happen, so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


def _secret(token: str | bytes | None) -> bytes | None:
    if token is None or isinstance(token, bytes):
        return token
    return token.encode()
