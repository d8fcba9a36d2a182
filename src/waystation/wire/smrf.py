"""The SMRF frame, joynr's envelope: bytes to `SmrfMessage` and back.

Only the envelope is here. The headers and the body are in `joynr.py`.

A frame is a prefix of eight bytes (version, length of the signature, length of the FlatBuffer), a
FlatBuffer with one table for the message and one for each header, and the signature. A FlatBuffer
is a heap of offsets, and the bytes come from untrusted peers, so the reader trusts none of them:

- the FlatBuffer is cut out first and then read through `struct`, which does not read past the end
  of its buffer; the one offset that points backwards is checked explicitly;
- lengths are compared with the available bytes before anything is copied;
- participants, body and headers may not hold more bytes in total than the frame has, so that a
  thousand headers which point at one long string are rejected cheaply; and a body is inflated up to
  the limit, no further.

Where the joynr implementations disagree, the frame is refused, because a difference between
two readers can be exploited to get past one of them: a frame that is longer than its lengths say
(Java and C++ ignore the rest, JavaScript takes the signature from it), a frame that is shorter
(JavaScript reads on), a header that comes twice (C++ keeps the first, the others the last).
Alignment and the zero byte after a string matter only to the C++ reader. They are written, but not
required: nothing here depends on them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from waystation.core.expiry import NEVER, Expiry
from waystation.errors import DecodeError, LocalError, quote

MAX_SIZE: Final = 4_000_000
"""The default limit for a frame and for its inflated body: what joynr's own WebSockets carry."""

MAX_HEADERS: Final = 1024
"""Maximum number of headers. joynr itself uses six, and one for each custom header."""

MAX_PARTICIPANT: Final = 65_536
"""Maximum size of a recipient or sender in bytes; joynr's own are UUIDs and multicast ids."""

MAX_SIGNATURE: Final = 32_767
"""The longest signature: Java reads the length as a signed number."""

LAST_TTL: Final = 9_223_372_036_854
"""The last millisecond that C++ can count in nanoseconds (year 2262); later ones wrap around there.

So nothing later is ever written; this time or a later one means "never".
"""

_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<HHI")
_START: Final = _PREFIX.size  # of the FlatBuffer, in the frame

_U16: Final = struct.Struct("<H").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_I32: Final = struct.Struct("<i").unpack_from


class SmrfMessage(Struct, frozen=True, gc=False):
    """The contents of one frame.

    `ttl` is the time at which the message expires, or, when `ttl_absolute` is false, a number of
    milliseconds (joynr's routers refuse such a message). `body` is the plain body, whether or not
    it is transferred compressed; only an encrypted one is left as it is, since it cannot be read.

    >>> message = SmrfMessage("provider-1", "proxy-1", headers={"t": "o", "id": "1"}, body=b"{}")
    >>> decode(encode(message)) == message
    True
    """

    recipient: str
    sender: str
    ttl: Expiry = NEVER
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ttl_absolute: bool = True
    is_signed: bool = False
    is_encrypted: bool = False
    is_compressed: bool = False
    is_custom_signed: bool = False
    signature: bytes = b""


# -- reading ---------------------------------------------------------------------------------------


def decode(data: bytes | bytearray | memoryview, *, max_size: int = MAX_SIZE) -> SmrfMessage:
    """Read one whole frame.

    Neither the frame nor its inflated body may be longer than `max_size`. A `ttl` that C++ cannot
    count is NEVER, one before the epoch is the epoch: expired, as it is for every joynr router.

    >>> decode(bytes([2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]))
    Traceback (most recent call last):
    waystation.errors.DecodeError: smrf: version 2 is unknown (at byte 0)
    """
    if type(data) is not bytes:
        data = bytes(data)
    end = _end_of_flatbuffer(data, max_size)
    # Usually there is no signature, and then nothing is copied here.
    flatbuffer = data if end == len(data) else data[:end]
    try:
        return _read_message(flatbuffer, data[end:], max_size)
    except (struct.error, OverflowError):  # OverflowError: where an address has 32 bits
        raise _malformed("an offset leads out of the message") from None
    except UnicodeDecodeError:
        raise _malformed("a string is not UTF-8") from None


def signed_part(data: bytes | bytearray | memoryview, *, max_size: int = MAX_SIZE) -> bytes:
    """The bytes of a frame that its signature is made over, for those who verify it.

    >>> frame = encode(SmrfMessage("r", "s"), lambda part: part[:4])
    >>> decode(frame).signature == signed_part(frame)[:4]
    True
    """
    return bytes(data[_START : _end_of_flatbuffer(data, max_size)])


