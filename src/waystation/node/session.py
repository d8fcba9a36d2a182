"""Sessions: a link to a peer under a local name, and everything around it that is not bytes (WK-8).

A session is a receiver like any worker: what is addressed to its name goes over its link. It sends
a hello, proves the token, translates address types, sends heartbeats and notices their absence,
and keeps messages waiting while the link is slow or gone, in one line, or while the peer holds a
name, in a line of that name. It holds the peer back while somebody here is slow (FL-3): one that
knows `hold` is told the name, any other is not read.

Its life is the table in `waystation.core.session`; here its effects are carried out. Who listens,
connects and connects again is the node's business (links.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from msgspec import Struct, field, structs

from waystation.core.address import LOCAL, Address, Route
from waystation.core.address_types import PeerTypes
from waystation.core.budget import Account
from waystation.core.clock import PeerClock, shifted
from waystation.core.custody import CustodyArrival
from waystation.core.expiry import NEVER, Expiry
from waystation.core.heartbeat import Heartbeat
from waystation.core.message import NO_ID, Arrival, Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import SessionKind, SessionRecord, SessionRole
from waystation.core.session import ENDING, Effect, Event, Flow, State, step
from waystation.core.tokens import Tokens
from waystation.core.who import NOBODY, Who
from waystation.errors import LocalError, RemoteError, quote
from waystation.node.flow import LARGE, Held, Room, size_of, size_of_all
from waystation.node.inbox import Ticket, WaitingLine
from waystation.node.peer_clock import PeerClockMeter
from waystation.node.receiver import NoRoom, Verdicts
from waystation.transports.transport import Link
from waystation.wire import flow
from waystation.wire.hello import Greeting, Hello

if TYPE_CHECKING:
    from waystation.node.claims import Claimant
    from waystation.node.kernel import Kernel
    from waystation.node.links import Links

CLOSE_TIMEOUT: Final = 10.0
"""Seconds that a link has to end, once it was told to."""

CONTROL_TIME: Final = 5.0
"""Seconds that a peer may let more wait than its share of what sessions say to each other."""

NAME_TIME: Final = 1.0
"""Seconds that a peer has to tell its name before its session is recorded without one."""

HELD_LIMIT: Final = 10_000
"""Maximum number of names that a peer can hold."""

_Line: TypeAlias = WaitingLine[tuple[Arrival, Message, Verdicts]]
Ending: TypeAlias = tuple[Reason | None, str]  # why a link is gone, or could not be made

TOO_MANY_SESSIONS: Final = "the limit of sessions is reached"

_log = logging.getLogger("waystation.node")
_FORWARDED: Final = Outcome.FORWARDED  # looked up for each message
_OPEN: Final = State.OPEN  # looked up for each message that waited
_FREE: Final = Flow.FREE
_HELD: Final = Flow.HELD


def _refuse_while_closing(message: Message) -> Reason | None:  # noqa: ARG001
    return Reason.TRANSPORT_DOWN


def _send_without_link(message: Message) -> Reason | None:
    raise AssertionError(message)  # a session without a link is not ready


class _HeldName:
    """A name that the peer holds, and what waits for it."""

    __slots__ = ("line", "room", "until")

    def __init__(self, session: Session, name: Address) -> None:
        self.line: _Line = WaitingLine()
        name_there = f"{session.name} => {name.name}"
        self.room = session.make_room(self.line, name_there, is_held=True)
        self.until = 0.0  # when it is over, unless it is renewed


def _is_for_broadcast(message: Message) -> bool:
    """Whether a message is published, here or where its route leads it.

    A broadcast is known again by its id (FL-6). So one that is not from a node of ours gets its id
    here: nobody else may choose one, and so let the broadcast that has it be taken for a copy.
    """
    for address in message.onward_route.addresses:  # noqa: SIM110 - for each message of a stranger
        if address.type == MULTICAST:
            return True
    return False


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


class Session(Struct, eq=False):
    """One peer, over one link at a time."""

    _links: Links
    address: Address
    place: Address
    _tokens: Tokens | None
    _greeting: Greeting
    outgoing: bool  # this node connects to the peer; False when the peer did
    asked: object = None  # by which listener, if the peer connected
    name: str = ""  # the local one that stands for it in routes: that in `address`
    # What its peer sent and this node has not settled, and what waits for it: part of the node's.
    account: Account = field(default_factory=lambda: Account(0))
    reconnects: bool = False  # it stays when its link goes, and gets another
    candidates: int = 1  # addresses that its peer may be at; the link tells which it is
    from_outside: bool = False  # its peer is reached over a global transport (RE-13, MC-11)
    is_parent: bool = False
    keeper: asyncio.Task[None] | None = None  # connects, and connects again
    openings: int = 0
    ending: Ending = (None, "")  # of the last link, or attempt
    change: asyncio.Future[None] = field(default_factory=_new_future)
    participants: dict[str, None] = {}  # that its peer announced, or asked as from outside
    down_since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    checked_at: int = 0  # when it was last checked which of them are still there
    subscriptions: int = 0  # of its participants
    questions: int = 0  # that its peer asked, and that the parents have yet to answer
    complaints: set[str] = set()  # about what its peer sent
    number: int = 0  # of the link, if it is to a parent (CL-1)
    claimant: Claimant | None = None  # who claims over it
    who: Who = NOBODY  # what its peer has proven
    denials: set[str] = set()  # what it was denied, as recorded
    reads: int = 0  # how often something was heard from the peer
    messages_in: int = 0  # that came over it
    messages_out: int = 0  # that left over it
    state: State = State.DISCONNECTED
    # OPEN, outflow FREE, nobody waits, and no name is held: asked for each message.
    is_ready: bool = False
    waiting_here: int = 0  # messages that its peer sent, and that wait for room here
    _outflow: Flow = _FREE  # held while the link asks for a pause
    _paused_at: float = 0.0
    _link: Link | None = None
    _send: Callable[[Message], Reason | None] = _send_without_link
    _types: PeerTypes = field(default_factory=PeerTypes)
    _clock: PeerClockMeter | None = None  # of the present link
    _clock_shift: int = 0  # what is taken off the peer's times, in milliseconds (TM-2)
    _by_name: Verdicts = ()  # the verdict on what is sent to its name
    _by_place: Verdicts = ()
    _waiting: _Line = field(default_factory=WaitingLine)
    _room: Room | None = None  # of what waits for the link, once something does
    _held: dict[Address, _HeldName] = {}  # by its peer
    _hold_timer: asyncio.TimerHandle | None = None
    _holding: dict[Address, dict[Room, None]] = {}  # names that its peer is to hold, and for whom
    _renewal_timer: asyncio.TimerHandle | None = None
    _stopped_for: dict[Room, None] = {}  # why its peer is not read
    # Given to the link and not yet out of our hands, with the verdicts that hold then.
    _unsettled: list[tuple[Arrival, Verdicts]] = []
    _backlog: deque[Message] | None = None  # read, when it was not to be read
    _unread: int = 0  # bytes of control payloads since the peer stopped reading
    _answered: int = 0  # of these, what it had asked for
    _unsent: int = 0  # bytes of messages, likewise
    _beat: Heartbeat = field(default_factory=lambda: Heartbeat(0.0))
    _beat_timer: asyncio.TimerHandle | None = None
    _admission_timer: asyncio.TimerHandle | None = None
    _opening_timer: asyncio.TimerHandle | None = None  # it is open, and that is not recorded yet
    _failure: tuple[Reason, str] | None = None  # why this side ends the link

    def __post_init__(self) -> None:
        self.name = self.address.name
        self.account = Account(self._links.limits.share, self._links.kernel.account)
        self.move_to(self.place)

    def __repr__(self) -> str:
        return f"<session {self.name} with {self.place}: {self.state.name}>"

    def move_to(self, place: Address) -> None:
        """Note where the peer is."""
        self.place = place
        self._by_name = (Verdict(Outcome.FORWARDED, None, self.name, place),)
        self._by_place = (Verdict(Outcome.FORWARDED, None, None, place),)

    @property
    def hello(self) -> Hello | None:
        """What the peer said first; None if it said nothing yet."""
        return self._greeting.peer

    @property
    def peer(self) -> str | None:
        """The name that the peer gave itself; None if it gave none yet."""
        hello = self._greeting.peer
        return None if hello is None else hello.node

    @property
    def identity(self) -> str | None:
        """Who the peer has proven to be (ID-2); None if it has not: its name is only its word.

        Its identifier, else `certificate:NAME`, else `token:PATTERN`.
        """
        return self.who.text

    def change_tokens(self, former: Tokens | None, tokens: Tokens | None) -> None:
        """Ask for other tokens than before, or show another; a peer that has none has to go."""
        if self._tokens is former:  # else it has its own
            self.use_tokens(tokens)

    def use_tokens(self, tokens: Tokens | None) -> None:
        """Ask for these tokens, or show this one; a peer that has none of them has to go."""
        self._tokens = tokens
        token = self._greeting.token
        if not self.outgoing and tokens is not None and (token is None or not tokens.has(token)):
            self.break_off("the token that its peer proved is no longer valid")

    @property
    def is_introduced(self) -> bool:
        """Whether the peer has told its name, and has proven what it is going to prove."""
        return self._greeting.is_complete

    def can(self, capability: str) -> bool:
        """Whether the peer has said that it understands something (UP-1)."""
        hello = self._greeting.peer
        return hello is not None and capability in hello.can

    @property
    def peer_version(self) -> str | None:
        """The version of the peer's software; None if it sent no hello. It decides nothing."""
        hello = self._greeting.peer
        return None if hello is None else hello.version

    @property
    def peer_can(self) -> tuple[str, ...]:
        """What the peer understands beside the payloads of the first version (UP-1)."""
        hello = self._greeting.peer
        return () if hello is None else hello.can

    @property
    def kernel(self) -> Kernel:
        """The kernel of the node that it belongs to."""
        return self._links.kernel

    @property
    def role(self) -> SessionRole:
        """What the peer is to this node, as far as it is known by now."""
        if self.is_parent:
            return SessionRole.PARENT
        if self.from_outside:
            return SessionRole.OUTSIDE
        return SessionRole.LEAF if self.participants else SessionRole.PEER

    @property
    def clock_offset_us(self) -> int | None:
        """How far the peer's clock is ahead of ours, in microseconds; None if nobody knows."""
        clock = None if self._clock is None else self._clock.clock
        return None if clock is None else clock.offset_us

    @property
    def clock_rtt_us(self) -> int | None:
        """The round trip of that measurement; None if only the peer's hello told its time."""
        clock = None if self._clock is None else self._clock.clock
        return None if clock is None else clock.rtt_us

    @property
    def peer_clock_off_us(self) -> int:
        """How far the peer's wall clock is off, if too far for its node to follow; else 0."""
        hello = self._greeting.peer
        return 0 if hello is None else hello.clock_off

    @property
    def failure(self) -> str:
        """How the last link ended, or why there was none; empty at first."""
        return self.ending[1]

    @property
    def is_open(self) -> bool:
        """Whether messages can go over it now, even if slowly."""
        return self.state is _OPEN

    @property
    def is_paused(self) -> bool:
        """Whether the link takes no messages at the moment."""
        return self._outflow is _HELD

    @property
    def is_stalled(self) -> bool:
        """Whether messages from the peer wait for room here."""
        return self.waiting_here > 0 or bool(self._backlog)

    @property
    def is_stopped(self) -> bool:
        """Whether its peer is not read at the moment."""
        return bool(self._stopped_for) or self._links.kernel.flow.is_unread(self)

    @property
    def has_backlog(self) -> bool:
        """Whether something was read that is still to be delivered."""
        return bool(self._backlog)

    @property
    def has_held(self) -> bool:
        """Whether something waits for the link, or for a name, that no sender waits with."""
        rooms = [self._room, *(held.room for held in self._held.values())]
        return any(room is not None and room.messages for room in rooms)

    @property
    def knows_hold(self) -> bool:
        """Whether the peer can be asked to send nothing to a name."""
        return self.can(flow.CAPABILITY)

    @property
    def holds(self) -> tuple[str, ...]:
        """The names that its peer was asked to send nothing to."""
        return tuple(map(str, self._holding))

    @property
    def held_names(self) -> tuple[str, ...]:
        """The names that its peer asked this node to send nothing to."""
        return tuple(map(str, self._held))

    @property
    def ended(self) -> bool:
        """Whether it is over, or will be when its link is gone."""
        return self.state in ENDING

    @property
    def has_link(self) -> bool:
        """Whether there is a link, open for messages or not."""
        return self._link is not None

    async def close(self) -> None:
        """End it: what was given to it is written, what waits for it is TRANSPORT_DOWN."""
        self._apply(Event.CLOSE_ASKED)
        await self.until(lambda: not self.has_link, CLOSE_TIMEOUT)  # it may never tell its end
        self.give_up()

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until something holds for this session, for at most this many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    await asyncio.shield(self.change)

    # A receiver of messages

    @property
    def verdict(self) -> Verdict:
        """What becomes of a message that is sent to its name."""
        return self._by_name[0]

    @property
    def out(self) -> str:
        """The session over which what it takes leaves the node: this one."""
        return self.name

    @property
    def refusal(self) -> Reason:
        """Why it takes no message at the moment."""
        return Reason.QUEUE_FULL if self.is_open else Reason.TRANSPORT_DOWN

    def offer(self, arrival: Arrival) -> Verdict:
        """Take a message that is addressed to it, if the link can have it now."""
        message = arrival.message
        if not self.is_ready and not self.takes(message):
            return NoRoom.at(self)
        return self.carry(arrival, message, self.verdicts_on(message))

    def takes(self, message: Message) -> bool:
        """Whether a message can go over the link now, although others may have to wait."""
        return (
            self.state is _OPEN
            and self._outflow is _FREE
            and not self._waiting.line
            and self._held_name(message) is None
        )

    def room(self, arrival: Arrival) -> Room:
        """Where a message is counted that waits for the link, or for the name it goes to."""
        return self.room_of(arrival.message)

    def room_of(self, message: Message) -> Room:
        """Where a message is counted, given the form in which it leaves."""
        held = self._held_name(message)
        return self._link_room() if held is None else held.room

    def _link_room(self) -> Room:
        """Where is counted what waits for the link; most sessions never need it."""
        if self._room is None:
            self._room = self.make_room(self._waiting, self.name)
        return self._room

    def make_room(self, line: _Line, name: str, *, is_held: bool = False) -> Room:
        """Count what waits in a line, for this session unless another brought it."""
        return Room(self._links.kernel.flow, line, name, self.account, is_held=is_held)

    def wait_for_room(self, arrival: Arrival, ticket: Ticket) -> None:
        """Take a message as soon as the link can have it."""
        message = arrival.message
        self.wait_for_link(arrival, message, self.verdicts_on(message), ticket)

    def wait_for_link(
        self, arrival: Arrival, message: Message, verdicts: Verdicts, ticket: Ticket
    ) -> None:
        """Take a message as soon as the link can have it, in the form in which it leaves."""
        self.is_ready = False
        held = self._held_name(message)
        if held is not None:
            held.line.join((arrival, message, verdicts), ticket)
            return
        self._waiting.join((arrival, message, verdicts), ticket)
        self._send_waiting()  # it may have got room meanwhile

    def waiting(self) -> int:
        """How many messages wait for the link, or for a name that the peer holds."""
        return len(self._waiting.line) + sum(len(held.line.line) for held in self._held.values())

    def patience(self) -> float:
        """How many seconds a message that has no deadline goes on waiting for the link."""
        limit = self._links.limits.reconnect
        if self.is_open:
            return max(limit, 1.0)  # and then it is asked again
        return self.down_since + limit - asyncio.get_running_loop().time()

    def send_control(self, payload: bytes) -> None:
        """Send something to the peer's session, ahead of the messages that wait (FL-5).

        A peer that does not read is disconnected when too much of this waits: it is told everything
        anew when it connects again.
        """
        if self._link is None or self.state is not _OPEN:
            return
        if self._outflow is _HELD:
            self._unread += len(payload)
            self.account.take(len(payload))
            waited = asyncio.get_running_loop().time() - self._paused_at
            if self._unread > self._links.limits.control and waited > CONTROL_TIME:
                self._fail(Reason.QUEUE_FULL, "the peer does not read what this session tells it")
                return
        self._beat.sent = True
        self._link.send_control(payload)

    def answer(self, payload: bytes) -> None:
        """Answer the peer's session; a peer that keeps asking and never reads is disconnected."""
        if self._answered > self._links.limits.control:
            self._fail(Reason.QUEUE_FULL, "the peer keeps asking and does not read the answers")
        if self._outflow is _HELD:
            self._answered += len(payload)
        self.send_control(payload)

    def reject_all(self) -> None:
        """Reject all messages that wait for the link."""
        self._release_held()
        self._waiting.reject_all()

    def carry(self, arrival: Arrival, message: Message, verdicts: Verdicts) -> Verdict:
        """Give a message to the link, which is ready, in the form in which it leaves the node."""
        if self._types.outward:
            message = message.rerouted(
                self._types.to_peer(message.onward_route), self._types.to_peer(message.return_route)
            )
        kernel = self._links.kernel
        if len(message.payload) > LARGE and not kernel.flow.has_room(2 * size_of(message)):
            reason: Reason | None = Reason.QUEUE_FULL  # the link would have it twice, see `pause`
        else:
            send = self._send
            reason = send(message)
        if reason is None:
            self._unsettled.append((arrival, verdicts))
            return verdicts[0]
        return kernel.drop_each(arrival, reason, verdicts, self.name)

    def verdicts_on(self, message: Message) -> Verdicts:
        """The verdict of the rules on a message that goes here, by whichever name it was sent."""
        first = message.onward_route.addresses[0]
        if first.type != LOCAL:
            return self._by_place
        if first.data == self.address.data:
            return self._by_name
        return (Verdict(_FORWARDED, None, first.name, self.place),)

    # The owner of a link

    @property
    def admitted(self) -> bool:
        """Whether the peer of this link has proven all that it has to."""
        return self._greeting.admitted

    @property
    def is_stranger(self) -> bool:
        """Whether the peer has not said hello, as nodes of ours do."""
        return self._greeting.peer is None

    def opened(self, link: Link) -> None:
        """Greet the peer, if there is room for one more session."""
        self._link = link
        self._failure = None
        self._links.kernel.pin_clock()
        self._clock, self._clock_shift = PeerClockMeter(self), 0
        if self.is_parent:
            self.number = self._links.kernel.hierarchy.number_link()
        secured = getattr(link, "secured", None)  # links without TLS need not know of it
        self.who = Who(certificate=secured.names) if secured is not None else NOBODY
        certificate = b"" if secured is None else secured.certificate
        self._greeting = self._links.greeting(
            self._tokens, outgoing=self.outgoing, to=self.number, certificate=certificate
        )
        wanted = self._links.link_made(self, link)
        if not wanted:
            self._failure = (Reason.REFUSED, TOO_MANY_SESSIONS)
        self._apply(Event.LINK_MADE if wanted else Event.LINK_UNWANTED)

    def answered(self) -> None:
        """Let messages follow, unless the peer's proof or address types are awaited."""
        self._apply(Event.ANSWERED)

    def received(self, messages: Sequence[Message]) -> None:
        """Deliver messages, in order."""
        self._beat.heard = True
        self.reads += 1
        self.messages_in += len(messages)
        kernel = self._links.kernel
        if kernel.account.used > kernel.account.limit:
            kernel.flow.relieve()
        if self._stopped_for or self._backlog:  # also when a new link has taken the old one's place
            if self._backlog is None:
                self._backlog = deque()
            self._backlog.extend(messages)
            self.pause_reading()
        elif len(messages) == 1:
            self._deliver_one(messages[0])
        else:
            kernel.tick()
            self._deliver(deque(messages))

    def sent(self, messages: int | None = None) -> None:
        """Note that this many more messages are out of our hands; None for all."""
        self._beat.sent = True
        settled = self._unsettled
        if messages is None or messages >= len(settled):
            self._unsettled = []
        else:
            self._unsettled = settled[messages:]
            settled = settled[:messages]
        if settled:
            self.messages_out += len(settled)
            self._links.kernel.end_all(settled, self.name)

    def has_unsettled(self, arrival: Arrival) -> bool:
        """Whether a message was given to the link and is still in our hands."""
        return any(one is arrival for one, _ in self._unsettled)

    def pause(self) -> None:
        """Let senders wait."""
        if self._outflow is _FREE:
            self._outflow = _HELD
            self._paused_at = asyncio.get_running_loop().time()
            # What the link has is there twice, as messages and as the bytes to be written.
            self._unsent = 2 * size_of_all([arrival.message for arrival, _ in self._unsettled])
            self.account.take(self._unsent)
        self.is_ready = False

    def resume(self) -> None:
        """Send what waits, in order, until the link asks for a pause."""
        self._free_outflow()
        self._send_waiting()

    def closed(self, reason: Reason | None, detail: str) -> None:
        """Forget the link, and what it had not written."""
        self.ending = (reason, detail) if self._failure is None else self._failure
        self._apply(Event.NO_LINK if self._link is None else Event.LINK_LOST)
        if not self.reconnects:
            self.give_up()

    # What the node asks for

    def not_connected(self, detail: str) -> None:
        """Note that an attempt to connect has failed."""
        if self._link is None:  # or it had just made a link, which tells of its own end
            self.ending = (Reason.TRANSPORT_DOWN, detail)
        self._apply(Event.NO_LINK)

    def in_own_time(self, expiry: Expiry) -> Expiry:
        """An expiry that the peer told, on the clock of this node (TM-2)."""
        return shifted(expiry, self._clock_shift) if self._clock_shift else expiry

    def clock_measured(self, clock: PeerClock) -> None:
        """Translate the peer's times by what is known of its clock now."""
        self._clock_shift = clock.shift_ms

    def measure_clock(self) -> None:
        """Measure the peer's clock again, since ours changes."""
        if self._clock is not None and self.state is _OPEN:
            self._clock.measure_soon()

    def record(self, at: int) -> SessionRecord:
        """The record that it is open."""
        kind = SessionKind.OPENED
        place, transport = str(self.place), self._links.transport_name(self.place)
        ending, hello = (None, "", at), self._greeting.peer
        known = (self.role, transport, self.identity)
        incarnation = None if hello is None else hello.incarnation or None
        return SessionRecord(kind, self.name, place, self.peer, *ending, *known, incarnation)

    def abort_link(self) -> None:
        """End the link at once; a session that reconnects then gets another."""
        self._apply(Event.FAILED)

    def break_off(self, detail: str) -> None:
        """End the link at once, since the peer cannot be reached over it any more."""
        self._fail(Reason.TRANSPORT_DOWN, detail)

    def give_up(self) -> None:
        """End it now, without waiting for its link."""
        self._apply(Event.GIVEN_UP)

    def pause_reading(self) -> None:
        """Take nothing more from the peer."""
        if self._link is not None:
            self._link.pause_reading()

    def stop_reading(self) -> None:
        """Take nothing more from the peer, since the node holds too much."""
        self.pause_reading()

    def read_again(self) -> None:
        """Take more from the peer, unless there is another reason not to."""
        if self._link is not None and not self.is_stopped and not self._links.closing:
            self._link.resume_reading()

    def press(self, room: Room, name: Address) -> None:
        """Let the peer send nothing to a name: the receiver there has little room left (FL-3)."""
        if not self.knows_hold:
            self.stop_for(room)
            return
        rooms = self._holding.setdefault(name, {})
        rooms[room] = None
        if len(rooms) == 1:
            self._tell_flow(flow.Hold, [name])
        if self._renewal_timer is None:
            self._renew_later()

    def stop_for(self, room: Room) -> None:
        """Take nothing more from the peer, since a receiver has no room for it."""
        self._stopped_for[room] = None
        self.pause_reading()

    def read_on(self, room: Room) -> None:
        """Take more from the peer, as far as this receiver is concerned."""
        if self._stopped_for.pop(room, self) is None and not self._stopped_for:
            asyncio.get_running_loop().call_soon(self._deliver_backlog)

    def ease(self, room: Room, name: Address) -> None:
        """Let the peer send to a name again."""
        self.read_on(room)
        rooms = self._holding.get(name)
        if rooms is not None and rooms.pop(room, self) is None and not rooms:
            del self._holding[name]
            self._tell_flow(flow.Go, [name])

    def wake(self) -> None:
        """Wake the tasks that wait for this session to open, to end or to learn its peer's name."""
        change, self.change = self.change, _new_future()
        if not change.done():
            change.set_result(None)

    # Its life

    def _apply(self, event: Event) -> None:
        """Do what the table says."""
        before = self.state
        self.state, effects = step(before, event)
        if self.state is not before:
            change = (event.name, before.name, self.state.name)
            _log.debug("session %s: %s, %s -> %s", self.name, *change)
        for effect in effects:
            self._ACTIONS[effect](self)

    def _fail(self, reason: Reason, detail: str) -> None:
        if self._failure is None:
            self._failure = (reason, detail)
        self._apply(Event.FAILED)

    def _greet(self) -> None:
        link, limits = self._link, self._links.limits
        assert link is not None
        self._send = link.send
        self._free_outflow()
        link.send_control(self._greeting.first())
        loop = asyncio.get_running_loop()
        if not self._greeting.admitted:
            why = f"the peer did not prove the token within {limits.greeting:g} s"
            self._admission_timer = loop.call_later(
                limits.greeting, self._fail, Reason.REFUSED, why
            )
        self._types = self._links.peer_types(None, outgoing=self.outgoing)
        self._beat = Heartbeat(limits.heartbeat)
        if limits.heartbeat:
            self._beat_timer = loop.call_later(limits.heartbeat, self._keep_alive)

    def _check_admission(self) -> None:
        greeting = self._greeting
        if not greeting.admitted:
            return  # until it has proven the token, within the time for that
        if greeting.peer is None and (greeting.proves or (self.outgoing and self._types.outward)):
            # To prove our identity before anything else is said, we need the peer's hello; and if
            # our numbers are not the standard ones, are they what this peer will read?
            loop, seconds = asyncio.get_running_loop(), self._links.types_timeout
            self._admission_timer = loop.call_later(seconds, self._apply, Event.TYPES_TIMEOUT)
        else:
            self._apply(Event.ADMITTED)

    def _stop_admission_timer(self) -> None:
        if self._admission_timer is not None:
            self._admission_timer.cancel()
            self._admission_timer = None

    def _stop_timers(self) -> None:
        self._record_opening()
        self._stop_admission_timer()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        if self._clock is not None:
            self._clock.stop()

    def _tell_opened(self) -> None:
        loop = asyncio.get_running_loop()
        self._opening_timer = loop.call_later(NAME_TIME, self._record_opening)
        if self._greeting.is_complete:
            self._record_opening()  # else its hello is about to come, with the name, or its proof
        self._links.link_opened(self)
        if self._clock is not None:
            self._clock.begin(self._greeting.peer)

    def _record_opening(self) -> None:
        """Record that the session is open, if that was not done yet."""
        if self._opening_timer is not None:
            self._opening_timer.cancel()
            self._opening_timer = None
            self._links.tell_opened(self)

    def _release_link(self) -> None:
        self._link = None
        self._send = _send_without_link
        self.is_ready = False
        self._free_outflow()
        self._void_holds()
        self._links.kernel.flow.forget(self)
        lost, self._unsettled = self._unsettled, []
        for arrival, verdicts in lost:
            if isinstance(arrival, CustodyArrival):
                arrival.settle(Reason.TRANSPORT_DOWN)  # its custodian sends it again (DU-6)
                continue
            self._links.kernel.drop_each(arrival, Reason.TRANSPORT_DOWN, verdicts, self.name)

    def _close_link(self) -> None:
        self._send = _refuse_while_closing
        if self._link is not None:
            self._link.close()

    def _abort_link(self) -> None:
        self.is_ready = False
        if self._link is not None:
            self._link.abort()

    def _send_waiting(self) -> None:
        """Give the link what waits for it."""
        kernel = self._links.kernel
        while self.state is _OPEN and self._outflow is _FREE:
            first = self._waiting.next()
            if first is None:
                self.is_ready = not self._held
                return
            (arrival, message, verdicts), room = first
            if message.expired(kernel.tick() // 1000):
                ended = kernel.drop_each(arrival, Reason.EXPIRED, verdicts, self.name)
                room.set_result(ended)
            else:
                room.set_result(self.carry(arrival, message, verdicts))

    _ACTIONS: ClassVar[Mapping[Effect, Callable[[Session], None]]] = {
        Effect.GREET: _greet,
        Effect.CHECK_ADMISSION: _check_admission,
        Effect.STOP_ADMISSION_TIMER: _stop_admission_timer,
        Effect.TELL_OPENED: _tell_opened,
        Effect.SEND_WAITING: _send_waiting,
        Effect.STOP_TIMERS: _stop_timers,
        Effect.RELEASE_LINK: _release_link,
        Effect.TELL_CLOSED: lambda self: self._links.link_closed(self),
        Effect.TELL_REFUSED: lambda self: self._links.link_refused(self, self.peer),
        Effect.TELL_NO_LINK: lambda self: self._links.link_refused(self, None),
        Effect.FORGET: lambda self: self._links.forget(self),
        Effect.WAKE: wake,
        Effect.CLOSE_LINK: _close_link,
        Effect.ABORT_LINK: _abort_link,
    }

    # Greeting

    def _on_control(self, payload: bytes) -> None:
        """Take what the peer's session sent: a hello, a proof, or the words of a hierarchy."""
        self.messages_in -= 1  # it was counted as one, but is none
        if not payload:
            return
        clock = self._clock
        assert clock is not None  # it came with the link
        if self.state is _OPEN and (
            clock.receive(payload) or self._links.kernel.hierarchy.receive(self, payload)
        ):
            return
        if self.state is _OPEN and (told := flow.read(payload)) is not None:
            self._on_hold(told.names) if isinstance(told, flow.Hold) else self._on_go(told.names)
            return
        self._on_greeting(payload, clock)

    def _on_greeting(self, payload: bytes, clock: PeerClockMeter) -> None:
        """Take a hello or a proof."""
        greeting = self._greeting
        before = (greeting.peer, greeting.admitted)
        try:
            answer = greeting.hear(payload)
        except RemoteError as error:
            self._fail(Reason.REFUSED, str(error))
            return
        if not self._note_proof():
            return
        if answer is not None and self._link is not None:
            self._link.send_control(answer)
        if greeting.peer is not None and before[0] is None:
            _log.debug("session %s: hello from node %s", self.name, quote(greeting.peer.node))
            self._types = self._links.peer_types(greeting.peer.types, outgoing=self.outgoing)
            clock.greeted(greeting.peer)
            if self.state is _OPEN:
                clock.begin(greeting.peer)
                self._links.greeted(self)
            self.wake()
        if self.state is _OPEN and greeting.is_complete:
            self._record_opening()
            self.wake()
        if greeting.admitted and before != (greeting.peer, greeting.admitted):
            self._apply(Event.ADMITTED)

    def _note_proof(self) -> bool:
        """Note who the peer has proven to be; False if it is not accepted as that."""
        greeting, who = self._greeting, self.who
        met, token = greeting.identity, greeting.token
        if met is not None and who.identity is None:
            kernel = self._links.kernel
            why = self._links.identities.objection(met, kernel.tick() // 1_000_000)
            if why:
                self._fail(Reason.REFUSED, why)
                return False
            self.who = structs.replace(self.who, identity=met.identifier)
        if token is not None and token.names and who.token is None:
            self.who = structs.replace(self.who, token=token.names)
        return True

    def _keep_alive(self) -> None:
        link, beat, peer = self._link, self._beat, self._greeting.peer
        assert link is not None  # its timer is stopped with the link
        promised = 0.0 if peer is None else peer.beat
        silence = beat.lapse(promised, reading=not self.is_stopped)
        if silence:
            self._fail(Reason.TRANSPORT_DOWN, f"nothing was heard for {silence:g} s")
            return
        if beat.is_due and self._outflow is _FREE:
            link.send_control(b"")
        loop = asyncio.get_running_loop()
        self._beat_timer = loop.call_later(beat.interval, self._keep_alive)

    # Messages from the peer

    def _deliver(self, messages: deque[Message]) -> None:
        """Deliver messages; the rest waits when the peer is not to be read any more."""
        kernel = self._links.kernel
        from_global = self.from_outside or self.is_parent
        is_usual = self._has_usual_messages()
        via = self.name
        while messages:
            message = messages.popleft()
            if not message.onward_route.addresses:
                self._on_control(message.payload)
                is_usual = self._has_usual_messages()
                continue
            if self._opening_timer is not None:
                self._record_opening()  # before the first message that came over it
            if not is_usual or message.id == NO_ID:
                if not self._greeting.admitted:
                    for one in (message, *messages):
                        kernel.refuse(one, via)
                    messages.clear()
                    self._fail(Reason.REFUSED, "the peer sent a message before it proved the token")
                    break
                if self.state is State.ANSWERED:  # a stranger: nodes of ours say hello first
                    self._apply(Event.ADMITTED)
                admitted = self._admit(message)
                if admitted is None:
                    continue
                message = admitted
            kernel.arrive(message, from_global, via)
            if self._stopped_for:  # the rest waits: somebody here has little room left (FL-3)
                self._backlog = messages
                return

    def _deliver_one(self, message: Message) -> None:
        """Deliver a message that came alone; if it is for a worker that is idle, that begins."""
        flow = self._links.kernel.flow
        self._links.kernel.tick()
        if not message.onward_route.addresses:
            self._on_control(message.payload)
            return
        steps: list[Callable[[], None]] = []
        flow.steps = steps
        try:
            self._deliver(deque((message,)))
        finally:
            flow.steps = None
            for step in steps:
                step()

    def _has_usual_messages(self) -> bool:
        """Whether what the peer sends can be taken as it is, if it has an id."""
        greeting = self._greeting
        return (
            greeting.admitted
            and greeting.peer is not None
            and not self._types.inward
            and not self._clock_shift
            and not self.from_outside
            and self._links.kernel.access is None
            and self._links.kernel.permissions.grants is None
        )

    def _admit(self, message: Message) -> Message | None:
        """A message as this node takes it; None if the peer may not send it."""
        kernel = self._links.kernel
        if self._types.inward or self._clock_shift:
            message = self._translate(message)
        is_stranger = self._greeting.peer is None
        if message.id == NO_ID or (is_stranger and _is_for_broadcast(message)):
            message = structs.replace(message, id=kernel.new_id())
        if kernel.access is not None and not kernel.allows(message, self.peer or ""):
            kernel.refuse(message, self.name)
            return None
        if not kernel.permissions.admits(self, message):
            kernel.refuse(message, self.name)
            return None
        if self.from_outside:
            kernel.remember_sender(message, self)
        return message

    def _translate(self, message: Message) -> Message:
        """A message as this node understands it: its address types (AD-3) and its time (TM-2)."""
        types = self._types
        if types.inward:
            message = message.rerouted(
                types.from_peer(message.onward_route), types.from_peer(message.return_route)
            )
        if self._clock_shift and message.expiry is not NEVER:
            message = structs.replace(message, expiry=self.in_own_time(message.expiry))
        return message

    def _deliver_backlog(self) -> None:
        if self._stopped_for:
            return
        if self._backlog:
            self._links.kernel.tick()
            self._deliver(self._backlog)
        if self._stopped_for:
            return
        self._backlog = None
        if self._link is None:
            self.wake()  # whoever wants to connect again has waited for this
        else:
            self.read_again()

    # Names that are held

    def _tell_flow(self, kind: type[flow.Hold | flow.Go], names: Sequence[Address]) -> None:
        """Tell the peer of names, as they stand on the link."""
        on_link = self._types.to_peer(Route(tuple(names))).addresses
        for begin in range(0, len(on_link), flow.NAMES):
            part = list(map(str, on_link[begin : begin + flow.NAMES]))
            self.send_control(flow.encode(kind(part)))

    def _renew_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._renewal_timer = loop.call_later(flow.RENEWAL, self._renew)

    def _renew(self) -> None:
        self._renewal_timer = None
        if self._holding:
            self._tell_flow(flow.Hold, list(self._holding))
            self._renew_later()

    def _void_holds(self) -> None:
        """Forget what both sides asked for: it was said on a link that is gone."""
        holding, self._holding = self._holding, {}
        for name, rooms in holding.items():
            for room in rooms:
                room.forget((self, name))
        if self._renewal_timer is not None:
            self._renewal_timer.cancel()
            self._renewal_timer = None
        self._release_held()

    def _held_name(self, message: Message) -> _HeldName | None:
        """The name that the peer holds and a message, in the form in which it leaves, goes to."""
        if not self._held:
            return None
        addresses = message.onward_route.addresses
        return self._held.get(addresses[1]) if len(addresses) > 1 else None

    def _names(self, texts: Sequence[str]) -> list[Address]:
        """Names that the peer told, as they stand here."""
        with contextlib.suppress(LocalError):
            route = Route(tuple(Address.parse(text) for text in texts))
            return list(self._types.from_peer(route).addresses)
        return []

    def _on_hold(self, texts: Sequence[str]) -> None:
        """Let what goes to these names wait in lines of their own."""
        until = asyncio.get_running_loop().time() + flow.HOLD_TIME
        is_new = False
        for name in self._names(texts):
            held = self._held.get(name)
            if held is None:
                if len(self._held) >= HELD_LIMIT:
                    break
                held = self._held[name] = _HeldName(self, name)
                is_new = True
            held.until = until
        if is_new:
            self.is_ready = False
            going = [
                ticket
                for (_, message, _), ticket in self._waiting.line
                if self._held_name(message) is not None
            ]
            for item, ticket in self._waiting.remove(going):
                held = self._held_name(item[1])
                assert held is not None
                _move(item, ticket, held.line, held.room)
        if self._held and self._hold_timer is None:
            self._lapse_later()

    def _on_go(self, texts: Sequence[str]) -> None:
        for name in self._names(texts):
            held = self._held.pop(name, None)
            if held is not None:
                self._release(held)
        self._send_waiting()

    def _release(self, held: _HeldName) -> None:
        """Let what waited for a name wait for the link, behind the others."""
        for item, ticket in held.line.remove([ticket for _, ticket in held.line.line]):
            _move(item, ticket, self._waiting, self._link_room())

    def _release_held(self) -> None:
        held, self._held = self._held, {}
        for each in held.values():
            self._release(each)
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None

    def _lapse_later(self) -> None:
        loop = asyncio.get_running_loop()
        next_one = min(held.until for held in self._held.values())
        self._hold_timer = loop.call_at(next_one, self._lapse)

    def _lapse(self) -> None:
        """End the holds that were not renewed."""
        self._hold_timer = None
        now = asyncio.get_running_loop().time()
        for name in [name for name, held in self._held.items() if held.until <= now]:
            self._release(self._held.pop(name))
        self._send_waiting()
        if self._held:
            self._lapse_later()

    def _free_outflow(self) -> None:
        """Note that the link takes messages, or that there is none."""
        self.account.give_back(self._unread + self._unsent)
        self._unread = self._answered = self._unsent = 0
        self._outflow = _FREE


def _move(item: tuple[Arrival, Message, Verdicts], ticket: Ticket, line: _Line, room: Room) -> None:
    """Let something wait in another line."""
    if ticket.done():
        return
    if isinstance(ticket, Held):
        ticket.move(room)
        room.watch()
    line.join(item, ticket)
