"""Routing entries and the table that holds them (RE).

The life of an entry, all of it:

    put over nothing, or over a dead entry      created                             RE-2
    put over a live entry                       as REPLACES says, merged            RE-3 .. RE-9
    now >= expiry, not sticky                   dead at that very instant           RE-10
    remove, sticky or not                       gone                                RE-11
    the connection it points at closes          gone                                RE-12

Dead entries are absent for every question, whether or not `purge` has freed their memory yet. So a
table is a pure function of its puts, its removes and the instant it is asked at, and anybody who
has the journal can rebuild it. For that, `now` must never go back from one call to the next;
whoever brings the clock sees to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from waystation.core.address import Address, is_plain
from waystation.core.expiry import LAST_INSTANT, NEVER, Deadlines, Expiry, check_expiry
from waystation.errors import LocalError, quote

REPLACES: Final[Mapping[tuple[bool, bool], bool]] = {
    # (the existing entry is local, the new one is local): may the new one replace it?
    (True, True): True,  # RE-3
    (False, True): True,  # RE-4
    (False, False): True,  # RE-5
    (True, False): False,  # RE-6
}


class RoutingEntry(Struct, frozen=True, gc=False):
    """How one participant is reached (RE-1).

    The constructor takes what it is given; `of` checks that messages can find the participant.

    >>> entry = RoutingEntry("truck-7", Address(1, b"10.0.0.7:4000"), local=False, expiry=5_000)
    >>> entry.alive(4_999), entry.alive(5_000)
    (True, False)
    """

    participant: str
    address: Address
    local: bool
    visible: bool = False
    expiry: Expiry = NEVER
    sticky: bool = False

    @classmethod
    def of(
        cls,
        participant: str,
        address: Address,
        *,
        local: bool,
        visible: bool = False,
        expiry: Expiry = NEVER,
        sticky: bool = False,
    ) -> RoutingEntry:
        """An entry from values that nobody has checked yet.

        >>> RoutingEntry.of("truck 7", Address(0, b"truck 7"), local=True)
        Traceback (most recent call last):
        waystation.errors.LocalError: the entry for ... has the participant 'truck 7'; ...
        """
        entry = cls(participant, address, local, visible, check_expiry(expiry, rule="RE-1"), sticky)
        known_types = type(participant) is str and type(address) is Address
        if not (known_types and participant and is_plain(participant)):
            raise _unusable(entry)
        return entry

    def alive(self, now: Expiry) -> bool:
        """Whether the entry counts at this instant (RE-10)."""
        return now < self.expiry or self.sticky

    @classmethod
    def of_request(cls, sender: str, reply_to: Address, expiry: Expiry) -> RoutingEntry:
        """The way back to the sender of a request from a global transport (RE-13)."""
        return cls(sender, reply_to, local=False, visible=True, expiry=expiry)

    @classmethod
    def of_discovery(
        cls, participant: str, address: Address, expiry: Expiry = NEVER
    ) -> RoutingEntry:
        """A participant elsewhere, as a look-up found it (RE-14)."""
        return cls(participant, address, local=False, visible=True, expiry=expiry)


class RouteKind(StrEnum):
    """What happened to a routing table, in the journal's words."""

    PUT = "put"
    REMOVE = "remove"


class Refusal(StrEnum):
    """Why a put changed nothing."""

    LOCAL_STAYS = "a remote entry never replaces a local one"  # RE-6
    OWN_ADDRESS = "it is this node's own address"  # RE-15


class RouteChange(Struct, frozen=True, gc=False):
    """One event of a routing table, for the journal to store (OB-4).

    A put stands here as it was asked for, not as it was merged: whoever replays the journal merges
    again. A remove shows the entry that went.
    """

    kind: RouteKind
    entry: RoutingEntry
    refusal: Refusal | None = None

    @property
    def accepted(self) -> bool:
        """Whether the table did as it was asked."""
        return self.refusal is None

    @property
    def journalled(self) -> bool:
        """Whether it belongs in the journal.

        A put refused for this node's own address does not: who replays the journal does not know
        that address, and would take the put for a good one.
        """
        return self.refusal is not Refusal.OWN_ADDRESS


_PUT: Final = RouteKind.PUT
_REMOVE: Final = RouteKind.REMOVE


