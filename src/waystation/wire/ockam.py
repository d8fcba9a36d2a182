"""Ockam's format of July 2024 and later: messages to frames of a TCP stream and to UDP datagrams.

Pure codecs, with caches that make them fast. No sockets, no clock, no choice of routes or routing
numbers: those are arguments. The older BARE body is in bare.py.

A TCP peer writes the PREFACE once and then frames: a length (u32, big-endian) and that many bytes
of CBOR, the array [onward route, return route, payload, tracing]. An address is the array [type,
data]. A frame with an empty onward route goes no further than the session: it is a heartbeat, or
holds what two of our nodes tell each other (hello.py). Ockam's nodes ignore both. We write one
form only: four elements, definite lengths, shortest heads. We read everything that Ockam's own
decoder reads: three elements or more than four, arrays of indefinite length, longer heads, extra
bytes in the frame. Three things are stricter: a route has at most MAX_ROUTE_LENGTH addresses, at
most SKIPPED_ITEMS unknown items are skipped in one frame, and a break must end an open item.

The id and the expiry of a message travel in the tracing text (AD-8), a JSON object of strings:

    {"traceparent":"00-<id>-<parent>-01","tracestate":"waystation=x<expiry>"}

`parent` is the second half of the id. Anything else that a peer wrote there is kept unchanged, in
`Message.trace_context`, and is sent again with the id and the expiry inserted. A text that is not
such an object, or longer than TRACING_LIMIT characters, is ignored and not passed on.
"""

from __future__ import annotations

import codecs
import re
from binascii import unhexlify
from collections.abc import Callable, Iterator
from struct import Struct as Layout
from typing import Final, NoReturn, TypeAlias, TypeVar

import msgspec

from waystation.core.address import MAX_ROUTE_LENGTH, Address, Route
from waystation.core.expiry import LAST_INSTANT, NEVER, Expiry, check_expiry
from waystation.core.message import Message, check_message_id, not_bytes_error
from waystation.errors import DecodeError, LocalError, quote

PREFACE: Final = b"\x01"
"""The first byte that each side of a TCP connection writes, before any frame."""

FRAME_LIMIT: Final = 16 * 1024 * 1024
"""Maximum size of a body that Ockam accepts; it closes the connection for a larger one."""

CHUNK_SIZE: Final = 493
"""Maximum number of message bytes in one datagram, which then has at most 508 bytes."""

TRACING_LIMIT: Final = 8192
"""A longer tracing text is ignored; W3C requires passing on no more than a tenth of that."""

SKIPPED_ITEMS: Final = 4096
"""Maximum number of unknown CBOR items in one frame."""

HEARTBEAT: Final = Message(Route(), Route(), b"")
"""The object that a frame with neither an onward route nor a payload is decoded to."""

