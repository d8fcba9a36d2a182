"""Whose a listing in the directory is: nobody else replaces or removes it while it lives (CL-5)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.node.test_hierarchy_attacks import Attacker
from tests.node.test_hubs import QUIET, hub, knows, leaf
from tests.node.test_routing_scenarios import OFFER, TRUCK, fleet, place_of
from waystation.core.directory import Provider, Scope
from waystation.errors import LocalError, WaystationError
from waystation.node import Node
from waystation.node.directory import NAME, Leave, Register
from waystation.testing import async_test, echo, until
from waystation.wire.hello import Hello, owner_of

OTHER_OFFER = ("fleet", "elsewhere")

pytestmark = pytest.mark.rule("CL-5")


async def offering(node: Node, name: str = TRUCK, **options: Any) -> None:
    echo(node, name)
    await node.register(name, *OFFER, **options)


async def finds(
    node: Node, offer: tuple[str, str] = OFFER, scope: Scope = Scope.LOCAL_ONLY
) -> bool:
    return [p.participant for p in await node.discover(*offer, scope)] == [TRUCK]


class Liar(Attacker):
    """A peer that asks a directory for whatever the test wants."""

    def greet(self, name: str, secret: str = "") -> None:
        """Say who it is."""
        self.control(msgspec.json.encode(Hello(name, {"tcp": 1}, secret=secret, session=1)))

    async def asks(self, ask: Register | Leave, route: str = NAME) -> str:
        """What the directory objects to; empty if it did as it was told."""
        self.send(route, msgspec.json.encode(ask))
        error: str = json.loads((await self.hear()).payload)["error"]
        return error


@asynccontextmanager
async def liar(url: str) -> AsyncIterator[Liar]:
    peer = await Liar.dial(place_of(url))
    try:
        yield peer
    finally:
        peer.close()


def listing(offer: tuple[str, str] = OTHER_OFFER, address: str | None = None) -> Provider:
    return Provider(TRUCK, *offer, address)


# Behind one hub


@async_test
async def test_a_leaf_cannot_replace_or_remove_what_another_lists() -> None:
    async with hub() as (center, url), leaf("a", url) as a, leaf("b", url) as b:
        await offering(a)
        for refused in (b.register(TRUCK, *OTHER_OFFER), b.unregister(TRUCK)):
            with pytest.raises(LocalError, match="refused: 'truck-7' is a participant of node 'a'"):
                await refused
        assert await finds(center)
        assert not await finds(center, OTHER_OFFER)


@async_test
async def test_the_hub_itself_cannot_replace_or_remove_what_a_leaf_lists() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        await offering(a)
        for refused in (center.register(TRUCK, *OTHER_OFFER), center.unregister(TRUCK)):
            with pytest.raises(LocalError, match="'truck-7' is listed by node 'a'; list it under"):
                await refused
        assert await finds(center)


@async_test
async def test_who_lists_something_can_list_it_otherwise_and_remove_it() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        await offering(a)
        await a.register(TRUCK, *OTHER_OFFER)
        assert await finds(center, OTHER_OFFER)
        await a.unregister(TRUCK)
        assert not await finds(center, OTHER_OFFER)


@async_test
async def test_what_a_leaf_listed_that_is_gone_can_be_replaced_and_removed() -> None:
    async with hub() as (center, url), leaf("b", url) as b:
        for replaces in (True, False):
            async with leaf("a", url) as a:
                await offering(a)
            await until(lambda: not knows(center, TRUCK))
            echo(b, TRUCK)
            await (b.register(TRUCK, *OTHER_OFFER) if replaces else b.unregister(TRUCK))
            assert await finds(center, OTHER_OFFER) is replaces
            await b.stop_worker(TRUCK)
            await b.ready()
        assert not await finds(center)


@async_test
async def test_a_leaf_that_comes_back_lists_itself_again() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        await offering(a)
        for _ in range(3):
            a.sessions[0].abort_link()
            await until(lambda: not knows(center, TRUCK))
            await until(lambda: knows(center, TRUCK))
            await a.register(TRUCK, *OFFER)
        assert await finds(center)


@async_test
async def test_a_leaf_that_is_restarted_lists_itself_again() -> None:
    async with hub("top") as (top, top_url), hub("low") as (low, low_url):
        await low.connect(top_url, name="up", parent=True)
        for _ in range(2):
            async with leaf("a", low_url) as a:
                await offering(a)
                assert await finds(top)


@async_test
async def test_behind_two_hubs_nobody_can_replace_or_remove_what_another_lists() -> None:
    async with (
        hub("top") as (top, top_url),
        hub("left") as (left, left_url),
        hub("right") as (right, right_url),
        leaf("a", left_url) as a,
        leaf("b", right_url) as b,
    ):
        for node in (left, right):
            await node.connect(top_url, name="up", parent=True)
        await offering(a)
        for refused in (b.register(TRUCK, *OTHER_OFFER), b.unregister(TRUCK)):
            with pytest.raises(LocalError, match="'truck-7' is a participant of node 'a'"):
                await refused
        assert await finds(top)


# What a peer says of itself


@async_test
async def test_the_owner_that_a_leaf_claims_to_be_is_not_believed() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        await offering(a)
        owner = a._kernel.hierarchy.owner
        async with liar(url) as b:
            b.greet("b", secret="b" * 32)
            await a.stop_worker(TRUCK)  # so nobody has the name, and its listing is dead
            await a.ready()
            b.announce("mine")
            assert await b.asks(Register(Provider("mine", *OFFER), owner=owner)) == ""
        listed = center._directory._here._listers["mine"]
        assert listed.owner == owner_of("b" * 32) != owner


@pytest.mark.parametrize("asked", [[], ["a"], ["a", "some-hub"]])
@async_test
async def test_no_word_of_another_owner_or_node_lets_a_peer_speak_for_it(asked: list[str]) -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        await offering(a)
        owner = a._kernel.hierarchy.owner
        for name, secret in (("a", ""), ("a", "s" * 32), ("b", ""), ("b", "s" * 32)):
            async with liar(url) as b:
                b.greet(name, secret)
                for ask in (
                    Register(listing(), owner=owner, asked=asked),
                    Leave(TRUCK, owner=owner, asked=asked),
                ):
                    assert "'truck-7' is a participant of node 'a'" in await b.asks(ask)
        assert await finds(center)


@async_test
async def test_what_goes_through_another_leaf_or_a_worker_is_nobodys_word() -> None:
    async with (
        hub("top") as (top, top_url),
        hub("low") as (low, low_url),
        leaf("a", low_url) as a,
        liar(low_url) as b,
        liar(top_url) as c,
    ):
        await low.connect(top_url, name="up", parent=True)
        await offering(a)
        echo(top)
        for peer, route in ((b, f"up => {NAME}"), (c, f"echo => {NAME}")):
            for ask in (Register(listing()), Leave(TRUCK)):
                assert "truck-7" in await peer.asks(ask, route)
        assert await finds(top)
        assert await finds(low)


@async_test
async def test_a_name_that_nobody_has_can_be_listed_by_anybody_and_removed_by_whom_it_is() -> None:
    async with hub() as (center, url), liar(url) as b, liar(url) as c:
        b.greet("b")
        c.greet("c")
        assert await b.asks(Register(listing())) == ""
        assert center._directory._here._listers[TRUCK].node == "b"
        assert await c.asks(Register(listing(OFFER))) == ""  # the first has no such participant
        assert center._directory._here._listers[TRUCK].node == "c"


# For the whole fleet


def global_lister(host: Node) -> str:
    everywhere = host._directory._everywhere
    assert everywhere is not None
    return everywhere._listers[TRUCK].node


@async_test
async def test_what_a_hub_listed_for_everybody_is_not_replaced_or_removed_from_elsewhere() -> None:
    async with (
        fleet("here", "there") as [(host, host_url), (_, url), (there, there_url)],
        leaf("a", url) as a,
        leaf("b", there_url) as b,
        liar(host_url) as c,
    ):
        await offering(a, everywhere=True)
        assert global_lister(host) == "a"
        echo(b, TRUCK)
        echo(there, "other")
        with pytest.raises(LocalError, match="'truck-7' is listed by node 'a'"):
            await b.register(TRUCK, *OTHER_OFFER, everywhere=True)
        with pytest.raises(LocalError, match="'truck-7' is listed by node 'a'"):
            await b.unregister(TRUCK)
        owner = a._kernel.hierarchy.owner
        c.greet("c", secret="c" * 32)
        evil = listing(address="tcp#10.0.0.1:4000")
        for ask in (Register(evil), Register(evil, owner=owner), Leave(TRUCK, owner=owner)):
            assert "'truck-7' is listed by node 'a'" in await c.asks(ask)
        assert len(await host.discover(*OFFER, Scope.GLOBAL_ONLY)) == 1


@async_test
async def test_a_participant_that_moves_takes_its_listing_for_everybody_with_it() -> None:
    async with (
        fleet("here", "there") as [(host, _), (_, url), (_, there_url)],
        Node("a", limits=QUIET) as a,
    ):
        session = await a.connect(url, name="hub", parent=True)
        await offering(a, everywhere=True)
        await session.close()
        await a.connect(there_url, name="other", parent=True)
        await a.register(TRUCK, *OFFER, everywhere=True)
        [found] = await host.discover(*OFFER, Scope.GLOBAL_ONLY)
        assert found.address == there_url.replace("://", "#")


@async_test
async def test_a_participant_that_is_restarted_elsewhere_is_listed_there() -> None:
    async with fleet("here", "there") as [(host, _), (_, url), (_, there_url)]:
        async with leaf("a", url) as a:
            await offering(a, everywhere=True)
        async with leaf("a", there_url) as a:
            async with asyncio.timeout(30):
                while True:  # until `here` has noticed that it is gone
                    try:
                        await offering(a, everywhere=True)
                    except LocalError:
                        await a.stop_worker(TRUCK)
                    else:
                        break
            [found] = await host.discover(*OFFER, Scope.GLOBAL_ONLY)
            assert found.address == there_url.replace("://", "#")


@async_test
async def test_what_a_hub_listed_that_is_gone_can_be_listed_by_another() -> None:
    async with hub("directory") as (host, url):
        host.host_directory()
        for name in ("one", "two"):
            async with Node(name, limits=QUIET) as node:
                await node.listen("tcp://127.0.0.1:0")
                node.ask_directory(f"tcp#{place_of(url)}")
                await offering(node, everywhere=True)
                assert global_lister(host) == name
            await until(lambda: not host.sessions)


@async_test
async def test_a_hub_that_does_not_answer_for_its_listing_keeps_it() -> None:
    async with hub("directory") as (host, url), liar(url) as one, liar(url) as two:
        host.host_directory()
        for peer, name in ((one, "one"), (two, "two")):
            peer.greet(name)
        assert await one.asks(Register(listing(address="tcp#10.0.0.1:4000"))) == ""
        two.send(NAME, msgspec.json.encode(Register(listing(address="tcp#10.0.0.2:4000"))))
        question = await one.hear()
        assert json.loads(question.payload)["ask"] == "lookup"
        back = " => ".join(map(str, question.return_route.addresses))
        one.send(back, b"no answer of a directory", back=NAME)
        assert (
            "'truck-7' is listed by node 'one'" in json.loads((await two.hear()).payload)["error"]
        )
        assert global_lister(host) == "one"


@async_test
async def test_the_node_that_hosts_the_directory_keeps_its_own_listings() -> None:
    async with (
        fleet("there") as [(_, host_url), (there, _)],
        leaf("a", host_url) as a,
    ):
        await offering(a, everywhere=True)
        echo(there, TRUCK)
        with pytest.raises(WaystationError, match="'truck-7' is a participant of node 'a'"):
            await there.register(TRUCK, *OTHER_OFFER, everywhere=True)
        await a.unregister(TRUCK)
        await a.stop_worker(TRUCK)
        await a.ready()
        await there.register(TRUCK, *OTHER_OFFER, everywhere=True)
