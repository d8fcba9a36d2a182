"""Sessions: a link to a peer under a local name, and everything around it that is not bytes (WK-8).

A session is a receiver like any worker: what is addressed to its name goes over its link. It sends
a hello, proves the token, translates address types, sends heartbeats and notices their absence,
keeps messages waiting while the link is slow or gone, and holds the peer back while somebody here
is slow. Its life is the table in `waystation.core.session`; here its effects are carried out. Who
listens, connects and connects again is the node's business (links.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from msgspec import Struct, field, structs

from waystation.core.address import LOCAL, Address
from waystation.core.address_types import PeerTypes
from waystation.core.budget import Account
from waystation.core.clock import PeerClock, shifted
from waystation.core.expiry import NEVER, Expiry
from waystation.core.heartbeat import Heartbeat
from waystation.core.message import NO_ID, Arrival, Message
from waystation.core.multicast import ADDRESS_TYPE as MULTICAST
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import SessionKind, SessionRecord, SessionRole
from waystation.core.session import ENDING, Effect, Event, Flow, State, step
from waystation.errors import RemoteError, quote
from waystation.node.inbox import Pending, WaitingLine
from waystation.node.peer_clock import PeerClockMeter
from waystation.node.receiver import NoRoom, Verdicts
from waystation.transports.transport import Link
from waystation.wire.hello import Greeting

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel
    from waystation.node.links import Links

CLOSE_TIMEOUT: Final = 10.0
"""Seconds that a link has to end, once it was told to."""

UNREAD_LIMIT: Final = 1024 * 1024
"""Maximum number of bytes of answers that wait for a peer which does not read them."""

Ending: TypeAlias = tuple[Reason | None, str]  # why a link is gone, or could not be made

TOO_MANY_SESSIONS: Final = "the limit of sessions is reached"

_log = logging.getLogger("waystation.node")
_OPEN: Final = State.OPEN  # looked up for each message that waited
_FREE: Final = Flow.FREE
_HELD: Final = Flow.HELD


def _refuse_while_closing(message: Message) -> Reason | None:  # noqa: ARG001
    return Reason.TRANSPORT_DOWN


def _send_without_link(message: Message) -> Reason | None:
    raise AssertionError(message)  # a session without a link is not ready


def _is_for_broadcast(message: Message) -> bool:
    """Whether a message is published, here or where its route leads it.

    A broadcast is known again by its id (FL-6). So one that is not from a node of ours gets its id
    here: nobody else may choose one, and so let the broadcast that has it be taken for a copy.
    """
    return any(address.type == MULTICAST for address in message.onward_route.addresses)


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


class Session(Struct, eq=False):
    """One peer, over one link at a time."""

    _links: Links
    address: Address
    place: Address
    _token: bytes | None
    _greeting: Greeting
    outgoing: bool  # this node connects to the peer; False when the peer did
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
    complaints: set[str] = set()  # about what its peer sent
    state: State = State.DISCONNECTED
    # OPEN, outflow FREE, and nobody waits: kept here because it is asked for each message.
    is_ready: bool = False
    _outflow: Flow = _FREE  # held while the link asks for a pause
    _inflow: Flow = _FREE  # held while somebody here has no room
    _link: Link | None = None
    _send: Callable[[Message], Reason | None] = _send_without_link
    _types: PeerTypes = field(default_factory=PeerTypes)
    _clock: PeerClockMeter | None = None  # of the present link
    _clock_shift: int = 0  # what is taken off the peer's times, in milliseconds (TM-2)
    _by_name: Verdicts = ()  # the verdict on what is sent to its name
    _by_place: Verdicts = ()
    _waiting: WaitingLine[tuple[Arrival, Message, Verdicts]] = field(default_factory=WaitingLine)
    # Given to the link and not yet out of our hands, with the verdicts that hold then.
    _unsettled: list[tuple[Arrival, Verdicts]] = []
    _backlog: deque[Message] = field(default_factory=deque)  # behind one that nobody had room for
    _unread: int = 0  # bytes of answers since the peer stopped reading
    _beat: Heartbeat = field(default_factory=lambda: Heartbeat(0.0))
    _beat_timer: asyncio.TimerHandle | None = None
    _admission_timer: asyncio.TimerHandle | None = None
    _failure: tuple[Reason, str] | None = None  # why this side ends the link
    account: Account | None = None  # counts what its link holds of messages in part

    def __post_init__(self) -> None:
        self.move_to(self.place)

    def __repr__(self) -> str:
        return f"<session {self.name} with {self.place}: {self.state.name}>"

    def move_to(self, place: Address) -> None:
        """Note where the peer is."""
        self.place = place
        self._by_name = (Verdict(Outcome.FORWARDED, None, self.name, place),)
        self._by_place = (Verdict(Outcome.FORWARDED, None, None, place),)

    @property
    def name(self) -> str:
        """The local name that stands for it in routes."""
        return self.address.name

    @property
    def peer(self) -> str | None:
        """The name that the peer gave itself; None if it gave none yet."""
        hello = self._greeting.peer
        return None if hello is None else hello.node

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
        return self._inflow is _HELD

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
    def refusal(self) -> Reason:
        """Why it takes no message at the moment."""
        return Reason.QUEUE_FULL if self.is_open else Reason.TRANSPORT_DOWN

    def offer(self, arrival: Arrival) -> Verdict:
        """Take a message that is addressed to it, if the link can have it now."""
        if not self.is_ready:
            return NoRoom.at(self)
        message = arrival.message
        return self.carry(arrival, message, self._verdicts_on(message))

    def wait_for_room(self, arrival: Arrival, pending: Pending) -> None:
        """Take a message as soon as the link can have it."""
        message = arrival.message
        self.wait_for_link(arrival, message, self._verdicts_on(message), pending)

    def wait_for_link(
        self, arrival: Arrival, message: Message, verdicts: Verdicts, pending: Pending
    ) -> None:
        """Take a message as soon as the link can have it, in the form in which it leaves."""
        self.is_ready = False
        self._waiting.join((arrival, message, verdicts), pending)

    def waiting(self) -> int:
        """How many messages wait for the link."""
        return len(self._waiting.line)

    def patience(self) -> float:
        """How many seconds a message that has no deadline goes on waiting for the link."""
        limit = self._links.limits.reconnect
        if self.is_open:
            return max(limit, 1.0)  # and then it is asked again
        return self.down_since + limit - asyncio.get_running_loop().time()

    def send_control(self, payload: bytes) -> None:
        """Send something to the peer's session, in order with the messages."""
        if self._link is not None and self.state is _OPEN:
            self._beat.sent = True
            self._link.send_control(payload)

    def answer(self, payload: bytes) -> None:
        """Answer the peer's session; a peer that keeps asking and never reads is disconnected."""
        self._unread = self._unread + len(payload) if self._outflow is _HELD else 0
        if self._unread > UNREAD_LIMIT:
            self._fail(Reason.QUEUE_FULL, "the peer keeps asking and does not read the answers")
        self.send_control(payload)

    def reject_all(self) -> None:
        """Reject all messages that wait for the link."""
        self._waiting.reject_all()

    def carry(self, arrival: Arrival, message: Message, verdicts: Verdicts) -> Verdict:
        """Give a message to the link, which is ready, in the form in which it leaves the node."""
        if self._types.outward:
            message = message.rerouted(
                self._types.to_peer(message.onward_route), self._types.to_peer(message.return_route)
            )
        reason = self._send(message)
        if reason is None:
            self._unsettled.append((arrival, verdicts))
            return verdicts[0]
        return self._links.kernel.drop_each(arrival, reason, verdicts)

    def _verdicts_on(self, message: Message) -> Verdicts:
        """The verdict of the rules on a message that goes here, by whichever name it was sent."""
        first = message.onward_route.addresses[0]
        if first.type != LOCAL:
            return self._by_place
        if first.data == self.address.data:
            return self._by_name
        return (Verdict(Outcome.FORWARDED, None, first.name, self.place),)

    # The owner of a link

    @property
    def admitted(self) -> bool:
        """Whether the peer of this link has proven all that it has to."""
        return self._greeting.admitted

    def opened(self, link: Link) -> None:
        """Greet the peer, if there is room for one more session."""
        self._link = link
        self._failure = None
        self._links.kernel.pin_clock()
        self._clock, self._clock_shift = PeerClockMeter(self), 0
        self._greeting = self._links.greeting(self._token, outgoing=self.outgoing)
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
        if self._inflow is _HELD:  # also when a new link comes before the old one's are handed in
            self._backlog.extend(messages)
            self.pause_reading()
        else:
            self._links.kernel.tick()
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
            self._links.kernel.end_all(settled)

    def pause(self) -> None:
        """Let senders wait."""
        self._outflow = _HELD
        self.is_ready = False

    def resume(self) -> None:
        """Send what waits, in order, until the link asks for a pause."""
        self._outflow = _FREE
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
        return SessionRecord(kind, self.name, place, self.peer, None, "", at, self.role, transport)

    def abort_link(self) -> None:
        """End the link at once; a session that reconnects then gets another."""
        self._apply(Event.FAILED)

    def give_up(self) -> None:
        """End it now, without waiting for its link."""
        self._apply(Event.GIVEN_UP)

    def pause_reading(self) -> None:
        """Take nothing more from the peer."""
        if self._link is not None:
            self._link.pause_reading()

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
        self._outflow = _FREE
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
        if self.outgoing and self._types.outward and greeting.peer is None:
            # Our numbers are not the standard ones; are they what this peer will read?
            loop, seconds = asyncio.get_running_loop(), self._links.types_timeout
            self._admission_timer = loop.call_later(seconds, self._apply, Event.TYPES_TIMEOUT)
        else:
            self._apply(Event.ADMITTED)

    def _stop_admission_timer(self) -> None:
        if self._admission_timer is not None:
            self._admission_timer.cancel()
            self._admission_timer = None

    def _stop_timers(self) -> None:
        self._stop_admission_timer()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        if self._clock is not None:
            self._clock.stop()

    def _tell_opened(self) -> None:
        self._links.link_opened(self)
        if self._clock is not None:
            self._clock.begin(self._greeting.peer)

    def _release_link(self) -> None:
        self._link = None
        self._send = _send_without_link
        self.is_ready = False
        lost, self._unsettled = self._unsettled, []
        for arrival, verdicts in lost:
            for verdict in verdicts:
                recipient = verdict.recipient if arrival.multicast_id is not None else None
                self._links.kernel.drop(arrival, Reason.TRANSPORT_DOWN, recipient)

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
                self.is_ready = True
                return
            (arrival, message, verdicts), room = first
            if message.expired(kernel.tick() // 1000):
                room.set_result(kernel.drop_each(arrival, Reason.EXPIRED, verdicts))
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
        if not payload:
            return
        greeting, clock = self._greeting, self._clock
        assert clock is not None  # it came with the link
        if self.state is _OPEN and (
            clock.receive(payload) or self._links.kernel.hierarchy.receive(self, payload)
        ):
            return
        before = (greeting.peer, greeting.admitted)
        try:
            answer = greeting.hear(payload)
        except RemoteError as error:
            self._fail(Reason.REFUSED, str(error))
            return
        if answer is not None and self._link is not None:
            self._link.send_control(answer)
        if greeting.peer is not None and before[0] is None:
            _log.debug("session %s: hello from node %s", self.name, quote(greeting.peer.node))
            self._types = self._links.peer_types(greeting.peer.types, outgoing=self.outgoing)
            clock.greeted(greeting.peer)
            if self.state is _OPEN:
                clock.begin(greeting.peer)
            self.wake()
        if greeting.admitted and before != (greeting.peer, greeting.admitted):
            self._apply(Event.ADMITTED)

    def _keep_alive(self) -> None:
        link, beat, peer = self._link, self._beat, self._greeting.peer
        assert link is not None  # its timer is stopped with the link
        promised = 0.0 if peer is None else peer.beat
        silence = beat.lapse(promised, reading=self._inflow is _FREE)
        if silence:
            self._fail(Reason.TRANSPORT_DOWN, f"nothing was heard for {silence:g} s")
            return
        if beat.is_due and self._outflow is _FREE:
            link.send_control(b"")
        loop = asyncio.get_running_loop()
        self._beat_timer = loop.call_later(beat.interval, self._keep_alive)

    # Messages from the peer

    def _deliver(self, messages: deque[Message]) -> bool:
        """Deliver messages until one finds no room; returns whether all were delivered."""
        kernel = self._links.kernel
        access, from_outside = kernel.access, self.from_outside
        from_global = from_outside or self.is_parent
        is_stranger = self._greeting.peer is None
        translated = self._types.inward or self._clock_shift
        while messages:
            message = messages.popleft()
            if not message.onward_route.addresses:
                self._on_control(message.payload)
                is_stranger = self._greeting.peer is None
                translated = self._types.inward or self._clock_shift
                continue
            if not self._greeting.admitted:
                for one in (message, *messages):
                    kernel.refuse(one)
                messages.clear()
                self._fail(Reason.REFUSED, "the peer sent a message before it proved the token")
                break
            if translated:
                message = self._translate(message)
            if message.id == NO_ID or (is_stranger and _is_for_broadcast(message)):
                message = structs.replace(message, id=kernel.new_id())
            if access is not None and not kernel.allows(message, self.peer or ""):
                kernel.refuse(message)
                continue
            if from_outside:
                kernel.remember_sender(message, self)
            stuck = kernel.arrive(message, from_global)
            if stuck is not None:  # read no more: somebody here has no room for what came (WK-6)
                self._backlog = messages
                self._inflow = _HELD
                self.pause_reading()
                stuck.add_done_callback(self._deliver_backlog)
                return False
        return True

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

    def _deliver_backlog(self, _: asyncio.Future[Verdict | None]) -> None:
        self._links.kernel.tick()
        if not self._deliver(self._backlog):
            return
        self._inflow = _FREE
        if self._link is None:
            self.wake()  # whoever wants to connect again has waited for this
        elif not self._links.closing:
            self._link.resume_reading()
