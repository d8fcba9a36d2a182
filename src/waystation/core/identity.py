"""The identity of a group member, and its addresses (LA-1 .. LA-5, LA-8, LA-10).

A logical address is an identity; a mapping has the current physical addresses of an identity; the
cache holds the mappings that one node knows. How mappings are exchanged is in discovery.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from waystation.core.expiry import Expiry
from waystation.errors import LocalError, quote

Uuid: TypeAlias = bytes
"""16 bytes, the most significant first."""

Physical: TypeAlias = str
"""A network address of a member, `host:port`."""

MAX_CHANGES: Final = 32
"""Maximum number of cache changes in one message; the next one carries the rest."""


def uuid_text(uuid: Uuid) -> str:
    """A UUID as text.

    >>> uuid_text(bytes(range(16)))
    '00010203-0405-0607-0809-0a0b0c0d0e0f'
    """
    digits = uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class LogicalAddress(Struct, frozen=True, eq=False, gc=False):
    r"""A member's identity: its UUID; the name is for people and does not count (LA-1).

    >>> member = LogicalAddress(bytes(15) + b"\1", "truck-7")
    >>> member == LogicalAddress(bytes(15) + b"\1", "the red one"), str(member)
    (True, 'truck-7')
    """

    uuid: Uuid
    name: str

    @classmethod
    def fresh(cls, name: str | None, host: str, random_bytes: bytes) -> LogicalAddress:
        """A new identity, as for each connect (LA-2), from 16 random bytes.

        >>> str(LogicalAddress.fresh(None, "garage.example", bytes(range(16))))
        'garage-3599'
        """
        if not isinstance(random_bytes, bytes) or len(random_bytes) != 16:
            raise LocalError(
                f"invalid random bytes {quote(random_bytes)}",
                rule="LA-2",
                hint="give 16 bytes",
            )
        if name is None:
            name = f"{host.partition('.')[0]}-{int.from_bytes(random_bytes[14:], 'big')}"
        uuid = bytearray(random_bytes)
        uuid[6] = uuid[6] & 0x0F | 0x40  # version 4: random
        uuid[8] = uuid[8] & 0x3F | 0x80
        return cls(bytes(uuid), name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogicalAddress) and self.uuid == other.uuid

    def __ne__(self, other: object) -> bool:  # that of Struct compares all fields
        return not self == other

    def __hash__(self) -> int:
        return hash(self.uuid)

    def __str__(self) -> str:
        return self.name


def check_places(physical: Iterable[Physical]) -> tuple[Physical, ...]:
    """Return the physical addresses as a tuple; a single str is an error.

    >>> check_places("10.0.0.1:7800")
    Traceback (most recent call last):
    waystation.errors.LocalError: '10.0.0.1:7800' is a single physical address; give ...
    """
    if isinstance(physical, str):
        raise LocalError(
            f"{quote(physical)} is a single physical address",
            rule="LA-3",
            hint="give a list",
        )
    return tuple(physical)


class Mapping(Struct, frozen=True):
    """The physical addresses of a member, one or more (LA-3).

    `stamp` orders a member's own mappings; the newer one wins wherever they meet. Members of other
    implementations send none: theirs is 0.
    """

    member: LogicalAddress
    physical: tuple[Physical, ...]
    stamp: int = 0

    @property
    def uuid(self) -> Uuid:
        """The UUID of the member."""
        return self.member.uuid


def _replaces(new: Mapping, known: Mapping, *, first_hand: bool) -> bool:
    """Whether a mapping of a member replaces the known one."""
    if new.stamp or known.stamp:
        return new.stamp > known.stamp
    if not (new.physical and known.physical):
        return bool(new.physical)
    said, before = (new.physical, new.member.name), (known.physical, known.member.name)
    return first_hand and said != before


class Selection(Protocol):
    """A strategy that chooses among a member's physical addresses (LA-4); implement your own."""

    def choose(self, uuid: Uuid, physical: tuple[Physical, ...]) -> Physical:
        """Choose one of the addresses, which are never empty."""
        ...

    def failed(self, uuid: Uuid, physical: Physical) -> None:
        """An address stopped working."""
        ...

    def forget(self, uuid: Uuid) -> None:
        """A member is gone; forget its state."""
        ...


class First:
    """A strategy that always chooses the first address."""

    def choose(self, uuid: Uuid, physical: tuple[Physical, ...]) -> Physical:  # noqa: ARG002
        """The first address."""
        return physical[0]

    def failed(self, uuid: Uuid, physical: Physical) -> None:
        """Does nothing."""

    def forget(self, uuid: Uuid) -> None:
        """Does nothing: there is no state."""


