"""Which rows of the journal are sound (SP-5): what each column of each table may hold.

Columns in, the problems of rows out; by distinct values where the answer takes time. What types
columns have is settled before, in normal.py. No files and no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.address import Address
from waystation.core.expiry import LAST_INSTANT
from waystation.core.multicast import check_pattern
from waystation.core.outcome import Outcome
from waystation.errors import LocalError
from waystation.pipeline.columns import column, longs
from waystation.pipeline.schema import MEMBERS, MESSAGES, NODES, ROUTES, SUBSCRIPTIONS

Flags: TypeAlias = npt.NDArray[np.bool_]
Problems: TypeAlias = Iterator[tuple[Flags, str]]
"""Rows, and what is wrong with them."""

_LAST: Final = LAST_INSTANT * 1_000 + 999
_ID_DIGITS: Final = 32
_IS_HEX: Final = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdef", np.uint8))

# What most addresses and patterns look like; the others are read as the live node reads them.
_USUAL_ADDRESS: Final = r"^(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])#[!-/1-~][!-~]*$"
_USUAL_PATTERN: Final = r"^[!\"$-),-.0-~]+/[!\"$-),-.0-~]+(/[A-Za-z0-9]+){0,20}$"

KINDS: Final = {
    NODES: ["start", "stop", "lost"],
    ROUTES: ["put", "remove"],
    SUBSCRIPTIONS: ["subscribe", "unsubscribe"],
    MEMBERS: ["join", "leave", "suspect", "invalidate", "address"],
    MESSAGES: ["unicast", "multicast"],
}


def problems_of(table: str, rows: pa.Table) -> dict[int, str]:
    """The number of each row that is not sound, and the first thing that is wrong with it.

    >>> problems_of("nodes", pa.table({"incarnation": [1], "seq": [-1], "at": [0], "kind": ["up"]}))
    {0: 'seq is negative'}
    """
    found: dict[int, str] = {}
    if rows.num_rows:
        for bad, problem in _all_problems(table, rows):
            if bad.any():
                for row in np.flatnonzero(bad).tolist():
                    found.setdefault(row, problem)
    return found


def _all_problems(table: str, rows: pa.Table) -> Problems:
    for name in ("incarnation", "seq"):
        yield _nulls(rows, name), f"{name} is null"
        yield longs(rows, name) < 0, f"{name} is negative"
    yield from _instant(rows, "at", optional=False)
    yield from _one_of(rows, "kind", KINDS[table])
    yield from _OF_TABLE[table](rows)


def _routes(rows: pa.Table) -> Problems:
    yield _blank(rows, "participant"), "participant is empty"
    put = _is(rows, "kind", "put")
    for name in ("local", "visible", "sticky"):
        yield put & _nulls(rows, name), f"{name} is null"
    yield (
        put & _refused(column(rows, "address"), _USUAL_ADDRESS, Address.parse),
        ("address is no address"),
    )
    yield from _instant(rows, "expiry", optional=True)


def _subscriptions(rows: pa.Table) -> Problems:
    yield _refused(column(rows, "pattern"), _USUAL_PATTERN, check_pattern), "pattern is no pattern"
    yield _blank(rows, "receiver"), "receiver is empty"


def _members(rows: pa.Table) -> Problems:
    yield _nulls(rows, "grp"), "grp is null"
    yield _blank(rows, "uuid"), "uuid is empty"


def _messages(rows: pa.Table) -> Problems:
    yield _no_ids(column(rows, "message_id")), "message_id is not 32 lower-case hex digits"
    yield from _one_of(rows, "outcome", [str(outcome) for outcome in Outcome])
    for name in ("onward", "return"):
        yield _nulls(rows, name), f"{name} is null"
        yield _bad_routes(column(rows, name)), f"{name} holds what is no address"
    multicast = _is(rows, "kind", "multicast")
    yield multicast & _nulls(rows, "multicast_id"), "a multicast has no multicast_id"
    yield _nulls(rows, "bytes"), "bytes is null"
    yield np.asarray(pc.fill_null(pc.less(column(rows, "bytes"), 0), False)), "bytes is negative"
    yield _nulls(rows, "from_global"), "from_global is null"
    yield from _instant(rows, "expiry", optional=True)
    yield from _instant(rows, "received_at", optional=False)


_OF_TABLE: Final[dict[str, Callable[[pa.Table], Problems]]] = {
    NODES: lambda _: iter(()),
    ROUTES: _routes,
    SUBSCRIPTIONS: _subscriptions,
    MEMBERS: _members,
    MESSAGES: _messages,
}


def _nulls(rows: pa.Table, name: str) -> Flags:
    values = rows.column(name)
    if not values.null_count:
        return np.zeros(len(values), np.bool_)
    return np.asarray(pc.is_null(column(rows, name)))


def _is(rows: pa.Table, name: str, value: str) -> Flags:
    return np.asarray(pc.fill_null(pc.equal(column(rows, name), value), False))


def _blank(rows: pa.Table, name: str) -> Flags:
    return np.asarray(pc.fill_null(pc.equal(column(rows, name), ""), True))


def _one_of(rows: pa.Table, name: str, allowed: list[str]) -> Problems:
    known = pc.is_in(column(rows, name), pa.array(allowed))
    yield ~np.asarray(known), f"{name} is none of {', '.join(allowed)}"


def _instant(rows: pa.Table, name: str, *, optional: bool) -> Problems:
    if not optional:
        yield _nulls(rows, name), f"{name} is null"
    values = longs(rows, name)
    yield (values < 0) | (values > _LAST), f"{name} lies outside the years 1970 to 9999"


def _refused(values: pa.Array, usual: str, read: Callable[[str], object]) -> Flags:
    """Which texts cannot be read; null is none. Each distinct one is looked at once."""
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary
    bad = ~np.asarray(pc.match_substring_regex(distinct, usual))
    for number in np.flatnonzero(bad).tolist():
        bad[number] = not _is_readable(distinct[number].as_py(), read)
    codes = np.asarray(pc.fill_null(encoded.indices, -1))
    found: Flags = np.append(bad, True)[codes]
    return found


def _is_readable(text: str, read: Callable[[str], object]) -> bool:
    try:
        read(text)
    except LocalError:
        return False
    return True


def _bad_routes(routes: pa.Array) -> Flags:
    """Which routes hold an address that cannot be read."""
    bad = _refused(routes.flatten(), _USUAL_ADDRESS, Address.parse)
    found = np.zeros(len(routes), np.bool_)
    if bad.any():
        parents = np.asarray(pc.list_parent_indices(routes))
        found[parents[bad]] = True
    return found


def _no_ids(ids: pa.Array) -> Flags:
    """Which texts are no message ids."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(ids), 0))
    bad: Flags = lengths != _ID_DIGITS
    if not bad.any():
        digits = _bytes_of(ids).reshape(len(ids), _ID_DIGITS)
        return np.asarray(~_IS_HEX[digits].all(axis=1))
    sound = np.flatnonzero(~bad)
    bad[sound] = _no_ids(ids.take(pa.array(sound)))
    return bad


def _bytes_of(texts: Any) -> npt.NDArray[np.uint8]:
    """The bytes of all texts, one after the other; none may be null."""
    _, offsets, data = texts.buffers()
    if data is None:
        return np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
