"""Events of a node folded to intervals: who was reached how, who listened to what, and when.

Arrow tables in, Arrow tables out, by whole columns; no Spark, no files. The rules are those of the
live tables (RE-2 .. RE-11, MC-8), as CONTRACT turns them into intervals. A fold goes through the
events of one (incarnation, participant) in the order of seq; here all folds of a node advance
together:

    Between two removes, a put finds a live entry unless everything before it has expired. Only
    accepted puts prolong an entry, and a put is refused only if it is remote and a local one came
    before it in the same life. So with the lives known, acceptance, expiry and stickiness are
    running sums and maxima. A life ends where a put comes after everything before it has expired,
    refused puts included: these ends are seen at once. The few that a refused put hides are found
    in rounds, the first of each life in each round.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.pipeline.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    coded_name,
    codes,
    column,
    flags,
    instants,
    kept,
    longs,
    numbered,
    stable_order,
    taken,
    with_numbers,
)
from waystation.pipeline.lifetimes import Lifetimes
from waystation.pipeline.schema import BUILT, TEXT

ROUNDS: Final = 8
"""So often all lives that are still in doubt are looked at together; the rest goes row by row."""

_REASONS: Final = pa.array(["replaced", "removed", "expired", "stopped", "restart"], TEXT)
REPLACED, REMOVED, EXPIRED, STOPPED, RESTART, OPEN = range(6)


def fold_routes(node: str, events: pa.Table, lifetimes: Lifetimes) -> pa.Table:
    """The `route_history` of one node, sorted by incarnation, participant and time.

    `events` has the columns of `routes`, in any order of rows.
    """
    return written_out("route_history", node, coded_routes(events, lifetimes))


def coded_routes(events: pa.Table, lifetimes: Lifetimes) -> pa.Table:
    """The same without the node, with texts as numbers of distinct ones where they repeat."""
    if events.num_rows == 0:
        return _coded("route_history", BUILT["route_history"].empty_table().columns[1:])
    events = with_numbers(events, "participant")
    folded = RouteFold(events)
    rows, to, why = folded.intervals(lifetimes)
    origin = folded.order[rows]
    return _coded(
        "route_history",
        [
            taken(events, "incarnation", origin),
            kept(events, "participant", origin),
            kept(events, "address", origin),
            taken(events, "local", origin),
            taken(events, "visible", origin),
            pa.array(folded.sticky[rows]),
            instants(folded.expiry[rows]),
            instants(folded.at[rows]),
            instants(to),
            _why(why),
        ],
    )


def named(node: str, history: pa.Table) -> pa.Table:
    """A history with the name of the node."""
    return history.add_column(0, "node", coded_name(node, history.num_rows))


def written_out(table: str, node: str, history: pa.Table) -> pa.Table:
    """A history with the name of the node and all texts, as it is in `BUILT`."""
    return named(node, history).cast(BUILT[table])


def _without_node(table: str) -> pa.Schema:
    return BUILT[table].remove(0)


def _coded(table: str, columns: list[pa.Array]) -> pa.Table:
    """A history without the node, its texts as they were read."""
    return pa.Table.from_arrays(columns, names=_without_node(table).names)


def _why(reasons: Longs) -> pa.DictionaryArray:
    indices = pa.array(reasons.astype(np.int32), mask=reasons == OPEN)
    return pa.DictionaryArray.from_arrays(indices, _REASONS)


def decided_otherwise(events: pa.Table) -> Longs:
    """The rows of `routes` whose `accepted` is not what the rules say of the put."""
    if events.num_rows == 0:
        return np.zeros(0, np.int64)
    folded = RouteFold(events)
    told = column(events, "accepted")
    known = folded.sorted(np.asarray(told.is_valid()))
    said = folded.sorted(np.asarray(pc.fill_null(told, fill_value=False)))
    return np.sort(folded.order[folded.put & known & (said != folded.accepted)])


def fold_subscriptions(node: str, events: pa.Table, lifetimes: Lifetimes) -> pa.Table:
    """The `subscription_history` of one node; `events` has the columns of `subscriptions`."""
    return written_out("subscription_history", node, coded_subscriptions(events, lifetimes))


def coded_subscriptions(events: pa.Table, lifetimes: Lifetimes) -> pa.Table:
    """The same without the node, with texts as numbers of distinct ones where they repeat."""
    if events.num_rows == 0:
        empty = BUILT["subscription_history"].empty_table()
        return _coded("subscription_history", empty.columns[1:])
    events = with_numbers(events, "pattern", "receiver")
    incarnation = longs(events, "incarnation")
    receiver = codes(column(events, "receiver"))
    pair = codes(column(events, "pattern")) * (int(receiver.max()) + 1) + receiver
    order, group, first = grouped(incarnation, pair, longs(events, "seq"))
    at = latest_so_far(longs(events, "at")[order], first)
    on = are(column(events, "kind"), "subscribe")[order]
    changes = np.flatnonzero(np.where(first, on, on != _before(on)))
    opens = on[changes]
    following = np.append(changes[1:], 0)
    closed = np.append(group[changes[1:]] == group[changes[:-1]], False)[opens]
    rows, following = changes[opens], following[opens]
    to = np.where(closed, at[following], NEVER)
    why = np.where(closed, REMOVED, OPEN)
    cut(lifetimes, incarnation[order][rows], to, why)
    lasting = at[rows] < to
    rows, to, why = rows[lasting], to[lasting], why[lasting]
    origin = order[rows]
    return _coded(
        "subscription_history",
        [
            taken(events, "incarnation", origin),
            kept(events, "pattern", origin),
            kept(events, "receiver", origin),
            instants(at[rows]),
            instants(to),
            _why(why),
        ],
    )


class RouteFold:
    """All folds of a node's routes. Arrays stand in the order of (incarnation, participant, seq).

    `order` leads back to the rows of the events; `group` numbers the folds. `accepted`, `expiry`
    and `sticky` are what the table decided and then held.
    """

    def __init__(self, events: pa.Table) -> None:
        self.incarnation = longs(events, "incarnation")
        participant = codes(column(events, "participant"))
        found = grouped(self.incarnation, participant, longs(events, "seq"))
        self.order, self.group, self.first = found
        self.at = latest_so_far(self.sorted(longs(events, "at")), self.first)
        self.put = self.sorted(are(column(events, "kind"), "put"))
        self.local = self.put & self.sorted(flags(events, "local"))
        self._asked_sticky = self.put & self.sorted(flags(events, "sticky"))
        expiry = self.sorted(longs(events, "expiry", NEVER))
        self._asked_expiry = np.where(self.put, expiry, -1)
        self._scale = Scale(self._asked_expiry, int(self.put.sum()))
        self.accepted = self.put.copy()
        self.expiry = self._asked_expiry.copy()
        self.sticky = self._asked_sticky.copy()
        self._decide()

    def sorted(self, values: Any) -> Any:
        """Values of the events' rows in the order of the folds."""
        return values[self.order]

    def intervals(self, lifetimes: Lifetimes) -> tuple[Longs, Longs, Longs]:
        """The rows that open an interval which is not empty, where it ends (NEVER), and why."""
        telling = np.flatnonzero(self.accepted | ~self.put)  # what changes a table
        follows = np.append(self.group[telling[1:]] == self.group[telling[:-1]], False)
        opens = self.put[telling]
        rows, follows = telling[opens], follows[opens]
        following = np.append(telling[1:], 0)[opens]
        to = np.where(follows, self.at[following], NEVER)
        why = np.where(follows, np.where(self.put[following], REPLACED, REMOVED), OPEN)
        ends = np.where(self.sticky[rows], NEVER, self.expiry[rows])
        expired = (ends <= to) & (ends < NEVER)
        to, why = np.where(expired, ends, to), np.where(expired, EXPIRED, why)
        cut(lifetimes, self.sorted(self.incarnation)[rows], to, why)
        lasting = self.at[rows] < to
        return rows[lasting], to[lasting], why[lasting]

    def _decide(self) -> None:
        """Find where lives begin, and with that everything else."""
        begins = self.first.copy()
        begins[1:] |= ~self.put[:-1]  # after a remove there is nothing
        # Where even the longest of all expiries before has passed, whatever was refused of it.
        longest, any_sticky = self._held_before(begins, self.put)
        begins |= self.put & ~any_sticky & (self.at >= longest)
        doubtful = np.arange(len(begins))
        for _ in range(ROUNDS):
            ended = self._settle(begins, doubtful)
            if not len(ended):
                return
            begins[ended] = True
            doubtful = doubtful[np.isin(self.group[doubtful], self.group[ended])]
        self._settle_row_by_row(doubtful)

    def _held_before(self, begins: Flags, taken: Flags) -> tuple[Longs, Flags]:
        """The longest expiry, and whether any was sticky, in each life before each row."""
        return self._running(slice(None), begins, taken)[2:]

    def _running(self, part: Any, begins: Flags, taken: Flags) -> tuple[Longs, Flags, Longs, Flags]:
        """Longest expiry and stickiness of what was taken: up to each row, and before it."""
        scale = self._scale
        rank = np.where(taken, scale.ranks[part], 0)
        expiry = scale.values(running_rank(rank, begins, scale.top))
        sticky = running_any(taken & self._asked_sticky[part], begins)
        before, sticky_before = _before(expiry), _before(sticky)
        before[begins], sticky_before[begins] = -1, False
        return expiry, sticky, before, sticky_before

    def _settle(self, begins: Flags, part: Longs) -> Longs:
        """Decide the rows of `part` with these beginnings; tell which beginnings were missed.

        Of each life only the first is told: what comes after it was decided in error.
        """
        starts, put, local = begins[part], self.put[part], self.local[part]
        local_before = _before(running_any(local, starts))
        local_before[starts] = False
        accepted = put & (local | ~local_before)
        expiry, sticky, before, sticky_before = self._running(part, starts, accepted)
        self.accepted[part], self.expiry[part], self.sticky[part] = accepted, expiry, sticky
        missed = put & ~starts & ~sticky_before & (self.at[part] >= before)
        if not missed.any():
            return np.zeros(0, np.int64)
        life = np.cumsum(starts)
        rows = np.flatnonzero(missed)
        firsts = np.append(True, life[rows[1:]] != life[rows[:-1]])
        found: Longs = part[rows[firsts]]
        return found

    def _settle_row_by_row(self, part: Longs) -> None:
        """The same for folds that go on for longer than is worth looking at all of them again."""
        alive = local = sticky = False
        expiry = 0
        for row in part.tolist():
            if self.first[row]:
                alive = False
            if not self.put[row]:
                alive = False
                continue
            alive = alive and (sticky or bool(self.at[row] < expiry))
            accepted = not alive or bool(self.local[row]) or not local
            self.accepted[row] = accepted
            if accepted:
                asked, asked_sticky = int(self._asked_expiry[row]), bool(self._asked_sticky[row])
                expiry = max(asked, expiry) if alive else asked
                sticky = asked_sticky or (alive and sticky)
                local, alive = bool(self.local[row]), True
            self.expiry[row], self.sticky[row] = expiry, sticky


