"""HTTP behind net.Server: its limits, its deadlines, and whatever a client does wrong."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn.protocols.http.h11_impl
from uvicorn.config import Config
from uvicorn.server import ServerState

from tests.net.test_server import no_descriptors_left
from tests.node.live import RawPeer, runs_on_every_loop
from tests.transports.certificates import authority
from waystation.net.asgi import HttpServer, Receive, Scope, Send
from waystation.net.connection import ConnectionLimits
from waystation.net.server import ServerLimits
from waystation.net.tls import Tls
from waystation.testing import settle, until

LOG = logging.getLogger("waystation.test")
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
GET = HEAD + b"\r\n"
HASTY = 0.2
LARGE = 8 * 1024 * 1024


class Site:
    """Clients, and an application that answers by path: at once, with much, late, or never."""

    def __init__(self) -> None:
        self.requests = 0
        self.disconnected = 0
        self.place = ""
        self.peers: list[RawPeer] = []

    async def dial(self, first: bytes, room: int | None = None) -> RawPeer:
        self.peers.append(await RawPeer.dial(self.place, first, room=room))
        return self.peers[-1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        path = scope["path"]
        if path == "/body":
            while (await receive()).get("more_body"):
                pass
        elif path == "/never":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.disconnected += 1
            return
        elif path == "/broken":
            raise ValueError(path)
        body = bytes(LARGE) if path == "/large" else b"hello"
        length = [] if path == "/endless" else [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        if path == "/endless":
            while scope["state"]["connection"].is_open:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0.01)
            self.disconnected += 1
            return
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(
    head: float = 10.0,
    *,
    connections: int = 100,
    busy: int | None = None,
    keep: float = 60.0,
    linger: float = 0.2,
    tls: Tls | None = None,
) -> AsyncIterator[tuple[HttpServer, Site]]:
    site = Site()
    server = HttpServer(
        site,
        limits=ServerLimits(connections=connections, handshake=head),
        connection_limits=ConnectionLimits(first_byte=head, frame=head, linger=linger),
        body=head,
        busy=busy,
        keep=keep,
        tls=tls,
        log=LOG,
    )
    await server.start("127.0.0.1:0")
    site.place = server.place
    try:
        yield server, site
    finally:
        for peer in site.peers:
            peer.writer.transport.abort()
        await server.drain(0.1)
        await until(lambda: not server.connections)
        await settle()


async def answer(peer: RawPeer) -> bytes:
    """The status of the next answer, whose body is `hello`."""
    status = await peer.reader.readline()
    await peer.reader.readuntil(b"hello")
    return status.split(b" ")[1]


async def works(site: Site) -> None:
    """An honest client is served."""
    peer = await site.dial(GET)
    assert await answer(peer) == b"200"
    peer.close()


@runs_on_every_loop
async def test_requests_are_answered_one_after_the_other_on_one_connection() -> None:
    async with serving() as (server, site):
        peer = await site.dial(GET)
        assert await answer(peer) == b"200"
        peer.say(GET + GET)  # and two at once
        assert [await answer(peer), await answer(peer)] == [b"200", b"200"]
        assert (site.requests, len(server.connections)) == (3, 1)
        peer.close()


@runs_on_every_loop
async def test_an_answer_says_the_date_and_names_no_server() -> None:
    async with serving() as (_, site):
        peer = await site.dial(GET)
        head = (await peer.reader.readuntil(b"\r\n\r\n")).lower()
        assert b"\ndate: " in head
        assert b"server:" not in head
        peer.close()


SLOW = {
    "silence": b"",
    "half a line": b"GET / HT",
    "half a head": HEAD,
    "half a body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1234",
    "half a head after an answer": GET + HEAD,
    "half a body after an answer": GET + b"POST / HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 9\r\n\r\n1234",
}


@pytest.mark.parametrize("said", SLOW)
@runs_on_every_loop
async def test_a_request_that_is_never_finished_ends_its_connection_alone(said: str) -> None:
    async with serving(HASTY) as (server, site):
        peer = await site.dial(b"")
        for part in SLOW[said].partition(GET)[1:] if GET in SLOW[said] else (SLOW[said],):
            peer.say(part)
            await settle()
        await peer.ended()
        await until(lambda: not server.connections)
        await works(site)


@runs_on_every_loop
async def test_headers_that_drip_end_in_time() -> None:
    async with serving(HASTY) as (server, site):
        peer = await site.dial(HEAD)
        await until(lambda: server.connections)
        while server.connections:
            if not peer.writer.is_closing():
                peer.say(b"X: y\r\n")
            await asyncio.sleep(0.01)
        assert site.requests == 0


GARBAGE = {
    "no HTTP": b"\x16\x03\x01\x02\x00 this is TLS\r\n\r\n",
    "a head that is too long": HEAD + b"X: " + b"y" * 200_000,
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": HEAD + b"Host: other\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
}


@pytest.mark.parametrize("said", GARBAGE)
@runs_on_every_loop
async def test_what_is_no_http_is_answered_and_logged_once(
    said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(HASTY) as (_, site):
        for _ in range(5):
            peer = await site.dial(GARBAGE[said])
            assert (await peer.reader.readline()).startswith(b"HTTP/1.1 400")
            await peer.ended()
        assert site.requests == 0
        logged = [text for text in caplog.messages if "invalid HTTP request" in text]
        assert len(logged) == 1
        await works(site)


CHUNKED = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"/", b"/body", b"/never", b"/endless"])
@runs_on_every_loop
async def test_garbage_in_a_body_raises_nowhere(path: bytes) -> None:
    async with serving(HASTY) as (server, site):
        peer = await site.dial(CHUNKED % path)
        await until(lambda: site.requests)
        await settle()
        peer.say(b"no chunk\r\n" * 10)
        await peer.ended()
        await until(lambda: not server.connections)
        await works(site)


@runs_on_every_loop
async def test_bytes_after_a_request_that_asks_for_another_protocol_harm_nobody() -> None:
    async with serving(HASTY) as (_, site):
        peer = await site.dial(
            HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + bytes(99)
        )
        assert await answer(peer) == b"200"
        peer.say(bytes(999))
        await peer.ended()
        await works(site)


@pytest.mark.parametrize("path", [b"/never", b"/endless", b"/large", b"/body"])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@runs_on_every_loop
async def test_a_client_may_leave_in_every_state(path: bytes, how: str) -> None:
    async with serving() as (server, site):
        peer = await site.dial(CHUNKED % path)
        await until(lambda: site.requests)
        if how == "half-close":
            peer.writer.write_eof()
        else:
            getattr(peer, how)()
        await until(lambda: not server.connections)
        await until(lambda: path not in (b"/never", b"/endless") or site.disconnected)
        await works(site)


@runs_on_every_loop
async def test_a_client_that_never_reads_is_ended() -> None:
    async with serving(keep=0.1, linger=0.1) as (server, site):
        peer = await site.dial(GET.replace(b" / ", b" /large "), room=4096)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: site.requests)
        await until(lambda: not server.connections)
        peer.reset()


@runs_on_every_loop
async def test_a_flood_of_connections_is_refused_and_leaves_room_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(0.3, connections=5) as (server, site):
        flood = [await site.dial(b"GET ") for _ in range(30)]
        await until(lambda: server.refused["connections"] == 25)
        assert len(server.connections) <= 5
        for peer in flood:
            await peer.ended()
        assert len([r for r in caplog.records if "over the limit" in r.getMessage()]) == 1
        await works(site)


@runs_on_every_loop
async def test_a_busy_server_says_so() -> None:
    async with serving(busy=2) as (server, site):
        first = await site.dial(GET)
        assert await answer(first) == b"200"
        second = await site.dial(GET)
        assert b" 503 " in await second.reader.readline()
        await second.ended()
        first.close()
        await until(lambda: not server.connections)
        await works(site)


@runs_on_every_loop
async def test_handshakes_that_fail_are_counted_and_silent_ones_end() -> None:
    async with serving(HASTY, tls=authority().tls("127.0.0.1")) as (server, site):
        silent = await site.dial(b"")
        garbage = await site.dial(GET)
        await until(lambda: server.refused["tls"] == 1)
        await garbage.ended()
        await silent.ended()
        assert not server.connections


@runs_on_every_loop
async def test_a_lack_of_descriptors_is_logged_and_passes(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(HASTY) as (_, site):
        with no_descriptors_left():
            await until(lambda: "out of file descriptors" in caplog.text)
        await works(site)


@runs_on_every_loop
async def test_a_draining_server_answers_what_was_asked_and_ends_the_rest() -> None:
    async with serving(HASTY) as (server, site):
        idle = await site.dial(GET)
        assert await answer(idle) == b"200"
        stuck = await site.dial(GET.replace(b" / ", b" /never "))
        slow = await site.dial(CHUNKED % b"/body")
        await until(lambda: site.requests == 3)
        draining = asyncio.ensure_future(server.drain(5.0))
        await idle.ended()
        slow.say(b"0\r\n\r\n")
        assert await answer(slow) == b"200"
        await slow.ended()
        stuck.reset()
        await draining
        assert site.disconnected == 1


@pytest.mark.parametrize("said", [*SLOW.values(), *GARBAGE.values()], ids=[*SLOW, *GARBAGE])
@runs_on_every_loop
async def test_a_server_can_stop_in_every_state_of_a_client(said: bytes) -> None:
    async with serving() as (server, site):
        peer = await site.dial(said)
        await until(lambda: server.connections)
        await settle()
        server.stop()
        server.stop()
        peer.writer.transport.abort()
        await until(lambda: not server.connections)


@runs_on_every_loop
async def test_an_application_that_fails_is_logged_and_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as (_, site):
        peer = await site.dial(GET.replace(b" / ", b" /broken "))
        assert b" 500 " in await peer.reader.readline()
        await peer.ended()
        assert "Exception in ASGI application" in caplog.text


@runs_on_every_loop
async def test_no_path_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as (_, site):
        peer = await site.dial(GET.replace(b" / ", b" /secret "))
        await answer(peer)
        peer.close()
    assert "connected" in caplog.text
    assert "secret" not in caplog.text


# --- What net/asgi.py needs of uvicorn ------------------------------------------------------------


class _Wire:
    """What a protocol of uvicorn may do with its transport: what `net` gives it, and no more."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default


@runs_on_every_loop
async def test_uvicorn_is_as_this_server_needs_it() -> None:
    config = Config(
        Site(), interface="asgi3", http="h11", ws="none", lifespan="off", log_config=None
    )
    config.load()
    made: Any = config.http_protocol_class
    assert made is uvicorn.protocols.http.h11_impl.H11Protocol
    needed = {"config", "server_state", "app_state"}
    assert needed <= set(inspect.signature(made).parameters), "how uvicorn makes its protocols"
    state = ServerState()
    assert state.default_headers == []
    assert state.tasks == set()
    protocol: Any = made(config=config, server_state=state, app_state={"connection": 7})
    for name in ("logger", "access_log", "conn"):
        assert hasattr(protocol, name), f"uvicorn's protocol has no {name} any more"
    wire = _Wire()
    protocol.connection_made(wire)
    protocol.data_received(GET)
    await until(lambda: b"hello" in wire.written)
    protocol.pause_writing()
    protocol.resume_writing()
    protocol.shutdown()
    assert wire.closed, "uvicorn's shutdown does not close an idle connection any more"
    protocol.connection_lost(None)
