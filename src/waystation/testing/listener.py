"""Checks of a listener against peers that misbehave in bytes, whatever it speaks.

    await check_listener(ListenerCase(start=..., serve=..., opening=PREFACE, frame=...))

The kit knows no format: a `ListenerCase` says how to start the listener, what an honest client
does, and what a peer says first and then. From these the hostile peers are made: they are silent,
stop in mid-frame, send garbage, flood, never read, and leave in every state. Each check ends with
the honest client, which must still be served.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final, TypeAlias

from msgspec import Struct

from waystation.net.streams import open_stream
from waystation.testing.checks import Conformance, require, run_checks
from waystation.testing.waiting import until

UNADMITTED: Final = 64 * 1024
"""Bytes that a listener may hold of a peer that it has not admitted (FL-2)."""

UNREAD: Final = 32 * 1024 * 1024
"""Bytes of requests after which a peer that reads no answer must have been held back."""

FLOOD: Final = 5_000
"""This many requests are a flood, or 64 KiB of them if they are small."""

_GARBAGE: Final = bytes(range(256)) * 16
_SLACK: Final = 256 * 1024  # bytes that a connection itself may take, on both sides


class StartedListener(Struct, frozen=True):
    """Where a listener is, and whether nothing is left of former clients."""

    place: str
    is_idle: Callable[[], bool] = lambda: True


class ListenerCase(Struct, frozen=True, kw_only=True):
    """A listener to check, and what one has to know of its format.

    `start` runs it, with deadlines of a second or so. `serve` acts as a client that does nothing
    wrong, and raises if it is not served. `opening` is what a client says first, and `frame` one
    message that the listener replies to. A client waits for the `reply` to its opening, if there is
    one, before it says more. `begun` is what a peer that is not admitted may say, from its first
    byte on, to begin a message of 15 MB; leave it empty where that cannot be. A peer that must be
    disconnected has to be so within `seconds`.
    """

    start: Callable[[], AbstractAsyncContextManager[StartedListener]]
    serve: Callable[[str], Awaitable[None]]
    opening: bytes
    frame: bytes
    reply: bytes = b""
    begun: bytes = b""
    seconds: float = 15.0


class _Peer:
    """A TCP connection whose bytes the check chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def open(self, case: ListenerCase, said: bytes) -> None:
        """Say something from the first byte on, and wait for the reply to a whole opening."""
        if case.reply and said.startswith(case.opening):
            self._writer.write(case.opening)
            said = said[len(case.opening) :]
            async with asyncio.timeout(case.seconds):
                await self._reader.readuntil(case.reply)
        self._writer.write(said)

    async def say(self, data: bytes, seconds: float) -> bool:
        """Say more; False if the listener does not take it in time, or has ended the connection."""
        self._writer.write(data)
        try:
            async with asyncio.timeout(seconds):
                await self._writer.drain()
        except (TimeoutError, OSError):
            return False
        return not self._writer.transport.is_closing()

    async def read_to_the_end(self, seconds: float) -> bool:
        """Whether the listener ends the connection in time; what it says is ignored."""
        try:
            async with asyncio.timeout(seconds):
                while await self._reader.read(65536):
                    pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    async def read_on(self) -> None:
        """Read and ignore what the listener says."""
        with suppress(OSError):
            while await self._reader.read(65536):
                pass

    async def leave(self, *, in_order: bool = False) -> None:
        """End the connection, in order or without a word."""
        if in_order:
            self._writer.close()
        else:
            self._writer.transport.abort()
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)


@asynccontextmanager
async def _peer(case: ListenerCase, place: str, said: bytes = b"") -> AsyncIterator[_Peer]:
    """A connection on which something was said already; it is ended at the end."""
    peer = _Peer(*await open_stream(place))
    try:
        await peer.open(case, said)
        yield peer
    finally:
        await peer.leave()


async def check_listener(
    case: ListenerCase,
    *,
    checks: Mapping[str, ListenerCheck] | None = None,
    time_factor: float = 1.0,
) -> Conformance:
    """Check a listener against hostile peers; raises NotConformingError."""
    return await run_checks(LISTENER_CHECKS if checks is None else checks, case, time_factor)


