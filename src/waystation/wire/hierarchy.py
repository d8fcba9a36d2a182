"""The payloads between a leaf and its hub (RE-12, MC-8 .. MC-10).

A leaf announces the participants that are reached through it and the broadcasts that each of them
subscribes to, and withdraws both. It asks whether a participant can be reached through the hub. All
of it goes in the payloads for the session itself, in order with the messages, so that an
announcement holds for every message sent after it. Each payload is a JSON object; a long list goes
in several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from waystation.core.expiry import NEVER, Expiry
from waystation.core.routing import RoutingEntry

ITEMS: Final = 256
"""Participants or subscriptions in one payload, at most."""

_T = TypeVar("_T")

Participant: TypeAlias = tuple[str, bool, int | None]  # name, globally visible, expiry or never
Subscribed: TypeAlias = tuple[str, str]  # pattern, receiver


class _Payload(msgspec.Struct, frozen=True, tag_field="waystation"):
    """What all of them have in common."""


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

    `asked` are the nodes that do not know it.
    """

    number: int
    participant: str
    asked: list[str] = []


class Resolved(_Payload, frozen=True, tag="resolved"):
    """Answers the `Resolve` of this number."""

    number: int
    found: bool


class Declined(_Payload, frozen=True, tag="declined"):
    """Something that was announced is not accepted, and why."""

    why: str


Payload: TypeAlias = Announce | Withdraw | Subscribe | Unsubscribe | Resolve | Resolved | Declined

_decoder: Final[msgspec.json.Decoder[Payload]] = msgspec.json.Decoder(Payload)
encode: Final = msgspec.json.Encoder().encode


def read(payload: bytes) -> Payload | None:
    """The payload as a value, or None if it is of no kind that stands here.

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
    """An entry as it is announced."""
    expiry = entry.expiry
    return (entry.participant, entry.visible, None if expiry == NEVER else int(expiry))


def expiry_of(participant: Participant) -> Expiry:
    """When an announced participant expires."""
    return NEVER if participant[2] is None else participant[2]


def in_payloads(items: Sequence[_T]) -> Iterator[list[_T]]:
    """A long list in parts that fit into a payload each."""
    for begin in range(0, len(items), ITEMS):
        yield list(items[begin : begin + ITEMS])
