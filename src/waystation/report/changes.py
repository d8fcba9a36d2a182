"""Changes in `route_history`: entries that appeared, moved and ended, and those that remained.

The table is read once, in batches. An entry that replaces another at the same address was renewed,
one at another address has moved; the two are adjacent in the table as it is built. Where
they are not, it is only known that one replaced the other. A removed local entry has ended:
that is normal for workers and requests, while a removed remote entry means that somebody left.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from waystation.core.address_types import GENERATED
from waystation.journal.schema import INSTANT
from waystation.report.reading import Tables
from waystation.report.tally import Tally
from waystation.report.times import DAY, HOUR, MINUTE, Bins, positions

QUIET: Final = ("renewed", "ended")
"""Ends that are normal: leases are renewed, and workers and requests of a node end."""

KINDS: Final = (*QUIET, "moved", "replaced", "removed", "expired", "stopped", "restart")
"""How an entry can end, in the order in which it is drawn."""

LATER: Final = -1
"""The bin of entries that end after the time range: a lease that outlives the journal."""

AGES: Final = (
    ("under a minute", MINUTE),
    ("under 10 minutes", 10 * MINUTE),
    ("under an hour", HOUR),
    ("under 6 hours", 6 * HOUR),
    ("under a day", DAY),
    ("a day or more", 1 << 62),
)

OLDEST: Final = 10

_COLUMNS: Final = [
    "node",
    "incarnation",
    "participant",
    "address",
    "local",
    "sticky",
    "expiry",
    "valid_from",
    "valid_to",
    "closed_by",
]
_SAME: Final = ("node", "incarnation", "participant")
_NEVER: Final = 1 << 62
_MADE_UP: Final = f"^[a-z]+-[0-9a-f]{{{GENERATED}}}$"
"""The names that nodes give to sessions, requests and subscriptions."""


class Entry(Struct, frozen=True):
    """An entry that existed at the end."""

    since: int
    node: str
    participant: str
    address: str
    expiry: int | None


class Changes(Struct):
    """All counts."""

    entries: int = 0
    opened: Counter[int] = field(default_factory=Counter)  # bin
    ended: Counter[tuple[int, str]] = field(default_factory=Counter)  # bin, kind
    by_node: Counter[tuple[str, str]] = field(default_factory=Counter)  # node, kind
    restless: Tally = field(default_factory=Tally)
    standing: Counter[tuple[str, bool]] = field(default_factory=Counter)  # age, leased
    overdue: int = 0  # sticky entries that exist although their expiry has passed
    oldest_overdue: list[Entry] = field(default_factory=list)
    oldest: list[Entry] = field(default_factory=list)


def count_changes(tables: Tables, bins: Bins) -> Changes:
    """Read all of `route_history`."""
    changes = Changes()
    carried: Any = None
    for batch in tables.batches("route_history", _COLUMNS):
        rows = pa.Table.from_batches([batch])
        rows = _with_long_instants(rows)
        known = rows if carried is None else pa.concat_tables([carried, rows])
        _count(known.slice(0, known.num_rows - 1), known.slice(1), changes, bins)
        carried = known.slice(known.num_rows - 1)
    if carried is not None:
        _count(carried, carried.slice(1), changes, bins)
    return changes


def _count(rows: Any, following: Any, changes: Changes, bins: Bins) -> None:
    if rows.num_rows == 0:
        return
    changes.entries += rows.num_rows
    kinds = _kinds(rows, following)
    begun = positions(bins, _numbers(rows, "valid_from", 0))
    changes.opened.update({part: int(n) for part, n in zip(*_unique(begun), strict=True)})
    ended = pa.array(positions(bins, _numbers(rows, "valid_to", _NEVER)))
    told = pa.table(
        {
            "part": ended,
            "node": rows.column("node"),
            "participant": rows.column("participant"),
            "kind": kinds,
        }
    ).filter(pc.is_valid(kinds))
    for part, kind, number in _counted(told, "part", "kind"):
        changes.ended[part, kind] += number
    told = told.filter(pc.not_equal(told.column("part"), LATER))
    for node, kind, number in _counted(told, "node", "kind"):
        changes.by_node[node, kind] += number
    unrest = told.filter(pc.invert(pc.is_in(told.column("kind"), pa.array(QUIET))))
    changes.restless.add((name, number) for name, number in _counted(unrest, "participant"))
    _count_standing(rows, changes, bins.end)


def _kinds(rows: Any, following: Any) -> Any:
    """How each entry ended; null if it exists."""
    closed = rows.column("closed_by").combine_chunks()
    own = pc.and_(rows.column("local"), pc.equal(closed, "removed"))
    closed = pc.if_else(pc.fill_null(own, False), "ended", closed)
    replaced = pc.fill_null(pc.equal(closed, "replaced"), False)
    if following.num_rows < rows.num_rows:
        return closed
    next_one = pc.equal(rows.column("valid_to"), following.column("valid_from"))
    for name in _SAME:
        next_one = pc.and_(next_one, pc.equal(rows.column(name), following.column(name)))
    next_one = pc.and_(replaced, pc.fill_null(next_one, False))
    stays = pc.equal(rows.column("address"), following.column("address"))
    fate = pc.if_else(pc.fill_null(stays, False), "renewed", "moved")
    return pc.if_else(next_one, fate, closed)


def _count_standing(rows: Any, changes: Changes, end: int) -> None:
    """The entries that existed at the end, except those of the node's own workers."""
    since, until = _numbers(rows, "valid_from", 0), _numbers(rows, "valid_to", _NEVER)
    remote = ~pc.fill_null(rows.column("local"), False).to_numpy()
    stands = remote & (since < end) & (until >= end)
    leased = _numbers(rows, "expiry", _NEVER) < _NEVER
    ages = np.searchsorted([limit for _, limit in AGES], end - since, side="right")
    for has_lease in (False, True):
        chosen = ages[stands & (leased == has_lease)]
        for age, number in zip(*_unique(chosen), strict=True):
            changes.standing[AGES[age][0], has_lease] += int(number)
    sticky = pc.fill_null(rows.column("sticky"), False).to_numpy()
    overdue = stands & sticky & (_numbers(rows, "expiry", _NEVER) <= end)
    changes.overdue += int(np.count_nonzero(overdue))
    changes.oldest_overdue = _oldest(changes.oldest_overdue, rows, overdue)
    changes.oldest = _oldest(changes.oldest, rows, _for_lasting_names(rows, stands))


