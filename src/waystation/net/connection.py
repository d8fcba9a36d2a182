"""One connection, of whatever protocol: when to read and write it, and when it is over.

Every stream of the product is a `Connection`: links between nodes, the gossip router's clients and
members, MQTT on both sides, direct members, monitoring. The base class owns the life cycle, the
first-byte deadline, that of a frame which has begun, writing once per turn of the event loop, the
water marks, and the end. What the bytes mean is the business of its subclasses, which implement the
`on_...` methods and tell with `count_unfinished` how much they hold of a frame in part.

The life of a connection:

    CONNECTING --made--> GREETING --peer spoke--> OPEN --close()--> CLOSING --lost--> CLOSED
         any state --abort() or fail()--> ENDING --lost--> CLOSED

GREETING ends when the subclass calls `peer_spoke`; until then the first-byte deadline runs. In
CLOSING what was taken is still written, and what still arrives is discarded. In ENDING nothing is
read or written any more; only the event loop's last word is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from msgspec import Struct

from waystation.core.budget import Account
from waystation.core.outcome import Reason
from waystation.net.last_words import LastWords
from waystation.net.place import place_of
from waystation.net.sockets import acknowledge_at_once, prepare

if TYPE_CHECKING:
    from waystation.net.server import InputBudget, Server

BATCH: Final = 64 * 1024
"""This many bytes are written at once, without waiting for the end of the loop's turn."""

SETTLE_INTERVAL: Final = 0.005
"""Seconds between looks at the write buffer while the system has not taken everything."""

MINIMUM_RATE: Final = 4096
"""Bytes a second that a peer has to send of a frame which takes longer than the time for one.

Half of what a radio link of 64 kbit/s carries, so that the largest frame can come over such a link.
"""

UNADMITTED: Final = 64 * 1024
"""Bytes of a frame that a peer may send before it is admitted, by default (FL-2)."""

_log = logging.getLogger("waystation.net")


class ConnectionState(IntEnum):
    """Where a connection is in its life; the order is that of time."""

    CONNECTING = 0
    GREETING = 1
    OPEN = 2
    CLOSING = 3
    ENDING = 4
    CLOSED = 5


