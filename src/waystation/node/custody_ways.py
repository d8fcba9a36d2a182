"""Where a durable message goes next from this node: a worker here, a session, or nowhere yet (DU).

It asks the same tables as every message does, and answers without doing anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from msgspec import Struct, structs

from waystation.core.address import LOCAL, Address
from waystation.core.grants import Action
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.outcome import Reason
from waystation.node.askers import Entrance
from waystation.node.broadcasts import Subscription
from waystation.node.receiver import InboxReceiver
from waystation.node.session import NAME_TIME, Session
from waystation.node.worker import WorkerAddress
from waystation.wire import custody as wire

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

HELLO_TIME: Final = NAME_TIME + 0.5
"""Seconds after which a peer that sent no hello is a stranger (DU-6)."""

Forward: TypeAlias = Callable[[Message], Message]


def _unchanged(message: Message) -> Message:
    return message


def _departed(message: Message) -> Message:
    return message.departed()


class Worker(Struct, frozen=True):
    """A worker, or a durable subscription, of this node."""

    receiver: InboxReceiver
    forward: Forward


class Hop(Struct, frozen=True):
    """A session, or a secure channel; `forward` makes of a message what its peer is to get."""

    session: Session | Entrance
    forward: Forward
    most: int | None = None  # letters at once, if fewer than usual

    @classmethod
    def unchanged(cls, session: Session) -> Self:
        """A session whose peer gets messages as they are."""
        return cls(session, _unchanged)

    @property
    def is_unchanged(self) -> bool:
        """Whether the peer gets messages as they are."""
        return self.forward is _unchanged


class Absent(Struct, frozen=True):
    """Nobody has this name at the moment."""

    name: str


class End(Struct, frozen=True):
    """It will never get on."""

    reason: Reason


class Spread(Struct, frozen=True):
    """A broadcast: one letter for each durable subscriber, and on to a parent (DU-8)."""

    multicast_id: str
    parent: Session | None


class Later(Struct, frozen=True):
    """A place that cannot be reached at the moment."""


Way: TypeAlias = Worker | Hop | Absent | Spread | End | Later


class Ways:
    """Finds the ways of one node's durable messages."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._silent: dict[Session, tuple[int, float]] = {}  # since when a peer sent no hello

    def is_worker(self, address: Address) -> bool:
        """Whether an address belongs to a worker of this node."""
        receiver = self._kernel.receivers.get(address.data)
        return address.type == LOCAL and isinstance(receiver, WorkerAddress)

    def find(self, message: Message, *, sent_here: bool, turn: int = 0) -> Way:
        """Where a message goes next; what was `sent_here` may be given to any parent.

        Each `turn` may find another parent, if several can be tried.
        """
        kernel, addresses = self._kernel, message.onward_route.addresses
        first = addresses[0]
        if first.type == MULTICAST:
            came_from = message.return_route.first
            name = first.data.decode(errors="replace")
            besides = None if sent_here else came_from
            return Spread(name, self._parent_for_broadcast(besides, turn))
        if first.type != LOCAL:
            return self._to_place(first, message)
        receiver = kernel.receivers.get(first.data)
        if isinstance(receiver, WorkerAddress):
            if len(addresses) == 1 or receiver.worker.sees_passing:
                return Worker(receiver, _unchanged)
            return self._behind_worker(message, sent_here=sent_here)
        if isinstance(receiver, Subscription):
            return Worker(receiver, _departed) if len(addresses) > 1 else End(Reason.REFUSED)
        if isinstance(receiver, Session):
            return Hop(receiver, _departed) if len(addresses) > 1 else End(Reason.REFUSED)
        if isinstance(receiver, Entrance):
            is_ours = sent_here and len(addresses) > 1
            return Hop(receiver, _departed) if is_ours else End(Reason.REFUSED)
        if receiver is not None:
            return End(Reason.REFUSED)  # a subscriber, a request, or somebody who only publishes
        way = self._by_entry(first.name, sent_here=sent_here)
        return way if self._may_hear(way, message) else End(Reason.REFUSED)

    def _may_hear(self, way: Way, message: Message) -> bool:
        """Whether a peer may have what was published, now that it gets it (ID-5).

        It may have been granted when it was published, while the subscriber was away.
        """
        rest = message.onward_route.addresses[1:]
        if not rest or rest[0].type != MULTICAST:
            return True
        if not isinstance(way, Hop) or not isinstance(way.session, Session):
            return True
        topic = rest[0].data.decode(errors="replace")
        permissions = self._kernel.permissions
        return way.session.is_parent or permissions.may(way.session, Action.SUBSCRIBE, topic)

    def is_absent(self, name: str, *, sent_here: bool) -> bool:
        """Whether nobody has a name, and nobody else can wait for it."""
        kernel = self._kernel
        is_here = kernel.receivers.get(name.encode()) or kernel.entry(name)
        may_go_up = sent_here and not kernel.is_reserved(name)
        return is_here is None and (not may_go_up or self._parent_that_takes() is None)

    def is_stranger(self, session: Session) -> bool:
        """Whether a peer that sent no hello so far will send none; a parent does, however late."""
        if session.is_parent:
            return False
        now = asyncio.get_running_loop().time()
        openings, since = self._silent.get(session, (-1, now))
        if openings != session.openings:
            for other in [one for one in self._silent if one.ended]:
                del self._silent[other]
            self._silent[session] = (session.openings, now)
            return False
        return now - since >= HELLO_TIME

    def _to_place(self, place: Address, message: Message) -> Way:
        kernel = self._kernel
        if place.type not in kernel.links.transports:
            return End(Reason.UNKNOWN_TYPE)
        if kernel.is_foreign(message):
            return End(Reason.REFUSED)  # peers do not choose whom this node connects to
        if len(message.onward_route.addresses) == 1:
            return End(Reason.NO_ROUTE)
        session = kernel.links.reach(place)
        return Later() if session is None else Hop(session, _departed)

    def _by_entry(self, name: str, *, sent_here: bool) -> Way:
        kernel = self._kernel
        entry = kernel.entry(name)
        if entry is None:
            # What was to go into a secure channel is for nobody else.
            may_go_up = sent_here and not kernel.is_reserved(name)
            parent = self._parent_that_takes() if may_go_up else None
            return Absent(name) if parent is None else Hop(parent, _unchanged)
        address = entry.address
        if address.type == LOCAL:
            session = kernel.receivers.get(address.data)
            return Hop(session, _unchanged) if isinstance(session, Session) else Later()
        if address.type not in kernel.links.transports:
            return End(Reason.UNKNOWN_TYPE)
        reached = kernel.links.reach(address)
        return Later() if reached is None else Hop(reached, _unchanged)

    def _behind_worker(self, message: Message, *, sent_here: bool) -> Way:
        """Where it goes on behind a worker of this node that forwards it (WK-4)."""
        way = self.find(message.forwarded(), sent_here=sent_here)
        if isinstance(way, Worker | Hop):
            forward = way.forward
            return structs.replace(way, forward=lambda one: forward(one.forwarded()))
        return way

    def _parent_for_broadcast(self, besides: Address | None, turn: int) -> Session | None:
        """A parent with a store; or one that passes a broadcast on to its own parents (DU-2).

        Nobody knows behind which of those there is a store, so each has its turn.
        """
        taker = self._parent_that_takes(besides)
        if taker is not None:
            return taker
        passing = [
            parent
            for parent in self._kernel.hierarchy.parents
            if parent.is_open and parent.can(wire.PASSES) and parent.address != besides
        ]
        return passing[turn % len(passing)] if passing else None

    def _parent_that_takes(self, besides: Address | None = None) -> Session | None:
        """A parent with a store: it may wait for a name that nobody knows yet."""
        for parent in self._kernel.hierarchy.parents:
            if parent.is_open and parent.can(wire.TAKES) and parent.address != besides:
                return parent
        return None
