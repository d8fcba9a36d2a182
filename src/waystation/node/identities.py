"""The identities that a node has and has met, and how its handshakes ended (ID-2, ID-5).

A peer whose key was rotated is known by its longer history from then on. Whoever comes with the
older one has a key that is no longer valid, stolen perhaps, and is refused; so is a history that
branches off. This lasts as long as the node runs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from waystation.wire.identity import Identity, PrivateIdentity

REMEMBERED: Final = 10_000
"""Number of identities with more than one key that are remembered; the oldest are forgotten."""


class Identities:
    """Its own identity, those of its peers, and the counts of handshakes by how they ended."""

    def __init__(self, own: PrivateIdentity | None, remembered: int = REMEMBERED) -> None:
        self.own = own
        self.handshakes: Counter[str] = Counter()  # proven, unproven, refused
        self._remembered = remembered
        self._rotated: OrderedDict[str, Identity] = OrderedDict()

    def objection(self, met: Identity, now: int) -> str:
        """Why an identity that a peer has proven is not accepted at this second; empty if it is."""
        if not met.is_valid(now):
            return f"the key of {met.identifier} has expired"
        known = self._rotated.get(met.identifier)
        if known is not None and not met.follows(known):
            return f"the key of {met.identifier} was replaced by another one"
        if len(met.hashes) > 1:
            self._rotated[met.identifier] = met
            self._rotated.move_to_end(met.identifier)
            if len(self._rotated) > self._remembered:
                self._rotated.popitem(last=False)
        return ""