def _end_of_flatbuffer(data: bytes | bytearray | memoryview, max_size: int) -> int:
    """Check the prefix against the available bytes."""
    if len(data) < _START:
        raise _malformed("the frame is shorter than its prefix", 0)
    version, signature_size, size = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise _malformed(f"version {version} is unknown", 0)
    if signature_size > MAX_SIGNATURE:
        raise _malformed(f"a signature of {signature_size} bytes is too long", 2)
    end: int = _START + size
    declared = end + signature_size
    if max(declared, len(data)) > max_size:
        raise _too_large(f"a frame of {max(declared, len(data))} bytes is over {max_size}", 4)
    if declared != len(data):
        raise _malformed(f"the frame has {len(data)} bytes and says it has {declared}", 4)
    return end


class _Table(NamedTuple):
    """The fields of a table in the schema: their types for `struct`, their defaults."""

    types: str
    defaults: tuple[int, ...]


class _Layout(NamedTuple):
    """How to read tables with a certain vtable: all fields at once."""

    unpack_from: Callable[[bytes, int], tuple[Any, ...]]  # the fields that are present
    in_order: Callable[[tuple[Any, ...]], tuple[Any, ...]]  # from those and the defaults: all
    slots: tuple[int, ...]  # the position of each field in the table


_ABSENT: Final = 0
"""The value of a missing offset. No real offset is 0: it would point at itself."""

_MESSAGE: Final = _Table(
    # recipient, sender, ttlMs, ttlAbsolute, isSigned, isEncrypted, isCompressed, headers, body,
    # isCustomSigned. A signed and encrypted message is the default, though no implementation writes
    # one.
    "IIq????II?",
    (_ABSENT, _ABSENT, 0, True, True, True, False, _ABSENT, _ABSENT, False),
)
_HEADER: Final = _Table("II", (_ABSENT, _ABSENT))


def _compiled(table: _Table, vtable: bytes) -> _Layout:
    _, table_size, *slots = struct.unpack(f"<{len(vtable) // 2}H", vtable)
    present = sorted((slot, index) for index, slot in enumerate(slots) if slot)
    order = [len(present) + index for index in range(len(table.types))]  # where the defaults are
    form, position = "<4x", 4  # the offset of the vtable itself comes first
    for place, (slot, index) in enumerate(present):
        if slot < position:
            raise _malformed("two fields of a table overlap")
        form += f"{slot - position}x{table.types[index]}"
        position = struct.calcsize(form)
        order[index] = place
    if position > table_size:
        raise _malformed("a table is too small for its fields")
    slots += [0] * (len(table.types) - len(slots))
    return _Layout(struct.Struct(form).unpack_from, itemgetter(*order), tuple(slots))


# Peers use two or three vtables each, so the layout is nearly always cached.
_message_layout: Final = lru_cache(maxsize=64)(partial(_compiled, _MESSAGE))
_header_layout: Final = lru_cache(maxsize=64)(partial(_compiled, _HEADER))


def _vtable(data: bytes, position: int, fields: int) -> bytes:
    """The vtable at a position, without the fields that the schema does not have."""
    if position < _START:
        raise _malformed("a vtable lies before the message")
    (size,) = _U16(data, position)
    known = min(size, 4 + 2 * fields)
    vtable = data[position : position + known]
    if size < 4 or size % 2 or len(vtable) < known:
        raise _malformed(f"a vtable of {size} bytes cannot be", position)
    return vtable


def _read_message(data: bytes, signature: bytes, max_size: int) -> SmrfMessage:
    table = _START + _U32(data, _START)[0]
    vtable = _vtable(data, table - _I32(data, table)[0], len(_MESSAGE.types))
    unpack_from, in_order, slots = _message_layout(vtable)
    fields = in_order(unpack_from(data, table) + _MESSAGE.defaults)
    recipient, sender, ttl, absolute, signed, encrypted, compressed, headers, body, custom = fields
    if not (recipient and sender):
        raise _malformed("a message without recipient or sender", table)
    recipient = _read_participant(data, table + slots[0] + recipient)
    sender = _read_participant(data, table + slots[1] + sender)
    content = _read_bytes(data, table + slots[8] + body) if body else b""
    allowance = len(data) - len(recipient) - len(sender) - len(content)
    if allowance < 0:
        raise _malformed("the participants and the body hold more bytes than the message has")
    if compressed and content and not encrypted:
        content = _inflated(content, max_size)
    return SmrfMessage(
        recipient.decode(),
        sender.decode(),
        max(ttl, 0) if ttl < LAST_TTL else NEVER,
        _read_headers(data, table + slots[7] + headers, allowance) if headers else {},
        content,
        absolute,
        signed,
        encrypted,
        compressed,
        custom,
        signature,
    )


