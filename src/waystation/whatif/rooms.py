"""Receivers with another room: who would have waited, and who would have found no room. No Spark.

A receiver takes one message after the other. How long it takes for each follows from the record: a
worker's row is written when it has handled a message, a subscriber's when it takes one. Of one that
found no room it is not known; it takes as long as the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from waystation.core.budget import OVERHEAD
from waystation.core.outcome import Outcome, Reason
from waystation.pipeline.kernels.columns import NEVER, are, column, longs
from waystation.whatif.changes import Room, selects
from waystation.whatif.copies import UNKNOWN, Verdict

_DELIVERED: Final = str(Outcome.DELIVERED)
_DROPPED: Final = str(Outcome.DROPPED)
_FULL: Final = str(Reason.QUEUE_FULL)
_EXPIRED: Final = str(Reason.EXPIRED)


class Overruled(Struct):
    """Decisions beyond the tables, by the row that stands for a visit.

    What got out was dropped, and would not have been; what is stopped would have been dropped.
    """

    got_out: dict[int, list[Verdict]] = field(default_factory=dict)
    stopped: dict[int, list[Verdict]] = field(default_factory=dict)

    def rows(self) -> list[int]:
        """The visits that it is about."""
        return sorted({*self.got_out, *self.stopped})


class Served(Struct, frozen=True):
    """A message that came for a receiver, and how it ended there: a reason, or nothing."""

    row: int
    received: int
    at: int
    reason: str | None
    size: int
    expiry: int
    is_broadcast: bool
    is_local: bool  # whether it began at this node

    @property
    def arrived(self) -> bool:
        """Whether the receiver got it."""
        return self.reason is None

    @property
    def may_be_dropped(self) -> bool:
        """Whether it is dropped without room; what a peer sent to a name waits elsewhere (FL-3)."""
        return self.reason == _FULL or self.is_broadcast or self.is_local


def overruled_by_rooms(rows: pa.Table, rooms: Sequence[Room], stands: dict[int, int]) -> Overruled:
    """Whom other rooms would have let in, and whom not; `stands` tells which row is decided."""
    found = Overruled()
    for name, line in _lines(rows, rooms).items():
        room = next(one for one in rooms if selects(one.participant, name))
        for one, end in zip(line, served(line, room), strict=True):
            if end == one.reason:
                continue
            stand = stands.get(one.row, one.row)
            if one.arrived:
                verdict = Verdict(name, _DROPPED, end, None)
                found.stopped.setdefault(stand, []).append(verdict)
                continue
            outcome = _DELIVERED if end is None else UNKNOWN if end == UNKNOWN else _DROPPED
            reason = end if outcome == _DROPPED else None
            found.got_out.setdefault(stand, []).append(Verdict(name, outcome, reason, None))
    return found


def served(line: Sequence[Served], room: Room) -> Iterator[str | None]:
    """How each of these ends, in the order in which they came: a reason, nothing, or UNKNOWN."""
    taking = _taking(line)
    if not taking:
        yield from (None if one.arrived else UNKNOWN for one in line)
        return
    usual = taking[min(taking)]
    waiting: deque[tuple[int, int]] = deque()  # when each is taken, and its bytes
    free, held = line[0].received, 0
    for number, one in enumerate(line):
        while waiting and waiting[0][0] <= one.received:
            held -= waiting.popleft()[1]
        full = (room.messages is not None and len(waiting) >= room.messages) or (
            room.bytes is not None and held + one.size > room.bytes and bool(waiting)
        )
        if full and one.may_be_dropped:
            yield _FULL
            continue
        begins = max(one.received, free)
        waiting.append((begins, one.size))
        held += one.size
        usual = taking.get(number, usual)
        if begins >= one.expiry:
            free = begins
            yield _EXPIRED
        else:
            free = begins + usual
            yield None


def _taking(line: Sequence[Served]) -> dict[int, int]:
    """How long the receiver took for each message of which that is known, by its place."""
    arrived = [(number, one) for number, one in enumerate(line) if one.arrived]
    found: dict[int, int] = {}
    for (before, former), (number, one) in pairwise(arrived):
        if not one.is_broadcast:
            found[number] = max(one.at - max(one.received, former.at), 0)
        elif one.at > one.received:  # it waited for the one before
            found[before] = max(one.at - former.at, 0)
    if arrived and not arrived[0][1].is_broadcast:
        number, one = arrived[0]
        found[number] = max(one.at - one.received, 0)
    if arrived and not found:
        found[arrived[0][0]] = 0  # nobody ever waited
    return found


def _lines(rows: pa.Table, rooms: Iterable[Room]) -> dict[str, list[Served]]:
    """What came for the receivers that are here, in order."""
    names = column(rows, "recipient")
    reasons, expiry = column(rows, "reason"), longs(rows, "expiry", NEVER)
    received, at = longs(rows, "received_at"), longs(rows, "at")
    late = are(reasons, Reason.EXPIRED) & (received < expiry)
    full = are(reasons, Reason.QUEUE_FULL)
    arrived = are(column(rows, "outcome"), Outcome.DELIVERED)
    here = np.asarray(column(rows, "out").is_null())
    some = np.flatnonzero((full | arrived | late) & here)
    told = names.take(pa.array(some)).to_pylist()
    wanted: dict[str, list[int]] = {}
    for row, name in zip(some.tolist(), told, strict=True):
        if name is not None and any(selects(one.participant, name) for one in rooms):
            wanted.setdefault(name, []).append(row)
    size = np.asarray(pc.fill_null(column(rows, "bytes"), 0))
    broadcast = are(column(rows, "kind"), "multicast")
    local = np.asarray(column(rows, "via").is_null())
    return {
        name: sorted(
            (
                Served(
                    row,
                    int(received[row]),
                    int(at[row]),
                    None if arrived[row] else _FULL if full[row] else _EXPIRED,
                    int(size[row]) + OVERHEAD,
                    int(expiry[row]),
                    bool(broadcast[row]),
                    bool(local[row]),
                )
                for row in own
            ),
            key=lambda one: one.received,
        )
        for name, own in wanted.items()
    }
