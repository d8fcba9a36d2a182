"""The records of a node: one for each event (OB-4).

The journal, metrics and tests observe them through one hook, in the order of the events. Times are
microseconds since the epoch. Within a node they never decrease, and no two messages enter it at the
same time: (message id, node, received_at) identifies one arrival of a message at a node. The core
decides in milliseconds, which are these times divided by a thousand and rounded down.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from waystation.core.gossip import MemberChange
from waystation.core.message import Arrival, Sized
from waystation.core.multicast import SubscriptionChange
from waystation.core.outcome import Reason, Verdict
from waystation.core.routing import RouteChange


class MessageRecord(Struct, frozen=True, gc=False):
    """The outcome of a message at this node.

    `out` is the session that it left over, or waited for when it was dropped (OB-10).
    """

    arrival: Arrival
    verdict: Verdict
    at: int
    out: str | None = None

    def without_payload(self) -> MessageRecord:
        """The same record, which keeps only the length of the payload in memory (OB-9)."""
        message = self.arrival.message
        slim = replace(message, payload=Sized.of(len(message.payload)))
        return replace(self, arrival=replace(self.arrival, message=slim))


class Cause(StrEnum):
    """Why a routing entry or a subscription changed."""

    WORKER = "worker"  # a worker, session, subscriber or request of this node began or ended
    ANNOUNCED = "announced"  # by the peer of a session
    WITHDRAWN = "withdrawn"  # by the peer of a session
    SESSION_CLOSED = "session_closed"  # RE-12
    REQUEST = "request"  # a request came from this sender (RE-13)
    RESOLVED = "resolved"  # somebody was asked for the participant, and answered
    CLAIM = "claim"
    HELD_BACK = "held_back"
    REFUSED = "refused"


Source: TypeAlias = tuple[Cause | None, str | None, str | None]
"""Whose word a change was: why it came, over which session, and from which message."""

NO_SOURCE: Final[Source] = (None, None, None)
OWN_SOURCE: Final[Source] = (Cause.WORKER, None, None)


class ChangeRecord(Struct, frozen=True, gc=False):
    """A change of a routing entry, a subscription or the membership of a group.

    `session` is the local name of the session whose peer wanted it, `message_id` the request that
    it follows from.
    """

    change: RouteChange | SubscriptionChange | MemberChange
    at: int
    cause: Cause | None = None
    session: str | None = None
    message_id: str | None = None


class SessionKind(StrEnum):
    """Kinds of session events."""

    OPENED = "opened"
    CLOSED = "closed"
    REFUSED = "refused"  # it was closed before it opened
    DENIED = "denied"  # its peer asked for something that is not granted (ID-3)


class SessionRole(StrEnum):
    """What the peer of a session is to its node."""

    PARENT = "parent"
    LEAF = "leaf"
    OUTSIDE = "outside"  # reached over a global transport
    GLOBAL = "global"  # the global transport itself, for broadcasts
    PEER = "peer"  # any other


class SessionRecord(Struct, frozen=True, gc=False):
    """An event of a session, and its cause."""

    kind: SessionKind
    session: str  # its local name
    place: str  # the address of the peer
    peer: str | None  # the name that the peer gave itself
    reason: Reason | None
    detail: str
    at: int
    role: SessionRole = SessionRole.PEER
    transport: str | None = None  # its name
    identity: str | None = None  # who the peer has proven to be; None: its name is only its word
    peer_incarnation: int | None = None  # of the peer's journal; None if it keeps none


class PeerClockRecord(Struct, frozen=True, gc=False):
    """What a node found out about the clock of a session's peer (TM-3), in microseconds."""

    session: SessionRecord  # as it is now
    offset_us: int  # the peer's clock - ours
    rtt_us: int | None  # of the measurement; None if only its hello told the time
    at: int


class ClockRecord(Struct, frozen=True, gc=False):
    """How far the wall clock is ahead of the node's own, when it begins or ceases to matter."""

    offset_us: int
    detail: str
    at: int


class ClaimKind(StrEnum):
    """Kinds of claim events, as in the journal (CL-7)."""

    CLAIM = "claim"
    WITHDRAW = "withdraw"
    REFUSED = "refused"  # its path is too long or names this node, or the name cannot be claimed
    CONTESTED = "contested"  # another owner holds the name, and the claim stands by
    HELD = "held"  # changes too often: announcements of it wait (CL-3)
    RELEASED = "released"


class ClaimRecord(Struct, frozen=True, gc=False):
    """An event of a claim to a name."""

    kind: ClaimKind
    participant: str
    session: str  # the session over which it was claimed
    owner: str
    origin: str  # the node where the participant lives, by its name
    number: int  # of the owner's session
    path: tuple[str, ...]
    detail: str
    at: int
    reason: Reason | None = None
    proven: bool = False  # whether the owner is a proven identity


Record: TypeAlias = (
    MessageRecord | ChangeRecord | SessionRecord | PeerClockRecord | ClockRecord | ClaimRecord
)
