"""Requests that wait for their replies, and the error replies to those that were dropped.

An error reply is a message along the return route like any other. It comes from the reserved name
`waystation.undeliverable`, and its payload is a JSON object that names the reason and the node.
Only requests get one: any other message that is dropped leaves a record and nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from waystation.core.address import LOCAL, Address, Route
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
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
    """A request that waits for its reply: the receiver at the address where its route ends."""

    __slots__ = ("_kernel", "address", "name", "reply", "verdict")

    def __init__(self, kernel: Kernel) -> None:
        self.name = f"{REQUEST_PREFIX}{secrets.token_hex(8)}"  # who could guess it could reply
        self.address = Address(LOCAL, self.name.encode())
        self.verdict = Verdict(Outcome.DELIVERED, None, self.name, self.address)
        loop = asyncio.get_running_loop()
        self.reply: asyncio.Future[Message | Undeliverable | None] = loop.create_future()
        self._kernel = kernel

    def offer(self, arrival: Arrival) -> Verdict:
        """Take the reply; what comes after it is delivered to nobody."""
        if not self.reply.done():
            message = arrival.message
            self.reply.set_result(is_error(message) or message)
        return self._kernel.end(arrival, self.verdict)

    def give_up(self, reason: Reason | None = None) -> None:
        """Wait no longer: nobody replied in time, or, for a reason, nobody will."""
        if not self.reply.done():
            self.reply.set_result(None if reason is None else Undeliverable(reason))


def error_reply(message: Message, reason: Reason, node: str, id: str) -> Message | None:
    """What to send back if a dropped message was a request of another node that still waits."""
    back = message.return_route
    last = back.addresses[-1]
    if reason in _WITHOUT_REPLY or last.type != LOCAL or not last.data.startswith(_PREFIX):
        return None
    payload = msgspec.json.encode(Undeliverable(reason, node))
    return Message(back, Route((SENDER,)), payload, id, message.expiry)


def is_error(message: Message) -> Undeliverable | None:
    """What a reply says, if it is an error reply."""
    if message.return_route.addresses[-1:] != (SENDER,):
        return None
    try:
        return _decoder.decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
