"""Addresses and routes: what they are, and how they are written and read (AD-1).

No look-ups and no names of types here: those belong to the node that owns them (address_types.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from waystation.errors import LocalError, shown

LOCAL: Final = 0
"""The type of addresses that every router can route (AD-2)."""

MAX_ROUTE_LENGTH: Final = 255
"""No route is longer; the hop limit (WK-11) ends a journey long before."""

STANDARD_TYPES: Final[Mapping[str, int]] = {"local": LOCAL, "tcp": 1, "udp": 2, "ws": 3, "uds": 5}
"""The numbers of a peer that does not tell its own (AD-3)."""


class Address(Struct, frozen=True, cache_hash=True, gc=False, order=True):
    r"""Where a message can be sent: a type, which says how to read the data, and the data (AD-1).

    >>> str(Address(0, b"echo")), str(Address(1, b"10.0.0.2:4000")), str(Address(0, b"\x00\xff"))
    ('0#echo', '1#10.0.0.2:4000', '0#0x00ff')
    >>> Address.parse("echo") == Address.parse("0#echo") == Address(0, b"echo")
    True

    The constructor takes what it is given, since it stands on the path of every message; `parse`
    and `of` check.
    """

    type: int
    data: bytes

    @classmethod
    def of(cls, type: int, data: bytes) -> Address:
        """An address from values that nobody has checked yet."""
        if not (isinstance(type, int) and 0 <= type <= 255):
            raise LocalError(
                f"address type {shown(type)} is out of range", rule="AD-1", hint="give 0 to 255"
            )
        if not isinstance(data, bytes):
            raise LocalError(
                f"address data {shown(data)} is not bytes", rule="AD-1", hint="give bytes"
            )
        return cls(type, data)

    @classmethod
    def parse(cls, text: str, types: Mapping[str, int] = STANDARD_TYPES) -> Address:
        """Read `type#data` or plain `data`; a type is a number or one of the names in `types`."""
        kind, mark, data = text.partition("#")
        if not mark:
            kind, data = "0", text
        if not text or any(character.isspace() for character in text):
            raise LocalError(
                f"address {shown(text)} is empty or has white space",
                rule="AD-1",
                hint="write type#data, with bytes that are not printable as 0x…",
            )
        return cls.of(_parse_type(kind, text, types), _parse_data(data, text))

    @property
    def name(self) -> str:
        """The data as text: for a local address, the participant that it names."""
        return _format_data(self.data)

    def __str__(self) -> str:
        return f"{self.type}#{_format_data(self.data)}"


def _parse_type(kind: str, text: str, types: Mapping[str, int]) -> int:
    if kind.isascii() and kind.isdigit() and len(kind) <= 3:
        return int(kind)
    if kind in types:
        return types[kind]
    raise LocalError(
        f"address {shown(text)} has the unknown type {shown(kind)}",
        rule="AD-1",
        hint=f"give a number from 0 to 255 or one of {', '.join(sorted(types))}",
    )


def _parse_data(data: str, text: str) -> bytes:
    if not data.startswith("0x"):
        return data.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(data[2:])
    except ValueError:
        raise LocalError(
            f"address {shown(text)} has bytes that are not hexadecimal",
            rule="AD-1",
            hint="write two digits of 0-9 and a-f for each byte after 0x",
        ) from None


def _format_data(data: bytes) -> str:
    """Text where it reads back as the same bytes, else 0x and digits."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    plain = text.isprintable() and " " not in text and "=>" not in text
    return text if plain and not text.startswith("0x") else f"0x{data.hex()}"


class Route(Struct, frozen=True, cache_hash=True, gc=False):
    """An ordered list of addresses. Every operation returns a new route.

    >>> route = Route.parse("tcp#10.0.0.2:4000 => hop => echo")
    >>> str(route)
    '1#10.0.0.2:4000 => 0#hop => 0#echo'
    >>> str(route.rest()), str(Route().pushed(Address(0, b"app")))
    ('0#hop => 0#echo', '0#app')
    """

    addresses: tuple[Address, ...] = ()

    @classmethod
    def of(cls, addresses: Iterable[Address]) -> Route:
        """A route from addresses that nobody has counted yet."""
        counted = tuple(addresses)
        if len(counted) > MAX_ROUTE_LENGTH:
            raise _too_long(len(counted))
        return cls(counted)

    @classmethod
    def parse(cls, text: str, types: Mapping[str, int] = STANDARD_TYPES) -> Route:
        """Read addresses with `=>` between them; nothing at all is the empty route."""
        if not text.strip():
            return cls()
        hops = text.count("=>") + 1
        if hops > MAX_ROUTE_LENGTH:  # counted before anything is built
            raise _too_long(hops)
        return cls(tuple(Address.parse(part.strip(), types) for part in text.split("=>")))

    def __str__(self) -> str:
        return " => ".join(map(str, self.addresses))

    def __len__(self) -> int:
        return len(self.addresses)

    def __iter__(self) -> Iterator[Address]:
        return iter(self.addresses)

    @property
    def first(self) -> Address | None:
        """The address that a router looks at (AD-5), or None when there is none."""
        addresses = self.addresses
        return addresses[0] if addresses else None

    def rest(self) -> Route:
        """This route without its first address."""
        return Route(self.addresses[1:])

    def pushed(self, address: Address) -> Route:
        """This route with an address put in front."""
        return Route((address, *self.addresses))


def _too_long(hops: int) -> LocalError:
    return LocalError(
        f"a route of {hops} addresses is too long",
        rule="WK-11",
        hint=f"use at most {MAX_ROUTE_LENGTH}",
    )
