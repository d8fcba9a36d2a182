"""The conformance kit: what every transport must do, ours and yours, checked over real nodes.

    from waystation.testing import check_transport
    from waystation.transports import Tcp

    async def test_my_transport():
        await check_transport(Tcp, "tcp://127.0.0.1:0")

Each check stands alone: two fresh nodes, a session between them over a path on which things can go
wrong. Waits are bounded; `patience` stretches them on a slow machine.

A transport of datagrams loses messages, and nobody holds its senders back. With `lossy=True` two
checks ask for less, under names that say so (LOSSY_CHECKS). The others stay: on a quiet machine's
own network nothing needs to get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias

from msgspec import Struct

from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord, Record
from waystation.node import FAIL, Context, Limits, Listening, Node, Session, Wait
from waystation.testing.path import FaultyPath, tcp_path
from waystation.transports.transport import Transport

BEAT: Final = 0.2
"""Seconds between heartbeats, so that the loss of a silent peer is noticed soon."""

ORDERED: Final = 5_000
"""So many messages each way show that order is kept."""

STUCK: Final = 1_000
"""So many messages of a KiB are more than anybody should keep for a reader of datagrams."""

FLOOD: Final = 200_000
"""A transport that takes more messages of a KiB than this for a peer that does not read is not
bounded."""

MakePath: TypeAlias = Callable[[str], AbstractAsyncContextManager[FaultyPath]]
Check: TypeAlias = Callable[["_Pair"], Awaitable[None]]


class NotConformingError(AssertionError):
    """A transport does not do what every transport must; says which checks failed, and how."""


class Conformance(Struct, frozen=True):
    """The result of a check: the names of what was checked, in order."""

    passed: tuple[str, ...]


async def check_transport(
    make: Callable[[], Transport],
    place: str,
    *,
    path: MakePath = tcp_path,
    largest: int = 1024 * 1024,
    too_large: int = 17 * 1024 * 1024,
    patience: float = 1.0,
    lossy: bool = False,
) -> Conformance:
    """Check a transport; raises NotConformingError.

    `make` is called once for each node. `place` is where to listen: a free place each time, as port
    0 gives it. `path` makes a way to a listener on which faults can be injected; the default does
    for everything that runs over TCP. A payload of `largest` bytes must go through, one of
    `too_large` must be refused without harm to others. `lossy` is for datagrams: what arrives must
    be in order and whole, but need not be everything, and senders need not feel a slow reader.
    """
    failures: list[str] = []
    passed: list[str] = []
    for name, check in (LOSSY_CHECKS if lossy else CHECKS).items():
        pair = _Pair(make, place, path, largest, too_large, patience)
        try:
            async with asyncio.timeout(60 * patience):
                await check(pair)
        except Exception as error:  # noqa: BLE001 - what a transport does wrong may raise anything
            failures.append(f"{name}: {str(error) or f'not within {60 * patience:g} s'}")
        else:
            passed.append(name)
    if failures:
        raise NotConformingError("; ".join(failures))
    return Conformance(tuple(passed))


class _Pair:
    """What a check has to work with."""

    def __init__(
        self,
        make: Callable[[], Transport],
        place: str,
        path: MakePath,
        largest: int,
        too_large: int,
        patience: float,
    ) -> None:
        self.make = make
        self.place = place
        self.path = path
        self.largest = largest
        self.too_large = too_large
        self.patience = patience

    def node(self, name: str, *, heartbeat: float = 5.0, stall: float = 30.0) -> Node:
        """A node with the transport."""
        limits = Limits(heartbeat=heartbeat, stall=stall)
        return Node(name, transports=[self.make()], limits=limits)

    @asynccontextmanager
    async def nodes(self, *, heartbeat: float = 5.0) -> AsyncIterator[tuple[Node, Node, Listening]]:
        """Two nodes; the second listens."""
        async with (
            self.node("left", heartbeat=heartbeat) as left,
            self.node("right", heartbeat=heartbeat) as right,
        ):
            yield left, right, await right.listen(self.place)

    @asynccontextmanager
    async def faulty(
        self, *, heartbeat: float = BEAT
    ) -> AsyncIterator[tuple[Node, Node, Session, FaultyPath]]:
        """Two nodes and a kept session from the first to the second, over a faulty path."""
        async with (
            self.nodes(heartbeat=heartbeat) as (left, right, listening),
            self.path(listening.place) as path,
        ):
            kind = listening.url.partition("://")[0]
            yield left, right, await left.connect(f"{kind}://{path.place}", name="right"), path

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to come true."""
        deadline = asyncio.get_running_loop().time() + 15 * self.patience
        while not condition():
            _require(asyncio.get_running_loop().time() < deadline, f"{what}: it never came to it")
            await asyncio.sleep(0.005)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _echo(node: Node) -> None:
    @node.worker("echo")
    async def echo(message: Message, context: Context) -> None:
        await context.reply(message.payload)


