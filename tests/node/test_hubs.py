"""Hubs and leaves over real links: announcing, asking, forgetting, and coming back (RE-12)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.session import Flow
from waystation.errors import UndeliverableError
from waystation.node import FAIL, Context, Limits, Node, Queue, Wait
from waystation.testing import (
    MemoryNetwork,
    Recorder,
    async_test,
    collect,
    echo,
    tcp_path,
    until,
)

QUIET = Limits(heartbeat=0.0)


@asynccontextmanager
async def hub(name: str = "hub", **options: Any) -> AsyncIterator[tuple[Node, str]]:
    """A hub that listens."""
    async with Node(name, hub=True, limits=QUIET, **options) as node:
        listening = await node.listen("tcp://127.0.0.1:0")
        yield node, listening.url


@asynccontextmanager
async def leaf(name: str, *urls: str, **options: Any) -> AsyncIterator[Node]:
    """A leaf of the hub at these places."""
    async with Node(name, limits=QUIET, **options) as node:
        await node.connect(*urls, name="hub", parent=True)
        yield node


def knows(node: Node, participant: str) -> bool:
    return node.router.table.contains(participant, node.now())


@pytest.mark.rule("RE-3")
@async_test
async def test_a_message_finds_its_way_from_leaf_to_leaf_and_the_answer_comes_back() -> None:
    async with hub() as (center, url), leaf("a", url) as a, leaf("b", url) as b:
        echo(b, "truck-7")
        await until(lambda: knows(center, "truck-7"))
        heard = Recorder(center)
        answer = await a.request("truck-7", b"hello")
        assert answer.payload == b"hello"
        assert heard.counts() == {"FORWARDED": 2}
        assert heard.messages[0].verdict.recipient == "truck-7"


@async_test
async def test_a_leaf_knows_the_name_of_its_hub_as_soon_as_it_is_connected() -> None:
    async with hub("center") as (_, url), tcp_path(url.removeprefix("tcp://")) as path:
        for _ in range(20):
            async with Node("a", limits=QUIET) as node:
                session = await node.connect(f"tcp://{path.place}", parent=True)
                assert session.peer == "center"


@pytest.mark.rule("RE-12")
@async_test
async def test_what_a_leaf_announced_goes_with_its_connection_and_comes_back_with_it() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        echo(a, "truck-7")
        await until(lambda: knows(center, "truck-7"))
        a.sessions[0].abort_link()
        await until(lambda: not knows(center, "truck-7"))
        await until(lambda: knows(center, "truck-7"))
        assert (await center.request("truck-7", b"hello")).payload == b"hello"
        await a.stop_worker("truck-7")
        await until(lambda: not knows(center, "truck-7"))


@async_test
async def test_hubs_of_hubs_reach_everybody() -> None:
    async with hub("top") as (top, top_url), hub("left") as (left, left_url):
        await left.connect(top_url, name="up", parent=True)
        async with hub("right") as (right, right_url):
            await right.connect(top_url, name="up", parent=True)
            async with leaf("a", left_url) as a, leaf("b", right_url) as b:
                echo(b, "truck-7")
                await until(lambda: knows(top, "truck-7"))
                assert (await a.request("truck-7", b"hello")).payload == b"hello"
                assert knows(left, "truck-7")


@async_test
async def test_a_question_goes_round_a_ring_of_hubs_once() -> None:
    async with hub("one") as (one, one_url), hub("two") as (two, two_url):
        await one.connect(two_url, name="up", parent=True)
        await two.connect(one_url, name="up", parent=True)
        async with leaf("a", one_url) as a:
            verdict = await a.send("nobody", b"?")
            assert verdict.reason is Reason.NO_ROUTE


@pytest.mark.rule("WK-11")
@async_test
async def test_a_message_that_goes_round_in_a_ring_ends() -> None:
    async with hub("one") as (one, one_url), hub("two") as (two, two_url):
        up = await one.connect(two_url, name="up", parent=True)
        await two.connect(one_url, name="up", parent=True)
        heard = Recorder(one), Recorder(two)
        route = " => ".join([up.name] + ["up"] * 40)
        await one.send(route, b"round")
        await until(lambda: any(j.counts()["HOP_LIMIT"] for j in heard))


@async_test
async def test_a_request_that_is_dropped_far_away_gets_an_answer_that_names_the_reason() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        with pytest.raises(UndeliverableError, match="by node 'hub': NO_ROUTE") as caught:
            await a.request("hub => nobody", b"?")
        assert (caught.value.reason, caught.value.node) == (Reason.NO_ROUTE, "hub")

        @center.worker("broken")
        async def broken(message: Message, context: Context) -> None:  # noqa: ARG001
            raise RuntimeError("no")

        with pytest.raises(UndeliverableError, match="FAILED"):
            await a.request("broken", b"?")
        with pytest.raises(UndeliverableError, match="NO_ROUTE"):
            await a.request("nobody", b"?", timeout=0.2)


@async_test
async def test_a_message_waits_for_who_is_about_to_appear() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        waiting = asyncio.ensure_future(a.request("truck-7", b"early", policy=Wait(persist=True)))
        parked = await center.send("truck-8", b"parked", policy=Queue(30, persist=True))
        assert parked.outcome is Outcome.QUEUED
        refused = await center.send("truck-7", b"now", policy=FAIL)
        assert refused.reason is Reason.NO_ROUTE
        async with leaf("b", url) as b:
            got = collect(b, "truck-8")
            echo(b, "truck-7")
            assert (await waiting).payload == b"early"
            await until(lambda: got)


@async_test
async def test_a_node_that_is_no_hub_declines_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with Node("plain", limits=QUIET) as plain:
        listening = await plain.listen("tcp://127.0.0.1:0")
        async with leaf("a", listening.url) as a:
            echo(a, "truck-7")
            await until(lambda: "create it with hub=True" in caplog.text)
            assert not knows(plain, "truck-7")


@async_test
async def test_no_leaf_takes_a_name_of_the_hub_itself() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        heard = Recorder(center)
        echo(center, "echo")
        echo(a, "echo")
        echo(a, "own")
        await until(lambda: knows(center, "own"))
        assert (await a.request("hub => echo", b"hello")).payload == b"hello"
        assert heard.counts()["DELIVERED"] == 1


@async_test
async def test_connect_hello_announcement_and_close_can_be_seen_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "waystation.node"):
        async with hub() as (center, url), leaf("a", url) as a:
            echo(a, "truck-7")
            await until(lambda: knows(center, "truck-7"))
    for seen in (
        f"connecting to {url.removeprefix('tcp://')}",
        "LINK_MADE, DISCONNECTED -> GREETING",
        "ADMITTED, ANSWERED -> OPEN",
        "hello from node 'a'",
        "node a announces 1 participants and 0 subscriptions, and withdraws 0 and 0",
        ": 1 participants announced",
        "CLOSE_ASKED, OPEN -> CLOSING",
        "LINK_LOST, CLOSING -> ENDED",
    ):
        assert seen in caplog.text


@pytest.mark.rule("FL-5")
@async_test
async def test_what_a_hub_tells_of_itself_does_not_count_as_answers_left_unread() -> None:
    """A hub with a million names was cut off by its parent's first question."""
    network, limits = MemoryNetwork(), Limits(control=4_096, heartbeat=0.0)
    async with (
        Node("top", hub=True, transports=[network.transport()]) as top,
        Node("hub", hub=True, transports=[network.transport()], limits=limits) as hub,
    ):
        place = (await top.listen("mem://any")).place
        session = await hub.connect(f"mem://{place}", parent=True)
        session._outflow = Flow.HELD  # noqa: SLF001 - the parent has yet to read what it was told
        session._paused_at = asyncio.get_running_loop().time()  # noqa: SLF001
        session.send_control(bytes(5_000))
        session.answer(bytes(3_000))
        assert session.is_open
        session.answer(bytes(3_000))
        assert session.is_open
        session.answer(b"")  # who asks for more than that, and reads none of it, asks no more
        assert not session.is_open
