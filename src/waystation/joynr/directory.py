"""The global directory of joynr: which providers there are at a broker, and on which topics.

Cluster controllers call it over the broker. A provider is listed until it is removed, or until it
expires because its cluster controller no longer says that it lives. A cluster controller is known
by its topic. What is listed stands in memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import structs

from waystation.core.expiry import Deadlines
from waystation.core.grants import Action
from waystation.core.message import Message
from waystation.errors import DecodeError
from waystation.joynr.service import Service
from waystation.node import Node
from waystation.node.permissions import Grantee
from waystation.wire.joynr import decode_address
from waystation.wire.joynr_frames import DIRECTORY, name_of
from waystation.wire.joynr_services import (
    GlobalDiscoveryEntry,
    Parameters,
    failed_call,
    no_entry,
)

ENTRIES: Final = 100_000
"""Maximum number of providers in a directory."""

LIFETIME: Final = 6 * 7 * 24 * 3_600_000
"""Milliseconds that a provider is listed, from the last time that it was seen: six weeks."""


ITSELF: Final = Grantee()
"""The node that has the directory."""


class GlobalEntries:
    """The providers of a directory: found by participant, by what they offer, by their node."""

    def __init__(self, limit: int = ENTRIES) -> None:
        self._limit = limit
        self._entries: dict[str, GlobalDiscoveryEntry] = {}
        self._offers: dict[tuple[str, str], dict[str, None]] = {}
        self._at: dict[str, dict[str, None]] = {}  # by the topic of their cluster controller
        self._by: dict[str, Grantee] = {}  # who listed them
        self._deadlines: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        """How many there are, including those that have expired since the last change."""
        return len(self._entries)

    def add(self, entry: GlobalDiscoveryEntry, now: int, by: Grantee = ITSELF) -> None:
        """List a provider, in the place of what was listed of it; CallError if that cannot be."""
        self._purge(now)
        topic = _topic_of(entry)
        if len(self._entries) >= self._limit and entry.participant_id not in self._entries:
            raise failed_call(f"the directory is full: it has {self._limit} entries")
        self.remove((entry.participant_id,))
        entry = structs.replace(
            entry, last_seen_date_ms=now, expiry_date_ms=max(entry.expiry_date_ms, now + LIFETIME)
        )
        self._put(entry, topic)
        self._by[entry.participant_id] = by

    def remove(self, participants: Iterable[str]) -> None:
        """List some participants no longer."""
        for name in participants:
            entry = self._entries.pop(name, None)
            if entry is not None:
                _leave(self._offers, (entry.domain, entry.interface_name), name)
                _leave(self._at, _topic_of(entry), name)
                del self._by[name]

    def listers(self) -> list[tuple[str, Grantee]]:
        """All participants, with who listed them."""
        return list(self._by.items())

    def lookup(
        self, domains: Iterable[str], interface: str, now: int
    ) -> list[GlobalDiscoveryEntry]:
        """Who offers an interface in one of these domains."""
        names = (name for domain in domains for name in self._offers.get((domain, interface), ()))
        found = (self._entries[name] for name in names)
        return [entry for entry in found if now < entry.expiry_date_ms]

    def find(self, participant: str, now: int) -> GlobalDiscoveryEntry | None:
        """The entry of a participant."""
        entry = self._entries.get(participant)
        return entry if entry is not None and now < entry.expiry_date_ms else None

    def touch(self, topic: str, participants: Sequence[str] | None, now: int) -> None:
        """Note that what is listed at a topic lives: all of it, or these."""
        there = self._at.get(topic, {})
        for name in list(there) if participants is None else participants:
            if name in there:
                seen = structs.replace(
                    self._entries[name], last_seen_date_ms=now, expiry_date_ms=now + LIFETIME
                )
                self._entries[name] = seen
                self._deadlines.file(name, seen.expiry_date_ms)

    def listed_at(self, topic: str) -> list[str]:
        """The participants that are listed at a topic."""
        return list(self._at.get(topic, ()))

    def stale(self, topic: str, before: int) -> list[str]:
        """What is listed at a topic and was last seen before a time."""
        return [n for n in self.listed_at(topic) if self._entries[n].last_seen_date_ms < before]

    def _put(self, entry: GlobalDiscoveryEntry, topic: str) -> None:
        name = entry.participant_id
        self._entries[name] = entry
        self._offers.setdefault((entry.domain, entry.interface_name), {})[name] = None
        self._at.setdefault(topic, {})[name] = None
        self._deadlines.file(name, entry.expiry_date_ms)

    def _purge(self, now: int) -> None:
        for name in self._deadlines.take_due(now):
            entry = self._entries.get(name)
            if entry is not None and now >= entry.expiry_date_ms:  # not seen again meanwhile
                self.remove((name,))


class JoynrDirectory(Service):
    """A node as the global directory of all joynr nodes at its broker."""

    name = DIRECTORY

    def __init__(self, node: Node, *, limit: int = ENTRIES) -> None:
        super().__init__(node)
        self.entries = GlobalEntries(limit)
        self._unwatch: Callable[[], None] | None = None

    def start(self) -> None:
        """Answer from now on."""
        super().start()
        self._unwatch = self.node.watch_grants(self._take_back)

    async def stop(self) -> None:
        """Answer no more."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        await super().stop()

    def _take_back(self) -> None:
        """List no longer what is not granted any more to who listed it (ID-5)."""
        self.entries.remove(
            participant
            for participant, by in self.entries.listers()
            if not self.node.may_still(by, Action.REGISTER, name_of(participant))
        )

    async def call(self, method: str, parameters: Parameters, message: Message) -> Any:
        """Serve a call of a cluster controller."""
        now = self.node.now()
        if method == "add":
            entries = _entries_in(parameters)
            self.check_granted((entry.participant_id for entry in entries), message)
            by = self.node.grantee_of(message)
            for entry in entries:
                self.entries.add(entry, now, by)
        elif method == "lookup" and len(parameters) > 1 and parameters.is_text(1):
            domains, interface = parameters.texts(0), parameters.at(1, str)
            return self.entries.lookup(domains, interface, now)
        elif method == "lookup":
            participant = parameters.at(0, str)
            found = self.entries.find(participant, now)
            if found is None:
                raise no_entry(participant)
            return found
        elif method == "remove":
            participants = parameters.texts(0)
            self.check_granted(participants, message)
            self.entries.remove(participants)
        elif method == "touch":
            some = parameters.texts(1) if len(parameters) > 1 else None
            topic = parameters.at(0, str)
            self.check_granted(self.entries.listed_at(topic) if some is None else some, message)
            self.entries.touch(topic, some, now)
        elif method == "removeStale":
            stale = self.entries.stale(parameters.at(0, str), parameters.at(1, int))
            self.check_granted(stale, message)
            self.entries.remove(stale)
        else:
            return NotImplemented
        return None


def _entries_in(parameters: Parameters) -> tuple[GlobalDiscoveryEntry, ...]:
    """One entry or several."""
    if parameters.is_list(0):
        return parameters.at(0, tuple[GlobalDiscoveryEntry, ...])
    return (parameters.at(0, GlobalDiscoveryEntry),)


def _topic_of(entry: GlobalDiscoveryEntry) -> str:
    """By which a cluster controller is known."""
    try:
        return decode_address(entry.address).topic
    except DecodeError as error:
        raise failed_call(f"{entry.participant_id} has no address at a broker: {error}") from None


def _leave(groups: dict[Any, dict[str, None]], key: object, name: str) -> None:
    del groups[key][name]
    if not groups[key]:
        del groups[key]
