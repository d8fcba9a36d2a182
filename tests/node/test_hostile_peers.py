"""Peers that do what none should: each is told of, costs its own session at most, and is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.node.live import (
    RawPeer,
    nothing_is_left,
    raw_listener,
    runs_on_every_loop,
    serves_an_honest_peer,
    serving,
    worker,
)
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import UnreachableError
from waystation.node import Context, Limits, Node
from waystation.testing import Gate, async_test, collect, settle, until
from waystation.transports.tcp import TcpLimits
from waystation.wire.hello import PAYLOAD_LIMIT, Greeting, Hello
from waystation.wire.ockam import PREFACE, encode_control, encode_frame

SECRET = b"secret"
HOPS = b"\x99\x03\xe8" + b"\x82\x00\x41a" * 1000  # an array of a thousand addresses


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


# What is said, whether it comes before the preface is known to be right, and what is told of it.
BAD_BYTES: dict[str, tuple[bytes, str]] = {
    "another preface": (b"\x02", "MALFORMED"),
    "a greeting of another protocol": (b"GET / HTTP/1.1\r\n\r\n", "MALFORMED"),
    "an older Ockam": (b"\x00\x05\x01\x00\x00\x00\x00", "MALFORMED"),
    "a frame of nothing": (PREFACE + bytes(4), "MALFORMED"),
    "a frame of garbage": (PREFACE + _frame(b"\xff" * 100), "MALFORMED"),
    "a frame of 4 GiB": (PREFACE + b"\xff\xff\xff\xff", "TOO_LARGE"),
    "a frame one byte too long": (PREFACE + (64 * 1024 + 1).to_bytes(4, "big"), "TOO_LARGE"),
    "a thousand hops onward": (PREFACE + _frame(b"\x84" + HOPS + b"\x80\x40\xf6"), "TOO_LARGE"),
    "a thousand hops back": (
        PREFACE + _frame(b"\x84\x81\x82\x00\x44echo" + HOPS + b"\x40\xf6"),
        "TOO_LARGE",
    ),
    "items within items": (PREFACE + _frame(b"\x85\x80\x80\x40\xf6" + b"\x81" * 9000), "TOO_LARGE"),
    "a type over 255": (
        PREFACE + _frame(b"\x84\x81\x82\x19\x01\x00\x44echo\x80\x40\xf6"),
        "MALFORMED",
    ),
}


@pytest.mark.rule("OB-2")
@pytest.mark.parametrize("name", BAD_BYTES)
@runs_on_every_loop
async def test_bytes_that_are_no_ockam_end_the_session_and_are_told(name: str) -> None:
    said, reason = BAD_BYTES[name]
    async with serving(tcp=TcpLimits(frame=64 * 1024)) as (node, journal, place):
        peer = await RawPeer.dial(place, said)
        await peer.ended()
        await nothing_is_left(node)
        assert journal.session_events()[-1][1] == reason
        assert journal.messages == []
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_what_stands_before_the_bad_bytes_is_delivered() -> None:
    async with serving() as (node, journal, place):
        got = collect(node, "sink")
        peer = await RawPeer.dial(place)
        good = encode_frame(Message(Route.parse("sink"), Route.parse("app"), b"good"))
        peer.say(good + good + b"\xff\xff\xff\xff" + good)
        await peer.ended()
        await nothing_is_left(node)
        assert [message.payload for message in got] == [b"good", b"good"]
        assert journal.session_events() == [("opened", None), ("closed", "TOO_LARGE")]


@runs_on_every_loop
async def test_a_frame_cut_short_is_told_as_a_lost_connection() -> None:
    async with serving() as (node, journal, place):
        peer = await RawPeer.dial(place)
        peer.say(encode_frame(Message(Route.parse("echo"), Route.parse("app"), bytes(100)))[:50])
        await settle()
        peer.close()
        await until(lambda: len(journal.sessions) == 2)
        assert journal.session_events() == [("opened", None), ("closed", "TRANSPORT_DOWN")]
        assert journal.sessions[-1].detail == "the peer closed in the middle of a frame"
        await nothing_is_left(node)
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_a_reset_is_told_as_a_lost_connection() -> None:
    async with serving() as (node, journal, place):
        peer = await RawPeer.dial(place)
        await until(lambda: node.sessions)
        peer.reset()
        await until(lambda: len(journal.sessions) == 2)
        assert journal.session_events()[-1] == ("closed", "TRANSPORT_DOWN")
        await nothing_is_left(node)


@pytest.mark.rule("AD-6")
@runs_on_every_loop
async def test_messages_that_lead_nowhere_are_dropped_with_a_reason_and_the_session_stays() -> None:
    async with serving() as (node, journal, place):
        peer = await RawPeer.dial(place)
        peer.send("nobody", b"no such worker")
        peer.send("99#there", b"no such type")
        peer.send(f"1#{place} => echo", b"a place of the peer's choice")
        peer.send("echo", b"too many hops", back=" => ".join(["hop"] * 32))
        peer.send("echo", b"too late", expiry=1)
        peer.say(encode_control(b""))  # no onward route at all: a heartbeat
        peer.send("echo", b"fine")
        assert (await peer.hear()).payload == b"fine"
        assert journal.outcomes()[:5] == [
            (b"no such worker", "NO_ROUTE"),
            (b"no such type", "UNKNOWN_TYPE"),
            (b"a place of the peer's choice", "REFUSED"),
            (b"too many hops", "HOP_LIMIT"),
            (b"too late", "EXPIRED"),
        ]
        journal.check_outcomes()
        peer.close()
        await nothing_is_left(node)


@async_test
async def test_the_way_back_of_a_peer_may_be_as_long_as_a_route_can_be() -> None:
    async with serving(hop_limit=1000) as (node, journal, place):
        peer = await RawPeer.dial(place)
        peer.send("echo", b"long way", back=" => ".join(["hop"] * 255))
        peer.send("echo", b"short way")
        assert (await peer.hear()).payload in (b"long way", b"short way")
        journal.check_outcomes()
        peer.close()
        await nothing_is_left(node)


@runs_on_every_loop
async def test_a_peer_that_says_one_byte_at_a_time_is_served() -> None:
    async with serving() as (node, _, place):
        peer = await RawPeer.dial(place, b"")
        for byte in PREFACE + encode_frame(Message(Route.parse("echo"), Route.parse("app"), b"hi")):
            peer.say(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await peer.hear()).payload == b"hi"
        peer.close()
        await nothing_is_left(node)


def _hello(**fields: Any) -> bytes:
    said = {"waystation": "hello", "node": "peer", "types": {"tcp": 1}, **fields}
    return json.dumps(said).encode()


ODD_HELLOS: dict[str, bytes] = {
    "no JSON": b"\xff\xfe" * 100,
    "no object": b"[1,2,3]",
    "no name": b'{"waystation":"hello"}',
    "no types": b'{"waystation":"hello","node":"x","types":7}',
    "an unknown kind": b'{"waystation":"goodbye","node":"x"}',
    "bytes that are no UTF-8": b'{"waystation":"hello","node":"\xff\xfe","types":{}}',
    "half a surrogate pair": b'{"waystation":"hello","node":"\\ud800","types":{}}',
    "half a surrogate pair for a nonce": _hello(nonce="\ud800"),
    "arrays within arrays": b'{"waystation":"hello","node":"x","types":{},"more":' + b"[" * 60_000,
    "objects within objects": b'{"a":' * 10_000,
    "a huge number": b'{"waystation":"hello","node":"x","types":{"a":' + b"9" * 50_000 + b"}}",
    "a huge heartbeat": b'{"waystation":"hello","node":"x","types":{},"beat":1e999}',
    "a negative heartbeat": _hello(beat=-1e9),
    "strange numbers": _hello(types={"tcp": -1, "udp": 256, "ws": 10**18, "local": 3, "": 0}),
    "the same number often": _hello(types={f"t{n}": 7 for n in range(500)}),
    "many types": _hello(types={f"t{n}": n for n in range(3000)}),
    "strange names of types": _hello(types={"#": 9, "a b": 10, "\n": 11, "é": 12, "x" * 9999: 13}),
    "a proof that nobody asked for": b'{"waystation":"proof","proof":"00"}',
    "a proof of half a surrogate pair": b'{"waystation":"proof","proof":"\\ud800"}',
}


@pytest.mark.rule("AD-3")
@pytest.mark.parametrize("name", ODD_HELLOS)
@runs_on_every_loop
async def test_an_odd_hello_hurts_nobody(name: str) -> None:
    async with serving() as (node, journal, place):
        peer = await RawPeer.dial(place)
        peer.control(ODD_HELLOS[name])
        peer.send("echo", b"still there?")
        try:
            assert (await peer.hear()).payload == b"still there?"
        except (EOFError, ConnectionError):
            assert journal.session_events()[-1] == ("closed", "REFUSED")
        peer.close()
        await nothing_is_left(node)
        await serves_an_honest_peer(place)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (_hello(node="x" * PAYLOAD_LIMIT), "is too long"),
        (bytes(PAYLOAD_LIMIT + 1), "is too long"),
        (_hello(token=True), "requires a token, but none is set here"),
    ],
    ids=["a long name", "long nonsense", "a token"],
)
@runs_on_every_loop
async def test_a_hello_that_cannot_be_taken_ends_the_session(said: bytes, why: str) -> None:
    async with serving() as (node, journal, place):
        peer = await RawPeer.dial(place)
        peer.control(said)
        await peer.ended()
        await nothing_is_left(node)
        assert journal.session_events()[-1] == ("closed", "REFUSED")
        assert why in journal.sessions[-1].detail
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_a_second_hello_ends_the_session() -> None:
    async with serving() as (node, journal, place):
        peer = await RawPeer.dial(place)
        peer.control(_hello())
        peer.control(_hello(node="somebody else"))
        await peer.ended()
        await nothing_is_left(node)
        assert journal.session_events()[-1] == ("closed", "REFUSED")
        assert "second hello" in journal.sessions[-1].detail
        assert journal.sessions[-1].peer == "peer"


@runs_on_every_loop
async def test_a_peer_that_was_refused_cannot_open_the_session_with_a_proof_behind_it() -> None:
    async with serving(token=SECRET) as (node, journal, place):
        peer = await RawPeer.dial(place)
        hello = Hello("peer", {}, nonce="n", token=True)
        greeting = Greeting(hello, SECRET, initiator=True)
        proof = greeting.hear(await peer.hear_control())
        assert proof is not None
        said = (greeting.first(), greeting.first(), proof)
        peer.say(b"".join(encode_control(payload) for payload in said))
        await peer.ended()
        await nothing_is_left(node)
        assert journal.session_events() == [("refused", "REFUSED")]
        assert "second hello" in journal.sessions[-1].detail


@async_test
async def test_hellos_of_many_peers_leave_a_bounded_memory() -> None:
    async with serving() as (node, _, place):
        for number in range(260):
            peer = await RawPeer.dial(place)
            peer.control(_hello(types={f"t{number}x{n}": n for n in range(1, 20)}))
            peer.send("echo", b"")
            await peer.hear()
            peer.close()
        await nothing_is_left(node)
        assert len(node._links._known_types) <= 256
        assert len(node.router.types.numbers) <= 256


@pytest.mark.rule("WK-6")
@runs_on_every_loop
async def test_a_peer_that_sends_and_never_reads_is_not_kept_in_memory() -> None:
    limits = TcpLimits(unsent=64 * 1024)
    async with serving(tcp=limits) as (node, journal, place):
        other = collect(node, "sink")
        peer = await RawPeer.dial(place, room=4096)
        question = encode_frame(Message(Route.parse("echo"), Route.parse("app"), bytes(8192)))

        async def flood() -> None:
            while True:
                peer.say(question * 16)
                await peer.writer.drain()

        flooding = asyncio.ensure_future(flood())
        await until(lambda: node.sessions and node.sessions[0].is_paused)
        (session,) = node.sessions
        await until(lambda: session.is_stalled)  # and so this side no longer reads either
        await asyncio.sleep(0.1)
        link = session._link
        assert link is not None
        held = link.unsent  # type: ignore[attr-defined]
        assert held < 4 * limits.unsent
        inbox = worker(node, "echo").inbox
        assert len(inbox) <= 1000
        assert len(session._backlog or ()) < 1000
        # another worker serves others meanwhile
        async with Node("honest") as honest:
            assert (await honest.send(f"tcp#{place} => sink", b"x")).reason is None
            await until(lambda: other)
        flooding.cancel()
        peer.reset()
        await nothing_is_left(node)
        await until(lambda: not worker(node, "echo").at_work)
        journal.check_outcomes()
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_connections_that_say_nothing_are_ended() -> None:
    async with serving(tcp=TcpLimits(greeting=0.5)) as (node, journal, place):
        silent = [await RawPeer.dial(place, b"") for _ in range(1000)]
        await serves_an_honest_peer(place)
        await asyncio.gather(*(peer.ended() for peer in silent))
        await nothing_is_left(node)
        ends = [record for record in journal.sessions if record.reason is Reason.REFUSED]
        assert len(ends) == 1000
        assert {record.detail for record in ends} == {"the peer said nothing for 0.5 s"}


@runs_on_every_loop
async def test_more_connections_than_the_limit_are_refused_and_those_within_it_go_on() -> None:
    limits = Limits(sessions=50, heartbeat=0)
    async with serving(limits=limits) as (node, journal, place):
        honest = await RawPeer.dial(place)
        honest.send("echo", b"first")
        assert (await honest.hear()).payload == b"first"
        many = [await RawPeer.dial(place) for _ in range(300)]
        await until(lambda: journal.session_events().count(("refused", "REFUSED")) == 251)
        assert len(node.sessions) == 50
        assert all("limit" in r.detail for r in journal.sessions if r.reason is Reason.REFUSED)
        honest.send("echo", b"still")
        assert (await honest.hear()).payload == b"still"
        for peer in (*many, honest):
            peer.close()
        await nothing_is_left(node)
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_a_flood_of_connections_that_come_and_go_leaves_nothing() -> None:
    async with serving() as (node, journal, place):
        for number in range(600):
            peer = await RawPeer.dial(place, PREFACE if number % 2 else b"")
            if number % 3:
                peer.reset()
            else:
                peer.close()
        await until(lambda: not node.sessions)
        await nothing_is_left(node)
        await serves_an_honest_peer(place)
        kinds = [record.kind.value for record in journal.sessions]
        assert kinds.count("opened") == kinds.count("closed")


# --- What a dialler meets -------------------------------------------------------------------------


async def _says_garbage(peer: RawPeer) -> None:
    peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await peer.ended()


async def _hangs_up(peer: RawPeer) -> None:
    peer.close()


@pytest.mark.parametrize("handle", [_says_garbage, _hangs_up])
@runs_on_every_loop
async def test_a_listener_of_another_kind_leaves_nothing_behind(
    handle: Callable[[RawPeer], Awaitable[None]],
) -> None:
    async with Node("dialler") as node, raw_listener(handle) as place:
        for _ in range(3):
            await node.send(f"tcp#{place} => echo", b"x")
            await nothing_is_left(node)


@async_test
async def test_connect_does_not_call_a_listener_of_another_kind_a_peer() -> None:
    async with Node("dialler") as node, raw_listener(_says_garbage) as place:
        with pytest.raises(UnreachableError):
            await node.connect(f"tcp://{place}", wait=0.5)


@runs_on_every_loop
async def test_a_place_that_is_no_text_is_unreachable() -> None:
    async with Node("dialler") as node:
        route = Route((Address(1, b"\xff\xfe:1"), Address(0, b"x")))
        verdict = await asyncio.wait_for(node.send(route, b""), 5)
        assert verdict.reason is Reason.TRANSPORT_DOWN
        await nothing_is_left(node)


@pytest.mark.parametrize(
    "place", ["nonsense", ":1", "a:99999", "x" * 300 + ":1", "a\0b:1", "::1:1"]
)
@runs_on_every_loop
async def test_a_place_that_is_none_is_unreachable(place: str) -> None:
    async with Node("dialler") as node:
        route = Route((Address(1, place.encode()), Address(0, b"x")))
        verdict = await asyncio.wait_for(node.send(route, b""), 10)
        assert verdict.reason is Reason.TRANSPORT_DOWN
        await nothing_is_left(node)


@async_test
async def test_a_peer_that_is_gone_does_not_make_a_node_dial() -> None:
    reached: list[RawPeer] = []

    async def victim(peer: RawPeer) -> None:
        reached.append(peer)

    async with serving() as (node, journal, place), raw_listener(victim) as target:
        free = asyncio.Event()

        @node.worker("hop", passing=True)
        async def hop(message: Message, context: Context) -> None:  # noqa: ARG001
            await free.wait()
            await context.forward()

        peer = await RawPeer.dial(place)
        peer.send(f"hop => tcp#{target} => echo", b"fetch this")
        await until(lambda: worker(node, "hop").at_work)
        peer.close()
        await until(lambda: not node.sessions)
        free.set()
        await until(lambda: not worker(node, "hop").at_work)
        await settle()
        assert (b"fetch this", "REFUSED") in journal.outcomes()
        assert reached == []


@pytest.mark.rule("WK-6")
@async_test
async def test_a_new_link_is_not_read_while_what_came_over_the_old_one_waits() -> None:
    frame = encode_frame(Message(Route.parse("stuck"), Route.parse("app"), bytes(1024)))
    links: list[RawPeer] = []

    async def server(peer: RawPeer) -> None:
        links.append(peer)
        peer.say(PREFACE + frame * 4)
        if len(links) == 1:
            await asyncio.sleep(0.1)
            peer.reset()
            return
        while True:
            peer.say(frame * 64)
            await peer.writer.drain()
            await asyncio.sleep(0)

    beats = Limits(heartbeat=0.1)  # what is not read is noticed to be gone when it is written to
    async with Node("dialler", limits=beats) as node, raw_listener(server) as place:
        stuck = Gate(node, "stuck")
        session = await node.connect(f"tcp://{place}", name="server")
        await until(lambda: session.openings == 2 or not session.has_link)
        await asyncio.sleep(0.3)
        held = len(session._backlog or ())
        stuck.free.set()
        await until(lambda: len(stuck.got) > 4)
        assert held < 1000
