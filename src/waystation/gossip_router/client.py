"""One client's connection: what arrives goes to its reader, what is for it waits here (GR-10).

The first byte tells the dialect (GR-11); everything after that is the business of the reader. The
life of the connection is that of net/connection.py. What a client sends is served in turns, so that
nobody waits for one that asks for much:

    CURRENT --turn over--> BEHIND --next turn--> CURRENT
    CURRENT or BEHIND --does not read its answers--> BLOCKED --has read them--> CURRENT

The queue of what waits to be written is bounded. `room` never says more than is true: it shrinks
with what is put in, and is only measured anew when it seems too little. So passing a message on
costs no look at the socket. What waits for all clients together is bounded as well: while that is
spent, a client has room for an equal part (net/held.py).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from waystation.gossip_router.backpressure import SenderHold
from waystation.gossip_router.jgroups2 import Reader2
from waystation.gossip_router.jgroups5 import Reader5
from waystation.gossip_router.reader import Reader
from waystation.net.connection import BufferedConnection, ConnectionState, Failure
from waystation.net.sockets import acknowledged_bytes
from waystation.net.tls import names_of
from waystation.wire.jgroups import generation_of

if TYPE_CHECKING:
    from waystation.gossip_router.server import GossipServer

FRONT: Final = 64 * 1024
"""An unfinished frame of up to this many bytes is put before what is read next."""

RESERVE: Final = 1 << 18
"""This many bytes of answers and notices may wait beyond the limit for messages."""

_OPEN: Final = ConnectionState.OPEN


class Progress(Enum):
    """How far what a client sent has been served."""

    CURRENT = "current"
    BEHIND = "behind"
    BLOCKED = "blocked"


class Client(BufferedConnection):
    """A connection that was accepted; once its dialect is known, with a `reader` and a `number`."""

    __slots__ = (
        "_front", "_holds", "_late", "_progress", "_router", "_taken", "admitted", "denials",
        "names", "number", "reader", "room", "sender_hold", "tokens",
    )  # fmt: skip

    reader: Reader

    def __init__(self, router: GossipServer) -> None:
        super().__init__(router.connection_limits)
        settings = router.settings
        self.number = 0
        self.names: frozenset[str] = frozenset()  # in its certificate
        self.admitted: set[str] = set()  # groups that it brought a token for
        self.tokens: dict[str, bytes] = {}  # with which it did
        self.denials: set[str] = set()  # what it was not admitted to, as recorded
        self.room = settings.queue
        self.sender_hold = SenderHold(self._loop, settings.patience, router.counts.waits)
        self._router = router
        self._progress = Progress.CURRENT
        self._late = bytearray()  # what arrived while it was not its turn
        self._holds = 0  # how many receivers it is held back for
        self._front = 0  # bytes of an unfinished frame before what is read next
        self._taken: int | None = None  # how much it had taken when it lost a message

    # What the connection tells

    def on_open(self) -> None:
        """Note who the peer is, if TLS says so."""
        assert self.transport is not None
        self.names = names_of(self.transport.get_extra_info("peercert"))
        self._router.counts.opened += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to: the buffer that all clients share, behind what is unfinished."""
        del sizehint
        self._front = 0
        if self.state is _OPEN and self._progress is Progress.CURRENT:
            held = self.reader.held
            size = len(held)
            if 0 < size <= FRONT:
                self._router.buffer[:size] = held
                self._front = size
        return self._router.view[self._front :]

    def buffer_updated(self, nbytes: int) -> None:
        """Let the reader of its dialect do what the bytes ask for."""
        router = self._router
        router.counts.bytes_received += nbytes
        if self.state is not _OPEN and not self._greet(router.buffer[0]):
            return
        start, end = self._front, self._front + nbytes
        if self._progress is not Progress.CURRENT:
            self._late += router.view[start:end]
            return
        router.heard(self)
        reader, written = self.reader, self.written
        if start == len(reader.held) and end >= reader.need:
            reader.held.clear()
            self._serve(router.buffer, end)
        else:
            self._collect(router.view[start:end])
        router.flush()
        if self.written == written:  # as after a message to others
            self.acknowledge()

    def on_last_words(self, data: bytes) -> None:
        """Serve what it said before its connection was lost, without waiting for its turn.

        One that left in its last words is not dead.
        """
        if self.state is not _OPEN and not (data and self._greet(data[0])):
            return
        reader = self.reader
        if self._progress is not Progress.CURRENT:
            self._serve_all(reader.go_on())
        rest = bytes(reader.held) + bytes(self._late) + data
        reader.held.clear()
        self._late.clear()
        if rest and self.is_open:
            self._serve_all(reader.serve(rest, len(rest)))
        self._router.flush()

    def _serve_all(self, done: bool) -> None:
        while not done and self.is_open:
            done = self.reader.go_on()

    def on_crowded(self) -> None:
        """Have whoever puts something in look twice: more than half of the queue is full."""
        self.room = 0

    def on_clear(self) -> None:
        """Go on with what it asked for, and with those who send to it."""
        self.sender_hold.caught_up()
        if self._progress is Progress.BLOCKED:
            self._catch_up()

    def on_silence(self) -> None:
        """Give up a client that never said anything."""
        self._router.give_up(self, "silent", "no byte since it connected")

    def on_unfinished(self) -> None:
        """Give up a client that owes the rest of a frame."""
        self._router.give_up(self, "unfinished", "it left a frame unfinished")

    def on_over_budget(self) -> None:
        """Give up the client that holds most of what is too much."""
        self._router.give_up(self, "input", "too many unfinished frames, and it has the largest")

    def on_closed(self, failure: Failure | None) -> None:
        """Tell the others, unless they know."""
        self.sender_hold.release_all()
        self._router.lost(self, failure)

    # Its queue

    def put(self, data: bytes, size: int) -> None:
        """Queue `size` bytes, to be written when the router's turn ends."""
        if not self.pieces:
            self._router.touched.append(self)
        self.pieces.append(data)
        self.room -= size

    def tell(self, data: bytes) -> None:
        """Queue an answer or a notice, which is never shed."""
        if data and self.is_open:
            self.put(data, len(data))

    @property
    def unsent(self) -> int:
        """How many bytes the system has not taken yet, with those of this turn."""
        return super().unsent + sum(map(len, self.pieces))

    def finds_room(self, size: int) -> bool:
        """Whether this many bytes fit in after all, once the system has taken what it can."""
        self.flush()
        assert self.transport is not None
        limit = self._router.held.limit_of(self._router.settings.queue)
        self.room = limit - self.transport.get_write_buffer_size()
        return self.room >= size

    def takes_answers(self) -> bool:
        """Whether it reads what it asked for; else it has to wait until it does."""
        return not self.peer_is_slow and (self.room > 0 or self.finds_room(1))

    def is_overfull(self) -> bool:
        """Whether there is no room even for notices."""
        return self.room < -RESERVE and not self.finds_room(-RESERVE)

    def shed(self) -> None:
        """Note that it lost messages; with `disconnect`, see whether it reads any more."""
        settings = self._router.settings
        if settings.slow_receiver == "disconnect" and self.is_open and self._taken is None:
            self._taken = self._count_taken()
            self.start_timer(settings.stall, self._check_stall)

    def _count_taken(self) -> int:
        """How many bytes its system has taken so far: the number grows as long as it reads."""
        assert self.transport is not None
        found = acknowledged_bytes(self.transport.get_extra_info("socket"))
        return self.written - self.unsent if found is None else found

    def _check_stall(self) -> None:
        before, self._taken = self._taken, None
        if self._count_taken() == before:
            stall = self._router.settings.stall
            self._router.give_up(self, "stuck", f"it took nothing for {stall:g} s")

    # When it is read

    def hold(self) -> None:
        """Read no more for now: a receiver of its messages has to catch up."""
        self._holds += 1
        self._choose_reading()

    def release(self) -> None:
        """Note that one receiver less has to catch up."""
        self._holds -= 1
        self._choose_reading()

    def _choose_reading(self) -> None:
        if not self.is_open:
            return
        if self._holds or self._progress is not Progress.CURRENT:
            self.pause_reading()
        else:
            self.resume_reading()

    def _greet(self, first: int) -> bool:
        """Find out the dialect; False when the client speaks none, or is not listened to."""
        if not self.is_greeting:
            return False
        generation = generation_of(first)
        if generation is None:
            self._router.reject(self, "first byte", f"no client begins with the byte {first:02x}")
            return False
        self.reader = (Reader5 if generation == 5 else Reader2)(self, self._router)
        self.peer_spoke()
        self._router.greeted(self)
        return True

    def _collect(self, data: bytes | memoryview) -> None:
        """Put the pieces of a large frame together."""
        reader = self.reader
        held = reader.held
        held += data
        if len(held) < reader.need:
            reader.progressed = False
            self._note_unfinished()
            return
        whole = bytes(held)
        held.clear()
        self._serve(whole, len(whole))

    def _serve(self, data: bytes | bytearray, end: int) -> None:
        if self.reader.serve(data, end):
            self._note_unfinished()
        else:
            self._postpone()

    def _postpone(self) -> None:
        """Leave the rest for its next turn, or for when it has read its answers."""
        if not self.is_open:
            return
        if self.peer_is_slow:
            self._progress = Progress.BLOCKED
        else:
            self._progress = Progress.BEHIND
            self._loop.call_soon(self._catch_up)
        self._choose_reading()

    def _catch_up(self) -> None:
        """Serve what was left, then what came meanwhile."""
        if not self.is_open:
            return
        if self.peer_is_slow or not self.reader.go_on():
            self._postpone()
        elif self.is_open:
            self._progress = Progress.CURRENT
            self._note_unfinished()
            late = bytes(self._late)
            self._late.clear()
            if late:
                self._collect(late)
            self._choose_reading()
        self._router.flush()

    def _note_unfinished(self) -> None:
        """Note how much there is of a frame that is not complete."""
        reader = self.reader
        held = reader.count_held()
        if held or self.unfinished:
            self.note_unfinished(held, is_new=reader.progressed or not self.unfinished)
