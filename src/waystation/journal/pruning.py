"""Pruning: which row groups of a Parquet file cannot hold a value, without reading their rows.

The footer has the minimum and maximum of each column of a row group. Message ids are spread over
their whole range, so they also have a Bloom filter (seal.py writes it). Files of other programs may
have neither; then nothing is ruled out. Spark's executors run this too.
"""

from __future__ import annotations

import json
from struct import unpack
from typing import Any, BinaryIO, Final

_SCALES: Final = {"milliseconds": 1_000, "microseconds": 1}
_MASK: Final = 0xFFFFFFFF
_SALT: Final = (  # as all of the filter, from BloomFilter.md of the Parquet format
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip
_BLOCK: Final = 32
_KNOWN_CHOICES: Final = bytes.fromhex("1c1c00001c1c00001c1c000000")
_LONGEST_HEADER: Final = 32


def bounds_of(group: Any, name: str) -> tuple[Any, Any] | None:
    """The minimum and maximum of a column, ignoring nulls; timestamps in microseconds."""
    statistics = _statistics(group, name)
    if statistics is None:
        return None
    if statistics.logical_type.type == "TIMESTAMP":
        return instant_bounds(group, name)
    return statistics.min, statistics.max


def number_bounds(group: Any, name: str) -> tuple[int, int] | None:
    """The minimum and maximum of an integer column without nulls."""
    statistics = _statistics(group, name)
    if statistics is None or statistics.null_count:
        return None
    low, high = statistics.min_raw, statistics.max_raw
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


def instant_bounds(group: Any, name: str) -> tuple[int, int] | None:
    """The minimum and maximum of a timestamp column without nulls, in microseconds."""
    statistics = _statistics(group, name)
    if statistics is None or statistics.null_count or statistics.logical_type.type != "TIMESTAMP":
        return None
    scale = _SCALES.get(json.loads(statistics.logical_type.to_json())["timeUnit"])
    return None if scale is None else (statistics.min_raw * scale, statistics.max_raw * scale)


def sole_text(group: Any, name: str) -> set[str] | None:
    """The texts of a column without nulls, if its footer tells that there is at most one."""
    chunk = _chunk(group, name)
    if chunk is None:
        return set()
    statistics = chunk.statistics
    if statistics is None:
        return None
    if not statistics.num_values:
        return set()
    if not statistics.has_min_max or statistics.min != statistics.max:
        return None
    return {statistics.min}


def may_hold_text(file: BinaryIO, group: Any, name: str, text: str) -> bool:
    """Whether a column can contain a text, by its bounds and its Bloom filter."""
    chunk = _chunk(group, name)
    if chunk is None:
        return True
    bounds = _bounded(chunk)
    if bounds is not None and not bounds.min <= text <= bounds.max:
        return False
    if chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
        return True
    return _filter_passes(file, chunk.bloom_filter_offset, chunk.bloom_filter_length, text)


def _filter_passes(file: BinaryIO, offset: int, length: int, text: str) -> bool:
    """Whether a text may be in a filter: all eight bits that it sets are set."""
    file.seek(offset)
    blocks = _blocks(file.read(min(_LONGEST_HEADER, length)), length)
    if blocks is None:
        return True
    begin, count = blocks
    try:
        import xxhash  # noqa: PLC0415 - Spark's executors need only bounds, and may lack it
    except ModuleNotFoundError:
        return True

    hashed = xxhash.xxh64_intdigest(text.encode())
    file.seek(offset + begin + ((hashed >> 32) * count >> 32) * _BLOCK)
    block = file.read(_BLOCK)
    return len(block) < _BLOCK or all(
        word >> ((hashed * salt & _MASK) >> 27) & 1
        for word, salt in zip(unpack("<8I", block), _SALT, strict=True)
    )


def _blocks(head: bytes, length: int) -> tuple[int, int] | None:
    """The offset of a filter's blocks and their number; None for an unknown kind of filter.

    The header is, in Thrift's compact encoding, the number of bytes and the choice of algorithm,
    hash and compression. The format has one of each so far: split blocks, xxHash, uncompressed.
    """
    size = position = 0
    if head[:1] != b"\x15":
        return None
    for position, byte in enumerate(head[1:], 1):
        size |= (byte & 0x7F) << (7 * (position - 1))
        if byte < 0x80:
            break
    size >>= 1  # zigzag encoding of a non-negative number
    begin = position + 1 + len(_KNOWN_CHOICES)
    known = head[position + 1 : begin] == _KNOWN_CHOICES
    if not known or size % _BLOCK or not size or begin + size != length:
        return None
    return begin, size // _BLOCK


def _statistics(group: Any, name: str) -> Any:
    chunk = _chunk(group, name)
    return None if chunk is None else _bounded(chunk)


def _bounded(chunk: Any) -> Any:
    """The statistics of a column chunk, if they have bounds."""
    statistics = chunk.statistics
    return statistics if statistics is not None and statistics.has_min_max else None


def _chunk(group: Any, name: str) -> Any:
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == name:
            return chunk
    return None
