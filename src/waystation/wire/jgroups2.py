"""The gossip-router format of JGroups 2.10 to 2.12: bytes to values and back (GR-11).

Only bytes and values are here, not what a router does with a CONNECT.

Nothing is length-prefixed: a client sends one structure of seven fields after the other, and
only reading them shows where each ends. What a router sends is worse: the reply to CONNECT is one
bare byte, the reply to GOSSIP_GET a bare list, and a SUSPECT is followed by an address that is not
part of it. So there are two decoders. RequestDecoder reads what clients send; AnswerDecoder reads
what a router sends, and must be told of every CONNECT and GOSSIP_GET before it is sent.

Where the real router and its clients leave a choice, we do this:

- A request of an unknown type is read to its end and reported as Unknown (as the real router does).
- Every presence byte except 1 means null, every negative count no list (as the real router does).
- Addresses written by the number of a class that has a short form (1 and 68) are read as that
  short form. An address of an unknown class, an IP address of other than 4 or 16 bytes and a
  negative length are malformed.
- Fields that a type does not use are read and ignored.
- A real router may let a MESSAGE or a SUSPECT overtake the reply that a client waits for, and real
  clients fail then. AnswerDecoder does not; see there.

A router that forwards a MESSAGE leaves out the group, so it has to write a new head before each
payload. `scan` finds complete MESSAGE structures in a buffer and groups adjacent ones with the same
head, so that the new head is computed once for all of them (`forward_head`, `forwarded`).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from waystation.errors import DecodeError, LocalError, quote
from waystation.wire.java import (
    DEFAULT_LIMITS,
    MAX_ITEMS,
    MAX_UTF,
    WORTH_A_VIEW,
    Cursor,
    FormatLimits,
    IncompleteError,
    cut,
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

FORMAT: Final = "jgroups2"

_CONNECT, _DISCONNECT, _GOSSIP_GET, _MESSAGE, _SUSPECT = 1, 2, 4, 10, 11
_PING, _CLOSE, _CONNECT_OK, _OP_FAIL, _DISCONNECT_OK = 12, 13, 14, 15, 16

_UNASKED: Final = frozenset({_MESSAGE, _SUSPECT, _OP_FAIL, _DISCONNECT_OK})

_INTEGER: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_MAX_PAYLOAD: Final = 0x7FFF_FFFF

T = TypeVar("T")
V = TypeVar("V")

Addresses: TypeAlias = tuple[Address | None, ...]


class ViewId(Struct, frozen=True, gc=False):
    """The number of a group's view, and the coordinator that made it."""

    creator: Address | None
    id: int


class PingData(Struct, frozen=True, gc=False):
    """What a router reports about one member (GR-4).

    `view_id` and `view` are only used between members, in discovery. A view is kept as it is
    on the wire, after its presence byte; empty bytes mean no view.
    """

    address: Address | None
    name: str | None = None
    physical: Addresses | None = None
    server: bool = True
    view_id: ViewId | None = None
    view: bytes = b""


class Connect(Struct, frozen=True, gc=False):
    """Client to router: this address is in this group. The reply is ConnectAnswer (GR-2)."""

    group: str | None
    address: Address | None
    name: str | None = None
    physical: Addresses | None = None


class Disconnect(Struct, frozen=True, gc=False):
    """Client to router: this address leaves this group. The reply is DisconnectAnswer (GR-7)."""

    group: str | None
    address: Address | None


class GossipGet(Struct, frozen=True, gc=False):
    """Client to router: who is in this group? The reply is Members (GR-4)."""

    group: str | None


class Message(Struct, frozen=True, gc=False):
    """Both ways: a payload for one member, or, without a destination, for the group (GR-5).

    A router forwards it without the group. There is no sender field: that is in the payload.

    >>> message = Message("demo", None, b"hello")
    >>> RequestDecoder().feed(encode(message)) == [message]
    True
    """

    group: str | None
    destination: Address | None
    payload: bytes | None


class Ping(Struct, frozen=True, gc=False):
    """Client to router: still here. There is no reply."""


class Close(Struct, frozen=True, gc=False):
    """Client to router: the connection ends now, on purpose."""


class Suspect(Struct, frozen=True, gc=False):
    """Router to client: the connection of this member is gone (GR-8)."""

    address: Address | None