HEARTBEAT_FRAME: Final = bytes.fromhex("00000005 84 80 80 40 f6")
"""The encoding of HEARTBEAT."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_FORMAT: Final = "ockam"
_NO_ID: Final = HEARTBEAT.id
_NULL: Final = b"\xf6"
_BREAK: Final = 0xFF
_UNSIGNED, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = 0, 2, 3, 4, 5, 6  # of CBOR's major types

_LENGTH: Final = Layout(">I")
_pack_length: Final = _LENGTH.pack
_unpack_length: Final = _LENGTH.unpack_from


# --- Heads and routes -----------------------------------------------------------------------------


def _head(major: int, number: int) -> bytes:
    """The shortest head of an item: its major type, with a value or a length."""
    kind = major << 5
    if number < 24:
        return bytes((kind | number,))
    width = 0 if number < 1 << 8 else 1 if number < 1 << 16 else 2 if number < 1 << 32 else 3
    return bytes((kind | 24 + width,)) + number.to_bytes(1 << width, "big")


_ADDRESS_HEADS: Final = tuple(b"\x82" + _head(_UNSIGNED, kind) for kind in range(256))
_ARRAY_HEADS: Final = tuple(_head(_ARRAY, size) for size in range(24))
_BYTES_HEADS: Final = tuple(_head(_BYTES, size) for size in range(256))
_TEXT_HEADS: Final = tuple(_head(_TEXT, size) for size in range(256))
_pack_medium_head: Final = Layout(">BH").pack


def _route_item(route: Route) -> bytes:
    addresses = route.addresses
    count = len(addresses)
    if count > MAX_ROUTE_LENGTH:
        Route.of(addresses)  # raises the LocalError that says so
    parts = [_ARRAY_HEADS[count] if count < 24 else _head(_ARRAY, count)]
    for address in addresses:
        if type(address) is not Address:
            Route.of(addresses)
        kind, data = address.type, address.data
        if type(data) is not bytes or type(kind) is not int or not 0 <= kind <= 255:
            Address.of(kind, data)  # raises the LocalError that says what is wrong
        size = len(data)
        parts += (
            _ADDRESS_HEADS[kind],
            _BYTES_HEADS[size] if size < 256 else _head(_BYTES, size),
            data,
        )
    return b"".join(parts)


class _Memory(dict[_Key, _Value]):
    """A cache of at most ENTRIES small values.

    When it is full, it ignores PATIENCE new entries and is then cleared. So routes that are used
    only once neither fill the memory nor evict frequent ones at once.
    """

    ENTRIES: int = 1024
    PATIENCE: int = 8 * 1024
    _passed = 0

    def remember(self, key: _Key, value: _Value) -> None:
        if len(self) >= self.ENTRIES and key not in self:
            self._passed += 1
            if self._passed <= self.PATIENCE:
                return
            self._passed = 0
            self.clear()
        self[key] = value


class _RouteItems(_Memory[Route, bytes]):
    """Routes with their bytes: most messages take a route that others took before."""

    ADDRESSES: Final = 8
    BYTES: Final = 256

    def __missing__(self, route: Route) -> bytes:
        item = self.write(route)
        if len(route.addresses) <= self.ADDRESSES and len(item) <= self.BYTES:
            self.remember(route, item)
        return item

    def write(self, route: Route) -> bytes:
        return _route_item(route)


class _Departures(_RouteItems):
    """Routes with the bytes of the rest after their first address (WK-10)."""

    def write(self, route: Route) -> bytes:
        return _route_item(route.rest())


class _WaysBack(_Memory[Route, Route]):
    """Return routes with an address in front: that of the connection they came over (WK-10)."""

    ENTRIES = 128  # for each connection, and there may be many
    ADDRESSES: Final = 8

    def __init__(self, via: Address) -> None:
        super().__init__()
        self._via = via

    def __missing__(self, route: Route) -> Route:
        pushed = route.pushed(self._via)
        if len(route.addresses) <= self.ADDRESSES:
            self.remember(route, pushed)
        return pushed


class _Headers:
    """Cached headers: the bytes before the payload, with the two routes they contain.

    A header is looked up by its exact bytes, and no header is a prefix of another, so whoever
    wrote it first cannot affect later messages. Its length is unknown before parsing:
    `lengths` has a guess by its first bytes, and a wrong guess only costs time. Only small
    headers in the written form are kept.
    """

    ADDRESSES: Final = 16
    BYTES: Final = 512

    def __init__(self) -> None:
        self.routes: _Memory[bytes, tuple[Route, Route]] = _Memory()
        self.lengths: _Memory[bytes, int] = _Memory()

    def learn(self, data: bytes, start: int, end: int) -> tuple[int, tuple[Route, Route]] | None:
        """The length of the header and its routes, if it has the usual form; otherwise None."""
        found = _usual_routes(data, start, end)
        if found is None:
            return None
        onward, back, at = found
        length, routes = at - start, (onward, back)
        if length <= self.BYTES and len(onward.addresses) + len(back.addresses) <= self.ADDRESSES:
            self.routes.remember(data[start:at], routes)
            self.lengths.remember(data[start : start + 8], length)
        return length, routes


def _usual_routes(data: bytes, start: int, end: int) -> tuple[Route, Route, int] | None:
    """The routes of a header and its end, if it has the usual form; otherwise None.

    That is the written form with an onward route, and with small numbers: routes of less than 24
    addresses, types below 24, address data of less than 256 bytes.
    """
    at = start + 1
    routes = []
    try:
        for _ in range(2):
            count = data[at] - 0x80
            if not 0 <= count < 24:
                return None
            at += 1
            addresses = []
            for _ in range(count):
                kind, size = data[at + 1], data[at + 2] - 0x40
                if data[at] != 0x82 or kind > 23 or not 0 <= size <= 24:
                    return None
                at += 3
                if size == 24:  # then it stands in a byte of its own
                    size = data[at]
                    at += 1
                    if size < 24:
                        return None
                addresses.append(Address(kind, data[at : at + size]))
                at += size
            routes.append(Route(tuple(addresses)))
    except IndexError:
        return None
    onward, back = routes
    usual = data[start] == 0x84 and at <= end and onward.addresses
    return (onward, back, at) if usual else None


_ROUTE_ITEMS: Final = _RouteItems()
_DEPARTURES: Final = _Departures()
_HEADERS: Final = _Headers()
_guess_length: Final = _HEADERS.lengths.get
_known_routes: Final = _HEADERS.routes.get


# --- The tracing text -----------------------------------------------------------------------------

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?"
)
_MEMBER: Final = re.compile(r"waystation=x([0-9]{1,15})")
_MEMBERS: Final = 32  # of a tracestate, by W3C

Tracing: TypeAlias = tuple[str, Expiry, str]
"""The id, the expiry and the trace context of a message, from its tracing text."""

_NO_TRACING: Final[Tracing] = (_NO_ID, NEVER, "")
_MOST_TRACING_BYTES: Final = 4 * TRACING_LIMIT  # with more it has too many characters
_utf8_decoder: Final = codecs.getincrementaldecoder("utf-8")
_parse_fields: Final = msgspec.json.Decoder(dict[str, str]).decode


def is_id(text: str) -> bool:
    """Whether a text is 32 lower-case hex digits; a pattern would take thrice as long.

    >>> is_id("4bf9" * 8), is_id("4BF9" * 8), is_id("4bf9"), is_id("g" * 32)
    (True, False, False, False)
    """
    try:
        return len(text) == 32 and bytes.fromhex(text).hex() == text
    except (TypeError, ValueError):
        return False


def tracing_text(message: Message) -> str:
    """The tracing text of a message, or "" if there is nothing to say (AD-8).

    >>> message = Message(Route.parse("b"), Route.parse("a"), b"", "4bf92f3577b34da6" * 2, 90_000)
    >>> tracing_text(message).partition(",")[2]
    '"tracestate":"waystation=x90000"}'
    """
    trace_id, expiry, context = message.id, message.expiry, message.trace_context
    if trace_id != _NO_ID and not is_id(trace_id):
        check_message_id(trace_id)
    if expiry != NEVER and not (type(expiry) is int and 0 <= expiry <= LAST_INSTANT):
        check_expiry(expiry, rule="AD-7")
    return _merged_text(trace_id, expiry, context) if context else _own_text(trace_id, expiry)


def _own_text(id: str, expiry: Expiry) -> str:
    # In any other form the first version would not find the expiry, and read NEVER (UP-2).
    if id == _NO_ID:
        return "" if expiry == NEVER else f'{{"tracestate":"waystation=x{expiry}"}}'
    if expiry == NEVER:
        return f'{{"traceparent":"{_traceparent(id)}"}}'
    return f'{{"traceparent":"{_traceparent(id)}","tracestate":"waystation=x{expiry}"}}'


def _traceparent(id: str) -> str:
    parent = id[16:]
    if parent == "0000000000000000":  # which W3C forbids
        parent = "0000000000000001"
    return f"00-{id}-{parent}-01"


def _merged_text(id: str, expiry: Expiry, context: str) -> str:
    """A peer's tracing text with this id and this expiry inserted."""
    if len(context) > TRACING_LIMIT:  # no reader would look into it
        return _own_text(id, expiry)
    try:
        context.encode()
    except UnicodeEncodeError:
        raise LocalError(
            f"trace context {quote(context)} cannot be encoded as UTF-8",
            rule="AD-8",
            hint="pass on what a peer sent, or nothing",
        ) from None
    said_id, said_expiry, _ = read_tracing(context)
    if id in (said_id, _NO_ID) and expiry == said_expiry:
        return context
    fields = _fields(context)
    if id not in (said_id, _NO_ID):
        fields["traceparent"] = _traceparent(id)
    members = [m for m in fields.pop("tracestate", "").split(",") if m and not _is_ours(m)]
    if expiry != NEVER:
        members.insert(0, f"waystation=x{expiry}")
    if members:
        fields["tracestate"] = ",".join(members[:_MEMBERS])
    text = msgspec.json.encode(fields).decode()
    # A text that its next reader ignores would lose what matters most here.
    return text if len(text) <= TRACING_LIMIT else _own_text(id, expiry)


