"""TCP links in Ockam's format: the sockets, and when to read and write them.

What stands in the bytes is the business of wire/ockam.py. Frames are gathered and written once per
turn of the event loop, or earlier when they are many; a peer that does not read makes the link ask
its owner to pause, and a link whose owner does not keep up stops reading. So a slow worker is felt
by its senders, through every socket between them, and by nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, Final, cast

from msgspec import Struct

from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError
from waystation.net.place import parse_place, place_of
from waystation.net.sockets import open_listener, prepare, reason_of
from waystation.net.tls import Tls
from waystation.transports.transport import Link, LinkOwner
from waystation.wire.ockam import (
    FRAME_LIMIT,
    HEARTBEAT_FRAME,
    PREFACE,
    FrameDecoder,
    encode_control,
    encode_departure,
)

BATCH: Final = 64 * 1024
"""So many bytes are written without waiting for the end of the loop's turn."""

STAGGER: Final = 0.25
"""Seconds between the starts of the attempts, when a peer has several places (as RFC 8305 does)."""


class TcpLimits(Struct, frozen=True, kw_only=True):
    """How much a link takes, and how long it waits.

    `frame` bytes is the largest message, in either direction; Ockam's nodes take no more than the
    default. `unsent` bytes may wait in a link before its senders have to. A peer has `greeting`
    seconds to say its first byte and to end the TLS handshake. `linger` is the time to write what
    is left when a link closes. `dead` is the time after which the system notices that a quiet
    peer's machine is gone.
    """

    frame: int = FRAME_LIMIT
    unsent: int = 256 * 1024
    greeting: float = 10.0
    dial: float = 5.0
    linger: float = 5.0
    dead: float = 30.0
    backlog: int = 1024


