"""Routing decisions on a message that entered a node (AD-5, AD-6, WK-11, MC-9 .. MC-15).

Pure: it reads tables and returns a decision. A live node acts on it; an audit of the past makes the
same decision from the same tables and must get the same result (SP-2).
"""

from __future__ import annotations

from msgspec import Struct

from waystation.core.address import LOCAL, Address
from waystation.core.address_types import AddressTypes
from waystation.core.expiry import Expiry
from waystation.core.message import HOP_LIMIT, Arrival, Message
from waystation.core.multicast import Subscriptions, is_multicast_id
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.routing import RoutingTable
from waystation.errors import LocalError

_EXPIRED = Verdict.dropped(Reason.EXPIRED)
_HOP_LIMIT = Verdict.dropped(Reason.HOP_LIMIT)
_MALFORMED = Verdict.dropped(Reason.MALFORMED)
_NO_ROUTE = Verdict.dropped(Reason.NO_ROUTE)
_NO_SUBSCRIBER = Verdict.dropped(Reason.NO_SUBSCRIBER)
_UNKNOWN_TYPE = Verdict.dropped(Reason.UNKNOWN_TYPE)


class FanOut(Struct, frozen=True):
    """The decision about a multicast: a verdict for each receiver, and the copies to send.

    Several receivers behind one address share a copy (MC-9), so `copies` may be shorter than
    `verdicts`. `upward` requests one more copy, to the parent of a leaf or to the global transport
    of a hub (MC-10).
    """

    verdicts: tuple[Verdict, ...]
    copies: tuple[Address, ...] = ()
    upward: bool = False


class Router:
    """The tables of one node, and the decisions based on them.

    >>> from waystation.core.address import Route
    >>> from waystation.core.routing import RoutingEntry
    >>> router = Router()
    >>> worker = RoutingEntry("echo", Address(0, b"echo"), local=True)
    >>> router.table.put(worker, now=0).accepted
    True
    >>> message = Message(Route.parse("echo"), Route.parse("app"), b"hello")
    >>> print(router.decide(message, now=1).outcome)
    DELIVERED
    """

    def __init__(
        self,
        types: AddressTypes | None = None,
        table: RoutingTable | None = None,
        subscriptions: Subscriptions | None = None,
        *,
        hop_limit: int = HOP_LIMIT,
    ) -> None:
        self.types = types if types is not None else AddressTypes()
        self.table = table if table is not None else RoutingTable()
        self.subscriptions = subscriptions if subscriptions is not None else Subscriptions()
        if hop_limit < 1:
            raise LocalError(f"invalid hop limit {hop_limit}", rule="WK-11", hint="give 1 or more")
        self.hop_limit = hop_limit
        self.has_parent = False  # a leaf: it sends multicasts to its parent (MC-10)
        self.has_global_transport = False  # a hub: it publishes what is globally visible

    def decide(self, message: Message, now: Expiry) -> Verdict:
        """Decide about a message to one participant; the message is not changed (AD-5)."""
        if now >= message.expiry:
            return _EXPIRED
        if len(message.return_route.addresses) >= self.hop_limit:
            return _HOP_LIMIT
        first = message.onward_route.first
        if first is None:
            return _NO_ROUTE
        if first.type != LOCAL:
            if self.types.routes(first.type):
                return Verdict(Outcome.FORWARDED, address=first)
            return _UNKNOWN_TYPE
        return self._deliver(first.name, now)

    def fan_out(self, multicast_id: str, arrival: Arrival, now: Expiry) -> FanOut:
        """Decide about a multicast."""
        message = arrival.message
        if now >= message.expiry:
            return FanOut((_EXPIRED,))
        if len(message.return_route.addresses) >= self.hop_limit:
            return FanOut((_HOP_LIMIT,))
        receivers = self.subscriptions.match(multicast_id)
        upward = not arrival.from_global and self._goes_up(multicast_id, now)
        if not receivers:
            if not is_multicast_id(multicast_id):
                return FanOut((_MALFORMED,))
            return FanOut((_NO_SUBSCRIBER,), (), upward)  # no subscriber here, perhaps there
        verdicts = tuple(self._deliver(receiver, now) for receiver in receivers)
        reached = (verdict.address for verdict in verdicts if verdict.address is not None)
        return FanOut(verdicts, tuple(dict.fromkeys(reached)), upward)

    def listens_globally(self, pattern: str, now: Expiry) -> bool:
        """Whether a subscription needs the global transport (MC-12, MC-13).

        It does not if its provider is local, since its broadcasts then pass through this node.
        """
        provider = self.table.lookup(pattern.partition("/")[0], now)
        return self.has_global_transport and (provider is None or not provider.local)

    def _deliver(self, participant: str, now: Expiry) -> Verdict:
        entry = self.table.lookup(participant, now)
        if entry is None:
            return Verdict(Outcome.DROPPED, Reason.NO_ROUTE, participant)
        outcome = Outcome.DELIVERED if entry.local else Outcome.FORWARDED
        return Verdict(outcome, None, participant, entry.address)

    def _goes_up(self, multicast_id: str, now: Expiry) -> bool:
        if self.has_parent:
            return True
        if not self.has_global_transport:
            return False
        provider = self.table.lookup(multicast_id.partition("/")[0], now)
        return provider is not None and provider.visible