def _read_bytes(data: bytes, position: int) -> bytes:
    """A string or a vector of bytes: its length and then itself."""
    (length,) = _U32(data, position)
    content = data[position + 4 : position + 4 + length]
    if len(content) < length:
        raise _malformed("a string leads out of the message", position)
    return content


def _read_participant(data: bytes, position: int) -> bytes:
    name = _read_bytes(data, position)
    if len(name) > MAX_PARTICIPANT:
        raise _too_large(f"a participant of {len(name)} bytes is over {MAX_PARTICIPANT}", position)
    return name


def _read_headers(data: bytes, position: int, allowance: int) -> dict[str, str]:
    (count,) = _U32(data, position)
    if count > MAX_HEADERS:
        raise _too_large(f"{count} headers are over {MAX_HEADERS}", position)
    headers: dict[str, str] = {}
    known_vtable = -1
    for offset in struct.unpack_from(f"<{count}I", data, position + 4):
        position += 4
        table = position + offset
        vtable = table - _I32(data, table)[0]
        if vtable != known_vtable:  # the headers of a message nearly always share one
            unpack_from, in_order, slots = _header_layout(_vtable(data, vtable, 2))
            known_vtable = vtable
        key_offset, value_offset = in_order(unpack_from(data, table) + _HEADER.defaults)
        if not (key_offset and value_offset):
            raise _malformed("a header without key or value", table)
        key = _read_bytes(data, table + slots[0] + key_offset)
        value = _read_bytes(data, table + slots[1] + value_offset)
        allowance -= len(key) + len(value)
        if allowance < 0:
            raise _malformed("the strings hold more bytes than the message has", position)
        headers[key.decode()] = value.decode()
    if len(headers) != count:
        raise _malformed("a header comes twice")
    return headers