class ConnectAnswer(Struct, frozen=True, gc=False):
    """Router to client: whether a Connect worked; one bare byte on the wire."""

    ok: bool


class DisconnectAnswer(Struct, frozen=True, gc=False):
    """Router to client: whether a Disconnect worked."""

    ok: bool


class Members(Struct, frozen=True, gc=False):
    """Router to client: the members of the group that a GossipGet requested (GR-4)."""

    members: tuple[PingData, ...] = ()


class Unknown(Struct, frozen=True, gc=False):
    """A structure of an unexpected type, to be ignored; `raw` is all of it."""

    type: int
    raw: bytes


Request: TypeAlias = Connect | Disconnect | GossipGet | Message | Ping | Close | Unknown
Answer: TypeAlias = ConnectAnswer | DisconnectAnswer | Members | Message | Suspect | Unknown


class MessageHead(Struct, frozen=True, gc=False):
    """What precedes the payload of a MESSAGE: its destination."""

    group: str | None
    destination: Address | None


Run: TypeAlias = tuple[bytes, int, int, int]
"""Adjacent messages: their common head, the start of the first, the end of the last, their number.

The head is everything before the length of the payload; give it to `read_head` or `forward_head`.
"""


# Addresses: the bits of the first byte are checked in this order; if none is set, the number
# of a class follows.

_NUMBERED: Final[Mapping[int, Kind]] = {
    68: "uuid",
    82: "payload-uuid",
    83: "additional-data-uuid",
    84: "topology-uuid",
}
_PHYSICAL: Final = 1
_PREFIXES: Final[Mapping[Kind, bytes]] = {
    "uuid": b"\x02",
    "payload-uuid": b"\0\0\x52",
    "additional-data-uuid": b"\0\0\x53",
    "topology-uuid": b"\0\0\x54",
}
_NO_EXTRA: Final = b"\0"


def _skip_additional_data(cursor: Cursor) -> None:
    if cursor.boolean():
        cursor.skip_extra(cursor.unsigned_short())


def _skip_payload_uuid(cursor: Cursor) -> None:
    _skip_additional_data(cursor)
    cursor.string()  # checked, because the receiver of this address must be able to read it too


def _skip_additional_data_uuid(cursor: Cursor) -> None:
    _skip_additional_data(cursor)
    if cursor.byte() == 1:
        cursor.skip_extra(_read_size(cursor))


def _skip_topology_uuid(cursor: Cursor) -> None:
    _skip_additional_data(cursor)
    for _ in ("site", "rack", "machine"):
        cursor.string()


_SKIP_EXTRA: Final[Mapping[Kind, Callable[[Cursor], None]]] = {
    "uuid": _skip_additional_data,
    "payload-uuid": _skip_payload_uuid,
    "additional-data-uuid": _skip_additional_data_uuid,
    "topology-uuid": _skip_topology_uuid,
}


def _read_size(cursor: Cursor) -> int:
    size = cursor.integer()
    if size < 0:
        raise cursor.error(f"a length of {size}", cursor.position - 4)
    return size


def _read_address(cursor: Cursor) -> Address | None:
    flags = cursor.byte()
    if flags & 1:
        return None
    if flags & 2:
        return _read_uuid(cursor, "uuid")
    if flags & 4:
        return _read_physical(cursor)
    number = cursor.short()
    if number == _PHYSICAL:
        return _read_physical(cursor)
    if number not in _NUMBERED:
        raise cursor.error(f"an address of the unknown class {number}", cursor.position - 2)
    return _read_uuid(cursor, _NUMBERED[number])


def _read_uuid(cursor: Cursor, kind: Kind) -> UuidAddress:
    raw = cursor.take(16)
    return UuidAddress(raw[8:] + raw[:8], kind, _read_extra(cursor, kind))


def _read_extra(cursor: Cursor, kind: Kind) -> bytes:
    start = cursor.position
    _SKIP_EXTRA[kind](cursor)
    extra = cursor.since(start)
    return b"" if extra == _NO_EXTRA else extra


