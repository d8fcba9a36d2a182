"""Hubs and leaves: what they tell each other, and who of this node hears it.

A node that connects with `parent=True` is a leaf of the node it connects to. Each time the session
opens it announces its own participants there, those of its own leaves, and who of them subscribes
to which broadcasts (announcements.py). It asks there for participants that it does not know
(questions.py). A node made with `hub=True` accepts such announcements: they are claims, of which
the best becomes a local routing entry that points at the session (claims.py), and they end with it
(RE-12). When two owners claim one name, the hub finds out who lives (contests.py). Nobody can
announce a name that is this node's own.
"""

from __future__ import annotations

import logging
import secrets
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from waystation.core.record import Cause
from waystation.core.routing import RouteChange, RouteKind
from waystation.errors import quote
from waystation.node.announcements import Announcements
from waystation.node.claims import LeafClaims
from waystation.node.contested import ContestedNames
from waystation.node.contests import Contests
from waystation.node.questions import Questions
from waystation.node.vouchers import Vouchers
from waystation.wire import hierarchy as wire
from waystation.wire.hello import owner_of
from waystation.wire.hierarchy import (
    Announce,
    Appeared,
    Contested,
    Declined,
    Payload,
    Resolve,
    Resolved,
    Subscribe,
    Unsubscribe,
    Withdraw,
)

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.session import Session

COMPLAINT_LIMIT: Final = 100
"""Maximum number of complaints about one peer that are logged and sent to it."""

_log = logging.getLogger("waystation.node")


_REMOVE: Final = RouteKind.REMOVE
_QUESTIONS: Final = (Resolve, Resolved, Appeared)


