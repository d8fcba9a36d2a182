"""Outcomes and latencies by node and window: CONTRACT's `health`. Arrow in, Arrow out; no Spark.

Messages are tallied first: the number of messages of each kind and duration. A tally is small,
since the same few durations repeat, and tallies can be added, wherever they come from; the rows of
`health` follow from them exactly, percentiles included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.address import STANDARD_TYPES, Address
from waystation.journal.schema import INSTANT, TEXT
from waystation.pipeline.kernels.columns import (
    Flags,
    Longs,
    are,
    chosen,
    codes,
    column,
    days,
    encoded,
    instants,
    kept,
    longs,
    numbered,
    taken,
    text_bounds,
    text_bytes,
)
from waystation.pipeline.kernels.visits import first_addresses
from waystation.pipeline.tables import BUILT

Doubles: TypeAlias = npt.NDArray[np.float64]

MINUTE: Final = 60_000_000
"""Microseconds: the window of the built table."""

ADDED_AT_ONCE: Final = 1_000_000
"""Maximum number of tally rows that are held before they are added up."""

NO_TYPE: Final = "none"
"""The address type of a message that was sent to no address."""

_EXACT: Final = 1e12
"""Milliseconds: up to here, durations are exact to the microsecond."""

_DIGIT_AND_DATA: Final = r"^[0-9]#[!-/1-~][!-~]*$"
"""Addresses whose type can be read without parsing: most of them."""

_LOCAL: Final = "local"
_NAMES: Final = {number: name for name, number in STANDARD_TYPES.items()}
_KINDS: Final = ("node", "outcome", "reason", "address_type")
_SUMS: Final = ("messages", "bytes")
TALLY: Final = pa.schema(
    {
        "node": TEXT,
        "window_start": INSTANT,
        **dict.fromkeys(_KINDS[1:], TEXT),
        "milliseconds": pa.float64(),
        "messages": pa.int64(),
        "bytes": pa.int64(),
    }
)


def counted(messages: pa.Table, window: int = MINUTE) -> pa.Table:
    """These rows of `messages` (with `node`) as tallies of one message each."""
    count = messages.num_rows
    at = longs(messages, "at")
    columns = {
        "node": column(messages, "node"),
        "window_start": instants(at - at % window),
        "outcome": column(messages, "outcome"),
        "reason": column(messages, "reason"),
        "address_type": _address_types(messages),
        "milliseconds": pa.array((at - longs(messages, "received_at")) / 1_000),
        "messages": pa.array(np.ones(count, np.int64)),
        "bytes": column(messages, "bytes").cast(pa.int64()),
    }
    return pa.table(columns)


def added_up(tallies: pa.Table) -> pa.Table:
    """Add tallies: the number of messages of each window, kind and duration."""
    if not tallies.num_rows:
        return TALLY.empty_table()
    order, kinds, same = _sorted(tallies)
    starts = np.flatnonzero(kinds | ~same)
    firsts = order[starts]
    sums = [np.add.reduceat(longs(tallies, name)[order], starts) for name in _SUMS]
    columns = [kept(tallies, name, firsts) for name in TALLY.names if name not in _SUMS]
    columns += map(pa.array, sums)
    return pa.Table.from_arrays(columns, names=TALLY.names)


def sums(tallies: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Add tallies in groups of about as many rows as are worth sorting."""
    held: list[pa.Table] = []
    for found in tallies:
        held.append(found)
        if sum(part.num_rows for part in held) >= ADDED_AT_ONCE:
            yield added_up(pa.concat_tables(held))
            held = []
    if held:
        yield added_up(pa.concat_tables(held))


def health_of(tallies: pa.Table) -> pa.Table:
    """The rows of `health` for these tallies."""
    if not tallies.num_rows:
        return BUILT["health"].empty_table()
    order, kinds, _ = _sorted(tallies)
    starts = np.flatnonzero(kinds)
    took = np.asarray(column(tallies, "milliseconds"))[order]
    counts = longs(tallies, "messages")[order]
    firsts, total = order[starts], np.add.reduceat(counts, starts)
    columns = [
        *(taken(tallies, name, firsts) for name in ("node", "window_start", *_KINDS[1:])),
        pa.array(total),
        pa.array(np.add.reduceat(longs(tallies, "bytes")[order], starts)),
        *(pa.array(_percentile(took, counts, total, share)) for share in (0.5, 0.99)),
        days(longs(tallies, "window_start")[firsts]),
    ]
    return pa.Table.from_arrays(columns, schema=BUILT["health"])


