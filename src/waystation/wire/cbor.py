"""The part of CBOR (RFC 8949) that identities are written in: numbers, bytes, arrays, null, bools.

Definite lengths only, as Ockam's own encoder writes them. Messages have a codec of their own, which
is faster (wire/ockam.py). Pure.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from waystation.errors import DecodeError

Value: TypeAlias = "int | bytes | bool | list[Value] | None"

DEPTH: Final = 8
"""How deep arrays may be nested."""

_UNSIGNED, _BYTES, _ARRAY = 0, 2, 4
_FALSE, _TRUE, _NULL = 0xF4, 0xF5, 0xF6
_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}


def encode(value: Value) -> bytes:
    """A value as bytes.

    >>> encode([1, b"ab", None, True]).hex()
    '8401426162f6f5'
    """
    if value is None:
        return bytes((_NULL,))
    if isinstance(value, bool):
        return bytes((_TRUE if value else _FALSE,))
    if isinstance(value, int):
        return _head(_UNSIGNED, value)
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    return _head(_ARRAY, len(value)) + b"".join(map(encode, value))


def decode(data: bytes) -> Value:
    """The one value that these bytes are; a DecodeError if they are anything else.

    >>> decode(bytes.fromhex("8401426162f6f5"))
    [1, b'ab', None, True]
    """
    value, end = _item(data, 0, DEPTH)
    if end != len(data):
        raise DecodeError("bytes follow the value", format="cbor", offset=end)
    return value


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes((major << 5 | number,))
    for info, width in _WIDTHS.items():
        if number < 1 << 8 * width:
            return bytes((major << 5 | info,)) + number.to_bytes(width, "big")
    raise OverflowError(number)


def _item(data: bytes, start: int, depth: int) -> tuple[Value, int]:
    first = data[start : start + 1]
    if first in (b"\xf4", b"\xf5", b"\xf6"):
        return (None if first[0] == _NULL else first[0] == _TRUE), start + 1
    major, number, at = _read_head(data, start)
    if major == _UNSIGNED:
        return number, at
    if major == _BYTES:
        if number > len(data) - at:
            raise DecodeError("the data end within bytes", format="cbor", offset=start)
        return data[at : at + number], at + number
    if major != _ARRAY or depth == 0:
        raise DecodeError("an item of this kind is not expected", format="cbor", offset=start)
    if number > len(data) - at:  # each item has a byte at least
        raise DecodeError("the data end within an array", format="cbor", offset=start)
    items: list[Value] = []
    for _ in range(number):
        item, at = _item(data, at, depth - 1)
        items.append(item)
    return items, at


def _read_head(data: bytes, start: int) -> tuple[int, int, int]:
    """The major type of an item, its number, and where its content begins."""
    if start >= len(data):
        raise DecodeError("the data end before an item", format="cbor", offset=start)
    major, info = data[start] >> 5, data[start] & 31
    if info < 24:
        return major, info, start + 1
    width = _WIDTHS.get(info)
    if width is None or start + 1 + width > len(data):
        raise DecodeError("the head of an item is not valid", format="cbor", offset=start)
    end = start + 1 + width
    return major, int.from_bytes(data[start + 1 : end], "big"), end
