"""Names that peers asked for in vain: they are told as soon as somebody has one.

So whoever waits for a name need not keep asking. Those who ask are remembered up to a limit, and
only while the node runs: a peer that waits asks again, with growing pauses, all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.core.routing import RoutingEntry
from waystation.wire import hierarchy as wire
from waystation.wire.hierarchy import Appeared

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.session import Session


class Wanted:
    """The names that peers of one node wait for."""

    LIMIT = 10_000  # names that are remembered, and peers for each of them

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.askers: dict[str, dict[bytes, None]] = {}  # by name: addresses of sessions

    def __contains__(self, name: str) -> bool:
        return name in self.askers

    def add(self, name: str, session: Session) -> None:
        """Remember who asked in vain for a name."""
        if name not in self.askers and len(self.askers) >= self.LIMIT:
            del self.askers[next(iter(self.askers))]
        askers = self.askers.setdefault(name, {})
        if len(askers) < self.LIMIT:
            askers[session.address.data] = None

    def appeared(self, entry: RoutingEntry) -> list[Session]:
        """Tell those who asked for a name that it is reached here; returns whom."""
        if entry.participant not in self.askers:
            return []
        sessions = self._kernel.links.sessions
        told = []
        for address in self.askers.pop(entry.participant, ()):
            session = sessions.get(address)
            if session is not None and session.address != entry.address:
                session.answer(wire.encode(Appeared([entry.participant])))
                told.append(session)
        return told