def _sorted(tallies: pa.Table) -> tuple[Longs, Flags, Flags]:
    """The order of (window, kind, duration), and where each kind and each equal duration begins."""
    _, key = numbered(longs(tallies, "window_start"))
    for name in _KINDS:
        code = codes(column(tallies, name))
        key = key * (int(code.max()) + 2) + code + 1
    took = np.asarray(column(tallies, "milliseconds"))
    order = _order(key, took)
    key, took = key[order], took[order]
    begins = np.append(True, key[1:] != key[:-1])
    same = np.append(False, took[1:] == took[:-1])
    return order, begins, same


def _order(key: Longs, took: Doubles) -> Longs:
    """The order by kind and duration: by one number for both, which sorts much faster."""
    longest = float(np.abs(took).max())
    if longest < _EXACT and (int(key.max()) + 1) * int(2_000 * longest + 2) < 2**63:
        microseconds = np.rint(took * 1_000).astype(np.int64)
        span = int(2_000 * longest + 2)
        return np.argsort(key * span + (microseconds - microseconds.min()))
    return np.lexsort((took, key))


def _percentile(took: Doubles, counts: Longs, total: Longs, share: float) -> Doubles:
    """The percentile of each group: `took` occurs `counts` times, `total` is the group's size.

    It is interpolated between two values, as Spark's `percentile` does.
    """
    upto, before = np.cumsum(counts), np.cumsum(total) - total
    position = (total - 1).astype(np.float64) * share
    lower, higher = np.floor(position), np.ceil(position)
    low = took[np.searchsorted(upto, before + lower.astype(np.int64), "right")]
    high = took[np.searchsorted(upto, before + higher.astype(np.int64), "right")]
    between = (higher - position) * low + (position - lower) * high
    return np.where((lower == higher) | (low == high), low, between)


def _address_types(messages: pa.Table) -> pa.DictionaryArray:
    """The type of the address that each message was sent to, or was addressed to."""
    outcome = encoded(column(messages, "outcome"))
    everyone = np.arange(messages.num_rows)
    aims = [first_addresses(messages, everyone), encoded(column(messages, "next_hop"))]
    names: dict[str, int] = {_LOCAL: 0}
    first, hop = (_types_of(aim, names) for aim in aims)
    onward = np.where(are(outcome, "FORWARDED"), hop, first)
    types = np.where(are(outcome, "DELIVERED"), 0, onward)
    return chosen(pa.array(list(names), TEXT), types)


def _types_of(addresses: pa.DictionaryArray, names: dict[str, int]) -> Longs:
    """The type of each address, as a code; new types are added to `names`."""
    texts = addresses.dictionary
    plain = np.asarray(pc.match_substring_regex(texts, _DIGIT_AND_DATA))
    bounds, bytes = text_bounds(texts), text_bytes(texts)
    digit = bytes[bounds[:-1][plain] - bounds[0]] - ord("0")
    by_digit = [names.setdefault(_name_of(number), len(names)) for number in range(10)]
    numbers = np.empty(len(texts) + 1, np.int64)
    numbers[:-1][plain] = np.array(by_digit)[digit]
    odd = np.flatnonzero(~plain)
    told = texts.take(pa.array(odd)).to_pylist()
    numbers[odd] = [names.setdefault(_type_of(text), len(names)) for text in told]
    numbers[-1] = names.setdefault(NO_TYPE, len(names))
    return numbers[codes(addresses)]


@lru_cache(maxsize=65_536)
def _type_of(address: str | None) -> str:
    """The name of an address type if it has a standard one, otherwise its number."""
    try:
        number = Address.parse(address).type if address is not None else None
    except ValueError:  # next_hop is as the node wrote it
        number = None
    return NO_TYPE if number is None else _name_of(number)


def _name_of(type: int) -> str:
    return _NAMES.get(type, str(type))
