"""Who a peer is, as far as it has proven that (ID-2).

A peer proves itself by an identity key, by the certificate of its connection, by a token of its
own, or by several of them. Whatever else it says of itself, its name first of all, is its word.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from waystation.core.address import Route
from waystation.core.address_types import is_session_name


class Who(Struct, frozen=True, gc=False):
    """What a peer has proven.

    >>> str(Who(certificate=("truck-7.example",), token="truck-*"))
    'certificate:truck-7.example'
    >>> bool(Who()), str(Who())
    (False, '')
    """

    identity: str | None = None  # its identifier
    certificate: tuple[str, ...] = ()  # the names in it
    token: str | None = None  # the pattern of names that it belongs to

    def __bool__(self) -> bool:
        return bool(self.identity or self.certificate or self.token)

    def __str__(self) -> str:
        if self.identity:
            return self.identity
        if self.certificate:
            return f"certificate:{self.certificate[0]}"
        return f"token:{self.token}" if self.token else ""

    @property
    def text(self) -> str | None:
        """The strongest proof as text, as it stands in the journal; None if nothing is proven."""
        return str(self) or None


NOBODY: Final = Who()
"""Somebody who has proven nothing."""

_FIRST_HAND: Final = 2
"""How many addresses a return route has, at most, of what a peer sent itself: its session or
channel, and the peer's worker or request. What it relays has at least the name of its own session
with the sender."""


def is_first_hand(back: Route) -> bool:
    """Whether the peer that a message came from sent it itself, by the return route at this node.

    >>> is_first_hand(Route.parse("session => worker")), is_first_hand(Route.parse("a => b => c"))
    (True, False)
    """
    addresses = back.addresses
    if len(addresses) < _FIRST_HAND:
        return True
    return len(addresses) == _FIRST_HAND and not is_session_name(addresses[-1].name)
