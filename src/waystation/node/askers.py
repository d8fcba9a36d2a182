"""Who asks something of a node from outside: the peer of a session, or of a secure channel (ID-3).

Both have proven who they are, or have not, and what they are denied is recorded under their names.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Protocol

from waystation.core.address import Address
from waystation.core.record import SessionRecord
from waystation.core.who import Who
from waystation.node.receiver import Receiver


class Asker(Protocol):
    """What grants are asked about."""

    @property
    def name(self) -> str:
        """The local name of its session or channel."""

    @property
    def peer(self) -> str | None:
        """The name that access rules are asked about: it gave it itself, unless it is proven."""

    @property
    def identity(self) -> str | None:
        """Who it has proven to be."""

    @property
    def who(self) -> Who:
        """All that it has proven."""

    @property
    def denials(self) -> set[str]:
        """What it was denied, as recorded."""

    def record(self, at: int) -> SessionRecord:
        """The record that it is there."""


class Entrance(Receiver):
    """Where messages go into a secure channel; those that came out of it have it to go back."""

    out: Final = None

    address: Address
    is_lasting: bool
    """Whether its name was given to it, and so will be the same after a restart."""

    @property
    @abstractmethod
    def asker(self) -> Asker:
        """Who is at the other end."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether messages can go through it now."""

    @property
    def name(self) -> str:
        """The local name of the channel."""
        return self.address.name
