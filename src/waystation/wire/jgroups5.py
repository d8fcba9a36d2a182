"""The gossip-router format of JGroups 5.x: frames to values and back, both directions (GR-11).

Both directions carry the same frames: a length in four bytes, then one structure of that size; the
length -5 alone says goodbye. Only bytes and values are here, not what a router does with a
REGISTER. Releases from 4.0 on write the same REGISTER, UNREGISTER, GET_MBRS and
MESSAGE; before 5.2.6 the number of SUSPECT was that of HEARTBEAT.

Where the two modes of the real router disagree, or leave a choice, we do this:

- The length is trusted, as in its NIO mode. A structure that ends before or after its frame is
  malformed, without exception; so is a length below 1 other than -5.
- A frame of an unknown type is skipped by its length and reported as Unknown.
- A frame with an address of an unknown class is malformed, since its length is unknown.
- Every presence byte except 1 means null, every negative count means an empty list.
- Fields that a type does not use are read and ignored.

A router forwards a MESSAGE unchanged, byte for byte, so it needs no values for most of what
it receives: `scan` finds complete frames in a buffer and groups adjacent ones with the same head.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from msgspec import Struct

from waystation.errors import DecodeError, LocalError, quote
from waystation.wire.java import (
    DEFAULT_LIMITS,
    MAX_ITEMS,
    MAX_UTF,
    Cursor,
    FormatLimits,
    encode_count,
    encode_string,
    moved,
)
from waystation.wire.jgroups import (
    Address,
    Kind,
    KnownHeads,
    MillisAddress,
    PhysicalAddress,
    UuidAddress,
    check_uuid,
    host_bytes,
    host_text,
    port_bytes,
    scope_bytes,
    written,
)

FORMAT: Final = "jgroups5"

ALL_GROUPS: Final = "<<all-groups>>:"
"""Precedes the name of each group in the replies to GetMembers(None)."""

SERVER: Final = 1
COORDINATOR: Final = 2

_REGISTER, _UNREGISTER, _GET_MBRS, _GET_MBRS_RSP = 0, 1, 2, 3
_MESSAGE, _HEARTBEAT, _SUSPECT, _GET_MBRS_RSP_LAST = 4, 5, 6, 7
_LAST_TYPE: Final = _GET_MBRS_RSP_LAST
_WITH_MEMBERS: Final = frozenset({_GET_MBRS_RSP, _GET_MBRS_RSP_LAST})

_LENGTH: Final = struct.Struct(">i")
_GOODBYE_LENGTH: Final = -5
_MAX_LENGTH: Final = 0x7FFF_FFFF
_STEADY: Final = 3  # after this many adjacent frames of one size, more of that size are assumed


class PingData(Struct, frozen=True, gc=False):
    """What a router reports about one member (GR-4).

    `flags` holds SERVER and COORDINATOR; `wanted` is only used between members, in discovery.
    """

    address: Address | None
    name: str | None = None
    physical: Address | None = None
    flags: int = SERVER
    wanted: tuple[Address | None, ...] | None = None


class Register(Struct, frozen=True, gc=False):
    """Client to router: this address is a member of this group. There is no reply (GR-2).

    `token` is what a router may require before it admits a member. It is in the field for a
    payload, which JGroups leaves empty here and which its own router ignores.
    """

    group: str | None
    address: Address | None
    name: str | None = None
    physical: Address | None = None
    token: bytes = b""


class Unregister(Struct, frozen=True, gc=False):
    """Client to router: this address leaves this group. There is no reply (GR-7)."""

    group: str | None
    address: Address | None


class GetMembers(Struct, frozen=True, gc=False):
    """Client to router: who is in this group, or, with None, in every group (GR-4)."""

    group: str | None


class Members(Struct, frozen=True, gc=False):
    """Router to client: the members of one group; `last` unless more groups follow (GR-4)."""

    group: str | None
    members: tuple[PingData, ...] = ()
    last: bool = True


class Message(Struct, frozen=True, gc=False):
    """Both ways: a payload for one member, or, without a destination, for the group (GR-5).

    >>> message = Message("demo", None, UuidAddress(bytes(16)), b"hello")
    >>> Decoder().feed(encode(message)) == [message]
    True
    """

    group: str | None
    destination: Address | None
    sender: Address | None
    payload: bytes


class Heartbeat(Struct, frozen=True, gc=False):
    """Both ways: still here. A router replies to each with another."""


class Suspect(Struct, frozen=True, gc=False):
    """Router to client: the connection of this member is gone (GR-8)."""

    group: str | None
    address: Address | None


class Goodbye(Struct, frozen=True, gc=False):
    """Both ways: the sender closes now, on purpose. Nothing follows."""


class Unknown(Struct, frozen=True, gc=False):
    """A frame of a type that this file does not know, to be ignored."""

    type: int
    body: bytes


Value: TypeAlias = (
    Register | Unregister | GetMembers | Members | Message | Heartbeat | Suspect | Goodbye | Unknown
)


class MessageHead(Struct, frozen=True, gc=False):
    """What precedes the payload of a MESSAGE: its destination and its sender."""

    group: str | None
    destination: Address | None
    sender: Address | None


Run: TypeAlias = tuple[bytes, int, int, int]
"""Adjacent frames: their common head, the start of the first, the end of the last, their number.