class RoundRobin:
    """A strategy that chooses each address in turn."""

    def __init__(self) -> None:
        self._turns: dict[Uuid, int] = {}

    def choose(self, uuid: Uuid, physical: tuple[Physical, ...]) -> Physical:
        """The next address."""
        turn = self._turns.get(uuid, 0)
        self._turns[uuid] = turn + 1
        return physical[turn % len(physical)]

    def failed(self, uuid: Uuid, physical: Physical) -> None:
        """Does nothing: another address is next anyway."""

    def forget(self, uuid: Uuid) -> None:
        """Forget whose turn it is."""
        self._turns.pop(uuid, None)


class Failover:
    """A strategy that uses one address as long as it works, then the next (LA-4).

    An address that failed is used again when all others have failed as well.
    """

    def __init__(self) -> None:
        self._failed: dict[Uuid, dict[Physical, None]] = {}

    def choose(self, uuid: Uuid, physical: tuple[Physical, ...]) -> Physical:
        """The first address that has not failed, or the one that failed longest ago."""
        failed = self._failed.get(uuid, {})
        for candidate in physical:
            if candidate not in failed:
                return candidate
        return next(candidate for candidate in failed if candidate in physical)

    def failed(self, uuid: Uuid, physical: Physical) -> None:
        """Use this address last."""
        failed = self._failed.setdefault(uuid, {})
        failed.pop(physical, None)
        failed[physical] = None

    def forget(self, uuid: Uuid) -> None:
        """Forget the failures of its addresses."""
        self._failed.pop(uuid, None)


