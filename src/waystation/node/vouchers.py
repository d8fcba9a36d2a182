"""The vouchers that a hub has for the names of its leaves, and those that it checked (ID-2).

Each is checked once, when it comes, and never for a message.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from waystation.core.claims import Claim
from waystation.errors import RemoteError
from waystation.wire.vouchers import Voucher

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

CHECKED: Final = 4_096
"""Number of vouchers whose signatures are remembered as checked; a hub above sends them again."""

UNPROVEN: Final = "unproven:"
"""How the owner of a claim begins that somebody says to be an identity's, and cannot show it."""


class Vouchers:
    """Who signed which names."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._owners: OrderedDict[Voucher, str] = OrderedDict()  # empty for a bad one
        self.kept: dict[tuple[bytes, str], Voucher] = {}  # by session and name, while claimed
        self._words: OrderedDict[str, Voucher] = OrderedDict()  # the latest of each owner

    def owner_of(self, voucher: Voucher) -> str:
        """The identifier of who signed a voucher; empty if nobody did, or with an invalid key."""
        known = self._owners.get(voucher)
        if known is None:
            known = self._owners[voucher] = self._checked(voucher)
            if len(self._owners) > CHECKED:
                self._owners.popitem(last=False)
        return known

    def _checked(self, voucher: Voucher) -> str:
        try:
            identity = voucher.owner()
        except RemoteError:
            return ""
        now = self._kernel.tick() // 1_000_000
        objection = self._kernel.links.identities.objection(identity, now)
        return "" if objection else identity.identifier

    def note_word(self, voucher: Voucher) -> tuple[str, int]:
        """Who says in a voucher that its older sessions have ended, and which is the lowest."""
        owner = self.owner_of(voucher)
        if owner:
            known = self._words.get(owner)
            if known is None or known.lowest <= voucher.lowest:
                self._words[owner] = voucher
                self._words.move_to_end(owner)
                if len(self._words) > CHECKED:
                    self._words.popitem(last=False)
        return owner, voucher.lowest

    def words_of(self, owners: Iterable[str]) -> list[Voucher]:
        """What these owners signed last of their sessions."""
        return [self._words[owner] for owner in owners if owner in self._words]

    def keep(self, session: bytes, name: str, voucher: Voucher) -> None:
        """Keep a voucher for a name that is claimed over a session."""
        self.kept[session, name] = voucher

    def forget(self, session: bytes, name: str) -> None:
        """Forget it, since the claim has ended."""
        self.kept.pop((session, name), None)

    def of(self, claim: Claim) -> Voucher | None:
        """The voucher for a claim."""
        found = self.kept.get((claim.session, claim.participant))
        return found if found is not None and found.number == claim.number else None
