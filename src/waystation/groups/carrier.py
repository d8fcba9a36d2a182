"""The seam between a group and whatever carries its packets: two small protocols.

A carrier takes packets to one member, to a place or to everybody, and hands in what comes. It knows
nothing of what stands in them. Whoever opens connections opens them again by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from waystation.core.identity import Mapping, Physical, Uuid


class CarrierOwner(Protocol):
    """The group, told by plain calls in the event loop."""

    @property
    def own(self) -> Mapping:
        """Who this member is, and where it is reached now."""
        ...

    def packets(self, packets: Sequence[bytes]) -> None:
        """These packets came."""
        ...

    def opened(self) -> None:
        """A way to others is there, or there again: it is time to say hello."""
        ...

    def listed(self, members: Sequence[Mapping]) -> None:
        """A router says that these are members of the group."""
        ...

    def vanished(self, uuid: Uuid) -> None:
        """Nobody sees this member any more."""
        ...

    def rerouted(self, uuid: Uuid | None) -> None:
        """What was sent to a member, or with None to all, may have been lost: send it again."""
        ...

    def place_failed(self, place: Physical, *, gone: bool) -> None:
        """The connection to a place broke, or nobody answers there any more."""
        ...

    def place_answered(self, place: Physical) -> None:
        """Somebody answers at a place."""
        ...

    def cut_off(self, detail: str) -> None:
        """There is no way to anybody for now."""
        ...


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

    async def closed(self) -> None:
        """Wait until everything is gone."""
        ...
