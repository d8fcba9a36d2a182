"""Fast codec for WebSocket links: one body of bare.py in each binary message.

Pure, with caches. No WebSocket frames, no sockets. Bodies of an unusual form, valid or not, are
left to bare.py; the tests check that both give the same results.

A body without an onward route is for the session itself, as in a frame of ockam.py: a heartbeat if
it has no payload, and otherwise what two of our nodes tell each other (hello.py).
"""

from __future__ import annotations

from typing import Final, TypeAlias

from waystation.core.address import MAX_ROUTE_LENGTH, Address, Route
from waystation.core.expiry import Expiry
from waystation.core.message import Message, not_bytes_error
from waystation.errors import LocalError
from waystation.wire import bare
from waystation.wire.ockam import (
    FRAME_LIMIT,
    HEARTBEAT,
    Tracing,
    is_id,
    read_tracing,
    tracing_text,
)

MEMORY: Final = 1024
"""Maximum number of cached routes, and of cached ends of tracing texts; then a cache is cleared."""

LONGEST_KEPT: Final = 256
"""Maximum size of cached routes in bytes."""

LOOK: Final = 12
"""Number of first bytes by which the length of the routes is guessed."""

_Header: TypeAlias = tuple[Route, Route, int]

_NOWHERE: Final = Route()
_CONTROL: Final = b"\x01\x00\x00"  # version 1, and two empty routes
_NO_TRACING: Final = read_tracing("")
_OWN_HEAD: Final = '{"traceparent":"00-'
_RARE_PARENTS: Final = ("0000000000000000", "0000000000000001")  # see tracing_text

_departures: dict[Route, bytes] = {}
_ways_back: dict[Route, bytes] = {}
_headers: dict[bytes, _Header] = {}
_lengths: dict[bytes, int] = {}
_expiries: dict[str, Expiry] = {}


# --- Messages to bytes ----------------------------------------------------------------------------


def encode_departure(message: Message, *, limit: int = FRAME_LIMIT) -> bytes:
    """The body of a message that leaves: without the address of the link that it takes (WK-10).

    >>> message = Message(Route.parse("link => echoer"), Route.parse("app"), b"hi")
    >>> encode_departure(message) == bare.encode(message.departed())
    True
    """
    payload = message.payload
    if type(payload) is not bytes and not isinstance(payload, bytes):
        raise not_bytes_error(payload)
    try:
        onward = _departures.get(message.onward_route) or _learn_departure(message)
        back = _ways_back.get(message.return_route) or _learn_way_back(message)
    except TypeError:  # cannot be hashed, so an address has no bytes in it: say which
        return bare.encode(message.departed(), limit=limit)
    text = tracing_text(message).encode()
    if text:
        end = (_number(len(payload)), payload, b"\x01", _number(len(text)), text)
        body = b"".join((b"\x02", onward, back, *end))
    else:
        body = b"".join((b"\x01", onward, back, _number(len(payload)), payload))
    if len(body) > limit:
        raise LocalError(
            f"a message of {len(body)} bytes is too large",
            rule="OB-2",
            hint=f"send at most {limit} bytes, routes and tracing included",
        )
    return body


def encode_control(payload: bytes) -> bytes:
    """A body for the session itself, which other implementations treat as a heartbeat.

    >>> encode_control(b"") == bare.encode(HEARTBEAT)
    True
    """
    return _CONTROL + _number(len(payload)) + payload


def _learn_departure(message: Message) -> bytes:
    route = message.onward_route
    item = _route_item(route.addresses[1:])
    if item == b"\x00":
        raise LocalError(
            f"message {message} has nowhere to go behind this link",
            rule="AD-6",
            hint="name who is to have it behind the link",
        )
    return _kept(_departures, route, item)


def _learn_way_back(message: Message) -> bytes:
    route = message.return_route
    return _kept(_ways_back, route, _route_item(route.addresses))


def _route_item(addresses: tuple[Address, ...]) -> bytes:
    if len(addresses) > MAX_ROUTE_LENGTH:
        Route.of(addresses)  # raises the LocalError that says so
    parts = [_number(len(addresses))]
    for address in addresses:
        kind, data = address.type, address.data
        if type(data) is not bytes or type(kind) is not int or not 0 <= kind <= 255:
            Address.of(kind, data)  # raises the LocalError that says what is wrong
        parts += (bytes((kind,)), _number(len(data)), data)
    return b"".join(parts)


def _kept(memory: dict[Route, bytes], route: Route, item: bytes) -> bytes:
    if len(item) <= LONGEST_KEPT:
        if len(memory) >= MEMORY:
            memory.clear()
        memory[route] = item
    return item


