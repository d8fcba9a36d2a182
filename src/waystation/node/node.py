"""A node: a router and its workers, in one process and one event loop (AD, WK).

Messages are passed on by plain calls: a send looks the recipient up and puts the message into its
inbox, and each worker has one task that empties its own. Nothing is created per message but the
message itself and what its handler gets to see.

What the outcomes mean: a message is DELIVERED when its worker has handled it. `send` returns as
soon as it is accepted, with the verdict that holds unless the worker fails; the listeners hear how
it ended, exactly once (OB-1).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

from msgspec import Struct

from waystation.core.address import LOCAL, Address, Route
from waystation.core.expiry import NEVER, Expiry, expiry_after
from waystation.core.message import HOP_LIMIT, Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.router import Router
from waystation.core.routing import RouteChange, RoutingEntry
from waystation.errors import LocalError, NoAnswerError, UndeliverableError, shown
from waystation.node.inbox import Inbox
from waystation.node.policy import WAIT, Policy, Queue, Wait, check_seconds

INBOX: Final = 1_000
"""How many messages wait for a worker before its senders have to."""

PATIENCE: Final = 64
"""So many messages a worker handles in a row before the others get their turn."""

_NOWHERE: Final = Route()
_log = logging.getLogger("waystation.node")


class Record(Struct, frozen=True, gc=False):
    """How a message ended at this node: what the listeners hear (OB-4)."""

    arrival: Arrival
    verdict: Verdict
    at: int


Observer: TypeAlias = Callable[[Record | RouteChange], None]
Handler: TypeAlias = Callable[[Message, "Context"], Awaitable[Any] | Any]
Carrier: TypeAlias = Callable[[Message, Address], Reason | None]
"""Takes a message to an address of its type; says why not, if it cannot."""


class Receiver(Protocol):
    """Whoever has a local address: a worker, or a request that waits for its answer."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on a message that it takes."""
        ...

    @property
    def offer(self) -> Callable[[Arrival], bool]:
        """Takes a message now, or says that there is no room."""
        ...

    @property
    def line_up(self) -> Callable[[Arrival, float | None], asyncio.Future[bool]]:
        """Takes a message as soon as there is room."""
        ...


class Context:
    """What a worker's handler gets beside the message (WK-1).

    `address` is the one that the message was sent to.
    """

    __slots__ = ("address", "message", "node")

    def __init__(self, node: Node, address: Address, message: Message) -> None:
        self.node = node
        self.address = address
        self.message = message

    async def reply(
        self, payload: bytes, *, ttl: float | None = None, policy: Policy = WAIT
    ) -> Verdict:
        """Answer along the return route (WK-3)."""
        answer = self.message.answered(
            self.address, payload, id=self.node.new_id(), expiry=self.node.expiry_in(ttl)
        )
        return await self.node.route(answer, policy)

    async def forward(self, own: Address | None = None, *, policy: Policy = WAIT) -> Verdict:
        """Send the message on to the next address of its route (WK-2)."""
        return await self.node.route(self.message.forwarded(own), policy)

    async def reroute(self, onward: Route, back: Route, *, policy: Policy = WAIT) -> Verdict:
        """Send the message on along other routes (WK-7)."""
        return await self.node.route(self.message.rerouted(onward, back), policy)


class _Door:
    """One address of a worker: the way into its inbox, and the verdict on who got in."""

    __slots__ = ("line_up", "offer", "verdict")

    def __init__(self, address: Address, inbox: Inbox[Arrival]) -> None:
        self.verdict = Verdict(Outcome.DELIVERED, None, address.name, address)
        self.offer = inbox.offer
        self.line_up = inbox.line_up


