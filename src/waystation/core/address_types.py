"""Names and numbers of address types, and their translation between two nodes (AD-2, AD-3).

The bytes of a session contain the numbers of the node that opened it. That node translates nothing;
the other one translates in both directions. A peer that sends no table, such as a plain Ockam node,
uses the standard numbers and translates nothing either, so our side always translates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from waystation.core.address import LOCAL, STANDARD_TYPES, Address, Route
from waystation.errors import LocalError, quote

MAX_LEARNED: Final = 64
"""Maximum number of types learned from peers that get a number here."""

USUAL_TYPES: Final[Mapping[str, int]] = {**STANDARD_TYPES, "gossip": 6, "mqtt": 7, "http": 8}
"""The numbers that these types have in every Waystation node where they are free."""

_RESERVED: Final = frozenset({*STANDARD_TYPES.values(), 4})  # 4 is Bluetooth in Ockam nodes

GENERATED: Final = 16
"""Number of hexadecimal digits at the end of a generated name."""

_DIGITS: Final = frozenset("0123456789abcdef")


def is_session_name(name: str) -> bool:
    """Whether a name has the form that nodes give to their sessions.

    >>> is_session_name("tcp-0123456789abcdef"), is_session_name("truck-7")
    (True, False)
    """
    kind, mark, digits = name[: -GENERATED - 1], name[-GENERATED - 1 :][:1], name[-GENERATED:]
    return mark == "-" and kind in USUAL_TYPES and _DIGITS.issuperset(digits)


class AddressTypes:
    """The address types of one node: each has a name and a number, and some can be routed.

    Type 0 always exists. A type that only a peer uses gets a number as well, so that its addresses
    can be passed on and returned, but it is not routed here.

    >>> types = AddressTypes()
    >>> types.register("tcp")
    1
    >>> types.register("tcp")
    Traceback (most recent call last):
    waystation.errors.LocalError: address type 'tcp' is already registered; ...
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"local": LOCAL}
        self._names: dict[int, str] = {LOCAL: "local"}
        self._routable: set[int] = {LOCAL}
        self._learnt = 0

    @property
    def numbers(self) -> Mapping[str, int]:
        """The table that this node sends to its peers: name -> number."""
        return self._numbers

    def name(self, number: int) -> str | None:
        """The name of a type number, or None."""
        return self._names.get(number)

    def routes(self, number: int) -> bool:
        """Whether messages to addresses of this type can be routed here (AD-6)."""
        return number in self._routable

    def register(self, name: str, number: int | None = None) -> int:
        """Make a type routable; its number is the given, the standard or the next free one."""
        known = self._numbers.get(name)
        if known in self._routable:
            raise LocalError(
                f"address type {quote(name)} is already registered",
                rule="AD-2",
                hint="register each type once",
            )
        if known is None:
            known = self._assign(name, number)
        elif number not in (None, known):
            raise LocalError(
                f"address type {quote(name)} already has the number {known}, not {number}",
                rule="AD-2",
                hint="register it before the first session, or without a number",
            )
        self._routable.add(known)
        return known

    def unregister(self, name: str) -> None:
        """Stop routing a type, but never type 0.

        It keeps its number, since messages in flight may still contain it.
        """
        if name != "local":
            self._routable.discard(self._numbers.get(name, -1))

    def learn(self, name: str) -> int | None:
        """The number for a type that a peer uses; None if it cannot get one here."""
        known = self._numbers.get(name)
        if known is not None:
            return known
        if not _is_name(name) or (self._learnt >= MAX_LEARNED and name not in STANDARD_TYPES):
            return None
        number = self._free_number(name, downward=True)
        if number is not None:
            self._learnt += 1
            self._note(name, number)
        return number

    def reserve_usual(self, text: str) -> None:
        """Reserve the usual numbers of the types in a text, which only other nodes may route.

        >>> types = AddressTypes()
        >>> types.reserve_usual("tcp#10.0.0.2:4000 => mqtt#hubs/east")
        >>> types.numbers["mqtt"], types.routes(7)
        (7, False)
        """
        for name, number in USUAL_TYPES.items():
            if f"{name}#" in text and name not in self._numbers and number not in self._names:
                self._note(name, number)

    def usual(self, name: str) -> int | None:
        """The usual number of a type, if it has one and that is free; otherwise None."""
        number = USUAL_TYPES.get(name)
        return None if name in self._numbers or number in self._names else number

    def _assign(self, name: str, number: int | None) -> int:
        if not _is_name(name):
            raise LocalError(
                f"invalid address type name {quote(name)}",
                rule="AD-3",
                hint="give 1 to 32 letters and digits, starting with a letter",
            )
        if number is None:
            number = self._free_number(name)
        elif not isinstance(number, int) or not 0 <= number <= 255:
            raise LocalError(
                f"address type {quote(number)} of {quote(name)} is out of range",
                rule="AD-1",
                hint="give 0 to 255",
            )
        if number is None:
            raise LocalError(
                f"no free number for address type {quote(name)}",
                rule="AD-2",
                hint="register fewer types",
            )
        if number in self._names:
            raise LocalError(
                f"address type number {number} is already used by {quote(self._names[number])}",
                rule="AD-2",
                hint="give a free number, or omit it",
            )
        self._note(name, number)
        return number

    def _note(self, name: str, number: int) -> None:
        self._numbers[name] = number
        self._names[number] = name

    def _free_number(self, name: str, *, downward: bool = False) -> int | None:
        """The standard number, or the next free one; with `downward`, counting down from 255."""
        standard = STANDARD_TYPES.get(name)
        if standard is not None and standard not in self._names:
            return standard
        candidates = range(255, 0, -1) if downward else range(1, 256)
        free = (n for n in candidates if n not in self._names and n not in _RESERVED)
        return next(free, None)