def read_tracing(text: str) -> Tracing:
    """The contents of a tracing text: the id, the expiry, and the text itself if it has more.

    >>> read_tracing('{"tracestate":"waystation=x90000"}')
    ('00000000000000000000000000000000', 90000, '')
    >>> read_tracing('{"tracestate":"vendor=1,waystation=x90000"}')[1:]
    (90000, '{"tracestate":"vendor=1,waystation=x90000"}')
    >>> read_tracing("{}") == read_tracing("no JSON at all") == (HEARTBEAT.id, NEVER, "")
    True
    """
    fields = _fields(text)
    if not fields:
        return _NO_TRACING
    trace_id = _id_of(fields.get("traceparent", ""))
    expiry = _expiry_of(fields.get("tracestate", ""))
    return trace_id, expiry, "" if text == _own_text(trace_id, expiry) else text


def short_text(data: bytes, start: int, end: int) -> str:
    """The text in a part of some bytes; "" if it is longer than TRACING_LIMIT.

    Raises a UnicodeDecodeError if it is not UTF-8, however long it is. Only a slice of a long text
    at a time is in memory as text, where one character may take four times what it took before.
    """
    if end - start <= _MOST_TRACING_BYTES:
        return data[start:end].decode()
    decode = _utf8_decoder().decode
    for at in range(start, end, _MOST_TRACING_BYTES):
        decode(data[at : min(at + _MOST_TRACING_BYTES, end)])
    decode(b"", final=True)
    return ""


def _fields(text: str) -> dict[str, str]:
    if len(text) > TRACING_LIMIT:
        return {}
    try:
        return _parse_fields(text)
    except (msgspec.DecodeError, UnicodeEncodeError):  # the second of half a surrogate pair
        return {}


