"""Receivers: whatever takes the messages to an address, and what it means that one has no room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.node.inbox import Inbox, Pending

if TYPE_CHECKING:
    from waystation.node.session import Session

Verdicts: TypeAlias = tuple[Verdict, ...]
"""A verdict for each who gets a message behind one receiver."""


class Receiver(Protocol):
    """Takes the messages to one address: of a worker, a request, a subscriber, a session."""

    @property
    def verdict(self) -> Verdict:
        """What becomes of a message that it takes."""

    @property
    def refusal(self) -> Reason:
        """Why it takes no message at the moment."""

    def offer(self, arrival: Arrival) -> Verdict:
        """Take a message now; NoRoom if it has to wait."""

    def wait_for_room(self, arrival: Arrival, pending: Pending) -> None:
        """Take a message as soon as there is room, unless its sender gives up before."""

    def waiting(self) -> int:
        """How many messages wait for room."""


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


class InboxReceiver:
    """A receiver that puts messages into an inbox."""

    __slots__ = ("_inbox", "_items", "_line", "verdict")

    refusal: Final = Reason.QUEUE_FULL

    def __init__(self, verdict: Verdict, inbox: Inbox[Arrival]) -> None:
        self.verdict = verdict
        self._inbox = inbox
        self._items = inbox.items
        self._line = inbox.line

    def offer(self, arrival: Arrival) -> Verdict:
        """Put a message into the inbox, unless it is full."""
        inbox = self._inbox
        if self._line or len(self._items) >= inbox.capacity:
            return self.verdict if inbox.offer(arrival) else NoRoom.at(self)
        self._items.append(arrival)  # as `inbox.offer` does, without a call
        if inbox.reader is not None:
            inbox.wake_reader()
        return self.verdict

    def wait_for_room(self, arrival: Arrival, pending: Pending) -> None:
        """Put a message into the inbox as soon as there is room."""
        self._inbox.waiting.join((arrival, self.verdict), pending)

    def waiting(self) -> int:
        """How many messages wait for room in the inbox."""
        return len(self._line)


class ReadyReceiver:
    """A receiver that always has room."""

    __slots__ = ()

    refusal: Final = Reason.REFUSED

    def wait_for_room(self, arrival: Arrival, pending: Pending) -> None:
        """Never called."""
        raise AssertionError((arrival, pending))

    def waiting(self) -> int:
        """Nothing ever waits for it."""
        return 0


class Outbound:
    """A message on its way into a session, for one or more receivers behind it.

    It has the routes that the peer is to see, and a verdict for each of those receivers.
    """

    __slots__ = ("_message", "_session", "verdicts")

    def __init__(self, session: Session, message: Message, verdicts: Verdicts) -> None:
        self._session = session
        onward = message.onward_route.pushed(session.place)
        self._message = message.rerouted(onward, message.return_route)
        self.verdicts = verdicts

    @property
    def verdict(self) -> Verdict:
        """What becomes of it for the first of the receivers."""
        return self.verdicts[0]

    def patience(self) -> float:
        """How many seconds a message that has no deadline goes on waiting for the session."""
        return self._session.patience()

    @property
    def refusal(self) -> Reason:
        """Why the session takes no message at the moment."""
        return self._session.refusal

    def offer(self, arrival: Arrival) -> Verdict:
        """Give it to the session, if its link can have it now."""
        session = self._session
        if session.is_ready:
            return session.carry(arrival, self._message, self.verdicts)
        return NoRoom.at(self)

    def wait_for_room(self, arrival: Arrival, pending: Pending) -> None:
        """Give it to the session as soon as its link can have it."""
        self._session.wait_for_link(arrival, self._message, self.verdicts, pending)

    def waiting(self) -> int:
        """How many messages wait for the session."""
        return self._session.waiting()


def verdicts_of(receiver: Receiver) -> Verdicts:
    """What becomes of a message that a receiver takes, for each who gets it there."""
    return receiver.verdicts if isinstance(receiver, Outbound) else (receiver.verdict,)
