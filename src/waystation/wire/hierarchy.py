"""The payloads between a leaf and its hub (RE-12, MC-8 .. MC-10, CL-1 .. CL-6).

A leaf announces the participants that are reached through it and their subscriptions, and withdraws
both. It also asks whether a participant can be reached through the hub. These payloads are for the
session itself and stay in order with the messages, so that an announcement holds for every message
sent after it. Each payload is a JSON object; a long list is split into several.

What a node of the first version does not know stands in fields and payloads of their own, which it
ignores (UP-2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from waystation.core.expiry import NEVER, Expiry
from waystation.core.routing import RoutingEntry
from waystation.wire.vouchers import Voucher

CAPABILITY: Final = "claims"
"""What a node that understands claims says in its hello."""

ITEMS: Final = 256
"""Maximum number of participants or subscriptions in one payload."""

_T = TypeVar("_T")

Participant: TypeAlias = tuple[str, bool, int | None]  # name, globally visible, expiry or never
Subscribed: TypeAlias = tuple[str, str]  # pattern, receiver
Owner: TypeAlias = tuple[str, int]  # the owner, the lowest number of its sessions that still live
RelayedClaim: TypeAlias = tuple[int, int, list[str]]  # index of the owner, number, path
Contest: TypeAlias = tuple[str, str, bool]  # name, the other's node, whether that one holds it


class _Payload(msgspec.Struct, frozen=True, tag_field="waystation"):
    """Base class of all payloads."""


class Announce(_Payload, frozen=True, tag="announce", omit_defaults=True):
    """These participants are reached through the sender.

    They are the sender's own if `claims` is empty: its hello tells their owner and number, and
    `lowest` is the lowest number of its sessions that still live (0: not told). Otherwise they are
    relayed, and `claims` has an item for each of them.

    Names of an identity come with its signature: own ones with one voucher for all of them; of
    relayed ones, `vouched` tells for each which of the vouchers names it, or -1 (ID-2).
    """

    participants: list[Participant]
    lowest: int = 0
    owners: list[Owner] = []
    claims: list[RelayedClaim] = []
    vouchers: list[Voucher] = []
    vouched: list[int] = []


class Withdraw(_Payload, frozen=True, tag="withdraw"):
    """These participants are no longer reached through the sender."""

    participants: list[str]


class Subscribe(_Payload, frozen=True, tag="subscribe"):
    """These participants subscribe to these broadcasts."""

    pairs: list[Subscribed]


class Unsubscribe(_Payload, frozen=True, tag="unsubscribe"):
    """These participants no longer subscribe to these broadcasts."""

    pairs: list[Subscribed]


class Resolve(_Payload, frozen=True, tag="resolve", omit_defaults=True):
    """Asks whether a participant is reached through the receiver.

    `asked` are the names of the nodes that do not know it. With `ready`, the reply says that all
    that was announced before was taken, also further up; `participant` is then the id of the
    question, by which a hub knows it again that gets it by two ways. With `probe`, somebody else
    claims the participant, and the reply is a sign of life of whoever holds it (CL-6).
    """

    number: int
    participant: str
    asked: list[str] = []
    ready: bool = False
    probe: bool = False


class Resolved(_Payload, frozen=True, tag="resolved"):
    """Answers the `Resolve` of this number."""

    number: int
    found: bool


class Appeared(_Payload, frozen=True, tag="appeared"):
    """These participants, which the receiver asked for in vain, are reached through the sender."""

    participants: list[str]


class Declined(_Payload, frozen=True, tag="declined"):
    """An announcement was not accepted; says why."""

    why: str


class Contested(_Payload, frozen=True, tag="contested"):
    """These names are claimed by two owners, or no longer are (CL-4).

    Each with the name of the other's node, and whether that one holds it. An empty name: the
    receiver of this holds it now.
    """

    contests: list[Contest]


Payload: TypeAlias = (
    Announce
    | Withdraw
    | Subscribe
    | Unsubscribe
    | Resolve
    | Resolved
    | Appeared
    | Declined
    | Contested
)

_decoder: Final[msgspec.json.Decoder[Payload]] = msgspec.json.Decoder(Payload)
encode: Final = msgspec.json.Encoder().encode


def read(payload: bytes) -> Payload | None:
    """Decode a payload; None if it is of an unknown kind.

    >>> read(encode(Resolve(1, "truck-7")))
    Resolve(number=1, participant='truck-7', asked=[], ready=False, probe=False)
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