class Scale:
    """Instants as small numbers in the same order, so that stretches can be set apart by them.

    0 stands for no instant at all (-1), and the highest for NEVER. The numbers are the distances
    from the first instant, where these are small enough for so many stretches; else the places in
    the sorted list of all, which costs a sort.
    """

    def __init__(self, instants: Longs, stretches: int) -> None:
        ends = instants == NEVER
        finite = instants[~ends & (instants >= 0)]
        low, high = (int(finite.min()), int(finite.max())) if len(finite) else (0, 0)
        self._low = low
        self._distinct: Longs | None = None
        self.top = high - low + 3
        if self.top * (stretches + 2) < 2**62:
            ranks = np.where(ends, self.top - 1, instants - low + 1)
            self.ranks: Longs = np.where(instants < 0, 0, ranks)
        else:
            self._distinct, self.ranks = np.unique(np.append(-1, instants), return_inverse=True)
            self.ranks, self.top = self.ranks[1:], len(self._distinct)

    def values(self, ranks: Longs) -> Longs:
        """The instants that these numbers stand for."""
        if self._distinct is not None:
            return self._distinct[ranks]
        found = np.where(ranks == self.top - 1, NEVER, ranks + (self._low - 1))
        return np.where(ranks == 0, -1, found)


def cut(lifetimes: Lifetimes, incarnation: Longs, to: Longs, why: Longs) -> None:
    """End in place what would outlast its incarnation."""
    ends, stopped = lifetimes.ends_of(incarnation)
    beyond = ends < to
    to[beyond] = ends[beyond]
    why[beyond] = np.where(stopped[beyond], STOPPED, RESTART)


