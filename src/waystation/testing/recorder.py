"""What a node told its observers, kept for the assertions of a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from waystation.core.address import Address
from waystation.core.custody import CustodyArrival
from waystation.core.outcome import Outcome, Verdict
from waystation.core.record import (
    ChangeRecord,
    ClaimRecord,
    MessageRecord,
    Record,
    SessionRecord,
)
from waystation.core.routing import RouteChange
from waystation.node import Node


class Recorder:
    """Observes a node from now on: outcomes of messages, sessions, routes and claims.

    >>> import asyncio
    >>> async def scenario():
    ...     async with Node("node") as node:
    ...         recorder = Recorder(node)
    ...         await node.send("nobody", b"?")
    ...         return recorder.outcomes()
    >>> asyncio.run(scenario())
    [(b'?', 'NO_ROUTE')]
    """

    def __init__(self, node: Node) -> None:
        self.messages: list[MessageRecord] = []
        self.sessions: list[SessionRecord] = []
        self.routes: list[RouteChange] = []
        self.claims: list[ClaimRecord] = []
        self.stop: Callable[[], None] = node.observe(self._record)

    def _record(self, record: Record) -> None:
        if isinstance(record, MessageRecord):
            self.messages.append(record)
        elif isinstance(record, SessionRecord):
            self.sessions.append(record)
        elif isinstance(record, ClaimRecord):
            self.claims.append(record)
        elif isinstance(record, ChangeRecord) and isinstance(record.change, RouteChange):
            self.routes.append(record.change)

    def outcomes(self) -> list[tuple[bytes, str]]:
        """The payload of each message, with the reason why it was dropped or else its outcome."""
        return [(r.arrival.message.payload, reason_or_outcome(r.verdict)) for r in self.messages]

    def counts(self) -> Counter[str]:
        """How many messages had each reason or outcome."""
        return Counter(reason_or_outcome(record.verdict) for record in self.messages)

    def session_events(self) -> list[tuple[str, str | None]]:
        """What happened to sessions (`opened`, `closed`, `refused`), and the reason if any."""
        return [(r.kind.value, r.reason and r.reason.value) for r in self.sessions]

    def check_outcomes(self) -> None:
        """Check that every message had exactly one outcome, beside QUEUED before it (OB-1).

        A broadcast has one for each copy. Call it when nothing is under way any more, for instance
        after the node was closed. A durable message may stay QUEUED, on disk. Raises AssertionError
        that names the messages.
        """
        final = [r for r in self.messages if r.verdict.outcome is not Outcome.QUEUED]
        repeated = sorted(id for (id, *_), count in Counter(map(_copy, final)).items() if count > 1)
        queued = {
            r.arrival.message.id
            for r in self.messages
            if r.verdict.outcome is Outcome.QUEUED and not isinstance(r.arrival, CustodyArrival)
        }
        unfinished = sorted(queued - {r.arrival.message.id for r in final})
        if repeated or unfinished:
            raise AssertionError(
                f"messages with more than one outcome: {repeated}; "
                f"queued, and then without an outcome: {unfinished}"
            )


def _copy(record: MessageRecord) -> tuple[str, int, str | None, Address | None]:
    """What has one outcome: an entry of a message, or one copy of a broadcast."""
    arrival, verdict = record.arrival, record.verdict
    if arrival.multicast_id is None:
        return arrival.message.id, arrival.received_at, None, None
    return arrival.message.id, arrival.received_at, verdict.recipient, verdict.address


def reason_or_outcome(verdict: Verdict) -> str:
    """The reason why a message was dropped, or its outcome if it was not."""
    return (verdict.reason or verdict.outcome).value
