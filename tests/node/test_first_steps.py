"""What a newcomer writes works, and where it can't, the error says how to write it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import waystation
from waystation import LocalError, Message, Node, UndeliverableError, UnreachableError, leaf
from waystation.core.outcome import Outcome
from waystation.node import Context
from waystation.testing import async_test, until


async def _hub(hub: Node) -> str:
    return (await hub.listen("tcp://127.0.0.1:0")).url


@async_test
async def test_a_leaf_is_connected_ready_and_closed_at_the_end() -> None:
    async with Node("hub", hub=True) as hub:
        url = await _hub(hub)
        async with leaf(url, name="truck-7") as truck, leaf(url) as dispatcher:

            @truck.worker("brakes")
            def check(_: Message, __: Context) -> bytes:
                return b"fine"

            reply = await dispatcher.request("brakes", b"?")
            assert reply.payload == b"fine"
            assert dispatcher.name.startswith("leaf-")
        assert truck.draining
        assert dispatcher.draining


@async_test
async def test_a_leaf_can_be_awaited() -> None:
    async with Node("hub", hub=True) as hub:
        truck = await leaf(await _hub(hub), name="truck-7")
        assert [session.peer for session in truck.sessions] == ["hub"]
        await truck.close()


@async_test
async def test_a_leaf_over_websocket_needs_no_more_than_its_url() -> None:
    async with Node("hub", hub=True) as hub:
        url = (await hub.listen("ws://127.0.0.1:0")).url
        async with leaf(url, name="truck-7") as truck:
            assert [session.peer for session in truck.sessions] == ["hub"]


@async_test
async def test_a_leaf_without_a_hub_says_so_and_leaves_nothing_open() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(UnreachableError):
        await leaf("tcp://127.0.0.1:1", name="truck-7", ready=0.2)
    await until(lambda: asyncio.all_tasks() == before)


@async_test
async def test_what_a_handler_returns_is_the_reply() -> None:
    async with Node("garage") as node:

        @node.worker("double")
        async def double(message: Message, _: Context) -> bytes:
            return message.payload * 2

        @node.worker("empty")
        def empty(_: Message, __: Context) -> bytes:
            return b""

        assert (await node.request("double", b"ab")).payload == b"abab"
        assert (await node.request("empty", b"ab")).payload == b""


@async_test
async def test_a_handler_that_returns_text_fails_at_once_and_says_what_to_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Node("garage") as node:

        @node.worker("text")
        async def text(_: Message, __: Context) -> str:
            return "text"

        for number in range(2):  # a message that finds the worker idle, and two that do not
            with pytest.raises(UndeliverableError, match="FAILED"):
                await node.request("text", b"%d" % number)
        await node.send("text", b"")
        with pytest.raises(UndeliverableError, match="FAILED"):
            await node.request("text", b"")
    assert "a handler returned text; return bytes, such as text.encode()" in caplog.text


@async_test
async def test_what_is_shown_of_a_message_and_its_way_is_as_it_is_written() -> None:
    route = waystation.Route.parse("tcp#10.0.0.2:4000 => echo")
    assert repr(route) == "Route('1#10.0.0.2:4000 => 0#echo')"
    assert repr(route.first) == "Address('1#10.0.0.2:4000')"
    async with Node("garage") as node:
        node.start_worker(("echo",), lambda _, __: None)
        sent = await node.send("echo", b"")
        assert repr(sent) == f"<Sent {sent.id}: DELIVERED to echo>"
        lost = await node.send("nobody", b"")
        assert repr(lost) == f"<Sent {lost.id}: DROPPED NO_ROUTE to nobody>"


@async_test
async def test_bytes_returned_for_a_message_without_a_return_route_go_nowhere() -> None:
    heard: list[Outcome] = []
    async with Node("garage") as node:
        node.observe(lambda record: heard.append(getattr(record, "verdict", None).outcome))  # type: ignore[union-attr]

        @node.worker("echo")
        def echo(message: Message, _: Context) -> bytes:
            return message.payload

        await node.send("echo", b"hello")
        await until(lambda: len(heard) == 1)
    assert heard == [Outcome.DELIVERED]


@async_test
async def test_a_topic_is_one_text_or_three_parts() -> None:
    async with Node("garage") as node, node.subscribe("garage/temperature/eu/+") as all_of_eu:
        for publishing in (
            node.publish("garage/temperature/eu/de", b"1"),
            node.publish("temperature", b"2", partition="eu/de"),
            node.publish("temperature", b"3", partition=["eu", "de"], provider="garage"),
        ):
            await publishing
            message = await anext(all_of_eu)
            assert (message.provider, message.broadcast) == ("garage", "temperature")
            assert message.partition == "eu/de"
        async with node.subscribe("+/temperature") as anybody:
            await node.publish("temperature", b"4")
            message = await anext(anybody)
            assert (message.payload, message.partition) == (b"4", "")


@async_test
async def test_a_topic_is_known_at_a_leaf_as_well() -> None:
    async with Node("hub", hub=True) as hub:
        url = await _hub(hub)
        async with (
            leaf(url, name="a") as a,
            leaf(url, name="b") as b,
            b.subscribe("a/position/*") as positions,
        ):
            await a.publish("position", b"48.1", partition="eu")
            message = await anext(positions)
            assert (message.provider, message.broadcast) == ("a", "position")
            assert message.partition == "eu"


def _ignore(message: Message, context: Context) -> None:
    pass


def _alone(message: Message) -> None:
    pass


_MISTAKES: list[tuple[Callable[[Node], Any], str]] = [
    (lambda node: node.start_worker("echo", _ignore), "start_worker(('echo',), …)"),  # type: ignore[arg-type]
    (lambda node: node.worker(_ignore), '@node.worker("echo")'),  # type: ignore[arg-type]
    (lambda node: node.worker("echo")(_alone), "write `async def _alone(message, context)`"),
    (lambda node: node.connect("127.0.0.1:4000"), "write tcp://127.0.0.1:4000"),
    (lambda node: node.send("", b""), "the route is empty"),
    (lambda node: node.send("  ", b""), "the route is empty"),
    (lambda node: node.send("a -> b", b""), "write 'a => b'"),
    (lambda node: node.request("a->b->c", b""), "write 'a => b => c'"),
    (lambda node: node.send("a", "text"), "give bytes"),  # type: ignore[arg-type]
    (lambda node: node.connect("mqtt://127.0.0.1:1"), "node.use(Mqtt(…))"),
    (lambda node: node.connect("gossip://127.0.0.1:1"), "node.use(Gossip(…))"),
    (lambda node: node.connect("wss://127.0.0.1:1"), "write ws:// and configure TLS"),
    (lambda node: node.connect("tpc://127.0.0.1:1"), "start with tcp://"),
    (lambda node: node.subscribe("garage"), "provider/broadcast[/partition]"),
    (lambda node: node.publish("a/b", b"", partition="c"), "separately"),
    (lambda node: node.why("4bf9" * 8), "journal=DIRECTORY"),
    (lambda node: node.send(7, b""), "write it as text: 'hop => echo'"),  # type: ignore[arg-type]
    (lambda node: node.request(["a", "b"], b""), "write it as text"),  # type: ignore[arg-type]
    (lambda node: node.send("tcp://10.0.0.2:4000 => a", b""), "write tcp#10.0.0.2:4000"),
    (lambda node: node.send("a", b"", policy="wait"), "Wait(seconds)"),  # type: ignore[arg-type]
    (lambda node: node.request("a", b"", policy=waystation.Wait), "Wait(seconds)"),  # type: ignore[arg-type]
    (lambda node: node.publish("a", b"", policy=7), "Wait(seconds)"),  # type: ignore[arg-type]
    (lambda node: node.send("a", b"", ttl="5"), "give 0 or more"),  # type: ignore[arg-type]
    (lambda node: node.listen(4000), "write tcp://host:port"),  # type: ignore[arg-type]
    (lambda node: node.listen(""), "write tcp://host:port"),
    (lambda node: node.listen("tcp://127.0.0.1:70000"), "up to 65535"),
    (lambda node: node.connect(["tcp://127.0.0.1:1"]), "one after the other"),  # type: ignore[arg-type]
    (lambda node: node.connect("hub"), "write tcp://host:port"),
    (lambda node: node.subscribe(7), "provider/broadcast[/partition]"),  # type: ignore[arg-type]
    (lambda node: node.subscribe("a/b", callback=7), "a function that takes a message"),  # type: ignore[arg-type]
    (lambda node: aiter(node.subscribe("a/b", callback=print)), "without callback="),
    (lambda node: node.publish("a", b"", partition=7), "as text"),  # type: ignore[arg-type]
    (lambda _: Node("a", limits={}), "Limits(sessions=500)"),  # type: ignore[arg-type]
    (lambda _: Node("a", transports=7), "transports=[Tcp()]"),  # type: ignore[arg-type]
    (lambda _: Node("a", token=7), "text or bytes"),  # type: ignore[arg-type]
    (lambda _: leaf("truck-7"), "write tcp://host:port"),
]


@pytest.mark.parametrize(("mistake", "advice"), _MISTAKES)
@async_test
async def test_a_mistake_is_an_error_that_says_what_to_write(
    mistake: Callable[[Node], Any], advice: str
) -> None:
    async def make() -> None:
        made = mistake(node)
        if hasattr(made, "__await__"):
            await made

    async with Node("garage") as node:
        with pytest.raises(LocalError) as caught:
            await make()
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "begin",
    [
        lambda node: node.listen("tcp://127.0.0.1:0"),
        lambda node: node.connect("tcp://127.0.0.1:1"),
        lambda node: node.start_worker(("a",), _ignore),
        lambda node: node.subscribe("a/b"),
    ],
)
@async_test
async def test_a_closed_node_begins_nothing(begin: Callable[[Node], Any]) -> None:
    async with Node("garage") as node:
        pass
    with pytest.raises(LocalError, match="node 'garage' is closed"):
        await begin(node)


def test_a_node_outside_of_an_event_loop_says_how_to_run_it() -> None:
    node = Node("garage")
    with pytest.raises(LocalError, match=r"waystation\.run\(main\(\)\)"):
        node.worker("echo")(_ignore)


def test_a_program_that_is_not_called_says_how() -> None:
    async def main() -> None: ...

    with pytest.raises(LocalError, match=r"write waystation\.run\(main\(\)\)"):
        waystation.run(main)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a#b", "+", "a\tb", 7])
def test_a_node_needs_a_name_that_can_stand_in_a_route(name: Any) -> None:
    with pytest.raises(LocalError, match="invalid node name"):
        Node(name)


@async_test
async def test_what_people_print_says_what_it_is() -> None:
    async with Node("garage") as node:
        worker = node.start_worker(("echo", "alias"), _ignore)
        listening = await node.listen("tcp://127.0.0.1:0")
        subscription = node.subscribe("garage/temperature")
        assert repr(worker) == "<Worker echo, alias: 0 waiting, idle>"
        assert repr(listening) == f"<Listening on {listening.url}>"
        assert repr(subscription) == "<Subscription to garage/temperature: 0 waiting>"
        assert repr(node) == "<Node 'garage': 1 worker, 0 sessions, running>"
    assert repr(subscription) == "<Subscription to garage/temperature: closed>"


@async_test
async def test_a_node_explains_a_message_from_its_own_journal(tmp_path: Path) -> None:
    async with Node("garage", journal=tmp_path) as node:
        with pytest.raises(waystation.UndeliverableError) as caught:
            await node.request("truck-7", b"hello")
        told = await node.why(caught.value.message_id)
        assert "NO_ROUTE" in told.summary
        assert str(told).startswith(f"message {caught.value.message_id}\n")


def test_all_that_users_meet_can_be_imported_from_the_package() -> None:
    for name in waystation.__all__:
        assert getattr(waystation, name) is not None
    with pytest.raises(AttributeError):
        _ = waystation.nothing