The head of MESSAGE frames is what stands between their length and the length of their payload; give
it to `read_head`. An empty head marks a single frame of another sort; give it to `decode`.
"""


# Addresses: the bits of the first byte are checked in this order; if none is set, the number
# of a class follows.

_FLAGGED: Final[tuple[tuple[int, Kind], ...]] = ((2, "uuid"), (4, "site-uuid"), (8, "site-master"))
_NUMBERED: Final[Mapping[int, Kind]] = {12: "extended-uuid", 19: "flags-uuid"}
_MILLIS: Final = 22
_MILLIS_PREFIX: Final = b"\0\0\x16"
_PREFIXES: Final[Mapping[Kind, bytes]] = {
    "uuid": b"\x02",
    "site-uuid": b"\x04",
    "site-master": b"\x08",
    "extended-uuid": b"\0\0\x0c",
    "flags-uuid": b"\0\0\x13",
}


def _skip_nothing(cursor: Cursor) -> None:
    del cursor


def _skip_flags(cursor: Cursor) -> None:
    size = cursor.byte()  # how many bytes of a four-byte number are written
    if size > 4:
        raise cursor.error(f"a number of {size} bytes", cursor.position - 1)
    cursor.skip(size)


def _skip_extended(cursor: Cursor) -> None:
    _skip_flags(cursor)
    for _ in range(2 * cursor.byte()):  # keys and values in turn
        cursor.skip(cursor.byte())


def _skip_site(cursor: Cursor) -> None:
    _skip_extended(cursor)
    cursor.string()  # checked, because the receiver of this address has to read it too
    cursor.string()


_SKIP_EXTRA: Final[Mapping[Kind, Callable[[Cursor], None]]] = {
    "uuid": _skip_nothing,
    "site-uuid": _skip_site,
    "site-master": _skip_site,
    "extended-uuid": _skip_extended,
    "flags-uuid": _skip_flags,
}


def read_address(cursor: Cursor) -> Address | None:
    """An address of any class, or none."""
    flags = cursor.byte()
    if flags & 1:
        return None
    for bit, kind in _FLAGGED:
        if flags & bit:
            return _read_uuid(cursor, kind)
    if flags & 16:
        return _read_physical(cursor)
    number = cursor.short()
    if number == _MILLIS:
        return MillisAddress(cursor.long())
    if number not in _NUMBERED:
        raise cursor.error(f"an address of the unknown class {number}", cursor.position - 2)
    return _read_uuid(cursor, _NUMBERED[number])


def _read_uuid(cursor: Cursor, kind: Kind) -> UuidAddress:
    raw = cursor.take(16)
    start = cursor.position
    _SKIP_EXTRA[kind](cursor)
    return UuidAddress(raw[8:] + raw[:8], kind, cursor.since(start))


def _read_physical(cursor: Cursor) -> PhysicalAddress:
    size = cursor.byte()
    if size not in {0, 4, 16}:
        raise cursor.error(f"an IP address of {size} bytes", cursor.position - 1)
    host = host_text(cursor.take(size))
    scope = int.from_bytes(cursor.take(4), "big") if size == 16 else 0
    return PhysicalAddress(host, cursor.unsigned_short(), scope)


def address_bytes(address: Address | None) -> bytes:
    """An address, or none, as 5.x writes it."""
    if address is None:
        return b"\x01"
    if isinstance(address, PhysicalAddress):
        return _physical_bytes(address)
    if isinstance(address, MillisAddress):
        return _MILLIS_PREFIX + address.key
    prefix = _PREFIXES.get(address.kind)
    if prefix is None or not _is_extra(address.kind, address.extra):
        raise LocalError(
            f"an address of kind {quote(address.kind)} with the extra data"
            f" {quote(address.extra)} cannot be written in 5.x",
            rule="GR-11",
            hint="give its plain() form",
        )
    uuid = check_uuid(address.uuid)
    return prefix + uuid[8:] + uuid[:8] + address.extra


def _is_extra(kind: Kind, extra: bytes) -> bool:
    cursor = Cursor(extra, format=FORMAT, limits=_HEAD_LIMITS)
    try:
        _SKIP_EXTRA[kind](cursor)
    except DecodeError:
        return False
    return cursor.at_end()


def _physical_bytes(address: PhysicalAddress) -> bytes:
    if address.extra:
        raise LocalError(
            f"the additional data of {address} cannot be written in 5.x",
            rule="GR-11",
            hint="leave `extra` empty",
        )
    packed = host_bytes(address.host)
    scope = scope_bytes(address.scope) if len(packed) == 16 else b""
    return bytes((16, len(packed))) + packed + scope + port_bytes(address.port)


def _read_addresses(cursor: Cursor) -> tuple[Address | None, ...] | None:
    count = cursor.count()
    return None if count is None else tuple(read_address(cursor) for _ in range(count))


def _addresses_bytes(addresses: tuple[Address | None, ...] | None) -> bytes:
    if addresses is None:
        return b"\xff\xff"
    return encode_count(len(addresses)) + b"".join(map(address_bytes, addresses))


def _read_ping_data(cursor: Cursor) -> PingData:
    address = read_address(cursor)
    flags = cursor.byte()
    name = cursor.string()
    physical = read_address(cursor)
    return PingData(address, name, physical, flags, _read_addresses(cursor))


def encode_ping_data(data: PingData) -> bytes:
    """One member, as a list of members has it."""
    if not 0 <= data.flags <= 255:
        raise LocalError(
            f"flags {quote(data.flags)} do not fit in a byte",
            rule="GR-11",
            hint="give SERVER, COORDINATOR or both",
        )
    return b"".join(
        (
            address_bytes(data.address),
            bytes((data.flags,)),
            encode_string(data.name),
            address_bytes(data.physical),
            _addresses_bytes(data.wanted),
        )
    )


# Frames to values.

_HEAD_LIMITS: Final = FormatLimits(string=MAX_UTF, items=MAX_ITEMS)


def _read_message_head(cursor: Cursor) -> MessageHead:
    group = cursor.string()
    destination = read_address(cursor)
    return MessageHead(group, destination, read_address(cursor))


def read_head(head: bytes) -> MessageHead:
    r"""Read the head of a run of MESSAGE frames, as `scan` gives it.

    >>> read_head(b"\x04\x01\x00\x04demo\x01\x01")
    MessageHead(group='demo', destination=None, sender=None)
    """
    return _read_short_head(head) if len(head) <= KnownHeads.LONGEST else _read_head(head)


def _read_head(head: bytes) -> MessageHead:
    cursor = Cursor(head, format=FORMAT, limits=_HEAD_LIMITS)
    if cursor.byte() != _MESSAGE:
        raise cursor.error("not the head of a MESSAGE", 0)
    fields = _read_message_head(cursor)
    if not cursor.at_end():
        raise cursor.error("the head of a MESSAGE goes on behind its end")
    return fields


_read_short_head: Final = lru_cache(maxsize=1024)(_read_head)  # few are in use at a time


def _frame_end(buffer: bytes | bytearray, position: int, limits: FormatLimits) -> int:
    """Where the frame that begins here ends; its length is present, but not yet trusted."""
    length: int = _LENGTH.unpack_from(buffer, position)[0]
    if 0 < length <= limits.frame:
        return position + 4 + length
    if length == _GOODBYE_LENGTH:
        return position + 4
    if length > 0:
        problem = f"a frame of {length} bytes is over the limit of {limits.frame}"
        raise DecodeError(problem, format=FORMAT, offset=position, too_large=True)
    raise DecodeError(f"the length of a frame is {length}", format=FORMAT, offset=position)


def _check_control(buffer: bytes | bytearray, start: int, end: int, limits: FormatLimits) -> None:
    """Check the limit of the frame's type: only a MESSAGE may have the maximum size."""
    length = end - start - 4
    if length > limits.control and buffer[start + 4] != _MESSAGE:
        problem = f"a frame of {length} bytes is over the limit of {limits.control} for its type"
        raise DecodeError(problem, format=FORMAT, offset=start, too_large=True)