class Worker:
    """A handler with one or more addresses and an inbox, run by one task (WK-5)."""

    def __init__(
        self,
        node: Node,
        addresses: tuple[Address, ...],
        handler: Handler,
        capacity: int,
        *,
        passing: bool,
    ) -> None:
        self.addresses = addresses
        self.inbox: Inbox[Arrival] = Inbox(capacity)
        self.doors = {address.data: _Door(address, self.inbox) for address in self.addresses}
        self._busy = False
        self._node = node
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._passing = passing
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._run(), name=f"waystation worker {addresses[0].name}")

    async def _run(self) -> None:
        inbox = self.inbox
        while True:
            await inbox.filled()
            self._busy = True
            for _ in range(PATIENCE):
                await self._handle(inbox.take())
                if not len(inbox):
                    break
            self._busy = False
            await asyncio.sleep(0)

    @property
    def at_work(self) -> bool:
        """Whether it handles a message or has one to handle."""
        return self._busy or len(self.inbox) > 0

    async def _handle(self, arrival: Arrival) -> None:
        message = arrival.message
        addresses = message.onward_route.addresses
        verdict = self.doors[addresses[0].data].verdict
        try:
            if len(addresses) > 1 and not self._passing:  # WK-4
                await self._node.route(message.forwarded(), WAIT)
            else:
                result = self._handler(message, Context(self._node, addresses[0], message))
                if self._is_async:
                    await result
        except asyncio.CancelledError:  # stopped in the middle
            self._node.end(arrival, Verdict.dropped(Reason.FAILED, verdict.recipient))
            raise
        except Exception:  # noqa: BLE001 - whatever a handler raises costs this one message
            _log.exception("worker %s failed on message %s", verdict.recipient, message.id)
            verdict = Verdict.dropped(Reason.FAILED, verdict.recipient)
        self._node.end(arrival, verdict)


class _Answer:
    """The receiver of one answer."""

    def __init__(self, node: Node, address: Address) -> None:
        self.verdict = Verdict(Outcome.DELIVERED, None, address.name, address)
        self.message: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._node = node

    def offer(self, arrival: Arrival) -> bool:
        if not self.message.done():
            self.message.set_result(arrival.message)
        self._node.end(arrival, self.verdict)
        return True

    def line_up(self, arrival: Arrival, deadline: float | None) -> asyncio.Future[bool]:
        raise AssertionError((arrival, deadline))  # there is always room


