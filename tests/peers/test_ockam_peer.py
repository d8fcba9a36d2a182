"""Our node and Ockam's own in Rust (tests/peers/ockam): each sends, forwards and answers.

The names of the Rust workers, and what they do, stand in main.rs. Everything about the program that
blocks runs in a thread: our node lives in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec

import pytest

import waystation
from tests.peers import ockam_peer
from tests.peers.ockam_peer import TEST_SECONDS, Peer
from waystation import NEVER, Message, Node, Outcome, Reason, Route
from waystation.core.record import SessionKind
from waystation.errors import NoReplyError
from waystation.node import FAIL, Context, Limits, Session
from waystation.testing import Gate, Recorder, collect
from waystation.wire.bare import _number as bare_number
from waystation.wire.ockam import FRAME_LIMIT, encode_departure

pytestmark = [pytest.mark.peer, pytest.mark.timeout(TEST_SECONDS)]

SCENARIO_SECONDS = 60
SIZES = (0, 1, 64 * 1024, 1024 * 1024, FRAME_LIMIT - 1024)
"""The last leaves room for the routes of a question and of its answer."""

P = ParamSpec("P")


def runs(scenario: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test written as a coroutine."""

    @functools.wraps(scenario)
    def test(*arguments: P.args, **named: P.kwargs) -> None:
        waystation.run(asyncio.wait_for(scenario(*arguments, **named), SCENARIO_SECONDS))

    return test


@pytest.fixture(scope="module")
def program() -> Path:
    return ockam_peer.built()


@pytest.fixture(scope="module")
def rust(program: Path) -> Iterator[Peer]:
    """A Rust node for all tests that do it no harm."""
    del program
    with ockam_peer.serving() as peer:
        yield peer


@contextlib.asynccontextmanager
async def joined(peer: Peer) -> AsyncIterator[tuple[Node, Session, Recorder]]:
    """A node of ours with a session to the Rust node, by the name `rust`."""
    async with Node("ours") as node:
        heard = Recorder(node)
        yield node, await node.connect(f"tcp://127.0.0.1:{peer.port}", name="rust"), heard


@contextlib.asynccontextmanager
async def listening(name: str = "ours") -> AsyncIterator[tuple[Node, int]]:
    """A node of ours with an `echo` and two hops, and the port where it listens."""
    async with Node(name) as node:

        @node.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            await context.reply(message.payload)

        @node.worker("hop", "hop2")
        def hop(message: Message, context: Context) -> None:
            raise AssertionError((message, context))  # it is never the last one

        place = (await node.listen("tcp://127.0.0.1:0")).place
        yield node, int(place.rpartition(":")[2])


@contextlib.asynccontextmanager
async def in_thread(
    blocking: contextlib.AbstractContextManager[Peer],
) -> AsyncIterator[Peer]:
    """Enters and leaves it beside the event loop."""
    peer = await asyncio.to_thread(blocking.__enter__)
    try:
        yield peer
    finally:
        await asyncio.to_thread(blocking.__exit__, None, None, None)


async def until(condition: Callable[[], bool]) -> None:
    """The scenario's own limit bounds it."""
    while not condition():  # noqa: ASYNC110 - many things can make it come true
        await asyncio.sleep(0.005)


