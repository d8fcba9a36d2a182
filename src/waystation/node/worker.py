"""Workers: handlers with addresses and an inbox, and what they get to see (WK-1 .. WK-5)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from waystation.core.address import Address, Route
from waystation.core.custody import CustodyArrival
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.errors import LocalError
from waystation.net.tasks import COUNTS, Begun, begin
from waystation.node.counting import MessageInbox
from waystation.node.policy import LINE, Policy
from waystation.node.receiver import InboxReceiver

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.node import Node

BATCH: Final = 64
"""Maximum number of messages that a worker handles before other tasks get their turn."""

ENDS: Final = (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
"""How a handler can end, other than by returning."""

_RETURNED_TEXT: Final = "a handler returned text; return bytes, such as text.encode()"

_log = logging.getLogger("waystation.node")

Handler: TypeAlias = Callable[[Message, "Context"], Awaitable[Any] | Any]


def check_handler(handler: Handler) -> None:
    """Raise a LocalError for a handler that cannot be called with a message and a context."""
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        name = getattr(handler, "__name__", "handler")
        raise LocalError(
            f"{name!r} cannot be called with a message and a context",
            rule="WK-1",
            hint=f"write `async def {name}(message, context)`",
        ) from None
    except ValueError:  # it does not tell what it takes
        return


class Context(Struct, frozen=True, gc=False):
    """What a worker's handler gets beside the message (WK-1).

    `address` is the one that the message was sent to. What the handler sends by it never waits,
    unless it is given a policy (FL-4): what finds no room stands in the line of its receiver, as
    long as that has room for it, and the verdict is QUEUED. Else it is dropped, QUEUE_FULL.

    A durable message may come again: `attempt` counts how often it may have been handled, with this
    time (DU-3). It is `late` if a later one of its sender came first (DU-4).
    """

    node: Node
    address: Address
    message: Message
    attempt: int = 1
    late: bool = False

    async def reply(
        self, payload: bytes, *, ttl: float | None = None, policy: Policy | None = None
    ) -> Verdict:
        """Reply along the return route (WK-3)."""
        node = self.node
        reply = self.message.reply_from(
            self.address, payload, id=node.new_id(), expiry=node.expiry_in(ttl)
        )
        return await node.route(reply, policy or LINE, replies_to=self.message.id)

    async def forward(self, own: Address | None = None, *, policy: Policy | None = None) -> Verdict:
        """Send the message on to the next address of its route (WK-2)."""
        return await self.node.route(self.message.forwarded(own), policy or LINE)

    async def reroute(self, onward: Route, back: Route, *, policy: Policy | None = None) -> Verdict:
        """Send the message on along other routes (WK-7)."""
        return await self.node.route(self.message.rerouted(onward, back), policy or LINE)


class WorkerAddress(InboxReceiver):
    """One address of a worker: the receiver that puts messages into the worker's inbox."""

    __slots__ = ("worker",)

    def __init__(self, worker: Worker, address: Address) -> None:
        super().__init__(Verdict(Outcome.DELIVERED, None, address.name, address), worker.inbox)
        self.worker = worker


class _State(Enum):
    IDLE = auto()
    BUSY = auto()
    STOPPED = auto()  # it ends as soon as the handler returns


_IDLE: Final = _State.IDLE
_BUSY: Final = _State.BUSY
_STOPPED: Final = _State.STOPPED


