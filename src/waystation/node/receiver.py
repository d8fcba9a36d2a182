"""Receivers: whatever takes the messages to an address, and what it means that one has no room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeAlias

from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict

if TYPE_CHECKING:
    from waystation.node.session import Session

PendingVerdict: TypeAlias = "asyncio.Future[Verdict | None]"
"""What somebody waits for: the verdict once the message was taken, None if it never was."""


class Receiver(Protocol):
    """Takes the messages to one address: of a worker, a request, a subscriber, a session."""

    @property
    def verdict(self) -> Verdict:
        """What becomes of a message that it takes."""
        ...

    @property
    def refusal(self) -> Reason:
        """Why it takes no message at the moment."""
        ...

    def offer(self, arrival: Arrival) -> Verdict | None:
        """Take a message now; None when there is no room for it."""
        ...

    def wait_for_room(self, arrival: Arrival, deadline: float | None) -> PendingVerdict:
        """Take a message as soon as there is room, or not at all after the deadline."""
        ...

    def waiting(self) -> int:
        """How many messages wait for room."""
        ...


class NoRoom(Verdict, frozen=True, kw_only=True, gc=True):
    """The verdict on a message that nobody could take yet. It is not final, and nobody was told.

    Whoever brought the message decides whether it waits for the receiver or ends with this verdict.
    """

    receiver: Receiver

    @classmethod
    def at(cls, receiver: Receiver) -> NoRoom:
        """No room at this receiver."""
        recipient = receiver.verdict.recipient
        return cls(Outcome.DROPPED, receiver.refusal, recipient, receiver=receiver)


class Outbound:
    """A message on its way into a session, for one or more receivers behind it.

    It has the routes that the peer is to see, and a verdict for each of those receivers.
    """

    __slots__ = ("_message", "_session", "_verdicts")

    def __init__(self, session: Session, message: Message, verdicts: tuple[Verdict, ...]) -> None:
        self._session = session
        self._message = session.outbound(message)
        self._verdicts = verdicts

    @property
    def verdict(self) -> Verdict:
        """What becomes of it for the first of the receivers."""
        return self._verdicts[0]

    @property
    def refusal(self) -> Reason:
        """Why the session takes no message at the moment."""
        return self._session.refusal

    def offer(self, arrival: Arrival) -> Verdict | None:
        """Give it to the session, if its link can have it now."""
        return self._session.offer_outbound(arrival, self._message, self._verdicts)

    def wait_for_room(self, arrival: Arrival, deadline: float | None) -> PendingVerdict:
        """Give it to the session as soon as its link can have it."""
        return self._session.wait_outbound(arrival, self._message, self._verdicts, deadline)

    def waiting(self) -> int:
        """How many messages wait for the session."""
        return self._session.waiting()
