"""UDP links in Ockam's format: when to read and write datagrams, and what is remembered.

What stands in a datagram is the business of wire/ockam_udp.py, sockets that of net/datagrams.py. A
listener has one socket for all of its peers and tells them apart by where their datagrams come
from; a dialler has a socket for each link. Messages can be lost and are not sent again;
docs/explanation/udp.md says what is promised and what is not. What the sessions at both ends say to
each other is repeated until it is acknowledged, by peers that do so (wire/acknowledged.py).

A link that was dialled repeats its opening until it receives something. A listener makes a link of
whoever sends a whole message that is no heartbeat. GOODBYE, a refusal by the peer's system, or
silence ends a link. All that a peer, or somebody in its name, can make us hold has a bound: see
UdpLimits.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final

from msgspec import Struct

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError
from waystation.net.backoff import Backoff
from waystation.net.connection import UNADMITTED, ConnectionState, OneTimer
from waystation.net.datagrams import (
    Datagram,
    DatagramSocket,
    OpenSocket,
    SocketAddress,
    bound_socket,
    dialled_socket,
)
from waystation.net.dialer import within
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import reason_of
from waystation.transports.link import QueuedLink
from waystation.transports.transport import Link, LinkOwner, Listener
from waystation.wire.acknowledged import ControlStream, is_hello
from waystation.wire.ockam import Reassembly
from waystation.wire.ockam_udp import (
    GOODBYE,
    PeerReassembly,
    control_datagrams,
    departing_datagrams,
)

LONGEST: Final = 2048
"""Bytes of a datagram that are read; Ockam's nodes and ours write 508 at most."""

LONGEST_HELLO: Final = 4096
"""Bytes of a hello that comes late."""

REPEATS: Final = 8
"""How often a link repeats its opening to a peer that repeats its own, or has yet to say it."""

RECENT: Final = 1024
"""How many links that have ended are remembered, so that late datagrams make no new ones."""


class UdpLimits(Struct, frozen=True, kw_only=True):
    """Sizes, numbers and deadlines of links; times are in seconds.

    `frame` is the largest message in bytes, in either direction: one lost datagram of 493 bytes
    loses it all. A peer that has not proven the token, where there is one, or is not known at
    all, sends `unadmitted` bytes at most. `unsent` and `unread` bytes may wait in a link, to be
    sent and to be taken. Every `pause` seconds a link sends `burst` datagrams. The peer of a
    dialled link has `reply` seconds to say something; the link repeats its opening after `repeat`
    seconds, then after twice the time; it does the same with what its session says and the peer
    does not acknowledge, of which at most `control` bytes wait. A link that receives nothing for
    `idle` seconds ends. An unfinished message is dropped after `age` seconds; all of those of a
    listener hold `held` bytes together. `linger` is the time to send what is left when a link
    closes. A listener has `peers` links, and remembers `strangers` that have begun a first message.
    `buffer` is the size of each socket's buffers in bytes.
    """

    frame: int = 256 * 1024
    unadmitted: int = UNADMITTED
    unsent: int = 256 * 1024
    unread: int = 256 * 1024
    control: int = 8 * 1024 * 1024
    burst: int = 32
    pause: float = 0.001
    reply: float = 5.0
    repeat: float = 0.25
    idle: float = 120.0
    age: float = 5.0
    linger: float = 5.0
    held: int = 16 * 1024 * 1024
    peers: int = 4096
    strangers: int = 256
    buffer: int = 4 * 1024 * 1024

    def of_strangers(self) -> int:
        """The largest message of a peer that is not admitted."""
        return min(self.frame, self.unadmitted)


class UdpCounts(Struct, kw_only=True):
    """What a transport dropped, beside what the network lost without telling.

    `malformed` datagrams and messages, `late` datagrams, `unfinished` messages, `unread` datagrams
    for an owner that did not keep up, `refused` messages of new peers. And what was `repeated`:
    payloads for a peer's session that it did not acknowledge.
    """

    malformed: int = 0
    late: int = 0
    unfinished: int = 0
    unread: int = 0
    refused: int = 0
    repeated: int = 0


