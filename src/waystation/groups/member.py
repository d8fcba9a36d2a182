"""Members of a group and the limits of one: values only."""

from __future__ import annotations

from msgspec import Struct, structs

from waystation.core.identity import LogicalAddress, Mapping, Physical, Uuid, uuid_text
from waystation.errors import LocalError, quote


class Member(Struct, frozen=True, eq=False, gc=False):
    r"""A member of a group: who it is, and where it is reached at the moment.

    Two values are equal when they are the same member, wherever it is (LA-1).

    >>> truck = Member(LogicalAddress(bytes(15) + b"\7", "truck-7"), ("10.0.0.7:7800",))
    >>> print(truck, truck.uuid_text, truck == Member(truck.address))
    truck-7 00000000-0000-0000-0000-000000000007 True
    """

    address: LogicalAddress
    physical: tuple[Physical, ...] = ()

    @classmethod
    def of(cls, mapping: Mapping) -> Member:
        """The member that a mapping speaks of."""
        return cls(mapping.member, mapping.physical)

    @property
    def name(self) -> str:
        """What people call it; not necessarily unlike the names of others."""
        return self.address.name

    @property
    def uuid(self) -> Uuid:
        """What it is; made anew whenever it connects (LA-2)."""
        return self.address.uuid

    @property
    def uuid_text(self) -> str:
        """The UUID as people and the journal write it."""
        return uuid_text(self.address.uuid)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and self.address == other.address

    def __ne__(self, other: object) -> bool:  # a struct has one of its own, which compares all
        return not self == other

    def __hash__(self) -> int:
        return hash(self.address)

    def __str__(self) -> str:
        return self.address.name


class GroupLimits(Struct, frozen=True, kw_only=True):
    """How much a member keeps, and how long it waits; times are in seconds.

    `window` messages and `window_bytes` may be on their way to one member, or to all of them,
    before a sender has to wait. A message to all waits `laggards` for members that do not keep up;
    then they lose it. `inbox` messages wait to be read. `waiting` messages wait for an address that
    is not known (LA-6). `changes` of the membership wait for each reader of them. Every `beat` a
    sign of life goes out; who is silent for four of them is suspected, as is a router for three.
    What is on its way to a member that vanished is kept for `grace`, should it come back.
    `cache_age` and `cache_size` say when members that left are forgotten (LA-3).

    >>> GroupLimits(window=0)
    Traceback (most recent call last):
    waystation.errors.LocalError: the limit window is 0; give more than 0
    """

    window: int = 1_024
    window_bytes: int = 4 << 20
    laggards: float = 1.0
    inbox: int = 10_000
    waiting: int = 10_000
    changes: int = 10_000
    beat: float = 2.0
    grace: float = 5.0
    linger: float = 1.0
    dial: float = 3.0
    cache_age: float = 120.0
    cache_size: int = 2_000

    def __post_init__(self) -> None:
        for name, value in structs.asdict(self).items():
            if not value > 0:
                raise LocalError(
                    f"the limit {name} is {quote(value)}", rule="LA-6", hint="give more than 0"
                )
