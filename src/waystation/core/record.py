"""What a node tells about itself: one record for each thing that happened (OB-4).

The journal, metrics and tests hear these, all on one hook, in the order in which they happened.
Instants are microseconds since the epoch. Within one node they never go back, and no two messages
enter it at the same one: (message id, node, received_at) names one entry of a message into a node.
The core decides in milliseconds, which are these divided by a thousand and rounded down.
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
    """How a message ended at this node."""

    arrival: Arrival
    verdict: Verdict
    at: int


class ChangeRecord(Struct, frozen=True, gc=False):
    """What happened to a routing entry, a subscription or a member of a group."""

    change: RouteChange | SubscriptionChange | MemberChange
    at: int


class SessionKind(StrEnum):
    """What happened to a session with a peer."""

    OPENED = "opened"
    CLOSED = "closed"
    REFUSED = "refused"  # it never opened


class SessionRecord(Struct, frozen=True, gc=False):
    """What happened to a session, and why: a bad peer has no message to be the outcome of."""

    kind: SessionKind
    session: str  # its local name
    place: str  # where the peer is, as an address
    peer: str | None  # the name that the peer gave itself
    reason: Reason | None
    detail: str
    at: int


Record: TypeAlias = MessageRecord | ChangeRecord | SessionRecord
