"""What comes from the other members: taken in order, held back, and acknowledged. No sockets.

A sender is told what arrived, and for how many more there is room: at once when that was much or
when something is missing, else with others, a little later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.core.identity import Uuid
from waystation.core.membership import Member, Peer
from waystation.core.sequences import Arrivals
from waystation.groups.packets import Ack, Data

if TYPE_CHECKING:
    from waystation.groups.group import Group


class Inbound:
    """What comes from all of them.

    `soon` is called when acknowledgements are due at the end of this turn, `later` when they can
    wait for others; `take_acks` gives those that are due.
    """

    def __init__(
        self,
        window: int,
        window_bytes: int,
        receiver: Group,
        soon: Callable[[], None],
        later: Callable[[], None],
    ) -> None:
        self._window = window
        self._window_bytes = window_bytes
        self._receiver = receiver
        self._soon = soon
        self._call_later = later
        self._due: dict[Peer, None] = {}
        self._later: dict[Peer, None] = {}
        self.starved: dict[Peer, None] = {}  # told that there is no room

    def accept(self, sender: Peer, member: Member, data: Data) -> int:
        """Take what is new, and whose turn it is; returns how many will never come."""
        arrivals = sender.arrivals
        if arrivals is None:
            arrivals = sender.arrivals = Arrivals()
        if not self._has_room(arrivals):
            self.starved[sender] = None
            self._acknowledge(sender, arrivals, 0, at_once=True)
            return 0
        stream = arrivals.all if data.to_all else arrivals.one
        lost, is_probe = stream.lost, bool(stream.expected) and not data.payloads
        new = stream.accept(data.first, data.base, data.payloads)
        if stream.expected:
            self._acknowledge(sender, arrivals, len(new), at_once=stream.gap or is_probe)
        if new:
            first = stream.expected - len(new)
            if arrivals.is_held:
                arrivals.held.append((new, first, data.to_all))
                arrivals.waiting += len(new)
                arrivals.waiting_bytes += sum([len(payload or b"") for payload in new])
            else:
                self._receiver.received(member, new, first, to_all=data.to_all)
        return stream.lost - lost

    def hold(self, sender: Peer) -> None:
        """Hand in nothing more of a member for now; its window fills up then."""
        if sender.arrivals is None:
            sender.arrivals = Arrivals()
        sender.arrivals.is_held = True

    def release(self, sender: Peer, member: Member) -> None:
        """Hand in what a member sent, and let it go on."""
        arrivals = sender.arrivals
        if arrivals is None or not arrivals.is_held:
            return
        arrivals.is_held = False
        while arrivals.held and not arrivals.is_held:
            payloads, first, to_all = arrivals.held.popleft()
            arrivals.waiting -= len(payloads)
            arrivals.waiting_bytes -= sum([len(payload or b"") for payload in payloads])
            self._receiver.received(member, payloads, first, to_all=to_all)
        self._due[sender] = None
        self._soon()

    def room_again(self) -> None:
        """There is room: tell those who were told that there is none."""
        if self.starved:
            self._due |= self.starved
            self.starved.clear()
            self._soon()

    def make_all_due(self) -> None:
        """Let no acknowledgement wait for others."""
        self._due |= self._later
        self._later.clear()

    def take_acks(self, own: Uuid) -> list[Ack]:
        """The acknowledgements that are due."""
        if not self._due:
            return []
        due, self._due = self._due, {}
        return [self._ack(own, sender, a) for sender in due if (a := sender.arrivals) is not None]

    def _has_room(self, arrivals: Arrivals) -> bool:
        """Whether one member may send more: little of it waits, and little in the inbox."""
        is_full = arrivals.waiting >= self._window or arrivals.waiting_bytes >= self._window_bytes
        return not is_full and self._receiver.has_room()

    def _acknowledge(self, sender: Peer, arrivals: Arrivals, count: int, *, at_once: bool) -> None:
        arrivals.unacknowledged += count
        if at_once or arrivals.unacknowledged >= self._window // 4:
            self._due[sender] = None
            self._soon()
        elif sender not in self._later:
            self._later[sender] = None
            self._call_later()

    def _ack(self, own: Uuid, sender: Peer, arrivals: Arrivals) -> Ack:
        self._later.pop(sender, None)
        arrivals.unacknowledged = 0
        one, many = arrivals.one, arrivals.all
        credit = self._window - arrivals.waiting
        if not self._has_room(arrivals):
            self.starved[sender] = None
            credit = 0
        arrived = max(one.expected - 1, 0), max(many.expected - 1, 0)
        return Ack(own, sender.uuid, *arrived, max(credit, 0), one.gap, many.gap)
