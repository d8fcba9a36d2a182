"""Workers: handlers with addresses and an inbox, and what they get to see (WK-1 .. WK-5)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.node.inbox import Inbox
from waystation.node.policy import Policy

if TYPE_CHECKING:
    from waystation.node.node import Node

PATIENCE: Final = 64
"""So many messages a worker handles in a row before the others get their turn."""

_log = logging.getLogger("waystation.node")

Handler: TypeAlias = Callable[[Message, "Context"], Awaitable[Any] | Any]


class Context(Struct, frozen=True, gc=False):
    """What a worker's handler gets beside the message (WK-1).

    `address` is the one that the message was sent to.
    """

    node: Node
    address: Address
    message: Message

    async def reply(
        self, payload: bytes, *, ttl: float | None = None, policy: Policy | None = None
    ) -> Verdict:
        """Answer along the return route (WK-3).

        By default it waits for room there as long as the node's limits say, here as below.
        """
        node = self.node
        answer = self.message.answered(
            self.address, payload, id=node.new_id(), expiry=node.expiry_in(ttl)
        )
        return await node.route(answer, policy or node.patience)

    async def forward(self, own: Address | None = None, *, policy: Policy | None = None) -> Verdict:
        """Send the message on to the next address of its route (WK-2)."""
        node = self.node
        return await node.route(self.message.forwarded(own), policy or node.patience)

    async def reroute(self, onward: Route, back: Route, *, policy: Policy | None = None) -> Verdict:
        """Send the message on along other routes (WK-7)."""
        node = self.node
        return await node.route(self.message.rerouted(onward, back), policy or node.patience)


class _Door:
    """One address of a worker: the way into its inbox, and the verdict on who got in."""

    __slots__ = ("_inbox", "_items", "_line", "verdict")

    refusal: Final = Reason.QUEUE_FULL

    def __init__(self, address: Address, inbox: Inbox[Arrival]) -> None:
        self.verdict = Verdict(Outcome.DELIVERED, None, address.name, address)
        self._inbox = inbox
        self._items = inbox.items
        self._line = inbox.line

    def offer(self, arrival: Arrival) -> Verdict | None:
        inbox = self._inbox
        if self._line or len(self._items) >= inbox.capacity:
            return self.verdict if inbox.offer(arrival) else None
        self._items.append(arrival)  # as `inbox.offer` does, without a call
        if inbox.reader is not None:
            inbox.wake_reader()
        return self.verdict

    def line_up(self, arrival: Arrival, deadline: float | None) -> asyncio.Future[Verdict | None]:
        return self._inbox.line_up(arrival, self.verdict, deadline)

    def waiting(self) -> int:
        return len(self._inbox.waiting.line)


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
        self.doors = {address.data: _Door(address, self.inbox) for address in addresses}
        self._busy = False
        self._node = node
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - of an object that can be called
        )
        self._passing = passing
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._run(), name=f"waystation worker {addresses[0].name}")

    @property
    def at_work(self) -> bool:
        """Whether it handles a message or has one to handle."""
        return self._busy or len(self.inbox) > 0

    async def _run(self) -> None:
        # One function, since a call more for each message would be a tenth of its way.
        inbox, node, handler, passing = self.inbox, self._node, self._handler, self._passing
        take, items, is_async, observers = inbox.take, inbox.items, self._is_async, node.observers
        while True:
            await inbox.filled()
            self._busy = True
            for _ in range(PATIENCE):
                arrival = take()
                message = arrival.message
                addresses = message.onward_route.addresses
                try:
                    if message.expiry is not NEVER and message.expired(node.tick() // 1000):
                        self._note_drop(arrival, Reason.EXPIRED)
                    elif passing or len(addresses) == 1:
                        result = handler(message, Context(node, addresses[0], message))
                        if is_async or (result is not None and inspect.isawaitable(result)):
                            await result
                        if observers:
                            node.end(arrival, self.doors[addresses[0].data].verdict)
                    else:  # WK-4
                        await node.route(message.forwarded(), node.patience)
                        node.end(arrival, self.doors[addresses[0].data].verdict)
                except asyncio.CancelledError:  # stopped in the middle
                    self._note_drop(arrival, Reason.FAILED)
                    raise
                except Exception:  # noqa: BLE001 - whatever a handler raises costs this one message
                    name = addresses[0].name
                    _log.exception("worker %s failed on message %s", name, message.id)
                    self._note_drop(arrival, Reason.FAILED)
                if not items:
                    break
            self._busy = False
            await asyncio.sleep(0)

    def _note_drop(self, arrival: Arrival, reason: Reason) -> None:
        recipient = arrival.message.onward_route.addresses[0].name
        self._node.end(arrival, Verdict.dropped(reason, recipient))
