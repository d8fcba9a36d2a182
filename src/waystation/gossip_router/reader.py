"""What the two dialects have in common: how received messages get into the queues of others.

A reader belongs to one connection. It is fed what the socket brings, passes messages on, and hands
every other request to the router. It does a limited amount of work at a time: a client that sends
more than that waits for its next turn, and nobody else waits for it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final

from waystation.core.gossip import Dialect
from waystation.core.message import Arrival
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.gossip_router.outcomes import Told
from waystation.wire.java import cut
from waystation.wire.jgroups import Address, KnownHeads

if TYPE_CHECKING:
    from waystation.gossip_router.client import Client
    from waystation.gossip_router.outcomes import Outcomes
    from waystation.gossip_router.server import GossipServer

_log = logging.getLogger("waystation.router")

TURN: Final = 20_000
"""How much work a connection gets done at a time, in copies of runs of messages handed on."""

REQUEST: Final = 200
"""What a request costs of it."""

ROUTES: Final = 1_024
"""How many routes are remembered for one connection."""

Targets = tuple["Client", ...]

Run = tuple[bytes, int, int, int]
"""Neighbouring messages: their head, where the first begins, where the last ends, how many."""

Where = bytes | tuple[str | None, Address | None]
"""Where messages go: their head, or what stands in it (group and member)."""


class Reader(ABC):
    """One connection's dialect; an answer that it does not have is empty."""

    dialect: ClassVar[Dialect]
    registered: ClassVar[bytes]  # the answer to a member that is registered now
    refused: ClassVar[bytes]  # to one that is not
    unregistered: ClassVar[bytes]  # to one that has left

    def __init__(self, client: Client, server: GossipServer) -> None:
        self.client = client
        self.server = server
        self.held = bytearray()  # the beginning of a frame
        self.progressed = False  # whether the last data completed a frame
        self.need = 1  # how many bytes must be there before they are worth a look
        self._counts = server.counts
        self._outcomes = server.outcomes
        self._limits = server.settings.of_format_for_strangers()
        self._known = KnownHeads()
        self._routes: dict[bytes, Targets] = {}  # by the head of a message
        self._generation = -1  # of the membership for which the routes hold
        self._work = 0
        self._data: bytes | bytearray = b""  # to be worked through

    def count_held(self) -> int:
        """How many bytes there are of a frame that is not complete."""
        return len(self.held)

    def admit(self) -> None:
        """Take frames of any allowed size: this client has registered a member."""
        self._limits = self.server.settings.of_format()

    def serve(self, data: bytes | bytearray, end: int) -> bool:
        """Do what the data ask for, up to the end; False when some of it has to wait.

        Then call `go_on` until that is done, and give no more until then. Of `data` nothing is
        used after the call.
        """
        self._begin(data, 0, end)
        if self.go_on():
            return True
        self._data = cut(data, 0, end)  # the buffer will be used for others
        return False

    @abstractmethod
    def _begin(self, data: bytes | bytearray, start: int, end: int) -> None:
        """Prepare to work through a part of the data."""

    @abstractmethod
    def go_on(self) -> bool:
        """Do more of what had to wait; False when there is still something."""

    @staticmethod
    @abstractmethod
    def _destination(head: bytes) -> tuple[str | None, Address | None]:
        """The group and the member that a message with this head goes to."""

    @staticmethod
    @abstractmethod
    def encode_entry(entry: Any) -> bytes:
        """A member, as a list of members has it."""

    @staticmethod
    @abstractmethod
    def encode_list(group: str, entries: Collection[bytes]) -> bytes:
        """The answer to a question for the members of one group."""

    @property
    @abstractmethod
    def farewell(self) -> bytes:
        """The last words of a router that closes the connection, if the client knows any."""

    @property
    def suspect_form(self) -> object:
        """What stands for how this client reads a SUSPECT; the same for clients that read alike."""
        return self.dialect

    @abstractmethod
    def suspect(self, group: str, address: Address | None) -> bytes:
        """The notice that a member is dead, as the client reads it; empty if nobody knows how."""

    def _fail(self, error: DecodeError) -> None:
        reason = Reason.TOO_LARGE if error.too_large else Reason.MALFORMED
        if self._outcomes is not None:
            arrivals = self._outcomes.arrivals(None, None, [Told(len(self.held))])
            self._outcomes.dropped(arrivals, reason)
        self.server.reject(self.client, reason.lower(), str(error))

    def _forward(self, targets: Targets, piece: bytes, count: int, where: Where) -> None:
        """Put messages into the queues of all that they are for."""
        counts = self._counts
        counts.received += count
        size = len(piece)
        lost: list[int] = []  # how many messages, the last ones, each receiver without room lost
        touched = self.server.touched
        for receiver in targets:
            if receiver.room >= size:  # as `Client.put` does, without a call for each copy
                if not receiver.pieces:
                    touched.append(receiver)
                receiver.pieces.append(piece)
                receiver.room -= size
            elif left := self._squeeze(receiver, piece, count):
                lost.append(left)
                counts.delivered -= left
        copies = len(targets)
        counts.delivered += copies * count
        self._work += copies + 1
        outcomes = self._outcomes
        if outcomes is not None and (lost or outcomes.tells_forwarded):
            arrivals = self._arrivals(outcomes, where, piece, 0, size)
            for left in lost:
                outcomes.dropped([*chain(*arrivals[-left:])], Reason.QUEUE_FULL)
            if outcomes.tells_forwarded:
                nobody_got = min(lost) if len(lost) == copies else 0
                outcomes.forwarded([*chain(*arrivals[: len(arrivals) - nobody_got])])

    def _squeeze(self, receiver: Client, piece: bytes, count: int) -> int:
        """Put in what has room, one message after the other; returns how many had none."""
        if receiver.peer_is_slow:
            receiver.sender_hold.hold_back(self.client)
        size = len(piece)
        if receiver.finds_room(size):
            receiver.put(piece, size)
            return 0
        start, left = 0, count
        while left:
            size = self._size_at(piece, start)
            # A queue that is empty takes any one message, however large.
            if receiver.room < size and not receiver.finds_room(size) and receiver.unsent:
                self.server.shed(receiver, left)
                break
            receiver.put(piece[start : start + size], size)
            start += size
            left -= 1
        return left

    @abstractmethod
    def _size_at(self, piece: bytes | bytearray, position: int) -> int:
        """How long the message is that begins here, as it came or as it is passed on."""

    def _find(self, data: bytes | bytearray, run: Run) -> Targets:
        """The receivers for a head that is not remembered; when there are none, that is told."""
        head, first, last, count = run
        targets, reason = self._targets(*self._destination(head))
        if reason is not None:
            self._drop(count, reason)
            if self._outcomes is not None:
                arrivals = self._arrivals(self._outcomes, head, data, first, last)
                self._outcomes.dropped([*chain(*arrivals)], reason)
        if targets and len(head) <= KnownHeads.LONGEST:
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            self._routes[head] = targets
        return targets

    def _targets(
        self, group: str | None, destination: Address | None
    ) -> tuple[Targets, Reason | None]:
        """The receivers for a destination, or why there are none."""
        self._work += 1
        if group is None:
            return (), Reason.NO_ROUTE
        if not self.server.admits(self.client, group):
            return (), Reason.REFUSED
        key = None if destination is None else destination.key
        targets = self.server.route(self.client, group, key)
        return targets, None if targets else Reason.NO_ROUTE

    def _drop(self, count: int, reason: Reason) -> None:
        """Count that messages end here."""
        self._counts.received += count
        self._counts.dropped[reason.value] += count
        _log.debug("%s: %d messages dropped: %s", self.client.place, count, reason)

    # For the journal

    def _arrivals(
        self, outcomes: Outcomes, where: Where, data: bytes | bytearray, first: int, last: int
    ) -> list[list[Arrival]]:
        """What is told of the messages in a part of the data: a list for each of them."""
        group, destination = self._destination(where) if isinstance(where, bytes) else where
        member = None if destination is None else destination.key
        sender = self._sender_in(group)
        found: list[list[Arrival]] = []
        while first < last:
            size = self._size_at(data, first)
            told = self._describe(data, first, first + size, sender)
            found.append(outcomes.arrivals(group, member, told))
            self._work += len(told)
            first += size
        return found

    def _sender_in(self, group: str | None) -> bytes | None:
        """Who sends to a group over this connection, if only one of its members can."""
        here = [uuid for joined, uuid in self.server.members_of(self.client) if joined == group]
        return here[0] if len(here) == 1 else None

    @staticmethod
    def _tell_dropped(
        outcomes: Outcomes,
        where: tuple[str | None, Address | None],
        told: list[Told],
        reason: Reason,
    ) -> None:
        group, destination = where
        member = None if destination is None else destination.key
        outcomes.dropped(outcomes.arrivals(group, member, told), reason)

    def _describe(
        self, data: bytes | bytearray, first: int, last: int, sender: bytes | None
    ) -> list[Told]:
        """What is in one message, as far as that can be read."""
        del data
        return [Told(last - first, sender)]

    def _check_routes(self) -> None:
        """Forget the routes when the membership has changed since."""
        if self._generation != self.server.generation:
            self._routes.clear()
            self._generation = self.server.generation