def _id_of(traceparent: str) -> str:
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return _NO_ID
    trace_id, parent, more = found.groups()
    later_version = not traceparent.startswith("00")  # may have more fields than we know
    return trace_id if parent.strip("0") and (later_version or more is None) else _NO_ID


def _is_ours(member: str) -> bool:
    return member.strip().startswith("waystation=")


def _expiry_of(tracestate: str) -> Expiry:
    for member in tracestate.split(","):
        if _is_ours(member):
            found = _MEMBER.fullmatch(member.strip())
            expiry = int(found[1]) if found else NEVER
            return expiry if expiry <= LAST_INSTANT else NEVER
    return NEVER


class _OwnTails(_Memory[bytes, "Expiry | None"]):
    """The ends of our own texts, with their expiry: a busy sender repeats them."""

    PATIENCE = 0  # an old expiry does not come again
    FORM: Final = re.compile(rb'-01"(?:,"tracestate":"waystation=x([1-9][0-9]{12})")?}')

    def __missing__(self, tail: bytes) -> Expiry | None:
        found = self.FORM.fullmatch(tail)
        if found is None:
            return None
        expiry = int(found[1]) if found[1] else NEVER
        self.remember(tail, expiry)
        return expiry


_OWN_TAILS: Final = _OwnTails()
_OWN_HEADS: Final = {
    size + 2: _head(_TEXT, size) + b'{"traceparent":"00-'
    for size in (len(_own_text("1" * 32, expiry)) for expiry in (NEVER, 1_700_000_000_000))
}
_OWN_HEAD: Final = _OWN_HEADS[len(_own_text("1" * 32, NEVER)) + 2]  # without an expiry
_NO_PARENT: Final = b"0000000000000000"  # which W3C forbids
_unpack_own: Final = Layout("21s16s16s1s16s").unpack_from


def _read_own_text(data: bytes, start: int, end: int) -> Tracing | None:
    """The contents of data[start:end] if it is a text item exactly as we write it, or None."""
    own_head = _OWN_HEADS.get(end - start)
    if own_head is None:
        return None
    head, first, second, dash, parent = _unpack_own(data, start)
    expiry = _OWN_TAILS[data[start + 70 : end]]
    if expiry is None or head != own_head or dash != b"-" or parent != second:
        return None
    digits = first + second
    try:
        trace_id = unhexlify(digits).hex()
    except ValueError:
        return None
    if trace_id.encode() != digits or parent == _NO_PARENT:
        return None
    return trace_id, expiry, ""


def _tracing_item(message: Message) -> bytes:
    id = message.id
    if message.expiry is NEVER and not message.trace_context and is_id(id):
        digits = id.encode()
        parent = digits[16:]
        if parent != _NO_PARENT:  # as `tracing_text` says it, without its calls
            return b'%b%b-%b-01"}' % (_OWN_HEAD, digits, parent)
    text = tracing_text(message)
    if not text:
        return _NULL
    encoded = text.encode()
    size = len(encoded)
    return (_TEXT_HEADS[size] if size < 256 else _head(_TEXT, size)) + encoded


# --- Messages to bytes ----------------------------------------------------------------------------


def encode_frame(message: Message, *, limit: int = FRAME_LIMIT) -> bytes:
    """The frame of a message, with its length in front.

    >>> message = Message(Route.parse("echoer"), Route.parse("app"), b"hi")
    >>> encode_frame(message).hex(" ", -4)
    '00000016 84818200 46656368 6f657281 82004361 70704268 69f6'
    >>> encode_frame(HEARTBEAT) == HEARTBEAT_FRAME
    True

    A message without an onward route is refused, since its receiver would treat it as a heartbeat.
    """
    if message == HEARTBEAT:
        return HEARTBEAT_FRAME
    try:
        onward = _ROUTE_ITEMS[message.onward_route]
    except TypeError:  # cannot be hashed, so an address has no bytes in it: say which
        onward = _route_item(message.onward_route)
    return b"".join(_frame_items(onward, message, limit))


def encode_departure(message: Message, *, limit: int = FRAME_LIMIT) -> bytes:
    """The frame of a message that leaves: without the address of its connection (WK-10).

    >>> message = Message(Route.parse("connection => echoer"), Route.parse("app"), b"hi")
    >>> encode_departure(message) == encode_frame(message.departed())
    True
    """
    try:
        onward = _DEPARTURES[message.onward_route]
    except TypeError:  # as above
        onward = _DEPARTURES.write(message.onward_route)
    return b"".join(_frame_items(onward, message, limit))


