"""Who receives is what the routing table says, after whatever was done to a node."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.live import RawPeer
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import MessageRecord, Record
from waystation.core.routing import RouteChange, RoutingEntry
from waystation.errors import LocalError
from waystation.node import FAIL, Node, Session, Subscription, Wait
from waystation.testing import MemoryNetwork, Recorder, async_test, collect, echo, settle, until

NAMES = ("a", "b", "c")
PEER = "peer"
LEFT, RIGHT = Address(6, b"left"), Address(6, b"right")
ADDRESSES = (
    RIGHT,
    LEFT,  # its own
    Address(6, b"nowhere"),
    Address(0, PEER.encode()),
    Address(0, b"a"),
    Address(0, b"ghost"),
    Address(200, b"moon"),
)

name_choices = st.one_of(
    st.sampled_from([*NAMES, PEER]),
    st.tuples(st.sampled_from(["subscriber", "request"]), st.integers(0, 2)),
)
operations = st.one_of(
    st.tuples(st.just("start worker"), st.sampled_from(NAMES)),
    st.tuples(st.just("stop worker"), st.sampled_from(NAMES)),
    st.tuples(
        st.just("put route"), name_choices, st.sampled_from(ADDRESSES), st.booleans(), st.booleans()
    ),
    st.tuples(st.just("remove route"), name_choices),
    st.tuples(st.just("subscribe"), st.sampled_from(["", "x", "*"])),
    st.tuples(st.just("unsubscribe"), st.integers(0, 2)),
    st.tuples(st.just("open request")),
    st.tuples(st.just("close request"), st.integers(0, 2)),
    st.tuples(st.just("connect"), st.sampled_from(["right", "left"])),
    st.tuples(st.just("disconnect")),
)


class Fixture:
    """A node `left` with a peer `right`, and what can be done to it."""

    def __init__(self, left: Node, right: Node) -> None:
        self.left = left
        self.at_right: list[bytes] = []
        self.handled: list[tuple[str, bytes]] = []
        self.subscriptions: list[Subscription] = []
        self.requests: dict[str, asyncio.Future[Message]] = {}
        self.peer: Session | None = None
        self._numbers = itertools.count()
        self._asked: list[Message] = []
        right.observe(self._note_at_right)
        left.start_worker(("mute",), lambda message, _: self._asked.append(message))

    def _note_at_right(self, record: Record) -> None:
        if isinstance(record, MessageRecord):
            self.at_right.append(record.arrival.message.payload)

    def names(self) -> list[str]:
        generated = [one.address.name for one in self.subscriptions]
        return [*NAMES, PEER, *generated, *self.requests]

    def named(self, choice: str | tuple[str, int]) -> str:
        """One of the names that there are now; nobody's, if there are not so many."""
        if isinstance(choice, str):
            return choice
        kind, number = choice
        found = [name for name in self.names() if name.startswith(kind)]
        return found[number] if number < len(found) else "ghost"

    async def act(self, kind: str, *values: Any) -> None:
        await getattr(self, kind.replace(" ", "_"))(*values)
        await settle()

    async def start_worker(self, name: str) -> None:
        def handle(message: Message, _: object) -> None:
            self.handled.append((name, message.payload))

        self.left.start_worker((name,), handle)

    async def stop_worker(self, name: str) -> None:
        await self.left.stop_worker(name)

    async def put_route(
        self, choice: str | tuple[str, int], address: Address, local: bool, sticky: bool
    ) -> None:
        self.left.put_route(RoutingEntry(self.named(choice), address, local=local, sticky=sticky))

    async def remove_route(self, choice: str | tuple[str, int]) -> None:
        self.left.remove_route(self.named(choice))

    async def subscribe(self, partition: str) -> None:
        self.subscriptions.append(self.left.subscribe("somebody", "news", partition))

    async def unsubscribe(self, number: int) -> None:
        if number < len(self.subscriptions):
            await self.subscriptions.pop(number).close()

    async def open_request(self) -> None:
        waiting = asyncio.ensure_future(self.left.request("mute", b"?"))
        await until(lambda: self._asked)
        name = self._asked.pop().return_route.addresses[0].name
        self.requests[name] = waiting

    async def close_request(self, number: int) -> None:
        if number < len(self.requests):
            waiting = self.requests.pop(list(self.requests)[number])
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting

    async def connect(self, place: str) -> None:
        self.peer = await self.left.connect(f"mem://{place}", name=PEER)

    async def disconnect(self) -> None:
        if self.peer is not None:
            await self.peer.close()
            self.peer = None

    def is_reachable(self, address: Address) -> bool:
        """Whether a message that the rules send there can leave the node."""
        if address.type == 0:
            peer = self.peer
            return peer is not None and address == peer.address and peer.place == RIGHT
        return address in (RIGHT, LEFT)

    async def check(self, name: str) -> None:
        """What the node does with a message to this name is what the rules say of it."""
        payload = b"%d" % next(self._numbers)
        hops = [Address(0, name.encode())]
        if name == PEER:
            hops.append(Address(0, b"sink"))  # to somebody behind it
        message = Message(Route(tuple(hops)), Route(), payload, self.left.new_id())
        rules = self.left.router.decide(message, self.left.now())
        verdict = await self.left.route(message, Wait(20))
        if rules.address is None:
            assert verdict == rules
        elif rules.outcome is Outcome.DELIVERED and rules.address == hops[0]:  # in this node
            assert verdict == rules
            if name in NAMES:
                await until(lambda: (name, payload) in self.handled)
        elif self.is_reachable(rules.address):
            assert verdict == rules
            if rules.address in (RIGHT, Address(0, PEER.encode())):
                await until(lambda: payload in self.at_right)
        else:
            assert verdict.outcome is Outcome.DROPPED
            assert verdict.reason in (Reason.TRANSPORT_DOWN, Reason.UNKNOWN_TYPE)
        if name in self.requests:  # that was its reply
            assert (await self.requests.pop(name)).payload == payload


