"""Fold the events of a node into intervals: when routing entries and subscriptions were valid.

Arrow tables in, Arrow tables out, by whole columns; no Spark, no files. The rules are those of the
live tables (RE-2 .. RE-11, MC-8), as CONTRACT turns them into intervals. A fold goes through the
events of one (incarnation, participant) in the order of seq; here all folds of a node advance
together. How a table decides about puts is in route_fold.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from waystation.journal.schema import TEXT
from waystation.pipeline.kernels.columns import (
    NEVER,
    Flags,
    Longs,
    are,
    chosen,
    coded_name,
    codes,
    column,
    days,
    flags,
    instants,
    kept,
    longs,
    with_numbers,
)
from waystation.pipeline.kernels.lifetimes import OPEN, REMOVED, Lifetimes, cut
from waystation.pipeline.kernels.route_fold import LOCAL, VISIBLE, RouteFold, route_folds
from waystation.pipeline.kernels.stretches import FOLDED_AT_ONCE, before, latest_so_far, portions
from waystation.pipeline.tables import BUILT

_REASONS: Final = pa.array(["replaced", "removed", "expired", "stopped", "restart"], TEXT)


def fold_routes(node: str, events: pa.Table, lifetimes: Lifetimes) -> pa.Table:
    """The `route_history` of one node, sorted by participant, incarnation and time.

    `events` has the columns of `routes`, in any order of rows.
    """
    return written_out("route_history", node, coded_routes(events, lifetimes))


def coded_routes(events: pa.Table, lifetimes: Lifetimes, at_once: int = FOLDED_AT_ONCE) -> pa.Table:
    """The route history without the node, with dictionary-encoded strings where they repeat."""
    return _together("route_history", route_parts(events, lifetimes, at_once))


def route_parts(
    events: pa.Table, lifetimes: Lifetimes, at_once: int = FOLDED_AT_ONCE
) -> Iterator[pa.Table]:
    """The coded history in parts: each has complete folds, and all share one dictionary."""
    events = with_numbers(events, "participant")
    for fold in route_folds(events, at_once=at_once):
        yield _route_intervals(events, fold, lifetimes)


def _route_intervals(events: pa.Table, fold: RouteFold, lifetimes: Lifetimes) -> pa.Table:
    opening, to, why = fold.intervals(lifetimes)
    rows = fold.rows.take(opening)
    return _coded(
        "route_history",
        [
            pa.array(fold.incarnation[opening]),
            _texts(column(events, "participant"), fold.participant[opening]),
            _texts(column(events, "address"), rows["address"]),
            pa.array(rows["marks"] & LOCAL != 0),
            pa.array(rows["marks"] & VISIBLE != 0),
            pa.array(fold.sticky[opening]),
            instants(fold.expiry[opening]),
            instants(fold.at[opening]),
            instants(to),
            _why(why),
            days(fold.at[opening]),
        ],
    )


def _texts(texts: pa.Array, numbers: Any) -> pa.Array:
    """Strings for the codes of a fold."""
    if pa.types.is_dictionary(texts.type):
        return chosen(texts.dictionary, numbers)
    return texts.take(pa.array(np.ascontiguousarray(numbers)))


def named(node: str, history: pa.Table) -> pa.Table:
    """A history with the name of the node."""
    return history.add_column(0, "node", coded_name(node, history.num_rows))


def written_out(table: str, node: str, history: pa.Table) -> pa.Table:
    """A history with the name of the node and plain strings, as in `BUILT`."""
    return named(node, history).cast(BUILT[table])


def _without_node(table: str) -> pa.Schema:
    return BUILT[table].remove(0)


def _together(table: str, parts: Iterable[pa.Table]) -> pa.Table:
    """The parts of a history as one table, even if there are none."""
    found = list(parts)
    return pa.concat_tables(found) if found else _without_node(table).empty_table()


def _coded(table: str, columns: list[pa.Array]) -> pa.Table:
    """A history without the node, with strings encoded as they were read."""
    return pa.Table.from_arrays(columns, names=_without_node(table).names)


def _why(reasons: Longs) -> pa.DictionaryArray:
    indices = pa.array(reasons.astype(np.int32), mask=reasons == OPEN)
    return pa.DictionaryArray.from_arrays(indices, _REASONS)


def decided_otherwise(events: pa.Table) -> Longs:
    """The rows of `routes` whose `accepted` differs from what the rules say about the put."""
    known = np.asarray(column(events, "accepted").is_valid())
    said = flags(events, "accepted")
    found = [
        fold.order[fold.put & known[fold.order] & (said[fold.order] != fold.accepted)]
        for fold in route_folds(events)
    ]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))


def fold_subscriptions(node: str, events: pa.Table, lifetimes: Lifetimes) -> pa.Table:
    """The `subscription_history` of one node; `events` has the columns of `subscriptions`."""
    return written_out("subscription_history", node, coded_subscriptions(events, lifetimes))


def coded_subscriptions(
    events: pa.Table, lifetimes: Lifetimes, at_once: int = FOLDED_AT_ONCE
) -> pa.Table:
    """The subscription history without the node, with dictionary-encoded strings."""
    return _together("subscription_history", subscription_parts(events, lifetimes, at_once))


def subscription_parts(
    events: pa.Table, lifetimes: Lifetimes, at_once: int = FOLDED_AT_ONCE
) -> Iterator[pa.Table]:
    """The coded subscription history in parts."""
    if events.num_rows == 0:
        return
    events = with_numbers(events, "pattern", "receiver")
    at, on = longs(events, "at"), are(column(events, "kind"), "subscribe")
    receiver = codes(column(events, "receiver"))
    pair = codes(column(events, "pattern")) * (int(receiver.max()) + 1) + receiver
    for order, first, incarnation, _ in portions(events, pair, at_once):
        since = latest_so_far(at[order], first)
        rows, to, why = _listening(on[order], since, first)
        cut(lifetimes, incarnation[rows], to, why)
        lasting = since[rows] < to
        rows, to, why = rows[lasting], to[lasting], why[lasting]
        found = [
            pa.array(incarnation[rows]),
            kept(events, "pattern", order[rows]),
            kept(events, "receiver", order[rows]),
            instants(since[rows]),
            instants(to),
            _why(why),
            days(since[rows]),
        ]
        yield _coded("subscription_history", found)


def _listening(on: Flags, at: Longs, first: Flags) -> tuple[Longs, Longs, Longs]:
    """The rows that begin a subscription, the time of each end (NEVER if none), and its cause."""
    changes = np.flatnonzero(np.where(first, on, on != before(on)))
    group = np.cumsum(first)[changes]
    opens = on[changes]
    closed = np.append(group[1:] == group[:-1], False)[: len(changes)][opens]
    following = np.append(changes[1:], 0)[: len(changes)][opens]
    to = np.where(closed, at[following], NEVER)
    return changes[opens], to, np.where(closed, REMOVED, OPEN)
