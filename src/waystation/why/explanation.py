"""The explanation of a message as plain values, ready to be printed or encoded as JSON."""

from __future__ import annotations

from msgspec import Struct


class Step(Struct, frozen=True):
    """One outcome at one node. Times are microseconds since the epoch."""

    at: int
    outcome: str
    reason: str | None
    next_hop: str | None
    recipient: str | None


class Decision(Struct, frozen=True):
    """The outcome that the rules require, and the routing entry that determines it."""

    outcome: str
    reason: str | None = None
    recipient: str | None = None
    address: str | None = None
    entry: str | None = None  # the address of the routing entry
    local: bool | None = None
    since: int | None = None  # when that entry got its address
    until: int | None = None  # when it would have expired


class Hop(Struct, frozen=True):
    """A message at one node: how it arrived, its outcomes, and those that the rules require."""

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
    clock_ahead_us: int = 0  # how far the node's clock was ahead of the others'


class Explanation(Struct, frozen=True):
    """All that is known about one message."""

    message_id: str
    hops: tuple[Hop, ...]
    summary: str
    remarks: tuple[str, ...] = ()  # what may be missing, and why