class RoutingTable:
    """The routing entries of one node.

    >>> table = RoutingTable()
    >>> worker = RoutingEntry("echo", Address(0, b"echo"), local=True)
    >>> table.put(worker, now=0).accepted
    True
    >>> elsewhere = RoutingEntry("echo", Address(1, b"10.0.0.9:4000"), local=False)
    >>> print(table.put(elsewhere, now=1).refusal)
    a remote entry never replaces a local one
    >>> table.lookup("echo", now=2) == worker
    True

    No operation costs more in a larger table (RE-17), but for `snapshot`, which lists it.
    """

    def __init__(self, own_addresses: Iterable[Address] = ()) -> None:
        self._own = frozenset(own_addresses)
        self._entries: dict[str, RoutingEntry] = {}
        # Who points at an address (RE-12): one participant as such, several as a dict's keys.
        # Most addresses have one, and a dict for each would double the table's memory.
        self._at_address: dict[Address, str | dict[str, None]] = {}
        # Who will expire: first in the order of the puts, then, when `purge` has sorted them, by
        # deadline. An extended entry is found there too early, and is then filed anew; a removed
        # one is not found at all any more.
        self._unsorted: list[str] = []
        self._deadlines: Deadlines[str] = Deadlines()
        self._removed = 0  # since the last tidying: how many in there may be left over

    def set_own_addresses(self, addresses: Iterable[Address]) -> None:
        """Say where this node itself is reached: never a route to somebody else (RE-15)."""
        self._own = frozenset(addresses)

    def __len__(self) -> int:
        """How many entries are held in memory, dead ones that `purge` has not freed included."""
        return len(self._entries)

    def lookup(self, participant: str, now: Expiry) -> RoutingEntry | None:
        """The live entry of a participant, or None."""
        entry = self._entries.get(participant)
        if entry is not None and (now < entry.expiry or entry.sticky):
            return entry
        return None

    def contains(self, participant: str, now: Expiry) -> bool:
        """Whether a participant has a live entry."""
        return self.lookup(participant, now) is not None

    def snapshot(self, now: Expiry) -> dict[str, RoutingEntry]:
        """All live entries by participant."""
        return {name: entry for name, entry in self._entries.items() if entry.alive(now)}

    def participants_at(self, address: Address, now: Expiry) -> list[str]:
        """Who is reached at this address."""
        held = self._at_address.get(address)
        if held is None:
            return []
        names = [held] if isinstance(held, str) else list(held)
        return [name for name in names if self._entries[name].alive(now)]

    def put(self, entry: RoutingEntry, now: Expiry) -> RouteChange:
        """Ask for an entry; the answer says whether it was taken, and if not, why."""
        participant, address, expiry = entry.participant, entry.address, entry.expiry
        ends = type(expiry) is int
        if not 0 <= expiry <= LAST_INSTANT if ends else expiry != NEVER:
            check_expiry(expiry, rule="RE-1")
        if address in self._own:
            return RouteChange(_PUT, entry, Refusal.OWN_ADDRESS)
        existing = self._entries.get(participant)
        if existing is not None:
            if now < existing.expiry or existing.sticky:
                return self._merge(existing, entry)
            self._forget(existing)
        elif type(participant) is not str or type(address) is not Address or not participant:
            raise _unusable(entry)
        self._entries[participant] = entry
        held = self._at_address.setdefault(address, participant)
        if held is not participant:
            self._join(participant, address)
        if ends:
            self._unsorted.append(participant)
        return RouteChange(_PUT, entry)

    def remove(self, participant: str, now: Expiry) -> RouteChange | None:
        """Delete an entry, sticky or not (RE-11); None when there was none."""
        entry = self._entries.get(participant)
        if entry is None:
            return None
        self._forget(entry)
        if now < entry.expiry or entry.sticky:
            return RouteChange(_REMOVE, entry)
        return None

    def remove_address(self, address: Address, now: Expiry) -> list[RouteChange]:
        """Delete every entry that points at an address, as when its connection closes (RE-12)."""
        changes = (self.remove(name, now) for name in self.participants_at(address, now))
        return [change for change in changes if change is not None]

    def purge(self, now: Expiry) -> list[str]:
        """Free the memory of dead entries; tells whose. Nothing else changes by it (RE-10)."""
        unsorted, self._unsorted = self._unsorted, []
        self._file(unsorted)
        freed, extended = [], []
        for participant in self._deadlines.take_due(now):
            entry = self._entries.get(participant)
            if entry is None:
                continue  # removed meanwhile
            if entry.alive(now):
                extended.append(participant)
            else:
                del self._entries[participant]
                self._leave(participant, entry.address)
                freed.append(participant)
        self._file(extended)
        return freed

    def _merge(self, existing: RoutingEntry, entry: RoutingEntry) -> RouteChange:
        if not REPLACES[existing.local, entry.local]:
            return RouteChange(_PUT, entry, Refusal.LOCAL_STAYS)
        merged = entry
        expiry, sticky = entry.expiry, existing.sticky or entry.sticky  # RE-8
        if expiry < existing.expiry:  # noqa: PLR1730 - max() takes three times as long
            expiry = existing.expiry  # RE-7
        if expiry != entry.expiry or sticky is not entry.sticky:
            merged = RoutingEntry(
                entry.participant, entry.address, entry.local, entry.visible, expiry, sticky
            )
        self._entries[entry.participant] = merged
        if merged.address != existing.address:
            self._leave(existing.participant, existing.address)
            self._join(merged.participant, merged.address)
        return RouteChange(_PUT, entry)

    def _forget(self, entry: RoutingEntry) -> None:
        participant = entry.participant
        del self._entries[participant]
        self._leave(participant, entry.address)
        self._removed = removed = self._removed + 1
        if removed > 1024 and removed > len(self._entries):
            # So many removals have paid for going through the rest.
            self._removed = 0
            self._deadlines = Deadlines()
            self._unsorted = list(self._entries)

    def _join(self, participant: str, address: Address) -> None:
        held = self._at_address.setdefault(address, participant)
        if isinstance(held, dict):
            held[participant] = None
        elif held is not participant:
            self._at_address[address] = {held: None, participant: None}

    def _leave(self, participant: str, address: Address) -> None:
        held = self._at_address[address]
        if isinstance(held, dict):
            del held[participant]
            if held:
                return
        del self._at_address[address]

    def _file(self, participants: list[str]) -> None:
        """File those that are still there, and will expire, under their deadline."""
        for participant in participants:
            entry = self._entries.get(participant)
            if entry is not None and entry.expiry != NEVER and not entry.sticky:
                self._deadlines.file(participant, entry.expiry)


def _unusable(entry: RoutingEntry) -> LocalError:
    if type(entry.address) is not Address:
        return LocalError(
            f"the entry for {quote(entry.participant)} points at {quote(entry.address)}",
            rule="RE-1",
            hint="give an Address",
        )
    return LocalError(
        f"the entry for {entry.address} has the participant {quote(entry.participant)}",
        rule="RE-1",
        hint="give a text without white space, =>, or 0x in front, as an address is written",
    )
