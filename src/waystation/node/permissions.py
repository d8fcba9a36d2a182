"""The one place of a node that asks the grants, for whatever enters over a session (ID-3).

What they do not give is refused, counted, and recorded with who asked. When the grants change, what
is no longer granted is taken back at once (ID-5).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from waystation.core.address import Route
from waystation.core.grants import Action, Grants
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.core.record import SessionKind
from waystation.core.who import NOBODY, Who
from waystation.errors import quote
from waystation.node.askers import Asker, Entrance
from waystation.node.claims import NOT_GRANTED
from waystation.node.session import Session

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

DENIALS: Final = 100
"""How many different things that a session was denied are recorded; all of them are counted."""

_log = logging.getLogger("waystation.node")


class Grantee(Struct, frozen=True, gc=False):
    """Somebody who did what was granted to it, and is remembered when it has gone."""

    session: bytes = b""  # the local address of its session or channel
    who: Who | None = None  # what it had proven; None for this node itself


class Permissions:
    """What the peers of one node may do."""

    def __init__(self, kernel: Kernel, grants: Grants | None) -> None:
        self._kernel = kernel
        self.grants = grants
        self.denied: Counter[str] = Counter()  # by action
        self.watchers: list[Callable[[], None]] = []  # called when the grants have changed

    def may(self, asker: Asker, action: Action, name: str) -> bool:
        """Whether a peer may do something; what it may not is told."""
        grants = self.grants
        if grants is None or grants.allows(asker.who, action, name):
            return True
        self._deny(asker, action, name)
        return False

    def admits(self, asker: Asker, message: Message) -> bool:
        """Whether a peer may send a message along its route.

        Of a custody message, what is inside is judged where it is taken out: `admits_route`.
        """
        return (
            self.grants is None
            or self.admits_route(asker, message.onward_route, tell=False)
            or self._kernel.custody.is_custody(message)
            or self.admits_route(asker, message.onward_route)
        )

    def admits_route(self, asker: Asker, route: Route, *, tell: bool = True) -> bool:
        """Whether a peer may send along a route; what it may not is told."""
        grants = self.grants
        if grants is None or grants.admits(asker.who, route):
            return True
        if tell:
            refused = grants.refused_in(asker.who, route)
            assert refused is not None
            self._deny(asker, *refused)
        return False

    def asker_of(self, message: Message) -> Asker | None:
        """The peer that a message came from; None for this node itself, or one that has gone."""
        first = message.return_route.first
        return None if first is None else self.asker_at(first.data)

    def asker_at(self, data: bytes) -> Asker | None:
        """The peer behind a local address: that of a session, or of a secure channel."""
        receiver = self._kernel.receivers.get(data)
        if isinstance(receiver, Entrance):
            return receiver.asker
        return receiver if isinstance(receiver, Session) else None

    def may_sender(self, message: Message, action: Action, name: str) -> bool:
        """Whether who sent a message may do something; what it may not is told.

        This node itself may. Where there are grants, nothing is granted to a peer that has gone:
        who it was is not known any more.
        """
        if self.grants is None:
            return True
        asker, first = self.asker_of(message), message.return_route.first
        if asker is not None:
            return self.may(asker, action, name)
        return first is None or first.data in self._kernel.receivers

    def grantee_of(self, message: Message) -> Grantee:
        """Who sent a message, to be asked about later."""
        asker, first = self.asker_of(message), message.return_route.first
        return Grantee() if asker is None or first is None else Grantee(first.data, asker.who)

    def may_still(self, grantee: Grantee, action: Action, name: str) -> bool:
        """Whether somebody may do now what it did before, also while it is away (ID-5)."""
        asker = self.asker_at(grantee.session)
        if asker is not None:
            return self.may(asker, action, name)
        grants, who = self.grants, grantee.who
        return grants is None or who is None or grants.allows(who, action, name)

    def admits_broadcast(self, multicast_id: str) -> bool:
        """Whether anybody at a broker may publish under an id: who it was is not known."""
        grants = self.grants
        if grants is None or grants.allows(NOBODY, Action.PUBLISH, multicast_id):
            return True
        self.denied[Action.PUBLISH] += 1
        return False

    def keeps_from(self, session: Session | None, name: str) -> bool:
        """Whether a grant gives a name to others than the peer of a session (CL-4)."""
        grants = self.grants
        if grants is None or not grants.gives_name(name):
            return False
        who = NOBODY if session is None else session.who
        return not grants.allows(who, Action.ANNOUNCE, name)

    def change(self, grants: Grants | None) -> None:
        """Judge by other grants from now on, and take back what they do not give."""
        self.grants = grants
        for session in list(self._kernel.links.sessions.values()):
            self._judge_again(session)
        self._kernel.directory.take_back()
        self._kernel.custody.kept.take_back()
        for changed in list(self.watchers):
            changed()

    def _judge_again(self, session: Session) -> None:
        """Take back the names and subscriptions of a session that are not granted to it."""
        claims = self._kernel.hierarchy.claims
        for name in list(claims.known.names_of(session.address.data)):
            if not claims.may_announce(session, name):
                claims.withdrawn(session, name, NOT_GRANTED)
                continue
            for pattern in claims.patterns_of(session, name):
                if not self.may(session, Action.SUBSCRIBE, pattern):
                    claims.unsubscribe(session, pattern, name)

    def _deny(self, asker: Asker, action: Action, name: str) -> None:
        self.denied[action] += 1
        denial = f"{action} {name}"[:300]
        if denial in asker.denials or len(asker.denials) >= DENIALS:
            return
        asker.denials.add(denial)
        who = asker.identity or f"unproven {quote(asker.peer)}"
        _log.info("session %s: %s may not %s", asker.name, who, quote(denial))
        record = asker.record(self._kernel.tick())
        self._kernel.notify(
            structs.replace(record, kind=SessionKind.DENIED, reason=Reason.REFUSED, detail=denial)
        )