def contents(size: int) -> bytes:
    """The bytes that the Rust program writes as well; shifted or cut ones are noticed."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


# --- Our node asks --------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.rule("WK-10")
@runs
async def test_our_question_goes_over_a_rust_hop_to_a_rust_worker_and_comes_back(
    rust: Peer,
) -> None:
    async with joined(rust) as (node, session, heard):
        answer = await node.request("rust => hop => raw_echo", b"hello")
        assert answer.payload == b"hello"
        assert str(answer.return_route) == "0#rust => 0#hop => 0#raw_echo"
        assert session.peer is None  # a plain Ockam node does not say who it is
    records = sorted(heard.messages, key=lambda record: record.arrival.received_at)
    assert [record.verdict.outcome for record in records] == [
        Outcome.FORWARDED,
        Outcome.DELIVERED,
    ]


@pytest.mark.rule("WK-8")
@runs
async def test_a_route_with_the_place_of_a_rust_node_opens_a_session(rust: Peer) -> None:
    async with Node("ours") as node:
        answer = await node.request(f"tcp#127.0.0.1:{rust.port} => raw_echo", b"hello")
        [session] = node.sessions
        assert str(answer.return_route) == f"0#{session.name} => 0#raw_echo"


@pytest.mark.parametrize("text", ["", "hello", "ä" * 1000], ids=["empty", "short", "long"])
@runs
async def test_ockams_own_echoer_takes_and_returns_texts(rust: Peer, text: str) -> None:
    async with joined(rust) as (node, _, _):
        written = text.encode()
        written = bare_number(len(written)) + written
        assert (await node.request("rust => hop => echoer", written)).payload == written


@pytest.mark.rule("AD-4")
@pytest.mark.parametrize("size", SIZES)
@runs
async def test_a_payload_of_ours_of_any_size_comes_back_whole(rust: Peer, size: int) -> None:
    async with joined(rust) as (node, _, _):
        payload = contents(size)
        assert (await node.request("rust => raw_echo", payload)).payload == payload


@pytest.mark.rule("OB-2")
@runs
async def test_the_largest_frame_is_taken_and_one_byte_more_harms_nothing(rust: Peer) -> None:
    async with joined(rust) as (node, session, heard):
        bare = Message(Route.parse("rust => sink"), Route(), b"", node.new_id())
        frame_of_one_mebibyte = Message(bare.onward_route, Route(), bytes(1 << 20), bare.id)
        overhead = len(encode_departure(frame_of_one_mebibyte)) - (1 << 20) - 4
        largest = bytes(FRAME_LIMIT - overhead)
        await node.request("rust => sink", b"report")
        assert (await node.send("rust => sink", largest)).outcome is Outcome.FORWARDED
        verdict = await node.send("rust => sink", largest + b"!")
        assert (verdict.outcome, verdict.reason) == (Outcome.DROPPED, Reason.TOO_LARGE)
        assert (await node.request("rust => sink", b"report")).payload == b"1"
        assert session.is_open
    assert [record.kind for record in heard.sessions] == [SessionKind.OPENED, SessionKind.CLOSED]


@pytest.mark.rule("WK-2")
@runs
async def test_three_rust_hops_stand_in_the_way_back_in_order(rust: Peer) -> None:
    async with joined(rust) as (node, _, _):
        answer = await node.request("rust => hop1 => hop2 => hop3 => raw_echo", b"hello")
        way_back = "0#rust => 0#hop1 => 0#hop2 => 0#hop3 => 0#raw_echo"
        assert str(answer.return_route) == way_back


@pytest.mark.rule("WK-5")
@runs
async def test_ten_thousand_messages_in_a_row_are_answered_in_order(rust: Peer) -> None:
    async with joined(rust) as (node, _, _):
        answers: list[int] = []

        @node.worker("answers")
        def collect(message: Message, context: Context) -> None:
            del context
            answers.append(int(message.payload))

        onward, back = Route.parse("rust => raw_echo"), Route.parse("answers")
        for number in range(10_000):
            await node.route(Message(onward, back, b"%d" % number, node.new_id()))
        await until(lambda: len(answers) == 10_000)
        assert answers == list(range(10_000))


@runs
async def test_two_sessions_with_one_rust_node_are_two(rust: Peer) -> None:
    async with joined(rust) as (node, first, _):
        second = await node.connect(f"tcp://127.0.0.1:{rust.port}", name="rust2")
        for name in ("rust", "rust2"):
            answer = await node.request(f"{name} => raw_echo", b"hello")
            assert str(answer.return_route) == f"0#{name} => 0#raw_echo"
        await first.close()
        assert (await node.request("rust2 => raw_echo", b"still there")).payload == b"still there"
        assert node.sessions == [second]


@pytest.mark.parametrize("nobody", ["nobody", "hop => nobody", "9#nobody"])
@runs
async def test_the_rust_node_is_silent_about_an_unknown_address_and_the_session_lives(
    rust: Peer, nobody: str
) -> None:
    async with joined(rust) as (node, session, heard):
        with pytest.raises(NoReplyError):
            await node.request(f"rust => {nobody}", b"hello?", timeout=0.2)
        assert (await node.request("rust => raw_echo", b"hello")).payload == b"hello"
        assert session.is_open
        assert [record.kind for record in heard.sessions] == [SessionKind.OPENED]
        assert heard.messages[0].verdict.outcome is Outcome.FORWARDED


@runs
async def test_a_rust_node_that_sends_no_heartbeats_is_not_taken_for_dead(rust: Peer) -> None:
    async with Node("ours", limits=Limits(heartbeat=0.02)) as node:
        session = await node.connect(f"tcp://127.0.0.1:{rust.port}", name="rust")
        await asyncio.sleep(0.5)  # 25 heartbeats of ours
        assert session.is_open
        assert (await node.request("rust => raw_echo", b"hello")).payload == b"hello"


@pytest.mark.rule("WK-6")
@runs
async def test_a_slow_rust_worker_stalls_its_sender_and_nobody_else(rust: Peer) -> None:
    async with joined(rust) as (node, _, _):
        await node.connect(f"tcp://127.0.0.1:{rust.port}", name="other")
        answers: list[int] = []

        @node.worker("answers")
        def collect(message: Message, context: Context) -> None:
            del context
            answers.append(int(message.payload[:6]))

        onward, back = Route.parse("rust => slow"), Route.parse("answers")
        filler = bytes(512 * 1024)

        def question(number: int) -> Message:
            return Message(onward, back, b"%06d" % number + filler, node.new_id())

        sent = refused = 0
        while refused < 10:  # the buffers on the way are full, and stay so
            verdict = await node.route(question(sent), FAIL)
            if verdict.reason is None:
                sent, refused = sent + 1, 0
            else:
                assert verdict.reason is Reason.QUEUE_FULL
                refused += 1
            await asyncio.sleep(0.002)
        assert len(answers) < sent
        assert (await node.request("other => raw_echo", b"hello")).payload == b"hello"
        assert (await node.route(question(sent))).outcome is Outcome.FORWARDED
        await until(lambda: len(answers) == sent + 1)
        assert answers == list(range(sent + 1))


@runs
async def test_a_session_with_a_killed_rust_node_comes_back_with_its_successor(
    program: Path,
) -> None:
    del program
    with ockam_peer.serving() as first:
        async with joined(first) as (node, session, heard):
            assert (await node.request("rust => raw_echo", b"before")).payload == b"before"
            await asyncio.to_thread(first.kill)
            await until(lambda: not session.is_open)
            verdict = await node.send("rust => raw_echo", b"meanwhile", policy=FAIL)
            assert verdict.reason is Reason.TRANSPORT_DOWN
            waits = asyncio.create_task(node.request("rust => hop => raw_echo", b"after"))
            async with in_thread(ockam_peer.serving("--port", first.port)):
                assert (await waits).payload == b"after"
    kinds = [record.kind for record in heard.sessions if record.kind is not SessionKind.REFUSED]
    assert kinds[:3] == [SessionKind.OPENED, SessionKind.CLOSED, SessionKind.OPENED]


# --- The Rust node asks ---------------------------------------------------------------------------


@pytest.mark.rule("WK-10")
@runs
async def test_a_rust_question_goes_over_our_hop_to_our_worker_and_comes_back(
    program: Path,
) -> None:
    del program
    async with listening() as (node, port):
        heard = Recorder(node)
        back = await asyncio.to_thread(ockam_peer.ask, port, "hop => hop2 => echo", 5, 3)
        assert back.endswith("0#hop => 0#hop2 => 0#echo")
        await until(lambda: not node.sessions)
        assert [record.kind for record in heard.sessions] == [
            SessionKind.OPENED,
            SessionKind.CLOSED,
        ]
        outcomes = [record.verdict.outcome for record in heard.messages]
        assert outcomes.count(Outcome.DELIVERED) == 3 * 5  # two hops, echo, and the hops again


@pytest.mark.rule("AD-4")
@pytest.mark.parametrize("size", SIZES)
@runs
async def test_a_rust_payload_of_any_size_comes_back_whole(program: Path, size: int) -> None:
    del program
    async with listening() as (_, port):
        await asyncio.to_thread(ockam_peer.ask, port, "echo", size, 2)


@runs
async def test_ten_thousand_rust_messages_in_a_row_arrive(program: Path) -> None:
    del program
    async with listening() as (node, port):
        arrived = 0

        @node.worker("sink")
        async def sink(message: Message, context: Context) -> None:
            nonlocal arrived
            if not message.payload.startswith(b"report"):
                arrived += 1
                return
            await context.reply(b"%d" % arrived)
            arrived = 0

        place = f"127.0.0.1:{port}"
        await asyncio.to_thread(ockam_peer.run, "bench-oneway", place, "sink", 100, 10_000)


@runs
async def test_two_rust_nodes_at_once_get_their_own_answers(program: Path) -> None:
    del program
    async with listening() as (_, port):
        await asyncio.gather(
            *(asyncio.to_thread(ockam_peer.ask, port, "hop => echo", n, 300) for n in (100, 101))
        )


# --- Nodes of both makes in a row -----------------------------------------------------------------


@contextlib.asynccontextmanager
async def between() -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes of ours, with a Rust node between that has joined the second as `right`."""
    async with listening("right") as (right, port):
        rust = ockam_peer.serving("--connect", f"127.0.0.1:{port}", "--name", "right")
        async with in_thread(rust) as peer, joined(peer) as (left, _, _):
            yield left, right