class Hierarchy:
    """The parents and leaves of one node."""

    def __init__(self, kernel: Kernel, *, hub: bool) -> None:
        self.parents: list[Session] = []
        self._kernel = kernel
        self.is_hub = hub
        self.secret = secrets.token_hex(16)
        """What the claims of this node are recognised by; told to its parents only (CL-1)."""
        self.link_numbers = count(1)  # of the links to parents
        self.announcements = Announcements(kernel)
        self.claims = LeafClaims(kernel)
        self.vouchers = Vouchers(kernel)
        self.contests = Contests(kernel)
        self.questions = Questions(kernel)
        self.contested = ContestedNames(
            self.claims.known, self.announcements.damping, self.claims.is_proven
        )

    def keep_secret(self, secret: str, numbered: int) -> None:
        """Be known by the secret of an earlier process, and number links after its own (CL-1)."""
        self.secret = secret
        self.link_numbers = count(numbered + 1)

    @property
    def owner(self) -> str:
        """What the names of this node are known by as its own (CL-1)."""
        own = self._kernel.links.identities.own
        return owner_of(self.secret) if own is None else own.identifier

    def number_link(self) -> int:
        """The number of a new link to a parent: higher than any before (CL-1).

        An identity outlives its node, so its links are numbered by the time.
        """
        number = next(self.link_numbers)
        if self._kernel.links.identities.own is not None:
            number = max(number, self._kernel.tick())
            self.link_numbers = count(number + 1)
        return number

    @property
    def taken(self) -> dict[str, str]:
        """Names of this node that a parent gives to somebody else, with the node that has it."""
        return self.contests.taken

    @property
    def lowest(self) -> int:
        """The lowest number of this node's links to parents that still live; 0 without any."""
        return min((parent.number for parent in self.parents if parent.has_link), default=0)

    def close(self) -> None:
        """Wait for nothing more."""
        self.announcements.close()
        self.claims.close()
        self.contests.close()

    # Sessions

    def add_parent(self, session: Session) -> None:
        """Become a leaf of the node at the other end of a session."""
        session.is_parent = True
        self.parents.append(session)
        self._kernel.router.has_parent = True

    def link_opened(self, session: Session) -> None:
        """Announce everything to a parent, and ask it what waits for an answer."""
        if not session.is_parent:
            return
        self.announcements.link_opened(session)
        self.questions.link_opened(session)
        self._kernel.readiness.parent_opened(session)
        self._kernel.directory.opened(session)
        self._kernel.waiting.ask_again()

    def link_lost(self, session: Session) -> None:
        """Forget the participants reached over a session without a link.

        Over a parent only if another can be asked.
        """
        if not session.is_parent:
            self._end_claims(session)
            return
        self.contests.parent_lost(session)
        self._kernel.readiness.parent_lost(session, ended=False)
        if len(self.parents) > 1:
            self._kernel.remove_routes_over(session.address)
            self.announcements.link_lost()

    def session_ended(self, session: Session) -> None:
        """Forget a session that ended, and the participants reached over it (RE-12)."""
        if session.is_parent:
            self.parents.remove(session)
            self._kernel.router.has_parent = bool(self.parents)
            self._kernel.readiness.parent_lost(session, ended=True)
        self._end_claims(session)
        self._kernel.remove_routes_over(session.address)

    def _end_claims(self, session: Session) -> None:
        self.claims.session_ended(session)
        self.contests.session_ended(session)

    # The table

    def route_changed(self, change: RouteChange) -> None:
        """Tell the parents of a changed entry, and whoever asked for it that it came or went."""
        entry = change.entry
        if change.kind is _REMOVE:
            self.questions.participant_gone(entry.participant)
        else:
            self.questions.participant_came(entry)
        if self.parents:
            self.announcements.entry_changed(entry)

    def announce_changes(self) -> None:
        """Tell the parents of all changes now: what is sent after this counts on it."""
        self.announcements.tell_now()

    # What peers say

    def receive(self, session: Session, payload: bytes) -> bool:
        """Take a payload from the peer of a session; False if it is none of a hierarchy."""
        told = wire.read(payload)
        if told is None:
            return False
        if (
            type(told) is Announce
            and self.is_hub
            and not (session.is_parent or session.from_outside)
        ):
            self.claims.announced(session, told)
            return True
        if isinstance(told, _QUESTIONS):
            self._receive_question(session, told)
        elif isinstance(told, Declined):
            self.complain(session, f"the peer declined an announcement: {quote(told.why)}")
        elif session.is_parent:
            self._receive_from_parent(session, told)
        elif session.from_outside:
            self.decline(session, "a peer from outside cannot be a leaf")
        elif self.is_hub:
            self._receive_from_leaf(session, told)
        else:
            why = f"node {self._kernel.name} is not a hub; create it with hub=True"
            self.decline(session, why)
        return True

    def _receive_question(self, session: Session, told: Resolve | Resolved | Appeared) -> None:
        readiness = self._kernel.readiness
        if isinstance(told, Resolved):
            if not (
                self.contests.receive_answer(session, told)
                or readiness.receive_answer(session, told)
            ):
                self.questions.receive_answer(session, told)
        elif isinstance(told, Appeared):
            self.questions.receive_appeared(session, told)
        elif told.ready:
            readiness.answer(session, told)
        elif told.probe:
            self.contests.probed(session, told)
        else:
            self.questions.answer(session, told)

    def _receive_from_parent(self, session: Session, told: Payload) -> None:
        if isinstance(told, Withdraw):
            for name in filter(partial(self._is_at, session), told.participants):
                self._kernel.remove_route(name, (Cause.WITHDRAWN, session.name, None))
        elif isinstance(told, Contested):
            self.contests.heard(session, told)
        else:
            self.decline(session, f"a parent of node {self._kernel.name} cannot be its leaf")

    def _receive_from_leaf(self, session: Session, told: Payload) -> None:
        if isinstance(told, Announce):
            self.claims.announced(session, told)
        elif isinstance(told, Withdraw):
            for name in told.participants:
                self.claims.withdrawn(session, name)
        elif isinstance(told, Subscribe):
            for pattern, receiver in told.pairs:
                self.claims.subscribe(session, pattern, receiver)
        elif isinstance(told, Unsubscribe):
            for pattern, receiver in told.pairs:
                self.claims.unsubscribe(session, pattern, receiver)

    def _is_at(self, session: Session, name: str) -> bool:
        entry = self._kernel.entry(name)
        return entry is not None and entry.address == session.address

    def decline(self, session: Session, why: str) -> None:
        """Tell a peer, once for each cause and not for ever, that something is not accepted."""
        if self.complain(session, why):
            session.answer(wire.encode(Declined(why)))

    def complain(self, session: Session, why: str) -> bool:
        """Log something about a peer, once for each cause and not for ever."""
        if len(session.complaints) >= COMPLAINT_LIMIT or why in session.complaints:
            return False
        session.complaints.add(why)
        _log.warning("session %s: %s", session.name, why)
        return True
