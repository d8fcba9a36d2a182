"""Open intervals as the events that lead to them, so that a fold can continue from there.

And which of the routes changed recently. folding.py explains folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.journal.schema import ROUTES, SUBSCRIPTIONS
from waystation.pipeline.kernels.columns import NEVER, column, longs, repeated
from waystation.pipeline.kernels.folding import fold_routes, fold_subscriptions
from waystation.pipeline.schema import plain_schema

_MINUTE: Final = 60_000_000


def by_incarnation(rows: pa.Table) -> Iterable[tuple[int, pa.Table]]:
    """The rows of each incarnation."""
    numbers = longs(rows, "incarnation")
    distinct = np.unique(numbers).tolist()
    for number in distinct:
        yield number, rows if len(distinct) == 1 else rows.filter(pa.array(numbers == number))


def changes_of(history: pa.Table) -> dict[str, list[int]]:
    """When participants changed their address, or came back, within the last recorded minute."""
    if history.num_rows < 2:
        return {}
    begins, ends = longs(history, "valid_from"), longs(history, "valid_to", NEVER)
    recent = begins[1:] > begins.max() - _MINUTE
    same = np.asarray(
        pc.equal(history.column("participant")[1:], history.column("participant")[:-1])
    )
    moved = np.asarray(pc.not_equal(history.column("address")[1:], history.column("address")[:-1]))
    rows = np.flatnonzero(recent & same & (moved | (begins[1:] != ends[:-1]))) + 1
    found: dict[str, list[int]] = {}
    names = column(history, "participant").take(pa.array(rows)).to_pylist()
    for name, at in zip(names, begins[rows].tolist(), strict=True):
        found.setdefault(name, []).append(at)
    return found


def _as_puts(open_ones: pa.Table) -> pa.Table:
    """Open intervals as the puts that lead to them: a fold continues from there (RE-7, RE-8)."""
    count = open_ones.num_rows
    given = {name: open_ones.column(name) for name in _KEPT_OF_ROUTE}
    return _as_events(ROUTES, open_ones, {"kind": repeated("put", count), **given})


def _as_subscribes(open_ones: pa.Table) -> pa.Table:
    count = open_ones.num_rows
    given = {name: open_ones.column(name) for name in ("pattern", "receiver")}
    return _as_events(SUBSCRIPTIONS, open_ones, {"kind": repeated("subscribe", count), **given})


_KEPT_OF_ROUTE: Final = (
    "participant",
    "address",
    "local",
    "visible",
    "expiry",
    "sticky",
)


def _as_events(table: str, open_ones: pa.Table, columns: dict[str, Any]) -> pa.Table:
    count = open_ones.num_rows
    columns = {
        "incarnation": open_ones.column("incarnation"),
        "seq": pa.array(np.full(count, -1)),  # before all recorded ones
        "at": open_ones.column("valid_from"),
        "accepted": pa.nulls(count, pa.bool_()),
        **columns,
    }
    schema = plain_schema(table)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


FOLDS: Final[dict[str, tuple[Callable[..., pa.Table], Callable[[pa.Table], pa.Table]]]] = {
    ROUTES: (fold_routes, _as_puts),
    SUBSCRIPTIONS: (fold_subscriptions, _as_subscribes),
}
