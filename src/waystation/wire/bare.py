"""Ockam's older message format in BARE, which its WebSocket peers still use.

One binary WebSocket message is one body, without preface and length. Nothing here opens a
connection. The format of TCP and UDP, and the tracing text that both formats share, are in
ockam.py.

    version u8 | onward route | return route | payload | tracing, an option
    route = count, addresses    address = type u8, data    data = length, bytes

Counts and lengths are ULEB128 numbers of at most 64 bits. The encoder writes version 1 without the
option if there is no tracing, and version 2 with it otherwise: Rust reads both, and so does Elixir,
which accepts nothing after a version 1. The decoder also reads what Rust writes, the option after a
version 1.
"""

from __future__ import annotations

from typing import Final

from waystation.core.address import MAX_ROUTE_LENGTH, Address, Route
from waystation.core.message import Message
from waystation.errors import DecodeError, LocalError, quote
from waystation.wire.ockam import (
    FRAME_LIMIT,
    HEARTBEAT,
    read_tracing,
    short_text,
    tracing_text,
)

_FORMAT: Final = "ockam-bare"
_PLAIN: Final = 1
_TRACED: Final = 2


def encode(message: Message, *, limit: int = FRAME_LIMIT) -> bytes:
    """Encode a message.

    >>> encode(Message(Route.parse("echoer"), Route.parse("app"), b"hi")).hex(" ", -4)
    '01010006 6563686f 65720100 03617070 026869'
    """
    if not message.onward_route.addresses and message != HEARTBEAT:
        raise LocalError(
            f"message {message} has no onward route",
            rule="AD-6",
            hint="drop it, or send HEARTBEAT",
        )
    if not isinstance(message.payload, bytes):
        raise LocalError(
            f"payload {quote(message.payload)} is not bytes", rule="AD-4", hint="give bytes"
        )
    text = tracing_text(message).encode()
    parts = [bytes((_TRACED if text else _PLAIN,))]
    _write_route(parts, message.onward_route)
    _write_route(parts, message.return_route)
    parts += (_number(len(message.payload)), message.payload)
    if text:
        parts += (b"\x01", _number(len(text)), text)
    body = b"".join(parts)
    if len(body) > limit:
        raise LocalError(
            f"a message of {len(body)} bytes is too large",
            rule="OB-2",
            hint=f"send at most {limit} bytes, routes and tracing included",
        )
    return body


def decode(body: bytes | bytearray | memoryview, *, limit: int = FRAME_LIMIT) -> Message:
    """Decode a complete body; HEARTBEAT if its onward route is empty.

    >>> print(decode(bytes.fromhex("01 01 00 066563686f6572 01 00 03617070 026869")))
    0#echoer | 0#app | 2 B
    >>> decode(bytes((3,)))
    Traceback (most recent call last):
    waystation.errors.DecodeError: ockam-bare: version 3 is unknown (at byte 0)
    """
    if len(body) > limit:
        raise _wrong(f"a body of {len(body)} bytes is longer than {limit}", 0, too_large=True)
    if type(body) is not bytes:
        body = bytes(body)
    version, at = _read_byte(body, 0)
    if version not in (_PLAIN, _TRACED):
        raise _wrong(f"version {version} is unknown", 0)
    onward, at = _read_route(body, at)
    back, at = _read_route(body, at)
    payload, at = _read_data(body, at)
    text = _read_option(body, at)
    if not onward.addresses:
        return HEARTBEAT
    return Message(onward, back, payload, *read_tracing(text))


# --- Values to bytes ------------------------------------------------------------------------------


def _number(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _write_route(parts: list[bytes], route: Route) -> None:
    addresses = Route.of(route.addresses).addresses  # checks their number
    parts.append(_number(len(addresses)))
    for address in addresses:
        kind, data = address.type, address.data
        Address.of(kind, data)  # raises the LocalError that says what is wrong
        parts += (bytes((kind,)), _number(len(data)), data)


# --- Bytes to values ------------------------------------------------------------------------------


def _read_byte(body: bytes, at: int) -> tuple[int, int]:
    if at >= len(body):
        raise _wrong("the bytes end too early", at)
    return body[at], at + 1


def _read_number(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        digit, at = _read_byte(body, at)
        if shift == 63 and digit != 1:  # the tenth digit is the last
            raise _wrong("a number has more than 64 bits", at - 1)
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, at
        shift += 7


def _read_extent(body: bytes, at: int) -> tuple[int, int]:
    """Read a length; return the start and the end of the data after it."""
    size, at = _read_number(body, at)
    if size > len(body) - at:
        raise _wrong("the bytes end too early", at)
    return at, at + size


def _read_data(body: bytes, at: int) -> tuple[bytes, int]:
    at, end = _read_extent(body, at)
    return body[at:end], end


def _read_route(body: bytes, at: int) -> tuple[Route, int]:
    start = at
    count, at = _read_number(body, at)
    if count > MAX_ROUTE_LENGTH:
        raise _wrong(f"a route has {count} addresses", start, too_large=True)
    addresses = []
    for _ in range(count):
        kind, at = _read_byte(body, at)
        data, at = _read_data(body, at)
        addresses.append(Address(kind, data))
    return Route(tuple(addresses)), at


def _read_option(body: bytes, at: int) -> str:
    """The tracing text, or "" without one; nothing may follow."""
    if at == len(body):
        return ""
    start = at
    present, at = _read_byte(body, at)
    if present > 1:
        raise _wrong(f"the option starts with {present}, not with 0 or 1", start)
    at, end = _read_extent(body, at) if present else (at, at)
    if end != len(body):
        raise _wrong("bytes are left over", end)
    try:
        return short_text(body, at, end)
    except UnicodeDecodeError:
        raise _wrong("the tracing is not UTF-8", start + 1) from None


def _wrong(problem: str, at: int, *, too_large: bool = False) -> DecodeError:
    return DecodeError(problem, format=_FORMAT, offset=at, too_large=too_large)
