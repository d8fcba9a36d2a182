"""Where messages go into a secure channel: sealed, and given to the session that leads there.

While the session has no room, messages wait here, unsealed and in order: those who can wait do so
with them, as at every receiver (WK-6, FL-4). Only the first of them is sealed, and stands in the
line of the session; when that has gone, the others follow.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from waystation.core.address import LOCAL, Address
from waystation.core.grants import is_answer
from waystation.core.message import Arrival
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError
from waystation.node.askers import Asker, Entrance
from waystation.node.flow import Room
from waystation.node.inbox import Pending, Ticket, WaitingLine
from waystation.node.receiver import NoRoom
from waystation.node.session import Session

if TYPE_CHECKING:
    from waystation.node.channels import SecureChannel
    from waystation.node.kernel import Kernel


class SealingEntrance(Entrance):
    """The entrance of one channel, once that is open."""

    def __init__(self, channel: SecureChannel, kernel: Kernel, *, is_lasting: bool) -> None:
        self._channel = channel
        self._kernel = kernel
        self.is_lasting = is_lasting
        self.address = Address(LOCAL, channel.name.encode())
        self._verdict = Verdict(Outcome.DELIVERED, None, channel.name, self.address)
        self._line: WaitingLine[Arrival] = WaitingLine()
        self._room: Room | None = None
        self._first: Pending | None = None  # what stands in the line of the session

    def open(self) -> None:
        """Receive from now on; durable messages may have waited for it."""
        entry = RoutingEntry(self.name, self.address, local=True)
        self._kernel.add_receiver(self.address, self, entry)

    def close(self) -> None:
        """Receive nothing more; what waits is dropped."""
        self._kernel.remove_receiver(self.address)
        self._kernel.custody.transfers.link_lost(self)
        if self._first is not None:
            self._first.give_up()
        self._line.reject_all()

    @property
    def asker(self) -> Asker:
        """Who is at the other end."""
        return self._channel

    @property
    def is_open(self) -> bool:
        """Whether messages can go through it now."""
        return self._channel.is_open

    # A receiver

    @property
    def verdict(self) -> Verdict:
        """What becomes of a message that it takes."""
        return self._verdict

    @property
    def refusal(self) -> Reason:
        """Why it takes no message at the moment."""
        session = self._session()
        return Reason.TRANSPORT_DOWN if session is None else session.refusal

    def offer(self, arrival: Arrival) -> Verdict:
        """Seal a message of this node, if it can go to the other end now."""
        if not self._channel.is_open or not self._may_enter(arrival):
            return self._kernel.drop(arrival, Reason.REFUSED, self.name)
        session = self._session()
        if session is None:
            return self._send_elsewhere(arrival)
        if self._line.line or not self._has_room(session):
            return NoRoom.at(self)
        return self._carry(arrival, session)

    def wait_for_room(self, arrival: Arrival, ticket: Ticket) -> None:
        """Seal a message as soon as it can go to the other end."""
        self._line.join(arrival, ticket)
        self._send_waiting()

    def waiting(self) -> int:
        """How many messages wait for room."""
        return len(self._line.line)

    def room(self, arrival: Arrival) -> Room:  # noqa: ARG002
        """Where a message is counted that waits."""
        if self._room is None:
            self._room = Room(self._kernel.flow, self._line, self.name)
        return self._room

    def _may_enter(self, arrival: Arrival) -> bool:
        """Whether a message is from this node itself, or an answer to what came out of the channel.

        Whoever is at the other end takes what comes for ours. So nobody else may send there, not
        by way of a worker either, nor out of another channel.
        """
        rest = arrival.message.onward_route.addresses[1:]
        if not rest:
            return False
        receivers = self._kernel.receivers
        is_ours = arrival.via is None and not any(
            isinstance(receivers.get(address.data), Session | Entrance)
            for address in arrival.message.return_route.addresses
            if address.type == LOCAL
        )
        return is_ours or all(map(is_answer, rest))

    # To the other end

    def _session(self) -> Session | None:
        """The session that sealed messages go to first; None if that is something else."""
        first = self._channel.route.addresses[0]
        receiver = self._kernel.receivers.get(first.data) if first.type == LOCAL else None
        return receiver if isinstance(receiver, Session) else None

    def _has_room(self, session: Session) -> bool:
        return session.is_ready or session.takes(self._channel.empty)

    def _carry(self, arrival: Arrival, session: Session) -> Verdict:
        """Give a message to the session, which has room."""
        kernel = self._kernel
        try:
            sealed = self._channel.sealed(arrival.message)
        except LocalError:  # routes and payload together
            return kernel.drop(arrival, Reason.TOO_LARGE, self.name)
        outside = Arrival(sealed, kernel.tick())
        return self._ended(arrival, session.carry(outside, sealed, session.verdicts_on(sealed)))

    def _send_elsewhere(self, arrival: Arrival) -> Verdict:
        """Send a message to who is no session: at this node, or behind a worker or a name."""
        try:
            sealed = self._channel.sealed(arrival.message)
        except LocalError:
            return self._kernel.drop(arrival, Reason.TOO_LARGE, self.name)
        return self._ended(arrival, self._kernel.send_on(sealed))

    def _ended(self, arrival: Arrival, sent: Verdict) -> Verdict:
        """Record what became of a message here: it is in the channel, or could not be sent."""
        if sent.reason is not None:
            return self._kernel.drop(arrival, sent.reason, self.name)
        return self._kernel.end(arrival, self._verdict)

    # What waits

    def _send_waiting(self) -> None:
        """Send what waits, as long as there is room, and let the next one wait at the session."""
        while self._first is None and self._channel.is_open:
            session = self._session()
            if session is not None and not self._has_room(session):
                self._stand_at(session)
                return
            found = self._next()
            if found is None:
                return
            arrival, ticket = found
            if session is None:
                ticket.set_result(self._send_elsewhere(arrival))
            else:
                ticket.set_result(self._carry(arrival, session))

    def _next(self) -> tuple[Arrival, Ticket] | None:
        """Take out the first that still waits and has not expired meanwhile."""
        while (found := self._line.next()) is not None:
            arrival, ticket = found
            if not arrival.message.expired(self._kernel.tick() // 1000):
                return found
            ticket.set_result(self._kernel.drop(arrival, Reason.EXPIRED, self.name))
        return None

    def _stand_at(self, session: Session) -> None:
        """Let the first that waits stand in the line of the session."""
        found = self._next()
        if found is None:
            return
        arrival, ticket = found
        try:
            sealed = self._channel.sealed(arrival.message)
        except LocalError:
            ticket.set_result(self._kernel.drop(arrival, Reason.TOO_LARGE, self.name))
            self._send_waiting()
            return
        first = self._first = Pending()
        first.add_done_callback(partial(self._went, arrival, ticket))
        first.expire_after(self._kernel.limits.reconnect, session.patience)
        ticket.add_done_callback(lambda _: first.give_up())
        outside = Arrival(sealed, self._kernel.tick())
        session.wait_for_link(outside, sealed, session.verdicts_on(sealed), first)

    def _went(self, arrival: Arrival, ticket: Ticket, first: Pending) -> None:
        """Note what became of the first, and let the others follow."""
        self._first = None
        sent = first.result()
        if ticket.done():  # its sender gave up, and has recorded it
            pass
        elif sent is None:  # the session has no link any more
            ticket.reject()
            self._line.reject_all()
        else:
            ticket.set_result(self._ended(arrival, sent))
        self._send_waiting()
