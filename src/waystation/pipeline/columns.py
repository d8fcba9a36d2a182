"""Columns of Arrow as arrays of numpy, and back: what every step by whole columns needs.

No rule of the domain lives here.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waystation.pipeline.schema import INSTANT, TEXT

Longs: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

NEVER: Final = int(np.iinfo(np.int64).max)
"""The instant that never comes, in place of null."""


def column(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    found = table.column(name)
    if found.num_chunks == 1:
        return found.chunk(0)
    return found.combine_chunks() if found.num_chunks else pa.array([], found.type)


def longs(table: pa.Table, name: str, null: int = 0) -> Longs:
    """Numbers or instants as they are, with a value for null."""
    values = column(table, name)
    if not pa.types.is_int64(values.type):
        values = values.view(pa.int64())
    return np.asarray(pc.fill_null(values, null) if values.null_count else values)


def flags(table: pa.Table, name: str) -> Flags:
    """Flags, null taken for false."""
    values = column(table, name)
    return np.asarray(pc.fill_null(values, False) if values.null_count else values)


def codes(values: pa.Array) -> Longs:
    """A number for each distinct text; -1 for null."""
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    indices = encoded.indices
    if indices.null_count:
        indices = pc.fill_null(indices, -1)
    return np.asarray(indices).astype(np.int64)


def instants(microseconds: Longs) -> pa.Array:
    """Instants from numbers; NEVER is null."""
    return pa.array(microseconds, mask=microseconds == NEVER).view(INSTANT)


def taken(table: pa.Table, name: str, rows: Longs) -> pa.Array:
    """The values of a column in these rows; -1 is null."""
    return picked(column(table, name), rows)


def picked(values: pa.Array, rows: Longs) -> pa.Array:
    """Values by number; -1 is null."""
    missing = rows < 0
    indices = pa.array(rows, mask=missing) if missing.any() else pa.array(rows)
    return values.take(indices)


def repeated(value: str | None, count: int) -> pa.Array:
    """The same text again and again."""
    return pa.nulls(count, TEXT) if value is None else pa.repeat(pa.scalar(value, TEXT), count)


def numbered(values: Longs) -> tuple[Longs, Longs]:
    """The distinct values in order, and the number of each row's value."""
    if len(values) and bool((values == values[0]).all()):
        return values[:1], np.zeros(len(values), np.int64)
    found: tuple[Longs, Longs] = np.unique(values, return_inverse=True)
    return found


def stable_order(keys: Longs) -> Longs:
    """The order of keys from 0 on, equal ones as they stand: by digits, which numpy is fast at."""
    order: Longs = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    highest = int(keys.max(initial=0))
    shift = 16
    while highest >> shift:
        digits = ((keys >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
        shift += 16
    return order


def ranks(keys: Longs) -> Longs:
    """For each row, how many before it have the same key."""
    order = stable_order(keys)
    ordered = keys[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])[: len(keys)]
    places = np.arange(len(keys))
    starts = np.maximum.accumulate(np.where(begins, places, 0)) if len(keys) else places
    found = np.empty(len(keys), np.int64)
    found[order] = places - starts
    return found


def spread(starts: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """Several ranges written out: the number of the range, and the position, of each element.

    >>> [part.tolist() for part in spread(np.array([5, 9]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 9]]
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, np.asarray(starts)[owner] + within
