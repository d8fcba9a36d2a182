"""Messages: the three fields of the document, their metadata, and the moves of a worker (AD, WK).

A message never changes; every move returns a new one, with the very same payload (AD-4).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from waystation.core.address import Address, Route
from waystation.core.expiry import NEVER, Expiry, check_expiry
from waystation.errors import LocalError, quote

HOP_LIMIT: Final = 32
"""A message with so many addresses in its return route goes no further (WK-11)."""

_HEX_DIGITS: Final = frozenset("0123456789abcdef")
NO_ID: Final = "0" * 32
"""What a message has that came from a peer which gives no ids."""


class Message(Struct, frozen=True, gc=False):
    """A message: where to, the way back, what; and an id and an expiry (AD-4, AD-7).

    >>> message = Message(Route.parse("b => c"), Route.parse("a"), b"hello", id="4bf9" * 8)
    >>> print(message.forwarded())
    0#c | 0#b => 0#a | 5 B
    >>> print(message.forwarded().answered(Address(0, b"c"), b"hi", id="51fe" * 8))
    0#b => 0#a | 0#c | 2 B
    """

    onward_route: Route
    return_route: Route
    payload: bytes
    id: str = NO_ID  # 32 lower-case hex digits: a W3C trace id (AD-7)
    expiry: Expiry = NEVER
    trace_context: str = ""  # what else a peer's tracing put beside it, passed on as it came (AD-8)

    @classmethod
    def of(
        cls,
        onward_route: Route,
        return_route: Route,
        payload: bytes,
        *,
        id: str,
        expiry: Expiry = NEVER,
    ) -> Message:
        """A message from values that nobody has checked yet; the constructor takes what it gets."""
        if not isinstance(payload, bytes):
            raise not_bytes_error(payload)
        onward, back = Route.of(onward_route), Route.of(return_route)
        return cls(onward, back, payload, check_message_id(id), check_expiry(expiry, rule="AD-7"))

    def __str__(self) -> str:
        return f"{self.onward_route} | {self.return_route} | {len(self.payload)} B"

    def forwarded(self, own: Address | None = None) -> Message:
        """The message as a worker sends it on (WK-2).

        The first onward address goes; `own`, by default that same address, comes to the front of
        the return route.
        """
        hops = self.onward_route.addresses
        if not hops:
            raise LocalError(
                "a message with an empty onward route cannot be forwarded",
                rule="WK-2",
                hint="answer it, or give it a route",
            )
        return Message(
            Route(hops[1:]),
            self.return_route.pushed(hops[0] if own is None else own),
            self.payload,
            self.id,
            self.expiry,
            self.trace_context,
        )

    def answered(self, own: Address, payload: bytes, *, id: str, expiry: Expiry = NEVER) -> Message:
        """A new message that answers this one: along its return route, back to `own` (WK-3)."""
        return Message(self.return_route, Route((own,)), payload, id, expiry)

    def departed(self) -> Message:
        """The message as a transport writes it: without the address of that transport (WK-10)."""
        return Message(
            self.onward_route.rest(),
            self.return_route,
            self.payload,
            self.id,
            self.expiry,
            self.trace_context,
        )

    def arrived(self, transport: Address) -> Message:
        """The message as a transport hands it in: itself as the first way back (WK-10)."""
        return Message(
            self.onward_route,
            self.return_route.pushed(transport),
            self.payload,
            self.id,
            self.expiry,
            self.trace_context,
        )

    def rerouted(self, onward_route: Route, return_route: Route) -> Message:
        """The same message on other routes (WK-7, WK-9)."""
        return Message(
            onward_route, return_route, self.payload, self.id, self.expiry, self.trace_context
        )

    def expired(self, now: Expiry) -> bool:
        """Whether its time is over at this instant."""
        return now >= self.expiry


class Arrival(Struct, frozen=True, gc=False):
    """A message as it entered a node, with what is known of that moment and never leaves the node.

    `from_global` is the transient flag of the document (AD-7, MC-11): set for what came from a
    global transport, and at a leaf also for what came from its parent, so that it does not go back
    there. It stands here and not in the message, so that no codec has anything to serialise.
    `received_at` is in microseconds (see record.py). `multicast_id` is what it was published under;
    None for a message to one participant.
    """

    message: Message
    received_at: int
    from_global: bool = False
    multicast_id: str | None = None


def not_bytes_error(payload: object) -> LocalError:
    """What is wrong with a payload that is not bytes."""
    return LocalError(f"payload {quote(payload)} is not bytes", rule="AD-4", hint="give bytes")


def check_message_id(id: str) -> str:
    """Return the id, or raise the LocalError that says what is wrong with it.

    >>> check_message_id("xyz")
    Traceback (most recent call last):
    waystation.errors.LocalError: 'xyz' is no message id; give ...
    """
    if isinstance(id, str) and len(id) == 32 and _HEX_DIGITS.issuperset(id) and id != NO_ID:
        return id
    raise LocalError(
        f"{quote(id)} is no message id",
        rule="AD-7",
        hint="give 32 lower-case hexadecimal digits, not all zero",
    )


def message_id(random_bits: int) -> str:
    """An id from 128 random bits, which the caller brings.

    >>> message_id(0x4BF92F3577B34DA6A3CE929D0E0E4736)
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    return f"{(random_bits & (1 << 128) - 1) or 1:032x}"
