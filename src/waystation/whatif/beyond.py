"""What no table decides: rooms, grants, and what left over a session that stays open. No Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from waystation.core.outcome import Outcome, Reason
from waystation.pipeline.kernels.columns import Flags, are, column, longs
from waystation.pipeline.kernels.visits import entries
from waystation.whatif.changes import Changes
from waystation.whatif.copies import Verdict
from waystation.whatif.granting import Judge
from waystation.whatif.past import NOTICED, RECONNECTED, ChangedNode, Closed
from waystation.whatif.rooms import AT_ONCE, Overruled, overruled_by_rooms
from waystation.whatif.standing import standing_for


class Beyond:
    """What would have been decided otherwise at one node beyond its tables."""

    def __init__(self, rows: pa.Table, name: str, changes: Changes, node: ChangedNode) -> None:
        self._found: list[Overruled] = []
        self._freed: set[int] = set()
        self._sessions: dict[int, set[str]] = {}
        self._waited: dict[int, set[str]] = {}
        rooms, grants = changes.rooms_at(name), changes.grants_at(name)
        if rooms:
            full = np.flatnonzero(
                are(column(rows, "reason"), Reason.QUEUE_FULL)
                | are(column(rows, "reason"), Reason.EXPIRED)
                | are(column(rows, "outcome"), Outcome.DELIVERED)
            )
            stands = standing_for(rows, full)
            found = overruled_by_rooms(rows, rooms, stands, node.recorded_until)
            self._found.append(found)
        if grants is not None:
            judged, freed = Judge(grants).overruled(rows, entries(rows), node.identities)
            self._found.append(judged)
            self._freed.update(freed)
        if node.kept_open:
            self._remember_sent(rows, node.kept_open)

    def _remember_sent(self, rows: pa.Table, closed: list[Closed]) -> None:
        """What left over a session shortly before its end, and may not have arrived."""
        at, sent = longs(rows, "at"), are(column(rows, "outcome"), Outcome.FORWARDED)
        for one in closed:
            near = (at > one.since - RECONNECTED) & (at <= one.since + NOTICED)
            some = np.flatnonzero(sent & near & are(column(rows, "out"), one.session))
            for stand in standing_for(rows, some).values():
                self._sessions.setdefault(stand, set()).add(one.session)
            if one.peer is not None:
                self._remember_waiting(rows, one, sent & are(column(rows, "next_node"), one.peer))

    def _remember_waiting(self, rows: pa.Table, closed: Closed, sent: Flags) -> None:
        """What came while a session was closed, waited for it, and left later than it would."""
        came = longs(rows, "received_at")
        waited = longs(rows, "at") > came + AT_ONCE
        waited &= (came >= closed.since) & (came < closed.until)
        for stand in standing_for(rows, np.flatnonzero(sent & waited)).values():
            self._waited.setdefault(stand, set()).add(closed.peer or "")

    @property
    def rows(self) -> list[int]:
        """The visits of which something is decided otherwise."""
        return sorted({row for one in self._found for row in one.rows()} | self._freed)

    @property
    def left(self) -> list[int]:
        """The visits of which a copy left over a session that stays open."""
        return sorted({*self._sessions, *self._waited})

    def sooner(self, row: int) -> tuple[str, ...]:
        """The peers that copies would have left for at once."""
        return tuple(sorted(self._waited.get(row, ())))

    def kept_open(self, row: int) -> tuple[str, ...]:
        """The sessions that stay open and that it left over."""
        return tuple(sorted(self._sessions.get(row, ())))

    def got_out(self, row: int, after: list[Verdict]) -> list[Verdict]:
        """Copies that were dropped, and would not have been."""
        freed = after if row in self._freed else []
        return [*(v for one in self._found for v in one.got_out.get(row, [])), *freed]

    def instead(self, row: int, verdicts: list[Verdict]) -> list[Verdict]:
        """What would have become of the copies of a visit."""
        for one in self._found:
            for stopped in one.stopped.get(row, []):
                whole = stopped.reason == Reason.REFUSED
                rest = [v for v in verdicts if not whole and v.recipient != stopped.recipient]
                verdicts = [*rest, stopped]
        return verdicts
