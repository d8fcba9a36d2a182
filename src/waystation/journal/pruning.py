"""What a Parquet file tells of a column without its values being read: bounds, and a Bloom filter.

A row group's chunk of a column has a least and a greatest value in the footer of the file; chunks
of message ids, which lie anywhere between these, also have a Bloom filter (`seal.py` asks for it).
Files of other makes may have neither: then nothing is ruled out.
"""

from __future__ import annotations

import json
from struct import unpack
from typing import Any, BinaryIO, Final

_SCALES: Final = {"milliseconds": 1_000, "microseconds": 1}
_MASK: Final = 0xFFFFFFFF
_SALT: Final = (  # these and the rest of the filter: the Parquet format, BloomFilter.md
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip
_BLOCK: Final = 32
_UNCOMPRESSED_BLOCKS_OF_XXHASH: Final = bytes.fromhex("1c1c00001c1c00001c1c000000")
_LONGEST_HEADER: Final = 32


def bounds_of(group: Any, name: str) -> tuple[Any, Any] | None:
    """The least and the greatest value of a column, nulls aside; instants in microseconds."""
    statistics = _statistics(group, name)
    if statistics is None:
        return None
    if statistics.logical_type.type == "TIMESTAMP":
        return instant_bounds(group, name)
    return statistics.min, statistics.max


def number_bounds(group: Any, name: str) -> tuple[int, int] | None:
    """The least and the greatest number of a column in which nothing is null."""
    statistics = _statistics(group, name)
    if statistics is None or statistics.null_count:
        return None
    low, high = statistics.min_raw, statistics.max_raw
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


def instant_bounds(group: Any, name: str) -> tuple[int, int] | None:
    """The first and the last instant of a column without nulls, in microseconds."""
    statistics = _statistics(group, name)
    if statistics is None or statistics.null_count or statistics.logical_type.type != "TIMESTAMP":
        return None
    scale = _SCALES.get(json.loads(statistics.logical_type.to_json())["timeUnit"])
    return None if scale is None else (statistics.min_raw * scale, statistics.max_raw * scale)


def may_hold_text(file: BinaryIO, group: Any, name: str, text: str) -> bool:
    """Whether a column can have this text, by its bounds and its Bloom filter."""
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
    """Whether a filter lets a text pass: all eight bits that it would have set are set."""
    file.seek(offset)
    blocks = _blocks(file.read(min(_LONGEST_HEADER, length)), length)
    if blocks is None:
        return True
    begin, count = blocks
    try:
        import xxhash  # noqa: PLC0415 - executors of Spark only ask for bounds, and may not have it
    except ModuleNotFoundError:
        return True  # it may hold it: without the hash all of the file is looked at

    hashed = xxhash.xxh64_intdigest(text.encode())
    file.seek(offset + begin + ((hashed >> 32) * count >> 32) * _BLOCK)
    block = file.read(_BLOCK)
    return len(block) < _BLOCK or all(
        word >> ((hashed * salt & _MASK) >> 27) & 1
        for word, salt in zip(unpack("<8I", block), _SALT, strict=True)
    )


def _blocks(head: bytes, length: int) -> tuple[int, int] | None:
    """Where the blocks of a filter begin and how many there are; None for a kind we do not know.

    The header is Thrift's compact form of the number of bytes and of three choices; of each of
    these the format has one so far.
    """
    size = position = 0
    if head[:1] != b"\x15":
        return None
    for position, byte in enumerate(head[1:], 1):
        size |= (byte & 0x7F) << (7 * (position - 1))
        if byte < 0x80:
            break
    size >>= 1  # Thrift's zigzag of a number that is not negative
    begin = position + 1 + len(_UNCOMPRESSED_BLOCKS_OF_XXHASH)
    known = head[position + 1 : begin] == _UNCOMPRESSED_BLOCKS_OF_XXHASH
    if not known or size % _BLOCK or not size or begin + size != length:
        return None
    return begin, size // _BLOCK


def _statistics(group: Any, name: str) -> Any:
    chunk = _chunk(group, name)
    return None if chunk is None else _bounded(chunk)


def _bounded(chunk: Any) -> Any:
    """The statistics of a chunk, if they have bounds."""
    statistics = chunk.statistics
    return statistics if statistics is not None and statistics.has_min_max else None


def _chunk(group: Any, name: str) -> Any:
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == name:
            return chunk
    return None