def _read_physical(cursor: Cursor) -> PhysicalAddress:
    size = cursor.byte()
    if size not in {4, 16}:
        raise cursor.error(f"an IP address of {size} bytes", cursor.position - 1)
    host = host_text(cursor.take(size))
    scope = int.from_bytes(cursor.take(4), "big") if size == 16 else 0
    return PhysicalAddress(host, cursor.unsigned_short(), scope, _read_extra(cursor, "uuid"))


def _address_bytes(address: Address | None) -> bytes:
    if address is None:
        return b"\x01"
    if isinstance(address, PhysicalAddress):
        return _physical_bytes(address)
    if isinstance(address, MillisAddress) or address.kind not in _PREFIXES:
        raise LocalError(
            f"address {quote(address)} cannot be written in 2.12",
            rule="GR-11",
            hint="give the plain() form of a UuidAddress",
        )
    uuid = check_uuid(address.uuid)
    extra = _extra_bytes(address.kind, address.extra)
    return _PREFIXES[address.kind] + uuid[8:] + uuid[:8] + extra


def _physical_bytes(address: PhysicalAddress) -> bytes:
    packed = host_bytes(address.host)
    if not packed:
        raise LocalError(
            f"physical address {address} has no host",
            rule="GR-11",
            hint="give an IP address, or None for the whole address",
        )
    scope = scope_bytes(address.scope) if len(packed) == 16 else b""
    head = bytes((4, len(packed))) + packed + scope
    return head + port_bytes(address.port) + _extra_bytes("uuid", address.extra)


def _extra_bytes(kind: Kind, extra: bytes) -> bytes:
    if not extra and kind == "uuid":
        return _NO_EXTRA
    cursor = Cursor(extra, format=FORMAT, limits=_NO_LIMITS)
    try:
        _SKIP_EXTRA[kind](cursor)
        if cursor.at_end():
            return extra
    except DecodeError:
        pass
    raise LocalError(
        f"{quote(extra)} is not valid extra data for an address of kind {quote(kind)}",
        rule="GR-11",
        hint="give what a decoder gave, or the plain() form",
    )


def _addresses_bytes(addresses: Addresses | None) -> bytes:
    if addresses is None:
        return b"\xff\xff"
    return encode_count(len(addresses)) + b"".join(map(_address_bytes, addresses))


# Structures have no length and may be long, so each is read by a generator that stops
# where its bytes end, and says how many the buffer must hold before it is worth continuing.
# What has been read is not read again, except for the one small field that was cut.


class _GossipData(NamedTuple):
    """The fields that any type uses; the list of members between them is always null."""

    type: int
    group: str | None
    address: Address | None
    name: str | None
    physical: Addresses | None
    payload: bytes | None


_Steps: TypeAlias = Generator[int, None, T]


def _whole(cursor: Cursor, read: Callable[[Cursor], T]) -> _Steps[T]:
    """Read one small field, as soon as it is complete."""
    while True:
        mark = cursor.position
        try:
            return read(cursor)
        except IncompleteError as incomplete:
            cursor.position = mark
            yield incomplete.need


def _read_addresses(cursor: Cursor) -> _Steps[Addresses | None]:
    count = yield from _whole(cursor, Cursor.count)
    if count is None:
        return None
    addresses = []
    for _ in range(count):
        address = yield from _whole(cursor, _read_address)
        addresses.append(address)
    return tuple(addresses)


def _read_payload(cursor: Cursor) -> bytes | None:
    return cursor.take(_read_size(cursor)) if cursor.byte() == 1 else None


def _read_first_fields(cursor: Cursor) -> tuple[int, str | None, Address | None, str | None]:
    return cursor.byte(), cursor.string(), _read_address(cursor), cursor.string()


def _read_gossip_data(cursor: Cursor) -> _Steps[_GossipData]:
    code, group, address, name = yield from _whole(cursor, _read_first_fields)
    yield from _read_addresses(cursor)
    physical = yield from _read_addresses(cursor)
    payload = yield from _whole(cursor, _read_payload)
    return _GossipData(code, group, address, name, physical, payload)


def _read_view_id(cursor: Cursor) -> ViewId | None:
    if not cursor.boolean():
        return None
    creator = _read_address(cursor)
    return ViewId(creator, cursor.long())


def _read_view_head(cursor: Cursor) -> bool:
    is_merge = cursor.boolean()
    _read_view_id(cursor)
    return is_merge