@pytest.mark.rule("WK-2")
@pytest.mark.parametrize("size", SIZES)
@runs
async def test_a_rust_node_between_two_of_ours_passes_both_ways(program: Path, size: int) -> None:
    del program
    async with between() as (left, _):
        payload = contents(size)
        answer = await left.request("rust => hop => right => hop => echo", payload)
        assert answer.payload == payload
        assert str(answer.return_route) == "0#rust => 0#hop => 0#right => 0#hop => 0#echo"


@runs
async def test_id_and_expiry_end_at_a_rust_node_that_traces_nothing(program: Path) -> None:
    del program
    async with between() as (left, right):
        sent, heard = Recorder(left), Recorder(right)
        await left.request("rust => right => echo", b"hello", timeout=10)
        await until(lambda: len(heard.messages) == 2)
        question = min(sent.messages, key=lambda record: record.arrival.received_at).arrival.message
        arrived = min(heard.messages, key=lambda record: record.arrival.received_at).arrival.message
        assert question.expiry != NEVER
        assert (arrived.expiry, arrived.id == question.id) == (NEVER, False)


# --- Portals --------------------------------------------------------------------------------------

DOWNLOAD = contents(50_000_000)


@contextlib.asynccontextmanager
async def file_server() -> AsyncIterator[int]:
    """A server that sends the same bytes to everybody who connects; its port."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(DOWNLOAD)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def portal(nodes: Sequence[Node]) -> AsyncIterator[int]:
    """Where one can download through these nodes: from a Rust inlet to a Rust outlet."""
    first, *others = nodes
    place = (await first.listen("tcp://127.0.0.1:0")).place
    before = first
    for number, node in enumerate(others):
        listener = await node.listen("tcp://127.0.0.1:0")
        await before.connect(listener.url, name=f"next-{number}")
        before = node
    onward = [f"next-{number}" for number in range(len(others))]
    async with file_server() as server, contextlib.AsyncExitStack() as stack:
        behind = ockam_peer.serving("--outlet", f"127.0.0.1:{server}")
        outlet = await stack.enter_async_context(in_thread(behind))
        await before.connect(f"tcp://127.0.0.1:{outlet.port}", name="rust")
        route = " => ".join([*onward, "rust", "outlet"])
        port = int(place.rpartition(":")[2])
        yield (await stack.enter_async_context(in_thread(ockam_peer.inlet(port, route)))).port


async def download(port: int, begin_when: Callable[[], bool] = lambda: True) -> bytes:
    """All that comes through the portal; nothing of it is read before a condition holds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await until(begin_when)
    try:
        return await reader.readexactly(len(DOWNLOAD))
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def hanging_receivers(node: Node) -> AsyncIterator[None]:
    """A worker that never finishes and a leaf that reads nothing, and a sender that floods both."""
    listener = await node.listen("tcp://127.0.0.1:0")
    Gate(node, "hangs")
    async with Node("sender") as sender, Node("leaf") as leaf:
        collect(leaf, "stopped")
        for other in (sender, leaf):
            await other.connect(listener.url, name="node", parent=other is leaf)
        await until(lambda: "stopped" in node.router.table.snapshot(node.now()))
        leaf.sessions[0].pause_reading()
        flood = [
            asyncio.ensure_future(sender.send(f"node => {name}", bytes(10_000)))
            for _ in range(2_000)
            for name in ("hangs", "stopped")
        ]
        try:
            await until(lambda: len(sender.sessions[0].held_names) == 2)
            yield
            assert not all(task.done() for task in flood)
        finally:
            for task in flood:
                task.cancel()