def departure_parts(message: Message, *, limit: int = FRAME_LIMIT) -> tuple[bytes, bytes, bytes]:
    """The frame of a message that leaves, in three parts: the second is the payload, not a copy.

    >>> message = Message(Route.parse("connection => echoer"), Route.parse("app"), b"hi")
    >>> b"".join(departure_parts(message)) == encode_departure(message)
    True
    """
    try:
        onward = _DEPARTURES[message.onward_route]
    except TypeError:  # as above
        onward = _DEPARTURES.write(message.onward_route)
    *front, payload, tracing = _frame_items(onward, message, limit)
    return b"".join(front), payload, tracing


def encode_control(payload: bytes) -> bytes:
    """A frame for the session itself, which other implementations treat as a heartbeat."""
    head = b"\x84\x80\x80" + _head(_BYTES, len(payload))
    return b"".join((_pack_length(len(head) + len(payload) + 1), head, payload, _NULL))


def _frame_items(onward: bytes, message: Message, limit: int) -> tuple[bytes, ...]:
    """What a frame is made of: first its length, at the end the payload and the tracing."""
    payload = message.payload
    if type(payload) is not bytes and not isinstance(payload, bytes):
        raise not_bytes_error(payload)
    if onward == b"\x80":
        raise LocalError(
            f"message {message} has no onward route",
            rule="AD-6",
            hint="drop it, or send HEARTBEAT",
        )
    try:
        back = _ROUTE_ITEMS[message.return_route]
    except TypeError:
        back = _route_item(message.return_route)
    size = len(payload)
    if size < 256:
        head = _BYTES_HEADS[size]
    elif size < 65536:
        head = _pack_medium_head(0x59, size)
    else:
        head = _head(_BYTES, size)
    tracing = _tracing_item(message)
    size += 1 + len(onward) + len(back) + len(head) + len(tracing)
    if size > limit:
        raise LocalError(
            f"a message of {size} bytes is too large",
            rule="OB-2",
            hint=f"send at most {limit} bytes, routes and tracing included",
        )
    return _pack_length(size), b"\x84", onward, back, head, payload, tracing


def encode_body(message: Message, *, limit: int = FRAME_LIMIT) -> bytes:
    """The message without a length in front, as `fragments` takes it."""
    return encode_frame(message, limit=limit)[4:]


def encode_parts(onward: Route, back: Route, payload: bytes) -> bytes:
    """The array [onward route, return route, payload], which stands in other formats of Ockam's.

    >>> decode_body(encode_parts(Route.parse("echoer"), Route.parse("app"), b"hi")).payload
    b'hi'
    """
    return b"".join(
        (
            b"\x83",
            _ROUTE_ITEMS[onward],
            _ROUTE_ITEMS[back],
            _head(_BYTES, len(payload)),
            payload,
        )
    )


# --- Bytes to messages ----------------------------------------------------------------------------


def decode_body(body: bytes | bytearray | memoryview) -> Message:
    """The message of a complete body; if its onward route is empty, only the payload counts.

    >>> print(decode_body(bytes.fromhex("84 81820041 65 818200 4161 4170 f6")))
    0#e | 0#a | 1 B
    >>> decode_body(b"")
    Traceback (most recent call last):
    waystation.errors.DecodeError: ockam: the bytes end too early (at byte 0)
    """
    if type(body) is not bytes:
        body = bytes(body)
    return _decode(body, 0, len(body))


def _decode(data: bytes, start: int, end: int, ways_back: _WaysBack | None = None) -> Message:
    """The message in data[start:end]; fast if its header is known, and faster with our own text.

    Everything else, valid or not, is left to the slow reader.
    """
    length = _guess_length(data[start : start + 8], 0)
    routes = _known_routes(data[start : start + length])
    if routes is None:
        found = _HEADERS.learn(data, start, end)
        if found is None:
            return _decode_slowly(data, start, end, ways_back)
        length, routes = found
    onward, back = routes
    if ways_back is not None:
        back = ways_back[back]
    at = start + length
    head = data[at] if at < end else 0
    if head == 0x58 and at + 2 <= end:
        at += 2
        stop = at + data[at - 1]
    elif head == 0x59 and at + 3 <= end:
        at += 3
        stop = at + (data[at - 2] << 8 | data[at - 1])
    elif 0x40 <= head < 0x58:
        at += 1
        stop = at + head - 0x40
    else:
        stop = end
    if stop >= end:
        return _decode_slowly(data, start, end, ways_back)
    tracing = _read_own_text(data, stop, end)
    if tracing is None:
        text = _Reader(data, stop, end).text_or_null()
        tracing = read_tracing(text) if text else _NO_TRACING
    trace_id, expiry, context = tracing
    return Message(onward, back, data[at:stop], trace_id, expiry, context)


def _decode_slowly(
    data: bytes, start: int, end: int, ways_back: _WaysBack | None = None
) -> Message:
    onward, back, payload, text = _Reader(data, start, end).message()
    if not onward.addresses:
        return Message(onward, onward, payload) if payload else HEARTBEAT
    if ways_back is not None:
        back = ways_back[back]
    tracing = read_tracing(text) if text else _NO_TRACING
    return Message(onward, back, payload, *tracing)


