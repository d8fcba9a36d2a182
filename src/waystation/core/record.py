"""The records of a node: one for each event (OB-4).

The journal, metrics and tests observe them through one hook, in the order of the events. Times are
microseconds since the epoch. Within a node they never decrease, and no two messages enter it at the
same time: (message id, node, received_at) identifies one arrival of a message at a node. The core
decides in milliseconds, which are these times divided by a thousand and rounded down.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from waystation.core.gossip import MemberChange
from waystation.core.message import Arrival
from waystation.core.multicast import SubscriptionChange
from waystation.core.outcome import Reason, Verdict
from waystation.core.routing import RouteChange


class MessageRecord(Struct, frozen=True, gc=False):
    """The outcome of a message at this node."""

    arrival: Arrival
    verdict: Verdict
    at: int


class ChangeRecord(Struct, frozen=True, gc=False):
    """A change of a routing entry, a subscription or the membership of a group."""

    change: RouteChange | SubscriptionChange | MemberChange
    at: int


class SessionKind(StrEnum):
    """Kinds of session events."""

    OPENED = "opened"
    CLOSED = "closed"
    REFUSED = "refused"  # it was closed before it opened


class SessionRole(StrEnum):
    """What the peer of a session is to its node."""

    PARENT = "parent"
    LEAF = "leaf"
    OUTSIDE = "outside"  # reached over a global transport
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
