"""Messages that are there in part: how much of them is held, for how long, and of whom."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.node.live import QUICK, RawPeer, raw_listener, runs_on_every_loop
from waystation.core.budget import Account
from waystation.core.outcome import Reason
from waystation.node import Node
from waystation.testing import Recorder, async_test, echo, until
from waystation.transports.http import Http, HttpLimits
from waystation.transports.tcp import Tcp, TcpLimits
from waystation.transports.transport import Transport
from waystation.transports.udp import Udp
from waystation.transports.websocket import WebSocket, WebSocketLimits
from waystation.wire.ockam import PREFACE

SECRET = b"secret"
LARGE = 15_000_000
PEERS = 60
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
OPENINGS = {"tcp": PREFACE, "ws": UPGRADE}
BEGUN = {
    "tcp": LARGE.to_bytes(4, "big"),
    "ws": b"\x82\xff" + LARGE.to_bytes(8, "big") + bytes(4),
}
"""The head of a message of 15 MB."""

MAKERS: dict[str, Callable[[], Transport]] = {
    "tcp": Tcp,
    "ws": WebSocket,
    "http": Http,
    "udp": Udp,
}


def _limited(kind: str, **limits: Any) -> Transport:
    if kind == "tcp":
        return Tcp(limits=TcpLimits(**limits))
    return WebSocket(limits=WebSocketLimits(**limits))


@asynccontextmanager
async def listening(
    kind: str, transport: Transport, token: bytes | None = None
) -> AsyncIterator[tuple[Node, str]]:
    async with Node("server", transports=[transport], limits=QUICK, token=token) as node:
        echo(node)
        found = await node.listen(f"{kind}://127.0.0.1:0")
        yield node, found.place


async def served(kind: str, place: str, size: int = 5, token: bytes | None = None) -> None:
    """An honest node gets its answer."""
    async with Node("honest", transports=[MAKERS[kind]()], limits=QUICK, token=token) as honest:
        answer = await honest.request(f"{kind}#{place} => echo", bytes(size), timeout=30)
        assert answer.payload == bytes(size)


async def speak(kind: str, place: str, said: bytes = b"") -> RawPeer:
    """A peer that speaks the format, and then says something."""
    peer = await RawPeer.dial(place, OPENINGS[kind])
    if kind == "ws":
        await peer.reader.readuntil(b"\r\n\r\n")
    peer.say(said)
    return peer


async def pour(peer: RawPeer, size: int) -> None:
    """Say as much as is taken, up to a size."""
    with contextlib.suppress(OSError, TimeoutError):
        for _ in range(size // 65536):
            peer.say(bytes(65536))
            async with asyncio.timeout(2):
                await peer.writer.drain()


# --- Before a peer is admitted --------------------------------------------------------------------


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("kind", MAKERS)
@runs_on_every_loop
async def test_a_large_message_may_come_right_behind_the_proof(kind: str) -> None:
    async with listening(kind, MAKERS[kind](), SECRET) as (_, place):
        await served(kind, place, size=200_000, token=SECRET)


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("kind", OPENINGS)
@async_test
async def test_sixty_half_messages_before_the_token_was_proven_hold_next_to_nothing(
    kind: str,
) -> None:
    async with listening(kind, MAKERS[kind](), SECRET) as (node, place):
        await served(kind, place, token=SECRET)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            peers = [await speak(kind, place, BEGUN[kind]) for _ in range(PEERS)]
            for peer in peers:
                await pour(peer, 1 << 20)
            await served(kind, place, token=SECRET)
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert held < PEERS * 256 * 1024  # with what both sides need for a connection
        await until(lambda: not node.sessions)
        for peer in peers:
            peer.close()


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("kind", OPENINGS)
@async_test
async def test_a_length_that_is_announced_is_refused_at_once(kind: str) -> None:
    async with listening(kind, MAKERS[kind](), SECRET) as (node, place):
        journal = Recorder(node)
        peer = await speak(kind, place, BEGUN[kind])
        await until(lambda: any(event.reason is Reason.TOO_LARGE for event in journal.sessions))
        peer.close()


@pytest.mark.rule("FL-2")
@async_test
async def test_an_endless_handshake_is_refused() -> None:
    async with listening("ws", WebSocket()) as (node, place):
        peer = await RawPeer.dial(place, UPGRADE[:-2])
        for number in range(20):
            peer.say(b"X-%d: " % number + b"x" * 8000 + b"\r\n")
        await peer.ended()
        await until(lambda: not node.sessions)
        await served("ws", place)


@pytest.mark.rule("FL-2")
@async_test
async def test_a_body_of_frames_is_small_until_its_client_is_admitted() -> None:
    async with listening("http", Http(limits=HttpLimits(frame=1 << 20)), SECRET) as (_, place):
        opened = await RawPeer.dial(
            place, b"POST /channels HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        )
        head = await opened.reader.readuntil(b"\r\n\r\n")
        path = head.lower().partition(b"location: ")[2].partition(b"\r\n")[0]
        path = head[head.lower().index(path) :][: len(path)]
        opened.close()
        for length in (b"Content-Length: 500000", b"Transfer-Encoding: chunked"):
            peer = await RawPeer.dial(
                place,
                b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
                b"Content-Type: application/octet-stream\r\n\r\n" % (path, length),
            )
            chunk = (400_000).to_bytes(4, "big") + bytes(99_996)
            peer.say(b"186a0\r\n%b\r\n" % chunk if b"chunked" in length else chunk)
            assert (await peer.reader.readline()).startswith(b"HTTP/1.1 413")
            peer.close()
        await served("http", place, token=SECRET)


# --- A message that has begun ---------------------------------------------------------------------


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("kind", OPENINGS)
@async_test
async def test_a_head_alone_has_begun_a_message(kind: str) -> None:
    async with listening(kind, _limited(kind, finish=0.3)) as (node, place):
        peer = await speak(kind, place, BEGUN[kind])
        await peer.ended()
        await until(lambda: not node.sessions)


@pytest.mark.rule("FL-2")
@async_test
async def test_neither_fragments_nor_pings_give_a_message_more_time() -> None:
    async with listening("ws", _limited("ws", finish=0.5)) as (node, place):
        peer = await speak("ws", place, b"\x02\x81" + bytes(5))
        ended = asyncio.ensure_future(peer.ended())
        while not ended.done():
            with contextlib.suppress(OSError):
                peer.say(b"\x00\x81" + bytes(5) + b"\x89\x80" + bytes(4))
            await asyncio.sleep(0.02)
        await ended
        await until(lambda: not node.sessions)
        await served("ws", place)


@pytest.mark.rule("FL-2")
@runs_on_every_loop
async def test_a_hub_that_stops_in_a_message_is_left() -> None:
    async def half(peer: RawPeer) -> None:
        peer.say(PREFACE + BEGUN["tcp"] + bytes(100))
        await asyncio.Event().wait()

    async with raw_listener(half) as place:
        transport = Tcp(limits=TcpLimits(finish=0.3))
        async with Node("leaf", transports=[transport], limits=QUICK) as leaf:
            journal = Recorder(leaf)
            await leaf.connect(f"tcp://{place}", keep=False)
            await until(lambda: any("unfinished" in event.detail for event in journal.sessions))


@pytest.mark.rule("FL-2")
@pytest.mark.parametrize("kind", OPENINGS)
@async_test
async def test_a_peer_that_is_between_two_messages_has_begun_none(kind: str) -> None:
    async with (
        listening(kind, _limited(kind, finish=0.2)) as (node, place),
        Node("idle", transports=[MAKERS[kind]()], limits=QUICK) as idle,
    ):
        session = await idle.connect(f"{kind}://{place}", keep=False)
        for _ in range(3):
            answer = await idle.request(f"{session.name} => echo", bytes(300_000), timeout=30)
            assert len(answer.payload) == 300_000
            assert [each._link.unfinished for each in node.sessions] == [0]  # type: ignore[union-attr]
            await asyncio.sleep(0.5)
        assert session.is_open


# --- All of them together -------------------------------------------------------------------------


@pytest.mark.rule("FL-1")
@pytest.mark.parametrize("kind", OPENINGS)
@async_test
async def test_half_messages_of_admitted_peers_hold_no_more_than_the_limit(kind: str) -> None:
    limit = 8 << 20
    async with listening(kind, _limited(kind, input=limit)) as (node, place):
        await served(kind, place)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            peers = [await speak(kind, place, BEGUN[kind]) for _ in range(20)]
            for peer in peers:
                await pour(peer, 1 << 20)
            await served(kind, place)
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert held < 2 * limit
        assert 0 < len(node.sessions) < 20
        for peer in peers:
            peer.close()
        await until(lambda: not node.sessions)


@pytest.mark.rule("FL-1")
@pytest.mark.parametrize("kind", OPENINGS)
@async_test
async def test_a_session_is_told_what_its_link_holds(kind: str) -> None:
    async with listening(kind, MAKERS[kind]()) as (node, place):
        account = Account(1 << 30)
        idle = await speak(kind, place)
        await until(lambda: node.sessions)
        (session,) = node.sessions
        session._link.account = account  # type: ignore[union-attr]
        idle.say(BEGUN[kind] + bytes(100_000))
        await until(lambda: account.used >= 100_000)
        idle.reset()
        await until(lambda: not node.sessions)
        assert account.used == 0