@asynccontextmanager
async def left_and_right() -> AsyncIterator[Fixture]:
    network = MemoryNetwork()
    async with (
        Node("right", transports=[network.transport()]) as right,
        Node("left", transports=[network.transport()]) as left,
    ):
        await right.listen("mem://right")
        await left.listen("mem://left")
        fixture = Fixture(left, right)
        yield fixture
        while fixture.requests:
            await fixture.close_request(0)


@pytest.mark.rule("AD-5", "RE-3", "RE-11", "OB-1")
@given(steps=st.lists(operations, max_size=20))
def test_a_node_does_with_messages_what_its_table_says_whatever_was_done_to_it(
    steps: list[tuple[Any, ...]],
) -> None:
    async def scenario() -> None:
        async with left_and_right() as fixture:
            for step in steps:
                with contextlib.suppress(LocalError):  # what would make them disagree is refused
                    await fixture.act(*step)
                for name in fixture.names():
                    if name not in fixture.requests:
                        await fixture.check(name)
            for name in fixture.names():
                await fixture.check(name)

    asyncio.run(asyncio.wait_for(scenario(), 60))


# Names of the node itself


def entry(name: str, address: str, *, local: bool) -> RoutingEntry:
    return RoutingEntry(name, Address.parse(address, {"mem": 6}), local=local)


def is_refused(rule: str) -> Callable[[LocalError], bool]:
    return lambda error: error.rule == rule and "of this node" in str(error)


@pytest.mark.rule("RE-3")
@async_test
async def test_a_local_entry_does_not_take_the_name_of_a_worker() -> None:
    async with left_and_right() as fixture:
        node = fixture.left
        got = collect(node, "truck")
        collect(node, "other")
        before = node.router.table.snapshot(0)
        for address in ("0#other", "mem#right"):
            with pytest.raises(LocalError, check=is_refused("RE-3")):
                node.put_route(entry("truck", address, local=True))
        assert node.router.table.snapshot(0) == before
        assert (await node.send("truck", b"1")).outcome is Outcome.DELIVERED
        await until(lambda: got)


@pytest.mark.rule("RE-6")
@async_test
async def test_a_remote_entry_over_the_name_of_a_worker_is_refused_by_the_table() -> None:
    async with left_and_right() as fixture:
        node = fixture.left
        collect(node, "truck")
        assert not node.put_route(entry("truck", "mem#right", local=False)).accepted


@pytest.mark.rule("RE-3", "MC-10")
@async_test
async def test_the_entry_of_a_worker_may_be_put_again_with_other_properties() -> None:
    async with left_and_right() as fixture:
        node = fixture.left
        got = collect(node, "truck")
        again = RoutingEntry("truck", Address(0, b"truck"), local=True, visible=True)
        assert node.put_route(again).accepted
        assert node.router.table.lookup("truck", 0) == again
        await node.send("truck", b"1")
        await until(lambda: got)


@pytest.mark.rule("RE-5")
@pytest.mark.parametrize("local", [False, True])
@async_test
async def test_no_entry_takes_the_name_of_a_session(local: bool) -> None:
    async with left_and_right() as fixture:
        node = fixture.left
        await fixture.connect("right")
        with pytest.raises(LocalError, check=is_refused("RE-3")):
            node.put_route(entry(PEER, "mem#nowhere", local=local))
        await fixture.check(PEER)


