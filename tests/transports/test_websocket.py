"""WebSocket links: the kit, Ockam's format, and everything that a peer can do wrong."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from tests.node.live import (
    LOOPS,
    QUICK,
    RawPeer,
    full_listener,
    nothing_is_left,
    raw_listener,
    runs_on_every_loop,
)
from tests.transports.certificates import authority, stranger
from tests.transports.test_tcp import Notes, message
from waystation.core.address import Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError, UnreachableError
from waystation.net.tls import Tls
from waystation.node import Limits, Node
from waystation.testing import (
    DEADLINE,
    Recorder,
    async_test,
    check_transport,
    collect,
    conformance,
    echo,
    run_checked,
    settle,
    until,
)
from waystation.transports.tcp import Tcp
from waystation.transports.transport import Transport
from waystation.transports.websocket import WebSocket, WebSocketLimits, parse_websocket_place
from waystation.wire import bare

HOST = "127.0.0.1"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SMALL = WebSocketLimits(frame=2 * 1024 * 1024, unsent=64 * 1024)
HASTY = WebSocketLimits(frame=10_000, greeting=1.0, dial=5.0, linger=0.5)


def _plain() -> Transport:
    return WebSocket(limits=SMALL)


def _encrypted() -> Transport:
    return WebSocket(tls=authority().tls(HOST, mutual=True), limits=SMALL)


@pytest.mark.rule("WK-10")
@pytest.mark.rule("WK-8")
@pytest.mark.parametrize(
    ("make", "loop"), [(_plain, "asyncio"), (_plain, "uvloop"), (_encrypted, "uvloop")]
)
def test_websocket_passes_the_kit(make: Callable[[], Transport], loop: str) -> None:
    async def scenario() -> None:
        result = await check_transport(make, f"ws://{HOST}:0", too_large=3 * 1024 * 1024)
        assert result.passed == tuple(conformance.CHECKS)

    run_checked(scenario, LOOPS[loop], seconds=110)


@asynccontextmanager
async def hub(
    limits: WebSocketLimits = HASTY, path: str = "", node_limits: Limits = QUICK, **options: object
) -> AsyncIterator[tuple[Node, Recorder, str]]:
    """A node with an echo that listens for WebSockets, what it tells, and its place."""
    transport = WebSocket(limits=limits, **options)  # type: ignore[arg-type]
    async with Node("hub", transports=[Tcp(), transport], limits=node_limits) as node:
        journal = Recorder(node)
        echo(node)
        listening = await node.listen(f"ws://{HOST}:0{path}")
        yield node, journal, listening.place


async def serves_an_honest_peer(place: str) -> None:
    async with Node("honest", transports=[WebSocket()], limits=QUICK) as honest:
        answer = await honest.request(f"ws#{place} => echo", b"well?", timeout=DEADLINE)
        assert answer.payload == b"well?"


def body(route: str, payload: bytes) -> bytes:
    return bare.encode(Message(Route.parse(route), Route.parse("app"), payload))


async def hear(peer: ClientConnection | ServerConnection) -> Message:
    """The next message that is not for the session itself."""
    async with asyncio.timeout(DEADLINE):
        while True:
            data = await peer.recv()
            assert isinstance(data, bytes)
            found = bare.decode(data)
            if found.onward_route.addresses:
                return found


async def ended(peer: ClientConnection) -> int:
    """The code with which the node ended the connection."""
    async with asyncio.timeout(DEADLINE):
        try:
            while True:
                await peer.recv()
        except ConnectionClosed as closed:
            return 1006 if closed.rcvd is None else closed.rcvd.code


# --- The format -----------------------------------------------------------------------------------


@runs_on_every_loop
async def test_a_peer_of_another_make_gets_answers_in_ockams_format() -> None:
    async with hub() as (node, journal, place), connect(f"ws://{place}") as peer:
        await peer.send(body("echo", b"hello"))
        answer = await hear(peer)
        assert str(answer.onward_route) == "0#app"
        assert answer.payload == b"hello"
        assert peer.protocol.extensions == []  # no compression
        await peer.close()
        await nothing_is_left(node)
        assert journal.session_events() == [("opened", None), ("closed", None)]


@runs_on_every_loop
async def test_a_peer_of_another_make_can_be_dialled_and_need_not_greet() -> None:
    got: list[Message] = []
    paths: list[str] = []

    async def answer(peer: ServerConnection) -> None:
        assert peer.request is not None
        paths.append(peer.request.path)
        got.append(await hear(peer))
        await peer.send(body("sink", b"answer"))
        await peer.wait_closed()

    async with (
        serve(answer, HOST, 0) as server,
        Node("leaf", transports=[WebSocket()], limits=QUICK) as node,
    ):
        answers = collect(node, "sink")
        port = server.sockets[0].getsockname()[1]
        session = await node.connect(f"ws://{HOST}:{port}/a/b?c=d", name="far")
        await node.send("far => printer", b"hello")
        await until(lambda: answers)
        assert str(got[0].onward_route) == "0#printer"
        assert str(answers[0].return_route) == "0#far => 0#app"
        assert paths == ["/a/b?c=d"]
        assert str(session.place) == f"3#{HOST}:{port}/a/b?c=d"


@runs_on_every_loop
async def test_a_message_may_come_in_fragments_with_pings_between() -> None:
    async with hub() as (_, _, place), connect(f"ws://{place}") as peer:
        whole = body("echo", bytes(3000))
        await peer.send([whole[:1], b"", whole[1:2000], whole[2000:]])
        pong = await peer.ping()
        assert (await hear(peer)).payload == bytes(3000)
        await asyncio.wait_for(pong, DEADLINE)


@runs_on_every_loop
async def test_what_cannot_be_written_has_a_reason_and_harms_nothing() -> None:
    theirs, owner = Notes(b"other"), Notes()
    transport = WebSocket(limits=HASTY)
    listener = await transport.listen(f"{HOST}:0", lambda: theirs)
    link = await transport.dial([listener.place], owner)
    assert link.send(message(bytes(10_000))) is Reason.TOO_LARGE
    assert link.send(Message(Route.parse("link"), Route(), b"")) is Reason.NO_ROUTE
    bad = Message(Route.parse("link => x"), Route(), b"", id="no id")
    assert link.send(bad) is Reason.MALFORMED
    assert link.send(message(b"fine")) is None
    await until(lambda: theirs.messages)
    assert theirs.messages[0].payload == b"fine"
    link.close()
    link.close()
    await until(lambda: owner.end and theirs.end)
    assert owner.end == theirs.end == (None, "closed")
    assert link.send(message()) is None  # too late, and harmless
    link.close()
    await settle()
    await listener.close()


# --- What a peer does wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426 "),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 405 "),
        (UPGRADE.replace(b"13", b"12"), b"HTTP/1.1 400 "),
        (UPGRADE.replace(b"AAAA==", b"A"), b"HTTP/1.1 400 "),
        (UPGRADE.replace(b"GET / ", b"GET /nowhere "), b"HTTP/1.1 404 "),
        (UPGRADE.replace(b"Host", b"Origin: http://evil.example\r\nHost"), b"HTTP/1.1 403 "),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 414 "),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n", b"HTTP/1.1 431 "),
        (b"\x16\x03\x01\x02\x00\x01 a TLS hello\r\n\r\n", b""),
        (b"\x00\x00\x00\n\n\n\n", b""),
    ],
    ids=["plain", "post", "version", "key", "path", "origin", "long", "many", "tls", "binary"],
)
@async_test
async def test_a_request_for_something_else_gets_an_answer_that_helps(
    request_bytes: bytes, status: bytes
) -> None:
    async with hub(path="/here") as (node, journal, place):
        peer = await RawPeer.dial(place.removesuffix("/here"), request_bytes)
        async with asyncio.timeout(DEADLINE):
            answer = await peer.reader.read(65536)
        assert answer.startswith(status)
        await peer.ended()
        await until(journal.session_events)
        assert journal.session_events() == [("refused", "REFUSED")]
        await nothing_is_left(node)
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_a_handshake_that_takes_too_long_is_ended() -> None:
    async with hub() as (node, journal, place):
        slow = await RawPeer.dial(place, UPGRADE[:30])
        silent = await RawPeer.dial(place, b"")
        await slow.ended()
        await silent.ended()
        await until(lambda: len(journal.session_events()) == 2)
        assert journal.session_events() == [("refused", "REFUSED")] * 2
        assert "no WebSocket handshake within 1 s" in journal.sessions[0].detail
        await nothing_is_left(node)


@runs_on_every_loop
async def test_a_peer_that_leaves_before_the_handshake_is_noted() -> None:
    async with hub() as (node, journal, place):
        (await RawPeer.dial(place, UPGRADE[:30])).close()
        (await RawPeer.dial(place, UPGRADE[:30])).reset()
        await until(lambda: len(journal.session_events()) == 2)
        assert {kind for kind, _ in journal.session_events()} == {"refused"}
        await nothing_is_left(node)


@runs_on_every_loop
async def test_a_flood_of_half_open_handshakes_leaves_room_again() -> None:
    limits = WebSocketLimits(handshakes=5, greeting=0.5)
    async with hub(limits) as (node, journal, place):
        flood = [await RawPeer.dial(place, b"GET ") for _ in range(20)]
        await until(lambda: len(journal.session_events()) >= 15)
        assert "the limit of handshakes" in journal.sessions[0].detail
        for peer in flood:
            await peer.ended()
        await until(lambda: len(journal.session_events()) == 20)
        await nothing_is_left(node)
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_no_more_sessions_than_the_limit_and_the_answer_says_so() -> None:
    limits = Limits(sessions=1, heartbeat=0)
    async with hub(node_limits=limits) as (node, journal, place), connect(f"ws://{place}"):
        await until(lambda: len(node.sessions) == 1)
        with pytest.raises(InvalidStatus, match="503"):
            await connect(f"ws://{place}")
        assert ("refused", "REFUSED") in journal.session_events()
        assert len(node.sessions) == 1


FRAMES = {
    "text": (Frame(Opcode.TEXT, b"hello"), 1003, "MALFORMED"),
    "no message": (Frame(Opcode.BINARY, b"\x09"), 1007, "MALFORMED"),
    "empty": (Frame(Opcode.BINARY, b""), 1007, "MALFORMED"),
    "too large": (Frame(Opcode.BINARY, bytes(10_001)), 1009, "TOO_LARGE"),
    "reserved bits": (Frame(Opcode.PONG, b""), 1002, "MALFORMED"),
    "continuation of nothing": (Frame(Opcode.CONT, b"x"), 1002, "MALFORMED"),
    "text in fragments": (Frame(Opcode.TEXT, b"x", fin=False), 1003, "MALFORMED"),
}


@pytest.mark.parametrize("name", FRAMES)
@async_test
async def test_a_wrong_message_ends_the_session_with_a_reason_and_a_code(name: str) -> None:
    frame, code, reason = FRAMES[name]
    data = frame.serialize(mask=True)
    if name == "reserved bits":
        data = bytes((data[0] | 0x70,)) + data[1:]
    async with hub() as (node, journal, place), connect(f"ws://{place}") as peer:
        await peer.send(body("echo", b"before"))
        assert (await hear(peer)).payload == b"before"
        peer.transport.write(data)
        assert await ended(peer) == code
        await nothing_is_left(node)
        assert journal.session_events() == [("opened", None), ("closed", reason)]
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_a_message_that_grows_too_large_in_fragments_is_refused() -> None:
    async with hub() as (node, journal, place), connect(f"ws://{place}") as peer:
        first = Frame(Opcode.BINARY, bytes(6_000), fin=False)
        second = Frame(Opcode.CONT, bytes(6_000), fin=False)
        peer.transport.write(first.serialize(mask=True) + second.serialize(mask=True))
        assert await ended(peer) == 1009
        await nothing_is_left(node)
        assert journal.session_events()[-1] == ("closed", "TOO_LARGE")


@runs_on_every_loop
async def test_what_came_before_the_wrong_message_is_delivered() -> None:
    async with hub() as (node, _, place), connect(f"ws://{place}") as peer:
        got = collect(node, "sink")
        right = Frame(Opcode.BINARY, body("sink", b"right")).serialize(mask=True)
        wrong = Frame(Opcode.TEXT, b"wrong").serialize(mask=True)
        peer.transport.write(right + wrong + right)
        assert await ended(peer) == 1003
        await until(lambda: len(got) == 1)


@runs_on_every_loop
async def test_who_does_not_mask_or_does_not_wait_is_refused() -> None:
    async with hub() as (node, journal, place):
        frame = Frame(Opcode.BINARY, body("echo", b"early"))
        early = await RawPeer.dial(place, UPGRADE + frame.serialize(mask=True))
        await early.ended()
        broken = await RawPeer.dial(place, UPGRADE + frame.serialize(mask=False))
        await broken.ended()
        unmasked = await RawPeer.dial(place, UPGRADE)
        await unmasked.reader.readuntil(b"\r\n\r\n")
        unmasked.say(frame.serialize(mask=False))
        await unmasked.ended()
        await nothing_is_left(node)
        await until(lambda: len(journal.session_events()) == 4)
        assert journal.session_events()[:2] == [("refused", "REFUSED")] * 2
        assert journal.session_events()[2:] == [("opened", None), ("closed", "MALFORMED")]
        assert journal.messages == []


@runs_on_every_loop
async def test_whatever_bytes_come_after_the_handshake_raise_nowhere() -> None:
    chance = random.Random(7)
    async with hub() as (node, journal, place):
        for _ in range(30):
            peer = await RawPeer.dial(place, UPGRADE)
            await peer.reader.readuntil(b"\r\n\r\n")
            peer.say(bytes([0x82]) * chance.randrange(2) + chance.randbytes(chance.randrange(200)))
            peer.writer.write_eof()
            await peer.ended()
        await until(lambda: len(journal.session_events()) == 60)
        await nothing_is_left(node)
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_who_pings_and_does_not_read_gets_no_pile_of_pongs() -> None:
    limits = WebSocketLimits(unsent=16 * 1024)
    async with hub(limits) as (node, _, place):
        peer = await RawPeer.dial(place, UPGRADE, room=2048)
        await peer.reader.readuntil(b"\r\n\r\n")
        await until(lambda: node.sessions)
        (session,) = node.sessions
        link = session._link
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        pings = Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 1000
        for _ in range(40):
            peer.say(pings)
            await asyncio.wait_for(peer.writer.drain(), DEADLINE)
        transport = link.transport  # type: ignore[union-attr]
        assert transport.get_write_buffer_size() < 1024 * 1024
        await serves_an_honest_peer(place)
        peer.reset()


HALVES = {
    "nothing": b"",
    "half a handshake": UPGRADE[:30],
    "a handshake": UPGRADE,
    "half a frame head": UPGRADE + b"\x82",
    "half a frame": UPGRADE + Frame(Opcode.BINARY, bytes(1000)).serialize(mask=True)[:500],
    "half a message": UPGRADE + Frame(Opcode.BINARY, b"x", fin=False).serialize(mask=True),
    "a ping in half a message": UPGRADE
    + Frame(Opcode.BINARY, b"x", fin=False).serialize(mask=True)
    + Frame(Opcode.PING, b"").serialize(mask=True),
    "half a goodbye": UPGRADE + Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True)[:3],
    "a goodbye": UPGRADE + Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True),
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("said", HALVES)
@async_test
async def test_a_peer_may_leave_in_every_state(said: str, how: str) -> None:
    async with hub() as (node, journal, place):
        peer = await RawPeer.dial(place, HALVES[said][: len(UPGRADE)])
        if HALVES[said].startswith(UPGRADE):
            await peer.reader.readuntil(b"\r\n\r\n")
            peer.say(HALVES[said][len(UPGRADE) :])
        await settle()
        getattr(peer, how)()
        await until(
            lambda: (
                journal.session_events()
                and journal.session_events()[-1][0] in ("closed", "refused")
            )
        )
        await nothing_is_left(node)
        assert journal.messages == []
        await serves_an_honest_peer(place)


@pytest.mark.parametrize("said", ["half a frame", "half a message"])
@async_test
async def test_half_a_message_does_not_hold_up_the_end(said: str) -> None:
    async with hub() as (node, _, place):
        peer = await RawPeer.dial(place, UPGRADE)
        await peer.reader.readuntil(b"\r\n\r\n")
        await until(lambda: node.sessions)
        peer.say(HALVES[said][len(UPGRADE) :])
        await settle()
        await asyncio.wait_for(node.sessions[0].close(), DEADLINE)
        await peer.ended()
        await nothing_is_left(node)


# --- How a link ends ------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "reason"), [(1000, None), (1001, None), (1011, "TRANSPORT_DOWN")])
@runs_on_every_loop
async def test_the_peers_goodbye_is_told(code: int, reason: str | None) -> None:
    async with hub() as (node, journal, place), connect(f"ws://{place}") as peer:
        await until(lambda: node.sessions)
        await peer.close(code, "because")
        await nothing_is_left(node)
        assert journal.session_events()[-1] == ("closed", reason)
        assert reason is None or "because" in journal.sessions[-1].detail


@runs_on_every_loop
async def test_an_end_without_a_goodbye_is_a_loss() -> None:
    async with hub() as (node, journal, place):
        peer = await RawPeer.dial(place, UPGRADE)
        await peer.reader.readuntil(b"\r\n\r\n")
        await until(lambda: node.sessions)
        peer.close()
        await nothing_is_left(node)
        assert journal.session_events()[-1] == ("closed", "TRANSPORT_DOWN")


@runs_on_every_loop
async def test_a_listeners_goodbye_ends_the_diallers_link_in_order() -> None:
    async def leave(peer: ServerConnection) -> None:
        await peer.send(body("sink", b"last"))
        await peer.close()

    async with serve(leave, HOST, 0) as server:
        owner = Notes()
        place = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        link = await WebSocket(limits=HASTY).dial([place], owner)
        await until(lambda: owner.end)
        assert owner.end == (None, "closed")
        assert [m.payload for m in owner.messages] == [b"last"]
        link.abort()


@runs_on_every_loop
async def test_a_peer_that_never_answers_the_goodbye_is_left() -> None:
    async with hub() as (node, _, place):
        peer = await RawPeer.dial(place, UPGRADE)
        await peer.reader.readuntil(b"\r\n\r\n")
        await until(lambda: node.sessions)
        await asyncio.wait_for(node.sessions[0].close(), DEADLINE)
        assert node.sessions == []
        await peer.ended()


# --- Dialling -------------------------------------------------------------------------------------


async def _says(answer: bytes, peer: RawPeer) -> None:
    await peer.reader.readuntil(b"\r\n\r\n")
    peer.say(answer)
    peer.writer.write_eof()
    await peer.reader.read()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP 404"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "Connection"),
        (b"SSH-2.0-OpenSSH\r\n", "HTTP"),
        (b"", "handshake"),
    ],
    ids=["404", "no upgrade", "no HTTP", "nothing"],
)
@async_test
async def test_a_dialler_says_what_the_other_end_is_not(answer: bytes, problem: str) -> None:
    async with raw_listener(lambda peer: _says(answer, peer)) as place:
        owner = Notes()
        with pytest.raises(ConnectionError, match=problem) as caught:
            await WebSocket(limits=HASTY).dial([place], owner)
        assert place in str(caught.value)
        await settle()
        assert (owner.told, owner.end) == ([], None)


@runs_on_every_loop
async def test_a_dial_takes_no_longer_than_its_limit() -> None:
    async def silent(peer: RawPeer) -> None:
        await peer.reader.read()

    transport = WebSocket(limits=WebSocketLimits(dial=0.2))
    owner = Notes()
    with full_listener() as stuck, pytest.raises(TimeoutError):
        await transport.dial([stuck], owner)
    async with raw_listener(silent) as place:
        with pytest.raises(TimeoutError, match=place):
            await transport.dial([place], owner)
    assert (owner.told, owner.end) == ([], None)


@runs_on_every_loop
async def test_of_several_places_the_first_that_answers_is_taken_with_its_own_path() -> None:
    theirs, owner = Notes(b"other"), Notes()
    transport = WebSocket(limits=HASTY)
    listener = await transport.listen(f"{HOST}:0/right", lambda: theirs)
    assert listener.place.endswith("/right")
    link = await transport.dial(["[fe80::1%none]:1/wrong", listener.place], owner)
    assert link.place == listener.place
    link.close()
    await until(lambda: owner.end and theirs.end)
    await listener.close()
    with pytest.raises(OSError, match=f"{HOST}:"):
        await transport.dial([listener.place], Notes())


@pytest.mark.parametrize(
    "place", ["nowhere", "host:1/a b", "host:1/\r\nX: y", "host:1/#part", "host:1/é", "host/1"]
)
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(LocalError):
        parse_websocket_place(place)


# --- TLS, origins, and the package ----------------------------------------------------------------


@runs_on_every_loop
async def test_an_origin_that_is_allowed_gets_in() -> None:
    async with hub(origins=["https://fleet.example"]) as (_, _, place):
        async with connect(f"ws://{place}", origin="https://fleet.example") as peer:  # type: ignore[arg-type]
            await peer.send(body("echo", b"from a page"))
            assert (await hear(peer)).payload == b"from a page"
        with pytest.raises(InvalidStatus, match="403"):
            await connect(f"ws://{place}", origin="https://evil.example")  # type: ignore[arg-type]


@pytest.mark.parametrize("brings", ["nothing", "a stranger's"])
@runs_on_every_loop
async def test_with_mutual_tls_another_certificate_or_none_opens_nothing(brings: str) -> None:
    there = authority().tls(HOST, mutual=True)
    files = stranger().issue("client.example") if brings != "nothing" else (None, None)
    here = Tls(certificate=files[0], key=files[1], authorities=authority().file)
    leaf = WebSocket(tls=here, limits=HASTY)
    async with (
        hub(tls=there) as (node, journal, place),
        Node("leaf", transports=[leaf], limits=QUICK) as client,
    ):
        with pytest.raises(UnreachableError):
            await client.connect(f"ws://{place}", keep=False, wait=5)
        await nothing_is_left(node)
        assert "opened" not in [kind for kind, _ in journal.session_events()]


@runs_on_every_loop
async def test_a_tls_handshake_that_fails_is_told_and_leaves_no_count() -> None:
    limits = WebSocketLimits(handshakes=1, greeting=0.2)
    async with hub(limits, tls=authority().tls(HOST)) as (node, journal, place):
        await (await RawPeer.dial(place, b"no handshake at all")).ended()
        await until(lambda: len(journal.session_events()) == 1, 2 * DEADLINE)
        assert journal.session_events() == [("refused", "REFUSED")]
        await nothing_is_left(node)
        tls = authority().tls()
        async with Node("leaf", transports=[WebSocket(tls=tls)], limits=QUICK) as leaf:
            await leaf.connect(f"ws://{place}", name="hub")
            assert (await leaf.request("hub => echo", b"x")).payload == b"x"


@async_test
async def test_a_place_that_is_taken_is_an_error_that_says_so() -> None:
    async with hub() as (node, _, place):
        with pytest.raises(OSError, match=f"cannot listen on {place}"):
            await node.listen(f"ws://{place}")


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_the_package_is_loaded_by_who_uses_it_only() -> None:
    assert _run("import sys, waystation.node; print('websockets' in sys.modules)") == "False\n"


def test_without_the_package_the_error_says_what_to_install() -> None:
    program = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "websockets" else PathFinder.find_spec(name, path, target)

sys.meta_path = [finder for finder in sys.meta_path if finder is not PathFinder] + [Without]
try:
    import waystation.transports.websocket
except ValueError as error:
    print(error)
"""
    assert "pip install 'waystation[ws]'" in _run(program)
