"""The seam between a group and whatever carries its packets: one small protocol.

A carrier takes packets to one member, to a place or to everybody, and hands what comes to the
`Streams` that it belongs to, by plain calls in the event loop. It knows nothing of what stands in
the packets. A carrier that opens connections opens them again by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from waystation.core.identity import Physical, Uuid


class Carrier(Protocol):
    """Takes packets out."""

    @property
    def limit(self) -> int:
        """No packet may be larger."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether there is a way to anybody now."""
        ...

    @property
    def failure(self) -> str:
        """How the last attempt to open a way failed."""
        ...

    async def open(self) -> tuple[Physical, ...]:
        """Open what can be opened at once; returns where this member is reached."""
        ...

    def start(self) -> None:
        """Look for the others from now on: the group is ready."""
        ...

    def to_one(self, uuid: Uuid, place: Physical | None, packet: bytes) -> None:
        """Take a packet to a member; with the others of this turn."""
        ...

    def to_place(self, place: Physical, packet: bytes) -> None:
        """Take a packet to whoever is at a place."""
        ...

    def to_all(self, packet: bytes, *, notice: bool) -> None:
        """Take a packet to everybody; a notice on every way there is."""
        ...

    def ask(self) -> None:
        """Ask the routers who is there."""
        ...

    def flush(self) -> None:
        """Write what this turn brought."""
        ...

    async def move(self, places: Sequence[str]) -> tuple[Physical, ...]:
        """Be reached at these places instead; returns them, with the ports that were chosen."""
        ...

    def moved(self) -> None:
        """The new places are known here: say so where that is kept."""
        ...

    def close(self) -> None:
        """Write what is left, and end."""
        ...

    async def wait_closed(self) -> None:
        """Wait until everything is gone."""
        ...
