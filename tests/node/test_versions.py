"""Peers of other versions: what they do not say that they understand is not used with them (UP-1).

Here they are bytes; tests/peers runs the first version itself.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.node.live import RawPeer, serves_an_honest_peer, serving
from waystation import __version__
from waystation.node import Limits, Node
from waystation.node.links import CAPABILITIES
from waystation.node.status import Question, Status
from waystation.testing import Gate, async_test, until
from waystation.wire.hello import CAN_LIMIT, FIRST_VERSION


def hello(**said: Any) -> bytes:
    """The hello of some peer."""
    return json.dumps({"waystation": "hello", "node": "peer", "types": {"tcp": 1}, **said}).encode()


def words(peer: RawPeer) -> set[str]:
    """The kinds of payloads that a peer was told."""
    return {json.loads(payload)["waystation"] for payload in peer.controls}


async def ask(peer: RawPeer, route: str = "echo") -> bytes:
    """What a peer gets when it asks for something."""
    peer.send(route, b"well?")
    return bytes((await peer.hear()).payload)


@pytest.mark.rule("UP-1")
@async_test
async def test_a_hello_says_the_version_and_what_is_understood() -> None:
    async with serving() as (_, _, place):
        peer = await RawPeer.dial(place)
        told = json.loads(await peer.hear_control())
        assert (told["version"], told["can"]) == (__version__, list(CAPABILITIES))
        peer.close()


STRANGERS: dict[str, dict[str, Any]] = {
    "the first version": {},
    "a later version": {"version": "9.9", "can": ["fly", "swim"]},
    "no version at all": {"version": "", "can": []},
    "a version that is no number": {"version": "\u202e; drop table \x1b[2J" * 100},
    "fields that nobody knows": {"moon": {"phase": [1, None]}, "identity": "I", "claims": 7},
    "thousands of things": {"version": "9.9", "can": [str(number) for number in range(8_000)]},
}


@pytest.mark.rule("UP-1")
@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS)
@async_test
async def test_whatever_a_peer_says_of_itself_it_is_served_in_words_of_the_first_version(
    said: dict[str, Any],
) -> None:
    """Its version decides nothing, and what it understands that nobody here does as little."""
    async with serving(hub=True) as (node, _, place):
        peer = await RawPeer.dial(place)
        peer.control(hello(**said))
        peer.control(b'{"waystation":"announce","participants":[["theirs",true,null]]}')
        peer.control(b'{"waystation":"resolve","number":1,"participant":"echo"}')
        peer.control(b'{"waystation":"teleport","to":"moon"}')
        assert await ask(peer) == b"well?"
        await node.send("theirs", b"to you")
        assert (await peer.hear()).payload == b"to you"
        assert words(peer) == {"hello", "resolved"}
        [session] = node.sessions
        assert session.peer == "peer"
        assert len(session.peer_can) <= CAN_LIMIT
        assert session.clock_rtt_us is None
        await serves_an_honest_peer(place)
        peer.close()


@pytest.mark.rule("UP-1", "FL-3")
@async_test
async def test_only_who_understands_it_is_asked_to_hold_a_name() -> None:
    limits = Limits(heartbeat=0.0, receiver=64 * 1024)
    async with serving(limits=limits) as (node, _, place):
        gate = Gate(node, "slow")
        first, today = [await RawPeer.dial(place) for _ in range(2)]
        first.control(hello(node="first"))
        today.control(hello(node="today", can=["hold"]))
        for peer in (first, today):
            assert await ask(peer) == b"well?"
            for _ in range(10):
                peer.send("slow", bytes(16 * 1024))
        sessions = {session.peer: session for session in node.sessions}
        await until(lambda: sessions["today"].holds)  # all who brought something are pressed
        assert sessions["first"].is_stopped
        assert sessions["first"].holds == ()
        gate.free.set()
        for peer in (first, today):
            assert await ask(peer) == b"well?"
            peer.close()
        assert words(first) == {"hello"}
        assert words(today) == {"hello", "hold", "go"}


@pytest.mark.rule("UP-1")
@async_test
async def test_status_tells_what_peers_say_of_themselves() -> None:
    async with serving() as (node, _, place), Node("today") as today:
        status = Status(node)
        await today.connect(f"tcp://{place}", name="node")
        first, later, stranger = [await RawPeer.dial(place) for _ in range(3)]
        first.control(hello(node="first"))
        later.control(hello(node="later", version="9.9", can=["fly"]))
        for peer in (first, later, stranger):
            assert await ask(peer) == b"well?"
        seen = status.snapshot(Question())
        assert seen.version == __version__
        assert {session.peer: (session.version, session.can) for session in seen.sessions} == {
            "today": (__version__, CAPABILITIES),
            "first": (FIRST_VERSION, ()),
            "later": ("9.9", ("fly",)),
            None: (None, ()),
        }
        for peer in (first, later, stranger):
            peer.close()
