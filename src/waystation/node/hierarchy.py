"""Hubs and leaves: what they tell each other, and what becomes of it.

A node that connects with `parent=True` is a leaf of the node it connects to. Each time the session
opens it announces its own participants there, those of its own leaves, and who of them subscribes
to which broadcasts. It asks there for participants that it does not know. A node made with
`hub=True` accepts such announcements: they become local routing entries that point at the session,
and are removed with it (RE-12). Nobody can announce a name that is this node's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from waystation.core.multicast import SubscriptionChange, SubscriptionKind
from waystation.core.routing import RouteChange, RouteKind, RoutingEntry
from waystation.errors import LocalError, quote
from waystation.node.questions import Questions
from waystation.wire import hierarchy as wire
from waystation.wire.hierarchy import (
    Announce,
    Appeared,
    Contested,
    Declined,
    Payload,
    Resolve,
    Resolved,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Withdraw,
)

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.session import Session

NAME_LIMIT: Final = 1_024
"""Maximum length of the name of an announced participant."""

COMPLAINT_LIMIT: Final = 100
"""Maximum number of complaints about one peer that are logged and sent to it."""

CHECK_INTERVAL: Final = 10_000
"""Milliseconds between two checks of which participants of a full session are gone."""

_log = logging.getLogger("waystation.node")


class Hierarchy:
    """The parents and leaves of one node."""

    def __init__(self, kernel: Kernel, *, hub: bool) -> None:
        self.parents: list[Session] = []
        self._kernel = kernel
        self.is_hub = hub
        # What the parents are to be told at the end of this turn of the event loop:
        self._changed_entries: dict[str, RoutingEntry | None] = {}  # None: withdrawn
        self._changed_subscriptions: dict[Subscribed, bool] = {}  # False: unsubscribed
        self.questions = Questions(kernel)
        self.taken: dict[str, str] = {}  # names of this node, and who holds them instead (CL-4)

    # Upward: what the parents are told

    def add_parent(self, session: Session) -> None:
        """Become a leaf of the node at the other end of a session."""
        session.is_parent = True
        self.parents.append(session)
        self._kernel.router.has_parent = True

    def session_ended(self, session: Session) -> None:
        """Forget a session that ended, and the participants reached over it (RE-12)."""
        if session.is_parent:
            self.parents.remove(session)
            self._kernel.router.has_parent = bool(self.parents)
            self._kernel.readiness.parent_lost(session, ended=True)
        for change in self._kernel.remove_routes_over(session.address):
            session.participants[change.entry.participant] = None
        self._prune_participants(session)

    def link_lost(self, session: Session) -> None:
        """Forget the participants reached over a parent without a link, if another can be asked."""
        if session.is_parent:
            self._kernel.readiness.parent_lost(session, ended=False)
        if session.is_parent and len(self.parents) > 1:
            self._kernel.remove_routes_over(session.address)

    def link_opened(self, session: Session) -> None:
        """Announce everything to a parent: it may have forgotten us, or never have known us."""
        if not session.is_parent:
            return
        kernel = self._kernel
        now = kernel.tick() // 1000
        entries = [
            wire.participant_of(entry)
            for entry in kernel.router.table.snapshot(now).values()
            if self._is_announced(entry)
        ]
        subscribed = kernel.router.subscriptions.snapshot()
        _log.debug(
            "session %s: announcing %d participants and %d subscriptions",
            *(session.name, len(entries), len(subscribed)),
        )
        _send([session], (Announce, entries), (Subscribe, subscribed))
        self.questions.link_opened(session)
        kernel.readiness.parent_opened(session)
        kernel.directory.opened(session)
        kernel.waiting.ask_again()

    def route_changed(self, change: RouteChange) -> None:
        """Tell the parents of a changed entry, and whoever asked for it that it was removed."""
        entry = change.entry
        put = change.kind is RouteKind.PUT
        if self.parents and change.accepted and self._is_announced(entry):
            self._announce_soon()
            self._changed_entries[entry.participant] = entry if put else None
        if not put:
            self.questions.participant_gone(entry.participant)
        elif change.accepted:
            self.questions.participant_came(entry)

    def subscription_changed(self, change: SubscriptionChange) -> None:
        """Tell the parents of a subscription that came or went."""
        self._announce_soon()
        subscribed = change.kind is SubscriptionKind.SUBSCRIBE
        self._changed_subscriptions[change.pattern, change.receiver] = subscribed

    def announce_changes(self) -> None:
        """Tell the parents of all changes now: what is sent after this counts on it."""
        changed, self._changed_entries = self._changed_entries, {}
        subscriptions, self._changed_subscriptions = self._changed_subscriptions, {}
        if not changed and not subscriptions:
            return
        withdrawn = [name for name, entry in changed.items() if entry is None]
        announced = [wire.participant_of(entry) for entry in changed.values() if entry is not None]
        unsubscribed = [pair for pair, wanted in subscriptions.items() if not wanted]
        subscribed = [pair for pair, wanted in subscriptions.items() if wanted]
        _log.debug(
            "node %s announces %d participants and %d subscriptions, and withdraws %d and %d",
            *(self._kernel.name, len(announced), len(subscribed)),
            *(len(withdrawn), len(unsubscribed)),
        )
        _send(
            self.parents,
            *((Unsubscribe, unsubscribed), (Withdraw, withdrawn)),
            *((Announce, announced), (Subscribe, subscribed)),
        )

    def _announce_soon(self) -> None:
        if not self._changed_entries and not self._changed_subscriptions:
            asyncio.get_running_loop().call_soon(self.announce_changes)

    def _is_announced(self, entry: RoutingEntry) -> bool:
        return entry.local and not self._kernel.is_reserved(entry.participant)

    # What peers say

    def when_settled(self, session: Session, settled: Callable[[], None]) -> None:  # noqa: ARG002
        """Call back when it is known who holds the names that a session announced."""
        settled()

    def receive(self, session: Session, payload: bytes) -> bool:
        """Take a payload from the peer of a session; False if it is none of a hierarchy."""
        told = wire.read(payload)
        if told is None:
            return False
        if isinstance(told, Resolve | Resolved | Appeared):
            self._receive_question(session, told)
        elif isinstance(told, Contested):
            self._receive_contested(session, told)
        elif isinstance(told, Declined):
            self._complain(session, f"the peer declined an announcement: {quote(told.why)}")
        elif isinstance(told, Withdraw) and session.is_parent:
            for name in filter(partial(self._is_at, session), told.participants):
                self._kernel.remove_route(name)
        elif session.from_outside:
            self._decline(session, "a peer from outside cannot be a leaf")
        elif self.is_hub and not session.is_parent:
            self._receive_from_leaf(session, told)
        else:
            why = f"node {self._kernel.name} is not a hub; create it with hub=True"
            self._decline(session, why)
        return True

    def _receive_question(self, session: Session, told: Resolve | Resolved | Appeared) -> None:
        readiness = self._kernel.readiness
        if isinstance(told, Resolve):
            (readiness if told.ready else self.questions).answer(session, told)
        elif isinstance(told, Appeared):
            self.questions.receive_appeared(session, told)
        elif not readiness.receive_answer(session, told):
            self.questions.receive_answer(session, told)

    def _receive_contested(self, session: Session, told: Contested) -> None:
        for name, holder, is_taken in told.contests if session.is_parent else ():
            if is_taken and self._kernel.own_receiver(name) is not None:
                self.taken[name] = holder
            else:
                self.taken.pop(name, None)

    def _receive_from_leaf(self, session: Session, told: Payload) -> None:
        if isinstance(told, Announce):
            number = len(told.participants)
            _log.debug("session %s: %d participants announced", session.name, number)
            for participant in told.participants:
                self._add(session, participant)
        elif isinstance(told, Withdraw):
            for name in told.participants:
                self._withdraw(session, name)
        elif isinstance(told, Subscribe):
            for pattern, receiver in told.pairs:
                self._subscribe(session, pattern, receiver)
        elif isinstance(told, Unsubscribe):
            for pattern, receiver in told.pairs:
                if self._is_at(session, receiver):
                    removed = self._kernel.broadcasts.remove_subscriber(pattern, receiver)
                    session.subscriptions -= removed

    def _add(self, session: Session, participant: wire.Participant) -> None:
        name, visible, _ = participant
        kernel, limit = self._kernel, self._kernel.limits.participants
        if len(name) > NAME_LIMIT:
            self._decline(session, f"{quote(name)} is longer than {NAME_LIMIT} characters")
        elif kernel.is_own_name(name):
            self._decline(session, f"{quote(name)} is a name of node {kernel.name} itself")
        elif not self.may_add(session, name):
            self._decline(session, f"a session announces at most {limit} participants")
        else:
            expiry = session.in_own_time(wire.expiry_of(participant))
            address = session.address
            try:
                entry = RoutingEntry.of(name, address, local=True, visible=visible, expiry=expiry)
                kernel.put_route(entry)
            except LocalError as error:
                self._decline(session, str(error))
            else:
                session.participants[name] = None

    def may_add(self, session: Session, name: str) -> bool:
        """Whether one more participant may be reached over a session."""
        limit = self._kernel.limits.participants
        if name in session.participants or len(session.participants) < limit:
            return True
        now = self._kernel.tick() // 1000
        if now >= session.checked_at + CHECK_INTERVAL:
            session.checked_at = now
            self._prune_participants(session)
        return len(session.participants) < limit

    def _prune_participants(self, session: Session) -> None:
        """Forget participants that expired or moved elsewhere, and what they subscribed to."""
        table, now = self._kernel.router.table, self._kernel.tick() // 1000
        for name in list(session.participants):
            entry = table.lookup(name, now)
            if entry is None:
                session.subscriptions -= self._kernel.broadcasts.drop_subscriber(name)
            if entry is None or entry.address != session.address:
                del session.participants[name]

    def _withdraw(self, session: Session, name: str) -> None:
        if self._is_at(session, name):
            session.subscriptions -= self._kernel.broadcasts.drop_subscriber(name)
            self._kernel.remove_route(name)
        session.participants.pop(name, None)

    def _subscribe(self, session: Session, pattern: str, receiver: str) -> None:
        limit = self._kernel.limits.participants
        if not self._is_at(session, receiver):
            self._decline(session, f"{quote(receiver)} was not announced by {session.name}")
            return
        if session.subscriptions >= limit:
            self._decline(session, f"a session subscribes at most {limit} times")
            return
        try:
            session.subscriptions += self._kernel.broadcasts.add_subscriber(pattern, receiver)
        except LocalError as error:
            self._decline(session, str(error))

    def _is_at(self, session: Session, name: str) -> bool:
        entry = self._kernel.entry(name)
        return entry is not None and entry.address == session.address

    def _decline(self, session: Session, why: str) -> None:
        """Tell a peer, once for each cause and not for ever, that something is not accepted."""
        if self._complain(session, why):
            session.answer(wire.encode(Declined(why)))

    def _complain(self, session: Session, why: str) -> bool:
        if len(session.complaints) >= COMPLAINT_LIMIT or why in session.complaints:
            return False
        session.complaints.add(why)
        _log.warning("session %s: %s", session.name, why)
        return True


def _send(sessions: list[Session], *lists: tuple[Callable[[Any], Payload], Sequence[Any]]) -> None:
    """Send each list to all these sessions, in as many payloads as it takes."""
    for kind, items in lists:
        for part in wire.in_payloads(items):
            payload = wire.encode(kind(part))
            for session in sessions:
                session.send_control(payload)
