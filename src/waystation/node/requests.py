"""Requests that wait for their replies, and the error replies to those that were dropped.

A reply address that has had its reply serves the next request along the same route: its routing
entry stands already, and so do the routes in the memories of the wire. Only a reply that says what
it answers makes it free again, and only such a reply is taken at an address that served before; so
no second or late reply is ever taken for that of another request (docs/decisions/013).

An error reply is a message along the return route like any other. It comes from the reserved name
`waystation.undeliverable`, and its payload is a JSON object that names the reason and the node.
Only requests get one: any other message that is dropped leaves a record and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Arrival, Message, reply_id
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.routing import RoutingEntry
from waystation.node.deadlines import Deadlines
from waystation.node.receiver import ReadyReceiver

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

REQUEST_PREFIX: Final = "request-"
"""How the names begin under which requests wait for their replies."""

SENDER: Final = Address(LOCAL, b"waystation.undeliverable")

_PREFIX: Final = REQUEST_PREFIX.encode()
# Whoever asked has given up already, or the first copy of the question is on its way.
_WITHOUT_REPLY: Final = (Reason.EXPIRED, Reason.DUPLICATE)


class Undeliverable(msgspec.Struct, frozen=True):
    """Why there will be no reply, and which node says so (None: this one)."""

    reason: Reason
    node: str | None = None


_decoder: Final = msgspec.json.Decoder(Undeliverable)


class PendingRequest(ReadyReceiver):
    """A request that waits for its reply: the receiver at the address where its route ends.

    Once it has that, it may wait for the reply to another one.
    """

    __slots__ = (
        *("_kernel", "_serves_again", "address", "asked", "back", "deadline", "is_bound", "name"),
        *("onward", "reply", "verdict"),
    )

    reply: asyncio.Future[Message | Undeliverable | None]

    def __init__(self, kernel: Kernel, onward: Route) -> None:
        self.name = f"{REQUEST_PREFIX}{kernel.new_id()[:16]}"  # who could guess it could reply
        self.address = Address(LOCAL, self.name.encode())
        self.back = Route((self.address,))
        self.onward = onward
        self.verdict = Verdict(Outcome.DELIVERED, None, self.name, self.address)
        self.asked = ""  # the id of the request
        self.deadline = 0
        self.is_bound = False  # whether there was a reply, and it said that it was to this request
        self._serves_again = False
        self._kernel = kernel

    def ask(self, id: str) -> None:
        """Wait for the reply to the request with this id."""
        self.asked = id
        self._serves_again, self.is_bound = self.is_bound, False
        self.reply = asyncio.get_running_loop().create_future()

    def offer(self, arrival: Arrival) -> Verdict:
        """Take the reply, and nothing after it."""
        message, reply = arrival.message, self.reply
        is_bound = message.replies_to(self.asked)
        if reply.done() or (self._serves_again and not is_bound):
            if not is_bound:
                self._kernel.requests.distrust(self.onward)
            return self._kernel.drop(arrival, Reason.DUPLICATE, self.name)
        self.is_bound = is_bound
        reply.set_result(is_error(message) or message)
        return self._kernel.end(arrival, self.verdict)

    def give_up(self, reason: Reason | None = None) -> None:
        """Wait no longer: nobody replied in time, or, for a reason, nobody will."""
        if not self.reply.done():
            self.reply.set_result(None if reason is None else Undeliverable(reason))


class Requests:
    """The reply addresses of one node: one open request at each."""

    IDLE_LIMIT = 256  # addresses that wait for the next request

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.deadlines = Deadlines()
        self._idle: dict[Route, list[PendingRequest]] = {}  # by the onward route they serve
        self._count = 0

    def open(self, onward: Route, id: str, seconds: float) -> PendingRequest:
        """A place for the reply to the request with this id, which is given up after a time."""
        idle = self._idle.pop(onward, None)
        if idle is None:
            request = PendingRequest(self._kernel, onward)
            name, address = request.name, request.address
            entry = RoutingEntry(name, address, local=True)
            self._kernel.add_receiver(address, request, entry)
        else:
            self._count -= 1
            request = idle.pop()
            if idle:
                self._idle[onward] = idle
        request.ask(id)
        self.deadlines.start(request, seconds)
        return request

    def close(self, request: PendingRequest) -> None:
        """Use the address of a request again, unless another reply could still be taken there."""
        self.deadlines.stop(request)
        if not request.is_bound:
            self._retire(request)
            return
        if self._count >= self.IDLE_LIMIT:
            self.retire_idle()
        self._count += 1
        self._idle.setdefault(request.onward, []).append(request)

    def distrust(self, onward: Route) -> None:
        """Ask anew along a route from which a reply came that does not say what it answers."""
        for request in self._idle.pop(onward, ()):
            self._count -= 1
            self._retire(request)

    def retire_idle(self) -> None:
        """Remove all addresses that wait for a request."""
        for onward in list(self._idle):
            self.distrust(onward)

    def _retire(self, request: PendingRequest) -> None:
        self._kernel.remove_receiver(request.address, request.name)


def error_reply(message: Message, reason: Reason, node: str, id: str) -> Message | None:
    """What to send back if a dropped message was a request of another node that still waits."""
    back = message.return_route
    last = back.addresses[-1]
    if reason in _WITHOUT_REPLY or last.type != LOCAL or not last.data.startswith(_PREFIX):
        return None
    payload = msgspec.json.encode(Undeliverable(reason, node))
    return Message(back, Route((SENDER,)), payload, reply_id(message.id, id), message.expiry)


def is_error(message: Message) -> Undeliverable | None:
    """What a reply says, if it is an error reply."""
    if message.return_route.addresses[-1:] != (SENDER,):
        return None
    try:
        return _decoder.decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
