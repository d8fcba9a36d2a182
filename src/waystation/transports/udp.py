"""UDP links in Ockam's format: the sockets, when to read and write them, and what is remembered.

What stands in a datagram is the business of wire/ockam_udp.py. A listener has one socket for all of
its peers and tells them apart by where their datagrams come from; a dialler has a socket for each
link. Nothing is sent again but the first words, so messages can be lost; docs/explanation/udp.md
says what is promised and what is not.

A link that was dialled repeats its first words until it hears something. A listener makes a link of
whoever sends a whole message that is no heartbeat. GOODBYE, a refusal by the peer's system, or
silence ends a link. All that a peer, or somebody in its name, can make us hold has a bound: see
UdpLimits.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from msgspec import Struct

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import DecodeError, LocalError
from waystation.net.datagrams import (
    Datagram,
    DatagramSocket,
    OpenSocket,
    SocketAddress,
    bound_socket,
    connected_socket,
    resolve_datagram,
)
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import reason_of
from waystation.transports.transport import Link, LinkOwner
from waystation.wire.ockam_udp import (
    GOODBYE,
    PeerReassembly,
    control_datagrams,
    departing_datagrams,
)

LONGEST: Final = 2048
"""Bytes of a datagram that are read; Ockam's nodes and ours write 508 at the most."""

REPEATS: Final = 8
"""So often a listener repeats its first words to a peer that repeats its own."""

REASONS: Final = {"OB-2": Reason.TOO_LARGE, "AD-6": Reason.NO_ROUTE}


class UdpLimits(Struct, frozen=True, kw_only=True):
    """How much links take, and how long they wait.

    `frame` bytes is the largest message, in either direction: one lost datagram of 493 loses it
    all. `unsent` and `unread` bytes may wait in a link, to be sent and to be taken. Every `pause`
    seconds a link sends `burst` datagrams. A dialled link has `answer` seconds to hear something,
    and repeats itself after `repeat` seconds, then after twice the time. A link that hears nothing
    for `idle` seconds ends. An unfinished message is let go after `age` seconds; all of those of a
    listener hold `held` bytes together. A listener has `peers` links, and remembers `strangers`
    that have begun a first message. `buffer` bytes are asked of the system for each socket.
    """

    frame: int = 256 * 1024
    unsent: int = 256 * 1024
    unread: int = 256 * 1024
    burst: int = 32
    pause: float = 0.001
    answer: float = 5.0
    repeat: float = 0.25
    idle: float = 120.0
    age: float = 5.0
    linger: float = 5.0
    held: int = 16 * 1024 * 1024
    peers: int = 4096
    strangers: int = 256
    buffer: int = 4 * 1024 * 1024


class UdpCounts(Struct, kw_only=True):
    """What came to nothing at a transport, beside what the network lost without a word.

    `malformed` datagrams and messages, `late` datagrams, `unfinished` messages that were let go,
    `unread` datagrams for somebody who did not keep up, `refused` messages of new peers.
    """

    malformed: int = 0
    late: int = 0
    unfinished: int = 0
    unread: int = 0
    refused: int = 0