@pytest.mark.rule("RE-11")
@pytest.mark.parametrize("kind", ["worker", "session", "subscriber", "request"])
@async_test
async def test_the_entry_of_a_receiver_cannot_be_removed_while_it_is_there(kind: str) -> None:
    async with left_and_right() as fixture:
        node = fixture.left
        await fixture.start_worker("a")
        await fixture.connect("right")
        await fixture.subscribe("")
        await fixture.open_request()
        name = {"worker": "a", "session": PEER}.get(kind) or fixture.named((kind, 0))
        with pytest.raises(LocalError, check=is_refused("RE-11")):
            node.remove_route(name)
        await fixture.check(name)


@pytest.mark.rule("RE-1")
@async_test
async def test_a_local_entry_needs_a_session_behind_it() -> None:
    async with left_and_right() as fixture:
        node = fixture.left
        await fixture.start_worker("a")
        for address in ("0#ghost", "0#a", f"0#{PEER}"):
            with pytest.raises(LocalError, match="where there is no session"):
                node.put_route(entry("truck", address, local=True))
        assert not node.router.table.contains("truck", 0)
        await fixture.connect("right")
        assert node.put_route(entry("truck", f"0#{PEER}", local=True)).accepted
        await fixture.check("truck")
        await fixture.disconnect()
        assert not node.router.table.contains("truck", 0)


@pytest.mark.rule("RE-13")
@async_test
async def test_a_request_from_outside_does_not_take_the_name_of_a_session() -> None:
    async with Node("depot") as depot, Node("inside") as node:
        got = collect(depot, "sink")
        echo(node)
        there = await depot.listen("tcp://127.0.0.1:0")
        outside = await node.listen("tcp://127.0.0.1:0", outside=True)
        await node.connect(there.url, name="depot")
        before = node.router.table.lookup("depot", 0)
        peer = await RawPeer.dial(outside.place)
        peer.send("echo", b"?", back="depot", id=node.new_id())
        assert (await peer.hear()).payload == b"?"
        assert node.router.table.lookup("depot", 0) == before
        await node.send("depot => sink", b"1")
        await until(lambda: got)
        peer.close()


@pytest.mark.rule("RE-15")
@async_test
async def test_a_session_with_the_node_itself_has_no_name_that_leads_there() -> None:
    async with left_and_right() as fixture:
        await fixture.connect("left")
        assert (await fixture.left.send(f"{PEER} => mute", b"")).reason is Reason.NO_ROUTE
        assert (await fixture.left.send("mem#left => mute", b"")).outcome is Outcome.FORWARDED


@pytest.mark.rule("OB-4")
@async_test
async def test_who_receives_changes_with_the_entry_and_before_anybody_is_told() -> None:
    async with left_and_right() as fixture:
        node = fixture.left
        seen: list[tuple[str, Reason | None]] = []

        def note(record: Record) -> None:
            change = getattr(record, "change", None)
            if isinstance(change, RouteChange) and change.entry.participant == "a":
                verdict = node.post(Message(Route.parse("a"), Route(), b"", node.new_id()))
                seen.append((change.kind, verdict.reason))

        node.observe(note)
        await fixture.start_worker("a")
        await fixture.stop_worker("a")
        assert seen == [("put", None), ("remove", Reason.NO_ROUTE)]


# The face


def test_a_node_shows_what_its_reference_describes_and_nothing_else() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "node.md"
    described = set(re.findall(r"`(?:await )?(\w+)[(`]", page.read_text(encoding="utf-8")))
    methods = {name for name, _ in inspect.getmembers(Node) if not name.startswith("_")}

    async def attributes() -> set[str]:
        async with Node("garage") as node:
            return {name for name in vars(node) if not name.startswith("_")}

    assert methods | asyncio.run(attributes()) <= described


@pytest.mark.rule("OB-4")
@async_test
async def test_an_observer_can_stop_listening() -> None:
    async with Node("garage") as node:
        heard = Recorder(node)
        await node.send("nobody", b"1", policy=FAIL)
        heard.stop()
        await node.send("nobody", b"2", policy=FAIL)
        assert heard.outcomes() == [(b"1", "NO_ROUTE")]


@async_test
async def test_a_drop_can_be_seen_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="waystation.node")
    async with Node("garage") as node:
        await node.send("nobody", b"", policy=FAIL)
        assert "garage" in caplog.text
        assert "nobody: NO_ROUTE" in caplog.text


@pytest.mark.rule("OB-1")
@async_test
async def test_a_request_whose_reply_comes_twice_takes_the_first() -> None:
    async with Node("garage") as node:

        @node.worker("twice")
        async def twice(_: Message, context: Any) -> None:
            await context.reply(b"1")
            await context.reply(b"2")

        journal = Recorder(node)
        assert (await node.request("twice", b"?")).payload == b"1"
        await settle()
        journal.check_outcomes()
