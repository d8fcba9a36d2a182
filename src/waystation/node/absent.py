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
from waystation.node.inbox import Pending, WaitingLine
from waystation.node.receiver import NoRoom

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

Key: TypeAlias = str | Address  # a participant, or a place

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0


class PersistentPending(Pending):
    """Waits for whoever is there in the end: rejected by one receiver, the message looks anew."""

    def __init__(self, absent: AbsentReceivers, arrival: Arrival) -> None:
        super().__init__()
        self._absent = absent
        self.arrival = arrival

    def reject(self) -> None:
        """Let the message be taken anew, as soon as whoever rejects it is done with that."""
        self.get_loop().call_soon(self._absent.take_again, self.arrival, self, _backoff())


class AbsentReceiver:
    """Somebody who is not there, as the receiver of what is sent to it."""

    __slots__ = ("_absent", "asked", "backoff", "key", "line", "refusal", "timer", "verdict")

    def __init__(
        self, absent: AbsentReceivers, key: Key, reason: Reason, recipient: str | None
    ) -> None:
        self._absent = absent
        self.key = key
        self.refusal = reason
        self.verdict = Verdict(Outcome.DROPPED, reason, recipient)
        self.line: WaitingLine[Arrival] = WaitingLine(lambda: absent.left(self))
        self.backoff = _backoff()
        self.timer: asyncio.TimerHandle | None = None
        self.asked = False  # a parent has yet to answer

    @property
    def parent_may_know(self) -> bool:
        """Whether a parent can be asked for it."""
        return self._absent.can_ask(self)

    def offer(self, arrival: Arrival) -> Verdict:  # noqa: ARG002 - nobody is there
        """Take nothing."""
        return NoRoom.at(self)

    def wait_for_room(self, arrival: Arrival, pending: Pending) -> None:
        """Wait until somebody is there, or until it is known that nobody is."""
        self.line.join(arrival, pending)
        self._absent.count += 1
        self._absent.look_for(self)

    def next(self) -> tuple[Arrival, Pending] | None:
        """Take out the first message that still waits."""
        first = self.line.next()
        if first is not None:
            self._absent.count -= 1
        return first

    def waiting(self) -> int:
        """How many messages wait."""
        return len(self.line.line)

    def stop_timer(self) -> None:
        """Do not try again by itself."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class AbsentReceivers:
    """All those that messages of one node wait for although they are not there."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waited_for: dict[Key, AbsentReceiver] = {}
        self.count = 0  # messages, whomever they wait for

    def receiver(self, key: Key, reason: Reason, recipient: str | None) -> AbsentReceiver:
        """The receiver that stands for whoever is not there."""
        known = self._waited_for.get(key)
        return AbsentReceiver(self, key, reason, recipient) if known is None else known

    def numbers(self) -> dict[Key, int]:
        """Whom messages wait for, and how many of them."""
        return {key: absent.waiting() for key, absent in self._waited_for.items()}

    def can_ask(self, absent: AbsentReceiver) -> bool:
        """Whether a parent may know it."""
        return isinstance(absent.key, str) and bool(self._kernel.hierarchy.parents)

    def look_for(self, absent: AbsentReceiver) -> None:
        """Ask for a name, or try a place again, unless that is under way."""
        self._waited_for.setdefault(absent.key, absent)
        if absent.timer is not None or absent.asked:
            return
        if self.can_ask(absent):
            self._ask(absent)
        elif not isinstance(absent.key, str):
            self._try_later(absent)

    def appeared(self, key: Key) -> None:
        """Release what waits for somebody who is there now, before anything that is sent later."""
        absent = self._waited_for.get(key)
        if absent is not None:
            self._release(absent)

    def ask_again(self) -> None:
        """Ask for every name that is waited for: there is a parent that may know."""
        for absent in list(self._waited_for.values()):
            if isinstance(absent.key, str) and not absent.asked:
                absent.stop_timer()
                self._ask(absent)

    def left(self, absent: AbsentReceiver) -> None:
        """Note that one waits no longer; forget somebody whom nobody waits for any more."""
        self.count -= 1
        if not absent.waiting() and self._waited_for.get(absent.key) is absent:
            self._forget(absent)

    def reject_all(self) -> None:
        """Tell everybody who waits that it is over."""
        for absent in list(self._waited_for.values()):
            self._forget(absent)
            while (first := absent.next()) is not None:
                first[1].give_up()

    def take_again(self, arrival: Arrival, pending: Pending, backoff: Backoff) -> None:
        """Let a message that waits find its way."""
        if pending.done():
            return
        again = Arrival(arrival.message, self._kernel.tick(), arrival.from_global)
        verdict = self._kernel.take(again)
        if type(verdict) is not NoRoom:
            pending.set_result(verdict)
            return
        if isinstance(pending, PersistentPending):
            pending.arrival = again
        receiver = verdict.receiver
        if isinstance(receiver, AbsentReceiver):
            receiver.backoff = backoff  # nothing changed: the next pause is longer
        receiver.wait_for_room(again, pending)

    def _ask(self, absent: AbsentReceiver) -> None:
        participant = absent.key
        assert isinstance(participant, str)

        def answered(found: bool) -> None:
            absent.asked = False
            if self._waited_for.get(participant) is not absent or found:
                return  # what was found has a routing entry, and is released for that
            self._reject_without_persist(absent)
            if absent.waiting():
                self._try_later(absent)
            else:
                self._forget(absent)

        absent.asked = True
        self._kernel.hierarchy.ask(participant, answered)

    def _reject_without_persist(self, absent: AbsentReceiver) -> None:
        stay = []
        while (first := absent.next()) is not None:
            if isinstance(first[1], PersistentPending):
                stay.append(first)
            else:
                first[1].reject()
        for arrival, pending in stay:
            absent.line.join(arrival, pending)
        self.count += len(stay)

    def _try_later(self, absent: AbsentReceiver) -> None:
        pause = absent.backoff.next()
        absent.timer = asyncio.get_running_loop().call_later(pause, self._try_again, absent)

    def _try_again(self, absent: AbsentReceiver) -> None:
        absent.timer = None
        if not isinstance(absent.key, str):
            self._release(absent)
        elif any(not pending.done() for _, pending in absent.line.line):
            self._ask(absent)
        else:
            self._forget(absent)

    def _release(self, absent: AbsentReceiver) -> None:
        """Let each message that waits find its way, in order."""
        if self._waited_for.get(absent.key) is not absent:
            return
        self._forget(absent)
        while (first := absent.next()) is not None:
            self.take_again(*first, absent.backoff)

    def _forget(self, absent: AbsentReceiver) -> None:
        self._waited_for.pop(absent.key, None)
        absent.stop_timer()


def _backoff() -> Backoff:
    return Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)