class UdpLink:
    """One peer."""

    __slots__ = (
        "_allowed", "_answered", "_closing", "_due", "_first", "_given", "_limits", "_loop",
        "_next_burst", "_number", "_owner", "_paused", "_port", "_reading", "_repeats", "_size",
        "_timer", "_unread", "_unread_size", "_unsent", "began", "ended", "heard", "peer", "place",
        "reassembly",
    )  # fmt: skip

    def __init__(self, port: _Port, peer: SocketAddress, owner: LinkOwner) -> None:
        self.place = place_of(peer)
        self.peer = peer
        self.reassembly = PeerReassembly(limit=port.limits.frame)
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self.began = 0.0  # when the message that is unfinished began
        self._port = port
        self._owner = owner
        self._limits = port.limits
        self._number = random.randrange(0x10000)  # noqa: S311 - a start, not a secret
        self._unsent: deque[tuple[bytes, bool]] = deque()  # and whether a message ends with it
        self._size = 0
        self._given = 0  # messages whose last datagram was sent in this turn
        self._due = False
        self._paused = False
        self._reading = True
        self._unread: deque[bytes] = deque()
        self._unread_size = 0
        self._first: list[bytes] | None = []  # words to repeat; None when they were heard
        self._repeats = 0
        self._answered = False
        self._closing = False
        self._allowed = 0  # datagrams that may go before the next burst
        self._next_burst = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Encode a message and put its datagrams with the others."""
        try:
            datagrams = departing_datagrams(message, self._number, limit=self._limits.frame)
        except LocalError as error:
            return REASONS.get(error.rule, Reason.MALFORMED)
        self._put(datagrams, counts=True)
        if self._size > self._limits.unsent and not self._paused:
            self._paused = True
            self._owner.pause()
        return None

    def send_control(self, payload: bytes) -> None:
        """Put a payload for the peer's session with the messages."""
        datagrams = control_datagrams(payload, self._number)
        if self._first is not None and len(self._first) < self._limits.burst:
            self._first += datagrams
        self._put(datagrams, counts=False)

    def pause_reading(self) -> None:
        """Keep what comes, as far as there is room; the peer does not feel it."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand in what was kept, and what comes."""
        self._reading = True
        if self._unread:
            self._loop.call_soon(self._catch_up)

    def close(self) -> None:
        """Send what is left and a goodbye, within the time for it, and end."""
        if self.ended or self._closing:
            return
        self.send_control(GOODBYE)
        self._closing = True
        self._set_timer(self._limits.linger, self._end_lingering)

    def abort(self) -> None:
        """End at once."""
        self.end(Reason.TRANSPORT_DOWN, "aborted")

    # Opening

    def open(self, *, waits: bool) -> None:
        """Hand the link to its owner; one that `waits` repeats its first words until it hears."""
        self._owner.opened(self)
        if self.ended:
            return
        if waits:
            self._set_timer(self._limits.repeat, self._repeat, self._limits.repeat, 0.0)
        else:
            self._answer()

    def _answer(self) -> None:
        if not self._answered and not self.ended:
            self._answered = True
            self._stop_timer()
            self._owner.answered()

    def _repeat(self, wait: float, waited: float) -> None:
        waited += wait
        if waited >= self._limits.answer:
            seconds = self._limits.answer
            self.end(Reason.TRANSPORT_DOWN, f"{self.place}: no answer within {seconds:g} s")
            return
        self._say_again()
        wait = min(wait * 2, self._limits.answer - waited)
        self._set_timer(wait, self._repeat, wait, waited)

    def _say_again(self) -> None:
        if not self._unsent:
            self._unsent.extend((datagram, False) for datagram in self._first or ())
            self._size += sum(map(len, self._first or ()))
            self._flush_soon()

    # What the socket brings

    def take(self, datagram: bytes, messages: list[Message]) -> None:
        """Read a datagram, or keep it for later; adds the message that it completes."""
        self.heard = self._loop.time()
        if self._reading and not self._unread:
            self._read(datagram, messages)
        elif self._unread_size + len(datagram) <= self._limits.unread:
            self._unread.append(datagram)
            self._unread_size += len(datagram)
        else:
            self._port.counts.unread += 1

    def hand_in(self, messages: list[Message]) -> None:
        """Give messages to the owner, up to a goodbye."""
        for index, message in enumerate(messages):
            if message.payload == GOODBYE and not message.onward_route.addresses:
                self._owner.received(messages[:index])
                self.end(None, "closed")
                return
        self._owner.received(messages)

    def _read(self, datagram: bytes, messages: list[Message]) -> None:
        reassembly, port = self.reassembly, self._port
        before = reassembly.held
        try:
            message = reassembly.feed(datagram)
        except DecodeError:
            port.counts.malformed += 1
            message = None
        port.hold(self, before)
        if reassembly.passed_over:
            port.counts.late += 1
            if self._answered and self._first is not None and self._repeats < REPEATS:
                self._repeats += 1
                self._say_again()  # our first words were lost, or the peer would not repeat its own
        elif message is not None:
            self._hear(message, messages)

    def _hear(self, message: Message, messages: list[Message]) -> None:
        self._first = None  # who says more has heard them
        self._answer()
        if message.onward_route.addresses:
            message = message.arrived(self._owner.address)
        messages.append(message)

    def _catch_up(self) -> None:
        """Read what was kept, message by message, as long as the owner takes them."""
        while self._unread and self._reading and not self.ended:
            datagram = self._unread.popleft()
            self._unread_size -= len(datagram)
            messages: list[Message] = []
            self._read(datagram, messages)
            if messages:
                self.hand_in(messages)

    # Sending

    def _put(self, datagrams: list[bytes], *, counts: bool) -> None:
        if self.ended or self._closing:
            return
        self._number = (self._number + 1) & 0xFFFF
        last = len(datagrams) - 1
        self._unsent.extend(
            (datagram, counts and place == last) for place, datagram in enumerate(datagrams)
        )
        self._size += sum(map(len, datagrams))
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send as much as may go now; look again soon while there is more."""
        self._due = False
        if self.ended:
            return
        now = self._loop.time()
        if now >= self._next_burst:
            self._next_burst = now + self._limits.pause
            self._allowed = self._limits.burst
        unsent, send = self._unsent, self._port.send
        while unsent and self._allowed and send(unsent[0][0], self):
            if not unsent:  # the system said that nobody is there, and that was the end
                return
            self._allowed -= 1
            datagram, ends = unsent.popleft()
            self._size -= len(datagram)
            self._given += ends
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Tell the owner what has gone, and that there is room again."""
        given, self._given = self._given, 0
        if given:
            self._owner.sent(given)
        if self._paused and self._size <= self._limits.unsent // 4:
            self._paused = False
            self._owner.resume()
        if self._unsent and not self._due and not self._port.socket.is_full:
            self._due = True
            self._loop.call_later(max(0.0, self._next_burst - now), self.flush)
        elif self._closing and not self._unsent:
            self._owner.sent()
            self.end(None, "closed")

    # Ending

    def end(self, reason: Reason | None, detail: str) -> None:
        """Tell the owner, once, at the end of this turn; nothing happens after that."""
        if self.ended:
            return
        self.ended = True
        self._stop_timer()
        self._unsent.clear()
        self._unread.clear()
        self._port.forget(self)
        self._loop.call_soon(self._owner.closed, reason, detail)

    def _end_lingering(self) -> None:
        self.end(Reason.TRANSPORT_DOWN, "what was left could not be sent in time")

    def _set_timer(self, seconds: float, act: Callable[..., None], *arguments: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, act, *arguments)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Port:
    """A socket and the links that share it."""

    GRAVES: ClassVar[int] = 1024  # so many links that have ended are remembered

    def __init__(
        self,
        opened: OpenSocket,
        limits: UdpLimits,
        counts: UdpCounts,
        accept: Callable[[], LinkOwner | None] | None,
    ) -> None:
        self.limits = limits
        self.counts = counts
        self.socket = DatagramSocket(
            opened, LONGEST, self._received, self._flush_all, self._refused
        )
        self.place = self.socket.place
        self._accept = accept
        self._serves = accept is not None
        self._links: dict[SocketAddress, UdpLink] = {}
        self._strangers: dict[SocketAddress, PeerReassembly] = {}
        self._graves: dict[SocketAddress, float] = {}
        self._held = 0
        self._loop = asyncio.get_running_loop()
        self._round = self._loop.call_later(self._between_rounds, self._look_around)

    @property
    def _between_rounds(self) -> float:
        return min(self.limits.age, self.limits.idle) / 2

    # Links

    def add(self, peer: SocketAddress, owner: LinkOwner) -> UdpLink:
        """A link to a peer."""
        link = self._links[peer] = UdpLink(self, peer, owner)
        return link

    def forget(self, link: UdpLink) -> None:
        """Note that a link has ended; the socket goes with the last one that needs it."""
        if self._links.pop(link.peer, None) is None:
            return
        self._held -= link.reassembly.held
        if self._serves:  # what is still on its way from there makes no new link
            if len(self._graves) >= self.GRAVES:
                self._graves.pop(next(iter(self._graves)))
            self._graves[link.peer] = self._loop.time() + self.limits.linger
        self._close_if_unused()

    def stop_accepting(self) -> None:
        """Make no more links."""
        self._accept = None
        self._strangers.clear()
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._accept is None and not self._links:
            self._round.cancel()
            self.socket.close()

    def hold(self, link: UdpLink, before: int) -> None:
        """Count what the unfinished messages hold together, and let go of one when it is much."""
        held = link.reassembly.held
        if held and not before:
            link.began = self._loop.time()
        self._held += held - before
        if self._held > self.limits.held:
            self._let_go(link)

    def _let_go(self, link: UdpLink) -> None:
        self._held -= link.reassembly.held
        link.reassembly.forget()
        self.counts.unfinished += 1

    def _look_around(self) -> None:
        """Let go of what is too old, and of who is silent."""
        now = self._loop.time()
        for link in list(self._links.values()):
            if link.reassembly.held and now - link.began > self.limits.age:
                self._let_go(link)
            if now - link.heard > self.limits.idle:
                idle = self.limits.idle
                link.end(Reason.TRANSPORT_DOWN, f"nothing was heard for {idle:g} s")
        self._strangers.clear()
        for peer in [peer for peer, until in self._graves.items() if until <= now]:
            del self._graves[peer]
        if self.socket.is_open:
            self._round = self._loop.call_later(self._between_rounds, self._look_around)

    # Reading

    def _received(self, datagrams: list[Datagram]) -> None:
        messages: dict[UdpLink, list[Message]] = {}
        for datagram, peer in datagrams:
            self._take(datagram, peer, messages)
        for link, batch in messages.items():
            if not link.ended:
                link.hand_in(batch)

    def _take(
        self, datagram: bytes, peer: SocketAddress, messages: dict[UdpLink, list[Message]]
    ) -> None:
        link = self._links.get(peer)
        if link is not None:
            batch = messages.get(link)
            if batch is None:
                batch = messages[link] = []
            link.take(datagram, batch)
        elif self._accept is not None and peer not in self._graves:
            self._meet(datagram, peer, messages)
        else:
            self.counts.late += 1

    def _meet(
        self, datagram: bytes, peer: SocketAddress, messages: dict[UdpLink, list[Message]]
    ) -> None:
        """Make a link of a stranger who sent a whole message."""
        known = self._strangers.pop(peer, None)
        reassembly = known or PeerReassembly(limit=min(self.limits.frame, 64 * 1024))
        try:
            message = reassembly.feed(datagram)
        except DecodeError:
            self.counts.malformed += 1
            return
        if message is None:
            if reassembly.held:
                while len(self._strangers) >= self.limits.strangers:
                    self._strangers.pop(next(iter(self._strangers)))
                    self.counts.unfinished += 1
                self._strangers[peer] = reassembly
            return
        if message.payload in (b"", GOODBYE) and not message.onward_route.addresses:
            self.counts.late += 1  # of a link that is not known here any more, or never was
            return
        self._welcome(peer, reassembly, message, messages)

    def _welcome(
        self,
        peer: SocketAddress,
        reassembly: PeerReassembly,
        message: Message,
        messages: dict[UdpLink, list[Message]],
    ) -> None:
        owner = None
        if self._accept is not None and len(self._links) < self.limits.peers:
            owner = self._accept()
        if owner is None:
            self.counts.refused += 1
            return
        link = self.add(peer, owner)
        link.reassembly = reassembly
        reassembly.limit = self.limits.frame
        link.open(waits=False)
        if message.onward_route.addresses:
            message = message.arrived(owner.address)
        messages[link] = [message]

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