class Node:
    """A router and its workers.

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
        hop_limit: int = HOP_LIMIT,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.name = name
        self.router = Router(hop_limit=hop_limit)
        self._read_clock = clock
        self._latest = 0
        # Ids have to be different, not secret: a random half for the node, a count for the rest.
        self._ids = f"{secrets.randbits(64):016x}"
        self._last_id = secrets.randbits(48)
        self._receivers: dict[bytes, Receiver] = {}
        self._workers: dict[str, Worker] = {}
        self._carriers: dict[int, Carrier] = {}
        self._observers: list[Observer] = []
        self._requests = 0
        self._closing = False

    async def __aenter__(self) -> Self:
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
        self, *names: str, inbox: int = INBOX, passing: bool = False
    ) -> Callable[[Handler], Handler]:
        """Make a function, or a method, the handler of these addresses.

        A message whose route goes on behind the worker is forwarded without it (WK-4), unless it
        wants to see the `passing` ones as well.
        """

        def start(handler: Handler) -> Handler:
            self.start_worker(names, handler, inbox=inbox, passing=passing)
            return handler

        return start

    def start_worker(
        self,
        names: tuple[str, ...],
        handler: Handler,
        *,
        inbox: int = INBOX,
        passing: bool = False,
    ) -> Worker:
        """Start a worker; each of its names becomes a local routing entry."""
        if not names or inbox < 1:
            raise LocalError(
                f"a worker with the names {shown(names)} and room for {inbox} messages",
                rule="WK-1",
                hint="give at least one name and room for one message",
            )
        addresses: dict[Address, None] = {}
        for name in names:
            address = Address.parse(name)
            if address.type != LOCAL:
                raise LocalError(
                    f"worker {shown(name)} has no local name", rule="WK-1", hint="give type 0"
                )
            if address in addresses or address.data in self._receivers:
                raise LocalError(
                    f"there is a worker {shown(name)} already", rule="WK-1", hint="choose a name"
                )
            addresses[address] = None
        worker = Worker(self, tuple(addresses), handler, inbox, passing=passing)
        for address in worker.addresses:
            self._receivers[address.data] = worker.doors[address.data]
            self._workers[address.name] = worker
            self._put(address)
        return worker

    async def stop_worker(self, name: str) -> None:
        """Stop the worker of this name, with all its names; what waits for it has no route."""
        worker = self._workers.get(Address.parse(name).name)
        if worker is None:
            raise LocalError(
                f"there is no worker {shown(name)}", rule="WK-1", hint="start it first"
            )
        for address in worker.addresses:
            del self._receivers[address.data], self._workers[address.name]
            self._remove(address)
        worker.task.cancel()
        await asyncio.wait([worker.task])
        self._drop_all(worker, Reason.NO_ROUTE)

    def register_type(self, name: str, carrier: Carrier, number: int | None = None) -> int:
        """Route addresses of a type: `carrier` takes messages there (AD-2)."""
        number = self.router.types.register(name, number)
        self._carriers[number] = carrier
        return number

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
        message = Message(
            self._parsed(route), _NOWHERE, payload, self.new_id(), self.expiry_in(ttl)
        )
        arrival = Arrival(message, self._clock())
        taken = self._hand_over(arrival)  # as `route` does, without a coroutine more
        return taken if isinstance(taken, Verdict) else await self._wait(taken, arrival, policy)

    async def request(
        self,
        route: str | Route,
        payload: bytes,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109 - part of the question: it is the message's ttl too
        policy: Policy = WAIT,
    ) -> Message:
        """Send a message and wait for the answer to it.

        Raises UndeliverableError when the message is dropped here, NoAnswerError when nobody
        answered in time.
        """
        onward = self._parsed(route)
        self._requests += 1
        address = Address(LOCAL, b"request-%d" % self._requests)
        answer = _Answer(self, address)
        self._receivers[address.data] = answer
        self._put(address)
        try:
            async with asyncio.timeout(check_seconds(timeout)):
                message = Message(
                    onward, Route((address,)), payload, self.new_id(), self.expiry_in(timeout)
                )
                verdict = await self.route(message, policy)
                if verdict.reason is not None:
                    raise UndeliverableError(str(onward), verdict.reason)
                return await answer.message
        except TimeoutError:
            raise NoAnswerError(str(onward), timeout) from None
        finally:
            del self._receivers[address.data]
            self._remove(address)

    async def route(self, message: Message, policy: Policy = WAIT) -> Verdict:
        """Send a message to the first address of its onward route (AD-5)."""
        arrival = Arrival(message, self._clock())
        taken = self._hand_over(arrival)
        return taken if isinstance(taken, Verdict) else await self._wait(taken, arrival, policy)

    def post(self, message: Message, *, from_global: bool = False) -> Verdict:
        """Like `route`, but without waiting for anything."""
        arrival = Arrival(message, self._clock(), from_global)
        taken = self._hand_over(arrival)
        return taken if isinstance(taken, Verdict) else self._no_room(taken, arrival)

    # Listening and closing

    def observe(self, observer: Observer) -> None:
        """Have a function called with every outcome and every change of a route (OB-4)."""
        self._observers.append(observer)

    async def close(self, *, drain: float = 5.0) -> None:
        """Let the workers finish what they have, `drain` seconds at the most, then stop them.

        From now on new messages are refused; what was not handled in time is TRANSPORT_DOWN.
        """
        self._closing = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + check_seconds(drain)
        workers = list(dict.fromkeys(self._workers.values()))
        # An event instead would have to be set for every message.
        while loop.time() < deadline and any(w.at_work for w in workers):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for worker in workers:
            worker.task.cancel()
        await asyncio.gather(*(worker.task for worker in workers), return_exceptions=True)
        for worker in workers:
            self._drop_all(worker, Reason.TRANSPORT_DOWN)
            for address in worker.addresses:
                self._remove(address)
        self._workers.clear()
        self._receivers.clear()

    def end(self, arrival: Arrival, verdict: Verdict) -> Verdict:
        """Note how a message ended here. Called once for each, by whoever had it last (OB-1)."""
        if self._observers:
            record = Record(arrival, verdict, self._clock())
            for observer in self._observers:
                observer(record)
        return verdict

    def new_id(self) -> str:
        """An id for a new message (AD-7)."""
        self._last_id = number = self._last_id + 1
        return f"{self._ids}{number:016x}"

    def expiry_in(self, seconds: float | None) -> Expiry:
        """The instant so many seconds from now; NEVER for None."""
        if seconds is None:
            return NEVER
        return expiry_after(self._clock(), int(check_seconds(seconds) * 1000))

    def _clock(self) -> int:
        """The instant, which never goes back (the core relies on it)."""
        self._latest = now = max(self._latest, self._read_clock())
        return now

    # How a message finds its receiver

    def _hand_over(self, arrival: Arrival) -> Verdict | Receiver:
        """What becomes of a message, or the receiver that has no room for it."""
        message = arrival.message
        addresses = message.onward_route.addresses
        if addresses and addresses[0].type == LOCAL:
            receiver = self._receivers.get(addresses[0].data)
            # A receiver has a local entry that never expires, so the table need not be asked;
            # the other things that come first are looked at here.
            if (
                receiver is not None
                and arrival.received_at < message.expiry
                and len(message.return_route.addresses) < self.router.hop_limit
                and not self._closing
            ):
                return receiver.verdict if receiver.offer(arrival) else receiver
        if self._closing:
            return self.end(arrival, Verdict.dropped(Reason.REFUSED))
        verdict = self.router.decide(message, arrival.received_at)
        if verdict.reason is not None:
            return self.end(arrival, verdict)
        return self._carry(arrival, verdict)

    async def _wait(self, receiver: Receiver, arrival: Arrival, policy: Policy) -> Verdict:
        if isinstance(policy, Queue):
            return self._park(receiver, arrival, policy.seconds)
        if not isinstance(policy, Wait):
            return self._no_room(receiver, arrival)
        room = receiver.line_up(arrival, self._deadline(policy.seconds))
        try:
            got_in = await room
        except asyncio.CancelledError:
            if room.cancelled():  # the sender no longer waits, and takes the message with it
                self._no_room(receiver, arrival)
            raise
        return receiver.verdict if got_in else self._no_room(receiver, arrival)

    def _drop_all(self, worker: Worker, reason: Reason) -> None:
        """End what a stopped worker did not come to."""
        for arrival in worker.inbox.empty():
            recipient = arrival.message.onward_route.addresses[0].name
            self.end(arrival, Verdict.dropped(reason, recipient))

    def _no_room(self, receiver: Receiver, arrival: Arrival) -> Verdict:
        return self.end(arrival, Verdict.dropped(Reason.QUEUE_FULL, receiver.verdict.recipient))

    def _carry(self, arrival: Arrival, verdict: Verdict) -> Verdict:
        address = verdict.address
        assert address is not None  # what is not dropped goes somewhere
        carrier = self._carriers.get(address.type)
        if carrier is None:
            return self.end(arrival, Verdict.dropped(Reason.UNKNOWN_TYPE, verdict.recipient))
        reason = carrier(arrival.message, address)
        if reason is not None:
            verdict = Verdict.dropped(reason, verdict.recipient)
        return self.end(arrival, verdict)

    def _park(self, receiver: Receiver, arrival: Arrival, seconds: float) -> Verdict:
        """Keep a message for a receiver without making its sender wait (WK-6)."""
        recipient = receiver.verdict.recipient
        room = receiver.line_up(arrival, self._deadline(seconds))

        def expire(room: asyncio.Future[bool]) -> None:
            if not room.result():
                self.end(arrival, Verdict.dropped(Reason.EXPIRED, recipient))

        room.add_done_callback(expire)
        return self.end(arrival, Verdict(Outcome.QUEUED, None, recipient))

    def _deadline(self, seconds: float | None) -> float | None:
        if seconds is None:
            return None
        return asyncio.get_running_loop().time() + check_seconds(seconds)

    def _parsed(self, route: str | Route) -> Route:
        return route if isinstance(route, Route) else Route.parse(route, self.router.types.numbers)

    def _put(self, address: Address) -> None:
        entry = RoutingEntry(address.name, address, local=True)
        self._tell(self.router.table.put(entry, self._clock()))

    def _remove(self, address: Address) -> None:
        change = self.router.table.remove(address.name, self._clock())
        if change is not None:
            self._tell(change)

    def _tell(self, change: RouteChange) -> None:
        for observer in self._observers:
            observer(change)
