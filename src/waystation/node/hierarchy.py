"""Parents and children: hubs, the leaves behind them, and what they tell each other.

A node that connects with `parent=True` is a leaf of the node it connects to. It announces its own
participants there, and those of its own leaves, and who of them wants which broadcasts; again each
time the session opens. It asks there for participants that it does not know. A node made with
`hub=True` takes such announcements: they become local entries that point at the session, and go
with it (RE-12). Nobody can announce a name that is this node's own.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

from waystation.core.expiry import expiry_after
from waystation.core.multicast import SubscriptionChange, SubscriptionKind
from waystation.core.routing import RouteChange, RouteKind, RoutingEntry
from waystation.errors import LocalError, quote
from waystation.wire import kinship
from waystation.wire.kinship import (
    Announce,
    Declined,
    Resolve,
    Resolved,
    Said,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Withdraw,
)

if TYPE_CHECKING:
    from waystation.node.node import Node
    from waystation.node.session import Session

QUESTION_TIME: Final = 5.0
"""Seconds after which a parent that was asked for a participant does not know it."""

REMEMBERED: Final = 60_000
"""Milliseconds for which a parent's answer holds; then it is asked again."""

ASKED: Final = 16
"""A question that so many nodes could not answer goes no further up."""

TOLD: Final = 100_000
"""Of so many participants it is remembered who was told that they are here."""

NAME_LIMIT: Final = 1_024
"""No participant that a leaf announces has a longer name."""

COMPLAINTS: Final = 100
"""So often a session says, and a node logs, that something was not taken; then no more."""

CHECK: Final = 10_000
"""Milliseconds after which it is seen again which participants of a full session are gone."""

_log = logging.getLogger("waystation.node")

Answered: TypeAlias = Callable[[bool], None]


class _Question:
    """One participant, asked for at one parent after the other."""

    __slots__ = ("alarm", "answered", "asked", "left", "parent", "participant")

    def __init__(self, participant: str, left: list[Session], asked: list[str]) -> None:
        self.participant = participant
        self.left = left  # parents that were not asked yet
        self.asked = asked
        self.answered: list[Answered] = []
        self.parent: Session | None = None
        self.alarm: asyncio.TimerHandle | None = None


