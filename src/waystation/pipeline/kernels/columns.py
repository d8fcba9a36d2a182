"""Arrow columns as numpy arrays and back, for the steps that work on whole columns.

No rules of the domain are here.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waystation.core.visits import DAY
from waystation.journal.schema import INSTANT, TEXT

Longs: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Words: TypeAlias = npt.NDArray[np.uint64]

NEVER: Final = int(np.iinfo(np.int64).max)
"""The timestamp that stands for null: it is never reached."""


def column(table: pa.Table, name: str) -> pa.Array:
    """A column as one chunk."""
    found = table.column(name)
    if found.num_chunks == 1:
        return found.chunk(0)
    return found.combine_chunks() if found.num_chunks else pa.array([], found.type)


def longs(table: pa.Table, name: str, null: int = 0) -> Longs:
    """Numbers or timestamps as they are, with a value for null."""
    values = column(table, name)
    if not pa.types.is_int64(values.type):
        values = values.view(pa.int64())
    return np.asarray(pc.fill_null(values, null) if values.null_count else values)


def flags(table: pa.Table, name: str) -> Flags:
    """Booleans, with null as false."""
    values = column(table, name)
    return np.asarray(pc.fill_null(values, False) if values.null_count else values)


def encoded(values: pa.Array) -> pa.DictionaryArray:
    """Strings, dictionary-encoded if they are not yet."""
    return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()


def codes(values: pa.Array) -> Longs:
    """A number for each distinct string; -1 for null."""
    indices = encoded(values).indices
    if indices.null_count == len(indices):
        return np.full(len(indices), -1)
    if indices.null_count:
        indices = pc.fill_null(indices, -1)
    return np.asarray(indices).astype(np.int64)


def common_texts(some: pa.Array, others: pa.Array) -> tuple[pa.Array, Longs, Longs]:
    """The distinct strings of two columns, and the code of each row's string in both; -1 for null.

    >>> texts, one, other = common_texts(pa.array(["a", "b"]), pa.array(["b", None, "c"]))
    >>> texts.to_pylist(), one.tolist(), other.tolist()
    (['a', 'b', 'c'], [0, 1], [1, -1, 2])
    """
    one, other = encoded(some), encoded(others)
    known = np.asarray(pc.fill_null(pc.index_in(other.dictionary, value_set=one.dictionary), -1))
    new = known < 0
    numbers = np.where(new, len(one.dictionary) + np.cumsum(new) - 1, known)
    texts = pa.concat_arrays([one.dictionary, other.dictionary.filter(pa.array(new))])
    return texts, codes(one), np.append(numbers, -1)[codes(other)]


def are(values: pa.Array, text: str) -> Flags:
    """Which rows have this string; each distinct string is compared once."""
    coded = encoded(values)
    found: Flags = np.append(np.asarray(pc.equal(coded.dictionary, text)), False)[codes(coded)]
    return found


def instants(microseconds: Longs) -> pa.Array:
    """Timestamps from numbers; NEVER is null."""
    return pa.array(microseconds, mask=microseconds == NEVER).view(INSTANT)


def days(microseconds: Longs) -> pa.Array:
    """The days (UTC) of instants.

    >>> days(np.array([86_400_000_000])).to_pylist()
    [datetime.date(1970, 1, 2)]
    """
    return pa.array((microseconds // DAY).astype(np.int32)).view(pa.date32())


def taken(table: pa.Table, name: str, rows: Longs) -> pa.Array:
    """The values of a column at these rows; -1 is null."""
    return picked(column(table, name), rows)


def kept(table: pa.Table, name: str, rows: Longs) -> pa.Array:
    """The values of a column at these rows; strings keep their encoding."""
    values, indices = column(table, name), pa.array(rows)
    if not pa.types.is_dictionary(values.type):
        return values.take(indices)
    return pa.DictionaryArray.from_arrays(values.indices.take(indices), values.dictionary)


def with_numbers(table: pa.Table, *names: str) -> pa.Table:
    """The table with these string columns dictionary-encoded."""
    for name in names:
        place = table.column_names.index(name)
        table = table.set_column(place, name, encoded(column(table, name)))
    return table


def picked(values: pa.Array, rows: Longs) -> pa.Array:
    """Values by code; -1 is null. Strings are not dictionary-encoded."""
    if pa.types.is_dictionary(values.type):
        return picked(values.dictionary, np.append(codes(values), -1)[rows])
    missing = rows < 0
    indices = pa.array(rows, mask=missing) if missing.any() else pa.array(rows)
    return values.take(indices)


def chosen(texts: pa.Array, rows: Longs) -> pa.Array:
    """Dictionary-encoded strings from codes; -1 is null."""
    if pa.types.is_dictionary(texts.type):
        return chosen(texts.dictionary, np.append(codes(texts), -1)[rows])
    missing = rows < 0
    indices = pa.array(rows.astype(np.int32), mask=missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(indices, texts)


def plain(values: pa.Array) -> pa.Array:
    """Strings without dictionary encoding."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def repeated(value: str | None, count: int) -> pa.Array:
    """A column that repeats one string."""
    return pa.nulls(count, TEXT) if value is None else pa.repeat(pa.scalar(value, TEXT), count)


