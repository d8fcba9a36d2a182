"""One client's connection: the socket's events, and who the client is. No bytes are read here.

The first byte tells the dialect (GR-11); everything after that is the business of its reader.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from waystation.gossip_router.admission import names_of
from waystation.gossip_router.jgroups2 import Reader2
from waystation.gossip_router.jgroups5 import Reader5
from waystation.gossip_router.outbox import Outbox
from waystation.gossip_router.patience import Patience
from waystation.gossip_router.reader import Reader
from waystation.net.place import place_of
from waystation.net.sockets import prepare
from waystation.wire.jgroups import generation_of

if TYPE_CHECKING:
    from waystation.gossip_router.server import GossipServer


FRONT: Final = 64 * 1024
"""An unfinished frame of at most so many bytes is put before what is read next."""


class Client(asyncio.BufferedProtocol):
    """A connection that was accepted."""

    __slots__ = (
        "_alarm",
        "_ended",
        "_front",
        "_holds",
        "_late",
        "_server",
        "_shed_at",
        "_waiting",
        "admitted",
        "members",
        "names",
        "number",
        "outbox",
        "place",
        "reader",
        "transport",
        "unfinished_since",
    )

    outbox: Outbox
    transport: asyncio.Transport

    def __init__(self, server: GossipServer, number: int) -> None:
        self.number = number
        self.place = "?"
        self.names: frozenset[str] = frozenset()  # in its certificate
        self.admitted: set[str] = set()  # groups that a token opened
        self.members: set[tuple[str, bytes]] = set()
        self.reader: Reader | None = None
        self.unfinished_since: float | None = None
        self._server = server
        self._waiting = False  # for its next turn, or to be read from again
        self._late = bytearray()
        self._holds = 0  # so many receivers is it held back for
        self._front = 0  # so many bytes of an unfinished frame stand before what is read next
        self._alarm: asyncio.TimerHandle | None = None
        self._shed_at: int | None = None  # how much it had taken when it lost the first message
        self._ended = False

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Get to know the peer; or turn it away when there are too many."""
        self.transport = cast("asyncio.Transport", transport)
        settings = self._server.settings
        counts = self._server.counts
        patience = Patience(self._server.loop, settings.patience, counts.waits)
        self.outbox = Outbox(self.number, self.transport, settings.queue, patience, counts)
        self.place = place_of(transport.get_extra_info("peername") or ("?", 0))
        if not self._server.accept(self):
            self._ended = True
            self.transport.abort()
            return
        self.names = names_of(transport.get_extra_info("peercert"))
        _prepare(transport.get_extra_info("socket"), settings.dead)
        half = settings.queue // 2
        self.transport.set_write_buffer_limits(high=half, low=half // 4)
        self._set_alarm(settings.silence, self._give_up_on_silence)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to: the buffer that all connections share, behind what is unfinished."""
        del sizehint
        held = b"" if self.reader is None or self._waiting else self.reader.held
        self._front = size = len(held) if len(held) <= FRONT else 0
        if size:
            self._server.buffer[:size] = held
        return self._server.view[size:]

    def buffer_updated(self, nbytes: int) -> None:
        """Let the reader of its dialect do what the bytes ask for."""
        server = self._server
        server.counts.bytes_received += nbytes
        reader = self.reader
        if reader is None:
            reader = self._greet(server.buffer[0])
        if reader is None or reader.ended:
            return
        start, end = self._front, self._front + nbytes
        if self._waiting:
            self._late += server.view[start:end]
            return
        server.heard(self)
        if start == len(reader.held) and end >= reader.need:
            reader.held.clear()
            self._serve(reader, server.buffer, end)
        else:
            self._collect(reader, server.view[start:end])
        server.flush()

    def pause_writing(self) -> None:
        """Note that the client does not keep up."""
        self.outbox.crowd()

    def resume_writing(self) -> None:
        """Go on with what it asked for, and with those who send to it."""
        self.outbox.clear()
        if self._waiting:
            self._resume()

    def eof_received(self) -> None:
        """Let the connection end: a client that no longer writes is gone."""

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the others, unless they know."""
        self._stop_alarm()
        self._end()
        self._server.lost(self, "" if error is None else f"{type(error).__name__}: {error}")

    # What the router and the reader ask for

    def tell(self, data: bytes) -> None:
        """Put an answer or a notice into the outbox."""
        if not data or self._ended:
            return
        if not self.outbox.pieces:
            self._server.touched.append(self.outbox)
        self.outbox.put(data)

    def takes_answers(self) -> bool:
        """Whether it reads what it asked for; else it has to wait until it does."""
        outbox = self.outbox
        return not outbox.is_crowded and (outbox.room > 0 or outbox.finds_room(1))

    def hold(self) -> None:
        """Read no more for now: somebody that it sends to has to catch up."""
        self._holds += 1
        self._choose_reading()

    def release(self) -> None:
        """One less to wait for."""
        self._holds -= 1
        self._choose_reading()

    def shed(self) -> None:
        """Messages found no room; with the policy for it, see whether it ever reads again."""
        settings = self._server.settings
        if settings.slow_receiver != "disconnect" or self._ended:
            return
        if self._shed_at is None:
            self._shed_at = self.outbox.taken()
            self._set_alarm(settings.stall, self._give_up_on_stall)

    def leave(self) -> None:
        """The client said goodbye."""
        self._server.left(self)
        self.close()

    def fail(self, cause: str, detail: str) -> None:
        """The client did something wrong."""
        self._server.failed(self, cause, detail)

    def close(self) -> None:
        """Write what is left, within the time for it, and end."""
        if self._ended:
            return
        self._end()
        self.outbox.flush()
        self.transport.close()
        self._set_alarm(self._server.settings.linger, self.transport.abort)

    def abort(self) -> None:
        """End at once."""
        self._end()
        self.transport.abort()

    # How it works

    def _end(self) -> None:
        """From here on nothing is read from it, and nothing more is told."""
        self._ended = True
        self.outbox.patience.end()
        if self.reader is not None:
            self.reader.ended = True

    def _greet(self, first: int) -> Reader | None:
        self._stop_alarm()
        if self._ended:
            return None
        generation = generation_of(first)
        if generation is None:
            self.fail("first byte", f"it begins with the byte {first:02x}, as no client does")
            return None
        self.reader = (Reader5 if generation == 5 else Reader2)(self, self._server)
        self._server.greeted(self)
        return self.reader

    def _collect(self, reader: Reader, data: bytes | memoryview) -> None:
        """Put the pieces of a large frame together."""
        held = reader.held
        held += data
        if len(held) < reader.need:
            reader.progressed = False
            self._note_unfinished(reader)
            return
        whole = bytes(held)
        held.clear()
        self._serve(reader, whole, len(whole))

    def _serve(self, reader: Reader, data: bytes | bytearray, end: int) -> None:
        if reader.serve(data, end):
            self._note_unfinished(reader)
        elif not self._ended:
            self._waiting = True
            self._choose_reading()
            self._call_again()

    def _note_unfinished(self, reader: Reader) -> None:
        """Note since when the frame that is there in part has been waited for."""
        if not reader.unfinished:
            self.unfinished_since = None
        elif reader.progressed or self.unfinished_since is None:
            self.unfinished_since = self._server.now()

    def _call_again(self) -> None:
        """Go on in the next turn; a client that does not read, when it does."""
        if not self.outbox.is_crowded:
            self._server.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Its next turn: what it left, then what came meanwhile."""
        reader = self.reader
        if reader is None or reader.ended or self.outbox.is_crowded or not self._waiting:
            return
        if not reader.go_on():
            self._call_again()
        elif not self._ended:
            self._waiting = False
            self._note_unfinished(reader)
            late = bytes(self._late)
            self._late.clear()
            if late:
                self._collect(reader, late)
            self._choose_reading()
        self._server.flush()

    def _choose_reading(self) -> None:
        """Read unless it has to wait for its turn, or for somebody else."""
        if self._ended:
            return
        reading = not (self._waiting or self._holds)
        if reading != self.transport.is_reading():
            (self.transport.resume_reading if reading else self.transport.pause_reading)()

    def _give_up_on_silence(self) -> None:
        self._alarm = None
        self._server.give_up(self, "silent", "it never said anything")

    def _give_up_on_stall(self) -> None:
        self._alarm = None
        before, self._shed_at = self._shed_at, None
        if self.outbox.taken() == before:
            stall = self._server.settings.stall
            self._server.give_up(self, "stuck", f"it took nothing for {stall:g} s")

    def _set_alarm(self, seconds: float, act: Callable[[], None]) -> None:
        self._stop_alarm()
        self._alarm = self._server.loop.call_later(seconds, act)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def watch_handshakes(context: ssl.SSLContext, failed: Callable[[str], None]) -> None:
    """Have a function called with the reason when a TLS handshake fails; nobody else is told.

    A client that ends its connection before, or says nothing, has not failed.
    """

    class Watched(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                failed(error.reason or str(error))
                raise

    context.sslobject_class = Watched


def _prepare(found: socket.socket | None, dead: float) -> None:
    """As every TCP socket; and who does not take what was sent for so long is gone as well."""
    prepare(found, dead)
    if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(dead * 1000))
