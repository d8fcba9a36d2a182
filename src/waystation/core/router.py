"""Routing decisions on a message that entered a node (AD-5, AD-6, WK-11, MC-9 .. MC-15).

Pure: it reads tables and returns a decision. A live node acts on it; an audit of the past makes the
same decision from the same tables and must get the same result (SP-2).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from waystation.core.address import LOCAL, Address
from waystation.core.address_types import AddressTypes
from waystation.core.expiry import Expiry
from waystation.core.message import HOP_LIMIT, Arrival, Message
from waystation.core.multicast import Subscriptions, is_multicast_id
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.routing import RoutingEntry, RoutingTable
from waystation.errors import LocalError

REMEMBERED: Final = 10_000
"""Number of participants of this node whose verdicts are remembered."""

_DELIVERED = Outcome.DELIVERED
_FORWARDED = Outcome.FORWARDED
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
    of a hub (MC-10). If that is the only copy, there is no verdict: nobody here gets it, and it is
    not lost either (MC-15).
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

    `version=1` decides as nodes did that wrote version 1 of the journal, for an audit of such rows:
    DELIVERED was then whatever was handed to a local entry, also over a session, a multicast came
    back over its own session, and NO_SUBSCRIBER was said of what went up all the same.
    """

    def __init__(
        self,
        types: AddressTypes | None = None,
        table: RoutingTable | None = None,
        subscriptions: Subscriptions | None = None,
        *,
        hop_limit: int = HOP_LIMIT,
        version: int = 2,
    ) -> None:
        self.types = types if types is not None else AddressTypes()
        self.table = table if table is not None else RoutingTable()
        self.subscriptions = subscriptions if subscriptions is not None else Subscriptions()
        if hop_limit < 1:
            raise LocalError(f"invalid hop limit {hop_limit}", rule="WK-11", hint="give 1 or more")
        self.hop_limit = hop_limit
        self._first_version = version == 1
        # The verdicts on who has the own name as the address, which follow from the entry alone.
        self._remembered: dict[str, tuple[RoutingEntry, Verdict]] = {}
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
                return Verdict(_FORWARDED, address=first)
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
        if not receivers and not is_multicast_id(multicast_id):
            return FanOut((_MALFORMED,))
        upward = not arrival.from_global and self._goes_up(multicast_id, now)
        deliver = self._deliver
        verdicts = tuple([deliver(receiver, now) for receiver in receivers])
        if verdicts and arrival.via is not None and not self._first_version:
            origins = self._addresses_of(arrival.via, now)
            verdicts = tuple(one for one in verdicts if one.address not in origins)
        if not verdicts and (self._first_version or not upward):
            verdicts = (_NO_SUBSCRIBER,)
        reached = [verdict.address for verdict in verdicts if verdict.address is not None]
        return FanOut(verdicts, tuple(dict.fromkeys(reached)), upward)

    def listens_globally(self, pattern: str, now: Expiry) -> bool:
        """Whether a subscription needs the global transport (MC-12, MC-13).

        It does not if its provider is local, since its broadcasts then pass through this node.
        """
        provider = self.table.lookup(pattern.partition("/")[0], now)
        return self.has_global_transport and (provider is None or not provider.local)

    def _deliver(self, participant: str, now: Expiry) -> Verdict:
        """Decide about what is for a participant: whoever is here gets it, else it is sent on."""
        entry = self.table.lookup(participant, now)
        if entry is None:
            return Verdict(Outcome.DROPPED, Reason.NO_ROUTE, participant)
        known = self._remembered.get(participant)
        if known is not None and known[0] is entry:
            return known[1]
        address = entry.address
        name = address.name if address.type == LOCAL else None
        is_here = entry.local if self._first_version else self._is_here(entry, name, now)
        verdict = Verdict(_DELIVERED if is_here else _FORWARDED, None, participant, address)
        if name == participant:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._remembered[participant] = entry, verdict
        return verdict

    def _is_here(self, entry: RoutingEntry, name: str | None, now: Expiry) -> bool:
        """Whether an entry leads to somebody of this node, and not to a session (OB-1).

        Who is here has the own name as the address. A local entry may point at such a name too.
        """
        if name is None:
            return False
        if name == entry.participant:
            return True
        behind = self.table.lookup(name, now) if entry.local else None
        return behind is not None and behind.address == entry.address

    def _addresses_of(self, session: str, now: Expiry) -> tuple[Address, ...]:
        """The addresses that lead into a session: its name, and the place that its entry tells."""
        entry = self.table.lookup(session, now)
        name = Address(LOCAL, session.encode())
        return (name,) if entry is None else (name, entry.address)

    def _goes_up(self, multicast_id: str, now: Expiry) -> bool:
        if self.has_parent:
            return True
        if not self.has_global_transport:
            return False
        provider = self.table.lookup(multicast_id.partition("/")[0], now)
        return provider is not None and provider.visible
