"""Ockam's own node in Rust over WebSocket and UDP: plain messages and secure channels, both ways.

Over UDP a message can be lost, even on one machine if it is busy; so each test sends few at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.peers import ockam_peer
from tests.peers.ockam_peer import TEST_SECONDS, Peer, PeerFailed
from tests.peers.test_ockam_peer import contents, runs
from waystation import ANYONE, Message, Node, NotTrusted
from waystation.core.record import MessageRecord, Record
from waystation.node import Context
from waystation.transports.tcp import Tcp
from waystation.transports.udp import Udp
from waystation.transports.websocket import WebSocket

pytestmark = [pytest.mark.peer, pytest.mark.timeout(TEST_SECONDS)]

SECRET = b"the canary that nobody between may see"
OVER = pytest.mark.parametrize("over", ["ws", "udp"], scope="module")
# As much as a socket holds while nobody reads it, and as a stranger may send in its first message.
SIZES = pytest.mark.parametrize("size", [0, 1, 492, 493, 494, 10_000, 50_000])


def node_of(name: str) -> Node:
    """A node with all three transports; an Ockam node says nothing unasked over UDP."""
    return Node(name, transports=[Tcp(), WebSocket(), Udp(expect_reply=False)])


@contextlib.asynccontextmanager
async def listening(over: str, name: str = "ours") -> AsyncIterator[tuple[Node, int]]:
    """A node of ours with an `echo`, and the port where it listens."""
    async with node_of(name) as node:

        @node.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            await context.reply(message.payload)

        @node.worker("hop")
        def hop(message: Message, context: Context) -> None:
            raise AssertionError((message, context))  # it is never the last one

        place = (await node.listen(f"{over}://127.0.0.1:0")).place
        yield node, int(place.rpartition("/")[0].rpartition(":")[2] or place.rpartition(":")[2])


@pytest.fixture(scope="module")
def program() -> Path:
    return ockam_peer.built()


@pytest.fixture(scope="module")
def rust(program: Path, over: str) -> Iterator[Peer]:
    """A Rust node that is reached over the transport alone, with a listener for channels."""
    del program
    with ockam_peer.serving("--over", over, "--secure", "secure") as peer:
        yield peer


def place_of(over: str, rust: Peer) -> str:
    return f"{over}://127.0.0.1:{rust.port}"


# --- Plain messages -------------------------------------------------------------------------------


@OVER
@SIZES
@runs
async def test_a_rust_worker_answers_us(rust: Peer, over: str, size: int) -> None:
    async with node_of("ours") as node:
        await node.connect(place_of(over, rust), name="rust")
        reply = await node.request("rust => raw_echo", contents(size))
        assert reply.payload == contents(size)


@OVER
@runs
async def test_our_question_goes_over_a_rust_hop(rust: Peer, over: str) -> None:
    async with node_of("ours") as node:
        await node.connect(place_of(over, rust), name="rust")
        for number in range(100):
            reply = await node.request("rust => hop => raw_echo", b"%d" % number)
            assert reply.payload == b"%d" % number
        assert str(reply.return_route) == "0#rust => 0#hop => 0#raw_echo"


@OVER
@runs
async def test_a_route_with_the_place_of_a_rust_node_opens_a_session(rust: Peer, over: str) -> None:
    async with node_of("ours") as node:
        reply = await node.request(f"{over}#127.0.0.1:{rust.port} => raw_echo", b"hello")
        assert reply.payload == b"hello"


@OVER
@SIZES
@runs
async def test_our_worker_answers_a_rust_node(program: Path, over: str, size: int) -> None:
    del program
    async with listening(over) as (_, port):
        said = await asyncio.to_thread(ockam_peer.ask, port, "hop => echo", size, 3, "--over", over)
        assert said.endswith("=> 0#hop => 0#echo")


@OVER
@runs
async def test_a_rust_node_that_asks_many_times_gets_all_answers(program: Path, over: str) -> None:
    del program
    async with listening(over) as (_, port):
        await asyncio.to_thread(ockam_peer.ask, port, "echo", 100, 500, "--over", over)


# --- Secure channels ------------------------------------------------------------------------------


@OVER
@pytest.mark.rule("ID-4")
@runs
async def test_a_channel_to_a_rust_node(rust: Peer, over: str) -> None:
    async with node_of("garage") as node:
        await node.connect(place_of(over, rust), name="rust")
        who = (await node.request("rust => who", b"")).payload.decode()
        async with await node.secure_channel("rust => secure", trust=who) as channel:
            assert channel.identity == who
            for number in range(200):  # across changes of the key
                payload = b"%d" % number
                assert (await channel.request("raw_echo", payload)).payload == payload
            large = contents(50_000)
            assert (await channel.request("hop => raw_echo", large)).payload == large
        with pytest.raises(NotTrusted):
            await node.secure_channel("rust => secure", trust="I" + "0" * 64)


@OVER
@pytest.mark.rule("ID-4")
@runs
async def test_a_channel_to_a_rust_node_through_two_of_our_own(rust: Peer, over: str) -> None:
    seen: list[bytes] = []

    def note(record: Record) -> None:
        if isinstance(record, MessageRecord):
            seen.append(record.arrival.message.payload)

    async with node_of("a") as first, node_of("b") as second, node_of("phone") as phone:
        one = await first.listen("ws://127.0.0.1:0")
        two = await second.listen("tcp://127.0.0.1:0")
        first.observe(note)
        second.observe(note)
        await second.connect(place_of(over, rust), name="rust")
        await first.connect(two.url, name="second")
        await phone.connect(one.url, name="first")
        route = "first => second => rust => secure"
        async with await phone.secure_channel(route, trust=ANYONE) as channel:
            for _ in range(100):
                assert (await channel.request("raw_echo", SECRET)).payload == SECRET
    assert len(seen) > 200
    assert not any(SECRET[:8] in payload for payload in seen)


@OVER
@pytest.mark.rule("ID-4")
@runs
async def test_a_rust_node_opens_a_channel_to_ours(program: Path, over: str) -> None:
    del program
    async with listening(over) as (node, port):
        node.secure_listener("secure", trust=ANYONE)
        options = ("--secure", "secure", "--over", over)
        said = await asyncio.to_thread(ockam_peer.ask, port, "echo", 1000, 100, *options)
        assert said.endswith("=> 0#echo")  # the route back into the channel
        assert node.secure_channels.handshakes == 1


@OVER
@pytest.mark.rule("ID-4")
@runs
async def test_a_rust_node_opens_a_channel_to_ours_through_two_more(
    program: Path, over: str
) -> None:
    del program
    async with listening("tcp", "garage") as (garage, inner), node_of("yard") as yard:
        garage.secure_listener("secure", trust=ANYONE)
        await yard.connect(f"tcp://127.0.0.1:{inner}", name="garage")
        middle = await yard.listen("ws://127.0.0.1:0")
        async with listening(over, "gate") as (gate, port):
            await gate.connect(middle.url, name="yard")
            options = ("--secure", "yard => garage => secure", "--over", over)
            await asyncio.to_thread(ockam_peer.ask, port, "echo", 10, 100, *options)
        assert garage.secure_channels.handshakes == 1


@OVER
@pytest.mark.rule("ID-4")
@runs
async def test_a_rust_node_that_we_do_not_trust_gets_no_answer(program: Path, over: str) -> None:
    del program
    async with listening(over) as (node, port):
        node.secure_listener("secure", trust="I" + "0" * 64)
        options = ("--secure", "secure", "--patience", 1, "--over", over)
        with pytest.raises(PeerFailed):
            await asyncio.to_thread(ockam_peer.ask, port, "echo", 10, 1, *options)
        assert node.secure_channels.refusals == 1
