"""What is found out about one message: plain values, ready to be told or written as JSON."""

from __future__ import annotations

from msgspec import Struct


class Step(Struct, frozen=True):
    """One outcome at one node. Instants are microseconds since the epoch."""

    at: int
    outcome: str
    reason: str | None
    next_hop: str | None
    recipient: str | None


class Decision(Struct, frozen=True):
    """What the rules say must happen, and the routing entry that says so."""

    outcome: str
    reason: str | None = None
    recipient: str | None = None
    address: str | None = None
    entry: str | None = None  # the address of the entry that decided
    local: bool | None = None
    since: int | None = None  # when that entry came to be as it was
    until: int | None = None  # when it would have expired


class Hop(Struct, frozen=True):
    """A message in one node: how it came in, what became of it, and what should have."""

    node: str
    incarnation: int
    received_at: int
    onward: tuple[str, ...]
    back: tuple[str, ...]
    multicast_id: str | None
    bytes: int
    expiry: int | None
    steps: tuple[Step, ...]
    expected: tuple[Decision, ...]
    as_expected: bool
    explanation: str | None


class Explanation(Struct, frozen=True):
    """Everything about one message."""

    message_id: str
    hops: tuple[Hop, ...]
    summary: str
    remarks: tuple[str, ...] = ()  # what may be missing, and why
