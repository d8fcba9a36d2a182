"""Messages: routes, payload and metadata, and how workers forward them and reply (AD, WK).

A message is immutable; every operation returns a new one with the same payload object (AD-4).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from waystation.core.address import LOCAL, Address, Route
from waystation.core.expiry import NEVER, Expiry, check_expiry
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.errors import LocalError, quote

HOP_LIMIT: Final = 32
"""A message with this many addresses in its return route is dropped (WK-11)."""

INTERNAL: Final = "waystation."
"""How the names begin of what nodes offer each other: their own traffic, not that of programs."""

_HEX_DIGITS: Final = frozenset("0123456789abcdef")
NO_ID: Final = "0" * 32
"""The id of messages from peers that send none."""


class Message(Struct, frozen=True, gc=False):
    """A message: onward route, return route and payload, with an id and an expiry (AD-4, AD-7).

    >>> message = Message(Route.parse("b => c"), Route.parse("a"), b"hello", id="4bf9" * 8)
    >>> print(message.forwarded())
    0#c | 0#b => 0#a | 5 B
    >>> print(message.forwarded().reply_from(Address(0, b"c"), b"hi", id="51fe" * 8))
    0#b => 0#a | 0#c | 2 B
    """

    onward_route: Route
    return_route: Route
    payload: bytes
    id: str = NO_ID  # 32 lower-case hex digits: a W3C trace id (AD-7)
    expiry: Expiry = NEVER
    trace_context: str = ""  # other tracing data of a peer, passed on unchanged (AD-8)

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
        """A message from unchecked values; raises LocalError if they are invalid."""
        if not isinstance(payload, bytes):
            raise not_bytes_error(payload)
        onward, back = Route.of(onward_route), Route.of(return_route)
        return cls(onward, back, payload, check_message_id(id), check_expiry(expiry, rule="AD-7"))

    def __str__(self) -> str:
        return f"{self.onward_route} | {self.return_route} | {len(self.payload)} B"

    def forwarded(self, own: Address | None = None) -> Message:
        """The message as a worker forwards it (WK-2).

        The first onward address is removed, and `own`, by default that same address, is added at
        the front of the return route.
        """
        hops = self.onward_route.addresses
        if not hops:
            raise LocalError(
                "a message with an empty onward route cannot be forwarded",
                rule="WK-2",
                hint="reply to it, or give it a route",
            )
        return Message(
            Route(hops[1:]),
            self.return_route.pushed(hops[0] if own is None else own),
            self.payload,
            self.id,
            self.expiry,
            self.trace_context,
        )

    def reply_from(
        self, own: Address, payload: bytes, *, id: str, expiry: Expiry = NEVER
    ) -> Message:
        """A reply along this message's return route, with `own` as the return route (WK-3).

        Its id is the first half of `id` and the second half of this message's id (`replies_to`).
        """
        id = reply_id(self.id, id)
        return Message(self.return_route, Route((own,)), payload, id, expiry)

    def replies_to(self, asked: str) -> bool:
        """Whether it says that it replies to the message with this id; a stranger's does not."""
        return self.id[16:] == asked[16:]

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
        """The message as a transport delivers it: its address leads the return route (WK-10)."""
        return Message(
            self.onward_route,
            self.return_route.pushed(transport),
            self.payload,
            self.id,
            self.expiry,
            self.trace_context,
        )

    def rerouted(self, onward_route: Route, return_route: Route) -> Message:
        """The message with other routes (WK-7, WK-9)."""
        return Message(
            onward_route, return_route, self.payload, self.id, self.expiry, self.trace_context
        )

    @property
    def provider(self) -> str | None:
        """Who published it; None if it is not a broadcast."""
        return self._topic(0)

    @property
    def broadcast(self) -> str | None:
        """The name of the broadcast; None if it is not one."""
        return self._topic(1)

    @property
    def partition(self) -> str | None:
        """The partition that it was published under, empty if none; None if not a broadcast."""
        return self._topic(2)

    def _topic(self, part: int) -> str | None:
        first = self.onward_route.first
        if first is None or first.type != MULTICAST:
            return None
        return (*first.name.split("/", 2), "", "")[part]

    def expired(self, now: Expiry) -> bool:
        """Whether it has expired at this time."""
        return now >= self.expiry

    @property
    def is_internal(self) -> bool:
        """Whether it is traffic of the nodes themselves: to or from something that they offer."""
        return any(
            address.type == LOCAL and address.name.startswith(INTERNAL)
            for route in (self.onward_route, self.return_route)
            for address in route.addresses
        )


class Sized(bytes):
    """A payload of which only the length is known, for records of messages.

    >>> len(Sized.of(12)), bytes(Sized.of(12))
    (12, b'')
    """

    size = 0

    @classmethod
    def of(cls, size: int) -> Sized:
        """A payload of this many bytes."""
        made = cls()
        made.size = size
        return made

    def __len__(self) -> int:
        return self.size


class Arrival(Struct, frozen=True, gc=False):
    """A message as it entered a node, with facts that never leave the node.

    `from_global` is a transient flag (AD-7, MC-11): set for messages from a global transport, and
    at a leaf also for those from its parent, so that they do not go back there. It is here and not
    in the message, so that no codec can serialise it. `received_at` is in microseconds (see
    record.py). `multicast_id` is the id it was published under, or None for a message to one
    participant. `via` is the session that it came over, or None if it was sent here. `replies_to`
    is the id of the message that it replies to, where it was sent (OB-10). `sender` is who sent it
    through a secure channel, which has proven that (ID-2); for what came over a session plainly,
    the proof of the session counts.
    """

    message: Message
    received_at: int
    from_global: bool = False
    multicast_id: str | None = None
    via: str | None = None
    replies_to: str | None = None
    sender: str | None = None


def not_bytes_error(payload: object) -> LocalError:
    """The error for a payload that is not bytes."""
    return LocalError(f"payload {quote(payload)} is not bytes", rule="AD-4", hint="give bytes")


def check_message_id(id: str) -> str:
    """Return the id; raise a LocalError if it is invalid.

    >>> check_message_id("xyz")
    Traceback (most recent call last):
    waystation.errors.LocalError: invalid message id 'xyz'; give ...
    """
    if isinstance(id, str) and len(id) == 32 and _HEX_DIGITS.issuperset(id) and id != NO_ID:
        return id
    raise LocalError(
        f"invalid message id {quote(id)}",
        rule="AD-7",
        hint="give 32 lower-case hexadecimal digits, not all zero",
    )


def reply_id(asked: str, id: str) -> str:
    """The id of a reply: an own one whose second half is that of the message it replies to.

    So a reply is bound to its request in every format that has ids, and the beginning of an id,
    by which people name a message, is still its own.

    >>> reply_id("4bf9" * 8, "51fe" * 8)
    '51fe51fe51fe51fe4bf94bf94bf94bf9'
    """
    return id[:16] + asked[16:]


def message_id(random_bits: int) -> str:
    """An id from 128 random bits, which the caller provides.

    >>> message_id(0x4BF92F3577B34DA6A3CE929D0E0E4736)
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    return f"{(random_bits & (1 << 128) - 1) or 1:032x}"
