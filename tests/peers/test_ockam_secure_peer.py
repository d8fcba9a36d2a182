"""Secure channels with Ockam's own node in Rust (tests/peers/ockam), opened by either side."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.peers import ockam_peer
from tests.peers.ockam_peer import TEST_SECONDS, Peer, PeerFailed
from tests.peers.test_ockam_peer import runs
from waystation import ANYONE, Message, Node, NotTrusted
from waystation.core.record import MessageRecord, Record
from waystation.node import Context

pytestmark = [pytest.mark.peer, pytest.mark.timeout(TEST_SECONDS)]

SECRET = b"the canary that nobody between may see"


@pytest.fixture(scope="module")
def program() -> Path:
    return ockam_peer.built()


@pytest.fixture(scope="module")
def rust(program: Path) -> Iterator[Peer]:
    """A Rust node with a listener for secure channels."""
    del program
    with ockam_peer.serving("--secure", "secure") as peer:
        yield peer


async def identity_of(node: Node, rust: Peer) -> str:
    """What the Rust node says that it is."""
    reply = await node.request(f"tcp#127.0.0.1:{rust.port} => who", b"")
    return reply.payload.decode()


@pytest.mark.ci
@runs
async def test_a_channel_to_a_rust_node(rust: Peer) -> None:
    async with Node("garage") as node:
        who = await identity_of(node, rust)
        route = f"tcp#127.0.0.1:{rust.port} => secure"
        async with await node.secure_channel(route, trust=who) as channel:
            assert channel.identity == who
            for number in range(200):  # across changes of the key
                payload = b"%d" % number
                assert (await channel.request("raw_echo", payload)).payload == payload
            assert (await channel.request("who", b"")).payload.decode() == who
            large = bytes(range(256)) * 400
            assert (await channel.request("hop => raw_echo", large)).payload == large


@runs
async def test_a_rust_node_that_is_another_than_we_trust_is_refused(rust: Peer) -> None:
    async with Node("garage") as node:
        with pytest.raises(NotTrusted) as caught:
            await node.secure_channel(f"tcp#127.0.0.1:{rust.port} => secure", trust="I" + "0" * 64)
        assert caught.value.identity == await identity_of(node, rust)


@runs
async def test_a_channel_to_a_rust_node_through_two_of_our_own(rust: Peer) -> None:
    seen: list[bytes] = []

    def note(record: Record) -> None:
        if isinstance(record, MessageRecord):
            seen.append(record.arrival.message.payload)

    async with Node("a") as first, Node("b") as second, Node("phone") as phone:
        one = await first.listen("tcp://127.0.0.1:0")
        two = await second.listen("tcp://127.0.0.1:0")
        first.observe(note)
        second.observe(note)
        await second.connect(f"tcp://127.0.0.1:{rust.port}", name="rust")
        await first.connect(two.url, name="second")
        await phone.connect(one.url, name="first")
        route = "first => second => rust => secure"
        async with await phone.secure_channel(route, trust=ANYONE) as channel:
            for _ in range(100):
                assert (await channel.request("raw_echo", SECRET)).payload == SECRET
    assert len(seen) > 200
    assert not any(SECRET[:8] in payload for payload in seen)


def _garage() -> Node:
    node = Node("garage")

    def echo(message: Message, _: Context) -> bytes:
        return message.payload

    node.start_worker(("echo",), echo)
    return node


@runs
async def test_a_rust_node_opens_a_channel_to_ours(program: Path) -> None:
    del program
    async with _garage() as node:
        node.secure_listener("secure", trust=ANYONE)
        port = (await node.listen("tcp://127.0.0.1:0")).address.name.rpartition(":")[2]
        said = await asyncio.to_thread(
            ockam_peer.ask, int(port), "echo", 1000, 100, "--secure", "secure"
        )
        assert said.endswith("=> 0#echo")  # the route back into the channel
        assert node.secure_channels.handshakes == 1


@runs
async def test_a_rust_node_opens_a_channel_to_ours_through_two_of_our_own(program: Path) -> None:
    del program
    carried: dict[str, int] = {"outer": 0, "inner": 0}

    async with _garage() as garage, Node("outer") as outer, Node("inner") as inner:
        for hop in (outer, inner):
            hop.observe(partial(_count, carried, hop.name))
        garage.secure_listener("secure", trust=ANYONE)
        await inner.connect((await garage.listen("tcp://127.0.0.1:0")).url, name="garage")
        await outer.connect((await inner.listen("tcp://127.0.0.1:0")).url, name="inner")
        port = (await outer.listen("tcp://127.0.0.1:0")).address.name.rpartition(":")[2]
        said = await asyncio.to_thread(
            ockam_peer.ask, int(port), "echo", 10, 100, "--secure", "inner => garage => secure"
        )
        assert said.endswith("=> 0#echo")  # the route back into the channel
        assert garage.secure_channels.handshakes == 1
        # Both hops carried the handshake, and each request and its reply.
        assert min(carried.values()) >= 2 * 10 + 2
        assert not outer.secure_channels.handshakes
        assert not inner.secure_channels.handshakes


def _count(carried: dict[str, int], name: str, record: Record) -> None:
    if isinstance(record, MessageRecord):
        carried[name] += 1


@runs
async def test_a_rust_node_that_we_do_not_trust_gets_no_answer(program: Path) -> None:
    del program
    async with _garage() as node:
        node.secure_listener("secure", trust="I" + "0" * 64)
        port = (await node.listen("tcp://127.0.0.1:0")).address.name.rpartition(":")[2]
        options = ("--secure", "secure", "--patience", 1)
        with pytest.raises(PeerFailed):
            await asyncio.to_thread(ockam_peer.ask, int(port), "echo", 10, 1, *options)
        assert node.secure_channels.refusals == 1
