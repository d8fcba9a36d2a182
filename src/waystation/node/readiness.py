"""Whether the parents have taken what this node announced, and the hubs above them (CL-4).

A node asks each parent behind its announcements: what sessions tell each other stays in order, so
the reply says that all before was taken. A hub asks its own parents before it replies, so that one
reply speaks for the whole way up. A hub of the first version does not know the question and replies
at once, since the list of those who were asked is full (UP-1).

Hubs may be each other's parents. So a hub passes a question on once: it knows it again by its id,
and by its own name among those who were asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from waystation.errors import LocalError, NameTaken, NotReadyError, quote
from waystation.node.policy import check_seconds
from waystation.node.questions import ASKED_LIMIT, QUESTION_LIMIT
from waystation.wire import hierarchy as wire
from waystation.wire.hierarchy import Resolve, Resolved

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.session import Session

READY_TIME: Final = 10.0
"""Default timeout in seconds for the parents to take what was announced."""

SETTLING_TIME: Final = 1.0
"""Seconds by which a contest may be decided later than its limit says."""


class _Question(Struct, eq=False):
    """Asks the parents whether they have taken everything, for a caller here or for a leaf."""

    id: str
    path: list[str]  # names of the nodes that it passed, this one last
    missing: dict[Session, int]  # parents that have not replied, with the numbers they got
    ended: Callable[[], None]  # called when all have
    is_own: bool = False  # the caller is here, and waits also for a parent without a link
    not_hubs: list[Session] = []


class Readiness:
    """Who of one node's parents has taken everything, and who asks this node the same."""

    FORGET_TIME = 60.0  # seconds after which a leaf's question that no parent answers is forgotten
    KNOWN_LIMIT = 10_000  # questions that a hub knows again

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._questions: dict[_Question, None] = {}
        self._by_number: dict[int, tuple[_Question, Session]] = {}
        self._known: dict[str, None] = {}  # ids of the questions that leaves asked

    async def wait(self, seconds: float = READY_TIME, *, names: bool = True) -> None:
        """Wait until every parent has taken what was announced so far.

        Raises NotReadyError if one has not, and NameTaken if another node holds a name of this one,
        unless the caller is not interested in `names`.
        """
        check_seconds(seconds)
        self._check_open()
        parents = list(self._kernel.hierarchy.parents)
        if parents:
            await self._ask_and_wait(parents, seconds)
            self._check_open()
        taken = self._kernel.hierarchy.taken
        if names and taken:
            raise NameTaken(taken, [_place_of(parent) for parent in parents])

    async def _ask_and_wait(self, parents: Sequence[Session], seconds: float) -> None:
        kernel, done = self._kernel, asyncio.Event()
        question = _Question(
            kernel.new_id(), [kernel.name], dict.fromkeys(parents, 0), done.set, is_own=True
        )
        self._ask(question)
        try:
            async with asyncio.timeout(seconds):
                await done.wait()
        except TimeoutError:
            late = {parent.name: _what_is_wrong(parent, seconds) for parent in question.missing}
            raise NotReadyError(late) from None
        finally:
            self._forget(question)
        if question.not_hubs:
            why = "is not a hub; create it with hub=True, or connect without parent=True"
            raise NotReadyError({parent.name: why for parent in question.not_hubs})

    def _check_open(self) -> None:
        if self._kernel.links.closing:
            raise LocalError(
                f"node {quote(self._kernel.name)} is closed", rule="CL-4", hint="ask before"
            )

    # What leaves ask

    def answer(self, session: Session, question: Resolve) -> None:
        """Reply to a leaf as soon as all that it announced was taken, here and by the parents."""
        kernel, id = self._kernel, question.participant
        if not kernel.hierarchy.is_hub or session.is_parent or session.from_outside:
            session.answer(wire.encode(Resolved(question.number, found=False)))
            return
        if session.questions >= QUESTION_LIMIT:
            kernel.flow.unanswered += 1
            return
        session.questions += 1
        path = list(dict.fromkeys(question.asked))
        reply = partial(self._reply_when_settled, session, question.number)
        if id in self._known or kernel.name in path or len(path) >= ASKED_LIMIT:
            reply()
        else:
            self._remember(id)
            self._pass_on(session, id, [*path, kernel.name], reply)

    def _pass_on(
        self, session: Session, id: str, path: list[str], reply: Callable[[], None]
    ) -> None:
        """Ask the parents that have a link, and reply when they have."""

        def give_up() -> None:
            session.questions -= 1
            self._forget(question)

        def ended() -> None:
            timeout.cancel()
            reply()

        timeout = asyncio.get_running_loop().call_later(self.FORGET_TIME, give_up)
        open_ones = [parent for parent in self._kernel.hierarchy.parents if parent.is_open]
        question = _Question(id, path, dict.fromkeys(open_ones, 0), ended)
        self._ask(question)

    def _reply_when_settled(self, session: Session, number: int) -> None:
        """Reply when it is decided who holds the leaf's names: who does not was told before.

        Contests that begin later must not delay it for ever, so it waits as long as one takes.
        """

        def reply() -> None:
            if not timeout.cancelled():
                timeout.cancel()
                session.questions -= 1
                session.answer(wire.encode(Resolved(number, found=True)))

        seconds = self._kernel.limits.contest + SETTLING_TIME
        timeout = asyncio.get_running_loop().call_later(seconds, reply)
        self._kernel.hierarchy.contests.when_settled(session, reply)

    def _remember(self, id: str) -> None:
        if len(self._known) >= self.KNOWN_LIMIT:
            del self._known[next(iter(self._known))]
        self._known[id] = None

    # What the parents are asked

    def _ask(self, question: _Question) -> None:
        self._questions[question] = None
        self._kernel.hierarchy.announce_changes()
        for parent in list(question.missing):
            if parent.is_open:  # else it is asked as soon as it opens
                self._put(question, parent)
        self._end_if_complete(question)

    def _put(self, question: _Question, parent: Session) -> None:
        self._by_number.pop(question.missing[parent], None)  # of a link that is gone
        number = next(self._kernel.hierarchy.questions.numbers)
        question.missing[parent] = number
        self._by_number[number] = question, parent
        own = self._kernel.name
        asked = [*question.path, *[own] * (ASKED_LIMIT - len(question.path))]
        parent.send_control(wire.encode(Resolve(number, question.id, asked, ready=True)))

    def receive_answer(self, parent: Session, answer: Resolved) -> bool:
        """Take the answer of a parent; False if it is to another question."""
        question, asked = self._by_number.get(answer.number, (None, None))
        if question is None or asked is not parent:
            return False
        if not answer.found and parent.can(wire.CAPABILITY):
            question.not_hubs.append(parent)
        self._miss_no_longer(question, parent)
        return True

    def parent_opened(self, parent: Session) -> None:
        """Ask a parent that has a link now, behind all that it was just told."""
        for question in self._questions:
            if parent in question.missing:
                question.id = self._kernel.new_id()
                self._put(question, parent)

    def parent_lost(self, parent: Session, *, ended: bool) -> None:
        """Wait no longer for a parent that has no link, except for a caller here if it stays."""
        for question in list(self._questions):
            if parent in question.missing and (ended or not question.is_own):
                self._miss_no_longer(question, parent)

    def _miss_no_longer(self, question: _Question, parent: Session) -> None:
        self._by_number.pop(question.missing.pop(parent), None)
        self._end_if_complete(question)

    def _end_if_complete(self, question: _Question) -> None:
        if not question.missing:
            self._forget(question)
            question.ended()

    def _forget(self, question: _Question) -> None:
        self._questions.pop(question, None)
        for number in question.missing.values():
            self._by_number.pop(number, None)


def _what_is_wrong(parent: Session, seconds: float) -> str:
    """Why a parent did not reply, as far as it is known here."""
    where = f"at {_place_of(parent)}"
    if not parent.is_open:
        why = f": {parent.failure}" if parent.failure else ""
        return f"{where} has no link{why}; check that it runs and listens there"
    return f"{where} did not reply within {seconds:g} s; check whether it, or a hub above it, hangs"


def _place_of(parent: Session) -> str:
    peer = "" if parent.peer is None else f" (node {quote(parent.peer)})"
    return f"{parent.place.name}{peer}"
