"""Messages for somebody who is not there: a name that nobody has, a place that cannot be reached.

They wait in line, by name or by place, and nothing is spent on them while they do. A name that gets
a routing entry lets its line go at once; a leaf asks its parents for it meanwhile. A place is tried
again with growing pauses. What is let go enters the node anew, at that later instant, since it is
then that the rules decide about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from waystation.core.address import Address
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.net.backoff import Backoff
from waystation.node.inbox import WaitingLine
from waystation.node.receiver import Receiver

if TYPE_CHECKING:
    from waystation.node.node import Node

Key: TypeAlias = str | Address  # a participant, or a place
Room: TypeAlias = "asyncio.Future[Verdict | None]"
Take: TypeAlias = Callable[[Arrival], Any]

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0


class _Room(asyncio.Future[Verdict | None]):
    """What the sender of a message waits for, wherever the message itself waits at the moment."""

    inner: Room | None = None  # where it waits for room, if it found somebody

    @property
    def got_in(self) -> bool:
        """Whether it was taken; its sender is told in the next turn of the loop."""
        inner = self.inner
        return (
            inner is not None
            and inner.done()
            and not inner.cancelled()
            and inner.result() is not None
        )

    def give_up(self) -> None:
        """Wait no longer, unless it was just taken."""
        if not self.done() and not self.got_in:
            self.set_result(None)


def got_in(room: Room) -> bool:
    """Whether a message was taken although nobody waits for that any more."""
    return isinstance(room, _Room) and room.got_in


class Absence:
    """Somebody who is not there, as the receiver of what is sent to it."""

    __slots__ = ("_absences", "asked", "backoff", "key", "line", "refusal", "timer", "verdict")

    def __init__(self, absences: Absences, key: Key, reason: Reason, recipient: str | None) -> None:
        self._absences = absences
        self.key = key
        self.refusal = reason
        self.verdict = Verdict(Outcome.DROPPED, reason, recipient)
        self.line: WaitingLine[tuple[Arrival, bool]] = WaitingLine()
        self.backoff = Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)
        self.timer: asyncio.TimerHandle | None = None
        self.asked = False  # a parent has yet to answer

    @property
    def can_be_asked_for(self) -> bool:
        """Whether a parent may know who it is."""
        return self._absences.can_ask(self)

    def offer(self, arrival: Arrival) -> Verdict | None:  # noqa: ARG002 - nobody is there
        """Take nothing."""
        return None

    def line_up(self, arrival: Arrival, deadline: float | None) -> Room:
        """Wait until a parent has said whether it knows the name."""
        return self.wait(arrival, deadline, persist=False)

    def wait(self, arrival: Arrival, deadline: float | None, *, persist: bool) -> Room:
        """Wait until somebody is there, or, without `persist`, until it is known that nobody is."""
        room = _room(deadline)
        self.join(arrival, room, persist=persist)
        self._absences.attend(self)
        return room

    def join(self, arrival: Arrival, room: _Room, *, persist: bool) -> None:
        """Let a message wait here, behind the others."""
        self.line.rejoin((arrival, persist), room)
        self._absences.waiting += 1
        room.add_done_callback(lambda _: self._absences.left(self))

    def waiting(self) -> int:
        """How many wait."""
        return len(self.line.line)


class Absences:
    """Everybody whom messages of one node wait for."""

    def __init__(self, node: Node, take: Take) -> None:
        self._node = node
        self._take = take
        self._waited_for: dict[Key, Absence] = {}
        self.waiting = 0  # messages, for whomever

    def of(self, key: Key, reason: Reason, recipient: str | None) -> Absence:
        """The receiver that stands for whoever is not there."""
        known = self._waited_for.get(key)
        return Absence(self, key, reason, recipient) if known is None else known

    def can_ask(self, absence: Absence) -> bool:
        """Whether somebody else may know a name."""
        return isinstance(absence.key, str) and bool(self._node.hierarchy.parents)

    def attend(self, absence: Absence) -> None:
        """See that an absence ends, if it can be helped."""
        self._waited_for.setdefault(absence.key, absence)
        if absence.timer is not None or absence.asked:
            return
        if self.can_ask(absence):
            self._ask(absence)
        elif not isinstance(absence.key, str):
            self._try_later(absence)

    def appeared(self, key: Key) -> None:
        """Let go what waits for somebody who is there now: before anything that is sent later."""
        absence = self._waited_for.get(key)
        if absence is not None:
            self._let_go(absence)

    def ask_again(self) -> None:
        """Ask for everybody who is waited for: there is a parent that may know."""
        for absence in list(self._waited_for.values()):
            if isinstance(absence.key, str) and not absence.asked:
                self._rest(absence)
                self._ask(absence)

    def left(self, absence: Absence) -> None:
        """Note that one waits no longer; forget somebody whom nobody waits for any more."""
        self.waiting -= 1
        if not absence.line.line and self._waited_for.get(absence.key) is absence:
            self._forget(absence)

    def turn_away_all(self) -> None:
        """Tell everybody who waits that it is over."""
        waited_for, self._waited_for = self._waited_for, {}
        for absence in waited_for.values():
            self._rest(absence)
            absence.line.turn_away()

    def pursue(self, receiver: Receiver, arrival: Arrival, deadline: float | None) -> Room:
        """Wait for room at a receiver, and for the receiver itself should it go away meanwhile."""
        if isinstance(receiver, Absence):
            return receiver.wait(arrival, deadline, persist=True)
        outer = _room(deadline)
        self._follow(outer, receiver, arrival, persist=True)
        return outer

    def _ask(self, absence: Absence) -> None:
        participant = absence.key
        assert isinstance(participant, str)

        def answered(found: bool) -> None:
            absence.asked = False
            if self._waited_for.get(participant) is not absence or found:
                return  # what was found has a routing entry, and its line is let go for that
            self._turn_away_the_impatient(absence)
            if absence.line.line:
                self._try_later(absence)
            else:
                self._forget(absence)

        absence.asked = True
        self._node.hierarchy.ask(participant, answered)

    def _turn_away_the_impatient(self, absence: Absence) -> None:
        line = absence.line.line
        for _ in range(len(line)):
            (arrival, persist), room = line.popleft()
            if persist and not room.done():
                line.append(((arrival, persist), room))
            else:
                _give_up(room)

    def _try_later(self, absence: Absence) -> None:
        pause = absence.backoff.next()
        absence.timer = asyncio.get_running_loop().call_later(pause, self._try_again, absence)

    def _try_again(self, absence: Absence) -> None:
        absence.timer = None
        if isinstance(absence.key, str):
            if self._still_waits(absence):
                self._ask(absence)
        else:
            self._let_go(absence)

    def _still_waits(self, absence: Absence) -> bool:
        if any(not room.done() for _, room in absence.line.line):
            return True
        self._forget(absence)
        return False

    def _let_go(self, absence: Absence) -> None:
        """Let each message of a line find its way, in order."""
        if self._waited_for.get(absence.key) is not absence:
            return
        self._forget(absence)
        line = absence.line
        while (first := line.next()) is not None:
            (arrival, persist), room = first
            assert isinstance(room, _Room)
            self._enter(arrival, room, persist=persist, backoff=absence.backoff)

    def _enter(self, arrival: Arrival, room: _Room, *, persist: bool, backoff: Backoff) -> None:
        again = Arrival(arrival.message, self._node.tick(), arrival.from_global)
        taken = self._take(again)
        if isinstance(taken, Verdict):
            room.set_result(taken)
        elif isinstance(taken, Absence):
            taken.backoff = backoff  # nothing changed: the next pause is longer
            taken.join(again, room, persist=persist)
            self.attend(taken)
        else:
            self._follow(room, taken, again, persist=persist)

    def _follow(self, outer: _Room, receiver: Receiver, arrival: Arrival, *, persist: bool) -> None:
        """Let a message that waits here wait there."""
        inner = outer.inner = receiver.line_up(arrival, None)

        def settled(inner: Room) -> None:
            if outer.done():
                return
            verdict = None if inner.cancelled() else inner.result()
            if verdict is None and persist:
                backoff = Backoff(first=FIRST_PAUSE, most=LONGEST_PAUSE)
                self._enter(arrival, outer, persist=True, backoff=backoff)
            else:
                outer.set_result(verdict)

        inner.add_done_callback(settled)
        outer.add_done_callback(lambda _: inner.cancel())

    def _forget(self, absence: Absence) -> None:
        self._waited_for.pop(absence.key, None)
        self._rest(absence)

    def _rest(self, absence: Absence) -> None:
        if absence.timer is not None:
            absence.timer.cancel()
            absence.timer = None


def waits_until(arrival: Arrival, seconds: float | None, now: int) -> float | None:
    """Seconds that a message may wait: no longer than it lives."""
    expiry = arrival.message.expiry
    if expiry == NEVER:
        return seconds
    left = max(0.0, expiry / 1000 - now / 1_000_000)
    return left if seconds is None else min(seconds, left)


def _room(deadline: float | None) -> _Room:
    """Something to wait for until a time of the running loop's clock, or as long as it takes."""
    loop = asyncio.get_running_loop()
    room = _Room(loop=loop)
    if deadline is not None:
        alarm = loop.call_at(deadline, room.give_up)
        room.add_done_callback(lambda _: alarm.cancel())
    return room


def _give_up(room: Room) -> None:
    if not room.done():
        room.set_result(None)
