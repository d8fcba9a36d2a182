"""Who is not there, as a receiver: a name without an entry, a place out of reach.

Messages wait for them in order, and cost nothing while they do. A name that gets a routing entry
releases its messages at once; a leaf asks its parents for it meanwhile. A place is tried again with
growing pauses. A released message is taken by the node anew, at that later instant, since it is
then that the rules decide about it. How long a message waits is decided in `waiting`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from waystation.core.address import Address
from waystation.core.message import Arrival
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.net.backoff import Backoff
from waystation.node.flow import Room
from waystation.node.inbox import Pending, Ticket, WaitingLine
from waystation.node.receiver import NoRoom

if TYPE_CHECKING:
    from waystation.node.waiting import Waiting

Key: TypeAlias = str | Address  # a participant, or a place

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0


class PersistentPending(Pending):
    """Waits for whoever is there in the end: rejected by one receiver, the message looks anew."""

    def __init__(self, waiting: Waiting, arrival: Arrival) -> None:
        super().__init__()
        self._waiting = waiting
        self.arrival = arrival

    def reject(self) -> None:
        """Let the message be taken anew, as soon as whoever rejects it is done with that."""
        self.get_loop().call_soon(self._waiting.take_again, self.arrival, self, _backoff())


class AbsentReceiver(WaitingLine[Arrival]):
    """Somebody who is not there, as the receiver of what is sent to it."""

    out: Final = None

    __slots__ = ("_is_asked_for", "_timer", "_waiting", "backoff", "key", "refusal", "verdict")

    def __init__(self, waiting: Waiting, key: Key, reason: Reason, recipient: str | None) -> None:
        super().__init__()
        self._waiting = waiting
        self.key = key
        self.refusal = reason
        self.verdict = Verdict(Outcome.DROPPED, reason, recipient)
        self.backoff = _backoff()
        self._timer: asyncio.TimerHandle | None = None
        self._is_asked_for = False  # a parent has yet to answer

    @property
    def parent_may_know(self) -> bool:
        """Whether a parent can be asked for it."""
        return isinstance(self.key, str) and bool(self._waiting.kernel.hierarchy.parents)

    def offer(self, arrival: Arrival) -> Verdict:  # noqa: ARG002 - nobody is there
        """Take nothing."""
        return NoRoom.at(self)

    def room(self, arrival: Arrival) -> Room:
        """Never called: nobody is pressed for somebody who is not there."""
        raise AssertionError(arrival)

    def wait_for_room(self, arrival: Arrival, ticket: Ticket) -> None:
        """Wait until somebody is there, or until it is known that nobody is."""
        self.join(arrival, ticket)
        self._waiting.waited_for.setdefault(self.key, self)
        if self._timer is not None:
            return
        if self.parent_may_know:
            self.ask()
        elif not isinstance(self.key, str):
            self._try_later()

    def join(self, item: Arrival, ticket: Ticket) -> None:
        """Let a message wait behind the others."""
        super().join(item, ticket)
        self._waiting.for_absent += 1

    def next(self) -> tuple[Arrival, Ticket] | None:
        """Take out the first message that still waits."""
        first = super().next()
        if first is not None:
            self._waiting.for_absent -= 1
        return first

    def ask(self) -> None:
        """Ask the parents for this name, unless that is under way."""
        if not self._is_asked_for:
            self._is_asked_for = True
            self._stop_timer()
            assert isinstance(self.key, str)
            self._waiting.kernel.hierarchy.questions.ask(self.key, self._on_answer)

    def release(self) -> None:
        """Let each message that waits find its way, in order."""
        self.forget()
        while (first := self.next()) is not None:
            self._waiting.take_again(*first, self.backoff)

    def forget(self) -> None:
        """Be waited for no longer."""
        self._waiting.waited_for.pop(self.key, None)
        self._stop_timer()

    def _leave(self, pending: asyncio.Future[Verdict | None]) -> None:
        super()._leave(pending)
        self._waiting.for_absent -= 1
        if not self.line and self._is_waited_for():
            self.forget()

    def _is_waited_for(self) -> bool:
        return self._waiting.waited_for.get(self.key) is self

    def _on_answer(self, found: bool) -> None:
        self._is_asked_for = False
        if found or not self._is_waited_for():
            return  # what was found has a routing entry, and is released for that
        waiting = list(iter(self.next, None))
        for arrival, pending in waiting:
            if isinstance(pending, PersistentPending):
                self.join(arrival, pending)
            else:
                pending.reject()
        if self.line:
            self._try_later()
        else:
            self.forget()

    def _try_later(self) -> None:
        again = self.ask if isinstance(self.key, str) else self.release
        self._timer = asyncio.get_running_loop().call_later(self.backoff.next(), again)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _backoff() -> Backoff:
    return Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)
