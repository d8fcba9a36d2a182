"""What comes from the other members: taken in order, held back, and acknowledged. No sockets.

A sender is told what arrived, and for how many more there is room: at once when that was much or
when something is missing, else with others, a little later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from waystation.core.identity import Uuid
from waystation.groups.member import Member
from waystation.groups.packets import Ack, Data
from waystation.groups.sequences import Incoming


class Receiver(Protocol):
    """Whoever gets the messages."""

    def received(
        self, member: Member, payloads: Sequence[bytes | None], first: int, *, to_all: bool
    ) -> None:
        """A member sent these, with numbers from the first on; None has expired."""
        ...

    def has_room(self) -> bool:
        """Whether more can be received."""
        ...


class _Sender:
    """What comes from one member."""

    __slots__ = ("all", "held", "is_held", "one", "unacknowledged", "waiting")

    def __init__(self) -> None:
        self.one = Incoming()
        self.all = Incoming()
        self.held: deque[tuple[Sequence[bytes | None], int, bool]] = deque()
        self.waiting = 0  # so many messages are held
        self.is_held = False
        self.unacknowledged = 0


class Inflow:
    """The senders that one member hears.

    `soon` is called when acknowledgements are due at the end of this turn, `later` when they can
    wait for others; `take_acks` gives those that are due.
    """

    def __init__(
        self,
        window: int,
        receiver: Receiver,
        soon: Callable[[], None],
        later: Callable[[], None],
    ) -> None:
        self._window = window
        self._receiver = receiver
        self._soon = soon
        self._call_later = later
        self._senders: dict[Uuid, _Sender] = {}
        self._due: dict[Uuid, None] = {}
        self._later: dict[Uuid, None] = {}
        self._starved: dict[Uuid, None] = {}  # told that there is no room

    def accept(self, member: Member, data: Data) -> int:
        """Take what is new, and whose turn it is; returns how many will never come."""
        uuid = data.sender
        sender = self._sender(uuid)
        if not self._has_room(sender):
            self._starved[uuid] = None
            self._acknowledge(uuid, sender, 0, at_once=True)
            return 0
        stream = sender.all if data.to_all else sender.one
        lost, is_probe = stream.lost, bool(stream.expected) and not data.payloads
        new = stream.accept(data.first, data.base, data.payloads)
        if stream.expected:
            self._acknowledge(uuid, sender, len(new), at_once=stream.gap or is_probe)
        if new:
            first = stream.expected - len(new)
            if sender.is_held:
                sender.held.append((new, first, data.to_all))
                sender.waiting += len(new)
            else:
                self._receiver.received(member, new, first, to_all=data.to_all)
        return stream.lost - lost

    def hold(self, uuid: Uuid) -> None:
        """Hand in nothing more of a member for now; it will feel that."""
        self._sender(uuid).is_held = True

    def release(self, member: Member) -> None:
        """Hand in what a member sent, and let it go on."""
        sender = self._senders.get(member.uuid)
        if sender is None or not sender.is_held:
            return
        sender.is_held = False
        while sender.held and not sender.is_held:
            payloads, first, to_all = sender.held.popleft()
            sender.waiting -= len(payloads)
            self._receiver.received(member, payloads, first, to_all=to_all)
        self._due[member.uuid] = None
        self._soon()

    def feed(self) -> None:
        """There is room again: tell those who were told that there is none."""
        if self._starved:
            self._due |= self._starved
            self._starved.clear()
            self._soon()

    def forget(self, uuid: Uuid) -> None:
        """A member is gone for good."""
        self._senders.pop(uuid, None)

    def make_all_due(self) -> None:
        """Wait no longer for others."""
        self._due |= self._later

    def take_acks(self, own: Uuid) -> list[Ack]:
        """The acknowledgements that are due."""
        if not self._due:
            return []
        due, self._due = self._due, {}
        return [self._ack(own, uuid, sender) for uuid in due if (sender := self._senders.get(uuid))]

    def _sender(self, uuid: Uuid) -> _Sender:
        sender = self._senders.get(uuid)
        if sender is None:
            sender = self._senders[uuid] = _Sender()
        return sender

    def _has_room(self, sender: _Sender) -> bool:
        return sender.waiting < self._window and self._receiver.has_room()

    def _acknowledge(self, uuid: Uuid, sender: _Sender, count: int, *, at_once: bool) -> None:
        sender.unacknowledged += count
        if at_once or sender.unacknowledged >= self._window // 4:
            self._due[uuid] = None
            self._soon()
        elif uuid not in self._later:
            self._later[uuid] = None
            self._call_later()

    def _ack(self, own: Uuid, uuid: Uuid, sender: _Sender) -> Ack:
        self._later.pop(uuid, None)
        sender.unacknowledged = 0
        one, many = sender.one, sender.all
        credit = self._window - sender.waiting
        if not self._receiver.has_room():
            self._starved[uuid] = None
            credit = 0
        arrived = max(one.expected - 1, 0), max(many.expected - 1, 0)
        return Ack(own, uuid, *arrived, max(credit, 0), one.gap, many.gap)