def decode(
    buffer: bytes | bytearray,
    start: int = 0,
    end: int | None = None,
    limits: FormatLimits = DEFAULT_LIMITS,
) -> Value:
    r"""Decode the single frame in a buffer or a part of it, with its length in front.

    >>> decode(b"\0\0\0\x0c\x05\0\1\1\0\0\0\1\0\0\0\0"), decode(b"\xff\xff\xff\xfb")
    (Heartbeat(), Goodbye())
    """
    end = len(buffer) if end is None else end
    if end - start < 4 or _frame_end(buffer, start, limits) != end:
        raise DecodeError("not exactly one frame", format=FORMAT, offset=start)
    if end - start == 4:
        return _GOODBYE
    _check_control(buffer, start, end, limits)
    cursor = Cursor(buffer, format=FORMAT, limits=limits, position=start + 4, end=end)
    code = cursor.byte()
    if code > _LAST_TYPE:
        return Unknown(code, bytes(buffer[start + 5 : end]))
    head = _read_message_head(cursor)
    if code != _MESSAGE:
        return _read_rest(cursor, code, head)
    payload = _read_payload(cursor)
    return Message(head.group, head.destination, head.sender, payload)


def _read_payload(cursor: Cursor) -> bytes:
    """The last field of every frame: it must end where the frame ends."""
    size = cursor.integer()
    if size != cursor.edge - cursor.position:
        raise cursor.error(
            f"{size} bytes of payload in a frame with room for {cursor.edge - cursor.position}",
            cursor.position - 4,
        )
    return cursor.take(size)


