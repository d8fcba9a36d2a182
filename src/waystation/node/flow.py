"""Flow: how much waits for whom, who is asked to wait for it, and what is shed (FL-1, FL-3).

Each receiver has a `Room`: an account of what waits for it, and who brought that. When it is half
full, the sessions that brought it are pressed; at a quarter they are eased. For a name that the
next node holds they are pressed at once, so that it reaches the sender. What a session then
does, and what it does when its own peer presses it, stands in `session`. A message without a sender
that waits (a peer's, or what a worker sent on) stands in a line as a `Held`.

`NodeFlow` keeps the budget of the whole node: over it, those sessions are not read that hold most.
If a session then holds no less, it is looked at now and then: its peer may wait for the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from msgspec import Struct

from waystation.core.address import LOCAL, Address
from waystation.core.budget import OVERHEAD, Account
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Verdict
from waystation.node.inbox import WaitingLine

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.receiver import Receiver
    from waystation.node.session import Session

LARGE: Final = 8 * 1024
"""Payloads of more bytes are counted one by one: in the room of a receiver, and in a link."""

LOOK_INTERVAL: Final = 0.05
"""Seconds between two looks at the budget while sessions are not read because of it."""

GLANCE: Final = 0.05
"""Seconds that a session is not read for a receiver that is full only for a moment."""

HELD_UP: Final = GLANCE / 4
"""Seconds by which a timer is late when the receiver had no chance either: nothing here ran."""

PATIENCE: Final = 1.0
"""Seconds in which a full receiver must have taken a quarter, or nobody is not read for it."""

LARGEST: Final = 10
"""Number of receivers, and of sessions, that a snapshot names."""

Origin: TypeAlias = "tuple[Session, Address]"
"""Who brought a message: a session, and the name that the message had on its link."""


class ReceiverLoad(Struct, frozen=True):
    """What waits for one receiver."""

    name: str
    bytes: int
    messages: int


class SessionLoad(Struct, frozen=True):
    """What a session holds, and who waits because of it.

    `holds` are the names that its peer was asked to send nothing to, `held` those that its peer
    asked this node to send nothing to.
    """

    name: str
    bytes: int
    is_read: bool
    holds: tuple[str, ...]
    held: tuple[str, ...]


class Snapshot(Struct, frozen=True):
    """How full a node is: bytes that it holds of its budget, and what makes up most of them."""

    used: int
    limit: int
    receivers: tuple[ReceiverLoad, ...]  # the largest first
    sessions: tuple[SessionLoad, ...]  # that hold something, or are held; the largest first
    holds: int  # names that peers were asked to hold
    held: int  # names that peers asked this node to hold
    unread: int  # sessions that are not read at the moment
    pressed: int
    eased: int
    shed: int
    unanswered: int  # questions that were not asked, since their asker had too many
    aside: int = 0  # bytes of the budget, beside those used, for what inboxes have not counted


class Held:
    """A message in a line whose sender does not wait with it.

    It stands there in the place of a `Pending`: whoever takes the message, or refuses it, says so.
    """

    __slots__ = ("arrival", "is_over", "origin", "receiver", "room", "since", "size")

    def __init__(
        self, room: Room, receiver: Receiver, arrival: Arrival, origin: Origin | None
    ) -> None:
        self.room = room
        self.receiver = receiver
        self.arrival = arrival
        self.origin = origin
        self.size = size_of(arrival.message)
        self.since = asyncio.get_running_loop().time()
        self.is_over = False
        room.add(self.size, origin)

    def done(self) -> bool:
        """Whether the message waits no longer."""
        return self.is_over

    def set_result(self, verdict: Verdict) -> None:  # noqa: ARG002 - its last owner records it
        """Note that the message was taken."""
        self._leave()

    def reject(self) -> None:
        """Drop the message: whoever it waits for will not take it."""
        if not self.is_over:
            self._leave()
            self.room.flow.kernel.waiting.drop(self.receiver, self.arrival)

    def give_up(self) -> None:
        """Drop the message: the node closes."""
        self.reject()

    def move(self, room: Room) -> None:
        """Count the message in another room."""
        room.add(self.size, self.origin)
        self.room.remove(self.size, self.origin)
        self.room = room

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Call nobody: it never leaves a line by itself."""

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Call nobody."""

    def _leave(self) -> None:
        self.is_over = True
        self.room.remove(self.size, self.origin)


class Room:
    """How much waits for one receiver, in which line, and who was asked to wait because of it."""

    __slots__ = (
        "_brought", "_count_moves", "_is_held", "_is_slow", "_is_stuck", "_line", "_moves",
        "_owner", "_patience", "_pressed", "_still_since", "_stopped", "_timer", "account", "flow",
        "messages", "name",
    )  # fmt: skip

    def __init__(
        self,
        flow: NodeFlow,
        line: WaitingLine[Any],
        name: str,
        owner: Account | None = None,
        *,
        is_held: bool = False,
        moves: Callable[[], int] | None = None,
    ) -> None:
        self.flow = flow
        self.name = name
        self.account = Account(flow.kernel.limits.receiver)
        self.messages = 0
        self._line = line
        self._count_moves = moves or (lambda: line.moves)
        self._is_held = is_held  # the next node has little room left: whoever sends shall wait too
        self._owner = owner or flow.account  # of what no session brought
        self._brought: dict[Origin, int] = {}  # with the number of messages
        self._pressed: dict[Origin, None] | None = None  # None: nobody
        self._stopped: dict[Session, None] = {}  # not read until there is room, or for long enough
        self._patience: asyncio.TimerHandle | None = None  # while they are not read
        self._is_slow = False  # it had no room for more than a moment
        self._is_stuck = False  # it is full, and does not get on
        self._timer: asyncio.TimerHandle | None = None
        self._moves = 0
        self._still_since = 0.0

    def has_room(self, size: int) -> bool:
        """Whether one more message of this size may wait."""
        if self.flow.sheds:
            self.flow.shed += 1
            return False
        return self.account.has_room(size)

    def glance(self, session: Session) -> None:
        """Read nothing more from a session for a moment: most receivers have room soon.

        So a receiver that is a little slower than its senders costs little: what they send waits in
        their sockets. One that has no room then is slow until nothing waits for it any more, and
        nobody else on that link waits for it.
        """
        if not self._is_slow:
            self._stop(session)
            if self._patience is None:
                self._find_slow_later(asyncio.get_running_loop().time() + PATIENCE)

    def makes_room(self, size: int, session: Session) -> bool:
        """Whether one more message of a session is kept, although there is no room for it here.

        The peer was asked to wait when this was half full, but what it had sent by then is still to
        come, as much as fits into the buffers of both systems. It has the share of its session.
        When that is used up too, the session is not read, as long as the receiver gets on well: it
        takes a quarter of what waits in each second. Any other costs those on the same link no more
        than one second, each time that it is full.
        """
        if session.account.has_room(size):
            return True
        loop = asyncio.get_running_loop()
        most = self.account.limit + session.account.limit
        if self._is_stuck or self.account.used >= most:
            return False
        self._stop(session)
        if self._patience is None:
            self._patience = loop.call_later(PATIENCE, self._lose_patience, self.account.used)
        return True

    def add(self, size: int, origin: Origin | None, messages: int = 1) -> None:
        """Count more messages, and press who brought it if there is little room left."""
        account = self.account
        account.used += size
        if not self.messages:
            self.flow.busy[self] = None
        self.messages += messages
        if origin is None:
            self._owner.take(size)
        else:
            origin[0].account.take(size)
            origin[0].waiting_here += messages
            self._brought[origin] = self._brought.get(origin, 0) + messages
        if self._pressed is None:
            if self._is_held or 2 * account.used >= account.limit:
                self._ask_to_wait(origin)
        elif origin is not None and origin not in self._pressed:
            self._press(origin)

    def remove(self, size: int, origin: Origin | None, messages: int = 1) -> None:
        """Count fewer messages; with enough room again, ease those who were pressed."""
        self.account.give_back(size)
        self.messages -= messages
        if origin is None:
            self._owner.give_back(size)
        else:
            origin[0].account.give_back(size)
            origin[0].waiting_here -= messages
            self._brought[origin] -= messages
            if not self._brought[origin]:
                del self._brought[origin]
        enough = 3 if self._is_slow else 1  # quarters
        if self._stopped and 4 * self.account.used <= enough * self.account.limit:
            self._read_on()
        eased = not self.messages if self._is_held else self.account.is_nearly_empty
        if self._pressed is not None and eased:
            pressed, self._pressed = self._pressed, None
            self._is_stuck = False
            for session, name in pressed:
                self.flow.eased += 1
                session.ease(self, name)
        if not self.messages:
            self._is_slow = False
            self.flow.busy.pop(self, None)

    def forget(self, origin: Origin) -> None:
        """Press a session anew when it next brings something: what it was told is void."""
        if self._pressed is not None:
            self._pressed.pop(origin, None)

    def watch(self) -> None:
        """Drop what waits in a line that does not move, from now on."""
        if self._timer is None:
            self._moves = self._count_moves()
            self._still_since = asyncio.get_running_loop().time()
            self._look_later()

    def _stop(self, session: Session) -> None:
        self._stopped[session] = None
        session.stop_for(self)

    def _find_slow_later(self, latest: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + GLANCE
        self._patience = loop.call_at(due, self._find_slow, due, latest)

    def _find_slow(self, due: float, latest: float) -> None:
        """Call the receiver slow; not before the latest time if it had no chance to get on."""
        if due + HELD_UP < asyncio.get_running_loop().time() < latest:
            self._find_slow_later(latest)
            return
        self._is_slow = True
        self._read_on()
        if self._pressed is None and self.account.is_half_full:
            self._ask_to_wait(None)

    def _lose_patience(self, before: int) -> None:
        self._patience = None
        if 4 * self.account.used > 3 * before:
            self._is_stuck = True
            self._read_on()
        elif self._stopped:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE, self._lose_patience, self.account.used)

    def _read_on(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        stopped, self._stopped = self._stopped, {}
        for session in stopped:
            session.read_on(self)

    def _ask_to_wait(self, origin: Origin | None) -> None:
        """Press all who brought something, unless it may be for a moment only."""
        if self._is_held or self._is_slow:
            self._pressed = {}
            for each in list(self._brought):
                self._press(each)
        elif origin is not None:
            self.glance(origin[0])

    def _press(self, origin: Origin) -> None:
        assert self._pressed is not None
        self._pressed[origin] = None
        self.flow.pressed += 1
        origin[0].press(self, origin[1])

    def _look_later(self) -> None:
        loop, stall = asyncio.get_running_loop(), self.flow.kernel.limits.stall
        self._timer = loop.call_later(max(stall / 4, 0.01), self._look)

    def _look(self) -> None:
        """Drop what waited for the stall limit in a line in which nothing moved for as long."""
        self._timer = None
        line, now = self._line, asyncio.get_running_loop().time()
        if (moves := self._count_moves()) != self._moves:
            self._moves, self._still_since = moves, now
        latest = now - self.flow.kernel.limits.stall
        if self._still_since <= latest:
            late = [one for _, one in line.line if isinstance(one, Held) and one.since <= latest]
            line.remove(late)
            for held in late:
                held.reject()
        if any(isinstance(one, Held) for _, one in line.line):
            self._look_later()


class _Standing(Struct, frozen=True):
    """How a session stood when it was read no more, or was last found to get on."""

    since: float
    used: int  # bytes that it held
    sent: int  # messages that its peer had taken

    @classmethod
    def of(cls, session: Session) -> Self:
        """How it stands now."""
        now = asyncio.get_running_loop().time()
        return cls(now, session.account.used, session.messages_out)

    def gets_on(self, session: Session) -> bool:
        """Whether the session holds less since then, or its peer has taken something."""
        return session.account.used < self.used or session.messages_out > self.sent


class NodeFlow:
    """The budget of a node, and what became of those who used too much of it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.account = Account(kernel.limits.budget)
        self.busy: dict[Room, None] = {}  # in which something waits
        self.pressed = 0  # how often a session was asked to wait
        self.eased = 0
        self.shed = 0  # messages that were dropped since the budget was exceeded by far
        self.aside = 0  # bytes of the budget that inboxes have set aside, and may not need
        self.unanswered = 0
        # While a single message is delivered: what its receivers do at once, when that is done.
        self.steps: list[Callable[[], None]] | None = None
        self._unread: dict[Session, _Standing] = {}  # sessions that are not read
        self.looks: dict[Session, int] = {}  # at those that stood still, and had so many reads
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sheds(self) -> bool:
        """Whether so much is held that what arrives is dropped."""
        return 4 * self.account.used > 5 * self.account.limit

    def has_room(self, size: int) -> bool:
        """Whether so much more may be held; a node that holds nothing takes whatever comes."""
        used, limit = self.account.used, self.account.limit
        if not used or 4 * (used + size) <= 5 * limit:
            return True
        self.shed += 1
        return False

    def sheds_from(self, origin: Origin | None) -> bool:
        """Whether what a session brings is dropped where it would have to wait.

        It stood still, and is looked at since its peer may wait for this node: that shall cost the
        others nothing.
        """
        return origin is not None and origin[0] in self.looks and self.account.is_over

    def origin_of(self, message: Message) -> Origin | None:
        """Who brought a message that is on its way through this node.

        What a worker sent on has the worker's address before the session's in its return route.
        """
        sessions = self.kernel.links.sessions
        name = message.onward_route.addresses[0]
        for hop in message.return_route.addresses:
            if hop.type == LOCAL and (session := sessions.get(hop.data)) is not None:
                return session, name
            name = hop
        return None

    def relieve(self) -> None:
        """Read nothing more from those sessions that hold more than their part, if it is too much.

        The largest come first, until those that are not read hold enough to get below three
        quarters. They are read again when that is reached.
        """
        account, sessions = self.account, self.kernel.links.sessions
        if account.is_over:
            part = account.limit / max(1, len(sessions))
            excess = account.used - 3 * account.limit // 4
            for session in sorted(sessions.values(), key=lambda one: -one.account.used):
                if excess <= 0 or session.account.used <= part:
                    break
                excess -= session.account.used
                if session not in self._unread and self.looks.get(session) != session.reads:
                    self._unread[session] = _Standing.of(session)
                    session.stop_reading()
        elif 4 * account.used <= 3 * account.limit:
            unread, self._unread = self._unread, {}
            self.looks.clear()
            for session in unread:
                session.read_again()
        if (self._unread or self.looks) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL, self._look)

    def forget(self, session: Session) -> None:
        """Note that a session has no link any more: there is nothing to be read."""
        self._unread.pop(session, None)
        self.looks.pop(session, None)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_unread(self, session: Session) -> bool:
        """Whether a session is not read, since the node holds too much."""
        return session in self._unread

    def snapshot(self) -> Snapshot:
        """What makes up most of what the node holds, at this moment."""
        largest = sorted(self.busy, key=lambda room: -room.account.used)[:LARGEST]
        sessions = [
            SessionLoad(s.name, s.account.used, not s.is_stopped, s.holds, s.held_names)
            for s in self.kernel.links.sessions.values()
            if s.account.used or s.is_stopped or s.holds or s.held_names
        ]
        sessions.sort(key=lambda load: -load.bytes)
        return Snapshot(
            self.account.used - self.aside,
            self.account.limit,
            tuple(ReceiverLoad(r.name, r.account.used, r.messages) for r in largest),
            tuple(sessions[:LARGEST]),
            sum(len(load.holds) for load in sessions),
            sum(len(load.held) for load in sessions),
            sum(not load.is_read for load in sessions),
            self.pressed,
            self.eased,
            self.shed,
            self.unanswered,
            self.aside,
        )

    def _look(self) -> None:
        self._timer = None
        for session, standing in list(self._unread.items()):
            if standing.gets_on(session):
                self._unread[session] = _Standing.of(session)
                self.looks.pop(session, None)
            elif asyncio.get_running_loop().time() - standing.since >= self._longest(session):
                self._look_at(session)
        for session, reads in list(self.looks.items()):
            if session not in self._unread and session.reads != reads:
                del self.looks[session]  # something came, and it holds no more than its part
        self.relieve()

    def _longest(self, session: Session) -> float:
        """Seconds that a session may stand still before it is looked at, or looked at again."""
        return PATIENCE if session in self.looks else self.kernel.limits.stall

    def _look_at(self, session: Session) -> None:
        """Read a session until something has come.

        Its peer may have as much to send as this node, and not read either: then what both hold
        would never get less, and neither would hear from the other again.
        """
        del self._unread[session]
        self.looks[session] = session.reads
        session.read_again()


def size_of(message: Message) -> int:
    """Bytes that a message counts."""
    return len(message.payload) + OVERHEAD


def size_of_all(messages: Sequence[Message]) -> int:
    """Bytes that messages count."""
    return sum([len(message.payload) for message in messages]) + OVERHEAD * len(messages)
