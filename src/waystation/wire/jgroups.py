"""What the two generations of JGroups' gossip-router formats share: mainly addresses.

The encoding of addresses differs between the generations and is in jgroups2.py and jgroups5.py. No
framing and no messages here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from waystation.core.identity import uuid_text
from waystation.errors import LocalError, quote

Kind: TypeAlias = Literal[
    "uuid",
    "payload-uuid",
    "additional-data-uuid",
    "topology-uuid",
    "site-uuid",
    "site-master",
    "extended-uuid",
    "flags-uuid",
]
"""The classes of JGroups whose addresses are UUIDs, some with more data behind the UUID.

Both generations know `uuid`; 2.12 knows the next three, 5.x the last four.
"""

_FIRST_OF_2: Final = frozenset({0x01, 0x02, 0x04, 0x0A, 0x0C, 0x0D})
_FIRST_OF_5: Final = frozenset({0x00, 0xFF})

_HOST_AND_PORT: Final = re.compile(
    r"(?:(?P<v4>[0-9.]+)|\[(?P<v6>[0-9a-fA-F:.]+)(?:%(?P<scope>[0-9]{1,10}))?\])?:(?P<port>[0-9]{1,5})"
)
_PORT: Final = struct.Struct(">H")
_SCOPE: Final = struct.Struct(">I")
_LONG: Final = struct.Struct(">q")


def generation_of(first_byte: int) -> Literal[2, 5] | None:
    """Which generation a client speaks, by the first byte of its connection (GR-11).

    A 2.12 client begins with the type of a request: CONNECT 1, DISCONNECT 2, GOSSIP_GET 4,
    MESSAGE 10, PING 12 or CLOSE 13. A 5.x client begins with the high byte of a length: 0 for
    every frame below 16 MiB, and FF for the length -5 that says goodbye. The two sets have nothing
    in common, and everything else is neither (62 would be the greeting of JGroups' member-to-member
    TCP, which does not belong on a router's port).

    >>> generation_of(0x01), generation_of(0x00), generation_of(0x62)
    (2, 5, None)
    """
    if first_byte in _FIRST_OF_5:
        return 5
    return 2 if first_byte in _FIRST_OF_2 else None


class UuidAddress(Struct, frozen=True, gc=False):
    """A logical address: a UUID, and whatever its class writes behind it.

    `uuid` holds 16 bytes in the order of the text (on the wire the halves are swapped). `extra` is
    what follows the UUID on the wire, byte for byte, so that it can be written again; it is empty
    where there is nothing but the UUID. Routers compare the UUID alone (LA-1): that is `key`.

    >>> address = UuidAddress.parse("00112233-4455-6677-8899-aabbccddeeff")
    >>> print(address, len(address.key))
    00112233-4455-6677-8899-aabbccddeeff 16
    """

    uuid: bytes
    kind: Kind = "uuid"
    extra: bytes = b""

    @classmethod
    def parse(cls, text: str) -> UuidAddress:
        """The plain address with this UUID, given as text."""
        return cls(uuid_from_text(text))

    @property
    def key(self) -> bytes:
        """What two spellings of one address have in common; keys of different sorts differ."""
        return self.uuid

    def plain(self) -> UuidAddress:
        """The address as both generations can write it: the UUID alone."""
        return UuidAddress(self.uuid)

    def __str__(self) -> str:
        return uuid_text(self.uuid)


class PhysicalAddress(Struct, frozen=True, gc=False):
    """An IP address and port. It may also stand where a logical address is expected.

    `host` is a literal, or empty for "no address" (5.x only); `scope` numbers the interface of a
    link-local IPv6 address. `extra` is the additional data of 2.12, as in UuidAddress.

    >>> print(PhysicalAddress("127.0.0.1", 7800), PhysicalAddress("fe80::1", 12001, scope=5))
    127.0.0.1:7800 [fe80::1%5]:12001
    >>> PhysicalAddress.parse("[fe80::1%5]:12001")
    PhysicalAddress(host='fe80::1', port=12001, scope=5, extra=b'')
    """

    host: str
    port: int
    scope: int = 0
    extra: bytes = b""

    @classmethod
    def parse(cls, text: str) -> PhysicalAddress:
        """The address that prints as this text."""
        match = _HOST_AND_PORT.fullmatch(text)
        if match is None:
            raise LocalError(
                f"invalid physical address {quote(text)}",
                rule="GR-2",
                hint="write 127.0.0.1:7800, [::1]:7800 or [fe80::1%5]:7800",
            )
        address = cls(
            match["v4"] or match["v6"] or "", int(match["port"]), int(match["scope"] or 0)
        )
        _ = address.key, scope_bytes(address.scope)  # raises if a part is out of range
        return address

    @property
    def key(self) -> bytes:
        """IP and port; as in Java, the scope makes no difference."""
        return host_bytes(self.host) + port_bytes(self.port)

    def __str__(self) -> str:
        if ":" not in self.host:
            return f"{self.host}:{self.port}"
        scope = f"%{self.scope}" if self.scope else ""
        return f"[{self.host}{scope}]:{self.port}"


class MillisAddress(Struct, frozen=True, gc=False):
    """The address of JGroups' own tests (5.5 on): a number of milliseconds.

    >>> print(MillisAddress(1_700_000_000_000))
    1700000000000
    """

    millis: int

    @property
    def key(self) -> bytes:
        """The number in eight bytes."""
        return _in_bytes(self.millis, _LONG, "milliseconds")

    def __str__(self) -> str:
        return str(self.millis)


Address: TypeAlias = UuidAddress | PhysicalAddress | MillisAddress
"""Whatever can stand where JGroups writes an address; null is None.

The keys of the three have 16, 2, 6 or 18, and 8 bytes: no key of one is a key of another.
"""


class KnownHeads:
    """A cache of message heads that a scan has checked and need not check again.

    Use one per connection. It is bounded: long heads are not cached, and a full cache is cleared.
    So a peer that invents heads costs time, not memory.

    >>> known = KnownHeads()
    >>> known.add(b"head")
    >>> known.size_at(b"a head", 2), known.size_at(b"a tail", 2)
    (4, 0)
    """

    LONGEST: Final = 256
    SIZES: Final = 8
    PER_SIZE: Final = 256

    def __init__(self) -> None:
        self.by_size: dict[int, set[bytes]] = {}

    def add(self, head: bytes) -> None:
        """Keep a head of at most LONGEST bytes."""
        heads = self.by_size.setdefault(len(head), set())
        heads.add(head)
        if len(heads) > self.PER_SIZE or len(self.by_size) > self.SIZES:
            self.by_size = {len(head): {head}}

    def size_at(self, buffer: bytes | bytearray, position: int) -> int:
        """The length of the known head at this position; 0 if there is none."""
        for size, heads in self.by_size.items():
            if bytes(buffer[position : position + size]) in heads:
                return size
        return 0


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes of a UUID given as text.

    JGroups sets no version bits in its UUIDs before 5.0, so none are asked for.

    >>> uuid_from_text("00010203-0405-0607-0809-0a0b0c0d0e0f") == bytes(range(16))
    True
    """
    try:
        uuid = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        uuid = b""
    if len(uuid) != 16 or uuid_text(uuid) != text.lower():
        raise LocalError(
            f"invalid UUID {quote(text)}",
            rule="LA-1",
            hint="write 8-4-4-4-12 hexadecimal digits",
        )
    return uuid


def check_uuid(uuid: bytes) -> bytes:
    """Return the UUID; raise a LocalError if it is invalid.

    >>> check_uuid(b"short")
    Traceback (most recent call last):
    waystation.errors.LocalError: UUID b'short' has 5 bytes; give 16
    """
    if len(uuid) == 16:
        return uuid
    raise LocalError(f"UUID {quote(uuid)} has {len(uuid)} bytes", rule="LA-1", hint="give 16")


@lru_cache(maxsize=1024)  # a group's members are named again in every answer
def host_text(packed: bytes) -> str:
    r"""An IP address of 0, 4 or 16 bytes as a literal; no bytes are the empty literal.

    >>> host_text(b"\x7f\0\0\1"), host_text(bytes(15) + b"\1"), host_text(b"")
    ('127.0.0.1', '::1', '')
    """
    if not packed:
        return ""
    return str(IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed))


