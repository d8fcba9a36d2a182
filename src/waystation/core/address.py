"""Addresses and routes: their values and their text form (AD-1).

No lookups and no type names here: those belong to a node (address_types.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct

from waystation.errors import LocalError, quote

LOCAL: Final = 0
"""The type of addresses that every router can route (AD-2)."""

MAX_ROUTE_LENGTH: Final = 255
"""Maximum number of addresses in a route; the hop limit (WK-11) drops messages long before."""

STANDARD_TYPES: Final[Mapping[str, int]] = {"local": LOCAL, "tcp": 1, "udp": 2, "ws": 3, "uds": 5}
"""The type numbers of peers that do not send their own (AD-3)."""


_NOT_IN_NODE_NAMES: Final = frozenset(" /#+*")


class Address(Struct, frozen=True, cache_hash=True, gc=False, order=True):
    r"""Where a message can be sent: a type, which gives the data its meaning, and data (AD-1).

    >>> str(Address(0, b"echo")), str(Address(1, b"10.0.0.2:4000")), str(Address(0, b"\x00\xff"))
    ('0#echo', '1#10.0.0.2:4000', '0#0x00ff')
    >>> Address.parse("echo") == Address.parse("0#echo") == Address(0, b"echo")
    True

    The constructor does not check its arguments, since it runs for every message; `parse` and `of`
    do.
    """

    type: int
    data: bytes

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    @classmethod
    def of(cls, type: int, data: bytes) -> Address:
        """An address from unchecked values; raises LocalError if they are invalid."""
        if not isinstance(type, int) or isinstance(type, bool) or not 0 <= type <= 255:
            raise LocalError(
                f"address type {quote(type)} is out of range",
                rule="AD-1",
                hint="give 0 to 255",
            )
        if not isinstance(data, bytes):
            raise LocalError(
                f"address data {quote(data)} is not bytes", rule="AD-1", hint="give bytes"
            )
        return cls(type, data)

    @classmethod
    def parse(cls, text: str, types: Mapping[str, int] = STANDARD_TYPES) -> Address:
        """Parse `type#data` or plain `data`; a type is a number or one of the names in `types`."""
        if not isinstance(text, str) or not text or any(map(str.isspace, text)):
            raise LocalError(
                f"invalid address {quote(text)}",
                rule="AD-1",
                hint="write type#data without white space, and unprintable bytes as 0x…",
            )
        kind, mark, data = text.partition("#")
        if not mark:
            kind, data = "0", text
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
        f"unknown type {quote(kind)} in address {quote(text)}",
        rule="AD-1",
        hint=f"give a number from 0 to 255 or one of {', '.join(sorted(types))}",
    )


def _parse_data(data: str, text: str) -> bytes:
    try:
        return bytes.fromhex(data[2:]) if data.startswith("0x") else data.encode()
    except UnicodeEncodeError:
        problem, hint = "characters that UTF-8 cannot encode", "write them as bytes, 0x…"
    except ValueError:
        problem = "bytes that are not hexadecimal"
        hint = "write two digits of 0-9 and a-f for each byte after 0x"
    raise LocalError(f"address {quote(text)} has {problem}", rule="AD-1", hint=hint)


def _format_data(data: bytes) -> str:
    """Text if parsing it gives the same bytes again, otherwise 0x and hexadecimal digits."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if is_plain(text) else f"0x{data.hex()}"


def is_plain(text: str) -> bool:
    """Whether a text can stand unescaped as the data of an address.

    >>> is_plain("truck-7"), is_plain("truck 7"), is_plain("a=>b"), is_plain("0xff")
    (True, False, False, False)
    """
    return text.isprintable() and " " not in text and "=>" not in text and not text.startswith("0x")


class Route(Struct, frozen=True, cache_hash=True, gc=False):
    """An ordered list of addresses. Every operation returns a new route.

    >>> route = Route.parse("tcp#10.0.0.2:4000 => hop => echo")
    >>> str(route)
    '1#10.0.0.2:4000 => 0#hop => 0#echo'
    >>> str(route.rest()), str(Route().pushed(Address(0, b"app")))
    ('0#hop => 0#echo', '0#app')
    """

    addresses: tuple[Address, ...] = ()

    def __repr__(self) -> str:
        return f"Route({str(self)!r})"

    @classmethod
    def of(cls, addresses: Iterable[Address]) -> Route:
        """A route from unchecked addresses; raises LocalError if they are invalid or too many."""
        counted = tuple(islice(addresses, MAX_ROUTE_LENGTH + 1))
        if len(counted) > MAX_ROUTE_LENGTH:
            raise _too_long(f"more than {MAX_ROUTE_LENGTH}")
        for address in counted:
            if not isinstance(address, Address):
                raise LocalError(
                    f"{quote(address)} is not an Address",
                    rule="AD-1",
                    hint="give Address values, or a text to Route.parse",
                )
        return cls(counted)

    @classmethod
    def parse(cls, text: str, types: Mapping[str, int] = STANDARD_TYPES) -> Route:
        """Parse addresses separated by `=>`; empty text is the empty route."""
        if not isinstance(text, str):
            raise LocalError(
                f"route {quote(text)} is not a str",
                rule="AD-1",
                hint="give addresses separated by =>",
            )
        if not text.strip():
            return cls()
        hops = text.count("=>") + 1
        if hops > MAX_ROUTE_LENGTH:  # counted before anything is built
            raise _too_long(str(hops))
        return cls(tuple(Address.parse(part.strip(), types) for part in text.split("=>")))

    def __str__(self) -> str:
        return " => ".join(map(str, self.addresses))

    def __len__(self) -> int:
        return len(self.addresses)

    def __iter__(self) -> Iterator[Address]:
        return iter(self.addresses)

    @property
    def first(self) -> Address | None:
        """The first address, by which a router decides (AD-5); None if the route is empty."""
        addresses = self.addresses
        return addresses[0] if addresses else None

    def rest(self) -> Route:
        """This route without its first address."""
        return Route(self.addresses[1:])

    def pushed(self, address: Address) -> Route:
        """This route with an address added at the front."""
        return Route((address, *self.addresses))


def _too_long(hops: str) -> LocalError:
    return LocalError(
        f"a route of {hops} addresses is too long",
        rule="WK-11",
        hint=f"use at most {MAX_ROUTE_LENGTH}",
    )


def check_node_name(name: str) -> str:
    """Return the name of a node; raise a LocalError if it cannot be one.

    It stands in routes, in multicast ids and in the paths of journals.

    >>> check_node_name("a b")
    Traceback (most recent call last):
    waystation.errors.LocalError: invalid node name 'a b'; give letters, digits, '-', '_' and ...
    """
    if isinstance(name, str) and name.isprintable() and not set(name) & _NOT_IN_NODE_NAMES and name:
        return name
    raise LocalError(
        f"invalid node name {quote(name)}",
        rule="AD-1",
        hint="give letters, digits, '-', '_' and '.', without spaces and slashes",
    )