def _skip_view_payload(cursor: Cursor) -> None:
    size = cursor.short()
    if size < 0:
        raise cursor.error(f"a length of {size}", cursor.position - 2)
    cursor.skip(size)


def _skip_view(cursor: Cursor) -> _Steps[None]:
    # A merged view ends with the views that were merged, each of which may be merged itself. In
    # sequence they are just further views.
    to_come = 1
    while to_come:
        is_merge = yield from _whole(cursor, _read_view_head)
        yield from _read_addresses(cursor)
        yield from _whole(cursor, _skip_view_payload)
        to_come -= 1
        if is_merge:
            to_come += (yield from _whole(cursor, Cursor.count)) or 0


def _read_ping_data(cursor: Cursor) -> _Steps[PingData]:
    address = yield from _whole(cursor, _read_address)
    view = b""
    if (yield from _whole(cursor, Cursor.boolean)):
        mark = cursor.position - cursor.start  # the buffer may lose what is before the start
        yield from _skip_view(cursor)
        view = bytes(cursor.buffer[cursor.start + mark : cursor.position])
    view_id = yield from _whole(cursor, _read_view_id)
    server = yield from _whole(cursor, Cursor.boolean)
    name = yield from _whole(cursor, Cursor.string)
    physical = yield from _read_addresses(cursor)
    return PingData(address, name, physical, server, view_id, view)


class _StreamDecoder(ABC, Generic[V]):
    """Decodes a stream of structures, in chunks of any size."""

    def __init__(self, limits: FormatLimits = DEFAULT_LIMITS) -> None:
        self.error: DecodeError | None = None
        self._buffer = bytearray()
        self._cursor = Cursor(self._buffer, format=FORMAT, limits=limits, whole=False)
        self._known = KnownHeads()
        self._expected: deque[str] = deque()  # replies that do not say what they are
        self._values: list[V | Message] = []
        self._steps = self._read_all()
        self._need = 1

    @property
    def pending(self) -> int:
        """The number of bytes that are held because their structure is incomplete."""
        return len(self._buffer)

    @property
    def needed(self) -> int:
        """Minimum number of bytes to feed for progress; feeding exactly these reads none ahead."""
        return self._need - len(self._buffer)

    def change_limits(self, limits: FormatLimits) -> None:
        """Use other limits for what is fed from now on."""
        self._cursor.limits = limits

    def feed(self, data: bytes | bytearray | memoryview) -> list[V | Message]:
        """Take the next bytes of the stream, and return the values that they complete."""
        if self.error is not None:
            raise moved(self.error)
        self._buffer += data
        if len(self._buffer) < self._need:
            return []
        values: list[V | Message] = []
        self._values = values
        self._cursor.see()
        try:
            self._need = next(self._steps)
        except DecodeError as error:
            self.error = moved(error)  # without the traceback, whose frames hold on to values
            self._buffer.clear()
        else:
            self._need -= self._forget()
        self._values = []  # the caller's alone from here on
        return values

    def _forget(self) -> int:
        """Drop the bytes before the structure that is being read."""
        cursor = self._cursor
        done = cursor.start
        del self._buffer[:done]
        cursor.base += done
        cursor.position -= done
        cursor.start = 0
        return done

    def _read_all(self) -> _Steps[None]:
        cursor = self._cursor
        while True:
            self._add_messages()
            cursor.begin()
            if cursor.position < len(self._buffer):
                # With a name it would live on for as long as this stands still.
                self._deliver((yield from self._read_one()))
            else:
                yield cursor.position + 1

    def _deliver(self, value: V) -> None:
        self._values.append(value)

    def _add_messages(self) -> None:
        """Take all complete messages that begin here at once; most structures are messages."""
        cursor, buffer = self._cursor, self._buffer
        at = cursor.position
        if self._expected or at == len(buffer) or buffer[at] != _MESSAGE:
            return
        runs, cursor.position, _ = scan(
            buffer, at, len(buffer), known=self._known, limits=cursor.limits
        )
        for head, first, last, _ in runs:
            fields = read_head(head)
            group, destination = fields.group, fields.destination
            for payload in _payloads(buffer, len(head), first, last):
                self._values.append(Message(group, destination, payload))

    @abstractmethod
    def _read_one(self) -> _Steps[V]:
        """Read the next structure; its first byte is there."""

    def _raw(self) -> bytes:
        return bytes(self._buffer[self._cursor.start : self._cursor.position])