@lru_cache(maxsize=1024)
def host_bytes(host: str) -> bytes:
    """The bytes of an IP address given as a literal.

    >>> host_bytes("127.0.0.1").hex(), host_bytes("")
    ('7f000001', b'')
    """
    if not host:
        return b""
    try:
        address = ip_address(host)
    except ValueError:
        raise LocalError(
            f"host {quote(host)} is not an IP address",
            rule="GR-2",
            hint="look the name up first; the format carries addresses, not names",
        ) from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise LocalError(
            f"host {quote(host)} names its interface",
            rule="GR-2",
            hint="give the interface's number as `scope`",
        )
    return address.packed


def port_bytes(port: int) -> bytes:
    """A port as both generations write it.

    >>> port_bytes(7800).hex()
    '1e78'
    """
    return _in_bytes(port, _PORT, "port")


def scope_bytes(scope: int) -> bytes:
    """The number of an interface as both generations write it.

    >>> scope_bytes(5).hex()
    '00000005'
    """
    return _in_bytes(scope, _SCOPE, "scope")


def _in_bytes(number: int, layout: struct.Struct, name: str) -> bytes:
    try:
        return layout.pack(number)
    except struct.error:
        raise LocalError(
            f"{name} {quote(number)} does not fit in {layout.size} bytes",
            rule="GR-2",
            hint="give a whole number in range",
        ) from None


def written(value: object, encoders: Mapping[type, Callable[[Any], bytes]]) -> bytes:
    """Encode a value with the encoder of its class; raises a LocalError if that fails."""
    encoder = encoders.get(type(value))
    if encoder is None:
        raise LocalError(
            f"{quote(value)} is not a value of this format",
            rule="GR-11",
            hint="give one of those that the decoders return",
        )
    try:
        return encoder(value)
    except LocalError:
        raise
    except (TypeError, AttributeError, LookupError, ValueError, struct.error) as error:
        raise LocalError(
            f"{quote(value)} cannot be encoded: {error}",
            rule="GR-11",
            hint="give each field a value of its own type",
        ) from None