def _read_rest(cursor: Cursor, type: int, head: MessageHead) -> Value:
    name = cursor.string()
    members = _read_members(cursor, keep=type in _WITH_MEMBERS)
    physical = read_address(cursor)
    payload = _read_payload(cursor)
    group, address = head.group, head.destination
    if type == _REGISTER:
        return Register(group, address, name, physical, payload)
    if type == _UNREGISTER:
        return Unregister(group, address)
    if type == _GET_MBRS:
        return GetMembers(group)
    if type == _HEARTBEAT:
        return _HEARTBEAT_VALUE
    if type == _SUSPECT:
        return Suspect(group, address)
    return Members(group, members, type == _GET_MBRS_RSP_LAST)


def _read_members(cursor: Cursor, *, keep: bool) -> tuple[PingData, ...]:
    count = cursor.count()
    if not count:
        return ()
    members = (_read_ping_data(cursor) for _ in range(count))
    if keep:
        return tuple(members)
    deque(members, maxlen=0)  # read only to find their end
    return ()


_GOODBYE: Final = Goodbye()
_HEARTBEAT_VALUE: Final = Heartbeat()


# Values to frames.


@lru_cache(maxsize=256)  # a member sends to few others at a time
def encode_head(
    group: str | None, destination: Address | None, sender: Address | None = None
) -> bytes:
    """The head of a MESSAGE: what is between the length and the length of the payload.

    >>> encode_head("demo", None).hex(" ")
    '04 01 00 04 64 65 6d 6f 01 01'
    """
    return b"".join(
        (b"\x04", encode_string(group), address_bytes(destination), address_bytes(sender))
    )