def _collect(node: Node, name: str) -> list[Message]:
    found: list[Message] = []

    @node.worker(name)
    def keep(message: Message, context: Context) -> None:  # noqa: ARG001
        found.append(message)

    return found


def _observed(node: Node) -> list[MessageRecord]:
    """What a node will tell of its messages."""
    records: list[MessageRecord] = []

    def hear(record: Record) -> None:
        if isinstance(record, MessageRecord):
            records.append(record)

    node.observe(hear)
    return records


async def _delivers_both_ways(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        _echo(left)
        _echo(right)
        answer = await left.request(f"{listening.address} => echo", b"there and back")
        _require(answer.payload == b"there and back", f"the answer is {answer.payload!r}")
        (session,) = right.sessions
        answer = await right.request(f"{session.name} => echo", b"the other way")
        _require(answer.payload == b"the other way", f"the answer is {answer.payload!r}")
        _require(session.peer == "left", f"the peer says it is {session.peer!r}")


async def _traces_the_way_back(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        received, answers = _collect(right, "receiver"), _collect(left, "sender")
        onward = Route((listening.address, Address(0, b"receiver")))
        sender = Route((Address(0, b"sender"),))
        await left.route(Message(onward, sender, b"x", left.new_id(), left.expiry_in(60)))
        await pair.until(lambda: bool(received), "a message arrives")
        (there,), (here,) = right.sessions, left.sessions
        got = received[0]
        _require(str(got.onward_route) == "0#receiver", f"the onward route is {got.onward_route}")
        _require(
            got.return_route == sender.pushed(there.address),
            f"the return route is {got.return_route}, not the session and the sender [WK-10]",
        )
        reply = got.answered(Address(0, b"receiver"), b"y", id=right.new_id())
        await right.route(reply)
        await pair.until(lambda: bool(answers), "an answer arrives")
        back = answers[0].return_route
        _require(
            back == Route((here.address, Address(0, b"receiver"))),
            f"the return route of the answer is {back} [WK-10]",
        )


async def _keeps_id_and_expiry(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        received = _collect(right, "receiver")
        onward = Route((listening.address, Address(0, b"receiver")))
        sent = [
            Message(onward, Route(), b"1", left.new_id(), left.expiry_in(60)),
            Message(onward, Route(), b"2", left.new_id()),
        ]
        for message in sent:
            await left.route(message)
        await pair.until(lambda: len(received) == 2, "both messages arrive")
        kept = [(m.id, m.expiry) for m in received] == [(m.id, m.expiry) for m in sent]
        _require(kept, "id and expiry do not travel with a message [AD-7]")


async def _keeps_order(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        there, here = _collect(right, "sink"), _collect(left, "sink")
        await left.send(f"{listening.address} => sink", b"0")
        await pair.until(lambda: len(right.sessions) == 1, "a session opens")
        back = right.sessions[0].name

        async def stream(node: Node, route: str) -> None:
            for number in range(1, ORDERED):
                await node.send(route, b"%d" % number)

        await right.send(f"{back} => sink", b"0")
        await asyncio.gather(
            stream(left, f"{listening.address} => sink"), stream(right, f"{back} => sink")
        )
        await pair.until(lambda: len(there) == len(here) == ORDERED, "everything arrives")
        numbers = [b"%d" % number for number in range(ORDERED)]
        _require([m.payload for m in there] == numbers, "messages arrive out of order")
        _require([m.payload for m in here] == numbers, "messages come back out of order")


async def _keeps_order_of_what_arrives(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        got = _collect(right, "sink")
        route = f"{listening.address} => sink"
        await left.send(route, b"0")
        for number in range(1, ORDERED):
            await left.send(route, b"%d" % number)
        for number in range(ORDERED, ORDERED + 100):
            if got and int(got[-1].payload) >= ORDERED - 1:
                break
            await asyncio.sleep(0.05 * pair.patience)
            await left.send(route, b"%d" % number)
        numbers = [int(message.payload) for message in got]
        _require(bool(numbers) and numbers[-1] >= ORDERED - 1, "the last message never arrives")
        _require(numbers == sorted(set(numbers)), "messages arrive out of order, or twice")


async def _carries_every_size(pair: _Pair) -> None:
    sizes = [0, 1, 23, 24, 255, 256, 4096, 65535, 65536, pair.largest]
    async with pair.nodes() as (left, right, listening):
        _echo(right)
        route = f"{listening.address} => echo"
        for size in (size for size in sizes if size <= pair.largest):
            payload = bytes(index & 0xFF for index in range(min(size, 256))) * (size // 256 + 1)
            answer = await left.request(route, payload[:size])
            _require(answer.payload == payload[:size], f"{size} bytes came back changed [AD-4]")


async def _refuses_what_is_too_large(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        _echo(right)
        route = f"{listening.address} => echo"
        await left.request(route, b"before")
        session = left.sessions[0]
        verdict = await left.send(route, bytes(pair.too_large))
        _require(
            verdict.reason is Reason.TOO_LARGE,
            f"a payload of {pair.too_large} bytes is {verdict.outcome} {verdict.reason}",
        )
        await left.request(route, b"after")
        _require(left.sessions == [session], "a message that was refused ended the session")


async def _is_held_back_by_a_reader_that_never_reads(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening), pair.node("other") as other:
        _echo(right)
        free = asyncio.Event()
        got: list[bytes] = []

        @right.worker("stuck", inbox=10)
        async def stuck(message: Message, context: Context) -> None:  # noqa: ARG001
            await free.wait()
            got.append(message.payload)

        route = f"{listening.address} => stuck"
        await left.send(route, b"%-1024d" % 0)
        taken = 1
        for number in range(1, FLOOD):
            verdict = await left.send(route, b"%-1024d" % number, policy=Wait(0.5))
            if verdict.outcome is not Outcome.FORWARDED:
                break
            taken += 1
        _require(taken < FLOOD, f"{FLOOD} messages were taken for a peer that does not read")
        _require(verdict.reason is Reason.QUEUE_FULL, f"the sender is told {verdict.reason}")
        answer = await other.request(f"{listening.address} => echo", b"hurt?", timeout=10)
        _require(answer.payload == b"hurt?", "another session suffers from it")
        free.set()
        await pair.until(lambda: len(got) == taken, "everything that was taken arrives")
        _require([int(payload) for payload in got] == list(range(taken)), "and in order")
        await left.send(route, b"%-1024d" % taken)
        await pair.until(lambda: len(got) == taken + 1, "the session goes on")


async def _hurts_nobody_else_with_a_reader_that_never_reads(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening), pair.node("other") as other:
        _echo(right)
        free = asyncio.Event()
        got: list[bytes] = []

        @right.worker("stuck", inbox=10)
        async def stuck(message: Message, context: Context) -> None:  # noqa: ARG001
            await free.wait()
            got.append(message.payload)

        route = f"{listening.address} => stuck"
        for number in range(STUCK):
            await left.send(route, b"%-1024d" % number)
        answer = await other.request(f"{listening.address} => echo", b"hurt?", timeout=10)
        _require(answer.payload == b"hurt?", "another session suffers from it")
        free.set()
        for number in range(STUCK, STUCK + 100):
            if got and int(got[-1]) >= STUCK:
                break
            await left.send(route, b"%-1024d" % number)
            await asyncio.sleep(0.05 * pair.patience)
        numbers = [int(payload) for payload in got]
        _require(bool(numbers) and numbers[-1] >= STUCK, "the session does not go on")
        _require(numbers == sorted(set(numbers)), "messages arrive out of order, or twice")


async def _loses_nothing_else_in_a_close_in_mid_message(pair: _Pair) -> None:
    async with pair.faulty() as (left, right, session, path):
        received = _collect(right, "sink")
        records = _observed(left)
        await left.send("right => sink", b"whole")
        await pair.until(lambda: len(received) == 1, "a message arrives")
        old = right.sessions[0].name
        path.cut_after(1000)
        await left.send("right => sink", bytes(pair.largest), policy=FAIL)
        await pair.until(lambda: session.openings == 2, "the session gets another link")
        await pair.until(lambda: len(right.sessions) == 1, "the old session is gone")
        _require(right.sessions[0].name != old, "a session outlived its link")
        verdict = await right.send(f"{old} => sink", b"")
        _require(verdict.reason is Reason.NO_ROUTE, f"the old name is {verdict.reason} [WK-8]")
        await left.send("right => sink", b"after")
        await pair.until(lambda: received[-1].payload == b"after", "messages go on")
        whole = all(len(m.payload) in (5, pair.largest) for m in received)
        _require(whole, "half a message was delivered")
        await pair.until(lambda: len(records) == 3, "each message has one outcome")


async def _notices_a_peer_that_is_gone_without_a_word(pair: _Pair) -> None:
    async with pair.faulty() as (left, right, session, path):
        _echo(right)
        await left.request("right => echo", b"hello")
        path.freeze()
        await pair.until(lambda: not session.is_open, "the dialler notices")
        await pair.until(lambda: not right.sessions, "the listener notices")
        path.cut()
        path.thaw()
        answer = await left.request("right => echo", b"again", timeout=10 * pair.patience)
        _require(answer.payload == b"again", "the session does not come back")


async def _connects_again(pair: _Pair) -> None:
    async with pair.faulty() as (left, right, session, path):
        _echo(right)
        for number in range(3):
            path.refuse(refuse=True)
            path.cut()
            await pair.until(lambda: not session.is_open, "the loss is noticed")
            verdict = await left.send("right => echo", b"", policy=FAIL)
            _require(verdict.reason is Reason.TRANSPORT_DOWN, f"meanwhile it says {verdict.reason}")
            waits = asyncio.ensure_future(left.request("right => echo", b"%d" % number))
            await asyncio.sleep(0.05)
            path.refuse(refuse=False)
            _require((await waits).payload == b"%d" % number, "what waited is lost")


async def _ends_in_order(pair: _Pair) -> None:
    async with pair.faulty() as (left, right, session, _):
        received = _collect(right, "sink")
        records = _observed(left)
        for number in range(100):
            await left.send("right => sink", b"%d" % number)
        await session.close()
        await pair.until(lambda: len(received) == 100, "what was taken arrives before the end")
        await pair.until(lambda: not right.sessions, "the other side ends as well")
        outcomes = [record.verdict.outcome for record in records]
        told = outcomes == [Outcome.FORWARDED] * 100
        _require(told, "what arrived is not told as FORWARDED [OB-1]")
        verdict = await left.send("right => sink", b"")
        _require(verdict.reason is Reason.NO_ROUTE, f"the name is still there: {verdict.reason}")


async def _says_when_nobody_is_there(pair: _Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        await listening.close()
        del right
        verdict = await left.send(f"{listening.address} => echo", b"")
        _require(
            verdict.reason is Reason.TRANSPORT_DOWN, f"nobody listens, and it says {verdict.reason}"
        )


CHECKS: Final[dict[str, Check]] = {
    "delivers both ways": _delivers_both_ways,
    "traces the way back": _traces_the_way_back,
    "keeps id and expiry": _keeps_id_and_expiry,
    "keeps order": _keeps_order,
    "carries every size": _carries_every_size,
    "refuses what is too large": _refuses_what_is_too_large,
    "is held back by a reader that never reads": _is_held_back_by_a_reader_that_never_reads,
    "loses nothing else in a close in mid-message": _loses_nothing_else_in_a_close_in_mid_message,
    "notices a peer that is gone without a word": _notices_a_peer_that_is_gone_without_a_word,
    "connects again": _connects_again,
    "ends in order": _ends_in_order,
    "says when nobody is there": _says_when_nobody_is_there,
}
"""Every check by its name."""

_INSTEAD: Final[dict[str, tuple[str, Check]]] = {
    "keeps order": ("keeps order of what arrives", _keeps_order_of_what_arrives),
    "is held back by a reader that never reads": (
        "hurts nobody else with a reader that never reads",
        _hurts_nobody_else_with_a_reader_that_never_reads,
    ),
}

LOSSY_CHECKS: Final[dict[str, Check]] = dict(
    _INSTEAD.get(name, (name, check)) for name, check in CHECKS.items()
)
"""The same for a transport that may lose messages: two checks ask for less."""