class RequestDecoder(_StreamDecoder[Request]):
    r"""Decodes what a client sends, in chunks of any size.

    `feed` returns the complete values. Malformed bytes break the decoder permanently: `feed`
    still returns the values before them, `error` is set at once, and from
    then on every call raises it. Its offset counts from the beginning of the stream.

    >>> decoder = RequestDecoder()
    >>> decoder.feed(b"\x04\x01\x00\x04demo\x01"), decoder.pending
    ([], 9)
    >>> decoder.feed(b"\x00\xff\xff\xff\xff\x00")
    [GossipGet(group='demo')]
    """

    def _read_one(self) -> _Steps[Request]:
        data = yield from _read_gossip_data(self._cursor)
        code = data.type
        if code == _MESSAGE:
            return Message(data.group, data.address, data.payload)
        if code == _CONNECT:
            return Connect(data.group, data.address, data.name, data.physical)
        if code == _DISCONNECT:
            return Disconnect(data.group, data.address)
        if code == _GOSSIP_GET:
            return GossipGet(data.group)
        if code == _PING:
            return _PING_VALUE
        if code == _CLOSE:
            return _CLOSE_VALUE
        return Unknown(code, self._raw())


_PING_VALUE: Final = Ping()
_CLOSE_VALUE: Final = Close()


class AnswerDecoder(_StreamDecoder[Answer]):
    r"""Decodes what a router sends, in chunks of any size.

    Two of the replies do not say what they are. So call `expect_connect_answer` before a Connect
    is sent and `expect_members` before a GossipGet is sent, each time; the replies come in the
    order of the requests. Everything else may come in between and is told from them. While the
    bare byte is due, 14 and 15 are that byte: no structure begins with 14, and one begins with 15
    only where a client disconnects the null address. While a list is due, its length differs from
    the first two bytes of a structure, unless it is 2560, 2816, 3840 or 4096; set
    `limits.items` so high only if you know that no group is of such a size.

    Malformed bytes are treated as RequestDecoder does.

    >>> decoder = AnswerDecoder()
    >>> decoder.expect_connect_answer()
    >>> decoder.expect_members()
    >>> decoder.feed(b"\x0b\x00\x01\x00\xff\xff\xff\xff\x00\x01\x0e\x00\x00")
    [Suspect(address=None), ConnectAnswer(ok=True), Members(members=())]
    """

    def expect_connect_answer(self) -> None:
        """A Connect is about to be sent."""
        self._expected.append("connect")

    def expect_members(self) -> None:
        """A GossipGet is about to be sent."""
        self._expected.append("members")

    def _read_one(self) -> _Steps[Answer]:
        expected = self._expected[0] if self._expected else ""
        if expected == "connect":
            return (yield from self._read_while_connecting())
        if expected == "members":
            first = yield from _whole(self._cursor, Cursor.unsigned_short)
            self._cursor.position = self._cursor.start
            if first >> 8 not in _UNASKED or first & 0xFF:  # a router's structures have no group
                self._expected.popleft()
                return (yield from self._read_members())
        return (yield from self._read_structure())

    def _read_while_connecting(self) -> _Steps[Answer]:
        cursor = self._cursor
        first = yield from _whole(cursor, Cursor.byte)
        if first in {_CONNECT_OK, _OP_FAIL}:
            self._expected.popleft()
            return ConnectAnswer(first == _CONNECT_OK)
        cursor.position = cursor.start
        if first not in _UNASKED:
            raise cursor.error(f"{first} is not an answer to a CONNECT")
        return (yield from self._read_structure())

    def _read_members(self) -> _Steps[Members]:
        cursor = self._cursor
        count = (yield from _whole(cursor, Cursor.count)) or 0
        members = []
        for _ in range(count):
            member = yield from _read_ping_data(cursor)
            members.append(member)
        return Members(tuple(members))

    def _read_structure(self) -> _Steps[Answer]:
        data = yield from _read_gossip_data(self._cursor)
        code = data.type
        if code == _MESSAGE:
            return Message(data.group, data.address, data.payload)
        if code == _SUSPECT:
            return Suspect((yield from _whole(self._cursor, _read_address)))
        if code in {_DISCONNECT_OK, _OP_FAIL}:
            return DisconnectAnswer(code == _DISCONNECT_OK)
        return Unknown(code, self._raw())


