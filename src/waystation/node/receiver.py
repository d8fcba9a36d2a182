"""Whoever can take a message that is addressed to it: a worker, a request, a session."""

from __future__ import annotations

import asyncio
from typing import Protocol

from waystation.core.message import Arrival
from waystation.core.outcome import Reason, Verdict


class Receiver(Protocol):
    """Has a local address, and takes the messages to it."""

    @property
    def verdict(self) -> Verdict:
        """What becomes of a message that it takes."""
        ...

    @property
    def refusal(self) -> Reason:
        """Why it takes none at the moment."""
        ...

    def offer(self, arrival: Arrival) -> Verdict | None:
        """Take a message now; None when that cannot be."""
        ...

    def line_up(self, arrival: Arrival, deadline: float | None) -> asyncio.Future[Verdict | None]:
        """Take a message as soon as that can be; None when it never came to it."""
        ...

    def waiting(self) -> int:
        """How many are lined up."""
        ...
