"""The payloads between a leaf and its hub (RE-12, MC-8 .. MC-10).

A leaf announces the participants that are reached through it and their subscriptions, and withdraws
both. It also asks whether a participant can be reached through the hub. These payloads are for the
session itself and stay in order with the messages, so that an announcement holds for every message
sent after it. Each payload is a JSON object; a long list is split into several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from waystation.core.expiry import NEVER, Expiry
from waystation.core.routing import RoutingEntry

ITEMS: Final = 256
"""Maximum number of participants or subscriptions in one payload."""

_T = TypeVar("_T")

Participant: TypeAlias = tuple[str, bool, int | None]  # name, globally visible, expiry or never
Subscribed: TypeAlias = tuple[str, str]  # pattern, receiver


class _Payload(msgspec.Struct, frozen=True, tag_field="waystation"):
    """Base class of all payloads."""


class Announce(_Payload, frozen=True, tag="announce"):
    """These participants are reached through the sender."""

    participants: list[Participant]


class Withdraw(_Payload, frozen=True, tag="withdraw"):
    """These participants are no longer reached through the sender."""

    participants: list[str]


class Subscribe(_Payload, frozen=True, tag="subscribe"):
    """These participants subscribe to these broadcasts."""

    pairs: list[Subscribed]


class Unsubscribe(_Payload, frozen=True, tag="unsubscribe"):
    """These participants no longer subscribe to these broadcasts."""

    pairs: list[Subscribed]


class Resolve(_Payload, frozen=True, tag="resolve"):
    """Asks whether a participant is reached through the receiver.

    `asked` are the names of the nodes that do not know it.
    """

    number: int
    participant: str
    asked: list[str] = []


class Resolved(_Payload, frozen=True, tag="resolved"):
    """Answers the `Resolve` of this number."""

    number: int
    found: bool


class Declined(_Payload, frozen=True, tag="declined"):
    """An announcement was not accepted; says why."""

    why: str


Payload: TypeAlias = Announce | Withdraw | Subscribe | Unsubscribe | Resolve | Resolved | Declined

_decoder: Final[msgspec.json.Decoder[Payload]] = msgspec.json.Decoder(Payload)
encode: Final = msgspec.json.Encoder().encode


def read(payload: bytes) -> Payload | None:
    """Decode a payload; None if it is of an unknown kind.

    >>> read(encode(Resolve(1, "truck-7")))
    Resolve(number=1, participant='truck-7', asked=[])
    >>> read(b'{"waystation": "hello"}') is None
    True
    """
    try:
        return _decoder.decode(payload)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # not UTF-8; nested too deeply
        return None


def participant_of(entry: RoutingEntry) -> Participant:
    """A routing entry in the form in which it is announced."""
    expiry = entry.expiry
    return (entry.participant, entry.visible, None if expiry == NEVER else int(expiry))


def expiry_of(participant: Participant) -> Expiry:
    """When an announced participant expires."""
    return NEVER if participant[2] is None else participant[2]


def in_payloads(items: Sequence[_T]) -> Iterator[list[_T]]:
    """Split a list into parts that fit into one payload each."""
    for begin in range(0, len(items), ITEMS):
        yield list(items[begin : begin + ITEMS])