def _number(value: int) -> bytes:
    """A number in BARE's encoding: seven bits in each byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


# --- Bytes to messages ----------------------------------------------------------------------------


class BodyDecoder:
    """Decodes the bodies of one link.

    `via` is the link's own address, which is put in front of every return route (WK-10).

    >>> decoder = BodyDecoder(Address(0, b"link"))
    >>> body = bytes.fromhex("01 01 00 066563686f6572 01 00 03617070 026869")
    >>> print(decoder.decode(body))
    0#echoer | 0#link => 0#app | 2 B
    >>> decoder.decode(encode_control(b"hello")).payload
    b'hello'
    """

    __slots__ = ("_via", "limit")

    def __init__(self, via: Address, *, limit: int = FRAME_LIMIT) -> None:
        self.limit = limit
        self._via = via

    def decode(self, body: bytes) -> Message:
        """The message of a complete body; without an onward route, only the payload counts."""
        if body.startswith(_CONTROL):
            return _control(body, self.limit)
        found = _decode_usual(body, self._via) if len(body) <= self.limit else None
        if found is None:
            found = bare.decode(body, limit=self.limit)
            if found is not HEARTBEAT:
                found = found.arrived(self._via)
        return found


def _control(body: bytes, limit: int) -> Message:
    """The message for the session: as bare.py decodes it, with its payload."""
    bare.decode(body, limit=limit)  # raises the DecodeError that says what is wrong
    size, at = _short_number(body, 3)
    payload = body[at : at + size]
    return Message(_NOWHERE, _NOWHERE, payload) if payload else HEARTBEAT


def _decode_usual(body: bytes, via: Address) -> Message | None:
    """The message of a body of the usual form with an onward route, otherwise None.

    That is the form which is written here, with at most 127 addresses in a route and 127 bytes in
    an address, and a tracing text that is not long.
    """
    try:
        # The length of the routes is unknown before reading them; a wrong guess only costs time.
        known = _headers.get(body[: _lengths.get(body[:LOOK], 0)])
        onward, back, end = known or _learn_routes(body)
        size, at = _short_number(body, end)
        stop = at + size
        text = _usual_text(body, stop)
    except (IndexError, UnicodeDecodeError):
        return None
    tracing = _read_text(text) if text else _NO_TRACING
    return Message(onward, back.pushed(via), body[at:stop], *tracing)


def _learn_routes(body: bytes) -> _Header:
    """The routes of a body of the usual form, and where they end; else an IndexError."""
    onward, at = _read_route(body, 1)
    back, end = _read_route(body, at)
    if not onward.addresses or end > len(body):
        raise IndexError
    header = (onward, back, end)
    if end <= LONGEST_KEPT:
        if len(_headers) >= MEMORY:
            _headers.clear()
            _lengths.clear()
        _headers[body[:end]] = header
        _lengths[body[:LOOK]] = end
    return header


def _read_route(body: bytes, at: int) -> tuple[Route, int]:
    count = body[at]
    at += 1
    if count > 0x7F:
        raise IndexError
    addresses = []
    for _ in range(count):
        size = body[at + 1]
        if size > 0x7F:
            raise IndexError
        start = at + 2
        at = start + size
        addresses.append(Address(body[start - 2], body[start:at]))
    return Route(tuple(addresses)), at


def _short_number(body: bytes, at: int) -> tuple[int, int]:
    """A number of at most five bytes, and where it ends; an IndexError if there is none."""
    value = shift = 0
    while shift < 35:
        digit = body[at]
        at += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, at
        shift += 7
    raise IndexError


def _usual_text(body: bytes, at: int) -> str:
    """The tracing text behind the payload, as it is written here; else an IndexError."""
    if body[0] == 1 and at == len(body):
        return ""
    if body[0] == 2 and body[at] == 1:
        size, at = _short_number(body, at + 1)
        if 0 < size <= LONGEST_KEPT and at + size == len(body):
            return body[at:].decode("ascii")
    raise IndexError


def _read_text(text: str) -> Tracing:
    """The contents of a tracing text; fast if it is ours, with a known end."""
    tail = text[68:]
    expiry = _expiries.get(tail)
    parent = text[52:68]
    if text[:19] != _OWN_HEAD or parent in _RARE_PARENTS:
        return read_tracing(text)
    if expiry is None:
        tracing = read_tracing(text)
        if not tracing[2]:  # it contains nothing but our own
            if len(_expiries) >= MEMORY:
                _expiries.clear()
            _expiries[tail] = tracing[1]
        return tracing
    trace_id = text[19:51]
    if text[51] == "-" and parent == text[35:51] and is_id(trace_id):
        return trace_id, expiry, ""
    return read_tracing(text)
