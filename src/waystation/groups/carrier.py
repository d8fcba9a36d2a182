"""The seam between a group and whatever carries its packets.

A carrier takes packets to one member, to a place or to everybody, and hands what comes to the
`Streams` that it belongs to, by plain calls in the event loop. It knows nothing of what stands in
the packets. A carrier that opens connections opens them again by itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from waystation.core.identity import Physical, Uuid


class Carrier(ABC):
    """Takes packets out; what is not abstract is for the carriers that need it."""

    limit: int
    """No packet may be larger."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether there is a way to anybody now."""

    @property
    def failure(self) -> str:
        """How the last attempt to open a way failed."""
        return ""

    async def open(self) -> tuple[Physical, ...]:
        """Open what can be opened at once; returns where this member is reached."""
        return ()

    @abstractmethod
    def start(self) -> None:
        """Look for the others from now on: the group is ready."""

    @abstractmethod
    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Take a packet to a member, or with EVERYBODY to whoever is at a place, in this turn."""

    @abstractmethod
    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """Take a packet to everybody; a notice on every way there is."""

    def has_room(self, uuid: Uuid, place: Physical | None) -> bool:
        """Whether the way to a member, or with EVERYBODY to all, takes messages now.

        If not, the owner's `writable` is called when it does. What is no message (who is there,
        what has arrived) has room of its own, and is sent in any case.
        """
        del uuid, place
        return True

    def ask(self) -> None:  # noqa: B027 - most carriers have nobody to ask
        """Ask the routers who is there."""

    def flush(self) -> None:  # noqa: B027 - a datagram is written at once
        """Write what this turn brought."""

    async def move(self, places: Sequence[str]) -> tuple[Physical, ...]:
        """Be reached at these places instead; returns them, with the ports that were chosen."""
        del places
        return ()

    def moved(self) -> None:  # noqa: B027 - a multicast tells everybody
        """The new places are known here: say so where that is kept."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left, and end."""

    async def wait_closed(self) -> None:
        """Wait until everything is gone."""
        await asyncio.sleep(0)
