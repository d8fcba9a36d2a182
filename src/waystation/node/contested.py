"""Contested names: what several owners claim, for those who watch a node (CL-4, CL-6).

What is claimed is kept and decided in core/claims.py; here it is counted and described.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from waystation.core.claims import Claim, ClaimChange, Claims
from waystation.core.damping import Damping


class Standby(Struct, frozen=True):
    """A claim that waits for its turn: the node where the participant lives, and our session."""

    node: str
    session: str
    proven: bool | None = None  # whether it has proven who it is; None if its node did not tell


class Contest(Struct, frozen=True):
    """A name that several owners claim, and who has it at the moment."""

    participant: str
    holder: str  # the node where the participant lives
    session: str  # that messages to it go over
    since: int  # milliseconds since the epoch
    standbys: tuple[Standby, ...]  # who is next comes first
    proven: bool | None = None  # whether the holder has proven who it is


class ClaimsSnapshot(Struct, frozen=True):
    """The claims to names at a node, and what became of them since its start."""

    claims: int = 0
    standbys: int = 0  # claims of others than those who have the names
    contested: int = 0  # names that several owners claim
    held_back: int = 0  # names that change so often that parents are told later (CL-3)
    probes: int = 0  # how often a holder was asked whether it is alive (CL-6)
    silent: int = 0  # how often it did not answer
    refused: dict[str, int] = {}  # claims, by reason


_Known: TypeAlias = tuple[int, int]
"""Since when, and how many claims stand by."""


class ContestedNames:
    """The contested names of a node; whoever changes its claims tells each change.

    >>> claims = Claims("hub")
    >>> contested = ContestedNames(claims, Damping())
    >>> first = Claim("truck-7", b"s1", "leaf", "c0ffee", 1, ("leaf",))
    >>> other = Claim("truck-7", b"s2", "thief", "beef", 1, ("thief",))
    >>> for claim in (first, other):
    ...     contested.note(claims.announce(claim, now=5), now=5)
    >>> contested.about("truck-7", now=6)
    Contest(participant='truck-7', holder='leaf', session='s1', since=5, ...)
    """

    def __init__(
        self,
        claims: Claims,
        damping: Damping,
        is_proven: Callable[[Claim], bool | None] = lambda _claim: None,
    ) -> None:
        self.probes = 0
        self.silent = 0
        self.refused: Counter[str] = Counter()
        self._claims = claims
        self._damping = damping
        self._is_proven = is_proven
        self._known: dict[str, _Known] = {}

    def note(self, change: ClaimChange, now: int) -> None:
        """Take what became of the claims to a name; `now` in milliseconds."""
        name = change.participant
        known = self._known.get(name)
        if known is None and change.contest is None:
            return  # mostly
        waiting = len(self._claims.standbys(name, now))
        if waiting:
            self._known[name] = (now if known is None else known[0], waiting)
        else:
            self._known.pop(name, None)

    def __len__(self) -> int:
        """Number of contested names."""
        return len(self._known)

    def __contains__(self, participant: str) -> bool:
        return participant in self._known

    def listed(self) -> list[str]:
        """The contested names, those that have been so for longest first."""
        return list(self._known)

    def about(self, participant: str, now: int) -> Contest | None:
        """Who has a name and who wants it; None if it is not contested any more."""
        known = self._known.get(participant)
        waiting = self._claims.standbys(participant, now)
        best = self._claims.best(participant, now)
        if known is None or best is None or not waiting:
            return None
        standbys = tuple(map(self._standby, waiting))
        proven = self._is_proven(best)
        return Contest(participant, best.origin, _session(best), known[0], standbys, proven)

    def proven(self, participant: str, now: int) -> bool | None:
        """Whether who has a name has proven who it is (ID-2); None if nobody claims it."""
        best = self._claims.best(participant, now)
        return None if best is None else self._is_proven(best)

    def _standby(self, claim: Claim) -> Standby:
        return Standby(claim.origin, _session(claim), self._is_proven(claim))

    def snapshot(self) -> ClaimsSnapshot:
        """All numbers, at this moment."""
        return ClaimsSnapshot(
            self._claims.count,
            sum(waiting for _, waiting in self._known.values()),
            len(self._known),
            len(self._damping),
            self.probes,
            self.silent,
            dict(self.refused),
        )


def _session(claim: Claim) -> str:
    return claim.session.decode(errors="replace")