def grouped(incarnation: Longs, key: Longs, seq: Longs) -> tuple[Longs, Longs, Flags]:
    """Rows in the order of (incarnation, key, seq); the number of each fold; where each begins."""
    numbers, lives = numbered(incarnation)
    width = int(key.max()) + 1
    fold = lives * width + key if len(numbers) > 1 else key
    in_order = bool((np.diff(lives) >= 0).all() and _rises(seq, lives))
    order = stable_order(fold) if in_order else np.lexsort((seq, fold))
    fold = fold[order]
    first = np.append(True, fold[1:] != fold[:-1])
    return order, np.cumsum(first) - 1, first


def _rises(seq: Longs, lives: Longs) -> bool:
    return bool(((seq[1:] > seq[:-1]) | (lives[1:] > lives[:-1])).all())


def latest_so_far(at: Longs, first: Flags) -> Longs:
    """The latest instant seen so far in each fold: there time never runs backwards."""
    if bool(((at[1:] >= at[:-1]) | first[1:]).all()):
        return at
    return running_max(at, first)


def running_max(values: Longs, begins: Flags) -> Longs:
    """The highest value since the last beginning."""
    if bool((begins[1:] | (values[1:] >= values[:-1])).all()):
        return values
    distinct, rank = np.unique(values, return_inverse=True)
    found: Longs = distinct[running_rank(rank, begins, len(distinct))]
    return found


def running_rank(rank: Longs, begins: Flags, ranks: int) -> Longs:
    """The highest rank since the last beginning; ranks are below `ranks`."""
    floor = np.cumsum(begins) * ranks  # each stretch lies above all before it
    found: Longs = np.maximum.accumulate(floor + rank) - floor
    return found


def running_any(flags: Flags, begins: Flags) -> Flags:
    """Whether there was any since the last beginning."""
    if not flags.any():
        return flags.copy()
    count = np.cumsum(flags)
    before: Longs = count - flags
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(flags)), 0))
    return count > before[starts]


def _before(values: Any) -> Any:
    """Each row's former neighbour; the first has itself, and must be overwritten."""
    shifted = np.empty_like(values)
    shifted[1:] = values[:-1]
    shifted[:1] = values[:1]
    return shifted
