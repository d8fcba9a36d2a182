"""Receivers with another room: who would have waited, and who would have found no room. No Spark.

A receiver takes one message after the other. How long it takes for each follows from the record: a
worker's row is written when it has handled a message, a subscriber's when it takes one. Of one that
found no room it is not known; it takes as long as the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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

AT_ONCE: Final = 10_000
"""Microseconds within which a message goes on that does not wait."""

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
    def waited(self) -> bool:
        """Whether a subscriber did not take it as it came."""
        return self.at > self.received + AT_ONCE

    @property
    def may_be_dropped(self) -> bool:
        """Whether it is dropped without room; what a peer sent to a name waits elsewhere (FL-3)."""
        return self.reason == _FULL or self.is_broadcast or self.is_local


def overruled_by_rooms(
    rows: pa.Table,
    rooms: Sequence[Room],
    stands: Mapping[int, int],
    recorded_until: Mapping[int, int],
) -> Overruled:
    """Whom other rooms would have let in, and whom not.

    `stands` tells which row is decided, `recorded_until` how far the record of each incarnation
    reaches.
    """
    found = Overruled()
    for (incarnation, name), line in _lines(rows, rooms).items():
        room = next(one for one in rooms if selects(one.participant, name))
        ends = served(line, room, recorded_until.get(incarnation, NEVER))
        for one, end in zip(line, ends, strict=True):
            if end == one.reason:
                continue
            outcome = _DELIVERED if end is None else UNKNOWN if end == UNKNOWN else _DROPPED
            reason = end if outcome == _DROPPED else None
            instead = found.stopped if one.arrived else found.got_out
            stand = stands.get(one.row, one.row)
            instead.setdefault(stand, []).append(Verdict(name, outcome, reason, None))
    return found


def served(line: Sequence[Served], room: Room, recorded_until: int = NEVER) -> Iterable[str | None]:
    """How each of these ends, in the order in which they came: a reason, nothing, or UNKNOWN.

    Of what would still wait when the record ends it is not known.
    """
    taking = _taking(line)
    if not taking:
        return [None if one.arrived else UNKNOWN for one in line]
    server = _Server(line, room, taking, recorded_until)
    for number, one in enumerate(line):
        server.take_until(one.received)
        server.offer(number)
    server.take_until(NEVER)
    return server.ends


class _Server:
    """A receiver that takes one message after the other, and what waits for it.

    What it has no room for, and a peer holds back, is let in when half of the room is free; until
    then nobody overtakes it (WK-5).
    """

    def __init__(
        self, line: Sequence[Served], room: Room, taking: Mapping[int, int], recorded_until: int
    ) -> None:
        self.ends: list[str | None] = [None] * len(line)
        self._line = line
        self._most = NEVER if room.messages is None else room.messages
        self._most_bytes = NEVER if room.bytes is None else room.bytes
        self._taking = taking
        self._recorded_until = recorded_until
        self._waiting: deque[int] = deque()
        self._bytes = 0
        self._outside: deque[int] = deque()
        self._free = line[0].received

    def offer(self, number: int) -> None:
        """Let one come, now."""
        if self._lets_in(number):
            self._put(number)
        elif self._line[number].may_be_dropped:
            self.ends[number] = _FULL
        else:
            self._outside.append(number)

    def take_until(self, now: int) -> None:
        """Take what the receiver takes until then."""
        while self._waiting:
            number = self._waiting[0]
            one = self._line[number]
            begins = max(one.received, self._free)
            if begins > now:
                return
            self._waiting.popleft()
            self._bytes -= one.size
            is_late = begins >= one.expiry
            self._free = begins if is_late else begins + self._taking[number]
            told_at = begins if is_late or one.is_broadcast else self._free
            self.ends[number] = _EXPIRED if is_late else None
            if told_at > self._recorded_until:
                self.ends[number] = UNKNOWN
            if self._is_half_free:
                self._let_in()

    @property
    def _is_half_free(self) -> bool:
        return len(self._waiting) <= self._most // 2

    def _lets_in(self, number: int) -> bool:
        if self._outside or not self._has_room(number):
            if not self._is_half_free:
                return False
            self._let_in()
        return not self._outside and self._has_room(number)

    def _let_in(self) -> None:
        while self._outside and self._has_room(self._outside[0]):
            self._put(self._outside.popleft())

    def _has_room(self, number: int) -> bool:
        if len(self._waiting) >= self._most:
            return False
        return not self._waiting or self._bytes + self._line[number].size <= self._most_bytes

    def _put(self, number: int) -> None:
        self._waiting.append(number)
        self._bytes += self._line[number].size


def _taking(line: Sequence[Served]) -> dict[int, int]:
    """How long the receiver takes for each message, by its place; empty if nothing tells that."""
    known = _known_times(line)
    if not known:
        return {}
    usual = known[min(known)]
    at_most = _longest_times(line)
    found: dict[int, int] = {}
    for number in range(len(line)):
        usual = known.get(number, usual)
        found[number] = min(usual, at_most.get(number, usual))
    return found


def _known_times(line: Sequence[Served]) -> dict[int, int]:
    """How long it took for each message of which that is known."""
    arrived = _in_turn(line)
    found: dict[int, int] = {}
    for (before, former), (number, one) in pairwise(arrived):
        if not one.is_broadcast:
            found[number] = max(one.at - max(one.received, former.at), 0)
        elif one.waited:  # for the one before
            found[before] = max(one.at - former.at, 0)
    if arrived and not arrived[0][1].is_broadcast:
        number, one = arrived[0]
        found[number] = max(one.at - one.received, 0)
    if arrived and not found:
        found[arrived[0][0]] = 0  # nobody ever waited
    return found


def _longest_times(line: Sequence[Served]) -> dict[int, int]:
    """How long it took at most for a broadcast after which the next one did not have to wait."""
    return {
        before: max(one.at - former.at, 0)
        for (before, former), (_, one) in pairwise(_in_turn(line))
        if one.is_broadcast and not one.waited
    }


def _in_turn(line: Sequence[Served]) -> list[tuple[int, Served]]:
    """What arrived, with its place, in the order in which it was taken."""
    arrived = ((number, one) for number, one in enumerate(line) if one.arrived)
    return sorted(arrived, key=lambda numbered: numbered[1].at)


def _lines(rows: pa.Table, rooms: Iterable[Room]) -> dict[tuple[int, str], list[Served]]:
    """What came in each incarnation for the receivers that are here, in order."""
    names = column(rows, "recipient")
    reasons, expiry = column(rows, "reason"), longs(rows, "expiry", NEVER)
    received, at = longs(rows, "received_at"), longs(rows, "at")
    late = are(reasons, Reason.EXPIRED) & (received < expiry)
    full = are(reasons, Reason.QUEUE_FULL)
    arrived = are(column(rows, "outcome"), Outcome.DELIVERED)
    here = np.asarray(column(rows, "out").is_null())
    some = np.flatnonzero((full | arrived | late) & here)
    told = names.take(pa.array(some)).to_pylist()
    incarnation = longs(rows, "incarnation")[some].tolist()
    wanted: dict[tuple[int, str], list[int]] = {}
    for row, number, name in zip(some.tolist(), incarnation, told, strict=True):
        if name is not None and any(selects(one.participant, name) for one in rooms):
            wanted.setdefault((number, name), []).append(row)
    size = np.asarray(pc.fill_null(column(rows, "bytes"), 0))
    broadcast = are(column(rows, "kind"), "multicast")
    local = np.asarray(column(rows, "via").is_null())
    return {
        receiver: sorted(
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
        for receiver, own in wanted.items()
    }