def _is_name(name: str) -> bool:
    return (
        isinstance(name, str)
        and name.isascii()
        and name.isalnum()
        and name[0].isalpha()
        and len(name) <= 32
    )


class PeerTypes(Struct, frozen=True):
    """Translates between the type numbers of a session's bytes and ours, by name (AD-3).

    >>> ours = AddressTypes()
    >>> ours.register("mqtt", 7)
    7
    >>> peer = PeerTypes.of_session(ours, {"local": 0, "mqtt": 9}, opened_here=False)
    >>> str(peer.from_peer(Route.parse("9#a/topic => echo")))
    '7#a/topic => 0#echo'
    """

    inward: bytes = b""  # our number at the index of theirs; empty if all are equal
    outward: bytes = b""

    @classmethod
    def of_session(
        cls, ours: AddressTypes, theirs: Mapping[str, int] | None, *, opened_here: bool
    ) -> PeerTypes:
        """The translation for a session; `theirs` is the peer's table, None if it sent none."""
        if theirs is None:
            return cls._to_and_from(ours, STANDARD_TYPES)
        return cls() if opened_here else cls._to_and_from(ours, theirs)

    @classmethod
    def _to_and_from(cls, ours: AddressTypes, theirs: Mapping[str, int]) -> PeerTypes:
        """Map every number, so that whatever comes in can go out again unchanged.

        Types of the same name correspond. A type of theirs that cannot get a name here gets a
        number that is not routed; the others keep their number if possible.
        """
        inward = {LOCAL: LOCAL}
        nameless = []
        for name, number in theirs.items():
            if not 0 < number <= 255 or number in inward:
                continue
            mine = ours.learn(name)
            if mine is None or mine in inward.values():
                nameless.append(number)
            else:
                inward[number] = mine
        free = [mine for mine in range(256) if mine not in inward.values()]
        for number in nameless:
            if number in inward:
                continue
            mine = max(
                free, key=lambda mine: (not ours.routes(mine), ours.name(mine) is None, mine)
            )
            inward[number] = mine
            free.remove(mine)
        rest = [number for number in range(256) if number not in inward]
        inward |= {number: number for number in rest if number in free}
        unpaired = (mine for mine in free if mine not in rest)
        inward |= {number: next(unpaired) for number in rest if number not in inward}
        table = bytes(inward[number] for number in range(256))
        if table == bytes(range(256)):
            return cls()
        return cls(table, bytes(table.index(mine) for mine in range(256)))

    def from_peer(self, route: Route) -> Route:
        """Translate a route from the session's bytes to our numbers."""
        return _translated(route, self.inward)

    def to_peer(self, route: Route) -> Route:
        """Translate a route of ours to the numbers of the session's bytes."""
        return _translated(route, self.outward)


def _translated(route: Route, numbers: bytes) -> Route:
    if not numbers:  # nearly always: the numbers are equal, and nothing is copied
        return route
    return Route(tuple(Address(numbers[hop.type], hop.data) for hop in route.addresses))


GOSSIP: Final = AddressTypes().register("gossip")
"""The number of the address type `gossip`: its data is a group, or `group/member`."""