class _Reader:
    """Reads CBOR as Ockam's decoder does, item by item, without recursion."""

    __slots__ = ("_at", "_data", "_end", "_skippable")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data = data
        self._at = start
        self._end = end
        self._skippable = SKIPPED_ITEMS

    def message(self) -> tuple[Route, Route, bytes, str | None]:
        onward = back = Route()
        payload = text = None
        for index in self._elements(self._array("a message")):
            if index == 0:
                onward = self._route()
            elif index == 1:
                back = self._route()
            elif index == 2:
                payload = self._bytes("a payload")
            elif index == 3:
                text = self.text_or_null()
            else:
                self._skip()
        if payload is None:
            self._refuse("a message has fewer than three elements")
        return onward, back, payload, text

    def fragment(self) -> tuple[int, int, bool, bytes]:
        number = offset = 0
        last = False
        chunk = None
        for index in self._elements(self._array("a datagram")):
            if index == 0:
                self._unsigned("a version", 0xFF)  # Ockam does not look at it either
            elif index == 1:
                number = self._unsigned("a routing number", 0xFFFF)
            elif index == 2:
                offset = self._unsigned("an offset", 0xFFFF_FFFF)
            elif index == 3:
                last = self._bool()
            elif index == 4:
                chunk = self._bytes("a chunk")
            else:
                self._skip()
        if chunk is None:
            self._refuse("a datagram has fewer than five elements")
        return number, offset, last, chunk

    def _route(self) -> Route:
        start = self._at
        count = self._array("a route")
        addresses: list[Address] = []
        for index in self._elements(count):
            if index == MAX_ROUTE_LENGTH or count > MAX_ROUTE_LENGTH:
                self._refuse(
                    f"a route has more than {MAX_ROUTE_LENGTH} addresses", start, too_large=True
                )
            addresses.append(self._address())
        return Route(tuple(addresses))

    def _address(self) -> Address:
        kind = 0
        data = None
        for index in self._elements(self._array("an address")):
            if index == 0:
                kind = self._unsigned("an address type", 255)
            elif index == 1:
                data = self._bytes("address data")
            else:
                self._skip()
        if data is None:
            self._refuse("an address has fewer than two elements")
        return Address(kind, data)

    # Items

    def _array(self, what: str) -> int:
        """How many elements follow, or -1 when a break ends them."""
        start = self._at
        major, count = self._any_head()
        if major != _ARRAY:
            self._refuse(f"{what} is not an array", start)
        return count

    def _elements(self, count: int) -> Iterator[int]:
        index = 0
        while index != count and not (count < 0 and self._took_break()):
            yield index
            index += 1

    def _unsigned(self, what: str, most: int) -> int:
        start = self._at
        major, number = self._any_head()
        if major != _UNSIGNED or not 0 <= number <= most:
            self._refuse(f"{what} is not a number from 0 to {most}", start)
        return number

    def _bytes(self, what: str) -> bytes:
        start = self._at
        major, size = self._any_head()
        if major != _BYTES or size < 0:
            self._refuse(f"{what} is not a byte string of definite length", start)
        return self._take(size)

    def _bool(self) -> bool:
        start = self._at
        item = self._take(1)
        if item not in (b"\xf4", b"\xf5"):
            self._refuse("the mark of the last datagram is not a boolean", start)
        return item == b"\xf5"

    def text_or_null(self) -> str | None:
        start = self._at
        if self._peek() == 0xF6:
            self._at += 1
            return None
        major, size = self._any_head()
        if major != _TEXT or size < 0:
            self._refuse("the tracing is neither null nor a text of definite length", start)
        return self._text(size)

    def _text(self, size: int) -> str:
        start = self._at
        self._pass_over(size)
        try:
            return short_text(self._data, start, self._at)
        except UnicodeDecodeError:
            self._refuse("a text is not UTF-8", start)

    def _skip(self) -> None:
        """Skip one item of any depth; an invalid one raises an error."""
        missing = [
            1
        ]  # number of missing items of each open array, map or tag, outermost first, or -1
        while missing:
            count = missing[-1]
            if count == 0 or (count < 0 and self._took_break()):
                missing.pop()
                continue
            if count > 0:
                missing[-1] = count - 1
            self._count_skipped()
            start = self._at
            major, number = self._any_head()
            if major in (_BYTES, _TEXT):
                self._skip_string(major, number)
            elif major in (_ARRAY, _MAP):
                missing.append(number * 2 if major == _MAP and number > 0 else number)
            elif number < 0:
                self._refuse("a break stands where none can be", start)
            elif major == _TAG:
                missing.append(1)

    def _skip_string(self, major: int, size: int) -> None:
        if size >= 0:
            self._skip_piece(major, size)
            return
        while not self._took_break():
            self._count_skipped()
            start = self._at
            kind, size = self._any_head()
            if kind != major or size < 0:
                self._refuse("a string has a piece of another kind", start)
            self._skip_piece(major, size)

    def _skip_piece(self, major: int, size: int) -> None:
        if major == _TEXT:
            self._text(size)
        else:
            self._pass_over(size)

    def _count_skipped(self) -> None:
        self._skippable -= 1
        if self._skippable < 0:
            self._refuse(f"more than {SKIPPED_ITEMS} items are unknown", too_large=True)

    # Bytes

    def _any_head(self) -> tuple[int, int]:
        """The major type and the number of a head; -1 is indefinite, or a break."""
        head = self._peek()
        self._at += 1
        major, info = head >> 5, head & 0x1F
        if info < 24:
            return major, info
        if info < 28:
            return major, int.from_bytes(self._take(1 << info - 24), "big")
        if info < 31:
            self._refuse(f"no item starts with {head:#04x}", self._at - 1)
        return major, -1

    def _peek(self) -> int:
        if self._at >= self._end:
            self._refuse("the bytes end too early")
        return self._data[self._at]

    def _took_break(self) -> bool:
        found = self._peek() == _BREAK
        self._at += found
        return found

    def _pass_over(self, size: int) -> None:
        if size > self._end - self._at:
            self._refuse("the bytes end too early")
        self._at += size

    def _take(self, size: int) -> bytes:
        start = self._at
        self._pass_over(size)
        return self._data[start : self._at]

    def _refuse(self, problem: str, at: int | None = None, *, too_large: bool = False) -> NoReturn:
        where = self._at if at is None else at
        raise DecodeError(problem, format=_FORMAT, offset=where, too_large=too_large)