class AddressCache:
    r"""The mappings that one node knows (LA-3).

    >>> me = Mapping(LogicalAddress(bytes(15) + b"\1", "hub"), ("10.0.0.1:7800",))
    >>> cache = AddressCache(me)
    >>> truck = Mapping(LogicalAddress(bytes(15) + b"\2", "truck-7"), ("10.0.0.7:7800",))
    >>> cache.learn(truck), cache.learn(truck), cache.select(truck.uuid)
    (True, False, '10.0.0.7:7800')

    Members that left are only marked, and their mappings can still be used until `age_ms` after
    they left, or until the cache has more than `capacity` entries. Other members, and the own
    mapping, are never evicted. A member that said goodbye (LA-8) is forgotten at once, and mappings
    of it are ignored for `age_ms`, since its UUID will not come back (LA-2). Call `purge`
    periodically, for instance once a minute.
    """

    def __init__(
        self,
        own: Mapping,
        selection: Selection | None = None,
        *,
        age_ms: int = 120_000,
        capacity: int = 2_000,
    ) -> None:
        self.own = own
        self._selection = Failover() if selection is None else selection
        self._age_ms = age_ms
        self._capacity = capacity
        self._mappings: dict[Uuid, Mapping] = {own.uuid: own}
        self._left: OrderedDict[Uuid, Expiry] = OrderedDict()  # marked: when they left
        self._gone: OrderedDict[Uuid, Expiry] = OrderedDict()  # invalidated: when
        # LA-5: changes are numbered; for each member, the number of the last change sent is kept.
        self._changes = 1
        self._changed: dict[Uuid, int] = {own.uuid: 1}
        self._news: list[tuple[int, Uuid]] = [(1, own.uuid)]  # by number; may have obsolete items
        self._told: dict[Uuid, int] = {}
        self._told_all = 0

    def __len__(self) -> int:
        return len(self._mappings)

    def lookup(self, uuid: Uuid) -> Mapping | None:
        """The mapping of a member, or None."""
        return self._mappings.get(uuid)

    def mappings(self) -> list[Mapping]:
        """All mappings, starting with the own one."""
        return list(self._mappings.values())

    def select(self, uuid: Uuid) -> Physical | None:
        """The physical address to use for a member, or None if none is known."""
        mapping = self._mappings.get(uuid)
        if mapping is None or not mapping.physical:
            return None
        if len(mapping.physical) == 1:
            return mapping.physical[0]
        return self._selection.choose(uuid, mapping.physical)

    def failed(self, uuid: Uuid, physical: Physical) -> None:
        """Tell the strategy that a physical address stopped working (LA-4)."""
        if uuid in self._mappings:
            self._selection.failed(uuid, physical)

    def move(self, physical: Iterable[Physical]) -> Mapping:
        """Change the own physical addresses; the identity stays (LA-10)."""
        self.own = Mapping(self.own.member, check_places(physical), self.own.stamp + 1)
        self._store(self.own)
        return self.own

    def learn(self, mapping: Mapping, *, first_hand: bool = True) -> bool:
        """Learn a mapping; returns True if it was new (LA-7).

        A newer stamp always wins, even with equal addresses. Without stamps, a mapping from the
        member itself (`first_hand`) replaces a known one, a mapping from others only adds an
        unknown member, and a mapping without addresses erases none.
        """
        uuid = mapping.uuid
        if uuid in self._gone or uuid == self.own.uuid:
            return False
        known = self._mappings.get(uuid)
        if known is not None:
            if first_hand:
                self._left.pop(uuid, None)  # it is alive
            if not _replaces(mapping, known, first_hand=first_hand):
                return False
            if mapping.physical != known.physical:
                self._selection.forget(uuid)  # old failures say nothing about the new addresses
        self._store(mapping)
        if known is None:
            self._told[uuid] = self._changes  # it learns the earlier changes when it joins
        return True

    def leave(self, uuid: Uuid, now: Expiry) -> None:
        """Mark a member as having left: its mapping may be evicted after `age_ms`."""
        if uuid in self._mappings and uuid != self.own.uuid:
            self._left.setdefault(uuid, now)

    def retain(self, members: Iterable[Uuid], now: Expiry) -> None:
        """Mark the members that are not in this list as having left, and unmark those that are."""
        staying = set(members)
        for uuid in self._mappings:
            if uuid in staying:
                self._left.pop(uuid, None)
            else:
                self.leave(uuid, now)

    def invalidate(self, uuid: Uuid, now: Expiry) -> bool:
        """Forget a member that said goodbye (LA-8); returns True if it was known."""
        if uuid == self.own.uuid:
            return False
        self._gone.setdefault(uuid, now)
        if len(self._gone) > self._capacity:
            self._gone.popitem(last=False)
        return self._evict(uuid)

    def said_goodbye(self, uuid: Uuid) -> bool:
        """Whether a member is known to have closed, and will not come back (LA-8)."""
        return uuid in self._gone

    def purge(self, now: Expiry) -> list[Uuid]:
        """Evict members that left long ago, or first if there are too many; returns their UUIDs."""
        evicted = []
        while self._left:
            uuid, left = next(iter(self._left.items()))
            if now - left < self._age_ms and len(self._mappings) <= self._capacity:
                break
            self._evict(uuid)
            evicted.append(uuid)
        while self._gone and now - next(iter(self._gone.values())) >= self._age_ms:
            self._gone.popitem(last=False)
        return evicted

    def changes_for(self, uuid: Uuid) -> tuple[Mapping, ...]:
        """The cache changes for the next message to this member (LA-5), at most MAX_CHANGES."""
        told = max(self._told.get(uuid, self._changes), self._told_all)
        if told == self._changes:
            return ()
        changes, self._told[uuid] = self._changes_since(told)
        return tuple(change for change in changes if change.uuid != uuid)

    def changes_for_all(self) -> tuple[Mapping, ...]:
        """The cache changes for the next message to all members (LA-5)."""
        if self._told_all == self._changes:
            return ()
        changes, self._told_all = self._changes_since(self._told_all)
        return changes

    def _changes_since(self, told: int) -> tuple[tuple[Mapping, ...], int]:
        """The changes after the given number, and the number of the last of them."""
        chosen: list[Mapping] = []
        start = bisect_right(self._news, told, key=itemgetter(0))
        for number, uuid in islice(self._news, start, None):
            if self._changed.get(uuid) == number:  # otherwise it changed again, or is gone
                chosen.append(self._mappings[uuid])
                if len(chosen) == MAX_CHANGES:
                    return tuple(chosen), number
        return tuple(chosen), self._changes

    def _store(self, mapping: Mapping) -> None:
        uuid = mapping.uuid
        self._mappings[uuid] = mapping
        self._changes += 1
        self._changed[uuid] = self._changes
        self._news.append((self._changes, uuid))
        if len(self._news) > 64 + 2 * len(self._changed):
            self._news = [news for news in self._news if self._changed.get(news[1]) == news[0]]

    def _evict(self, uuid: Uuid) -> bool:
        known = self._mappings.pop(uuid, None)
        self._left.pop(uuid, None)
        self._told.pop(uuid, None)
        self._changed.pop(uuid, None)
        self._selection.forget(uuid)
        return known is not None