def _inflated(body: bytes, max_size: int) -> bytes:
    """The plain body; never more than `max_size` bytes of it are created."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, max_size)
        # At the limit only the checksum may be left: ask for one byte more to find out.
        if not inflater.eof and inflater.decompress(inflater.unconsumed_tail, 1):
            raise _too_large(f"the inflated body is over {max_size} bytes")
    except zlib.error:
        raise _malformed("the body is not a zlib stream") from None
    if not inflater.eof or inflater.unused_data:
        raise _malformed("the body is not one whole zlib stream")
    return plain


def _malformed(problem: str, offset: int = -1) -> DecodeError:
    return DecodeError(problem, format="smrf", offset=offset)


def _too_large(problem: str, offset: int = -1) -> DecodeError:
    return DecodeError(problem, format="smrf", offset=offset, too_large=True)


# -- writing ---------------------------------------------------------------------------------------
#
# A FlatBuffer may lay its parts out in any order. Ours always has the same beginning, so that all
# of it but a few numbers is known before the first message comes:
#
#      0  offset of the message's table     36  table: offset of its vtable (24 bytes before it),
#      4  vtable of all headers                 ttl at 40, four offsets from 48, five flags from 64
#     12  vtable of the message             72  recipient, sender, headers, body
#
# Everything is aligned to its size, counted from the beginning of the FlatBuffer, as the C++ reader
# verifies. Every field is written, also where it has its default value.

_HEADER_VTABLE_AT: Final = 4
_RECIPIENT_AT, _SENDER_AT, _HEADERS_AT, _BODY_AT = 48, 52, 56, 60  # where their offsets stand
_CONTENT_AT: Final = 72

_BEGINNING: Final = struct.pack(
    "<I4H12Hi",
    *(36,),
    *(8, 12, 4, 8),  # sizes of the vtable and of a table; key, value
    *(24, 36, 12, 16, 4, 28, 29, 30, 31, 20, 24, 32),  # the same; the fields as in _MESSAGE
    *(24,),
)
_HEAD: Final = struct.Struct(f"<HHI{len(_BEGINNING)}sq4I5?3x").pack
_LENGTH: Final = struct.Struct("<I").pack
_HEADER_TABLE: Final = struct.Struct("<iII").pack
_PADDING: Final = (
    b"\0\0\0\0",
    b"\0\0\0",
    b"\0\0",
    b"\0",
)  # a zero byte, then up to a multiple of 4


def encode(
    message: SmrfMessage,
    sign: Callable[[bytes], bytes] | None = None,
    *,
    max_size: int = MAX_SIZE,
) -> bytes:
    """Write one frame; `sign` gets the bytes to be signed and returns the signature.

    Headers are written in the order of their keys, as Java and C++ do and lookups expect. A `ttl`
    past the year 2262, and NEVER, is written as the last time that C++ can represent.

    >>> encode(SmrfMessage("r", "s", 0)).hex()[:24]
    '010000006000000024000000'
    >>> encode(SmrfMessage("r", "s", signature=b"of other bytes"))
    Traceback (most recent call last):
    waystation.errors.LocalError: a signature is valid only for the bytes it was made over; give ...
    """
    if sign is None and (message.signature or message.is_custom_signed):
        raise LocalError(
            "a signature is valid only for the bytes it was made over",
            rule="WK-10",
            hint="give `sign`, or send on the frame as it was received",
        )
    if message.is_encrypted:
        raise LocalError(
            "encrypted messages are not supported", rule="WK-10", hint="write a plain body"
        )
    try:
        frame = _written(message, sign is not None)
    except UnicodeEncodeError as error:
        raise LocalError(
            f"{quote(error.object)} cannot be written in UTF-8",
            rule="WK-10",
            hint="give text without lone surrogates",
        ) from None
    except (TypeError, AttributeError, struct.error) as error:
        raise LocalError(
            f"{quote(message)} cannot be encoded: {error}",
            rule="WK-10",
            hint="give each field a value of its own type",
        ) from None
    if sign is not None:
        frame = _signed(frame[_START:], sign)
    if max(len(frame), len(message.body)) > max_size:
        raise LocalError(
            f"a message of {max(len(frame), len(message.body))} bytes is too large",
            rule="OB-2",
            hint=f"stay within {max_size} bytes, which is what its readers accept",
        )
    return frame


def _written(message: SmrfMessage, custom_signed: bool) -> bytes:
    recipient = _participant(message.recipient)
    sender = _participant(message.sender)
    sender_start = _CONTENT_AT + len(recipient)
    headers_start = sender_start + len(sender)
    headers = _written_headers(message.headers, headers_start)
    body_start = headers_start + len(headers)
    body = message.body
    if message.is_compressed:
        body = zlib.compress(body)
    head = _HEAD(
        _VERSION,
        0,
        body_start + 4 + len(body),
        _BEGINNING,
        _checked_ttl(message.ttl),
        _CONTENT_AT - _RECIPIENT_AT,
        sender_start - _SENDER_AT,
        headers_start - _HEADERS_AT,
        body_start - _BODY_AT,
        message.ttl_absolute,
        message.is_signed,
        message.is_encrypted,
        message.is_compressed,
        custom_signed,
    )
    return b"".join((head, recipient, sender, headers, _LENGTH(len(body)), body))


def _written_headers(headers: Mapping[str, str], start: int) -> bytes:
    """A vector of offsets, and behind it each header: its table, its key, its value."""
    if len(headers) > MAX_HEADERS:
        raise LocalError(
            f"{len(headers)} headers are too many", rule="WK-10", hint=f"use at most {MAX_HEADERS}"
        )
    offsets: list[int] = []
    parts: list[bytes] = []
    offset_at = start + 4
    table_at = offset_at + 4 * len(headers)
    for name in sorted(headers):  # by code point, which is by byte of UTF-8 as well
        key = _string(name)
        value = _string(headers[name])
        offsets.append(table_at - offset_at)
        parts += (_HEADER_TABLE(table_at - _HEADER_VTABLE_AT, 8, 4 + len(key)), key, value)
        offset_at += 4
        table_at += 12 + len(key) + len(value)
    return struct.pack(f"<{1 + len(offsets)}I", len(offsets), *offsets) + b"".join(parts)


def _participant(text: str) -> bytes:
    written = _string(text)
    if len(written) > MAX_PARTICIPANT and len(text.encode()) > MAX_PARTICIPANT:
        raise LocalError(
            f"participant {quote(text)} is too long",
            rule="WK-10",
            hint=f"use at most {MAX_PARTICIPANT} bytes",
        )
    return written


def _string(text: str) -> bytes:
    content = text.encode()
    length = len(content)
    return _LENGTH(length) + content + _PADDING[length & 3]


def _checked_ttl(ttl: Expiry) -> int:
    if type(ttl) is int and ttl >= 0:
        return min(ttl, LAST_TTL)
    if ttl == NEVER:
        return LAST_TTL
    raise LocalError(
        f"invalid ttl {quote(ttl)}",
        rule="AD-7",
        hint="give whole milliseconds from 0 on, or NEVER",
    )


def _signed(flatbuffer: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    signature = sign(flatbuffer)
    if not isinstance(signature, bytes):
        raise LocalError(
            f"signature {quote(signature)} is not bytes",
            rule="WK-10",
            hint="let `sign` return bytes",
        )
    if len(signature) > MAX_SIGNATURE:
        raise LocalError(
            f"a signature of {len(signature)} bytes is too long",
            rule="WK-10",
            hint=f"use at most {MAX_SIGNATURE} bytes",
        )
    return _PREFIX.pack(_VERSION, len(signature), len(flatbuffer)) + flatbuffer + signature
