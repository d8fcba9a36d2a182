"""Messages that wait for somebody who is not there: a name without an entry, a place out of reach.

They wait in order, by name or by place, and cost nothing while they do. A name that gets a routing
entry releases its messages at once; a leaf asks its parents for it meanwhile. A place is tried
again with growing pauses. A released message is taken by the node anew, at that later instant,
since it is then that the rules decide about it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from waystation.core.address import Address
from waystation.core.message import Arrival
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.net.backoff import Backoff
from waystation.node.inbox import WaitingLine, reject
from waystation.node.receiver import NoRoom, PendingVerdict, Receiver

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

Key: TypeAlias = str | Address  # a participant, or a place

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0


class _Pending(asyncio.Future[Verdict | None]):
    """What the sender of a message waits for, wherever the message itself waits at the moment."""

    inner: PendingVerdict | None = None  # at the receiver that it waits for, if it found one

    @property
    def was_taken(self) -> bool:
        """Whether a receiver took it; its sender is told in the next turn of the loop."""
        inner = self.inner
        return (
            inner is not None
            and inner.done()
            and not inner.cancelled()
            and inner.result() is not None
        )

    def give_up(self) -> None:
        """Wait no longer, unless it was just taken."""
        if not self.done() and not self.was_taken:
            self.set_result(None)


def was_taken(pending: PendingVerdict) -> bool:
    """Whether a message was taken although nobody waits for that any more."""
    return isinstance(pending, _Pending) and pending.was_taken


class AbsentReceiver:
    """Somebody who is not there, as the receiver of what is sent to it."""

    __slots__ = ("_messages", "asked", "backoff", "key", "line", "refusal", "timer", "verdict")

    def __init__(
        self, messages: WaitingMessages, key: Key, reason: Reason, recipient: str | None
    ) -> None:
        self._messages = messages
        self.key = key
        self.refusal = reason
        self.verdict = Verdict(Outcome.DROPPED, reason, recipient)
        self.line: WaitingLine[tuple[Arrival, bool]] = WaitingLine()
        self.backoff = Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)
        self.timer: asyncio.TimerHandle | None = None
        self.asked = False  # a parent has yet to answer

    @property
    def parent_may_know(self) -> bool:
        """Whether a parent can be asked for it."""
        return self._messages.can_ask(self)

    def offer(self, arrival: Arrival) -> Verdict | None:  # noqa: ARG002 - nobody is there
        """Take nothing."""
        return None

    def wait_for_room(self, arrival: Arrival, deadline: float | None) -> PendingVerdict:
        """Wait until a parent has said whether it knows the name."""
        return self.wait(arrival, deadline, persist=False)

    def wait(self, arrival: Arrival, deadline: float | None, *, persist: bool) -> PendingVerdict:
        """Wait until somebody is there, or, without `persist`, until it is known that nobody is."""
        pending = _pending(deadline)
        self.add(arrival, pending, persist=persist)
        self._messages.look_for(self)
        return pending

    def add(self, arrival: Arrival, pending: _Pending, *, persist: bool) -> None:
        """Let a message wait here, behind the others."""
        self.line.rejoin((arrival, persist), pending)
        self._messages.count += 1
        pending.add_done_callback(lambda _: self._messages.left(self))

    def waiting(self) -> int:
        """How many messages wait."""
        return len(self.line.line)

    def stop_timer(self) -> None:
        """Do not try again by itself."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class WaitingMessages:
    """All messages of one node that wait for somebody who is not there."""

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
        if not absent.line.line and self._waited_for.get(absent.key) is absent:
            self._forget(absent)

    def reject_all(self) -> None:
        """Tell everybody who waits that it is over."""
        waited_for, self._waited_for = self._waited_for, {}
        for absent in waited_for.values():
            absent.stop_timer()
            absent.line.reject_all()

    def persist(
        self, receiver: Receiver, arrival: Arrival, deadline: float | None
    ) -> PendingVerdict:
        """Wait for room at a receiver, and for the receiver itself should it go away meanwhile."""
        if isinstance(receiver, AbsentReceiver):
            return receiver.wait(arrival, deadline, persist=True)
        pending = _pending(deadline)
        self._wait_at(receiver, arrival, pending, persist=True)
        return pending

    def _ask(self, absent: AbsentReceiver) -> None:
        participant = absent.key
        assert isinstance(participant, str)

        def answered(found: bool) -> None:
            absent.asked = False
            if self._waited_for.get(participant) is not absent or found:
                return  # what was found has a routing entry, and is released for that
            self._reject_without_persist(absent)
            if absent.line.line:
                self._try_later(absent)
            else:
                self._forget(absent)

        absent.asked = True
        self._kernel.hierarchy.ask(participant, answered)

    def _reject_without_persist(self, absent: AbsentReceiver) -> None:
        line = absent.line.line
        for _ in range(len(line)):
            (arrival, persist), pending = line.popleft()
            if persist and not pending.done():
                line.append(((arrival, persist), pending))
            else:
                reject(pending)

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
        while (first := absent.line.next()) is not None:
            (arrival, persist), pending = first
            assert isinstance(pending, _Pending)
            self._take_again(arrival, pending, persist=persist, backoff=absent.backoff)

    def _take_again(
        self, arrival: Arrival, pending: _Pending, *, persist: bool, backoff: Backoff
    ) -> None:
        again = Arrival(arrival.message, self._kernel.tick(), arrival.from_global)
        verdict = self._kernel.take(again)
        if not isinstance(verdict, NoRoom):
            pending.set_result(verdict)
            return
        receiver = verdict.receiver
        if isinstance(receiver, AbsentReceiver):
            receiver.backoff = backoff  # nothing changed: the next pause is longer
            receiver.add(again, pending, persist=persist)
            self.look_for(receiver)
        else:
            self._wait_at(receiver, again, pending, persist=persist)

    def _wait_at(
        self, receiver: Receiver, arrival: Arrival, pending: _Pending, *, persist: bool
    ) -> None:
        """Let a message wait for room at a receiver, and its sender for what comes of that."""
        inner = pending.inner = receiver.wait_for_room(arrival, None)

        def settled(inner: PendingVerdict) -> None:
            if pending.done():
                return
            verdict = None if inner.cancelled() else inner.result()
            if verdict is None and persist:
                backoff = Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)
                self._take_again(arrival, pending, persist=True, backoff=backoff)
            else:
                pending.set_result(verdict)

        inner.add_done_callback(settled)
        pending.add_done_callback(lambda _: inner.cancel())

    def _forget(self, absent: AbsentReceiver) -> None:
        self._waited_for.pop(absent.key, None)
        absent.stop_timer()


def _pending(deadline: float | None) -> _Pending:
    """Something to wait for until a time of the running loop's clock, or as long as it takes."""
    loop = asyncio.get_running_loop()
    pending = _Pending(loop=loop)
    if deadline is not None:
        alarm = loop.call_at(deadline, pending.give_up)
        pending.add_done_callback(lambda _: alarm.cancel())
    return pending