class Worker:
    """A handler with one or more addresses and an inbox, run by one task (WK-5)."""

    def __init__(
        self,
        node: Node,
        kernel: Kernel,
        addresses: tuple[Address, ...],
        handler: Handler,
        capacity: int,
        *,
        passing: bool,
    ) -> None:
        self.addresses = addresses
        self.inbox = MessageInbox(kernel.flow, capacity, addresses[0].name)
        self.receivers = {address.data: WorkerAddress(self, address) for address in addresses}
        self._state = _State.IDLE
        self._node = node
        self._kernel = kernel
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - of an object that can be called
        )
        self._passing = passing
        self._cut_off = Reason.FAILED
        self._begun: Begun | None = None  # the rest of what `_step` began
        self._context = copy_context()
        self.inbox.step = self._step
        self.task = kernel.tasks.start(
            self._run(), f"worker {addresses[0].name}", context=self._context
        )
        kernel.workers[self] = None
        self.task.add_done_callback(self._ended)

    def __repr__(self) -> str:
        names = ", ".join(address.name for address in self.addresses)
        return f"<Worker {names}: {len(self.inbox)} waiting, {self._state.name.lower()}>"

    @property
    def at_work(self) -> bool:
        """Whether it handles a message or has one to handle."""
        return self._state is not _State.IDLE or len(self.inbox) > 0

    @property
    def sees_passing(self) -> bool:
        """Whether it handles also messages whose route goes on behind it."""
        return self._passing

    def stop(self, cut_off: Reason) -> None:
        """Handle no more messages.

        A handler that is at work is cancelled, and its message ends for the reason `cut_off`,
        unless it stops its own worker: then it may finish.
        """
        self._state = _STOPPED
        self._cut_off = cut_off
        if self.task is not asyncio.current_task():
            self.task.cancel()

    async def _run(self) -> None:  # noqa: C901, PLR0912
        # One function, since one more call for each message would add a tenth to its cost.
        inbox, node, kernel, handler = self.inbox, self._node, self._kernel, self._handler
        items, receivers = inbox.items, self.receivers
        take = items.popleft
        observers, passing, is_async = kernel.observers, self._passing, self._is_async
        while self._state is not _STOPPED:
            self._state = _IDLE
            await self._filled()
            if self._state is not _STOPPED:
                self._state = _BUSY
            if self._begun is not None:
                begun, self._begun = self._begun, None
                await begun
            for _ in range(BATCH):
                if not items or self._state is _STOPPED:
                    break
                arrival = take()
                message = arrival.message
                if inbox.slow:
                    if inbox.has_huge:
                        inbox.keep_in_hand(arrival)
                    inbox.left -= 1
                    if inbox.left <= 0:
                        inbox.taken()
                addresses = message.onward_route.addresses
                try:
                    if message.expiry is not NEVER and (
                        arrival.__class__ is CustodyArrival
                        or message.expired(kernel.tick() // 1000)
                    ):
                        await self._handle_expiring(arrival)
                    elif passing or len(addresses) == 1:
                        result = handler(message, Context(node, addresses[0], message))
                        if is_async or (result is not None and inspect.isawaitable(result)):
                            result = await result
                        if result is not None:
                            if result.__class__ is str:
                                raise TypeError(_RETURNED_TEXT)
                            if result.__class__ is bytes and message.return_route.addresses:
                                await Context(node, addresses[0], message).reply(result)
                        if observers:
                            kernel.end(arrival, receivers[addresses[0].data].verdict)
                    else:  # WK-4
                        kernel.send_on(message.forwarded())
                        kernel.end(arrival, receivers[addresses[0].data].verdict)
                except ENDS as error:  # it costs one message
                    self._fail(arrival, error)
            inbox.let_go()
            await asyncio.sleep(0)

    async def _filled(self) -> None:
        """Return when there is something to do, or the worker was stopped in `_step`."""
        inbox = self.inbox
        while not (inbox.items or self._has_begun or self._state is _STOPPED):
            try:
                await inbox.woken()
            except asyncio.CancelledError as error:
                begun = self._begun
                if begun is None:
                    raise
                begun.interrupt(error)  # it is the handler that waits

    @property
    def _has_begun(self) -> bool:
        return self._begun is not None

    def _step(self) -> None:
        """Handle the message in the inbox at once, as far as that goes without waiting.

        A worker that has nothing to do need not be woken for that: the answer to a request is
        written before the event loop has taken another turn. What is to be waited for is left to
        the task.
        """
        inbox = self.inbox
        items = inbox.items
        if (
            len(items) != 1
            or inbox.slow
            or not inbox.is_read
            or self._state is not _IDLE
            or not self._is_plain(items[0])
            or asyncio.current_task() is not None
        ):
            inbox.wake_reader()
            return
        self._state = _BUSY
        arrival = items.popleft()
        self._begun = begin(self._handle(arrival), self.task, self._context)
        if not items:
            inbox.drained()
        if self._begun is not None or self._state is _STOPPED:
            inbox.wake_reader()
        else:
            self._state = _IDLE

    def _is_plain(self, arrival: Arrival) -> bool:
        """Whether a message is for the handler, and is not durable; it has just arrived."""
        addresses = arrival.message.onward_route.addresses
        return arrival.__class__ is not CustodyArrival and (self._passing or len(addresses) == 1)

    async def _handle(self, arrival: Arrival) -> None:
        """Handle a plain message, as `_run` does."""
        message = arrival.message
        address = message.onward_route.addresses[0]
        context = Context(self._node, address, message)
        try:
            result = self._handler(message, context)
            if self._is_async or (result is not None and inspect.isawaitable(result)):
                result = await result
            if result is not None:
                if result.__class__ is str:
                    raise TypeError(_RETURNED_TEXT)
                if result.__class__ is bytes and message.return_route.addresses:
                    await context.reply(result)
            if self._kernel.observers:
                self._kernel.end(arrival, self.receivers[address.data].verdict)
        except ENDS as error:  # it costs one message
            self._fail(arrival, error)

    async def _handle_expiring(self, arrival: Arrival) -> None:
        """Handle a durable message, which always expires; drop one that has expired."""
        message = arrival.message
        if message.expired(self._kernel.tick() // 1000):
            self._drop(arrival, Reason.EXPIRED)
            return
        assert isinstance(arrival, CustodyArrival)
        address = message.onward_route.addresses[0]
        attempt = arrival.attempt or 1
        context = Context(self._node, address, message, attempt, arrival.late)
        result = self._handler(message, context)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, str):
            raise TypeError(_RETURNED_TEXT)
        if isinstance(result, bytes) and message.return_route.addresses:
            await context.reply(result)
        arrival.settle(None)  # and recorded when that is on disk (DU-7)

    def _fail(self, arrival: Arrival, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self.task.cancelling():
            self._drop(arrival, self._cut_off)
            raise error  # else it was a task that the handler waited for
        self._drop(arrival, Reason.FAILED, error)
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error  # the program ends
        name, id = arrival.message.onward_route.addresses[0].name, arrival.message.id
        _log.error("worker %s failed on message %s", name, id, exc_info=error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Leave the node; if nobody stopped it, end its messages and free its names (FL-4)."""
        self._kernel.workers.pop(self, None)
        self.inbox.let_go()
        if self._state is not _STOPPED:
            self._state = _STOPPED
            COUNTS.failed += task.cancelled()  # else it was counted
            _log.error("worker %s ended, and nobody had stopped it", self.addresses[0].name)
            self._kernel.remove_worker(self)
            self.drop_all(Reason.NO_ROUTE)

    def drop_all(self, reason: Reason) -> None:
        """End what a stopped worker did not get to."""
        for arrival in self.inbox.empty():
            self._drop(arrival, reason)

    def _drop(self, arrival: Arrival, reason: Reason, error: BaseException | None = None) -> None:
        if isinstance(arrival, CustodyArrival):
            arrival.settle(reason, error)  # its custodian decides what becomes of it
            return
        recipient = arrival.message.onward_route.addresses[0].name
        self._kernel.drop(arrival, reason, recipient)