def _message_frame(value: Message) -> bytes:
    head = encode_head(value.group, value.destination, value.sender)
    size = len(value.payload)
    length = _checked_length(len(head) + 4 + size)
    return b"".join((length, head, _LENGTH.pack(size), value.payload))


def _checked_length(length: int) -> bytes:
    if length > _MAX_LENGTH:
        raise LocalError(
            f"a frame of {length} bytes is too long",
            rule="GR-11",
            hint=f"send at most {_MAX_LENGTH} bytes, or in parts",
        )
    return _LENGTH.pack(length)


def _frame(
    type: int,
    group: str | None = None,
    address: Address | None = None,
    *,
    name: str | None = None,
    members: Collection[bytes] = (),
    physical: Address | None = None,
    payload: bytes = b"",
) -> bytes:
    body = b"".join(
        (
            bytes((type,)),
            encode_string(group),
            address_bytes(address),
            b"\x01",  # no sender
            encode_string(name),
            encode_count(len(members)),
            *members,
            address_bytes(physical),
            _LENGTH.pack(len(payload)),
            payload,
        )
    )
    return _checked_length(len(body)) + body


def encode_members(group: str | None, members: Collection[bytes], *, last: bool) -> bytes:
    """A list of members, each of which `encode_ping_data` has encoded before.

    >>> one = PingData(None, "A")
    >>> encode_members("g", [encode_ping_data(one)], last=True) == encode(Members("g", (one,)))
    True
    """
    return _frame(_GET_MBRS_RSP_LAST if last else _GET_MBRS_RSP, group, members=members)


def _unknown_frame(value: Unknown) -> bytes:
    if not _LAST_TYPE < value.type <= 255:
        raise LocalError(
            f"{quote(value.type)} is not an unknown type",
            rule="GR-11",
            hint=f"give {_LAST_TYPE + 1} to 255, or a value of the type's own class",
        )
    return _checked_length(len(value.body) + 1) + bytes((value.type,)) + value.body


_HEARTBEAT_FRAME: Final = _frame(_HEARTBEAT)
_GOODBYE_FRAME: Final = _LENGTH.pack(_GOODBYE_LENGTH)

_ENCODERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    Message: _message_frame,
    Heartbeat: lambda _: _HEARTBEAT_FRAME,
    Goodbye: lambda _: _GOODBYE_FRAME,
    Unknown: _unknown_frame,
    Register: lambda value: _frame(
        _REGISTER,
        value.group,
        value.address,
        name=value.name,
        physical=value.physical,
        payload=value.token,
    ),
    Unregister: lambda value: _frame(_UNREGISTER, value.group, value.address),
    GetMembers: lambda value: _frame(_GET_MBRS, value.group),
    Members: lambda value: encode_members(
        value.group, list(map(encode_ping_data, value.members)), last=value.last
    ),
    Suspect: lambda value: _frame(_SUSPECT, value.group, value.address),
}


def encode(value: Value) -> bytes:
    """Encode a value as one frame, with its length in front.

    >>> encode(Heartbeat()).hex(" ")
    '00 00 00 0c 05 00 01 01 00 00 00 01 00 00 00 00'
    """
    return written(value, _ENCODERS)


# Releases: what their clients know.

Release: TypeAlias = tuple[int, int, int]

SUSPECT_MOVED: Final[Release] = (5, 2, 6)
"""From this release on SUSPECT has its own number; before, it had that of HEARTBEAT."""

GOODBYE_KNOWN: Final[Release] = (5, 5, 3)
"""From this release on a client knows what the goodbye of a router means."""


def release_of(payload: bytes) -> Release | None:
    """The release of JGroups whose member sent a message, as its payload begins; None if unknown.

    >>> release_of(bytes.fromhex("2947")), release_of(b"other")
    ((5, 5, 7), None)
    """
    if len(payload) < 2:
        return None
    number = int.from_bytes(payload[:2], "big")
    major, minor, micro = number >> 11, number >> 6 & 31, number & 63
    return (major, minor, micro) if major in (4, 5) else None


