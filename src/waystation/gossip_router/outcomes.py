"""What a router tells of messages, for the journal: where each was going, its size, how it ended.

A message of JGroups 5 that its members number (NAKACK2, UNICAST3) is named after its sender and its
number: when it is sent again it is the same message, and its story has both. Any other gets a new
name here. It has no payload: a router keeps none for the journal.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from waystation.core.address import LOCAL, Address, Route
from waystation.core.address_types import GOSSIP
from waystation.core.clock import now_ns
from waystation.core.identity import uuid_text
from waystation.core.message import Arrival, Message, Sized
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import ChangeRecord, MessageRecord

_NOWHERE: Final = Route()


class MemberRecord(ChangeRecord, frozen=True, gc=False):
    """A change of membership, and in which dialect: groups of different dialects never meet."""

    dialect: str = ""


class Told(Struct, frozen=True, gc=False):
    """What is told of one message: its size, who sent it, and what its own protocol says of it.

    `series` is what `number` counts in; without it the message has no name of its own.
    """

    size: int
    sender: bytes | None = None
    words: str = ""
    series: str = ""
    number: int = 0

    @property
    def id(self) -> str:
        """Its name, the same each time it is sent; empty if it has none."""
        if not self.series:
            return ""
        text = f"{self.series} {self.number}"
        return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()


class Outcomes:
    """Tells how messages ended; with `forwarded`, also of those that were passed on.

    >>> told = []
    >>> outcomes = Outcomes(told.append)
    >>> outcomes.dropped(outcomes.arrivals("fleet", None, [Told(3)]), Reason.NO_ROUTE)
    >>> record = told[0]
    >>> str(record.arrival.message.onward_route), record.arrival.multicast_id, record.verdict.reason
    ('6#fleet', 'fleet', <Reason.NO_ROUTE: 'NO_ROUTE'>)
    """

    __slots__ = ("_count", "_prefix", "_tell", "tells_forwarded")

    def __init__(self, tell: Callable[[MessageRecord], object], *, forwarded: bool = False) -> None:
        self.tells_forwarded = forwarded
        self._tell = tell
        self._prefix = secrets.token_hex(8)
        self._count = 0

    def arrivals(
        self, group: str | None, member: bytes | None, messages: Sequence[Told]
    ) -> list[Arrival]:
        """Messages to a member, or to all of a group, as they came in."""
        at = now_ns() // 1000
        onward = _NOWHERE if group is None else Route((_address(group, member),))
        multicast_id = group if member is None else None
        return [
            Arrival(
                Message(onward, _back(group, told), Sized.of(told.size), told.id or self._new_id()),
                at + number,  # no two enter at the same instant
                multicast_id=multicast_id,
            )
            for number, told in enumerate(messages)
        ]

    def dropped(self, arrivals: Sequence[Arrival], reason: Reason) -> None:
        """These, or copies of them, end here."""
        self._tell_all(arrivals, Verdict.dropped(reason))

    def forwarded(self, arrivals: Sequence[Arrival]) -> None:
        """These were put into the queue of everybody they are for, or at least of somebody."""
        if arrivals:
            address = arrivals[0].message.onward_route.first
            self._tell_all(arrivals, Verdict(Outcome.FORWARDED, None, None, address))

    def _tell_all(self, arrivals: Sequence[Arrival], verdict: Verdict) -> None:
        for arrival in arrivals:
            self._tell(MessageRecord(arrival, verdict, arrival.received_at))

    def _new_id(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count:016x}"


def _back(group: str | None, told: Told) -> Route:
    """To whom an answer would go, and behind that what the sender's protocol calls the message."""
    if group is None or told.sender is None:
        return _NOWHERE
    sender = _address(group, told.sender)
    return Route((sender, Address(LOCAL, told.words.encode())) if told.words else (sender,))


def _address(group: str, member: bytes | None) -> Address:
    text = group if member is None else f"{group}/{uuid_text(member)}"
    return Address(GOSSIP, text.encode(errors="replace"))