# Values to bytes.


def _gossip_data_bytes(
    type: int,
    group: str | None = None,
    address: Address | None = None,
    *,
    name: str | None = None,
    physical: Addresses | None = None,
) -> bytes:
    return b"".join(
        (
            bytes((type,)),
            encode_string(group),
            _address_bytes(address),
            encode_string(name),
            b"\xff\xff",  # no list of members
            _addresses_bytes(physical),
            b"\0",  # no payload
        )
    )


_HEAD_END: Final = b"\0\xff\xff\xff\xff\x01"
"""The last fields before a payload: no name, no members, no physical addresses, and it is there."""


@lru_cache(maxsize=256)  # a member sends to few others at a time
def encode_head(group: str | None, destination: Address | None) -> bytes:
    """The head of a MESSAGE: everything before the length of its payload.

    >>> encode_head(None, None).hex(" ")
    '0a 00 01 00 ff ff ff ff 01'
    """
    return b"".join((b"\x0a", encode_string(group), _address_bytes(destination), _HEAD_END))


def _message_bytes(value: Message) -> bytes:
    head = encode_head(value.group, value.destination)
    payload = value.payload
    if payload is None:
        return head[:-1] + b"\0"
    if len(payload) > _MAX_PAYLOAD:
        raise LocalError(
            f"a payload of {len(payload)} bytes is too long",
            rule="GR-11",
            hint=f"send at most {_MAX_PAYLOAD} bytes, or in parts",
        )
    return b"".join((head, _INTEGER.pack(len(payload)), payload))


def encode_members(members: Collection[bytes]) -> bytes:
    """A list of members, each of which `encode_ping_data` has encoded before.

    >>> one = PingData(None, "A")
    >>> encode_members([encode_ping_data(one)]) == encode(Members((one,)))
    True
    """
    return encode_count(len(members)) + b"".join(members)


def _members_bytes(value: Members) -> bytes:
    members = value.members
    return encode_members(list(map(encode_ping_data, members)))


def encode_ping_data(data: PingData) -> bytes:
    """One member, as a list of members has it."""
    return b"".join(
        (
            _address_bytes(data.address),
            _view_bytes(data.view),
            _view_id_bytes(data.view_id),
            bytes((data.server,)),
            encode_string(data.name),
            _addresses_bytes(data.physical),
        )
    )


def _view_id_bytes(view_id: ViewId | None) -> bytes:
    if view_id is None:
        return b"\0"
    try:
        return b"\x01" + _address_bytes(view_id.creator) + _LONG.pack(view_id.id)
    except struct.error:
        raise LocalError(
            f"the number {quote(view_id.id)} of a view does not fit in 8 bytes",
            rule="GR-11",
            hint="give a whole number in range",
        ) from None


def _view_bytes(view: bytes) -> bytes:
    if not view:
        return b"\0"
    cursor = Cursor(view, format=FORMAT, limits=_NO_LIMITS)
    try:
        list(_skip_view(cursor))  # all its bytes are there, so it never waits
        if cursor.at_end():
            return b"\x01" + view
    except DecodeError:
        pass
    raise LocalError(
        f"invalid view {quote(view)}", rule="GR-11", hint="give what a decoder gave, or nothing"
    )


def _unknown_bytes(value: Unknown) -> bytes:
    raw = value.raw
    cursor = Cursor(raw, format=FORMAT, limits=_NO_LIMITS)
    try:
        deque(_read_gossip_data(cursor), maxlen=0)  # all its bytes are there, so it never waits
        if cursor.at_end() and raw[0] == value.type:
            return raw
    except DecodeError:
        pass
    raise LocalError(
        f"{quote(raw)} is not a structure of type {quote(value.type)}",
        rule="GR-11",
        hint="give what a decoder gave",
    )