_PARTS: Final = 3  # of one large message
_GREETING: Final = ConnectionState.GREETING
_OPEN: Final = ConnectionState.OPEN


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Deadlines and sizes of one connection; times are in seconds.

    `high_water` bytes may wait to be written before `on_crowded`; `on_clear` follows at a quarter
    of it. A peer has `first_byte` seconds to speak (None: no deadline). A frame that has begun has
    to be complete after `frame` seconds (None: no deadline), or must have grown by MINIMUM_RATE
    bytes for each of them, and so on until it is complete; time in which nothing is read does not
    count. `linger` is the time to write what is left after `close`. `dead` is when the system gives
    up on a machine that no longer answers, and with `user_timeout` also on one that does not
    acknowledge what was sent.
    """

    high_water: int = 256 * 1024
    first_byte: float | None = 10.0
    frame: float | None = 30.0
    linger: float = 5.0
    dead: float = 30.0
    user_timeout: bool = False


class Failure(NamedTuple):
    """Why a connection ended, if it did not end in order."""

    reason: Reason
    detail: str


class OneTimer:
    """Something that waits for one thing at a time, and not for ever."""

    __slots__ = ("_loop", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start_timer(self, seconds: float, act: Callable[[], None]) -> None:
        """Call a function later, unless the timer is stopped or started anew before."""
        self.stop_timer()
        self._timer = self._loop.call_later(seconds, act)

    def stop_timer(self) -> None:
        """Call nothing later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BaseConnection(OneTimer):
    """What both kinds of connection share; `Connection` and `BufferedConnection` are below."""

    __slots__ = (
        "_batches", "_flush_due", "_frame_mark", "_frame_since", "_frame_time", "_frame_timer",
        "_given", "_held", "_immediate", "_in_parts", "_last_words", "_settle_due", "_settle_now",
        "_settled", "_size", "_socket", "_turn", "account",
        "failure", "input_budget", "limits", "peer_is_slow", "pieces", "place", "server", "state",
        "transport", "unfinished", "written",
    )  # fmt: skip

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits = limits
        self.state = ConnectionState.CONNECTING
        self.place = ""  # of the peer; known once connected, unless a subclass sets it before
        self.failure: Failure | None = None
        self.unfinished = 0  # bytes that are held of a frame in part
        self.account: Account | None = None  # of whoever the connection is for: counts those bytes
        self.input_budget: InputBudget | None = None  # of all connections of one listener
        self.transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None  # of TCP, once connected
        self.server: Server | None = None  # that accepted it
        self.written = 0  # bytes
        self.peer_is_slow = False  # more than `high_water` bytes wait for the peer to read
        self.pieces: list[bytes] = []  # to be written at the end of this turn
        self._in_parts = False  # a large message is among those, in several of them
        self._size = 0  # bytes in those
        self._turn = 0  # bytes of messages that were given to it in this turn
        self._given = self._settled = 0  # messages given to it, and told to be out of our hands
        self._batches: list[tuple[int, int]] = []  # of each write: all bytes, all messages so far
        self._frame_time = limits.frame  # seconds that the peer has for a frame
        self._frame_since = 0.0  # when the peer's time for the frame in part began
        self._frame_mark = 0  # how much was there of it then
        self._frame_timer: asyncio.TimerHandle | None = None  # may be left from an earlier frame
        self._flush_due = False
        self._settle_due = False
        self._settle_now = False  # at the end of this turn
        self._immediate = True  # the last turns had one message each, which need not wait
        self._held = False  # crowded until the end of this turn
        self._last_words: LastWords | None = None

    # What subclasses implement

    def on_open(self) -> None:
        """Handle that the socket is connected, and TLS negotiated if there is any."""

    def on_data(self, data: bytes) -> None:
        """Read what the peer sent."""

    def count_unfinished(self) -> int:
        """How many bytes are held of a frame that has begun and is not whole; 0 if there is none.

        Asked after each read. Every kind of connection answers it, so that none lacks the deadline.
        """
        raise NotImplementedError

    def on_last_words(self, data: bytes) -> None:
        """Read what the peer sent before the connection was lost; nothing can be written."""
        raise NotImplementedError

    def on_eof(self) -> None:
        """Handle that the peer will send no more; the connection ends then."""

    def on_crowded(self) -> None:
        """Take no more from senders: more waits to be written than `high_water`."""

    def on_clear(self) -> None:
        """Take more from senders again."""

    def on_sent(self, messages: int | None) -> None:
        """Note that the next `messages` given by `give` left this process; None: all of them."""

    def explain_end(self, error: Exception | None) -> Failure | None:
        """Say why the connection ended, given the event loop's word; None for an orderly end."""
        if error is None:
            return None
        return Failure(Reason.TRANSPORT_DOWN, f"{type(error).__name__}: {error}")

    def on_closed(self, failure: Failure | None) -> None:
        """Handle the end; called once, after everything else."""

    def on_silence(self) -> None:
        """Handle a peer that did not speak within the first-byte deadline."""
        self.fail(Reason.REFUSED, f"the peer said nothing for {self.limits.first_byte:g} s")

    def on_unfinished(self) -> None:
        """Handle a peer that did not finish a frame in time."""
        self.fail(Reason.REFUSED, "the peer left a frame unfinished")

    def on_over_budget(self) -> None:
        """Handle that this listener holds too much of unfinished frames, and most of it here."""
        self.fail(Reason.QUEUE_FULL, "too many unfinished frames, and this is the largest")

    def on_handshake_failed(self) -> None:
        """Handle that the TLS handshake of an accepted connection came to nothing."""

    # What users of a connection call

    @property
    def is_greeting(self) -> bool:
        """Whether the peer has not spoken yet."""
        return self.state is _GREETING

    @property
    def is_open(self) -> bool:
        """Whether something can be read and written: connected, and not ended from here."""
        return _GREETING <= self.state <= _OPEN

    @property
    def unsent(self) -> int:
        """How many bytes the system has not taken yet."""
        transport = self.transport
        return self._size + (0 if transport is None else transport.get_write_buffer_size())

    @property
    def holds_senders_back(self) -> bool:
        """Whether senders have to wait: it is between `on_crowded` and `on_clear`."""
        return self._held or self.peer_is_slow

    def give(self, data: bytes, messages: int = 1) -> None:
        """Write the bytes of a message in this turn; `on_sent` tells when they are out.

        With 0 `messages` it does not: somebody else tells what became of it.
        """
        self.pieces.append(data)
        size = len(data)
        self._size += size
        self._given += messages
        self._turn += size
        if self._turn > self.limits.high_water and not self._held:
            self._held = True  # or a sender that never has to wait would never let others run
            self.on_crowded()
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._end_turn)
            if self._immediate:
                self.flush()
        elif self._size >= BATCH:
            self.flush()

    def give_parts(self, parts: tuple[bytes, bytes, bytes]) -> None:
        """Write the parts of one message in this turn, from where they are: nothing is copied."""
        head, body, tail = parts
        size = len(head) + len(body)
        self.pieces += (head, body)
        self._size += size
        self._turn += size
        self._in_parts = True
        self.give(tail)

    def write(self, data: bytes) -> None:
        """Write bytes at the end of this turn, behind what was given before."""
        self.queue(data)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._end_turn)

    def queue(self, data: bytes) -> None:
        """Put bytes behind the others; whoever queues calls `flush` at the end of its turn."""
        self.pieces.append(data)
        self._size += len(data)

    def flush(self) -> None:
        """Write what this turn brought so far, in one piece unless something in it is large."""
        pieces = self.pieces
        if not pieces:
            return
        self.pieces = []
        in_parts, self._in_parts = self._in_parts, False
        self._size = 0
        transport = self.transport
        if transport is None or not _GREETING <= self.state <= _OPEN or transport.is_closing():
            return
        if in_parts:
            transport.writelines(pieces)
            self.written += sum(map(len, pieces))
        else:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            transport.write(data)
            self.written += len(data)
        if self._given > self._settled:
            self._batches.append((self.written, self._given))
            if not self._settle_due:
                self._settle_due = True
                if self._flush_due:
                    self._settle_now = True
                else:
                    self._loop.call_soon(self._settle)

    def discard(self) -> None:
        """Forget what this turn brought so far."""
        self.pieces = []
        self._in_parts = False
        self._size = 0

    def settle_if_written(self) -> None:
        """Tell that all messages left this process, if they did."""
        if not self.unsent and self._given > self._settled:
            self._settle_all()

    def pause_reading(self) -> None:
        """Stop reading; TCP then holds the peer back."""
        transport = self.transport
        if transport is not None and transport.is_reading():
            transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        transport = self.transport
        if transport is not None and not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    def peer_spoke(self) -> None:
        """End the first-byte deadline: whoever is there speaks our protocol."""
        if self.state is _GREETING:
            self.state = ConnectionState.OPEN
            self.stop_timer()

    def note_unfinished(self, size: int, *, is_new: bool) -> None:
        """Note how many bytes are held of a frame in part; `is_new`: it began with this read.

        Counts them, and starts the time that the peer has for the rest.
        """
        if not _GREETING <= self.state <= _OPEN:
            size = 0  # nothing more is made of it
        change = size - self.unfinished
        self.unfinished = size
        if change:
            if self.account is not None:
                self.account.take(change)
            if self.input_budget is not None:
                self.input_budget.take(change)
        if size and is_new:
            self._frame_since = self._loop.time()
            self._frame_mark = 0
            if self._frame_timer is None and self._frame_time is not None:
                self._frame_timer = self._loop.call_later(self._frame_time, self._check_frame)

    @property
    def is_with_stranger(self) -> bool:
        """Whether the peer is a program of another make, which may hold back what is small.

        It does until what it sent before is acknowledged; ours never do.
        """
        return False

    def acknowledge(self) -> None:
        """Have the system acknowledge what was read, as it has not been with an answer.

        Without it the peer may wait for that before it sends the rest, or another message.
        """
        if self._socket is not None:
            acknowledge_at_once(self._socket)

    def change_frame_time(self, seconds: float | None) -> None:
        """Give the peer another time than `limits.frame` for the frame that begins now."""
        if seconds != self._frame_time:
            self._frame_time = seconds
            self._stop_frame_timer()

    def close(self) -> None:
        """Write what is left, within `linger` seconds, and end."""
        transport = self.transport
        if transport is None or not _GREETING <= self.state <= _OPEN:
            return
        if transport.is_closing():  # it is lost, and what it still says does not matter any more
            self.state = ConnectionState.ENDING
            return
        self.flush()
        self.state = ConnectionState.CLOSING
        self.note_unfinished(0, is_new=False)
        self.say_goodbye(transport)
        self.start_timer(self.limits.linger, self._end_lingering)

    def abort(self) -> None:
        """End at once; what was not written is lost."""
        if self.state >= ConnectionState.ENDING:
            return
        self.state = ConnectionState.ENDING
        self.note_unfinished(0, is_new=False)
        self.abort_transport()

    def fail(self, reason: Reason, detail: str) -> None:
        """End at once, for a reason that `on_closed` is told."""
        if self.failure is None:
            self.failure = Failure(reason, detail)
        self.abort()

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and start the first-byte deadline."""
        made = self.transport = cast("asyncio.Transport", transport)
        limits = self.limits
        if not self.place:
            self.place = place_of(transport.get_extra_info("peername") or ("?", 0))
        if self.state is not ConnectionState.CONNECTING:  # given up while it was being made
            made.abort()
            return
        self.state = ConnectionState.GREETING
        self._last_words = LastWords(made)
        found = transport.get_extra_info("socket")
        self._socket = prepare(found, limits.dead, user_timeout=limits.user_timeout)
        high = limits.high_water
        if self.account is not None:  # it counts for what it is for, and is to leave room there
            high = min(high, self.account.limit // 8)
        made.set_write_buffer_limits(high=high, low=high // 4)
        if limits.first_byte is not None:
            self.start_timer(limits.first_byte, self.on_silence)
        _log.debug("%s: connected", self.place)
        if self.server is not None and not self.server.take(self):
            self.abort()
            return
        self.on_open()

    def eof_received(self) -> None:
        """Let the connection end: a peer that no longer writes is of no use."""
        self.settle_if_written()
        self.on_eof()

    def pause_writing(self) -> None:
        """Pass on that the peer does not keep up."""
        self.peer_is_slow = True
        self.on_crowded()

    def resume_writing(self) -> None:
        """Pass on that it does again."""
        self.peer_is_slow = False
        if not self._held:
            self.on_clear()

    def connection_lost(self, error: Exception | None) -> None:
        """Hear what the peer said before, and tell how it ended."""
        if self.state is ConnectionState.CLOSED:  # its server gave up on the handshake, and said so
            return
        try:
            self._hear_last_words()
        finally:
            self._end(error)

    # How it works

    def _hear_last_words(self) -> None:
        """Read what nobody has read, unless this side ended the connection itself."""
        transport, last_words = self.transport, self._last_words
        if transport is None or last_words is None:
            return
        try:
            if self.is_open:
                self.on_last_words(b"".join(last_words.read(transport)))
        finally:
            last_words.close()

    def _end(self, error: Exception | None) -> None:
        self.stop_timer()
        self.discard()
        if self.failure is None:
            self.failure = self.explain_end(error)
        in_order = self.state is ConnectionState.CLOSING
        self.state = ConnectionState.CLOSED
        self.note_unfinished(0, is_new=False)
        self._stop_frame_timer()
        if in_order and self.failure is None:  # everything was written first
            self._settle_all()
        _log.debug("%s: %s", self.place, self.failure or "closed")
        if self.server is not None:
            self.server.forget(self)
        self.on_closed(self.failure)

    def _stop_frame_timer(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None

    def _check_frame(self) -> None:
        """End a frame that takes too long; one timer serves all frames, so look which this is."""
        self._frame_timer = None
        seconds, now = self._frame_time, self._loop.time()
        if not self.unfinished or seconds is None:
            return
        transport = self.transport
        assert transport is not None
        if not transport.is_reading() and not transport.is_closing():  # which is not its fault
            self._frame_since, self._frame_mark = now, self.unfinished
        elif now - self._frame_since >= seconds:
            if self.unfinished - self._frame_mark < seconds * MINIMUM_RATE:
                self.on_unfinished()
                return
            self._frame_since, self._frame_mark = now, self.unfinished
        left = self._frame_since + seconds - now
        self._frame_timer = self._loop.call_later(left, self._check_frame)

    def _end_turn(self) -> None:
        """Write the messages of this turn; when they are few, the next may go without waiting."""
        self._flush_due = False
        self._turn = 0
        pieces = len(self.pieces)
        one = _PARTS if self._in_parts else 1
        self._immediate = pieces == 0 or (pieces == one and not self._immediate)
        if pieces:
            self.flush()
        if self._held:
            self._held = False
            if not self.peer_is_slow:
                self.on_clear()
        if self._settle_now:
            self._settle_now = False
            self._settle()

    def _settle(self) -> None:
        """Tell which messages the system has taken; look again while it has not taken all."""
        self._settle_due = False
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        out = self.written - transport.get_write_buffer_size()
        batches, settled = self._batches, self._settled
        while batches and batches[0][0] <= out:
            settled = batches.pop(0)[1]
        if settled > self._settled:
            messages, self._settled = settled - self._settled, settled
            self.on_sent(messages)
        if batches:
            self._settle_due = True
            self._loop.call_later(SETTLE_INTERVAL, self._settle)

    def _settle_all(self) -> None:
        self._settled = self._given
        self._batches.clear()
        self.on_sent(None)

    def say_goodbye(self, transport: asyncio.Transport) -> None:
        """End our direction of the stream; the peer's end follows."""
        if transport.can_write_eof():
            # Closed with unread bytes in it, the system would tell the peer to throw away what it
            # has of ours. So end our direction, and discard what arrives until the peer does too.
            with contextlib.suppress(OSError):  # the peer has reset it, and we shall hear of that
                transport.write_eof()
            self.resume_reading()
        else:
            transport.close()

    def _end_lingering(self) -> None:
        """Wait no longer for the peer's goodbye, or for it to read."""
        if self.unsent:
            self.failure = Failure(Reason.TRANSPORT_DOWN, "the peer did not read what was left")
        self.abort_transport()

    def abort_transport(self) -> None:
        """End the socket in whatever state the connection is; `on_closed` follows."""
        if self.transport is not None:
            self.transport.abort()


class Connection(BaseConnection, asyncio.Protocol):
    """A connection whose bytes are handed in as they come."""

    __slots__ = ()

    def on_last_words(self, data: bytes) -> None:
        """Hand in what the peer sent before the connection was lost."""
        if data:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Hand in what came, unless nothing is read any more, and see what is left in part."""
        if _GREETING <= self.state <= _OPEN:
            before, written = self.unfinished, self.written
            self.on_data(data)
            held = self.count_unfinished()
            if held or before:
                # With a frame completed there is less than what was there and what came.
                self.note_unfinished(held, is_new=not before or held < before + len(data))
            if (held or self.is_with_stranger) and self.written == written:
                self.acknowledge()


class BufferedConnection(BaseConnection, asyncio.BufferedProtocol):
    """A connection that reads into a buffer of its owner's; see `asyncio.BufferedProtocol`.

    It calls `note_unfinished` itself, after each read.
    """

    __slots__ = ()