async def _must_end(case: ListenerCase, said: bytes, what: str) -> None:
    """Check that a peer that says this and no more is disconnected, and that others are served."""
    async with case.start() as listener:
        async with _peer(case, listener.place, said) as peer:
            await case.serve(listener.place)
            ended = await peer.read_to_the_end(case.seconds)
            require(ended, f"{what} keeps its connection for more than {case.seconds:g} s")
        await until(listener.is_idle)
        await case.serve(listener.place)


async def _ends_a_silent_connection(case: ListenerCase) -> None:
    await _must_end(case, b"", "a peer that says nothing")


async def _ends_half_an_opening(case: ListenerCase) -> None:
    if len(case.opening) > 1:
        await _must_end(case, case.opening[:-1], "a peer that stops in its opening")


async def _ends_half_a_frame(case: ListenerCase) -> None:
    await _must_end(case, case.opening + case.frame[:-1], "a peer that stops in a frame")


async def _survives_garbage(case: ListenerCase) -> None:
    whole = case.opening + case.frame
    half_a_frame = whole[: len(case.opening) + len(case.frame) // 2]
    async with case.start() as listener:
        for before in (b"", case.opening, half_a_frame, whole):
            async with _peer(case, listener.place, before + _GARBAGE):
                await case.serve(listener.place)
        await until(listener.is_idle)
        await case.serve(listener.place)


async def _survives_a_flood(case: ListenerCase) -> None:
    async with case.start() as listener:
        async with _peer(case, listener.place, case.opening) as peer:
            reading = asyncio.ensure_future(peer.read_on())
            many = _many(case)
            for _ in range(1 + FLOOD * len(case.frame) // len(many)):
                if not await peer.say(many, case.seconds):
                    break
            await case.serve(listener.place)
        await reading
        await until(listener.is_idle)


async def _holds_back_a_peer_that_never_reads(case: ListenerCase) -> None:
    async with case.start() as listener:
        async with _peer(case, listener.place, case.opening) as peer:
            many, said = _many(case), 0
            while said < UNREAD and await peer.say(many, 1.0):
                said += len(many)
            require(said < UNREAD, f"{said} bytes were taken from a peer that reads no answer")
            await case.serve(listener.place)
        await until(listener.is_idle)


async def _survives_a_close_in_every_state(case: ListenerCase) -> None:
    whole = case.opening + case.frame
    ends = {0, 1, len(case.opening) // 2, len(case.opening), len(whole) - 1, len(whole)}
    async with case.start() as listener:
        for said in (whole[:end] for end in sorted(ends)):
            async with _peer(case, listener.place, said) as peer:
                await peer.leave(in_order=True)
            async with _peer(case, listener.place, said):
                pass
            async with _peer(case, listener.place, said):
                await case.serve(listener.place)  # by now the listener has read it
        await until(listener.is_idle)
        await case.serve(listener.place)


async def _holds_little_of_a_peer_that_is_not_admitted(case: ListenerCase) -> None:
    if not case.begun:
        return
    async with case.start() as listener, AsyncExitStack() as stack:
        await case.serve(listener.place)
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        before = tracemalloc.get_traced_memory()[0]
        peers = [
            await stack.enter_async_context(_peer(case, listener.place, case.begun))
            for _ in range(4)
        ]
        for peer in peers:
            for _ in range(32):
                if not await peer.say(bytes(32 * 1024), 0.2):
                    break
        await case.serve(listener.place)
        held = tracemalloc.get_traced_memory()[0] - before
        most = len(peers) * (UNADMITTED + _SLACK)
        require(held <= most, f"{held} bytes are held of {len(peers)} peers, more than {most}")


def _many(case: ListenerCase) -> bytes:
    """So many frames that they make up 64 KiB."""
    return case.frame * (64 * 1024 // len(case.frame) + 1)


ListenerCheck: TypeAlias = Callable[[ListenerCase], Awaitable[None]]

LISTENER_CHECKS: Final[dict[str, ListenerCheck]] = {
    "ends a silent connection": _ends_a_silent_connection,
    "ends half an opening": _ends_half_an_opening,
    "ends half a frame": _ends_half_a_frame,
    "survives garbage": _survives_garbage,
    "survives a flood": _survives_a_flood,
    "holds back a peer that never reads": _holds_back_a_peer_that_never_reads,
    "survives a close in every state": _survives_a_close_in_every_state,
    "holds little of a peer that is not admitted": _holds_little_of_a_peer_that_is_not_admitted,
}
"""Every check of a listener by its name."""
