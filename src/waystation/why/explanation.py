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
    next_node: str | None = None  # the node that it was sent to
    fate: str | None = None  # what became of it
    remark: str | None = None  # the same in words, if its outcome does not tell it


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
    way: int = 0  # which of the ways it is part of
    follows: int | None = None  # the hop that it came from, counted from 0
    depth: int = 0  # how many hops lead to it
    sender: str | None = None  # who sent it, if that was proven to the node (ID-2)


class Way(Struct, frozen=True, kw_only=True):
    """A message from one origin: how it ended. Several may have the same id."""

    origin: str | None  # the node and incarnation where it entered the fleet
    outcome: str
    reason: str | None
    place: str  # the node where it ended
    summary: str
    notes: tuple[str, ...]  # what else is known of it
    started: int
    ended: int
    latency_us: int
    hops: int
    delivered: int
    lost_copies: int
    unknown_copies: int
    left_fleet: int
    waiting: int
    complete: bool
    looped: bool
    internal: bool
    answers: str | None
    answered_by: str | None
    legs: int
    symmetric: bool | None


class Explanation(Struct, frozen=True):
    """All that is known about one message."""

    message_id: str
    hops: tuple[Hop, ...]
    summary: str
    remarks: tuple[str, ...] = ()  # what may be missing, and why
    ways: tuple[Way, ...] = ()

    def __str__(self) -> str:
        from waystation.why.text import explanation_lines  # noqa: PLC0415 - it imports this module

        return "\n".join(explanation_lines(self))