class UdpLink(QueuedLink):
    """One peer."""

    __slots__ = (
        "_allowed", "_control", "_counted", "_flush_due", "_given", "_late", "_limits",
        "_next_burst", "_number", "_opening", "_pauses", "_port", "_reading", "_repeater",
        "_repeats", "_size", "_unread", "_unread_size", "_unsent", "began", "heard", "peer",
        "reassembly",
    )  # fmt: skip

    def __init__(self, port: _Port, peer: SocketAddress, owner: LinkOwner) -> None:
        limits = port.limits
        super().__init__(owner, place_of(peer), high_water=limits.unsent, linger=limits.linger)
        self.state = ConnectionState.GREETING
        self.peer = peer
        self.reassembly = PeerReassembly(limit=limits.of_strangers())
        self.heard = self._loop.time()
        self.began = 0.0  # when the message that is unfinished began
        self._counted = 0  # bytes in the owner's account
        self._port = port
        self._limits = limits
        self._number = random.randrange(0x10000)  # noqa: S311 - a start, not a secret
        self._unsent: deque[tuple[bytes, bool]] = deque()  # and whether a message ends with it
        self._size = 0
        self._given = 0  # messages whose last datagram was sent in this turn
        self._flush_due = False
        self._reading = True
        self._unread: deque[bytes] = deque()
        self._unread_size = 0
        self._opening: list[bytes] | None = []  # to be repeated; None when the peer has it
        self._repeats = 0
        self._late = Reassembly(limit=LONGEST_HELLO)
        self._control = ControlStream()
        self._pauses = Backoff(first=limits.repeat, most=max(limits.repeat, limits.reply))
        self._repeater: asyncio.TimerHandle | None = None  # of what is not acknowledged
        self._allowed = 0  # datagrams that may go before the next burst
        self._next_burst = 0.0

    # What the owner asks for

    def enqueue(self, message: Message) -> int:
        """Encode a message and put its datagrams with the others."""
        datagrams = departing_datagrams(message, self._number, limit=self._limits.frame)
        self._put(datagrams, is_message=True)
        return self._size

    def send_control(self, payload: bytes) -> None:
        """Put a payload for the peer's session with the messages, and repeat it if need be."""
        now = self._control.say(payload)
        if now is not None:
            self._say(now)
        if self._control.unacknowledged_size > self._limits.control:
            self._stop_repeating()
        self._repeat_later()

    def pause_reading(self) -> None:
        """Keep what comes, as far as there is room; the peer does not feel it."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what was kept, and what comes."""
        self._reading = True
        if self._unread:
            self._loop.call_soon(self._catch_up)

    def say_goodbye(self) -> None:
        """Send a goodbye behind the rest."""
        self._say(GOODBYE)

    def abort(self) -> None:
        """End at once; the peer is told, or it would keep its side until it has been idle."""
        if self.state is not ConnectionState.CLOSED:
            for datagram in control_datagrams(GOODBYE, self._number):
                self._port.send(datagram, self)
        super().abort()

    # Opening

    def open(self, *, waits: bool) -> None:
        """Hand the link to its owner; one that `waits` repeats its opening until it is answered."""
        self.hand_over()
        self._look_for_admission()
        if not waits:
            self._answered()
        elif self.state is ConnectionState.GREETING:
            wait, deadline = self._limits.repeat, self._loop.time() + self._limits.reply
            self.start_timer(wait, partial(self._repeat, wait, deadline))

    def _answered(self) -> None:
        if self.state is ConnectionState.GREETING:
            self.state = ConnectionState.OPEN
            self.stop_timer()
            self.owner.answered()

    def _repeat(self, wait: float, deadline: float) -> None:
        left = deadline - self._loop.time()
        if left <= 0:
            seconds = self._limits.reply
            self.end(Reason.TRANSPORT_DOWN, f"{self.place}: no answer within {seconds:g} s")
            return
        self._send_opening()
        self.start_timer(min(wait * 2, left), partial(self._repeat, wait * 2, deadline))

    def _send_opening(self) -> None:
        if not self._unsent:
            self._queue([(datagram, False) for datagram in self._opening or ()])

    # What the sessions say to each other

    def _say(self, payload: bytes) -> None:
        datagrams = control_datagrams(payload, self._number)
        if self._opening is not None and len(self._opening) < self._limits.burst:
            self._opening += datagrams
        self._put(datagrams, is_message=False)

    def hear(self, message: Message) -> Message | None:
        """The message for the owner in one that the peer sent, if there is one."""
        if message.onward_route.addresses:
            return message.arrived(self.owner.address)
        if not message.payload:
            return message
        before = self._control.unacknowledged_size
        heard, answers = self._control.hear(message.payload)
        for answer in answers:
            self._say(answer)
        if self._control.unacknowledged_size < before:
            self._pauses.reset()
        self._repeat_later()
        if heard is None or heard == message.payload:
            return None if heard is None else message
        return Message(message.onward_route, message.return_route, heard)

    def _repeat_later(self) -> None:
        if self._repeater is None and self._control.waits and self.state <= ConnectionState.OPEN:
            self._repeater = self._loop.call_later(self._pauses.next(), self._repeat_control)

    def _repeat_control(self) -> None:
        self._repeater = None
        for payload in self._control.due():
            self._port.counts.repeated += 1
            self._say(payload)
        self._repeat_later()

    def _stop_repeating(self) -> None:
        """Keep no more for a peer that acknowledges nothing, or has yet to say whether (FL-5)."""
        if self._control.waits:
            limit = self._limits.control
            self.end(
                Reason.QUEUE_FULL, f"{self.place}: more than {limit} bytes are not acknowledged"
            )
        self._control.forget()

    # What the socket brings

    def take(self, datagram: bytes, messages: list[Message]) -> bool:
        """Read a datagram, or keep it for later; adds the message that it completes.

        Says whether it is a sign of life. What is late is none: it may be from before the peer was
        started anew, or all that it says since.
        """
        if self._reading and not self._unread:
            if not self._read(datagram, messages):
                return False
        elif self._unread_size + len(datagram) <= self._limits.unread:
            self._unread.append(datagram)
            self._unread_size += len(datagram)
        else:
            self._port.counts.unread += 1
        self.heard = self._loop.time()
        return True

    def hand_in(self, messages: list[Message]) -> None:
        """Give messages to the owner, up to a goodbye."""
        for index, message in enumerate(messages):
            if message.payload == GOODBYE and not message.onward_route.addresses:
                self.owner.received(messages[:index])
                self.end(None, "closed")
                return
        self.owner.received(messages)
        self._look_for_admission()
        self._count(self.reassembly.held + self._unread_size)

    def _look_for_admission(self) -> None:
        if self.owner.admitted:
            self.reassembly.limit = self._limits.frame

    def _count(self, size: int) -> None:
        """Keep the owner's account: what is held of messages in part, or was not taken yet."""
        if self.state is ConnectionState.CLOSED:
            size = 0
        if size != self._counted and self.owner.account is not None:
            self.owner.account.take(size - self._counted)
            self._counted = size

    def _read(self, datagram: bytes, messages: list[Message]) -> bool:
        """Read a datagram; says whether it brought anything, or will with others."""
        reassembly, port = self.reassembly, self._port
        before = reassembly.held
        try:
            message = reassembly.feed(datagram)
        except DecodeError:
            port.counts.malformed += 1
            message = None
        port.note_held(self, before)
        if reassembly.passed_over:
            port.counts.late += 1
            self._repeat_opening()  # the peer would not repeat its own if it had ours
            message = self._late_hello(datagram)
            if message is None:
                return False
        if message is None:
            return True
        heard = self.hear(message)  # first, since its hello says how to speak to it
        self._answered()
        if self._opening is not None:
            if self._control.knows_peer:
                self._opening = None  # a peer that says more has it
            else:
                self._repeat_opening()
        if heard is not None:
            messages.append(heard)
        return True

    def _repeat_opening(self) -> None:
        lost = self._opening is not None and self.state is not ConnectionState.GREETING
        if lost and self._repeats < REPEATS:
            self._repeats += 1
            self._send_opening()

    def _late_hello(self, datagram: bytes) -> Message | None:
        """The hello in a late datagram, if it is one.

        Either the first was lost, or the peer was started anew and begins at another number.
        """
        try:
            message = self._late.feed(datagram)
        except DecodeError:
            return None
        return message if message is not None and is_hello(message.payload) else None

    def _catch_up(self) -> None:
        """Read what was kept, message by message, as long as the owner takes them."""
        while self._unread and self._reading:
            datagram = self._unread.popleft()
            self._unread_size -= len(datagram)
            messages: list[Message] = []
            self._read(datagram, messages)
            if messages:
                self.hand_in(messages)

    # Sending

    def _put(self, datagrams: list[bytes], *, is_message: bool) -> None:
        if self.state <= ConnectionState.OPEN:
            self._number = (self._number + 1) & 0xFFFF
            last = len(datagrams) - 1
            self._queue([(d, is_message and place == last) for place, d in enumerate(datagrams)])

    def _queue(self, datagrams: list[tuple[bytes, bool]]) -> None:
        self._unsent.extend(datagrams)
        self._size += sum([len(datagram) for datagram, _ in datagrams])
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send as much as may go now; look again soon while there is more."""
        self._flush_due = False
        now = self._loop.time()
        if now >= self._next_burst:
            self._next_burst = now + self._limits.pause
            self._allowed = self._limits.burst
        unsent, send = self._unsent, self._port.send
        while unsent and self._allowed and send(unsent[0][0], self):
            if not unsent:  # the system said that nobody is there, and that was the end
                break
            self._allowed -= 1
            datagram, ends_message = unsent.popleft()
            self._size -= len(datagram)
            self._given += ends_message
        if self.state is not ConnectionState.CLOSED:
            self._tell_progress(now)

    def _tell_progress(self, now: float) -> None:
        given, self._given = self._given, 0
        if given:
            self.owner.sent(given)
        self.note_room(self._size)
        if self._unsent and not self._flush_due and not self._port.socket.is_full:
            self._flush_due = True
            self._loop.call_later(max(0.0, self._next_burst - now), self.flush)
        elif self.state is ConnectionState.CLOSING and not self._unsent:
            self.owner.sent()
            self.end(None, "closed")

    def on_end(self) -> None:
        """Let go of everything."""
        self._unsent.clear()
        self._unread.clear()
        self._control.forget()
        if self._repeater is not None:
            self._repeater.cancel()
        self._count(0)
        self._port.forget(self)


_Batches = dict[UdpLink, list[Message]]
"""The messages that one turn brings, by link."""


class _Port(OneTimer):
    """A socket and the links that share it: a listener, or what a dialled link goes through."""

    def __init__(
        self,
        transport: Udp,
        opened: OpenSocket,
        accept: Callable[[], LinkOwner | None] | None = None,
    ) -> None:
        super().__init__()
        limits = self.limits = transport.limits
        self.counts = transport.counts
        self.socket = DatagramSocket(
            opened, LONGEST, self._received, self._flush_all, self._refused
        )
        self.place = self.socket.place
        self._accept = accept
        self._serves = accept is not None
        self._links: dict[SocketAddress, UdpLink] = {}
        self._strangers: dict[SocketAddress, PeerReassembly] = {}
        self._recent: dict[SocketAddress, float] = {}  # that ended, and until when to remember it
        self._held = 0  # bytes of unfinished messages
        self._sweep_interval = min(limits.age, limits.idle) / 2
        self.start_timer(self._sweep_interval, self._sweep)

    # Links

    def add(self, peer: SocketAddress, owner: LinkOwner) -> UdpLink:
        """A link to a peer."""
        link = self._links[peer] = UdpLink(self, peer, owner)
        return link

    def forget(self, link: UdpLink) -> None:
        """Note that a link has ended; the socket goes with the last one that needs it."""
        del self._links[link.peer]
        self._held -= link.reassembly.held
        if self._serves:
            if len(self._recent) >= RECENT:
                del self._recent[next(iter(self._recent))]
            self._recent[link.peer] = self._loop.time() + self.limits.linger
        self._close_if_unused()

    async def close(self) -> None:
        """Make no more links; the open ones stay, and the socket as long as they do."""
        self._accept = None
        self._forget_strangers()
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._accept is None and not self._links:
            self.stop_timer()
            self.socket.close()

    def note_held(self, link: UdpLink, before: int) -> None:
        """Count what the unfinished messages hold together, and drop one when it is too much."""
        held = link.reassembly.held
        if held and not before:
            link.began = self._loop.time()
        self._held += held - before
        if self._held > self.limits.held:
            self._drop_unfinished(link)

    def _drop_unfinished(self, link: UdpLink) -> None:
        self._held -= link.reassembly.held
        link.reassembly.forget()
        self.counts.unfinished += 1

    def _sweep(self) -> None:
        """Drop messages that are too old, and links that are silent."""
        now, idle = self._loop.time(), self.limits.idle
        self.start_timer(self._sweep_interval, self._sweep)
        for link in list(self._links.values()):
            if link.reassembly.held and now - link.began > self.limits.age:
                self._drop_unfinished(link)
            if now - link.heard > idle:
                link.end(Reason.TRANSPORT_DOWN, f"nothing was heard for {idle:g} s")
        self._forget_strangers()
        self._recent = {peer: until for peer, until in self._recent.items() if until > now}

    # Reading

    def _received(self, datagrams: list[Datagram]) -> None:
        batches: _Batches = {}
        for datagram, peer in datagrams:
            link = self._links.get(peer)
            if link is not None:
                batch = batches.get(link, [])
                if link.take(datagram, batch):
                    batches[link] = batch
            elif self._accept is not None and peer not in self._recent:
                self._take_from_stranger(datagram, peer, batches)
            else:
                self.counts.late += 1
        for link, batch in batches.items():
            if link.state is not ConnectionState.CLOSED:
                link.hand_in(batch)

    def _take_from_stranger(self, datagram: bytes, peer: SocketAddress, batches: _Batches) -> None:
        """Make a link of a stranger who sent a whole message."""
        known = self._strangers.pop(peer, None)
        self._held -= 0 if known is None else known.held
        reassembly = known or PeerReassembly(limit=self.limits.of_strangers())
        try:
            message = reassembly.feed(datagram)
        except DecodeError:
            self.counts.malformed += 1
            return
        if message is None:
            if self._held + reassembly.held > self.limits.held:
                self.counts.unfinished += 1
            elif reassembly.held:
                self._remember(peer, reassembly)
        elif message.payload in (b"", GOODBYE) and not message.onward_route.addresses:
            self.counts.late += 1  # of a link that is not known here any more, or never was
        else:
            self._accept_link(peer, reassembly, message, batches)

    def _remember(self, stranger: SocketAddress, reassembly: PeerReassembly) -> None:
        while len(self._strangers) >= self.limits.strangers:
            self._held -= self._strangers.pop(next(iter(self._strangers))).held
            self.counts.unfinished += 1
        self._held += reassembly.held
        self._strangers[stranger] = reassembly

    def _forget_strangers(self) -> None:
        self._held -= sum([reassembly.held for reassembly in self._strangers.values()])
        self._strangers.clear()

    def _accept_link(
        self, peer: SocketAddress, reassembly: PeerReassembly, message: Message, batches: _Batches
    ) -> None:
        owner = None
        if self._accept is not None and len(self._links) < self.limits.peers:
            owner = self._accept()
        if owner is None:
            self.counts.refused += 1
            return
        link = self.add(peer, owner)
        link.reassembly = reassembly
        link.open(waits=False)
        heard = link.hear(message)
        batches[link] = [] if heard is None else [heard]

    def _refused(self, error: OSError) -> None:
        """A peer's system says that nobody is there; only a dialler's socket hears of that."""
        if not self._serves:
            for link in list(self._links.values()):
                link.end(Reason.TRANSPORT_DOWN, f"{link.place}: {reason_of(error)}")

    # Sending

    def send(self, datagram: bytes, link: UdpLink) -> bool:
        """Send a datagram; says whether it is gone, be it lost."""
        return self.socket.send(datagram, link.peer if self._serves else None)

    def _flush_all(self) -> None:
        for link in list(self._links.values()):
            link.flush()


class Udp:
    """UDP in Ockam's format: addresses `udp#host:port`.

    A peer of ours answers as soon as it is spoken to, so a dialled link is open when it has heard
    something. Ockam's nodes say nothing unasked: with `expect_reply=False` a dialled link is open
    at once, whoever is there.
    """

    type_name: ClassVar[str] = "udp"

    def __init__(self, *, limits: UdpLimits | None = None, expect_reply: bool = True) -> None:
        self.limits = limits or UdpLimits()
        self.counts = UdpCounts()
        self._expect_reply = expect_reply

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> Listener:
        """Listen; port 0 takes a free one."""
        opened = await bound_socket(place, self.limits.buffer)
        return _Port(self, opened, accept)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first of these places that there is a way to.

        Whether somebody is there shows later: the link ends if nobody answers in time.
        """
        for place in places:
            parse_place(place)
        async with within(self.limits.reply, places):
            opened = await dialled_socket(places, self.limits.buffer)
        port = _Port(self, opened)
        link = port.add(port.socket.peer, owner)
        link.open(waits=self._expect_reply)
        return link