_PING_BYTES: Final = _gossip_data_bytes(_PING)
_CLOSE_BYTES: Final = _gossip_data_bytes(_CLOSE)
_SUSPECT_BYTES: Final = _gossip_data_bytes(_SUSPECT)
_DISCONNECT_ANSWERS: Final = (_gossip_data_bytes(_OP_FAIL), _gossip_data_bytes(_DISCONNECT_OK))
_CONNECT_ANSWERS: Final = (bytes((_OP_FAIL,)), bytes((_CONNECT_OK,)))

_ENCODERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    Message: _message_bytes,
    Members: _members_bytes,
    Unknown: _unknown_bytes,
    Ping: lambda _: _PING_BYTES,
    Close: lambda _: _CLOSE_BYTES,
    Connect: lambda value: _gossip_data_bytes(
        _CONNECT, value.group, value.address, name=value.name, physical=value.physical
    ),
    Disconnect: lambda value: _gossip_data_bytes(_DISCONNECT, value.group, value.address),
    GossipGet: lambda value: _gossip_data_bytes(_GOSSIP_GET, value.group),
    ConnectAnswer: lambda value: _CONNECT_ANSWERS[value.ok],
    DisconnectAnswer: lambda value: _DISCONNECT_ANSWERS[value.ok],
    Suspect: lambda value: _SUSPECT_BYTES + _address_bytes(value.address),
}


def encode(value: Request | Answer) -> bytes:
    """Encode a request or a reply.

    >>> encode(Ping()).hex(" "), encode(ConnectAnswer(ok=True)).hex(" ")
    ('0c 00 01 00 ff ff ff ff 00', '0e')
    """
    return written(value, _ENCODERS)


# Many messages at once.

_NO_LIMITS: Final = FormatLimits(frame=_MAX_PAYLOAD, string=MAX_UTF, items=MAX_ITEMS)


def read_head(head: bytes) -> MessageHead:
    r"""Read the head of a run of messages, as `scan` gives it.

    >>> read_head(b"\x0a\x01\x00\x04demo\x01\x00\xff\xff\xff\xff\x01")
    MessageHead(group='demo', destination=None)
    """
    read = _read_short_head if len(head) <= KnownHeads.LONGEST else _read_head
    return read(head)[0]


def forward_head(head: bytes) -> bytes:
    r"""The head with which a router forwards messages with this head: without the group.

    >>> forward_head(b"\x0a\x01\x00\x04demo\x01\x00\xff\xff\xff\xff\x01").hex(" ")
    '0a 00 01 00 ff ff ff ff 01'
    """
    read = _read_short_head if len(head) <= KnownHeads.LONGEST else _read_head
    return b"\x0a\0" + head[read(head)[1] :]


def _read_head(head: bytes) -> tuple[MessageHead, int]:
    """The destination of the message, and where the group ends in its head."""
    cursor = Cursor(head, format=FORMAT, limits=_NO_LIMITS)
    if cursor.byte() != _MESSAGE:
        raise cursor.error("not the head of a MESSAGE", 0)
    group = cursor.string()
    group_end = cursor.position
    fields = MessageHead(group, _read_address(cursor))
    if cursor.take(len(_HEAD_END)) != _HEAD_END or not cursor.at_end():
        raise cursor.error("the head of a MESSAGE ends differently")
    return fields, group_end


_read_short_head: Final = lru_cache(maxsize=1024)(_read_head)  # few are in use at a time


def _payloads(buffer: bytes | bytearray, head_size: int, first: int, last: int) -> Iterator[bytes]:
    """The payloads of a run."""
    length_at = _INTEGER.unpack_from
    while first < last:
        start = first + head_size + 4
        first = start + length_at(buffer, start - 4)[0]
        if first - start < WORTH_A_VIEW:
            yield bytes(buffer[start:first])
        else:
            yield cut(buffer, start, first)


def forwarded(buffer: bytes | bytearray, run: Run) -> bytes:
    r"""The messages of a run as a router forwards them.

    >>> buffer = 2 * encode(Message("demo", None, b"hi"))
    >>> runs, _, _ = scan(buffer, 0, len(buffer))
    >>> forwarded(buffer, runs[0]) == 2 * encode(Message(None, None, b"hi"))
    True
    """
    head, first, last, _ = run
    new_head = forward_head(head)
    size = len(head)
    length_at = _INTEGER.unpack_from
    parts: list[bytes | bytearray] = []
    add = parts.append
    while first < last:
        first += size
        after = first + 4 + length_at(buffer, first)[0]
        add(new_head)
        add(buffer[first:after])
        first = after
    return b"".join(parts)


