"""What passes between the steps of a what-if: verdicts, copies under way, and ends."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

UNKNOWN: Final = "UNKNOWN"
"""In place of an outcome: the records do not tell what would have become of a copy."""


class Verdict(Struct, frozen=True, array_like=True):
    """What the rules decide about one copy of a message at a node."""

    recipient: str | None
    outcome: str
    reason: str | None
    address: str | None
    next_node: str | None = None  # the peer that a copy goes to; None if it is not known
    keeps_first: bool = True  # whether the first address of the onward route stays


class Diverged(Struct, frozen=True, array_like=True):
    """A visit of which the rules would have decided otherwise."""

    node: str
    incarnation: int
    received_at: int
    before: tuple[Verdict, ...]
    after: tuple[Verdict, ...]
    got_out: tuple[Verdict, ...] = ()  # copies that were dropped, and would not have been
    kept_open: tuple[str, ...] = ()  # sessions whose end is left out: what vanished there arrives
    sooner: tuple[str, ...] = ()  # peers whose session it waited for, and that were there
    if_alive_at: int | None = None  # it counts only if the message lives then, by its changed life
    if_expired_at: int | None = None  # or has expired by then


class Copy(Struct, frozen=True, array_like=True):
    """A copy on its way to a node that it did not reach, or reached otherwise."""

    message_id: str
    origin: str | None
    recipient: str | None
    from_node: str
    to_node: str
    left_at: int  # when its message had entered `from_node`, by that node's clock
    onward: tuple[str, ...]
    hops_back: int  # addresses in its return route
    kind: str
    multicast_id: str | None
    expiry: int | None  # microseconds
    from_global: bool
    durable: bool
    hops: int  # visits since the first
    visited: tuple[str, ...]  # nodes that have the message already
    why: str


class End(Struct, frozen=True, array_like=True):
    """What becomes of a message for one recipient."""

    message_id: str
    origin: str | None
    recipient: str | None
    outcome: str
    reason: str | None
    node: str
    hops: int
    why: str = ""


class Told(Struct, frozen=True, array_like=True):
    """What is known of one message: how it ended, how it would have, and what is to be followed."""

    before: tuple[End, ...]
    after: tuple[End, ...]
    copies: tuple[Copy, ...]
    answers: str | None = None  # the message that it answers
    internal: bool = False  # whether nodes sent it for themselves
    is_multicast: bool = False


def encode(value: object) -> bytes:
    """A value as bytes, for a column."""
    return msgspec.msgpack.encode(value)
