"""What a router tells of messages, for the journal: where each was going, its size, how it ended.

A message has no identity that a router could read, so each gets a new one here. It has no payload
either: a router passes on bytes that it does not look into, and keeps none for the journal.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from waystation.core.address import Address, Route
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


class Outcomes:
    """Tells how messages ended; with `forwarded`, also of those that were passed on.

    >>> told = []
    >>> outcomes = Outcomes(told.append)
    >>> outcomes.dropped(outcomes.arrivals("fleet", None, None, [3]), Reason.NO_ROUTE)
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
        self, group: str | None, member: bytes | None, sender: bytes | None, sizes: Sequence[int]
    ) -> list[Arrival]:
        """Messages to a member, or to all of a group, as they came in."""
        at = now_ns() // 1000
        onward = _NOWHERE if group is None else Route((_address(group, member),))
        back = _NOWHERE if group is None or sender is None else Route((_address(group, sender),))
        multicast_id = group if member is None else None
        return [
            Arrival(
                Message(onward, back, Sized.of(size), self._new_id()),
                at + number,  # no two enter at the same instant
                multicast_id=multicast_id,
            )
            for number, size in enumerate(sizes)
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


def _address(group: str, member: bytes | None) -> Address:
    text = group if member is None else f"{group}/{uuid_text(member)}"
    return Address(GOSSIP, text.encode(errors="replace"))