def size_at(buffer: bytes | bytearray, position: int) -> int:
    r"""The length of the complete message that begins here, in the output of `scan` or `forwarded`.

    >>> size_at(2 * encode(Message(None, None, b"hi")), 15)
    15
    """
    return _read_new_head(buffer, position, len(buffer), _NO_LIMITS)[1] - position


def scan(
    buffer: bytes | bytearray,
    start: int,
    end: int,
    *,
    known: KnownHeads | None = None,
    limits: FormatLimits = DEFAULT_LIMITS,
) -> tuple[list[Run], int, int]:
    r"""Find the complete MESSAGE structures at the start of a part of a buffer, without copying.

    Returns the runs in order, the position where the rest begins, and how many bytes from there
    the next call needs to make progress. 0 means that something other than
    a MESSAGE of the usual form with a payload follows, or that it is malformed: give the rest to a
    RequestDecoder, and all that comes after it, until nothing is `pending` there any more. (Only
    that decoder can read structures of any length in pieces without starting over.) Give the same
    `known` with all calls for one connection: it makes them faster, and changes nothing else.

    >>> buffer = 3 * encode(Message("demo", None, b"hi")) + encode(Ping())
    >>> [(head[:1], first, last, count) for head, first, last, count in scan(buffer, 0, 63)[0]]
    [(b'\n', 0, 63, 3)]
    >>> scan(buffer, 0, 50)[1:], scan(buffer, 0, len(buffer))[1:]
    ((42, 9), (63, 0))
    """
    known = KnownHeads() if known is None else known
    runs: list[Run] = []
    position = start
    try:
        while position < end:
            after = _walk_known(buffer, position, end, known, limits, runs)
            if after > position:
                position = after
                continue
            head, after = _read_new_head(buffer, position, end, limits)
            if not head:
                return runs, position, 0
            if len(head) <= KnownHeads.LONGEST:
                known.add(head)
            else:
                runs.append((head, position, after, 1))
                position = after
    except IncompleteError as incomplete:
        return runs, position, incomplete.need - position
    except DecodeError:
        return runs, position, 0
    return runs, position, 1


def _read_new_head(
    buffer: bytes | bytearray, position: int, end: int, limits: FormatLimits
) -> tuple[bytes, int]:
    """The head of the complete message here, and its end; no head if its form is unusual."""
    end = min(end, position + limits.frame)
    cursor = Cursor(buffer, format=FORMAT, limits=limits, position=position, end=end, whole=False)
    if cursor.byte() != _MESSAGE:
        return b"", position
    cursor.string()
    _read_address(cursor)
    if cursor.take(len(_HEAD_END)) != _HEAD_END:
        return b"", position
    head = bytes(buffer[position : cursor.position])
    payload = _read_size(cursor)
    cursor.skip(payload)
    return head if payload else b"", cursor.position


@lru_cache(maxsize=256)
def _shape(size: int) -> Callable[[bytes | bytearray, int], tuple[bytes, int]]:
    return struct.Struct(f">{size}sI").unpack_from


def _walk_known(
    buffer: bytes | bytearray,
    position: int,
    end: int,
    known: KnownHeads,
    limits: FormatLimits,
    runs: list[Run],
) -> int:
    """Step over complete messages with known heads of one size, and record their runs.

    A head determines its own end, so bytes that equal a known head are one: nothing in them must
    be read. Anything else ends the walk, and is left to the caller.
    """
    size = known.size_at(buffer, position)
    if not size:
        return position
    heads = known.by_size[size]
    unpack = _shape(size)
    before_payload = size + 4
    most = limits.frame - before_payload
    last_fit = end - before_payload
    head, first, count = b"", position, 0
    while position <= last_fit:
        this, payload = unpack(buffer, position)
        after = position + before_payload + payload
        if after > end or not 0 < payload <= most:
            break
        if this != head:
            if this not in heads:
                break
            if count:
                runs.append((head, first, position, count))
            head, first, count = this, position, 0
        count += 1
        position = after
    if count:
        runs.append((head, first, position, count))
    return position
