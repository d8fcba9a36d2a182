"""What a node does at the moment about the durable messages of one pair (DU-4)."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct

from waystation.core.custody import Lane, Pair
from waystation.node.store import KnownPair

BATCH: Final = 64
"""Letters that are offered to another node at once."""


class CustodyLane(Struct, eq=False):
    """What this node has of one pair, and what it does about it at the moment."""

    lane: Lane
    known: KnownPair
    transfer: str | None = None  # the offer that waits for its answer
    is_asking_store: bool = (
        False  # something is read or written, and nothing else is done until then
    )
    failures: int = 0  # of transfers, since the last that succeeded
    batch: int = BATCH
    due: float = 0.0  # by the clock of the event loop: not before that
    waits_for_handler: bool = False  # it is due later since its handler raised
    absent: str | None = None  # the name that it waits for
    spread: int = 0  # up to this number, broadcasts have copies for their subscribers
    copies: int = 0  # of the last one
    timer: asyncio.TimerHandle | None = None

    @property
    def pair(self) -> Pair:
        """Whose they are."""
        return self.known.pair