class TcpLink(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_alarm", "_batches", "_decoder", "_failure", "_flush_due", "_frames", "_given", "_held",
        "_in_order", "_limits", "_loop", "_owner", "_paused", "_quiet", "_settle_due", "_size",
        "_told", "_transport", "_turn", "_written", "place",
    )  # fmt: skip

    def __init__(self, owner: LinkOwner, limits: TcpLimits) -> None:
        self.place = ""
        self._owner = owner
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(limit=limits.frame, via=owner.address)
        self._frames: list[bytes] = []
        self._size = 0
        self._given = self._told = 0  # messages that were given to it, and told to be out
        self._written = 0  # bytes
        self._batches: deque[tuple[int, int]] = deque()  # so many bytes, and the messages in them
        self._turn = 0  # bytes that were given to it in this turn of the loop
        self._held = False  # until the next turn
        self._paused = False  # until the peer has read more
        self._flush_due = False
        self._quiet = True  # a turn has one message at the most, which need not wait for others
        self._settle_due = False
        self._in_order = False  # its owner closed it, and everything is written before it ends
        self._alarm: asyncio.TimerHandle | None = None
        self._failure: tuple[Reason, str] | None = None

    # What the owner asks for

    def send(self, message: Message) -> Reason | None:
        """Encode a message and put it with the others of this turn."""
        try:
            frame = encode_departure(message, limit=self._limits.frame)
        except LocalError as error:
            return REASONS.get(error.rule, Reason.MALFORMED)
        self._give(frame)
        return None

    def _give(self, frame: bytes) -> None:
        """Put the bytes of a message with the others of this turn."""
        self._frames.append(frame)
        self._size += len(frame)
        self._given += 1
        self._turn += len(frame)
        if self._turn > self._limits.unsent and not self._held:
            self._held = True  # or a sender that never has to wait would never let others run
            self._owner.pause()
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
            if self._quiet:
                self._write()
        elif self._size >= BATCH:
            self._write()

    def send_control(self, payload: bytes) -> None:
        """Put a payload for the peer's session with the messages of this turn."""
        self._frames.append(encode_control(payload) if payload else HEARTBEAT_FRAME)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def pause_reading(self) -> None:
        """Stop reading; TCP then holds the peer back."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    def close(self) -> None:
        """Write what is left, within the time for it, and end."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._in_order:
            return
        if self._frames:
            self._write()
        self._in_order = True
        if transport.can_write_eof():
            # Closed with unread bytes in it, the system would tell the peer to throw away what it
            # has of ours. So say goodbye, and pass over what still comes until the peer does too.
            with contextlib.suppress(OSError):  # the peer has reset it, and we shall hear of that
                transport.write_eof()
            if not transport.is_reading():
                transport.resume_reading()
        else:
            transport.close()
        self._set_alarm(self._limits.linger, self._end_lingering)

    def abort(self) -> None:
        """End at once."""
        self._in_order = False
        self._drop()

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer, whoever it is."""
        self._transport = cast("asyncio.Transport", transport)
        self.place = place_of(transport.get_extra_info("peername") or ("?", 0))
        # No TCP_USER_TIMEOUT: it would also end connections whose peer lives and is slow to read.
        prepare(transport.get_extra_info("socket"), self._limits.dead)
        unsent = self._limits.unsent
        self._transport.set_write_buffer_limits(high=unsent, low=unsent // 4)
        self._transport.write(PREFACE)
        self._set_alarm(self._limits.greeting, self._give_up_on_silence)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """Hand in the messages that these bytes complete."""
        if self._failure is not None or self._in_order:  # what still comes before the link is gone
            return
        decoder = self._decoder
        messages = decoder.feed(data)
        if self._alarm is not None and decoder.greeted:
            self._stop_alarm()
            self._owner.answered()
        self._owner.received(messages)
        error = decoder.error
        if error is not None:
            self._fail(Reason.TOO_LARGE if error.too_large else Reason.MALFORMED, str(error))

    def eof_received(self) -> None:
        """Let the connection end: a peer that no longer writes is of no use."""
        if self._transport is not None and self._is_written(self._transport):
            self._owner.sent()

    def pause_writing(self) -> None:
        """Pass on that the peer does not keep up."""
        self._paused = True
        self._owner.pause()

    def resume_writing(self) -> None:
        """Pass on that it does again."""
        self._paused = False
        if not self._held:
            self._owner.resume()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the owner how it ended."""
        self._stop_alarm()
        self._frames.clear()
        if self._in_order and error is None and self._failure is None:  # all was written first
            self._owner.sent()
        if self._failure is not None:
            self._owner.closed(*self._failure)
        elif error is not None:
            self._owner.closed(Reason.TRANSPORT_DOWN, f"{type(error).__name__}: {error}")
        elif self._decoder.unfinished:
            self._owner.closed(Reason.TRANSPORT_DOWN, "the peer closed in the middle of a frame")
        else:
            self._owner.closed(None, "closed")

    # Writing

    def _flush(self) -> None:
        """Write the messages of this turn; when they are few, the next may go without waiting."""
        self._flush_due = False
        self._turn = 0
        frames = len(self._frames)
        self._quiet = frames == 0 or (frames == 1 and not self._quiet)
        if frames:
            self._write()
        if self._held:
            self._held = False
            if not self._paused:
                self._owner.resume()

    def _write(self) -> None:
        transport = self._transport
        frames = self._frames
        self._frames = []
        self._size = 0
        if transport is None or transport.is_closing() or self._in_order:
            return
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        transport.write(data)
        self._written += len(data)
        self._batches.append((self._written, self._given))
        if not self._settle_due:
            self._settle_due = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Tell the owner what the system has taken; look again while it has not taken all."""
        self._settle_due = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        out = self._written - transport.get_write_buffer_size()
        batches, given = self._batches, self._told
        while batches and batches[0][0] <= out:
            given = batches.popleft()[1]
        if given > self._told:
            messages, self._told = given - self._told, given
            self._owner.sent(messages)
        if batches:
            self._settle_due = True
            self._loop.call_later(0.005, self._settle)

    def _is_written(self, transport: asyncio.Transport) -> bool:
        return not self._frames and not transport.get_write_buffer_size()

    # Ending

    def _fail(self, reason: Reason, detail: str) -> None:
        if self._failure is None:
            self._failure = (reason, detail)
        self.abort()

    def _end_lingering(self) -> None:
        """Wait no longer for the peer's goodbye, or for it to read."""
        self._alarm = None
        if self._transport is not None and not self._is_written(self._transport):
            self._failure = (Reason.TRANSPORT_DOWN, "the peer did not read what was left")
        self._drop()

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _give_up_on_silence(self) -> None:
        self._alarm = None
        self._fail(Reason.REFUSED, f"the peer said nothing for {self._limits.greeting:g} s")

    def give_up_on_handshake(self) -> None:
        """Tell the owner that nothing came of it, if there never was a connection."""
        if self._transport is None:
            self._owner.closed(Reason.REFUSED, "there was no TLS handshake")

    def _set_alarm(self, seconds: float, act: Callable[[], None]) -> None:
        self._stop_alarm()
        self._alarm = self._loop.call_later(seconds, act)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