def coded_name(name: str, count: int) -> pa.DictionaryArray:
    """A dictionary-encoded column that repeats one string."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([name]))


def numbered(values: Longs) -> tuple[Longs, Longs]:
    """The sorted distinct values, and the code of each row's value."""
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    if len(begins) == 1:
        return values[:1], np.zeros(len(values), np.int64)
    distinct, which = np.unique(values[begins], return_inverse=True)  # such values come in runs
    return distinct, np.repeat(which, np.diff(np.append(begins, len(values))))


def stable_order(keys: Longs) -> Longs:
    """A stable order of keys from 0 on: a radix sort, at which numpy is fast."""
    order: Longs = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    highest = int(keys.max(initial=0))
    shift = 16
    while highest >> shift:
        digits = ((keys >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
        shift += 16
    return order


def ranks(keys: Longs) -> Longs:
    """For each row, the number of earlier rows with the same key."""
    order = stable_order(keys)
    ordered = keys[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])[: len(keys)]
    places = np.arange(len(keys))
    starts = np.maximum.accumulate(np.where(begins, places, 0)) if len(keys) else places
    found = np.empty(len(keys), np.int64)
    found[order] = places - starts
    return found


def spread(starts: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """Expand ranges: the number of the range, and the position, of each element.

    >>> [part.tolist() for part in spread(np.array([5, 9]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 9]]
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, np.asarray(starts)[owner] + within


def pair_codes(one: Longs, other: Longs) -> Longs:
    """A number for each distinct pair of numbers, from 0 on, in order of first occurrence.

    >>> pair_codes(np.array([5, 5, 9, 5]), np.array([-1, 7, 7, -1])).tolist()
    [0, 1, 2, 0]
    """
    least, most = (int(other.min()), int(other.max())) if len(other) else (0, 0)
    width = most - least + 1
    fits = width < 2**62 and int(one.min(initial=0)) >= 0
    if not (fits and int(one.max(initial=0)) < 2**63 // width):
        one, other = number_codes(one), number_codes(other)
        least, width = 0, int(other.max(initial=0)) + 1
    return number_codes(one * width + (other - least))


def number_codes(numbers: Longs | Words) -> Longs:
    """A number for each distinct number, from 0 on, in order of first occurrence."""
    return codes(pa.array(numbers))


def repeated_numbers(numbers: Longs) -> Longs:
    """The numbers that occur more than once, each once per repetition; sorted.

    >>> repeated_numbers(np.array([7, 3, 7, 5, 7, 3])).tolist()
    [3, 7, 7]
    """
    ordered = np.sort(numbers)
    found: Longs = ordered[1:][ordered[1:] == ordered[:-1]]
    return found


def firsts(codes: Longs) -> Flags:
    """Which rows are the first with their code; codes are numbered in order of first occurrence."""
    highest = np.maximum.accumulate(codes)
    return np.append(True, codes[1:] > highest[:-1])[: len(codes)]


def word_codes(high: Words, low: Words) -> Longs:
    """A number for each distinct pair, of which `low` nearly always determines `high`."""
    found = number_codes(low)
    partner = np.zeros(int(found.max(initial=-1)) + 1, np.uint64)
    partner[found] = high
    if (partner[found] == high).all():
        return found
    return pair_codes(found, number_codes(high))


# Strings as bytes


def text_bounds(texts: Any) -> npt.NDArray[np.int32]:
    """The offsets of the strings in their common bytes, including the end of the last."""
    if not len(texts):
        return np.zeros(1, np.int32)
    return np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)


def text_bytes(texts: Any) -> npt.NDArray[np.uint8]:
    """The concatenated bytes of all strings; none may be null."""
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return np.zeros(0, np.uint8)
    bounds = text_bounds(texts)
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]


ID_DIGITS: Final = 32


def are_as_long_as_ids(texts: pa.Array) -> bool:
    """Whether each string has the length of a message id; null has not."""
    return not texts.null_count and bool((np.diff(text_bounds(texts)) == ID_DIGITS).all())


_PAIRS: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
"""The two hexadecimal digits of each byte."""


def id_words(ids: pa.Array) -> tuple[Words, Words]:
    """Message ids, 32 hexadecimal digits each, as two numbers each.

    >>> [word.tolist() for word in id_words(pa.array([f"{7 << 64 | 10:032x}"]))]
    [[7], [10]]
    """
    digits = text_bytes(ids)
    digits = (digits & 15) + (digits >> 6) * 9  # 0-9 are 0x30 and up, a-f 0x61 and up
    bytes = digits[0::2] << 4 | digits[1::2]
    words = bytes.view(">u8").astype(np.uint64)
    return words[0::2], words[1::2]


def id_texts(high: Words, low: Words) -> pa.Array:
    """The message ids that such pairs of numbers stand for.

    >>> id_texts(*id_words(pa.array([f"{77:032x}"]))).to_pylist() == [f"{77:032x}"]
    True
    """
    bytes = np.stack([high, low], axis=1).astype(">u8").view(np.uint8).ravel()
    digits = _PAIRS[bytes]
    bounds = np.arange(0, ID_DIGITS * len(high) + 1, ID_DIGITS, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(digits)]
    return pa.Array.from_buffers(TEXT, len(high), buffers)