class UdpListener:
    """A socket to which peers can send."""

    def __init__(self, port: _Port) -> None:
        self._port = port
        self.place = port.place

    async def close(self) -> None:
        """Make no more links; the open ones stay, and the socket as long as they do."""
        self._port.stop_accepting()


class Udp:
    """UDP in Ockam's format: addresses `udp#host:port`.

    A peer of ours answers as soon as it is spoken to, so a dialled link is open when it has heard
    something. Ockam's nodes say nothing unasked: with `expect_answer=False` a dialled link is open
    at once, whoever is there.
    """

    type_name: ClassVar[str] = "udp"

    def __init__(self, *, limits: UdpLimits | None = None, expect_answer: bool = True) -> None:
        self.limits = limits or UdpLimits()
        self.counts = UdpCounts()
        self._expect_answer = expect_answer

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> UdpListener:
        """Listen; port 0 takes a free one."""
        opened = await bound_socket(place, self.limits.buffer)
        return UdpListener(_Port(opened, self.limits, self.counts, accept))

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Open a link to the first of these places that there is a way to.

        Whether somebody is there shows later: the link ends if nobody answers in time.
        """
        parsed = [parse_place(place) for place in places]
        errors: list[str] = []
        async with asyncio.timeout(self.limits.answer):
            for place, (host, _) in zip(places, parsed, strict=True):
                try:
                    candidates = await resolve_datagram(place)
                except (OSError, ValueError) as error:
                    errors.append(f"{host}: {error}")
                    continue
                for family, address in candidates:
                    try:
                        opened = connected_socket(family, address, self.limits.buffer)
                    except OSError as error:
                        errors.append(f"{place_of(address)}: {reason_of(error)}")
                    else:
                        return self._link(opened, owner)
        raise ConnectionError("; ".join(errors) or "no address to connect to")

    def _link(self, opened: OpenSocket, owner: LinkOwner) -> UdpLink:
        port = _Port(opened, self.limits, self.counts, None)
        link = port.add(port.socket.peer, owner)
        link.open(waits=self._expect_answer)
        return link
