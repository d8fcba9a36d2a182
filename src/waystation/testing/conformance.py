"""What every transport must do, ours and yours, checked over real nodes.

    from waystation.testing import check_transport
    from waystation.transports import Tcp

    async def test_my_transport():
        await check_transport(Tcp, "tcp://127.0.0.1:0")

Each check stands alone: two fresh nodes, and a session between them over a path on which things can
go wrong. Waits are bounded; `time_factor` stretches them for a slow transport or machine.

A transport of datagrams loses messages, and nobody holds its senders back. With `lossy=True` two
checks ask for less, under names that say so (LOSSY_CHECKS). The others stay: on a quiet machine's
own network nothing needs to get lost.

The checks in HOSTILE_CHECKS (hostile.py) are about peers that misbehave. Ask for them by `checks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.node import FAIL, Context, Node, Wait
from waystation.testing.checks import Conformance, require, run_checks
from waystation.testing.pair import Check, MakePath, Pair
from waystation.testing.path import tcp_path
from waystation.testing.recorder import Recorder
from waystation.testing.workers import collect, echo
from waystation.transports.transport import Transport

ORDERED: Final = 5_000
"""This many messages each way show that order is kept."""

STUCK: Final = 1_000
"""This many messages of a KiB are more than should be kept for a reader of datagrams."""


async def check_transport(
    make: Callable[[], Transport],
    place: str,
    *,
    path: MakePath = tcp_path,
    largest: int = 1024 * 1024,
    too_large: int = 17 * 1024 * 1024,
    flood: int = 200_000,
    time_factor: float = 1.0,
    lossy: bool = False,
    token: bytes | None = None,
    checks: Mapping[str, Check] | None = None,
) -> Conformance:
    """Check a transport; raises NotConformingError.

    `make` is called once for each node. `place` is where to listen: a free place each time, as port
    0 gives it. `path` makes a way to a listener on which faults can be injected; the default does
    for everything that runs over TCP. A payload of `largest` bytes must go through, one of
    `too_large` must be refused without harm to others. A transport that takes `flood` messages of a
    KiB for a peer that does not read is not bounded. `lossy` is for datagrams: what arrives must be
    in order and whole, but need not be everything, and senders need not feel a slow reader. With a
    `token`, all nodes prove that they know it. `checks` are CHECKS (or LOSSY_CHECKS) by default.
    """
    pair = Pair(
        make=make,
        place=place,
        path=path,
        largest=largest,
        too_large=too_large,
        flood=flood,
        time_factor=time_factor,
        token=token,
    )
    if checks is None:
        checks = LOSSY_CHECKS if lossy else CHECKS
    return await run_checks(checks, pair, time_factor)


async def _delivers_both_ways(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        echo(left)
        echo(right)
        answer = await left.request(f"{listening.address} => echo", b"there and back")
        require(answer.payload == b"there and back", f"the answer is {answer.payload!r}")
        (session,) = right.sessions
        answer = await right.request(f"{session.name} => echo", b"the other way")
        require(answer.payload == b"the other way", f"the answer is {answer.payload!r}")
        require(session.peer == "left", f"the peer says it is {session.peer!r}")


async def _traces_the_way_back(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        received, answers = collect(right, "receiver"), collect(left, "sender")
        onward = Route((listening.address, Address(0, b"receiver")))
        sender = Route((Address(0, b"sender"),))
        await left.route(Message(onward, sender, b"x", left.new_id(), left.expiry_in(60)))
        await pair.until(lambda: bool(received), "a message arrives")
        (there,), (here,) = right.sessions, left.sessions
        got = received[0]
        require(str(got.onward_route) == "0#receiver", f"the onward route is {got.onward_route}")
        require(
            got.return_route == sender.pushed(there.address),
            f"the return route is {got.return_route}, not the session and the sender [WK-10]",
        )
        reply = got.reply_from(Address(0, b"receiver"), b"y", id=right.new_id())
        await right.route(reply)
        await pair.until(lambda: bool(answers), "an answer arrives")
        back = answers[0].return_route
        require(
            back == Route((here.address, Address(0, b"receiver"))),
            f"the return route of the answer is {back} [WK-10]",
        )


async def _keeps_id_and_expiry(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        received = collect(right, "receiver")
        onward = Route((listening.address, Address(0, b"receiver")))
        sent = [
            Message(onward, Route(), b"1", left.new_id(), left.expiry_in(60)),
            Message(onward, Route(), b"2", left.new_id()),
        ]
        for message in sent:
            await left.route(message)
        await pair.until(lambda: len(received) == 2, "both messages arrive")
        kept = [(m.id, m.expiry) for m in received] == [(m.id, m.expiry) for m in sent]
        require(kept, "id and expiry do not travel with a message [AD-7]")


async def _keeps_order(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        there, here = collect(right, "sink"), collect(left, "sink")
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
        require([m.payload for m in there] == numbers, "messages arrive out of order")
        require([m.payload for m in here] == numbers, "messages come back out of order")


async def _keeps_order_of_what_arrives(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        got = collect(right, "sink")
        route = f"{listening.address} => sink"
        await left.send(route, b"0")
        for number in range(1, ORDERED):
            await left.send(route, b"%d" % number)
        for number in range(ORDERED, ORDERED + 100):
            if got and int(got[-1].payload) >= ORDERED - 1:
                break
            await asyncio.sleep(0.05 * pair.time_factor)
            await left.send(route, b"%d" % number)
        numbers = [int(message.payload) for message in got]
        require(bool(numbers) and numbers[-1] >= ORDERED - 1, "the last message never arrives")
        require(numbers == sorted(set(numbers)), "messages arrive out of order, or twice")


async def _carries_every_size(pair: Pair) -> None:
    sizes = [0, 1, 23, 24, 255, 256, 4096, 65535, 65536, pair.largest]
    async with pair.nodes() as (left, right, listening):
        echo(right)
        route = f"{listening.address} => echo"
        for size in (size for size in sizes if size <= pair.largest):
            payload = bytes(index & 0xFF for index in range(min(size, 256))) * (size // 256 + 1)
            answer = await left.request(route, payload[:size])
            require(answer.payload == payload[:size], f"{size} bytes came back changed [AD-4]")


async def _refuses_what_is_too_large(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        echo(right)
        route = f"{listening.address} => echo"
        await left.request(route, b"before")
        session = left.sessions[0]
        verdict = await left.send(route, bytes(pair.too_large))
        require(
            verdict.reason is Reason.TOO_LARGE,
            f"a payload of {pair.too_large} bytes is {verdict.outcome} {verdict.reason}",
        )
        await left.request(route, b"after")
        require(left.sessions == [session], "a message that was refused ended the session")


async def _is_held_back_by_a_reader_that_never_reads(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening), pair.node("other") as other:
        echo(right)
        free = asyncio.Event()
        got: list[bytes] = []

        @right.worker("stuck", inbox=10)
        async def stuck(message: Message, context: Context) -> None:  # noqa: ARG001
            await free.wait()
            got.append(message.payload)

        route = f"{listening.address} => stuck"
        await left.send(route, b"%-1024d" % 0)
        taken = 1
        for number in range(1, pair.flood):
            verdict = await left.send(route, b"%-1024d" % number, policy=Wait(0.5))
            if verdict.outcome is not Outcome.FORWARDED:
                break
            taken += 1
        require(
            taken < pair.flood, f"{pair.flood} messages were taken for a peer that does not read"
        )
        require(verdict.reason is Reason.QUEUE_FULL, f"the sender is told {verdict.reason}")
        answer = await other.request(
            f"{listening.address} => echo", b"hurt?", timeout=30 * pair.time_factor
        )
        require(answer.payload == b"hurt?", "another session suffers from it")
        free.set()
        await pair.until(lambda: len(got) == taken, "everything that was taken arrives")
        require([int(payload) for payload in got] == list(range(taken)), "and in order")
        await left.send(route, b"%-1024d" % taken)
        await pair.until(lambda: len(got) == taken + 1, "the session goes on")


async def _hurts_nobody_else_with_a_reader_that_never_reads(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening), pair.node("other") as other:
        echo(right)
        free = asyncio.Event()
        got: list[bytes] = []

        @right.worker("stuck", inbox=10)
        async def stuck(message: Message, context: Context) -> None:  # noqa: ARG001
            await free.wait()
            got.append(message.payload)

        route = f"{listening.address} => stuck"
        for number in range(STUCK):
            await left.send(route, b"%-1024d" % number)
        answer = await other.request(
            f"{listening.address} => echo", b"hurt?", timeout=30 * pair.time_factor
        )
        require(answer.payload == b"hurt?", "another session suffers from it")
        free.set()
        for number in range(STUCK, STUCK + 100):
            if got and int(got[-1]) >= STUCK:
                break
            await left.send(route, b"%-1024d" % number)
            await asyncio.sleep(0.05 * pair.time_factor)
        numbers = [int(payload) for payload in got]
        require(bool(numbers) and numbers[-1] >= STUCK, "the session does not go on")
        require(numbers == sorted(set(numbers)), "messages arrive out of order, or twice")


async def _loses_nothing_else_in_a_close_in_mid_message(pair: Pair) -> None:
    async with pair.faulty() as (left, right, session, path):
        received = collect(right, "sink")
        recorder = Recorder(left)
        await left.send("right => sink", b"whole")
        await pair.until(lambda: len(received) == 1, "a message arrives")
        old = right.sessions[0].name
        path.cut_after(1000)
        await left.send("right => sink", bytes(pair.largest), policy=FAIL)
        await pair.until(lambda: session.openings >= 2, "the session gets another link")
        await pair.until(lambda: len(right.sessions) == 1, "the old session is gone")
        require(right.sessions[0].name != old, "a session outlived its link")
        verdict = await right.send(f"{old} => sink", b"")
        require(verdict.reason is Reason.NO_ROUTE, f"the old name is {verdict.reason} [WK-8]")
        await left.send("right => sink", b"after")
        await pair.until(lambda: received[-1].payload == b"after", "messages go on")
        whole = all(len(m.payload) in (5, pair.largest) for m in received)
        require(whole, "half a message was delivered")
        await pair.until(lambda: len(recorder.messages) == 3, "each message has one outcome")


async def _notices_a_peer_that_is_gone_without_a_word(pair: Pair) -> None:
    async with pair.faulty() as (left, right, session, path):
        echo(right)
        await left.request("right => echo", b"hello")
        path.freeze()
        await pair.until(lambda: not session.is_open, "the dialler notices")
        await pair.until(lambda: not right.sessions, "the listener notices")
        path.cut()
        path.thaw()
        answer = await left.request("right => echo", b"again")
        require(answer.payload == b"again", "the session does not come back")


async def _connects_again(pair: Pair) -> None:
    async with pair.faulty() as (left, right, session, path):
        echo(right)
        for number in range(3):
            path.refuse(refuse=True)
            path.cut()
            await pair.until(lambda: not session.is_open, "the loss is noticed")
            verdict = await left.send("right => echo", b"", policy=FAIL)
            require(verdict.reason is Reason.TRANSPORT_DOWN, f"meanwhile it says {verdict.reason}")
            waits = asyncio.ensure_future(left.request("right => echo", b"%d" % number))
            await asyncio.sleep(0.05)
            path.refuse(refuse=False)
            require((await waits).payload == b"%d" % number, "what waited is lost")


async def _ends_in_order(pair: Pair) -> None:
    async with pair.faulty() as (left, right, session, _):
        received = collect(right, "sink")
        recorder = Recorder(left)
        for number in range(100):
            await left.send("right => sink", b"%d" % number)
        await session.close()
        await pair.until(lambda: len(received) == 100, "what was taken arrives before the end")
        await pair.until(lambda: not right.sessions, "the other side ends as well")
        outcomes = [record.verdict.outcome for record in recorder.messages]
        told = outcomes == [Outcome.FORWARDED] * 100
        require(told, "what arrived is not told as FORWARDED [OB-1]")
        verdict = await left.send("right => sink", b"")
        require(verdict.reason is Reason.NO_ROUTE, f"the name is still there: {verdict.reason}")


async def _says_when_nobody_is_there(pair: Pair) -> None:
    async with pair.nodes() as (left, right, listening):
        await listening.close()
        del right
        verdict = await left.send(f"{listening.address} => echo", b"")
        require(
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