class Hierarchy:
    """The parents and children of one node."""

    def __init__(self, node: Node, *, hub: bool) -> None:
        self.parents: list[Session] = []
        self._node = node
        self.is_hub = hub
        self._news: dict[str, RoutingEntry | None] = {}  # by participant; None for one that went
        self._wishes: dict[Subscribed, bool] = {}  # whether it is wanted
        self._due = False
        self._questions: dict[int, _Question] = {}
        self._open_questions: dict[str, int] = {}
        self._numbers = count(1)
        self._told: dict[str, weakref.WeakSet[Session]] = {}

    # Upward: what the parents are told

    def adopt(self, session: Session) -> None:
        """Be a leaf of the node at the other end of a session."""
        session.is_parent = True
        self.parents.append(session)
        self._node.router.has_parent = True

    def disown(self, session: Session) -> None:
        """Forget a session that ended, and whoever was reached over it (RE-12)."""
        if session in self.parents:
            self.parents.remove(session)
            self._node.router.has_parent = bool(self.parents)
        for change in self._node.remove_routes_over(session.address):
            session.participants.add(change.entry.participant)
        self._forget_those_gone(session)

    def lost(self, session: Session) -> None:
        """Forget who was reached over a parent without a link, if there is another to ask."""
        if session in self.parents and len(self.parents) > 1:
            self._node.remove_routes_over(session.address)

    def opened(self, session: Session) -> None:
        """Tell a parent everything: it may have forgotten us, or never have known us."""
        if session not in self.parents:
            return
        node = self._node
        now = node.tick() // 1000
        entries = [
            kinship.participant_of(entry)
            for entry in node.router.table.snapshot(now).values()
            if self._is_announced(entry)
        ]
        for part in kinship.in_payloads(entries):
            session.say(kinship.encode(Announce(part)))
        for pairs in kinship.in_payloads(node.router.subscriptions.snapshot()):
            session.say(kinship.encode(Subscribe(pairs)))
        for question in list(self._questions.values()):
            if question.parent is None or question.parent is session:
                self._put(question, session)
        node.registry.opened(session)
        node.ask_for_absent()

    def heard_of(self, change: RouteChange) -> None:
        """Tell the parents of a participant that came or went, and whoever was told of it."""
        entry = change.entry
        came = change.kind is RouteKind.PUT
        if self.parents and change.accepted and self._is_announced(entry):
            self._news[entry.participant] = entry if came else None
            self._tell_soon()
        if not came and entry.participant in self._told:
            for session in self._told.pop(entry.participant):
                session.answer(kinship.encode(Withdraw([entry.participant])))

    def heard_of_wish(self, change: SubscriptionChange) -> None:
        """Tell the parents of a subscription that came or went."""
        wanted = change.kind is SubscriptionKind.SUBSCRIBE
        self._wishes[change.pattern, change.receiver] = wanted
        self._tell_soon()

    def tell(self) -> None:
        """Tell the news now: what is sent after this counts on it."""
        self._due = False
        news, self._news = self._news, {}
        wishes, self._wishes = self._wishes, {}
        gone = [name for name, entry in news.items() if entry is None]
        came = [kinship.participant_of(entry) for entry in news.values() if entry is not None]
        unwanted = [pair for pair, wanted in wishes.items() if not wanted]
        wanted = [pair for pair, wanted in wishes.items() if wanted]
        said = [
            *(Unsubscribe(part) for part in kinship.in_payloads(unwanted)),
            *(Withdraw(part) for part in kinship.in_payloads(gone)),
            *(Announce(part) for part in kinship.in_payloads(came)),
            *(Subscribe(part) for part in kinship.in_payloads(wanted)),
        ]
        payloads = [kinship.encode(one) for one in said]
        for parent in self.parents:
            if parent.is_open:
                for payload in payloads:
                    parent.say(payload)

    def _tell_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._tell_if_due)

    def _tell_if_due(self) -> None:
        if self._due:
            self.tell()

    def _is_announced(self, entry: RoutingEntry) -> bool:
        return entry.local and not self._node.is_private(entry.participant)

    # Questions

    def ask(self, participant: str, answered: Answered, asked: list[str] | None = None) -> None:
        """Ask the parents for a participant; several who ask for the same get one answer.

        When it is found, there is a routing entry before anybody is told.
        """
        number = self._open_questions.get(participant)
        if number is not None:
            self._questions[number].answered.append(answered)
            return
        open_first = sorted(self.parents, key=lambda parent: not parent.is_open)
        question = _Question(participant, open_first, [*(asked or []), self._node.name])
        question.answered.append(answered)
        number = next(self._numbers)
        self._questions[number] = question
        self._open_questions[participant] = number
        self._ask_next(number, question)

    def _ask_next(self, number: int, question: _Question) -> None:
        if question.alarm is not None:
            question.alarm.cancel()
        if not question.left:
            self._settle(number, found=False)
            return
        parent = question.left.pop(0)
        loop = asyncio.get_running_loop()
        question.alarm = loop.call_later(QUESTION_TIME, self._ask_next, number, question)
        question.parent = parent
        if parent.is_open:  # else it is asked as soon as it opens
            self._put(question, parent)

    def _put(self, question: _Question, parent: Session) -> None:
        question.parent = parent
        number = self._open_questions[question.participant]
        parent.say(kinship.encode(Resolve(number, question.participant, question.asked)))

    def _settle(self, number: int, *, found: bool) -> None:
        question = self._questions.pop(number)
        del self._open_questions[question.participant]
        if question.alarm is not None:
            question.alarm.cancel()
        for answered in question.answered:
            answered(found)

    def _hear_answer(self, parent: Session, answer: Resolved) -> None:
        question = self._questions.get(answer.number)
        if question is None or question.parent is not parent:
            return
        if not answer.found:
            self._ask_next(answer.number, question)
            return
        node = self._node
        expiry = expiry_after(node.tick() // 1000, REMEMBERED)
        entry = RoutingEntry.of_discovery(question.participant, parent.address, expiry)
        node.put_route(entry)
        self._settle(answer.number, found=True)

    # What peers say

    def hear(self, session: Session, payload: bytes) -> bool:
        """Take what the other end of a session said; False when it is nothing for us."""
        said = kinship.read(payload)
        if said is None:
            return False
        if isinstance(said, Resolve):
            self._answer(session, said)
        elif isinstance(said, Resolved):
            self._hear_answer(session, said)
        elif isinstance(said, Declined):
            self._complain(session, f"the peer does not take what was announced: {quote(said.why)}")
        elif isinstance(said, Withdraw) and session in self.parents:
            for name in said.participants:
                if self._is_at(session, name):
                    self._node.remove_entry(name)
        elif session.outside:
            self._decline(session, "who comes in from outside is no leaf")
        elif self.is_hub and session not in self.parents:
            self._take(session, said)
        else:
            self._decline(session, f"node {self._node.name} is no hub; make it one with hub=True")
        return True

    def _take(self, session: Session, said: Said) -> None:
        if isinstance(said, Announce):
            for participant in said.participants:
                self._let_in(session, participant)
        elif isinstance(said, Withdraw):
            for name in said.participants:
                self._let_out(session, name)
        elif isinstance(said, Subscribe):
            for pattern, receiver in said.pairs:
                self._subscribe(session, pattern, receiver)
        elif isinstance(said, Unsubscribe):
            for pattern, receiver in said.pairs:
                if self._is_at(session, receiver):
                    session.subscriptions -= self._node.multicasts.unsubscribe(pattern, receiver)

    def _let_in(self, session: Session, participant: kinship.Participant) -> None:
        name, visible, _ = participant
        node = self._node
        if len(name) > NAME_LIMIT:
            self._decline(session, f"{quote(name)} is longer than {NAME_LIMIT} characters")
            return
        if node.is_own_name(name):
            self._decline(session, f"{quote(name)} is a name of node {node.name} itself")
            return
        if not self.may_add(session, name):
            limit = node.limits.participants
            self._decline(session, f"no session announces more than {limit} participants")
            return
        expiry = kinship.expiry_of(participant)
        try:
            entry = RoutingEntry.of(
                name, session.address, local=True, visible=visible, expiry=expiry
            )
            node.put_route(entry)
        except LocalError as error:
            self._decline(session, str(error))
            return
        session.participants.add(name)

    def may_add(self, session: Session, name: str) -> bool:
        """Whether one more participant may be reached over a session."""
        limit = self._node.limits.participants
        if name in session.participants or len(session.participants) < limit:
            return True
        now = self._node.tick() // 1000
        if now >= session.checked_at + CHECK:
            session.checked_at = now
            self._forget_those_gone(session)
        return len(session.participants) < limit

    def _forget_those_gone(self, session: Session) -> None:
        """Forget participants that expired or went elsewhere, and what they subscribed to."""
        table, now = self._node.router.table, self._node.tick() // 1000
        for name in list(session.participants):
            entry = table.lookup(name, now)
            if entry is None:
                session.subscriptions -= self._node.multicasts.drop_receiver(name)
            if entry is None or entry.address != session.address:
                session.participants.discard(name)

    def _let_out(self, session: Session, name: str) -> None:
        if self._is_at(session, name):
            session.subscriptions -= self._node.multicasts.drop_receiver(name)
            self._node.remove_entry(name)
        session.participants.discard(name)

    def _subscribe(self, session: Session, pattern: str, receiver: str) -> None:
        limit = self._node.limits.participants
        if not self._is_at(session, receiver):
            self._decline(session, f"{quote(receiver)} was not announced by {session.name}")
            return
        if session.subscriptions >= limit:
            self._decline(session, f"no session subscribes more than {limit} times")
            return
        try:
            session.subscriptions += self._node.multicasts.add_receiver(pattern, receiver)
        except LocalError as error:
            self._decline(session, str(error))

    def _is_at(self, session: Session, name: str) -> bool:
        node = self._node
        entry = node.router.table.lookup(name, node.tick() // 1000)
        return entry is not None and entry.address == session.address

    def _answer(self, session: Session, question: Resolve) -> None:
        node = self._node
        name, number = question.participant, question.number

        def answered(found: bool) -> None:
            entry = node.router.table.lookup(name, node.tick() // 1000)
            known = found and entry is not None and entry.address != session.address
            if known:
                self._remember(name, session)
            session.answer(kinship.encode(Resolved(number, known)))

        known = node.router.table.contains(name, node.tick() // 1000)
        goes_up = bool(self.parents) and session not in self.parents
        if known or not goes_up or node.name in question.asked or len(question.asked) >= ASKED:
            answered(found=known)
        else:
            self.ask(name, answered, question.asked)

    def _remember(self, name: str, session: Session) -> None:
        """Remember who was told that a participant is here, to take it back when it goes."""
        if len(self._told) >= TOLD:
            self._told.clear()  # they ask again after a while in any case
        self._told.setdefault(name, weakref.WeakSet()).add(session)

    def _decline(self, session: Session, why: str) -> None:
        """Say to a peer, once for each cause and not for ever, that something is not taken."""
        if self._complain(session, why):
            session.answer(kinship.encode(Declined(why)))

    def _complain(self, session: Session, why: str) -> bool:
        if len(session.complaints) >= COMPLAINTS or why in session.complaints:
            return False
        session.complaints.add(why)
        _log.warning("session %s: %s", session.name, why)
        return True