def _moved(error: DecodeError, by: int = 0) -> DecodeError:
    """A copy of an error with a shifted offset, and without traceback."""
    return DecodeError(
        error.problem, format=_FORMAT, offset=error.offset + by, too_large=error.too_large
    )


class FrameDecoder:
    """Decodes the bytes of one direction of a TCP connection, in chunks of any size.

    >>> decoder = FrameDecoder()
    >>> decoder.feed(PREFACE + HEARTBEAT_FRAME[:6])
    []
    >>> decoder.feed(HEARTBEAT_FRAME[6:]) == [HEARTBEAT]
    True

    Invalid bytes do not affect what came before them: `feed` returns the messages before
    them, `error` is set at once, and every further call, even `feed(b"")`,
    raises it. Its offset counts from the first byte of the connection. At most one
    incomplete frame is held, and it is parsed only when it is complete.

    A frame is refused by the length that it announces, before its bytes are there. With a `limit`
    that is low until the peer is admitted, `raise_limit` reads on where it was refused.

    `via` is the connection's own address, which is put in front of every return route (WK-10).
    """

    __slots__ = ("_greeted", "_held", "_needed", "_passed", "_refused", "_ways_back", "error",
                 "limit")  # fmt: skip

    def __init__(self, *, limit: int = FRAME_LIMIT, via: Address | None = None) -> None:
        self.limit = limit
        self._ways_back = None if via is None else _WaysBack(via)
        self.error: DecodeError | None = None
        self._held = bytearray()
        self._needed = 0  # nothing can be done with fewer bytes held
        self._passed = 0  # bytes before those that are held
        self._refused = b""  # what was read from a frame on that was too large
        self._greeted = False

    @property
    def greeted(self) -> bool:
        """Whether the preface has come."""
        return self._greeted

    @property
    def unfinished(self) -> bool:
        """Whether a frame is incomplete."""
        return bool(self._held)

    @property
    def held(self) -> int:
        """How many bytes there are of a frame that has begun and not ended."""
        return len(self._held)

    def raise_limit(self, limit: int) -> list[Message]:
        """Take frames of up to this many bytes; returns the messages in what was refused before.

        >>> decoder = FrameDecoder(limit=4)
        >>> decoder.feed(PREFACE + HEARTBEAT_FRAME), decoder.error.too_large
        ([], True)
        >>> decoder.raise_limit(5), decoder.error
        ([Message(...)], None)
        """
        self.limit = limit
        refused, self._refused = self._refused, b""
        if self.error is None or not refused:
            return []
        self._passed, self.error = self.error.offset, None
        return self.feed(refused)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """The messages that these bytes complete; those for the session have no routes."""
        if self.error is not None:
            raise _moved(self.error)
        if type(data) is not bytes:
            data = bytes(data)
        held = self._held
        if held and len(held) + len(data) < self._needed:
            held += data
            return []
        messages: list[Message] = []
        try:
            start = 0
            if held and self._needed == 4:  # not even its length is there
                data = bytes(held) + data
                held.clear()
            elif held:
                start = self._complete(data, messages.append)
            self._read(data, start, messages.append)
        except DecodeError as error:
            self.error = _moved(error, by=self._passed)
        return messages

    def _complete(self, data: bytes, deliver: Callable[[Message], None]) -> int:
        """Read the frame that had begun; returns where the next one begins.

        Only this frame is put together. What follows it is read where it is, without a copy.
        """
        held = self._held
        start = self._needed - len(held)
        held += data[:start]
        frame = bytes(held)
        held.clear()
        self._read(frame, 0, deliver)
        self._passed -= start  # from now on, what came before `data`
        return start

    def _read(self, data: bytes, at: int, deliver: Callable[[Message], None]) -> None:
        ways_back = self._ways_back
        if not self._greeted:
            at = self._read_preface(data)
        whole = len(data)
        needed = 4
        while at + 4 <= whole:
            (size,) = _unpack_length(data, at)
            if size > self.limit:
                self._refused = data[at:]
                raise DecodeError(
                    f"a frame of {size} bytes is longer than {self.limit}",
                    format=_FORMAT,
                    offset=at,
                    too_large=True,
                )
            end = at + 4 + size
            if end > whole:
                needed = 4 + size
                break
            deliver(_decode(data, at + 4, end, ways_back))
            at = end
        self._passed += at
        if at < whole:
            self._needed = needed
            self._held += memoryview(data)[at:]

    def _read_preface(self, data: bytes) -> int:
        first = data[:1]
        if first and first != PREFACE:
            raise DecodeError(f"the preface is {first.hex()}, not 01", format=_FORMAT, offset=0)
        self._greeted = first == PREFACE
        return len(first)


