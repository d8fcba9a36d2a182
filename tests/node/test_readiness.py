"""When a node is ready: its parents, and hubs above them, have taken what it announced (CL-4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import permutations
from typing import TypeVar

import msgspec
import pytest

from tests.node.live import RawPeer, raw_listener
from tests.node.test_hierarchy_attacks import Attacker
from tests.node.test_hubs import QUIET, hub, knows, leaf
from tests.node.test_routing_scenarios import place_of
from waystation import NameTaken
from waystation.errors import LocalError, NotReadyError
from waystation.node import Limits, Node
from waystation.node.questions import ASKED_LIMIT, QUESTION_LIMIT
from waystation.node.readiness import Readiness
from waystation.testing import TcpPath, async_test, echo, tcp_path, until
from waystation.wire import hierarchy as wire
from waystation.wire.hello import Hello
from waystation.wire.hierarchy import Announce, Contested, Payload, Resolve, Resolved
from waystation.wire.ockam import PREFACE

TRUCK = "truck-7"
SOON = 0.2
"""Timeout in seconds for what never happens."""

P = TypeVar("P", bound=Payload)


async def told(peer: RawPeer, kind: type[P], which: Callable[[P], bool] = lambda _: True) -> P:
    """The next thing of this kind that was said to our session."""
    while True:
        said = wire.read(await peer.hear_control())
        if isinstance(said, kind) and which(said):
            return said


def ask(number: int, id: str = "id", *asked: str) -> Resolve:
    return Resolve(number, id, list(asked), ready=True)


def readiness(node: Node) -> Readiness:
    return node._kernel.readiness


def nothing_is_asked(*nodes: Node) -> bool:
    return not any(readiness(node)._questions or readiness(node)._by_number for node in nodes)


@asynccontextmanager
async def below_a_frozen_parent() -> AsyncIterator[tuple[Node, str, TcpPath]]:
    """A hub, its URL, and the path to its parent, which lets nothing through any more."""
    async with (
        hub("top") as (_, top_url),
        tcp_path(place_of(top_url)) as path,
        hub("low") as (low, low_url),
    ):
        await low.connect(f"tcp://{path.place}", name="up", parent=True)
        path.freeze()
        yield low, low_url, path


@async_test
async def test_a_node_without_a_parent_is_ready_at_once() -> None:
    async with Node("alone") as node:
        echo(node, TRUCK)
        await node.ready(timeout=0)


@async_test
async def test_when_a_leaf_is_ready_its_hub_knows_its_workers_and_subscriptions() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        for number in range(100):
            echo(a, f"truck-{number}")
            a.subscribe("garage", "temperature", f"p{number}/*")
            await a.ready()
            assert knows(center, f"truck-{number}")
            assert len(center.router.subscriptions) == number + 1
        assert nothing_is_asked(center, a)


@async_test
async def test_when_a_leaf_is_ready_all_hubs_above_it_know_its_workers() -> None:
    async with AsyncExitStack() as stack:
        hubs: list[Node] = []
        below = None
        for name in ("low", "middle", "top"):
            node, url = await stack.enter_async_context(hub(name))
            if below is None:
                below = url
            else:
                await hubs[-1].connect(url, name="up", parent=True)
            hubs.append(node)
        assert below is not None
        a = await stack.enter_async_context(leaf("a", below))
        for number in range(50):
            echo(a, f"truck-{number}")
            await a.ready()
            assert all(knows(node, f"truck-{number}") for node in hubs)
        assert nothing_is_asked(a, *hubs)


@async_test
async def test_a_leaf_with_two_parents_is_ready_when_both_know() -> None:
    async with hub("one") as (one, one_url), hub("two") as (two, two_url), Node("a") as a:
        for name, url in (("one", one_url), ("two", two_url)):
            await a.connect(url, name=name, parent=True)
        for number in range(50):
            echo(a, f"truck-{number}")
            await a.ready()
            assert knows(one, f"truck-{number}")
            assert knows(two, f"truck-{number}")


@pytest.mark.parametrize("size", [2, 5])
@async_test
async def test_the_question_ends_where_all_hubs_are_parents_of_each_other(size: int) -> None:
    async with AsyncExitStack() as stack:
        hubs = [await stack.enter_async_context(hub(f"hub-{n}")) for n in range(size)]
        for (one, _), (other, url) in permutations(hubs, 2):
            await one.connect(url, name=other.name, parent=True)
        a = await stack.enter_async_context(leaf("a", hubs[0][1]))
        echo(a, TRUCK)
        await a.ready()
        assert all(knows(node, TRUCK) for node, _ in hubs)
        nodes = [a, *(node for node, _ in hubs)]
        await until(lambda: nothing_is_asked(*nodes))
        asked = sum(session.questions for node in nodes for session in node.sessions)
        assert asked == 0


@async_test
async def test_a_parent_that_does_not_reply_is_named() -> None:
    async with hub("center") as (_, url), tcp_path(place_of(url)) as path, Node("a") as a:
        session = await a.connect(f"tcp://{path.place}", name="up", parent=True)
        path.freeze()
        with pytest.raises(NotReadyError) as caught:
            await a.ready(timeout=SOON)
        assert caught.value.parents.keys() == {"up"}
        for part in ("parent 'up'", path.place, "node 'center'", "did not reply within 0.2 s"):
            assert part in str(caught.value)
        assert isinstance(caught.value, TimeoutError)
        assert nothing_is_asked(a)
        path.thaw()
        await a.ready()
        assert session.is_open


@async_test
async def test_a_parent_without_a_link_is_named_with_what_is_wrong() -> None:
    async with Node("a", limits=QUIET) as a, hub() as (_, url):
        await a.connect(url, name="there", parent=True)
        await a.connect("tcp://127.0.0.1:1", name="gone", parent=True, wait=None)
        await until(lambda: a._kernel.hierarchy.parents[1].failure)
        with pytest.raises(NotReadyError, match=r"parent 'gone' at 127.0.0.1:1 has no link: .*ref"):
            await a.ready(timeout=SOON)


@async_test
async def test_a_leaf_that_is_started_first_is_ready_when_its_hub_has_come() -> None:
    async with hub() as (_, url):
        pass  # and so its port is free
    async with Node("a", limits=QUIET) as a:
        echo(a, TRUCK)
        await a.connect(url, name="hub", parent=True, wait=None)
        ready = asyncio.ensure_future(a.ready(timeout=30))
        await until(lambda: readiness(a)._questions)
        async with Node("hub", hub=True, limits=QUIET) as center:
            await center.listen(url)
            await ready
            assert knows(center, TRUCK)


@async_test
async def test_a_parent_that_lost_its_link_is_asked_again_over_the_next() -> None:
    async with hub() as (center, url), tcp_path(place_of(url)) as path, Node("a") as a:
        await a.connect(f"tcp://{path.place}", name="hub", parent=True)
        path.freeze()
        echo(a, TRUCK)
        ready = asyncio.ensure_future(a.ready(timeout=30))
        await until(lambda: readiness(a)._by_number)
        path.cut()
        path.thaw()
        await ready
        assert knows(center, TRUCK)
        assert nothing_is_asked(a)


@async_test
async def test_a_hub_does_not_wait_for_a_parent_that_lost_its_link() -> None:
    async with below_a_frozen_parent() as (low, low_url, path), leaf("a", low_url) as a:
        ready = asyncio.ensure_future(a.ready(timeout=30))
        await until(lambda: readiness(low)._by_number)
        path.refuse(refuse=True)
        path.cut()
        await ready


@async_test
async def test_a_parent_that_is_no_parent_any_more_is_not_waited_for() -> None:
    async with hub() as (_, url), tcp_path(place_of(url)) as path, Node("a") as a:
        session = await a.connect(f"tcp://{path.place}", parent=True, keep=False)
        path.freeze()
        ready = asyncio.ensure_future(a.ready(timeout=30))
        await until(lambda: readiness(a)._by_number)
        session.give_up()
        await ready


@async_test
async def test_a_node_that_is_closed_is_not_ready() -> None:
    async with hub() as (_, url), tcp_path(place_of(url)) as path:
        async with Node("a", limits=QUIET) as a:
            await a.connect(f"tcp://{path.place}", name="hub", parent=True)
            path.freeze()
            ready = asyncio.ensure_future(a.ready(timeout=30))
            await until(lambda: readiness(a)._by_number)
            path.cut()
        for waiting in (ready, a.ready()):
            with pytest.raises(LocalError, match="node 'a' is closed"):
                await waiting


@async_test
async def test_an_invalid_timeout_is_an_error_at_once() -> None:
    async with Node("a") as a:
        with pytest.raises(LocalError, match="invalid number of seconds"):
            await a.ready(timeout=-1)


# Names that another node holds


@pytest.mark.rule("CL-4")
@async_test
async def test_a_name_that_another_holds_is_told_with_who_and_where() -> None:
    async with hub("center") as (_, url), leaf("a", url) as a:
        async with leaf("garage", url) as garage:
            echo(garage, TRUCK)
            await garage.ready()
            echo(a, TRUCK)
            with pytest.raises(NameTaken) as caught:
                await a.ready()
            await garage.ready()  # and keeps the name
            assert (caught.value.name, caught.value.holder) == (TRUCK, "garage")
            assert caught.value.taken == {TRUCK: "garage"}
            for part in ("node 'garage' holds", TRUCK, place_of(url), "'center'", "choose another"):
                assert part in str(caught.value)
            async with a.subscribe("garage", "temperature"):
                pass  # its own name cannot be taken
        await until(lambda: not a._kernel.hierarchy.taken)
        await a.ready()


@pytest.mark.rule("CL-4")
@async_test
async def test_a_name_that_is_taken_two_levels_up_is_told_too() -> None:
    async with (
        hub("top") as (_, top_url),
        hub("left") as (left, left_url),
        hub("right") as (right, right_url),
        leaf("garage", left_url) as garage,
        leaf("a", right_url) as a,
    ):
        for node in (left, right):
            await node.connect(top_url, name="up", parent=True)
        echo(garage, TRUCK)
        await garage.ready()
        for _ in range(2):
            echo(a, TRUCK)
            with pytest.raises(NameTaken) as caught:
                await a.ready()
            assert caught.value.holder == "garage"
            await a.stop_worker(TRUCK)
            await a.ready()


@pytest.mark.rule("CL-4")
@async_test
async def test_a_name_of_the_hub_itself_is_taken() -> None:
    async with hub("top") as (top, top_url), hub("low") as (low, low_url), leaf("a", low_url) as a:
        await low.connect(top_url, name="up", parent=True)
        echo(top, "of-top")
        echo(low, "of-low")
        for name, holder in (("of-top", "top"), ("of-low", "low")):
            echo(a, name)
            with pytest.raises(NameTaken) as caught:
                await a.ready()
            assert caught.value.taken == {name: holder}
            await a.stop_worker(name)
            await a.ready()


@async_test
async def test_who_stops_and_starts_a_worker_whose_name_is_free_by_then_is_ready() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        echo(center, TRUCK)
        echo(a, TRUCK)
        with pytest.raises(NameTaken):
            await a.ready()
        await a.stop_worker(TRUCK)
        await center.stop_worker(TRUCK)
        echo(a, TRUCK)
        await a.ready()
        assert knows(center, TRUCK)


@async_test
async def test_only_a_parent_says_that_a_name_is_taken() -> None:
    async with hub() as (center, url):
        echo(center, TRUCK)
        peer = await Attacker.dial(place_of(url))
        peer.tell(Contested([(TRUCK, "peer", True)]), Resolve(1, "nobody"))
        await told(peer, Resolved)
        await center.ready()
        peer.close()


@async_test
async def test_contests_without_end_do_not_delay_the_reply_without_end() -> None:
    limits = Limits(heartbeat=0.0, contest=0.01)
    async with Node("hub", hub=True, limits=limits) as center, Node("a", limits=limits) as a:
        listening = await center.listen("tcp://127.0.0.1:0")
        await a.connect(listening.url, name="hub", parent=True)
        await a.ready()
        [session] = center.sessions
        contests = center._kernel.hierarchy.contests
        contests._undecided[session.address.data] = 1
        await a.ready()
        contests._undecided.clear()
        await a.ready()
        assert session.questions == 0


# What a parent replies, and to whom


@async_test
async def test_the_question_is_one_that_a_hub_of_the_first_version_answers_at_once() -> None:
    asked: list[Resolve] = []

    async def first_version(peer: RawPeer) -> None:
        peer.say(PREFACE)
        peer.control(msgspec.json.encode(Hello("old", {"tcp": 1})))
        while True:
            asked.append(await told(peer, Resolve))
            peer.control(wire.encode(Resolved(asked[-1].number, found=False)))

    async with raw_listener(first_version) as place, Node("a", limits=QUIET) as a:
        session = await a.connect(f"tcp://{place}", name="hub", parent=True)
        await a.ready()
        await a.ready()
        session.give_up()
        assert [question.asked for question in asked] == [["a"] * ASKED_LIMIT] * 2
        assert asked[0].participant != asked[1].participant


@async_test
async def test_a_parent_that_is_no_hub_says_so() -> None:
    async with Node("plain", limits=QUIET) as plain, Node("a", limits=QUIET) as a:
        listening = await plain.listen("tcp://127.0.0.1:0")
        await a.connect(listening.url, name="up", parent=True)
        with pytest.raises(NotReadyError, match="parent 'up' is not a hub; create it with"):
            await a.ready()


@async_test
async def test_a_node_that_is_no_hub_has_taken_nothing() -> None:
    async with Node("plain", limits=QUIET) as plain:
        listening = await plain.listen("tcp://127.0.0.1:0")
        peer = await Attacker.dial(listening.place)
        peer.tell(Announce([(TRUCK, False, None)]), ask(7))
        assert await told(peer, Resolved) == Resolved(7, found=False)
        peer.close()


@async_test
async def test_a_peer_from_outside_is_never_ready() -> None:
    async with Node("hub", hub=True, limits=QUIET) as center:
        listening = await center.listen("tcp://127.0.0.1:0", outside=True)
        peer = await Attacker.dial(listening.place)
        peer.tell(ask(7))
        assert await told(peer, Resolved) == Resolved(7, found=False)
        peer.close()


@async_test
async def test_a_question_that_passed_a_hub_or_has_come_far_goes_no_further() -> None:
    async with below_a_frozen_parent() as (low, low_url, path):
        peer = await Attacker.dial(place_of(low_url))
        far = map(str, range(ASKED_LIMIT))
        peer.tell(ask(1, "one", "low"), ask(2, "two", *far), ask(3, "three"), ask(4, "three"))
        assert [(await told(peer, Resolved)).number for _ in range(3)] == [1, 2, 4]
        assert [session.questions for session in low.sessions if session.questions] == [1]
        peer.close()
        path.cut()


@pytest.mark.rule("FL-5")
@async_test
async def test_nobody_can_make_a_hub_ask_without_end() -> None:
    async with below_a_frozen_parent() as (low, low_url, path):
        readiness(low).KNOWN_LIMIT = 10
        peer = await Attacker.dial(place_of(low_url))
        peer.tell(*(ask(number, f"id-{number}") for number in range(QUESTION_LIMIT + 5)))
        await until(lambda: low._kernel.flow.unanswered == 5)
        assert len(readiness(low)._questions) == QUESTION_LIMIT
        assert len(readiness(low)._known) == 10
        path.cut()
        path.thaw()
        assert len([await told(peer, Resolved) for _ in range(QUESTION_LIMIT)]) == 1_000
        assert nothing_is_asked(low)
        peer.close()


@async_test
async def test_a_hub_forgets_a_question_that_its_parent_never_answers() -> None:
    async with below_a_frozen_parent() as (low, low_url, path):
        readiness(low).FORGET_TIME = 0.01
        peer = await Attacker.dial(place_of(low_url))
        peer.tell(ask(1))
        await until(lambda: readiness(low)._known)
        await until(lambda: nothing_is_asked(low))
        assert all(session.questions == 0 for session in low.sessions)
        peer.close()
        path.cut()


@async_test
async def test_only_the_parent_that_was_asked_can_say_that_it_has_taken_everything() -> None:
    async with hub() as (_, url), tcp_path(place_of(url)) as path, hub("low") as (low, low_url):
        await low.connect(f"tcp://{path.place}", name="up", parent=True)
        path.freeze()
        peer = await Attacker.dial(place_of(low_url))
        ready = asyncio.ensure_future(low.ready(timeout=30))
        await until(lambda: readiness(low)._by_number)
        peer.tell(*(Resolved(number, found=True) for number in range(100)), ask(1, "x", "low"))
        await told(peer, Resolved)
        assert not ready.done()
        ready.cancel()
        await until(lambda: nothing_is_asked(low))
        peer.close()
        path.cut()


# Subscriptions


@async_test
async def test_a_subscription_that_was_entered_is_known_to_the_hub() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        for number in range(100):
            async with a.subscribe("garage", "temperature", f"p{number}"):
                assert len(center.router.subscriptions) == 1
            await a.ready()
            assert len(center.router.subscriptions) == 0


@async_test
async def test_a_subscription_that_cannot_be_entered_is_closed() -> None:
    async with hub() as (_, url), tcp_path(place_of(url)) as path, Node("a") as a:
        await a.connect(f"tcp://{path.place}", name="hub", parent=True)
        path.freeze()
        entering = asyncio.ensure_future(a.subscribe("garage", "temperature").__aenter__())
        await until(lambda: readiness(a)._by_number)
        assert len(a.router.subscriptions) == 1
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert len(a.router.subscriptions) == 0
        path.cut()