@pytest.mark.rule("FL-3")
@runs
async def test_a_download_through_a_portal_is_whole_while_other_receivers_hang(
    program: Path,
) -> None:
    del program
    async with Node("ours", hub=True) as node, portal([node]) as port:
        heard = Recorder(node)
        async with hanging_receivers(node):
            assert await download(port) == DOWNLOAD
            assert {record.kind for record in heard.sessions} == {SessionKind.OPENED}


@pytest.mark.rule("FL-3", "WK-5")
@pytest.mark.parametrize("count", [1, 2])
@runs
async def test_a_download_that_is_not_read_until_its_server_is_held_back_is_whole(
    program: Path, count: int
) -> None:
    del program
    async with contextlib.AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(f"ours-{n}")) for n in range(count)]
        heard = [Recorder(node) for node in nodes]
        port = await stack.enter_async_context(portal(nodes))
        assert await download(port, begin_when=lambda: nodes[-1].flow.pressed > 0) == DOWNLOAD
        assert [recorder.counts()["QUEUE_FULL"] for recorder in heard] == [0] * count


# --- Greetings ------------------------------------------------------------------------------------


def greeted_wrongly(port: int) -> bytes:
    """What a node sends to a peer of an unknown version before it ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"\x07" + bytes(64))
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(4096):
                said += data
        return said


@runs
async def test_both_nodes_end_a_connection_with_a_wrong_preface_and_keep_the_others(
    rust: Peer,
) -> None:
    async with joined(rust) as (left, session, _), listening("right") as (right, port):
        heard = Recorder(right)
        assert (await asyncio.to_thread(greeted_wrongly, rust.port))[:1] in (b"", b"\x01")
        assert (await asyncio.to_thread(greeted_wrongly, port))[:1] == b"\x01"
        assert (await left.request("rust => raw_echo", b"hello")).payload == b"hello"
        assert session.is_open
        await until(lambda: not right.sessions)
        assert heard.sessions[-1].reason is Reason.MALFORMED
        await asyncio.to_thread(ockam_peer.ask, port, "echo", 5)
