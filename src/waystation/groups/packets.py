"""What members say to each other: bytes to values and back. No sockets, no state.

Every packet begins with its version, its kind, and the UUIDs of its sender and of its receiver (all
zero: everybody). The router's format carries it as an opaque payload, direct connections and
datagrams carry it as it is; docs/reference/group.md describes it byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from waystation.core.discovery import Notice
from waystation.core.identity import MAX_CHANGES, Mapping, Uuid
from waystation.errors import DecodeError, LocalError
from waystation.net.place import parse_place

FORMAT: Final = "group"
VERSION: Final = 0xE1
"""The first byte: no packet of JGroups begins so, and the next version of this format neither."""

TO_ONE, TO_ALL, ACK, NOTICE = 1, 2, 3, 4

EVERYBODY: Final[Uuid] = bytes(16)
NOTHING: Final = 0xFFFF_FFFF
"""The length of a message that expired: its number is used, and nothing stands there."""

MAX_PLACES: Final = 64
MAX_TEXT: Final = 1_024

_MARK: Final = bytes((VERSION,))
_HEAD: Final = struct.Struct(">BB16s16s")
_DATA: Final = struct.Struct(">QQHI")
_ACK: Final = struct.Struct(">QQIB")
_LENGTH: Final = struct.Struct(">I")
_BODY: Final = _HEAD.size + _DATA.size

OVERHEAD: Final = _BODY + _LENGTH.size
"""What a packet needs beside a single message, and changes of the cache."""

_GAP_ONE, _GAP_ALL = 1, 2


class Data(Struct, frozen=True, gc=False):
    """Messages of one sender with the numbers from `first` on; None is one that expired.

    `base` is the oldest number that the receiver can still get, 0 where the sender does not say.
    """

    sender: Uuid
    receiver: Uuid
    to_all: bool
    first: int
    base: int
    payloads: Sequence[bytes | None]
    changes: tuple[Mapping, ...] = ()


class Ack(Struct, frozen=True, gc=False):
    """What has arrived: all up to these two numbers, and how many more there is room for.

    A gap says that a later one came, and the next was missing.
    """

    sender: Uuid
    receiver: Uuid
    one: int
    all: int
    credit: int
    gap_one: bool = False
    gap_all: bool = False


class NoticePacket(Struct, frozen=True, gc=False):
    """A notice of discovery."""

    sender: Uuid
    receiver: Uuid
    notice: Notice


Packet: TypeAlias = Data | Ack | NoticePacket

_notice_decoder: Final = msgspec.msgpack.Decoder(Notice)
_changes_decoder: Final = msgspec.msgpack.Decoder(tuple[Mapping, ...])
_encoder: Final = msgspec.msgpack.Encoder()


def encode_data(packet: Data) -> bytes:
    r"""Encode messages.

    >>> me, you = bytes(15) + b"\1", bytes(15) + b"\2"
    >>> data = Data(me, you, False, 1, 1, [b"hello", None])
    >>> decode(encode_data(data)) == data
    True
    """
    kind = TO_ALL if packet.to_all else TO_ONE
    changes = _encoder.encode(packet.changes) if packet.changes else b""
    payloads = packet.payloads
    pieces = [
        _HEAD.pack(VERSION, kind, packet.sender, packet.receiver),
        _DATA.pack(packet.first, packet.base, len(changes), len(payloads)),
        changes,
    ]
    pack = _LENGTH.pack
    for payload in payloads:
        if payload is None:
            pieces.append(pack(NOTHING))
        else:
            pieces += (pack(len(payload)), payload)
    return b"".join(pieces)


def encode_ack(packet: Ack) -> bytes:
    r"""Encode an acknowledgement.

    >>> ack = Ack(bytes(15) + b"\1", bytes(15) + b"\2", 7, 0, 1024, gap_one=True)
    >>> decode(encode_ack(ack)) == ack
    True
    """
    gaps = packet.gap_one * _GAP_ONE | packet.gap_all * _GAP_ALL
    head = _HEAD.pack(VERSION, ACK, packet.sender, packet.receiver)
    return head + _ACK.pack(packet.one, packet.all, packet.credit, gaps)


def encode_notice(sender: Uuid, receiver: Uuid, notice: Notice) -> bytes:
    """Encode a notice."""
    return _HEAD.pack(VERSION, NOTICE, sender, receiver) + _encoder.encode(notice)


def sender_of(packet: bytes) -> Uuid:
    """Who sent a packet, which is not looked at any further; what is none of ours has no sender."""
    return packet[2:18] if packet[:1] == _MARK else EVERYBODY


def decode(packet: bytes) -> Packet:
    r"""Decode a packet; whatever is wrong with it is a DecodeError.

    >>> decode(b"\x13\x02")
    Traceback (most recent call last):
    waystation.errors.DecodeError: group: not a packet of this format (at byte 0)
    """
    if len(packet) < _HEAD.size or packet[0] != VERSION:
        raise DecodeError("not a packet of this format", format=FORMAT, offset=0)
    _, kind, sender, receiver = _HEAD.unpack_from(packet)
    if sender == EVERYBODY:
        raise DecodeError("a packet has no sender", format=FORMAT, offset=2)
    if kind in (TO_ONE, TO_ALL):
        return _read_data(packet, kind == TO_ALL, sender, receiver)
    if kind == ACK:
        return _read_ack(packet, sender, receiver)
    if kind == NOTICE:
        return NoticePacket(sender, receiver, _read_notice(packet))
    raise DecodeError(f"unknown kind of packet: {kind}", format=FORMAT, offset=1)


def _read_data(packet: bytes, to_all: bool, sender: Uuid, receiver: Uuid) -> Data:
    if len(packet) < _BODY:
        raise DecodeError("messages end too early", format=FORMAT, offset=len(packet))
    first, base, size, count = _DATA.unpack_from(packet, _HEAD.size)
    position = _BODY + size
    changes: tuple[Mapping, ...] = ()
    if size:
        changes = _read_changes(packet[_BODY:position])
    return Data(
        sender, receiver, to_all, first, base, _read_payloads(packet, position, count), changes
    )


def _read_payloads(packet: bytes, position: int, count: int) -> list[bytes | None]:
    payloads: list[bytes | None] = []
    add, length_at, end = payloads.append, _LENGTH.unpack_from, len(packet)
    try:
        for _ in range(count):
            (length,) = length_at(packet, position)
            position += 4
            if length == NOTHING:
                add(None)
                continue
            after = position + length
            if after > end:
                break
            add(packet[position:after])
            position = after
    except struct.error:
        position = -1
    if position != end or len(payloads) != count:
        raise DecodeError("the messages do not fill their packet", format=FORMAT, offset=_BODY)
    return payloads


def _read_ack(packet: bytes, sender: Uuid, receiver: Uuid) -> Ack:
    if len(packet) != _HEAD.size + _ACK.size:
        raise DecodeError(
            f"an acknowledgement of {len(packet)} bytes", format=FORMAT, offset=_HEAD.size
        )
    one, all_, credit, gaps = _ACK.unpack_from(packet, _HEAD.size)
    return Ack(sender, receiver, one, all_, credit, bool(gaps & _GAP_ONE), bool(gaps & _GAP_ALL))


def _read_notice(packet: bytes) -> Notice:
    try:
        notice: Notice = _notice_decoder.decode(packet[_HEAD.size :])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"invalid notice: {error}", format=FORMAT, offset=_HEAD.size) from None
    for name in ("mapping", "asker"):
        mapping = getattr(notice, name, None)
        if mapping is not None:
            _check(mapping)
    _check_uuid(getattr(notice, "uuid", EVERYBODY))
    return notice


def _read_changes(raw: bytes) -> tuple[Mapping, ...]:
    try:
        changes = _changes_decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"invalid changes: {error}", format=FORMAT, offset=_BODY) from None
    if len(changes) > MAX_CHANGES:
        raise DecodeError(f"{len(changes)} changes in a packet", format=FORMAT, offset=_BODY)
    for mapping in changes:
        _check(mapping)
    return changes


def _check(mapping: Mapping) -> None:
    """What a type cannot say: a UUID has 16 bytes, a place a port, and nothing is without end."""
    _check_uuid(mapping.uuid)
    texts = (mapping.member.name, *mapping.physical)
    too_long = len(mapping.physical) > MAX_PLACES or any(len(text) > MAX_TEXT for text in texts)
    if too_long or mapping.stamp < 0:
        raise DecodeError("mapping out of bounds", format=FORMAT)
    for place in mapping.physical:
        try:
            parse_place(place)
        except LocalError as error:
            raise DecodeError(f"invalid mapping: {error.problem}", format=FORMAT) from None


def _check_uuid(uuid: Uuid) -> None:
    if len(uuid) != 16:
        raise DecodeError(f"a UUID of {len(uuid)} bytes", format=FORMAT)
