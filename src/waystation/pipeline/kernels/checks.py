"""Validation of journal rows (SP-5): the values that each column of each table may hold.

Takes columns and returns the problems of rows. Expensive checks run on distinct values; single rows
are checked only if a column as a whole is not valid. Types are settled before, in normal.py. No
files and no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.address import Address
from waystation.core.expiry import LAST_INSTANT
from waystation.core.multicast import check_pattern
from waystation.core.outcome import Outcome
from waystation.core.record import ClaimKind
from waystation.errors import LocalError
from waystation.journal.schema import (
    CLAIMS,
    MEMBERS,
    MESSAGES,
    NODES,
    ROUTES,
    SESSIONS,
    SUBSCRIPTIONS,
    NodeKind,
)
from waystation.pipeline.kernels.columns import (
    ID_DIGITS,
    Flags,
    are_as_long_as_ids,
    codes,
    column,
    longs,
    text_bytes,
)
from waystation.pipeline.kernels.matching import are_usual_patterns

Problems: TypeAlias = Iterator[tuple[Flags, str]]
"""Rows and their problems; a check that finds nothing may yield nothing."""

LAST: Final = LAST_INSTANT * 1_000 + 999
"""The latest time that a record may have, in microseconds."""

# The usual form of an address; others are parsed as the live node parses them.
_USUAL_ADDRESS: Final = r"^(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])#[!-/1-~][!-~]*$"

KINDS: Final = {
    NODES: [str(kind) for kind in NodeKind],
    ROUTES: ["put", "remove"],
    SUBSCRIPTIONS: ["subscribe", "unsubscribe"],
    MEMBERS: ["join", "leave", "suspect", "invalidate", "address"],
    SESSIONS: ["open", "close", "refused", "denied", "clock"],
    CLAIMS: [str(kind) for kind in ClaimKind],
    MESSAGES: ["unicast", "multicast"],
}


def problems_of(table: str, rows: pa.Table) -> dict[int, str]:
    """The number of each invalid row, and the first problem found in it.

    >>> problems_of("nodes", pa.table({"incarnation": [1], "seq": [-1], "at": [0], "kind": ["up"]}))
    {0: 'seq is negative'}
    """
    found: dict[int, str] = {}
    if rows.num_rows:
        for bad, problem in _all_problems(table, rows):
            for row in np.flatnonzero(bad).tolist():
                found.setdefault(row, problem)
    return found


def _all_problems(table: str, rows: pa.Table) -> Problems:
    for name in ("incarnation", "seq"):
        yield from _nulls(rows, name)
        yield from _negative(rows, name)
    yield from _instant(rows, "at", optional=False)
    yield from _one_of(rows, "kind", KINDS[table])
    yield from _OF_TABLE[table](rows)


def _routes(rows: pa.Table) -> Problems:
    yield from _blank(rows, "participant")
    for name in ("local", "visible", "sticky"):
        yield from _where(rows, "put", _nulls(rows, name))
    addresses = _refused(column(rows, "address"), _are_usual_addresses, Address.parse)
    yield from _where(rows, "put", _told(addresses, "address is not a valid address"))
    yield from _instant(rows, "expiry", optional=True)


def _subscriptions(rows: pa.Table) -> Problems:
    patterns = _refused(column(rows, "pattern"), are_usual_patterns, check_pattern)
    yield from _told(patterns, "pattern is not a valid pattern")
    yield from _blank(rows, "receiver")


def _members(rows: pa.Table) -> Problems:
    yield from _nulls(rows, "grp")
    yield from _blank(rows, "uuid")


def _sessions(rows: pa.Table) -> Problems:
    yield from _nulls(rows, "session")


def _claims(rows: pa.Table) -> Problems:
    yield from _blank(rows, "participant")
    yield from _nulls(rows, "session")


def _messages(rows: pa.Table) -> Problems:
    ids = column(rows, "message_id")
    if not _all_ids(ids):
        yield _no_ids(ids), "message_id is not 32 lower-case hex digits"
    yield from _one_of(rows, "outcome", [str(outcome) for outcome in Outcome])
    for name in ("onward", "return"):
        yield from _nulls(rows, name)
        yield from _told(_bad_routes(column(rows, name)), f"{name} has an invalid address")
    unnamed = ((bad, "a multicast has no multicast_id") for bad, _ in _nulls(rows, "multicast_id"))
    yield from _where(rows, "multicast", unnamed)
    yield from _nulls(rows, "bytes")
    yield from _negative(rows, "bytes")
    yield from _nulls(rows, "from_global")
    yield from _instant(rows, "expiry", optional=True)
    yield from _instant(rows, "received_at", optional=False)


_OF_TABLE: Final[dict[str, Callable[[pa.Table], Problems]]] = {
    NODES: lambda _: iter(()),
    ROUTES: _routes,
    SUBSCRIPTIONS: _subscriptions,
    MEMBERS: _members,
    SESSIONS: _sessions,
    CLAIMS: _claims,
    MESSAGES: _messages,
}


def _told(bad: Flags | None, problem: str) -> Problems:
    if bad is not None:
        yield bad, problem


def _where(rows: pa.Table, kind: str, problems: Problems) -> Problems:
    """Problems that apply only to rows of one kind."""
    for bad, problem in problems:
        other = _failing(column(rows, "kind"), lambda kinds: ~_are(kinds, kind), null=True)
        yield bad if other is None else bad & ~other, problem


def _nulls(rows: pa.Table, name: str) -> Problems:
    if rows.column(name).null_count:
        yield np.asarray(pc.is_null(column(rows, name))), f"{name} is null"


def _negative(rows: pa.Table, name: str) -> Problems:
    values = column(rows, name)
    numbers = np.asarray(pc.fill_null(values, 0) if values.null_count else values)
    if numbers.min() < 0:
        yield numbers < 0, f"{name} is negative"


def _instant(rows: pa.Table, name: str, *, optional: bool) -> Problems:
    if not optional:
        yield from _nulls(rows, name)
    values = longs(rows, name)
    if values.min() < 0 or values.max() > LAST:
        bad = (values < 0) | (values > LAST)
        yield bad, f"{name} is outside the years 1970 to 9999"


def _blank(rows: pa.Table, name: str) -> Problems:
    bad = _failing(column(rows, name), lambda texts: _are(texts, ""), null=True)
    yield from _told(bad, f"{name} is empty")


def _one_of(rows: pa.Table, name: str, allowed: list[str]) -> Problems:
    def unknown(texts: pa.Array) -> Flags:
        return ~np.asarray(pc.is_in(texts, pa.array(allowed)))

    bad = _failing(column(rows, name), unknown, null=True)
    yield from _told(bad, f"{name} is not one of {', '.join(allowed)}")


def _are(texts: pa.Array, text: str) -> Flags:
    return np.asarray(pc.fill_null(pc.equal(texts, text), False))


def _failing(values: pa.Array, fail: Callable[[pa.Array], Flags], *, null: bool) -> Flags | None:
    """Which rows have an invalid string; None if there is none.

    Dictionary-encoded strings are checked once for each distinct value.
    """
    coded = pa.types.is_dictionary(values.type)
    bad = fail(values.dictionary if coded else values)
    if not bad.any() and not (null and values.null_count):
        return None
    if coded:
        found: Flags = np.append(bad, null)[codes(values)]
        return found
    return np.where(np.asarray(values.is_null()), null, bad)


def _are_usual_addresses(texts: pa.Array) -> Flags:
    return np.asarray(pc.fill_null(pc.match_substring_regex(texts, _USUAL_ADDRESS), False))


def _refused(
    values: pa.Array, usual: Callable[[pa.Array], Flags], read: Callable[[str], object]
) -> Flags | None:
    """Which strings cannot be parsed, except null. Those of the usual form are not parsed."""

    def fail(texts: pa.Array) -> Flags:
        bad = ~usual(texts)
        for number in np.flatnonzero(bad).tolist():
            bad[number] = not _is_readable(texts[number].as_py(), read)
        return np.asarray(bad)

    return _failing(values, fail, null=True)


def _is_readable(text: str | None, read: Callable[[str], object]) -> bool:
    try:
        read(text or "")
    except LocalError:
        return False
    return True


def _bad_routes(routes: pa.Array) -> Flags | None:
    """Which routes contain an invalid address."""
    bad = _refused(routes.flatten(), _are_usual_addresses, Address.parse)
    if bad is None:
        return None
    found = np.zeros(len(routes), np.bool_)
    found[np.asarray(pc.list_parent_indices(routes))[bad]] = True
    return found


def _all_ids(ids: pa.Array) -> bool:
    """Whether every string is a message id."""
    return are_as_long_as_ids(ids) and not _no_digits(text_bytes(ids)).any()


def _no_ids(ids: pa.Array) -> Flags:
    """Which strings are not message ids."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(ids), 0))
    bad: Flags = lengths != ID_DIGITS
    sound = np.flatnonzero(~bad)
    digits = text_bytes(ids.take(pa.array(sound))).reshape(len(sound), ID_DIGITS)
    bad[sound] = _no_digits(digits).any(axis=1)
    return bad


def _no_digits(bytes: npt.NDArray[np.uint8]) -> Flags:
    """Which bytes are neither 0-9 nor a-f; unsigned subtraction wraps around."""
    found: Flags = (bytes - ord("0") > 9) & (bytes - ord("a") > 5)
    return found