def encode_suspect(group: str, address: Address | None, release: Release) -> bytes:
    """The notice that a member is dead, as a release reads it.

    >>> encode_suspect("g", None, (5, 5, 7)) == encode(Suspect("g", None))
    True
    >>> encode_suspect("g", None, (4, 2, 30))[4]
    5
    """
    return _frame(_SUSPECT if release >= SUSPECT_MOVED else _HEARTBEAT, group, address)


# Many frames at once.


def scan(
    buffer: bytes | bytearray,
    start: int,
    end: int,
    *,
    known: KnownHeads | None = None,
    limits: FormatLimits = DEFAULT_LIMITS,
) -> tuple[list[Run], int, int]:
    r"""Find the complete frames in a part of a buffer, without copying them.

    Returns the runs in order, the position where the incomplete rest begins, and how many bytes
    from there the next call needs to make progress. Malformed frames end the scan:
    what came before them is returned, with a need of 0, and the next call, from that position on,
    raises the DecodeError. Its offset is a position in the buffer. Give the same `known` with all
    calls for one connection: it makes them faster, and changes nothing else.

    >>> frames = 3 * encode(Message("demo", None, None, b"hi")) + encode(Heartbeat())
    >>> [(head[:1], first, last, count) for head, first, last, count in scan(frames, 0, 70)[0]]
    [(b'\x04', 0, 60, 3)]
    >>> scan(frames, 0, 70)[1:], scan(frames, 60, 76)
    ((60, 16), ([(b'', 60, 76, 1)], 76, 4))
    """
    if not isinstance(buffer, bytes | bytearray):
        raise LocalError(
            f"a buffer of type {type(buffer).__name__} cannot be scanned",
            rule="GR-11",
            hint="give bytes or a bytearray",
        )
    known = KnownHeads() if known is None else known
    runs, rest, need, error = _split(buffer, start, end, known, limits)
    if error is not None and not runs:
        raise error
    return runs, rest, need


def _split(
    buffer: bytes | bytearray, position: int, end: int, known: KnownHeads, limits: FormatLimits
) -> tuple[list[Run], int, int, DecodeError | None]:
    runs: list[Run] = []
    try:
        while end - position >= 4:
            after = _walk_known(buffer, position, end, known, limits, runs)
            if after > position:
                position = after
                continue
            frame_end = _frame_end(buffer, position, limits)
            if frame_end - position - 4 > limits.control:
                if end - position < 5:  # the type is needed to know the limit
                    return runs, position, 5, None
                _check_control(buffer, position, frame_end, limits)
            if frame_end > end:
                return runs, position, frame_end - position, None
            head = _read_new_head(buffer, position, frame_end, limits)
            if 0 < len(head) <= KnownHeads.LONGEST:
                known.add(head)
            else:
                runs.append((head, position, frame_end, 1))
                position = frame_end
    except DecodeError as error:
        return runs, position, 0, error
    return runs, position, 4, None


def _read_new_head(
    buffer: bytes | bytearray, position: int, frame_end: int, limits: FormatLimits
) -> bytes:
    """The head of this MESSAGE frame, if it is valid; nothing if it is another type."""
    if frame_end - position == 4 or buffer[position + 4] != _MESSAGE:
        return b""
    cursor = Cursor(buffer, format=FORMAT, limits=limits, position=position + 5, end=frame_end)
    _read_message_head(cursor)
    head = bytes(buffer[position + 4 : cursor.position])
    if cursor.integer() != frame_end - cursor.position:
        raise cursor.error("the payload does not end where its frame ends", cursor.position - 4)
    return head


@lru_cache(maxsize=256)
def _shape(size: int) -> Callable[[bytes | bytearray, int], tuple[int, bytes, int]]:
    return struct.Struct(f">I{size}sI").unpack_from


