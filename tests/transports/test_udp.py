"""UDP links: the kit for datagrams, Ockam's format, losses, and everything a peer can do wrong."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import msgspec
import pytest

from tests.node.live import LOOPS, QUICK, nothing_is_left, runs_on_every_loop
from tests.node.test_hubs import knows
from tests.transports.test_tcp import Notes, message
from waystation.core.address import Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.errors import LocalError, UnreachableError
from waystation.net.place import parse_place, place_of
from waystation.node import Limits, Node
from waystation.testing import (
    CHECKS,
    DEADLINE,
    LOSSY_CHECKS,
    Gate,
    Recorder,
    async_test,
    check_transport,
    collect,
    echo,
    run_checked,
    settle,
    udp_path,
    until,
)
from waystation.transports import udp
from waystation.transports.udp import Udp, UdpLimits, UdpLink
from waystation.wire.acknowledged import CAPABILITY
from waystation.wire.hello import Hello
from waystation.wire.ockam import CHUNK_SIZE, encode_body, fragments
from waystation.wire.ockam_udp import GOODBYE, PeerReassembly, control_datagrams

HOST = "127.0.0.1"
WORD = "secret"
HASTY = UdpLimits(reply=1.0, repeat=0.05)


@pytest.mark.rule("WK-10")
@pytest.mark.rule("WK-8")
@pytest.mark.parametrize("loop", LOOPS)
def test_udp_passes_the_kit_for_datagrams(loop: str) -> None:
    async def scenario() -> None:
        result = await check_transport(
            Udp,
            f"udp://{HOST}:0",
            path=udp_path,
            largest=200_000,
            too_large=300_000,
            lossy=True,
        )
        assert result.passed == tuple(LOSSY_CHECKS)
        assert len(result.passed) == len(CHECKS)

    run_checked(scenario, LOOPS[loop], seconds=110)


def _sent_by_workers(messages: list[Message]) -> list[Message]:
    """Those which are not for the session itself."""
    return [message for message in messages if message.onward_route.addresses]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("keeps order of what arrives", lambda messages: [*messages, *_sent_by_workers(messages)]),
        ("keeps order of what arrives", lambda messages: messages[::-1]),
        ("hurts nobody else with a reader that never reads", lambda messages: messages[::-1]),
    ],
    ids=["twice", "backwards", "backwards to a slow reader"],
)
def test_the_kit_finds_datagrams_that_come_twice_or_out_of_order(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    wrong: Callable[[list[Message]], list[Message]],
) -> None:
    right = UdpLink.hand_in
    monkeypatch.setattr(UdpLink, "hand_in", lambda link, batch: right(link, wrong(batch)))
    limits = UdpLimits(unread=10 * 1024 * 1024)

    async def scenario() -> None:
        with pytest.raises(AssertionError, match="out of order, or twice"):
            await check_transport(
                lambda: Udp(limits=limits),
                f"udp://{HOST}:0",
                path=udp_path,
                checks={name: LOSSY_CHECKS[name]},
            )

    run_checked(scenario)


class RawUdp:
    """A peer whose datagrams the test chooses."""

    def __init__(self, place: str | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind((HOST, 0))
        self.place = place_of(self.socket.getsockname())
        self.to = None if place is None else parse_place(place)
        self.reassembly = PeerReassembly()
        self.controls: list[bytes] = []

    def say(self, *datagrams: bytes) -> None:
        assert self.to is not None
        for datagram in datagrams:
            self.socket.sendto(datagram, self.to)

    def send(self, route: str, payload: bytes, number: int) -> list[bytes]:
        """Send a message; gives its datagrams."""
        body = encode_body(Message(Route.parse(route), Route.parse("app"), payload))
        datagrams = fragments(body, number)
        self.say(*datagrams)
        return datagrams

    async def datagram(self) -> bytes:
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    data, self.to = self.socket.recvfrom(4096)
                except BlockingIOError:  # and uvloop has no way to wait for datagrams
                    await asyncio.sleep(0.002)
                else:
                    return data

    async def hear(self) -> Message:
        """The next message; what is for the session goes into `controls`."""
        while True:
            found = self.reassembly.feed(await self.datagram())
            if found is not None and found.onward_route.addresses:
                return found
            if found is not None:
                self.controls.append(found.payload)


@contextmanager
def raw_peer(place: str | None = None) -> Iterator[RawUdp]:
    peer = RawUdp(place)
    try:
        yield peer
    finally:
        peer.socket.close()


@asynccontextmanager
async def hub(
    limits: UdpLimits = HASTY, node_limits: Limits = QUICK, **options: object
) -> AsyncIterator[tuple[Node, Recorder, Udp, str]]:
    """A node with an echo that listens for datagrams, what it tells, its transport and place."""
    transport = Udp(limits=limits)
    async with Node("hub", transports=[transport], limits=node_limits, **options) as node:  # type: ignore[arg-type]
        journal = Recorder(node)
        echo(node)
        listening = await node.listen(f"udp://{HOST}:0")
        yield node, journal, transport, listening.place


@asynccontextmanager
async def leaf(limits: UdpLimits = HASTY, **options: object) -> AsyncIterator[Node]:
    transport = Udp(limits=limits)
    async with Node("leaf", transports=[transport], limits=QUICK, **options) as node:  # type: ignore[arg-type]
        yield node


async def serves_an_honest_peer(place: str) -> None:
    async with leaf() as honest:
        answer = await honest.request(f"udp#{place} => echo", b"well?", timeout=DEADLINE)
        assert answer.payload == b"well?"


# --- The format -----------------------------------------------------------------------------------


@runs_on_every_loop
async def test_a_peer_of_another_make_gets_answers_in_ockams_format() -> None:
    async with hub() as (node, _, _, place):
        with raw_peer(place) as peer:
            peer.send("echo", bytes(range(256)) * 8, 65535)  # five datagrams, and the last number
            answer = await peer.hear()
            assert str(answer.onward_route) == "0#app"
            assert answer.payload == bytes(range(256)) * 8
            assert b'"hello"' in peer.controls[0]  # which it passes over
            peer.send("echo", b"", 0)
            assert (await peer.hear()).payload == b""
            assert [str(session.place) for session in node.sessions] == [f"2#{peer.place}"]


@runs_on_every_loop
async def test_a_peer_that_says_nothing_unasked_can_be_dialled() -> None:
    transport = Udp(expect_reply=False)
    async with Node("leaf", transports=[transport], limits=QUICK) as node:
        answers = collect(node, "app")
        with raw_peer() as peer:
            session = await node.connect(f"udp://{peer.place}", name="far")
            assert session.is_open
            await node.send("far => printer", b"hello")
            heard = await peer.hear()
            assert (str(heard.onward_route), heard.payload) == ("0#printer", b"hello")
            peer.send("app", b"answer", 7)
            await until(lambda: answers)
            assert str(answers[0].return_route) == "0#far => 0#app"


@runs_on_every_loop
async def test_what_cannot_be_written_has_a_reason_and_harms_nothing() -> None:
    theirs, owner = Notes(b"other"), Notes()
    transport = Udp(limits=UdpLimits(frame=10_000))
    listener = await transport.listen(f"{HOST}:0", lambda: theirs)
    link = await transport.dial([listener.place], owner)
    link.send_control(b"hello")
    await until(lambda: theirs.link)
    assert theirs.link is not None
    theirs.link.send_control(b"hello")
    await until(lambda: owner.told == ["opened", "answered"])
    assert link.send(message(bytes(10_000))) is Reason.TOO_LARGE
    assert link.send(Message(Route.parse("link"), Route(), b"")) is Reason.NO_ROUTE
    bad = Message(Route.parse("link => x"), Route(), b"", id="no id")
    assert link.send(bad) is Reason.MALFORMED
    assert link.send(message(b"fine")) is None
    await until(lambda: len(theirs.messages) == 2)
    assert theirs.messages[1].payload == b"fine"
    assert owner.settled
    link.close()
    link.close()
    await until(lambda: owner.end and theirs.end)
    assert owner.end == theirs.end == (None, "closed")
    assert link.send(message()) is None  # too late, and harmless
    link.close()
    link.abort()
    await settle()
    await listener.close()
    await listener.close()


# --- Losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [(0,), (0, 1, 2)])
@runs_on_every_loop
async def test_first_words_that_are_lost_are_said_again(lost: tuple[int, ...]) -> None:
    async with hub() as (node, _, _, place), leaf() as client, udp_path(place) as path:
        path.lose(*lost)
        session = await client.connect(f"udp://{path.place}", name="hub")
        assert session.peer == "hub"
        await until(lambda: [peer.peer for peer in node.sessions] == ["leaf"])
        assert (await client.request("hub => echo", b"x")).payload == b"x"


@pytest.mark.rule("FL-6")
@runs_on_every_loop
async def test_a_message_whose_datagrams_come_twice_is_delivered_once() -> None:
    async with hub() as (_, _, transport, place):
        with raw_peer(place) as peer:
            for payload, number in ((b"small", 7), (b"long" * 5_000, 8), (b"last", 9)):
                for _ in range(2):
                    peer.send("echo", payload, number)
            answers = [(await peer.hear()).payload for _ in range(3)]
            assert answers == [b"small", b"long" * 5_000, b"last"]
            await until(lambda: transport.counts.late >= 2)


@runs_on_every_loop
async def test_an_answer_that_is_lost_is_said_again_when_the_question_is() -> None:
    async with hub() as (node, _, transport, place):
        with raw_peer(place) as peer:
            words = control_datagrams(b'{"waystation":"other"}', 7)
            peer.say(*words)
            first = await peer.datagram()
            for _ in range(2):
                peer.say(*words)
                assert await peer.datagram() == first
            assert transport.counts.late == 2
            assert len(node.sessions) == 1
            for _ in range(50):  # and not for ever
                peer.say(*words)
            await until(lambda: transport.counts.late == 52)
            peer.send("echo", b"heard", 8)
            assert (await peer.hear()).payload == b"heard"
            assert len(peer.controls) == 1  # what was said again counts once


@runs_on_every_loop
async def test_a_datagram_that_is_lost_costs_its_own_message_only() -> None:
    async with hub() as (node, _, _, place), leaf() as client, udp_path(place) as path:
        got = collect(node, "sink")
        await client.connect(f"udp://{path.place}", name="hub")
        await client.request("hub => echo", b"")
        path.lose(1, at_least=CHUNK_SIZE)  # not what the sessions say to each other
        await client.send("hub => sink", bytes(3 * CHUNK_SIZE))
        await client.send("hub => sink", b"next")
        await until(lambda: got)
        assert [m.payload for m in got] == [b"next"]


@runs_on_every_loop
async def test_datagrams_in_another_order_or_twice_make_no_wrong_message() -> None:
    async with hub() as (node, _, transport, place):
        got = collect(node, "sink")
        chance = random.Random(3)
        with raw_peer(place) as peer:
            peer.send("sink", b"first", 0)
            for number in range(1, 40):
                body = encode_body(
                    Message(Route.parse("sink"), Route(), bytes([number]) * (3 * CHUNK_SIZE))
                )
                datagrams = fragments(body, number) * 2
                chance.shuffle(datagrams)
                peer.say(*datagrams)
                await asyncio.sleep(0)  # a socket holds some hundred datagrams
            peer.send("sink", b"last", 40)
            await until(lambda: got and got[-1].payload == b"last")
        numbers = [m.payload[0] for m in got[1:-1]]
        assert all(m.payload == m.payload[:1] * (3 * CHUNK_SIZE) for m in got[1:-1])
        assert numbers == sorted(set(numbers))
        assert transport.counts.late


@runs_on_every_loop
async def test_nobody_there_is_told_at_once_where_the_system_says_so() -> None:
    async with leaf(UdpLimits(reply=DEADLINE)) as client:
        with raw_peer() as gone:
            place = gone.place
        with pytest.raises(UnreachableError, match="refused"):
            await client.connect(f"udp://{place}", keep=False)
        verdict = await client.send(f"udp#{place} => echo", b"")
        assert verdict.reason is Reason.TRANSPORT_DOWN
        await nothing_is_left(client)


@runs_on_every_loop
async def test_silence_is_told_when_the_time_for_an_answer_is_over() -> None:
    async with leaf(UdpLimits(reply=0.3, repeat=0.05)) as client:
        with raw_peer() as silent:
            with pytest.raises(UnreachableError, match=r"no answer within 0\.3 s"):
                await client.connect(f"udp://{silent.place}", keep=False)
            first = await silent.datagram()
            assert await silent.datagram() == first  # said again, with the same number
        await nothing_is_left(client)


# --- What sessions say to each other --------------------------------------------------------------

PATIENT = Limits(heartbeat=0.0, greeting=DEADLINE)


@asynccontextmanager
async def parent(**options: object) -> AsyncIterator[tuple[Node, Udp, str]]:
    """A hub for leaves that come over datagrams, its transport and its place."""
    transport = Udp(limits=HASTY)
    async with Node("hub", hub=True, transports=[transport], limits=PATIENT, **options) as node:  # type: ignore[arg-type]
        listening = await node.listen(f"udp://{HOST}:0")
        yield node, transport, listening.place


@asynccontextmanager
async def child(place: str, **options: object) -> AsyncIterator[tuple[Node, Udp]]:
    """A leaf of the hub at a place, and its transport."""
    transport = Udp(limits=HASTY)
    async with Node("leaf", transports=[transport], limits=PATIENT, **options) as node:  # type: ignore[arg-type]
        await node.connect(f"udp://{place}", name="hub", parent=True, wait=DEADLINE)
        yield node, transport


@pytest.mark.rule("RE-12")
@runs_on_every_loop
async def test_an_announcement_that_is_lost_is_repeated() -> None:
    async with (
        parent() as (node, _, place),
        udp_path(place) as path,
        child(path.place) as (leaf, transport),
    ):
        echo(leaf, "truck-1")
        await until(lambda: knows(node, "truck-1"))
        path.lose(0, 1, 2)
        echo(leaf, "truck-2")
        await until(lambda: knows(node, "truck-2"))
        assert transport.counts.repeated
        path.lose(0)
        await leaf.stop_worker("truck-1")
        await until(lambda: not knows(node, "truck-1"))
        assert knows(node, "truck-2")


@pytest.mark.rule("RE-12")
@runs_on_every_loop
async def test_announcements_come_in_order_over_a_path_that_loses_many() -> None:
    names = [f"truck-{number}" for number in range(2_000)]
    async with (
        parent() as (node, _, place),
        udp_path(place) as path,
        child(path.place) as (leaf, _),
    ):
        path.lose(*range(0, 5_000, 37))
        for name in names:
            collect(leaf, name)
        await settle()
        for name in names[::2]:
            await leaf.stop_worker(name)
        path.freeze()
        await asyncio.sleep(0.2)
        path.thaw()
        await until(lambda: all(knows(node, name) for name in names[1::2]))
        await until(lambda: not any(knows(node, name) for name in names[::2]))


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1, 2)])
@runs_on_every_loop
async def test_a_proof_that_is_lost_is_repeated(lost: tuple[int, ...]) -> None:
    async with parent(token=WORD) as (node, _, place), udp_path(place) as path:
        path.lose(*lost)
        async with child(path.place, token=WORD) as (leaf, _):
            echo(leaf, "truck")
            await until(lambda: knows(node, "truck"))
            assert len(node.sessions) == 1


@pytest.mark.parametrize("number", [0, 50_000], ids=["late", "not late"])
@runs_on_every_loop
async def test_a_hub_that_is_started_anew_at_its_place_hears_everything_again(number: int) -> None:
    """Its leaf is told by its hello, be that late by the numbers of before or not."""
    numbers = iter([100, 40_000, number])  # where the links begin to count: leaf, hub, the new hub
    with pytest.MonkeyPatch.context() as patch:
        start = SimpleNamespace(randrange=lambda most: next(numbers, most // 2))
        patch.setattr(udp, "random", start)
        async with (
            parent() as (first, _, place),
            udp_path(place) as path,
            child(path.place) as (leaf, _),
        ):
            echo(leaf, "truck")
            await until(lambda: knows(first, "truck"))
            path.freeze()  # so that nobody hears a goodbye
            await first.close()
            transport = Udp(limits=HASTY)
            async with Node("hub", hub=True, transports=[transport], limits=PATIENT) as second:
                collect(second, "sink")
                await second.listen(f"udp://{place}")
                path.thaw()
                await leaf.send("hub => sink", b"still there?")
                await until(lambda: knows(second, "truck"))


@runs_on_every_loop
async def test_a_peer_of_the_first_version_gets_every_payload_as_it_is() -> None:
    transport = Udp(limits=HASTY)
    async with Node("leaf", transports=[transport], limits=PATIENT) as node:
        with raw_peer() as peer:
            connecting = asyncio.ensure_future(
                node.connect(f"udp://{peer.place}", name="hub", parent=True, wait=DEADLINE)
            )
            await peer.datagram()
            peer.say(*control_datagrams(b'{"waystation":"hello","node":"old","types":{}}', 7))
            session = await connecting
            assert session.peer == "old"
            collect(node, "truck")
            await node.send("hub => sink", b"1")
            await peer.hear()
            await asyncio.sleep(0.2)
            await node.send("hub => sink", b"2")
            await peer.hear()
        kinds = {json.loads(payload)["waystation"] for payload in peer.controls}
        assert kinds - {"hello"} == {"announce"}
        assert transport.counts.repeated == 0


@pytest.mark.rule("FL-5")
@runs_on_every_loop
async def test_a_peer_that_asks_and_never_acknowledges_the_answers_is_let_go() -> None:
    limits = UdpLimits(reply=1.0, repeat=0.05, control=2_000)
    async with hub(limits) as (node, journal, _, place):
        with raw_peer(place) as peer:
            hello = Hello("greedy", {}, nonce="of greedy", can=(CAPABILITY,))
            peer.say(*control_datagrams(msgspec.json.encode(hello), 1))
            await until(lambda: [session.peer for session in node.sessions] == ["greedy"])
            for number in range(2, 200):
                question = b'{"waystation":"resolve","number":%d,"participant":"x"}' % number
                peer.say(*control_datagrams(question, number))
                await asyncio.sleep(0)
            await until(lambda: not node.sessions)
            assert journal.session_events() == [("opened", None), ("closed", "QUEUE_FULL")]
            assert "not acknowledged" in journal.sessions[-1].detail
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_late_datagrams_are_no_sign_of_life() -> None:
    limits = UdpLimits(reply=1.0, repeat=0.05, idle=0.5)
    async with hub(limits) as (node, journal, _, place):
        with raw_peer(place) as peer:
            peer.send("echo", b"x", 100)
            await peer.hear()
            body = encode_body(Message(Route.parse("echo"), Route.parse("app"), b"old"))
            late = fragments(body, 50)
            async with asyncio.timeout(DEADLINE):
                while node.sessions:
                    peer.say(*late)
                    await asyncio.sleep(0.05)
        assert journal.session_events()[-1] == ("closed", "TRANSPORT_DOWN")


# --- What a peer does wrong -----------------------------------------------------------------------


@runs_on_every_loop
async def test_lies_and_rubbish_are_counted_and_change_nothing() -> None:
    chance = random.Random(5)
    rubbish = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(2000),
        bytes.fromhex("85 01 19ffff 1affffffff f5 41 61"),  # an offset of 4 GiB
        bytes.fromhex("85 01 01 00 f5 5affffffff"),  # a chunk that is not there
        bytes.fromhex("85 01 02 00 f5 41 ff"),  # a message that is none
        bytes.fromhex("85 01 03 00 f5 40"),
        *(chance.randbytes(chance.randrange(600)) for _ in range(200)),
    ]
    async with hub() as (node, journal, transport, place):
        with raw_peer(place) as stranger, raw_peer(place) as known:
            known.send("echo", b"before", 100)
            assert (await known.hear()).payload == b"before"
            for datagram in rubbish:
                stranger.say(datagram)
                known.say(datagram)
                await asyncio.sleep(0)
            await until(lambda: transport.counts.malformed > 300)
            known.send("echo", b"after", 101)
            assert (await known.hear()).payload == b"after"
        assert len(node.sessions) == 1
        assert journal.session_events() == [("opened", None)]
        await serves_an_honest_peer(place)


@runs_on_every_loop
async def test_a_message_that_grows_too_large_is_let_go() -> None:
    async with hub(UdpLimits(frame=2000)) as (_, _, transport, place):
        with raw_peer(place) as peer:
            peer.send("echo", bytes(10_000), 1)  # as a stranger
            peer.send("echo", b"small", 2)
            assert (await peer.hear()).payload == b"small"
            peer.send("echo", bytes(10_000), 3)
            peer.send("echo", b"still here", 4)
            assert (await peer.hear()).payload == b"still here"
            assert transport.counts.malformed == 2


@runs_on_every_loop
async def test_strangers_that_never_finish_are_bounded() -> None:
    limits = UdpLimits(strangers=5, age=0.2)
    async with hub(limits) as (node, _, transport, place):
        body = encode_body(Message(Route.parse("echo"), Route.parse("app"), bytes(1000)))
        first, *rest = fragments(body, 1)
        with raw_peer(place) as early:
            early.say(first)
            for _ in range(20):
                with raw_peer(place) as peer:
                    peer.say(first)
            await until(lambda: transport.counts.unfinished >= 16)
            early.say(*rest)  # too late: others came
            early.send("echo", b"again", 2)
            assert (await early.hear()).payload == b"again"
        (port,) = {session._link._port for session in node.sessions}  # type: ignore[union-attr]
        assert len(port._strangers) <= 5
        await until(lambda: not port._strangers)


@pytest.mark.rule("FL-2")
@runs_on_every_loop
async def test_a_peer_that_is_not_admitted_sends_no_large_message() -> None:
    body = encode_body(Message(Route.parse("echo"), Route.parse("app"), bytes(3000)))
    async with hub(UdpLimits(unadmitted=2000), token=b"secret") as (node, _, transport, place):
        with raw_peer(place) as peer:
            peer.say(*control_datagrams(b"who is there?", 1))
            await until(lambda: node.sessions)
            peer.say(*fragments(body, 2))
            await until(lambda: transport.counts.malformed)
    async with hub(UdpLimits(unadmitted=2000)) as (_, _, transport, place):
        with raw_peer(place) as peer:
            peer.say(*control_datagrams(b"who is there?", 1))
            peer.say(*fragments(body, 2))
            assert (await peer.hear()).payload == bytes(3000)


@pytest.mark.rule("FL-1")
@runs_on_every_loop
async def test_strangers_share_the_room_for_unfinished_messages() -> None:
    body = encode_body(Message(Route.parse("echo"), Route.parse("app"), bytes(2000)))
    async with hub(UdpLimits(held=3000, age=30.0)) as (_, _, transport, place):
        with raw_peer(place) as one, raw_peer(place) as two:
            one.say(*fragments(body, 1)[:4])
            two.say(*fragments(body, 1)[:4])
            await until(lambda: transport.counts.unfinished)
            two.send("echo", b"x", 2)
            assert (await two.hear()).payload == b"x"


@runs_on_every_loop
async def test_no_more_peers_than_the_limit_and_the_others_stay() -> None:
    async with hub(UdpLimits(peers=2)) as (node, _, transport, place):
        with raw_peer(place) as one, raw_peer(place) as two, raw_peer(place) as three:
            for peer in (one, two):
                peer.send("echo", b"x", 1)
                await peer.hear()
            three.send("echo", b"x", 1)
            await until(lambda: transport.counts.refused == 1)
            assert len(node.sessions) == 2
            one.say(*control_datagrams(GOODBYE, 2))
            await until(lambda: len(node.sessions) == 1)
            three.send("echo", b"now", 2)
            assert (await three.hear()).payload == b"now"


@runs_on_every_loop
async def test_unfinished_messages_together_hold_no_more_than_the_limit() -> None:
    limits = UdpLimits(held=3000, age=0.2)
    async with hub(limits) as (node, _, transport, place):
        with raw_peer(place) as one, raw_peer(place) as two:
            for peer in (one, two):
                peer.send("echo", b"x", 1)
                await peer.hear()
            body = encode_body(Message(Route.parse("echo"), Route.parse("app"), bytes(2000)))
            *most, last = fragments(body, 2)
            one.say(*most)
            two.say(*most)
            await until(lambda: transport.counts.unfinished)
            one.say(last)
            assert (await one.hear()).payload == bytes(2000)  # the first one had its room
            one.say(*fragments(body, 3)[:2])
            links = [session._link for session in node.sessions]
            await until(lambda: transport.counts.unfinished >= 2)  # by age
            await until(lambda: all(link.reassembly.held == 0 for link in links))  # type: ignore[union-attr]
            assert links[0]._port._held == 0  # type: ignore[union-attr]
            for peer in (one, two):
                peer.send("echo", b"goes on", 9)
                assert (await peer.hear()).payload == b"goes on"


@runs_on_every_loop
async def test_a_reader_that_is_paused_keeps_a_bounded_rest_and_goes_on_in_order() -> None:
    little = Limits(heartbeat=0, receiver=5_000)
    async with hub(UdpLimits(unread=20_000), node_limits=little) as (node, _, transport, place):
        gate = Gate(node, "gate", inbox=1)
        with raw_peer(place) as peer:
            peer.send("echo", b"x", 0)
            await peer.hear()
            for number in range(1, 300):
                peer.send("gate", b"%-300d" % number, number)
                if number % 20 == 0:
                    await asyncio.sleep(0)
            await until(lambda: transport.counts.unread)
            await serves_an_honest_peer(place)
            gate.free.set()
            await until(lambda: len(gate.got) > 20)
            await until(lambda: not node.sessions[0].is_stalled)
            peer.send("gate", b"%-300d" % 300, 300)
            await until(lambda: int(gate.got[-1]) == 300)
        numbers = [int(payload) for payload in gate.got]
        assert numbers == sorted(set(numbers))


# --- How a link ends ------------------------------------------------------------------------------


@runs_on_every_loop
async def test_a_goodbye_ends_the_other_side_and_what_is_late_opens_nothing() -> None:
    async with hub() as (node, journal, transport, place):
        with raw_peer(place) as peer:
            peer.send("echo", b"x", 1)
            await peer.hear()
            peer.say(*control_datagrams(GOODBYE, 2))
            await nothing_is_left(node)
            assert journal.session_events() == [("opened", None), ("closed", None)]
            late = transport.counts.late
            peer.send("echo", b"late", 3)
            await until(lambda: transport.counts.late > late)
            assert node.sessions == []
        with raw_peer(place) as other:
            other.say(*control_datagrams(GOODBYE, 2))  # from somebody unknown
            await until(lambda: transport.counts.late > late + 1)
        assert node.sessions == []
        assert len(journal.session_events()) == 2


@runs_on_every_loop
async def test_a_session_that_is_closed_says_goodbye() -> None:
    async with hub() as (node, journal, _, place):
        with raw_peer(place) as peer:
            peer.send("echo", b"x", 1)
            await peer.hear()
            await node.sessions[0].close()
            found = None
            while found is None or found.payload != GOODBYE:
                found = peer.reassembly.feed(await peer.datagram())
        assert journal.session_events()[-1] == ("closed", None)


@runs_on_every_loop
async def test_a_peer_that_is_silent_for_long_is_let_go() -> None:
    async with hub(UdpLimits(idle=0.2)) as (node, journal, _, place):
        with raw_peer(place) as peer:
            peer.send("echo", b"x", 1)
            await peer.hear()
            await nothing_is_left(node)
            assert journal.session_events()[-1] == ("closed", "TRANSPORT_DOWN")
            assert "nothing was heard for 0.2 s" in journal.sessions[-1].detail


@runs_on_every_loop
async def test_a_listener_that_is_closed_keeps_its_links_and_takes_no_others() -> None:
    async with hub() as (node, _, transport, place):
        (listening,) = node.listening
        with raw_peer(place) as peer, raw_peer(place) as other:
            peer.send("echo", b"x", 1)
            await peer.hear()
            await listening.close()
            other.send("echo", b"x", 1)
            await until(lambda: transport.counts.late)
            peer.send("echo", b"still", 2)
            assert (await peer.hear()).payload == b"still"
            peer.say(*control_datagrams(GOODBYE, 3))
            await nothing_is_left(node)
        async with Node("next", transports=[Udp()], limits=QUICK) as successor:
            await successor.listen(f"udp://{place}")  # so the socket is gone


@runs_on_every_loop
async def test_a_listener_that_comes_back_without_its_memory_gets_a_new_session() -> None:
    beating = Limits(heartbeat=0.1)
    async with Node("leaf", transports=[Udp(limits=HASTY)], limits=beating) as client:
        async with Node("hub", transports=[Udp()], limits=beating) as first:
            listening = await first.listen(f"udp://{HOST}:0")
            session = await client.connect(listening.url, name="hub")
            await until(lambda: first.sessions)
            port = first.sessions[0]._link._port  # type: ignore[union-attr]
            port.send = lambda *_: True  # as if it had been killed: no goodbye
        # What the client says before it notices makes a session, which it ends when it does.
        async with Node("hub", transports=[Udp()], limits=beating) as second:
            echo(second)
            await second.listen(listening.url)
            await until(lambda: session.openings >= 2)
            answer = await client.request("hub => echo", b"back?", timeout=DEADLINE)
            assert answer.payload == b"back?"
            await until(lambda: len(second.sessions) == 1)


@runs_on_every_loop
async def test_a_socket_that_takes_nothing_makes_senders_wait() -> None:
    theirs, owner = Notes(b"other"), Notes()
    transport = Udp(limits=UdpLimits(unsent=5_000, linger=0.2), expect_reply=False)
    listener = await transport.listen(f"{HOST}:0", lambda: theirs)
    link = await transport.dial([listener.place], owner)
    port = link._port  # type: ignore[attr-defined]
    port.socket.is_full = True  # as after a BlockingIOError
    for _ in range(20):
        link.send(message(bytes(400)))
    await settle()
    assert owner.told[-1] == "pause"
    assert (owner.settled, theirs.messages) == (0, [])
    port.socket._drain()
    await until(lambda: len(theirs.messages) == 20)
    assert owner.told[-1] == "resume"
    port.socket.is_full = True
    link.send(message())
    link.close()
    await until(lambda: owner.end)
    assert owner.end is not None
    assert owner.end[0] is Reason.TRANSPORT_DOWN
    await listener.close()
    assert theirs.link is not None
    theirs.link.abort()
    await until(lambda: theirs.end)


class _FullSocket:
    """A socket that takes no datagram for a while."""

    def __init__(self, found: socket.socket, refusals: int) -> None:
        self._socket = found
        self.refusals = refusals

    def __getattr__(self, name: str) -> object:
        return getattr(self._socket, name)

    def send(self, data: bytes) -> int:
        self.refusals -= 1
        if self.refusals >= 0:
            raise BlockingIOError
        return self._socket.send(data)


@runs_on_every_loop
async def test_what_the_system_does_not_take_is_sent_when_it_does() -> None:
    theirs, owner = Notes(b"other"), Notes()
    transport = Udp(expect_reply=False)
    listener = await transport.listen(f"{HOST}:0", lambda: theirs)
    link = await transport.dial([listener.place], owner)
    port = link._port  # type: ignore[attr-defined]
    full = port.socket._socket = _FullSocket(port.socket._socket, 3)
    for number in range(10):
        link.send(message(b"%d" % number))
    await until(lambda: len(theirs.messages) == 10)
    assert [int(m.payload) for m in theirs.messages] == list(range(10))
    assert full.refusals < 0
    link.close()
    await until(lambda: owner.end and theirs.end)
    await listener.close()


# --- Places and tokens ----------------------------------------------------------------------------


@runs_on_every_loop
async def test_a_token_is_asked_for_over_udp_as_well() -> None:
    async with hub(token=WORD) as (node, _, _, place):
        async with leaf(token=WORD) as client:
            await client.connect(f"udp://{place}", name="hub")
            assert (await client.request("hub => echo", b"x")).payload == b"x"
        async with leaf(token="not " + WORD) as client:
            with pytest.raises(UnreachableError):
                await client.connect(f"udp://{place}", name="hub", wait=1, keep=False)
        await nothing_is_left(node)


@runs_on_every_loop
async def test_of_several_places_the_first_with_a_way_is_taken() -> None:
    async with hub() as (_, _, _, place), leaf() as client:
        await client.connect("udp://[fe80::1%none]:1", f"udp://{place}", name="hub")
        assert (await client.request("hub => echo", b"x")).payload == b"x"
        with pytest.raises(OSError, match="fe80"):
            await Udp().dial(["[fe80::1%none]:1"], Notes())
        with pytest.raises(OSError, match="no address"):
            await Udp().dial([], Notes())


@async_test
async def test_what_is_no_place_or_taken_is_an_error_that_says_so() -> None:
    async with hub() as (node, _, _, place):
        with pytest.raises(OSError, match=f"cannot listen on {place}"):
            await node.listen(f"udp://{place}")
        with pytest.raises(LocalError):
            await Udp().listen("nowhere", lambda: None)
        with pytest.raises(LocalError):
            await Udp().dial(["nowhere"], Notes())


@runs_on_every_loop
async def test_ipv6_places_have_brackets() -> None:
    theirs, owner = Notes(), Notes()
    try:
        listener = await Udp().listen("[::1]:0", lambda: theirs)
    except OSError:
        pytest.skip("no IPv6 here")
    link = await Udp().dial([listener.place], owner)
    assert link.place == listener.place
    link.send_control(b"hello")
    await until(lambda: theirs.link)
    link.close()
    await until(lambda: owner.end and theirs.end)
    await listener.close()
