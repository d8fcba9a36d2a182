"""Replay puts and removes: what a routing table decided, and what it then held, by whole columns.

All folds of a node advance together:

    Between two removes, a put finds a live entry unless everything before it has expired. Only
    accepted puts prolong an entry, and a put is refused only if it is remote and a local one came
    before it in the same life. So with the lives known, acceptance, expiry and stickiness are
    running sums and maxima. A life ends where a put comes after everything before it has expired,
    refused puts included: these ends are seen at once. The few that a refused put hides are found
    in rounds, the first of each life in each round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from waystation.pipeline.kernels.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    codes,
    column,
    flags,
    longs,
)
from waystation.pipeline.kernels.lifetimes import EXPIRED, OPEN, REMOVED, REPLACED, Lifetimes, cut
from waystation.pipeline.kernels.stretches import (
    FOLDED_AT_ONCE,
    Portion,
    after,
    before,
    latest_so_far,
    portions,
    running_any,
    running_rank,
)

ROUNDS: Final = 8
"""Rounds in which all lives still in doubt are checked together; the rest goes row by row."""

PUT, LOCAL, VISIBLE, STICKY = 1, 2, 4, 8

_ROW: Final = np.dtype(
    [("at", "i8"), ("expiry", "i8"), ("address", "i4"), ("marks", "u1")], align=True
)
"""What a fold needs of an event; flags are bits of `marks`.