def _walk_known(
    buffer: bytes | bytearray,
    position: int,
    end: int,
    known: KnownHeads,
    limits: FormatLimits,
    runs: list[Run],
) -> int:
    """Step over complete MESSAGE frames with known heads of one size, and record their runs.

    A head determines its own end, so bytes that equal a known head are one: nothing in them must
    be read. Anything else ends the walk, and is left to the caller.
    """
    size = known.size_at(buffer, position + 4)
    if not size:
        return position
    heads = known.by_size[size]
    unpack = _shape(size)
    inner = size + 4
    most = limits.frame
    last_fit = end - inner - 4
    head, first, count, steady, previous = b"", position, 0, 0, 0
    while position <= last_fit:
        length, this, payload = unpack(buffer, position)
        after = position + 4 + length
        if payload + inner != length or length > most or after > end:
            break
        if this != head:
            if this not in heads:
                break
            if count:
                runs.append((head, first, position, count))
            head, first, count, steady = this, position, 0, 0
        elif length == previous:
            steady += 1
            if steady >= _STEADY:
                after = _leap(buffer, position, end, inner + 4, length + 4)
                count += (after - position) // (length + 4) - 1
        previous = length
        count += 1
        position = after
    if count:
        runs.append((head, first, position, count))
    return position


def _leap(buffer: bytes | bytearray, position: int, end: int, span: int, size: int) -> int:
    """Step over frames of one size that begin with the same bytes as the first of them."""
    prefix = buffer[position : position + span]
    last_fit = end - size
    is_same = buffer.startswith
    position += size
    while position <= last_fit and is_same(prefix, position):
        position += size
    return position


class Decoder:
    r"""Decodes a stream of frames, in chunks of any size.

    `feed` returns the complete values. Malformed bytes break the decoder permanently: `feed`
    still returns the values before them, `error` is set at once, and from
    then on every call raises it. Its offset counts from the beginning of the stream.

    >>> decoder = Decoder()
    >>> decoder.feed(b"\0\0\0\x0c\x05\0\1\1"), decoder.pending
    ([], 8)
    >>> decoder.feed(b"\0\0\0\1\0\0\0\0\xff\xff\xff\xfb")
    [Heartbeat(), Goodbye()]
    """

    def __init__(self, limits: FormatLimits = DEFAULT_LIMITS) -> None:
        self.error: DecodeError | None = None
        self._limits = limits
        self._known = KnownHeads()
        self._held = bytearray()  # the incomplete frame at the end
        self._need = 4
        self._base = 0  # how many bytes of the stream came before it

    @property
    def pending(self) -> int:
        """The number of bytes that are held because their frame is incomplete."""
        return len(self._held)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Value]:
        """Take the next bytes of the stream, and return the values that they complete."""
        if self.error is not None:
            raise moved(self.error)
        held = self._held
        if held:
            held += data
            if len(held) < self._need:
                return []
            data = held
        buffer = bytes(data)
        held.clear()
        runs, rest, self._need, error = _split(buffer, 0, len(buffer), self._known, self._limits)
        values: list[Value] = []
        try:
            self._add_values(buffer, runs, values)
        except DecodeError as earlier:
            error = earlier
        if error is not None:
            return self._broken(error, values)
        self._held = bytearray(buffer[rest:])
        self._base += rest
        return values

    def _add_values(self, buffer: bytes, runs: list[Run], values: list[Value]) -> None:
        for head, first, last, _ in runs:
            if head:
                _add_messages(buffer, head, first, last, values)
            else:
                values.append(decode(buffer, first, last, self._limits))

    def _broken(self, error: DecodeError, values: list[Value]) -> list[Value]:
        self.error = moved(error, by=self._base)
        self._held = bytearray()
        return values


def _add_messages(buffer: bytes, head: bytes, first: int, last: int, values: list[Value]) -> None:
    fields = read_head(head)
    group, destination, sender = fields.group, fields.destination, fields.sender
    before_payload = len(head) + 8
    length_at = _LENGTH.unpack_from
    add = values.append
    while first < last:
        after = first + 4 + length_at(buffer, first)[0]
        add(Message(group, destination, sender, buffer[first + before_payload : after]))
        first = after
