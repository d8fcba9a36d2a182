"""A directory of providers: who offers what, by domain and name, and at which address.

Pure: the caller passes the time. An entry without an address is known only at this node; one with
an address was registered globally and is reached there. Each tells who listed it, since nobody else
may replace or remove it while it lives (CL-5); whether it does is for the caller to say.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from waystation.core.address import is_plain
from waystation.core.expiry import NEVER, Deadlines, Expiry, check_expiry
from waystation.core.who import Who
from waystation.errors import LocalError, quote


class Scope(StrEnum):
    """Where to look for providers."""

    LOCAL_ONLY = "LOCAL_ONLY"
    LOCAL_THEN_GLOBAL = "LOCAL_THEN_GLOBAL"  # elsewhere only if none is found here
    LOCAL_AND_GLOBAL = "LOCAL_AND_GLOBAL"
    GLOBAL_ONLY = "GLOBAL_ONLY"


class Provider(Struct, frozen=True, gc=False):
    """A participant and what it offers.

    >>> Provider("truck-7", "fleet", "position").participant
    'truck-7'
    """

    participant: str
    domain: str
    name: str
    address: str | None = None  # of the node behind which it is reached; None for this node
    expiry: int | None = None  # in milliseconds; None for never
    details: str = ""  # what else it says of itself, in a format that those who look for it know

    def ends(self) -> Expiry:
        """When it expires unless it registers again."""
        return NEVER if self.expiry is None else self.expiry


class Lister(Struct, frozen=True, gc=False):
    """Who listed a provider: two words count as those of the same if owner or speaker agree.

    The owner is whose participant it is (CL-1), wherever it is connected. The speaker told this
    node: the owner itself, or a hub, which answers for its leaves.
    """

    owner: str = ""
    speaker: str = ""
    node: str = ""  # the name of the node where the word began, for people
    session: bytes = b""  # the local address of the session that it came over
    who: Who | None = None  # what its peer had proven; None for this node itself

    def is_same(self, other: Lister) -> bool:
        """Whether it may replace or remove what another listed."""
        return self.owner == other.owner or bool(self.speaker and self.speaker == other.speaker)


NOBODY: Final = Lister()


class Directory:
    """Providers by participant, found by domain and name.

    >>> directory = Directory()
    >>> directory.register(Provider("truck-7", "fleet", "position", expiry=5_000))
    >>> [found.participant for found in directory.lookup("fleet", "position", now=4_999)]
    ['truck-7']
    >>> directory.lookup("fleet", "position", now=5_000)
    []

    A participant has one entry: registering it again replaces that.
    """

    def __init__(self) -> None:
        self._providers: dict[str, Provider] = {}
        self._listers: dict[str, Lister] = {}
        self._offers: dict[tuple[str, str], dict[str, None]] = {}
        self._deadlines: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        """Number of entries, including expired ones that `purge` has not removed."""
        return len(self._providers)

    def register(self, provider: Provider, lister: Lister = NOBODY) -> None:
        """Add or replace a provider."""
        _check(provider)
        self.leave(provider.participant)
        self._providers[provider.participant] = provider
        self._listers[provider.participant] = lister
        self._offers.setdefault((provider.domain, provider.name), {})[provider.participant] = None
        if provider.expiry is not None:
            self._deadlines.file(provider.participant, provider.expiry)

    def leave(self, participant: str) -> Provider | None:
        """Remove a provider and return it; None if it was not registered."""
        provider = self._providers.pop(participant, None)
        if provider is not None:
            del self._listers[participant]
            offered = self._offers[provider.domain, provider.name]
            del offered[participant]
            if not offered:
                del self._offers[provider.domain, provider.name]
        return provider

    def find(self, participant: str, now: Expiry) -> Provider | None:
        """The entry of a participant, or None."""
        provider = self._providers.get(participant)
        return provider if provider is not None and now < provider.ends() else None

    def listers(self) -> list[tuple[str, Lister]]:
        """All participants, with who listed them."""
        return list(self._listers.items())

    def listed_by_another(self, participant: str, lister: Lister, now: Expiry) -> Lister | None:
        """Who else listed a participant, unless that has expired; None if nobody else did."""
        if self.find(participant, now) is None or lister.is_same(self._listers[participant]):
            return None
        return self._listers[participant]

    def lookup(self, domain: str, name: str, now: Expiry) -> list[Provider]:
        """The providers of this domain and name, the earliest registered first."""
        offered = self._offers.get((domain, name), {})
        providers = (self._providers[participant] for participant in offered)
        return [provider for provider in providers if now < provider.ends()]

    def purge(self, now: Expiry) -> list[str]:
        """Remove expired entries; returns the names of their participants."""
        freed = []
        for participant in self._deadlines.take_due(now):
            provider = self._providers.get(participant)
            if provider is not None and now >= provider.ends():  # not registered again meanwhile
                self.leave(participant)
                freed.append(participant)
        return freed


def _check(provider: Provider) -> None:
    check_expiry(provider.ends(), rule="RE-14")
    for text in (provider.participant, provider.domain, provider.name):
        if not text or not is_plain(text):
            raise LocalError(
                f"invalid participant, domain or name {quote(text)}",
                rule="RE-14",
                hint="give text without white space or =>, not starting with 0x",
            )