Sorting events by fold fetches them from all over the memory. What is stored together is fetched
at once.
"""


def route_folds(
    events: pa.Table, *, at_once: int = FOLDED_AT_ONCE, rounds: int = ROUNDS
) -> Iterator[RouteFold]:
    """All folds of a node, in portions of about `at_once` rows."""
    if events.num_rows == 0:
        return
    rows = _rows(events)
    expiries = _bounds(rows["expiry"])
    for portion in portions(events, codes(column(events, "participant")), at_once):
        yield RouteFold(portion, rows.take(portion.order), expiries, rounds)


def _bounds(instants: Longs) -> tuple[int, int]:
    """The earliest and the latest time that occurs."""
    earliest = int(instants.min())
    if earliest == NEVER:
        return 0, 0
    return earliest, int(instants.max(where=instants < NEVER, initial=earliest))


def _rows(events: pa.Table) -> Any:
    rows = np.empty(events.num_rows, _ROW)
    rows["at"] = longs(events, "at")
    rows["expiry"] = longs(events, "expiry", NEVER)
    rows["address"] = _text_numbers(column(events, "address"))
    marks = are(column(events, "kind"), "put").astype(np.uint8) * PUT
    for name, bit in (("local", LOCAL), ("visible", VISIBLE), ("sticky", STICKY)):
        marks |= flags(events, name).astype(np.uint8) * bit
    rows["marks"] = marks
    return rows


def _text_numbers(texts: pa.Array) -> Any:
    """The code of each distinct string, or of each row if strings are plain."""
    return codes(texts) if pa.types.is_dictionary(texts.type) else np.arange(len(texts))


class RouteFold:
    """Some folds of a node's routes. Arrays are in the order of (participant, incarnation, seq).

    `order` leads back to the events, `rows` has their data. `accepted`, `expiry` and
    `sticky` are what the table decided and then held, where `put` is true.
    """

    def __init__(self, portion: Portion, rows: Any, expiries: tuple[int, int], rounds: int) -> None:
        self.order, self.first, self.incarnation, self.participant = portion
        self.rows = rows
        self.at = latest_so_far(np.ascontiguousarray(rows["at"]), self.first)
        marks = np.ascontiguousarray(rows["marks"])
        self.put = marks & PUT != 0
        self._local = marks & (PUT | LOCAL) == PUT | LOCAL
        self._asked_sticky = marks & (PUT | STICKY) == PUT | STICKY
        self._asked_expiry = np.ascontiguousarray(rows["expiry"])
        self._scale = Scale(self._asked_expiry, *expiries)
        # In a life that ends when an expiry passes, a sticky entry never expires.
        self._holds = np.where(self._asked_sticky, self._scale.top - 1, self._scale.ranks)
        self.accepted = self.put.copy()
        self.expiry = self._asked_expiry.copy()
        self.sticky = self._asked_sticky.copy()
        self._decide(rounds)

    def intervals(self, lifetimes: Lifetimes) -> tuple[Longs, Longs, Longs]:
        """The rows that open a non-empty interval, its end (NEVER if none), and the cause."""
        telling = self._telling()
        at, put = self.at[telling], self.put[telling]
        last = np.append(self.first[telling][1:], True)  # nobody's first row is refused
        to = np.where(last, NEVER, after(at))
        why = np.where(last, OPEN, np.where(after(put), REPLACED, REMOVED))
        ends = np.where(self.sticky[telling], NEVER, self.expiry[telling])
        expired = (ends <= to) & (ends < NEVER)
        np.copyto(to, ends, where=expired)
        np.copyto(why, EXPIRED, where=expired)
        cut(lifetimes, self.incarnation[telling], to, why)
        lasting = np.flatnonzero(put & (at < to))
        return np.arange(len(self.put))[telling][lasting], to[lasting], why[lasting]

    def _telling(self) -> Any:
        """The rows that change a table: all except refused puts."""
        tells = self.accepted | ~self.put
        return slice(None) if tells.all() else np.flatnonzero(tells)

    def _decide(self, rounds: int) -> None:
        """Find where lives begin, and from that everything else."""
        begins = self.first.copy()
        begins[1:] |= ~self.put[:-1]  # after a remove there is no entry
        # Where the latest of all earlier expiries has passed, even if those puts were refused.
        begins |= self._outlived(slice(None), np.cumsum(begins), self.put)
        part: Any = slice(None)
        for _ in range(rounds):
            missed = self._settle(begins, part)
            if not len(missed):
                return
            begins[missed] = True
            fold = np.cumsum(self.first)
            part = np.flatnonzero(np.isin(fold, fold[missed]))
        self._settle_row_by_row(part)

    def _settle(self, begins: Flags, part: Any) -> Longs:
        """Decide the rows of `part` with these beginnings; returns the beginnings that were missed.

        Only the first of each life is returned: the decisions after it were wrong.
        """
        starts, put, local = begins[part], self.put[part], self._local[part]
        life = np.cumsum(starts)
        accepted = put
        if local.any():
            local_before = before(running_any(local, life))
            accepted = put & (local | starts | ~local_before)
        rank = np.where(accepted, self._scale.ranks[part], 0)
        self.accepted[part] = accepted
        self.expiry[part] = self._scale.values(running_rank(rank, life, self._scale.top))
        self.sticky[part] = running_any(accepted & self._asked_sticky[part], life)
        if accepted is put:
            return np.zeros(0, np.int64)  # if nothing is refused, all beginnings are visible
        rows = np.flatnonzero(~starts & self._outlived(part, life, accepted))
        firsts = np.append(True, life[rows[1:]] != life[rows[:-1]])[: len(rows)]
        found: Longs = np.arange(len(begins))[part][rows[firsts]]
        return found

    def _outlived(self, part: Any, life: Longs, taken: Flags) -> Flags:
        """The puts that come after everything accepted before them in a life has expired.

        The first row of a life is not considered.
        """
        holds = running_rank(np.where(taken, self._holds[part], 0), life, self._scale.top)
        outlived: Flags = self.put[part] & (self.at[part] >= before(self._scale.values(holds)))
        return outlived

    def _settle_row_by_row(self, part: Any) -> None:
        """Decide, row by row, the folds for which further rounds are not worthwhile."""
        alive = local = sticky = False
        expiry = 0
        for row in np.arange(len(self.put))[part].tolist():
            if self.first[row]:
                alive = False
            if not self.put[row]:
                alive = False
                continue
            alive = alive and (sticky or bool(self.at[row] < expiry))
            accepted = not alive or bool(self._local[row]) or not local
            self.accepted[row] = accepted
            if accepted:
                asked, asked_sticky = int(self._asked_expiry[row]), bool(self._asked_sticky[row])
                expiry = max(asked, expiry) if alive else asked
                sticky = asked_sticky or (alive and sticky)
                local, alive = bool(self._local[row]), True
            self.expiry[row], self.sticky[row] = expiry, sticky


class Scale:
    """Times as small numbers in the same order, so that stretches can be separated by an offset.

    0 stands for no time, and the maximum for NEVER. The numbers are the distances from
    the earliest time, if these are small enough for the number of stretches; otherwise the
    ranks among all times, which costs a sort.
    """

    def __init__(self, instants: Longs, earliest: int, latest: int) -> None:
        self._before = earliest - 1
        self._distinct: Longs | None = None
        self.top = latest - earliest + 3
        if self.top * (len(instants) + 2) < 2**62:
            self.ranks: Longs = np.minimum(instants, latest + 1) - self._before
        else:
            known = np.append([-1, NEVER], instants)
            self._distinct, ranks = np.unique(known, return_inverse=True)
            self.ranks, self.top = ranks[2:], len(self._distinct)

    def values(self, ranks: Longs) -> Longs:
        """The times for these numbers; for 0, one before all others."""
        if self._distinct is not None:
            return self._distinct[ranks]
        found = ranks + self._before
        np.copyto(found, NEVER, where=ranks == self.top - 1)
        return found
