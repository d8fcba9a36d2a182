"""What a leaf and its hub tell each other over their session (RE-12, MC-8 .. MC-10).

A leaf announces who is reached through it and who of them wants which broadcasts, and takes that
back. It asks whether a participant can be reached through the hub. All of it goes in the payloads
for the session itself, in order with the messages, so that what was announced counts for whatever
is sent behind it. Each payload is a JSON object; long lists go in several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from waystation.core.expiry import NEVER, Expiry
from waystation.core.routing import RoutingEntry

LINES: Final = 256
"""So many participants or subscriptions go into one payload."""

_T = TypeVar("_T")

Participant: TypeAlias = tuple[str, bool, int | None]  # name, globally visible, expiry or never
Subscribed: TypeAlias = tuple[str, str]  # pattern, receiver


class _Said(msgspec.Struct, frozen=True, tag_field="waystation"):
    """One thing that was told."""


class Announce(_Said, frozen=True, tag="announce"):
    """These participants are reached through me."""

    participants: list[Participant]


class Withdraw(_Said, frozen=True, tag="withdraw"):
    """These are no longer."""

    participants: list[str]


class Subscribe(_Said, frozen=True, tag="subscribe"):
    """These participants of mine want these broadcasts."""

    pairs: list[Subscribed]


class Unsubscribe(_Said, frozen=True, tag="unsubscribe"):
    """They no longer do."""

    pairs: list[Subscribed]


class Resolve(_Said, frozen=True, tag="resolve"):
    """Can this participant be reached through you? `asked` are the nodes that do not know."""

    number: int
    participant: str
    asked: list[str] = []


class Resolved(_Said, frozen=True, tag="resolved"):
    """The answer to the question of this number."""

    number: int
    found: bool


class Declined(_Said, frozen=True, tag="declined"):
    """I do not take what you announced."""

    why: str


Said: TypeAlias = Announce | Withdraw | Subscribe | Unsubscribe | Resolve | Resolved | Declined

_decoder: Final[msgspec.json.Decoder[Said]] = msgspec.json.Decoder(Said)
encode: Final = msgspec.json.Encoder().encode


def read(payload: bytes) -> Said | None:
    """What the peer said, or None when it is nothing of this kind.

    >>> read(encode(Resolve(1, "truck-7")))
    Resolve(number=1, participant='truck-7', asked=[])
    >>> read(b'{"waystation": "hello"}') is None
    True
    """
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # no UTF-8; too deep
        return None


def participant_of(entry: RoutingEntry) -> Participant:
    """An entry as it is announced."""
    expiry = entry.expiry
    return (entry.participant, entry.visible, None if expiry == NEVER else int(expiry))


def expiry_of(participant: Participant) -> Expiry:
    """When an announced participant expires."""
    return NEVER if participant[2] is None else participant[2]


def in_payloads(lines: Sequence[_T]) -> Iterator[list[_T]]:
    """Long lists in pieces that fit into a payload."""
    for begin in range(0, len(lines), LINES):
        yield list(lines[begin : begin + LINES])