# --- Datagrams ------------------------------------------------------------------------------------


def fragments(body: bytes, number: int) -> list[bytes]:
    """The datagrams of one message: each has its position, and the last is marked.

    `number` is the routing number. A sender gives each message the next one, and 0 after 65535.

    >>> body = encode_body(Message(Route.parse("echoer"), Route.parse("app"), bytes(500)))
    >>> [len(datagram) for datagram in fragments(body, 4660)]
    [503, 40]
    """
    if not (isinstance(number, int) and 0 <= number <= 0xFFFF):
        raise LocalError(
            f"routing number {quote(number)} is out of range",
            rule="WK-10",
            hint="give 0 to 65535",
        )
    if not isinstance(body, bytes):
        raise LocalError(f"body {quote(body)} is not bytes", rule="AD-4", hint="give bytes")
    if not 0 < len(body) <= FRAME_LIMIT:
        raise LocalError(
            f"a body of {len(body)} bytes fits no datagrams",
            rule="OB-2",
            hint=f"give what encode_body returned, at most {FRAME_LIMIT} bytes",
        )
    front = b"\x85\x01" + _head(_UNSIGNED, number)
    datagrams = []
    for offset in range(0, len(body), CHUNK_SIZE):
        chunk = body[offset : offset + CHUNK_SIZE]
        last = b"\xf5" if offset + CHUNK_SIZE >= len(body) else b"\xf4"
        parts = (front, _head(_UNSIGNED, offset), last, _head(_BYTES, len(chunk)), chunk)
        datagrams.append(b"".join(parts))
    return datagrams


class Reassembly:
    """Reassembles the messages of one peer from its datagrams.

    One message at a time, in order, as Ockam does: a datagram of an earlier message is late and
    ignored, one of a later message ends the incomplete one, and one that is out of order ends
    its own. Nothing is requested again.

    >>> reassembly = Reassembly()
    >>> message = Message(Route.parse("echoer"), Route.parse("app"), bytes(500))
    >>> first, second = fragments(encode_body(message), 65535)
    >>> reassembly.feed(first), reassembly.feed(second) == message
    (None, True)

    A DecodeError is about one datagram, or about the message that it completes or makes too large;
    the next ones are decoded as usual.
    """

    def __init__(self, *, limit: int = FRAME_LIMIT) -> None:
        self.limit = limit
        self._expected: int | None = None
        self._held = bytearray()

    def feed(self, datagram: bytes | bytearray | memoryview) -> Message | None:
        """The message that this datagram completes, or None; HEARTBEAT for a heartbeat."""
        if type(datagram) is not bytes:
            datagram = bytes(datagram)
        number, offset, last, chunk = _Reader(datagram, 0, len(datagram)).fragment()
        if number != self._expected and not self._starts(number):
            return None
        size = len(self._held) + len(chunk)
        if offset != len(self._held):
            self._expect(number + 1)
            return None
        if size > self.limit:
            self._expect(number + 1)
            raise DecodeError(
                f"a message has more than {self.limit} bytes", format=_FORMAT, too_large=True
            )
        self._held += chunk
        if not last:
            return None
        body = bytes(self._held)
        self._expect(number + 1)
        return decode_body(body)

    def _starts(self, number: int) -> bool:
        """Whether a message with this number comes after those already seen; numbers wrap."""
        later = self._expected is None or (number - self._expected) & 0xFFFF < 0x8000
        if later:
            self._expect(number)
        return later

    def _expect(self, number: int) -> None:
        self._expected = number & 0xFFFF
        self._held.clear()
