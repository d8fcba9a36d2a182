"""Routing entries and the table that holds them (RE).

The life of an entry, all of it:

    put over nothing, or over a dead entry      created                             RE-2
    put over a live entry                       as REPLACES says, merged            RE-3 .. RE-9
    now >= expiry, not sticky                   dead at that very instant           RE-10
    remove, sticky or not                       gone                                RE-11
    the connection it points at closes          gone                                RE-12

Dead entries are invisible, whether or not `purge` has freed their memory yet. So a table is a pure
function of its puts, its removes and the time of the query, and can be rebuilt from the journal.
For that, `now` must never decrease from one call to the next; the caller guarantees this.
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
    """The address of one participant (RE-1).

    The constructor does not check its arguments; `of` does.

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
        """An entry from unchecked values; raises LocalError if they are invalid.

        >>> RoutingEntry.of("truck 7", Address(0, b"truck 7"), local=True)
        Traceback (most recent call last):
        waystation.errors.LocalError: invalid participant 'truck 7'; ...
        """
        entry = cls(participant, address, local, visible, check_expiry(expiry, rule="RE-1"), sticky)
        known_types = type(participant) is str and type(address) is Address
        if not (known_types and participant and is_plain(participant)):
            raise _unusable(entry)
        return entry

    def alive(self, now: Expiry) -> bool:
        """Whether the entry is alive at this time (RE-10)."""
        return now < self.expiry or self.sticky

    @classmethod
    def of_request(cls, sender: str, reply_to: Address, expiry: Expiry) -> RoutingEntry:
        """The entry for the sender of a request from a global transport (RE-13)."""
        return cls(sender, reply_to, local=False, visible=True, expiry=expiry)

    @classmethod
    def of_discovery(
        cls, participant: str, address: Address, expiry: Expiry = NEVER
    ) -> RoutingEntry:
        """The entry for a remote participant that a lookup found (RE-14)."""
        return cls(participant, address, local=False, visible=True, expiry=expiry)


class RouteKind(StrEnum):
    """Kinds of routing table changes, as in the journal."""

    PUT = "put"
    REMOVE = "remove"


class Refusal(StrEnum):
    """Why a put was refused."""

    LOCAL_STAYS = "a remote entry never replaces a local one"  # RE-6
    OWN_ADDRESS = "it is this node's own address"  # RE-15


class RouteChange(Struct, frozen=True, gc=False):
    """A change of a routing table, for the journal (OB-4).

    A put has the entry as requested, not as merged, since a replay of the journal merges again. A
    remove has the entry that was removed.
    """

    kind: RouteKind
    entry: RoutingEntry
    refusal: Refusal | None = None

    @property
    def accepted(self) -> bool:
        """Whether the change was made."""
        return self.refusal is None

    @property
    def journalled(self) -> bool:
        """Whether it belongs in the journal.

        A put refused for this node's own address does not: a replay of the journal does not know
        that address, and would accept the put.
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

    No operation is slower in a larger table (RE-17), except those that list it.
    """

    def __init__(self, own_addresses: Iterable[Address] = ()) -> None:
        self._own = frozenset(own_addresses)
        self._entries: dict[str, RoutingEntry] = {}
        # The participants at an address (RE-12): one as a str, several as the keys of a dict. Most
        # addresses have one, and a dict for each would double the table's memory.
        self._at_address: dict[Address, str | dict[str, None]] = {}
        # Entries that will expire: first in the order of the puts, then, once `purge` has sorted
        # them, by deadline. An extended entry comes out too early and is added again; a removed one
        # is ignored.
        self._unsorted: list[str] = []
        self._deadlines: Deadlines[str] = Deadlines()
        self._removed = 0  # since the last cleanup: how many obsolete items may be left

    def set_own_addresses(self, addresses: Iterable[Address]) -> None:
        """Set the addresses of this node itself, which are never routes to others (RE-15)."""
        self._own = frozenset(addresses)

    def __len__(self) -> int:
        """Number of entries in memory, including dead ones that `purge` has not freed."""
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

    def participants(self) -> list[str]:
        """Participants with an entry, live or not yet freed: to go through a table that changes."""
        return list(self._entries)

    def participants_at(self, address: Address, now: Expiry) -> list[str]:
        """The participants with this address."""
        held = self._at_address.get(address)
        if held is None:
            return []
        names = [held] if isinstance(held, str) else list(held)
        return [name for name in names if self._entries[name].alive(now)]

    def put(self, entry: RoutingEntry, now: Expiry) -> RouteChange:
        """Add or replace an entry; the result says whether it was accepted, and if not, why."""
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

    def put_new(self, entries: dict[str, RoutingEntry], address: Address) -> bool:
        """Add entries of participants that have none, not even a dead one; False if one has.

        The same as to put each of them. They are valid, at one address, and never expire.
        """
        if address in self._own or not self._entries.keys().isdisjoint(entries):
            return False
        self._entries.update(entries)
        names = dict.fromkeys(entries)
        held = self._at_address.get(address)
        if isinstance(held, dict):
            held.update(names)
        elif held is not None:
            self._at_address[address] = {held: None} | names
        else:
            self._at_address[address] = names if len(names) > 1 else next(iter(names))
        return True

    def remove(self, participant: str, now: Expiry) -> RouteChange | None:
        """Delete an entry, sticky or not (RE-11); returns None if there was none."""
        entry = self._entries.get(participant)
        if entry is None:
            return None
        self._forget(entry)
        if now < entry.expiry or entry.sticky:
            return RouteChange(_REMOVE, entry)
        return None

    def remove_address(self, address: Address, now: Expiry) -> list[RouteChange]:
        """Delete all entries with this address, for instance when its connection closes (RE-12)."""
        changes = (self.remove(name, now) for name in self.participants_at(address, now))
        return [change for change in changes if change is not None]

    def purge(self, now: Expiry) -> list[str]:
        """Free the memory of dead entries; return their participants. No other effect (RE-10)."""
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
            # Amortised: this many removals pay for a pass over the rest.
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
        """Add the deadlines of those that still exist and will expire."""
        for participant in participants:
            entry = self._entries.get(participant)
            if entry is not None and entry.expiry != NEVER and not entry.sticky:
                self._deadlines.file(participant, entry.expiry)


def _unusable(entry: RoutingEntry) -> LocalError:
    if type(entry.address) is not Address:
        return LocalError(
            f"invalid address {quote(entry.address)} for participant {quote(entry.participant)}",
            rule="RE-1",
            hint="give an Address",
        )
    return LocalError(
        f"invalid participant {quote(entry.participant)}",
        rule="RE-1",
        hint="give text without white space or =>, not starting with 0x",
    )
