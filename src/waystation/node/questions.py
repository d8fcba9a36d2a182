"""Questions: who has a name that this node does not know, and what its peers want to know of it.

A node asks its parents, one after the other. A hub replies at once if it knows the name, and asks
its own parents if it does not. Whoever was told that a name is reached here hears when it goes, and
whoever asked in vain hears when it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from waystation.core.expiry import expiry_after
from waystation.core.record import Cause
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError
from waystation.node.wanted import Wanted
from waystation.wire import hierarchy as wire
from waystation.wire.hierarchy import Appeared, Resolve, Resolved, Withdraw

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.session import Session

QUESTION_TIME: Final = 5.0
"""Timeout in seconds for a parent's answer whether it knows a participant."""

REMEMBERED: Final = 60_000
"""Lifetime of a parent's answer in milliseconds."""

ASKED_LIMIT: Final = 16
"""Maximum number of nodes that pass a question up."""

TOLD_LIMIT: Final = 100_000
"""Maximum number of participants whose askers are remembered, to tell them of its removal."""

QUESTION_LIMIT: Final = 1_000
"""Maximum number of questions of one peer that the parents have yet to answer (FL-5)."""

Answered: TypeAlias = Callable[[bool], None]  # called with whether the participant was found


class _Question(Struct, eq=False):
    """One participant, asked for at one parent after the other."""

    number: int
    participant: str
    left: list[Session]  # parents that were not asked yet
    asked: list[str]  # names of nodes that do not know it
    answered: list[Answered]
    parent: Session | None = None
    timeout: asyncio.TimerHandle | None = None


class Questions:
    """What one node asks its parents, and what it replies to its peers."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.numbers = count(1)  # of all that this node asks its peers
        self._open: dict[int, _Question] = {}
        self._by_participant: dict[str, _Question] = {}
        self._told: dict[str, dict[bytes, None]] = {}  # by participant: addresses of sessions
        self._wanted = Wanted(kernel)
        self.wanted = self._wanted.askers
        """The names that somebody asked for in vain; mostly none."""
        self._gone: dict[str, None] = {}  # of them, those that went in this turn of the event loop

    # Asking

    def ask(self, participant: str, answered: Answered, asked: list[str] | None = None) -> None:
        """Ask the parents for a participant; several who ask for the same get one answer.

        When it is found, there is a routing entry before anybody is told.
        """
        question = self._by_participant.get(participant)
        if question is not None:
            question.answered.append(answered)
            return
        parents = self._kernel.hierarchy.parents
        open_first = sorted(parents, key=lambda parent: not parent.is_open)
        asked = [*(asked or []), self._kernel.name]
        question = _Question(next(self.numbers), participant, open_first, asked, [answered])
        self._open[question.number] = self._by_participant[participant] = question
        self._ask_next(question)

    def link_opened(self, parent: Session) -> None:
        """Ask a parent what waits for it, or for any parent."""
        for question in list(self._open.values()):
            if question.parent is None or question.parent is parent:
                self._put(question, parent)

    def receive_answer(self, parent: Session, answer: Resolved) -> None:
        """Take the answer of a parent."""
        question = self._open.get(answer.number)
        if question is None or question.parent is not parent:
            return
        if not answer.found:
            self._ask_next(question)
            return
        self._put_found(question.participant, parent)
        self._settle(question, found=True)

    def receive_appeared(self, session: Session, told: Appeared) -> None:
        """Note what a parent knows by now, if somebody here or below still waits for it."""
        for name in told.participants if session.is_parent else ():
            kernel = self._kernel
            waited_for = name in kernel.waiting.waited_for or name in kernel.custody.absent
            if waited_for or name in self._wanted:
                self._put_found(name, session)

    def _put_found(self, participant: str, parent: Session) -> None:
        kernel = self._kernel
        expiry = expiry_after(kernel.tick() // 1000, REMEMBERED)
        entry = RoutingEntry.of_discovery(participant, parent.address, expiry)
        with contextlib.suppress(LocalError):  # a session of this node has the name by now
            kernel.put_route(entry, (Cause.RESOLVED, parent.name, None))

    def _ask_next(self, question: _Question) -> None:
        if question.timeout is not None:
            question.timeout.cancel()
        if not question.left:
            self._settle(question, found=False)
            return
        question.parent = parent = question.left.pop(0)
        loop = asyncio.get_running_loop()
        question.timeout = loop.call_later(QUESTION_TIME, self._ask_next, question)
        if parent.is_open:  # else it is asked as soon as it opens
            self._put(question, parent)

    @staticmethod
    def _put(question: _Question, parent: Session) -> None:
        question.parent = parent
        ask = Resolve(question.number, question.participant, question.asked)
        parent.send_control(wire.encode(ask))

    def _settle(self, question: _Question, *, found: bool) -> None:
        del self._open[question.number], self._by_participant[question.participant]
        if question.timeout is not None:
            question.timeout.cancel()
        for answered in question.answered:
            answered(found)

    # Answering

    def answer(self, session: Session, question: Resolve) -> None:
        """Reply to a peer, at once or when the parents have."""
        kernel = self._kernel
        name, number = question.participant, question.number

        def answered(found: bool) -> None:
            known = found and self.is_elsewhere(name, session)
            if known:
                self._remember(name, session)
            elif not session.is_parent:
                self._wanted.add(name, session)
            session.answer(wire.encode(Resolved(number, known)))

        def parent_answered(found: bool) -> None:
            session.questions -= 1
            answered(found)

        known = kernel.entry(name) is not None
        goes_up = bool(kernel.hierarchy.parents) and not session.is_parent
        asked = question.asked
        if known or not goes_up or kernel.name in asked or len(asked) >= ASKED_LIMIT:
            answered(found=known)
        elif session.questions >= QUESTION_LIMIT:
            kernel.flow.unanswered += 1
            answered(found=False)
        else:
            session.questions += 1
            self.ask(name, parent_answered, asked)

    def is_elsewhere(self, name: str, session: Session) -> bool:
        """Whether a participant is reached from here, and not over this session."""
        entry = self._kernel.entry(name)
        return entry is not None and entry.address != session.address

    def participant_came(self, entry: RoutingEntry) -> None:
        """Tell whoever asked in vain for a participant that it is reached here now."""
        for session in self._wanted.appeared(entry):
            self._remember(entry.participant, session)

    def participant_gone(self, name: str) -> None:
        """Tell whoever asked for a participant that it is gone, unless it has come back by then."""
        if name in self._told:
            if not self._gone:
                asyncio.get_running_loop().call_soon(self._tell_gone)
            self._gone[name] = None

    def _tell_gone(self) -> None:
        gone, self._gone = self._gone, {}
        sessions = self._kernel.links.sessions
        for name in gone:
            told = self._told.pop(name, {})
            for data in list(told):
                session = sessions.get(data)
                if session is None or not self.is_elsewhere(name, session):
                    del told[data]
                    if session is not None:
                        session.answer(wire.encode(Withdraw([name])))
            if told:
                self._told[name] = told

    def _remember(self, name: str, session: Session) -> None:
        """Remember who was told that a participant is reached here, to withdraw it when it goes."""
        if len(self._told) >= TOLD_LIMIT:
            self._told.clear()  # the answers expire soon in any case
        self._told.setdefault(name, {})[session.address.data] = None
