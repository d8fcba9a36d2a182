"""The node as its users see it: workers, routes, requests, broadcasts, sessions (AD, WK).

Everything here checks what it is given and calls the kernel, or the part of the node whose business
it is. A node and its parts live in one process and one event loop.

What the outcomes mean: a message is DELIVERED when its worker has handled it, and FORWARDED when
the operating system has taken it. `send` returns as soon as it is accepted, with the verdict that
holds unless the worker or the link fails; the observers hear how it ended, exactly once (OB-1).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from waystation.core.access import Access
from waystation.core.address import Address, Route
from waystation.core.clock import Clock, current_clock
from waystation.core.directory import Provider, Scope
from waystation.core.expiry import NEVER, Expiry
from waystation.core.message import HOP_LIMIT, Arrival, Message, not_bytes_error
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.multicast import MulticastId
from waystation.core.outcome import Reason, Verdict
from waystation.core.routing import RouteChange, RoutingEntry
from waystation.errors import LocalError, NoReplyError, UndeliverableError, quote
from waystation.node.broadcasts import Callback, Subscription
from waystation.node.directory import Leave, Lookup, ProviderDirectory, Register
from waystation.node.flow import Snapshot
from waystation.node.kernel import Carrier, Kernel, Observer, Stage
from waystation.node.links import Limits, Listening
from waystation.node.policy import WAIT, Policy, Wait, check_seconds
from waystation.node.receiver import NoRoom
from waystation.node.requests import Undeliverable
from waystation.node.runner import stop_signals
from waystation.node.session import Session
from waystation.node.worker import Handler, Worker
from waystation.transports.tcp import Tcp
from waystation.transports.transport import Transport

if TYPE_CHECKING:
    from waystation.journal import Journal

INBOX: Final = 1_000
"""Default capacity of an inbox, in messages."""

_RUNNING: Final = Stage.RUNNING
_ROUTES: Final = 4_096  # how many parsed routes a node remembers
_NOWHERE: Final = Route()

_H = TypeVar("_H", bound=Callable[..., Any])


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
        clock: Clock | None = None,
    ) -> None:
        self._kernel = kernel = Kernel(
            name,
            hop_limit=hop_limit,
            clock=clock or current_clock(),
            limits=limits or Limits(),
            access=access,
            token=_secret(token),
            hub=hub,
            dial_for_peers=dial_for_peers,
        )
        self.name = name
        self.router = kernel.router
        self.new_id = kernel.new_id
        self._links = kernel.links
        self._directory = kernel.directory = ProviderDirectory(self, kernel)
        self._routes: dict[str, Route] = {}
        self._closing: asyncio.Task[None] | None = None
        for transport in transports if transports is not None else (Tcp(),):
            self._links.use(transport)
        self._journal: Journal | None = None
        if journal is not None:
            from waystation.journal import Journal  # noqa: PLC0415 - it needs pyarrow

            self._journal = Journal(journal, name)
            self.observe(self._journal.note)

    async def __aenter__(self) -> Self:
        self._links.start_broadcasters()
        return self

    async def __aexit__(self, *error: object) -> None:
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
                f"invalid worker: names {quote(names)}, inbox {quote(inbox)}, "
                f"handler {quote(handler)}",
                rule="WK-1",
                hint="give at least one name, an inbox of 1 or more, and something to call",
            )
        kernel = self._kernel
        free = (kernel.free_address(name, reserved=reserved) for name in names)
        addresses = tuple(dict.fromkeys(free))
        if len(addresses) < len(names):
            raise LocalError(
                f"duplicate name among those of a worker: {quote(names)}",
                rule="WK-1",
                hint="give each name once",
            )
        worker = Worker(self, kernel, addresses, handler, inbox, passing=passing)
        for address in addresses:
            entry = RoutingEntry(address.name, address, local=True, visible=visible)
            kernel.add_receiver(address, worker.receivers[address.data], entry)
        return worker

    async def stop_worker(self, name: str) -> None:
        """Stop the worker of this name, with all its names; what waits for it has no route.

        A handler may stop its own worker, which then ends when the handler returns.
        """
        worker = self._kernel.worker(Address.parse(name).name)
        if worker is None:
            raise LocalError(
                f"there is no worker {quote(name)}", rule="WK-1", hint="start it first"
            )
        self._kernel.remove_worker(worker)
        worker.stop(Reason.FAILED)
        try:
            if worker.task is not asyncio.current_task():
                await asyncio.wait([worker.task])
        finally:
            worker.drop_all(Reason.NO_ROUTE)

    # Other nodes

    def use(self, transport: Transport) -> None:
        """Carry messages over one more transport; its type becomes routable."""
        self._links.use(transport)

    def register_type(self, name: str, carrier: Carrier, number: int | None = None) -> int:
        """Route addresses of a type: `carrier` takes messages there (AD-2)."""
        number = self.router.types.register(name, number)
        self._kernel.carriers[number] = carrier
        return number

    async def listen(
        self, place: str, *, token: str | bytes | None = None, outside: bool = False
    ) -> Listening:
        """Let peers connect: `tcp://127.0.0.1:4000`; port 0 takes a free one.

        A peer that comes in from `outside` is reached over a global transport and never a leaf: its
        requests leave a way back to it for as long as they live (RE-13), and what it publishes goes
        to the subscribers here and no further (MC-11).
        """
        if self.is_hub:
            self._directory.serve()
        return await self._links.listen(place, _secret(token), outside=outside)

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
        return await self._links.connect(
            places, name, _secret(token), wait=wait, reconnects=keep, parent=parent
        )

    @property
    def is_hub(self) -> bool:
        """Whether leaves may announce their participants here."""
        return self._kernel.hierarchy.is_hub

    @property
    def sessions(self) -> list[Session]:
        """The sessions that have a link."""
        return list(self._links.sessions.values())

    @property
    def listening(self) -> list[Listening]:
        """Where peers connect."""
        return list(self._links.listening)

    @property
    def flow(self) -> Snapshot:
        """How much it holds of what was received, and who waits because of it (FL-1, FL-3)."""
        return self._kernel.flow.snapshot()

    @property
    def draining(self) -> bool:
        """Whether it takes nothing new any more, since it is being closed or is closed."""
        return self._kernel.stage is not _RUNNING

    # Routes

    def put_route(self, entry: RoutingEntry) -> RouteChange:
        """Put an entry for a participant elsewhere; the rules decide whether it is accepted (RE).

        Raises LocalError for an entry that this node could not follow: one that takes the name of
        a worker, session or subscriber of its own, or a local one without a session behind it.
        """
        return self._kernel.put_route(entry)

    def remove_route(self, participant: str) -> RouteChange | None:
        """Remove the entry of a participant elsewhere; None if there was none."""
        self._kernel.check_not_own(participant, rule="RE-11")
        return self._kernel.remove_route(participant)

    # Finding providers

    def host_directory(self) -> None:
        """Be the node that knows the providers of the whole fleet."""
        self._directory.host()

    def ask_directory(self, route: str, *, address: str | None = None) -> None:
        """Use the directory that another node hosts: `tcp#10.0.0.1:4000`.

        `address` is where others reach this node; by default where it listens.
        """
        self._directory.ask_at(route, address)

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
        expiry = self.expiry_in(ttl)
        ends = None if expiry == NEVER else int(expiry)
        provider = Provider(participant, domain, name, None, ends)
        await self._directory.do(Register(provider, everywhere))

    async def unregister(self, participant: str) -> None:
        """Take a participant off all lists; its worker goes on."""
        await self._directory.do(Leave(participant))

    async def discover(
        self, domain: str, name: str, scope: Scope = Scope.LOCAL_THEN_GLOBAL
    ) -> list[Provider]:
        """Find who offers something; whoever is elsewhere can then be sent to by name (RE-14)."""
        return await self._directory.do(Lookup(domain, name, scope))

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
            raise not_bytes_error(payload)
        kernel = self._kernel
        expiry = kernel.expiry_in(ttl)
        onward = Route((Address(MULTICAST, multicast_id.encode()),))
        message = Message(onward, _NOWHERE, payload, self.new_id(), expiry)
        if kernel.stage is not _RUNNING:
            arrival = Arrival(message, kernel.tick(), multicast_id=multicast_id)
            return [kernel.drop(arrival, Reason.REFUSED)]
        return await kernel.broadcasts.publish(multicast_id, message, policy, visible=visible)

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
        if self._kernel.stage is not _RUNNING:
            raise LocalError(
                f"node {quote(self.name)} is closed", rule="MC-8", hint="subscribe before"
            )
        subscription = self._kernel.broadcasts.subscribe(provider, broadcast, partition, inbox)
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
        """Send a message that expects no reply; returns its outcome at this node (OB-3).

        By default it waits for a worker or a link that has no room as long as it takes. For a
        session that has lost its link it waits 30 seconds (`Limits.reconnect`), and the message is
        then dropped, TRANSPORT_DOWN.
        """
        onward = route if route.__class__ is Route else self._routes.get(route)  # type: ignore[arg-type]
        if onward is None:
            onward = self._parsed(route)
        if payload.__class__ is not bytes:
            raise not_bytes_error(payload)
        kernel = self._kernel
        expiry = NEVER if ttl is None else kernel.expiry_in(ttl)
        new_id = self.new_id  # Python calls a variable sooner than what an attribute holds
        message = Message(onward, _NOWHERE, payload, new_id(), expiry)
        clock = kernel.pinned_clock
        if clock is None:
            now = kernel.read_clock() // 1000
        else:  # as `stamp` does, without a call
            boottime = clock.boottime
            passed = boottime()
            now = (passed + clock.ahead if passed < clock.steady_until else clock.read()) // 1000
        kernel.latest = now = now if now > kernel.latest else kernel.latest + 1
        arrival = Arrival(message, now)
        if kernel.stage is not _RUNNING:
            return kernel.drop(arrival, Reason.REFUSED)
        verdict = kernel.take(arrival)
        if type(verdict) is not NoRoom:
            return verdict
        return await kernel.waiting.wait(verdict.receiver, arrival, policy)

    async def request(
        self,
        route: str | Route,
        payload: bytes,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109 - part of the request: it is the message's ttl too
        policy: Policy = WAIT,
    ) -> Message:
        """Send a message and wait for the reply to it.

        Raises UndeliverableError when the message is dropped on its way, here or at another node of
        ours, and NoReplyError when nobody replied in time.
        """
        onward = self._parsed(route)
        if payload.__class__ is not bytes:
            raise not_bytes_error(payload)
        kernel = self._kernel
        expiry = kernel.expiry_in(check_seconds(timeout))
        if isinstance(policy, Wait) and (policy.seconds is None or policy.seconds > timeout):
            policy = Wait(timeout, policy.persist)
        id = self.new_id()
        request = kernel.requests.open(onward, id)
        alarm = asyncio.get_running_loop().call_later(timeout, request.give_up)
        message = Message(onward, request.back, payload, id, expiry)
        try:
            if kernel.stage is not _RUNNING:
                verdict = kernel.refuse(message)
            else:
                verdict = await self.route(message, policy)
            if verdict.reason is not None:
                raise UndeliverableError(str(onward), verdict.reason)
            reply = await request.reply
        finally:
            alarm.cancel()
            kernel.requests.close(request)
        if reply is None:
            raise NoReplyError(str(onward), timeout)
        if isinstance(reply, Undeliverable):
            raise UndeliverableError(str(onward), reply.reason, reply.node)
        return reply

    async def route(self, message: Message, policy: Policy = WAIT) -> Verdict:
        """Send a message to the first address of its onward route (AD-5)."""
        kernel = self._kernel
        arrival = Arrival(message, kernel.stamp())
        verdict = kernel.take(arrival)
        if type(verdict) is not NoRoom:
            return verdict
        return await kernel.waiting.wait(verdict.receiver, arrival, policy)

    def post(self, message: Message, *, from_global: bool = False) -> Verdict:
        """Send a message as `route` does, but without waiting for anything."""
        kernel = self._kernel
        if kernel.stage is not _RUNNING:
            return kernel.drop(Arrival(message, kernel.tick(), from_global), Reason.REFUSED)
        return kernel.post(message, from_global=from_global)

    def expiry_in(self, seconds: float | None) -> Expiry:
        """The expiry of a message that lives this many seconds from now; NEVER for None."""
        return self._kernel.expiry_in(seconds)

    def now(self) -> int:
        """The time by the node's clock, in milliseconds since the epoch; it never goes back."""
        return self._kernel.tick() // 1000

    @property
    def clock_offset_us(self) -> int:
        """How far the wall clock is ahead of the node's clock, in microseconds (TM-1)."""
        clock = self._kernel.clock
        return 0 if clock is None else clock.offset_us()

    @property
    def clock_slewing(self) -> bool:
        """Whether the node's clock runs faster or slower until it agrees with the wall clock."""
        clock = self._kernel.clock
        return clock is not None and clock.is_slewing

    @property
    def clock_off(self) -> bool:
        """Whether the wall clock is too far off for the node to follow it."""
        clock = self._kernel.clock
        return clock is not None and clock.is_off

    # Observing and closing

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Have a function called with everything that happens here, as it happens (OB-4).

        Returns a function that ends this.
        """
        self._kernel.observers.append(observer)
        return lambda: self._kernel.observers.remove(observer)

    async def serve(self, *, drain: float = 5.0) -> None:
        """Run until this process is told to stop (SIGTERM, SIGINT), then close."""
        with stop_signals() as told:
            await told.wait()
            await self.close(drain=drain)

    async def close(self, *, drain: float = 5.0) -> None:
        """Let the workers finish what they have, for at most `drain` seconds, then stop them.

        From now on nothing new is taken, from here or from peers. What the workers send meanwhile
        still goes out. What was not handled in time is TRANSPORT_DOWN.

        Returns when the node is closed, whoever closed it first. Only a handler of the node does
        not wait for that, since the node waits for the handler.
        """
        if self._closing is None:
            closing = self._close(check_seconds(drain))
            self._kernel.stage = Stage.DRAINING
            self._links.stop_listening()
            self._closing = self._kernel.tasks.start(closing, f"close {self.name}")
        current = asyncio.current_task()
        if not any(worker.task is current for worker in self._kernel.workers):
            await asyncio.shield(self._closing)

    async def _close(self, drain: float) -> None:
        kernel = self._kernel
        workers = await kernel.stop_workers(drain)
        kernel.close(workers)
        await self._directory.close()
        kernel.broadcasts.close()
        await self._links.close()
        for _ in range(3):  # who was rejected tells how its message ended
            await asyncio.sleep(0)
        for worker in workers:
            kernel.remove_worker(worker)
        kernel.requests.retire_idle()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    def _parsed(self, route: str | Route) -> Route:
        if isinstance(route, Route):
            return route
        found = self._routes.get(route)
        if found is None:
            self.router.types.reserve_usual(route)
            found = Route.parse(route, self.router.types.numbers)
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            self._routes[route] = found
        return found


def _secret(token: str | bytes | None) -> bytes | None:
    if token is None or isinstance(token, bytes):
        return token
    return token.encode()
