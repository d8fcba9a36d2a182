"""Reply addresses: one open request at each, used again only where no reply can be mistaken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.node.live import RawPeer, raw_listener, serving
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Reason
from waystation.core.routing import RouteKind
from waystation.errors import NoReplyError, UndeliverableError
from waystation.node import Context, Node, Queue
from waystation.testing import Recorder, async_test, echo, settle, until
from waystation.wire.ockam import PREFACE, encode_frame


def backs(journal: Recorder) -> list[str]:
    """Where the replies to the requests that a node got were to go."""
    return [
        str(record.arrival.message.return_route)
        for record in journal.messages
        if record.verdict.recipient == "echo"
    ]


def changes(journal: Recorder) -> list[RouteKind]:
    """What happened to the entries of reply addresses."""
    return [
        change.kind for change in journal.routes if change.entry.participant.startswith("request-")
    ]


@pytest.mark.rule("WK-3")
@async_test
async def test_an_answered_request_leaves_its_address_to_the_next_along_its_route() -> None:
    async with Node("node") as node:
        journal = Recorder(node)
        echo(node)
        for number in range(5):
            assert (await node.request("echo", b"%d" % number)).payload == b"%d" % number
        assert len(set(backs(journal))) == 1
        assert changes(journal) == [RouteKind.PUT]
        await asyncio.gather(*(node.request("echo", b"at once") for _ in range(4)))
        assert len(set(backs(journal))) == 4
        assert changes(journal) == [RouteKind.PUT] * 4


@async_test
async def test_addresses_that_wait_are_limited_and_go_with_the_node() -> None:
    async with Node("node") as node:
        journal = Recorder(node)
        for number in range(300):
            echo(node, f"echo-{number}")
            await node.request(f"echo-{number}", b"?")
        assert changes(journal).count(RouteKind.PUT) == 300
        assert changes(journal).count(RouteKind.REMOVE) == 256
    assert changes(journal)[-44:] == [RouteKind.REMOVE] * 44


@pytest.mark.rule("WK-3")
@async_test
async def test_a_second_reply_is_not_taken_for_that_of_the_next_request() -> None:
    async with Node("node") as node:
        journal = Recorder(node)
        kept: list[Context] = []

        @node.worker("twice")
        async def twice(message: Message, context: Context) -> None:
            if kept:
                await kept[-1].reply(b"once more: " + kept[-1].message.payload)
            kept.append(context)
            await context.reply(message.payload)

        for number in range(4):
            assert (await node.request("twice", b"%d" % number)).payload == b"%d" % number
        assert len({str(context.message.return_route) for context in kept}) == 1
        assert journal.counts()["DUPLICATE"] == 3


@pytest.mark.rule("WK-3")
@async_test
async def test_the_address_of_a_request_without_an_answer_is_retired() -> None:
    async with Node("node") as node:
        journal = Recorder(node)
        kept: list[Context] = []

        @node.worker("echo")
        async def slow(message: Message, context: Context) -> None:
            if message.payload == b"late":
                kept.append(context)
            else:
                await context.reply(message.payload)

        await node.request("echo", b"first")
        with pytest.raises(NoReplyError):
            await node.request("echo", b"late", timeout=0.01)
        asking = asyncio.ensure_future(node.request("echo", b"late"))
        await until(lambda: len(kept) == 2)
        asking.cancel()
        await settle()
        for context in kept:
            assert (await context.reply(b"too late")).reason is Reason.NO_ROUTE
        assert (await node.request("echo", b"next")).payload == b"next"
        assert len(set(backs(journal))) == 3
        with pytest.raises(UndeliverableError):
            await node.request("nobody", b"?")


def stranger(answer: Callable[[Message, int], list[bytes]]) -> Callable[[RawPeer], object]:
    """A peer without a hello, which answers as it likes and gives its answers no id."""

    async def serve(peer: RawPeer) -> None:
        peer.say(PREFACE)
        for number in range(100):
            question = await peer.hear()
            for payload in answer(question, number):
                peer.say(encode_frame(Message(question.return_route, Route(), payload)))

    return serve


@pytest.mark.rule("WK-3")
@async_test
async def test_a_reply_of_a_stranger_is_taken_at_an_address_that_serves_once() -> None:
    answering = stranger(lambda question, _: [question.payload, b"again"])
    async with raw_listener(answering) as place, Node("node") as node:  # type: ignore[arg-type]
        journal = Recorder(node)
        for number in range(5):
            answer = await node.request(f"tcp#{place} => x", b"%d" % number)
            assert answer.payload == b"%d" % number
        assert changes(journal) == [RouteKind.PUT, RouteKind.REMOVE] * 5


@pytest.mark.rule("WK-3")
@async_test
async def test_a_reply_that_does_not_say_what_it_answers_is_not_taken_where_others_were() -> None:
    async with Node("node") as node:
        journal = Recorder(node)
        unbound = False

        @node.worker("echo")
        async def moody(message: Message, context: Context) -> None:
            if unbound:
                back = Route((Address(0, b"echo"),))
                await node.route(Message(message.return_route, back, b"odd", node.new_id()))
            else:
                await context.reply(message.payload)

        await asyncio.gather(*(node.request("echo", b"?") for _ in range(3)))
        unbound = True
        with pytest.raises(NoReplyError):
            await node.request("echo", b"?", timeout=0.01)
        assert (await node.request("echo", b"?")).payload == b"odd"  # the others were retired too
        assert changes(journal).count(RouteKind.REMOVE) == 4
        assert journal.counts()["DUPLICATE"] == 1


@async_test
async def test_a_copy_of_an_answered_request_that_is_dropped_later_fails_no_other() -> None:
    async with Node("node") as node:
        asked: list[Message] = []

        @node.worker("echo")
        async def remember(message: Message, context: Context) -> None:
            asked.append(message)
            if message.payload != b"slow":
                await context.reply(message.payload)

        await node.request("echo", b"1")
        asking = asyncio.ensure_future(node.request("echo", b"slow"))
        await until(lambda: len(asked) == 2)
        again = Message(Route.parse("nobody"), asked[0].return_route, b"1", asked[0].id)
        assert (await node.route(again, Queue(0.0))) is not None
        await settle()
        assert not asking.done()
        context = Context(node, Address(0, b"echo"), asked[1])
        await context.reply(b"2")
        assert (await asking).payload == b"2"


@pytest.mark.rule("WK-3")
@async_test
async def test_over_a_link_the_address_is_used_again_and_an_error_reply_is_bound_too() -> None:
    async with serving() as (_, there, place), Node("node") as node:
        await node.connect(f"tcp://{place}", name="server")
        journal = Recorder(node)
        for _ in range(3):
            await node.request("server => echo", b"?")
        assert len(set(backs(there))) == 1
        for _ in range(3):
            with pytest.raises(UndeliverableError):
                await node.request("server => nobody", b"?")
        assert changes(journal) == [RouteKind.PUT] * 2
