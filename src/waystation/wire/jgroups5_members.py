"""What members of JGroups 5.x say to each other: the payload of a MESSAGE through a router.

A router needs none of this to pass messages on. It is for two others: the journal, which names a
message by its sender and its number there (NAKACK2 for those to all, UNICAST3 for those to one),
and a program without a protocol stack that exchanges plain bytes with members (`encode_plain`).

The payload begins with the sender's release and a byte of flags; then comes one message, or a list
of messages with one destination. A message has flags, addresses, headers of protocols, and what the
application sent. No header says how long it is, so reading ends at the first that is not known
here; the headers of the two protocols come before those of almost all others. What stands here is
the same from 5.2.0 to 5.5.7, but for one byte behind the name of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from waystation.errors import DecodeError, LocalError
from waystation.wire.java import Cursor, FormatLimits
from waystation.wire.jgroups import Address
from waystation.wire.jgroups5 import FORMAT, Release, address_bytes, read_address, release_of

_LIST: Final = 1
_MULTICAST: Final = 2

_DESTINATION: Final = 1
_SENDER: Final = 2

_BYTES: Final = 0
_EMPTY: Final = 2

OOB: Final = 1
DONT_BUNDLE: Final = 2
NO_FC: Final = 4
NO_RELIABILITY: Final = 16
PLAIN: Final = OOB | DONT_BUNDLE | NO_FC | NO_RELIABILITY
"""The flags of a message that no protocol numbers, holds back or sends again."""

_TRANSPORT: Final = 57
_TRANSPORT_HEADER: Final = 60
_TRANSPORT_FLAG: Final[Release] = (5, 3, 8)
"""From this release on a byte of flags is behind the name of the cluster."""

_FIRST: Final[Release] = (5, 0, 0)
_LONGEST_NAME: Final = 0x7FFF
_LIMITS: Final = FormatLimits()


class Numbered(Struct, frozen=True, gc=False):
    """What a reliable protocol says about a message.

    `event` is `message` or `retransmission` where `number` is that of a message; the others are
    between the protocols. `connection` tells connections apart whose numbers begin anew.

    >>> print(Numbered("NAKACK2", "message", 17))
    NAKACK2/message/17
    """

    protocol: str
    event: str
    number: int | None = None
    connection: int = 0

    @property
    def is_message(self) -> bool:
        """Whether this is the message with that number, the first time or again."""
        return self.event in {"message", "retransmission"}

    def __str__(self) -> str:
        number = "" if self.number is None else f"/{self.number}"
        return f"{self.protocol}/{self.event}{number}"


class MemberMessage(Struct, frozen=True, gc=False):
    """One message, as far as it could be read.

    `payload` is None where it was not reached, or is not plain bytes. `is_plain`: no protocol but
    the transport has a header on it.
    """

    destination: Address | None
    sender: Address | None
    flags: int
    size: int
    numbered: Numbered | None = None
    payload: bytes | None = None
    is_plain: bool = False


class _UnknownError(Exception):
    """There is a header or a payload whose end cannot be found."""


def read_messages(payload: bytes) -> list[MemberMessage]:
    """The messages in the payload of a MESSAGE; none if it is not of a member of 5.x.

    >>> hello = encode_plain(b"hello", None, None, "demo", (5, 5, 7))
    >>> [message.payload for message in read_messages(hello)], read_messages(b"something else")
    ([b'hello'], [])
    """
    release = release_of(payload)
    if release is None or release < _FIRST:
        return []
    cursor = Cursor(payload, format=FORMAT, limits=_LIMITS, position=2, end=len(payload))
    found: list[MemberMessage] = []
    try:
        if cursor.byte() & _LIST:
            _read_list(cursor, release, found)
        else:
            _read_message(cursor, release, found)
    except (DecodeError, _UnknownError):
        pass  # what was found before that stands
    return found


def _read_list(cursor: Cursor, release: Release, found: list[MemberMessage]) -> None:
    destination, sender = read_address(cursor), read_address(cursor)
    _skip_name(cursor)
    for _ in range(cursor.integer()):
        _read_message(cursor, release, found, destination, sender)


def _read_message(
    cursor: Cursor,
    release: Release,
    found: list[MemberMessage],
    destination: Address | None = None,
    sender: Address | None = None,
) -> None:
    start = cursor.position
    kind, leading, flags = cursor.short(), cursor.byte(), cursor.short()
    if leading & _DESTINATION:
        destination = read_address(cursor)
    if leading & _SENDER:
        sender = read_address(cursor)
    numbered: Numbered | None = None
    is_plain = True
    payload: bytes | None = None
    try:
        for _ in range(cursor.unsigned_short()):
            cursor.short()  # the protocol; the class of its header says enough
            header = cursor.short()
            is_plain = is_plain and header == _TRANSPORT_HEADER
            numbered = _read_header(cursor, header, release) or numbered
        payload = _read_bytes(cursor, kind)
    finally:
        end = cursor.edge if payload is None else cursor.position
        size = end - start
        found.append(MemberMessage(destination, sender, flags, size, numbered, payload, is_plain))


def _read_bytes(cursor: Cursor, kind: int) -> bytes:
    if kind == _EMPTY:
        return b""
    if kind != _BYTES:
        raise _UnknownError
    size = cursor.integer()
    return cursor.take(size) if size > 0 else b""


def _skip_name(cursor: Cursor) -> None:
    size = cursor.short()
    if size > 0:
        cursor.skip(size)


def _read_header(cursor: Cursor, header: int, release: Release) -> Numbered | None:
    if header == _TRANSPORT_HEADER:
        _skip_name(cursor)
        if release >= _TRANSPORT_FLAG and cursor.byte():
            cursor.skip(4)
        return None
    read = _HEADERS.get(header)
    if read is None:
        raise _UnknownError
    return read(cursor)


def _read_compressed(cursor: Cursor) -> int:
    """A number of which only the bytes are written that it needs, the lowest first."""
    size = cursor.byte()
    if size > 8:
        raise _UnknownError
    return int.from_bytes(cursor.take(size), "little", signed=size == 8)


_TO_ALL: Final[Mapping[int, str]] = {
    1: "message",
    2: "retransmit-request",
    3: "retransmission",
    4: "highest-number",
}
_TO_ONE: Final[Mapping[int, str]] = {
    0: "message",
    1: "acknowledgement",
    2: "first-number-request",
    3: "retransmit-request",
    4: "close",
}


def _read_to_all(cursor: Cursor) -> Numbered:
    event = _TO_ALL.get(cursor.byte())
    if event is None:
        raise _UnknownError
    if event == "retransmit-request":
        read_address(cursor)  # whose messages
        return Numbered("NAKACK2", event)
    return Numbered("NAKACK2", event, _read_compressed(cursor))


def _read_to_one(cursor: Cursor) -> Numbered:
    event = _TO_ONE.get(cursor.byte())
    number, connection = None, 0
    if event in {"message", "acknowledgement"}:
        number, connection = _read_compressed(cursor), cursor.short()
    if event == "message":
        cursor.boolean()  # whether it is the first
    elif event in {"acknowledgement", "first-number-request"}:
        _read_compressed(cursor)  # a timestamp
    elif event == "close":
        connection = cursor.short()
    elif event is None:
        raise _UnknownError
    return Numbered("UNICAST3", event, number, connection)


def _skip_fragment(cursor: Cursor) -> None:
    for _ in range(3):
        _read_compressed(cursor)
    cursor.skip(3)


def _skip_fragment_3(cursor: Cursor) -> None:
    for _ in range(5):
        _read_compressed(cursor)
    cursor.skip(1)


_HEADERS: Final[Mapping[int, Callable[[Cursor], Numbered | None]]] = {
    52: _skip_fragment,
    78: _read_to_all,
    82: _read_to_one,
    91: _skip_fragment_3,
}


def encode_plain(
    payload: bytes,
    sender: Address | None,
    destination: Address | None,
    cluster: str,
    release: Release,
) -> bytes:
    """A message of plain bytes that every member of the release takes, and no protocol repeats.

    >>> encode_plain(b"hi", None, None, "demo", (5, 5, 7)).hex(" ")
    '29 47 02 00 00 00 00 17 00 01 00 39 00 3c 00 04 64 65 6d 6f 00 00 00 00 02 68 69'
    """
    name = cluster.encode()
    if len(name) > _LONGEST_NAME:
        raise LocalError(
            f"the name of a cluster has {len(name)} bytes",
            rule="GR-11",
            hint=f"give at most {_LONGEST_NAME}",
        )
    major, minor, micro = release
    leading = _DESTINATION * (destination is not None) + _SENDER * (sender is not None)
    return b"".join(
        (
            (major << 11 | minor << 6 | micro).to_bytes(2, "big"),
            bytes((0 if destination is not None else _MULTICAST,)),
            _BYTES.to_bytes(2, "big"),
            bytes((leading,)),
            PLAIN.to_bytes(2, "big"),
            b"" if destination is None else address_bytes(destination),
            b"" if sender is None else address_bytes(sender),
            b"\0\1",  # one header
            _TRANSPORT.to_bytes(2, "big"),
            _TRANSPORT_HEADER.to_bytes(2, "big"),
            len(name).to_bytes(2, "big"),
            name,
            b"\0" if release >= _TRANSPORT_FLAG else b"",
            len(payload).to_bytes(4, "big"),
            payload,
        )
    )