def _for_lasting_names(rows: Any, chosen: Any) -> Any:
    """Those of the chosen entries whose name was not made up by a node, as that of a session is."""
    numbers = np.flatnonzero(chosen)
    names = rows.column("participant").take(pa.array(numbers)).cast(pa.string())
    made_up = pc.match_substring_regex(names, _MADE_UP).to_numpy(zero_copy_only=False)
    kept = np.zeros(len(chosen), np.bool_)
    kept[numbers[~made_up]] = True
    return kept


def _oldest(known: list[Entry], rows: Any, chosen: Any) -> list[Entry]:
    numbers = np.flatnonzero(chosen)
    if not len(numbers):
        return known
    since = _numbers(rows, "valid_from", 0)[numbers]
    latest = np.sort(since)[:OLDEST][-1]
    found = rows.take(pa.array(numbers[since <= latest])).to_pylist()
    entries = [
        Entry(row["valid_from"], row["node"], row["participant"], row["address"], row["expiry"])
        for row in found
    ]
    return sorted([*known, *entries], key=_age)[:OLDEST]


def _age(entry: Entry) -> tuple[int, str, str, str]:
    return (entry.since, entry.node, entry.participant, entry.address)


def _with_long_instants(rows: Any) -> Any:
    for name in ("expiry", "valid_from", "valid_to"):
        column = rows.column(name).cast(INSTANT, safe=False).cast(pa.int64())
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _numbers(rows: Any, name: str, instead: int) -> Any:
    return pc.fill_null(rows.column(name), instead).to_numpy()


def _unique(values: Any) -> tuple[list[int], list[int]]:
    found, numbers = np.unique(values, return_counts=True)
    return found.tolist(), numbers.tolist()


def _counted(rows: Any, *names: str) -> list[tuple[Any, ...]]:
    grouped = rows.group_by(list(names)).aggregate([([], "count_all")])
    return list(
        zip(*(grouped.column(name).to_pylist() for name in [*names, "count_all"]), strict=True)
    )