REASONS: Final = {"OB-2": Reason.TOO_LARGE, "AD-6": Reason.NO_ROUTE}
"""Why a message cannot be written, by the rule that it breaks."""


class Refused(asyncio.Protocol):
    """A connection that nobody wants."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End it."""
        cast("asyncio.Transport", transport).abort()


class TcpListener:
    """A listening socket."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.place = place_of(server.sockets[0].getsockname())

    async def close(self) -> None:
        """Accept no more connections; the open ones stay."""
        self._server.close()


class Tcp:
    """TCP in Ockam's format: addresses `tcp#host:port`."""

    type_name: ClassVar[str] = "tcp"

    def __init__(self, *, tls: Tls | None = None, limits: TcpLimits | None = None) -> None:
        self.limits = limits or TcpLimits()
        self._tls = tls

    async def listen(self, place: str, accept: Callable[[], LinkOwner | None]) -> TcpListener:
        """Listen; port 0 takes a free one."""
        tls = self._tls
        loop = asyncio.get_running_loop()

        def link() -> asyncio.Protocol:
            owner = accept()
            if owner is None:
                return Refused()
            made = TcpLink(owner, self.limits)
            if tls is not None:  # nobody tells when a handshake fails
                loop.call_later(self.limits.greeting + 1, made.give_up_on_handshake)
            return made

        context = tls.for_listener() if tls else None
        limits = self.limits
        server = await open_listener(
            link, place, backlog=limits.backlog, tls=context, handshake=limits.greeting
        )
        return TcpListener(server)

    async def dial(self, places: Sequence[str], owner: LinkOwner) -> Link:
        """Connect to the first of these places that answers."""
        tls = self._tls
        async with within(self.limits.dial, places):
            found, host = await race([parse_place(place) for place in places])
            try:
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: TcpLink(owner, self.limits),
                    sock=found,
                    ssl=tls.for_dialler() if tls else None,
                    server_hostname=(tls.name or host) if tls else None,
                    ssl_handshake_timeout=self.limits.greeting if tls else None,
                )
            except BaseException:
                found.close()
                raise
        return link


@asynccontextmanager
async def within(seconds: float, places: Sequence[str]) -> AsyncIterator[None]:
    """Give up on these places after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        where = ", ".join(places)
        raise TimeoutError(f"{where}: no answer within {seconds:g} s") from None


async def race(places: Sequence[tuple[str, int]]) -> tuple[socket.socket, str]:
    """The first socket that connects, and the host it leads to; later ones start a little later."""
    loop = asyncio.get_running_loop()
    attempts: list[asyncio.Task[tuple[socket.socket, str]]] = []
    errors: list[str] = []
    try:
        waiting: set[asyncio.Task[tuple[socket.socket, str]]] = set()
        queue = [candidate for place in places for candidate in await _resolve(place, errors)]
        while queue or waiting:
            if queue:
                attempt = loop.create_task(_connect(*queue.pop(0)))
                attempts.append(attempt)
                waiting.add(attempt)
            done, waiting = await asyncio.wait(
                waiting,
                timeout=STAGGER if queue else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in done:
                if (error := attempt.exception()) is None:
                    attempts.remove(attempt)
                    return attempt.result()
                errors.append(str(error))
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_let_go)
    raise ConnectionError("; ".join(errors) or "there is no place to connect to")


async def _resolve(
    place: tuple[str, int], errors: list[str]
) -> list[tuple[int, tuple[object, ...], str]]:
    host, port = place
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # the latter from names that no resolver takes
        errors.append(f"{host}: {error}")
        return []
    return [(family, address, host) for family, _, _, _, address in found]


async def _connect(
    family: int, address: tuple[object, ...], host: str
) -> tuple[socket.socket, str]:
    fresh = socket.socket(family, socket.SOCK_STREAM)
    try:
        fresh.setblocking(False)
        await asyncio.get_running_loop().sock_connect(fresh, address)
    except OSError as error:
        fresh.close()
        raise ConnectionError(f"{place_of(address)}: {reason_of(error)}") from error
    except BaseException:
        fresh.close()
        raise
    return fresh, host


def _let_go(attempt: asyncio.Task[tuple[socket.socket, str]]) -> None:
    """Close what a late winner brings."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result()[0].close()
