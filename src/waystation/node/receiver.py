"""Receivers: whatever takes the messages to an address, and what it means that one has no room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from waystation.core.budget import OVERHEAD
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.node.counting import MessageInbox
from waystation.node.flow import LARGE, Room
from waystation.node.inbox import Ticket

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

    @property
    def out(self) -> str | None:
        """The session over which what it takes leaves the node; None if it stays."""

    def offer(self, arrival: Arrival) -> Verdict:
        """Take a message now; NoRoom if it has to wait."""

    def wait_for_room(self, arrival: Arrival, ticket: Ticket) -> None:
        """Take a message as soon as there is room, unless its sender gives up before."""

    def waiting(self) -> int:
        """How many messages wait for room."""

    def room(self, arrival: Arrival) -> Room:
        """Where a message is counted that waits for it."""


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

    __slots__ = ("_inbox", "_items", "verdict")

    refusal: Final = Reason.QUEUE_FULL
    out: Final = None

    def __init__(self, verdict: Verdict, inbox: MessageInbox) -> None:
        self.verdict = verdict
        self._inbox = inbox
        self._items = inbox.items

    def offer(self, arrival: Arrival) -> Verdict:
        """Put a message into the inbox, unless it is full."""
        inbox = self._inbox
        size = len(arrival.message.payload)
        if len(self._items) >= inbox.mark:
            return self.verdict if inbox.offer(arrival) else NoRoom.at(self)
        if size > LARGE:
            loose = inbox.loose + size + OVERHEAD
            if loose > inbox.most_loose:
                return self.verdict if inbox.offer(arrival) else NoRoom.at(self)
            inbox.loose = loose  # and counted later, with those that follow
        self._items.append(arrival)  # as `inbox.offer` does, without a call
        if inbox.reader is not None:
            inbox.wake_reader()
        return self.verdict

    def wait_for_room(self, arrival: Arrival, ticket: Ticket) -> None:
        """Put a message into the inbox as soon as there is room."""
        self._inbox.join(arrival, self.verdict, ticket)

    def waiting(self) -> int:
        """How many messages wait for room in the inbox."""
        return len(self._inbox.line)

    def room(self, arrival: Arrival) -> Room:  # noqa: ARG002
        """Where messages are counted that wait for the inbox."""
        return self._inbox.room


class ReadyReceiver:
    """A receiver that always has room."""

    __slots__ = ()

    refusal: Final = Reason.REFUSED
    out: Final = None

    def wait_for_room(self, arrival: Arrival, ticket: Ticket) -> None:
        """Never called."""
        raise AssertionError((arrival, ticket))

    def room(self, arrival: Arrival) -> Room:
        """Never called."""
        raise AssertionError(arrival)

    def waiting(self) -> int:
        """Nothing ever waits for it."""
        return 0


class Outbound:
    """A message on its way into a session, for one or more receivers behind it.

    It has the routes that the peer is to see, and a verdict for each of those receivers.
    """

    __slots__ = ("_message", "session", "verdicts")

    def __init__(self, session: Session, message: Message, verdicts: Verdicts) -> None:
        self.session = session
        onward = message.onward_route.pushed(session.place)
        self._message = message.rerouted(onward, message.return_route)
        self.verdicts = verdicts

    @property
    def verdict(self) -> Verdict:
        """What becomes of it for the first of the receivers."""
        return self.verdicts[0]

    def patience(self) -> float:
        """How many seconds a message that has no deadline goes on waiting for the session."""
        return self.session.patience()

    @property
    def refusal(self) -> Reason:
        """Why the session takes no message at the moment."""
        return self.session.refusal

    @property
    def out(self) -> str:
        """The session over which it leaves."""
        return self.session.name

    def offer(self, arrival: Arrival) -> Verdict:
        """Give it to the session, if its link can have it now."""
        session = self.session
        if session.is_ready or session.takes(self._message):
            return session.carry(arrival, self._message, self.verdicts)
        return NoRoom.at(self)

    def wait_for_room(self, arrival: Arrival, ticket: Ticket) -> None:
        """Give it to the session as soon as its link can have it."""
        self.session.wait_for_link(arrival, self._message, self.verdicts, ticket)

    def waiting(self) -> int:
        """How many messages wait for the session."""
        return self.session.waiting()

    def room(self, arrival: Arrival) -> Room:  # noqa: ARG002
        """Where it is counted while it waits for the session."""
        return self.session.room_of(self._message)


def verdicts_of(receiver: Receiver) -> Verdicts:
    """What becomes of a message that a receiver takes, for each who gets it there."""
    return receiver.verdicts if isinstance(receiver, Outbound) else (receiver.verdict,)
