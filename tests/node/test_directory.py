"""Finding providers over real links: scopes, what a directory refuses, and what it survives."""

from __future__ import annotations

import asyncio
import contextlib
import json
from itertools import product

import pytest

from tests.node.live import RawPeer, place_address, raw_listener
from tests.node.test_hubs import QUIET, hub, knows, leaf
from tests.node.test_routing_scenarios import OFFER, TRUCK, entry_of, existing, fleet, place_of
from waystation.core.directory import Provider, Scope
from waystation.core.outcome import Reason
from waystation.errors import LocalError, UndeliverableError, WaystationError
from waystation.node import Context, Node
from waystation.node.directory import NAME
from waystation.testing import DEADLINE, ManualClock, async_test, echo, settle, until

SOON = DEADLINE
"""Seconds after which an answer that needs nobody else will not come any more."""


def names(providers: list[Provider]) -> list[str]:
    return sorted(provider.participant for provider in providers)


async def offering(node: Node, name: str, *, everywhere: bool = False) -> None:
    echo(node, name)
    await node.register(name, *OFFER, everywhere=everywhere)


# Where one looks: a leaf `a` and its hub `here`, another leaf of `here`, and a hub elsewhere.
FROM_THE_HUB = {
    Scope.LOCAL_ONLY: ["of-a", "of-b", "of-here"],
    Scope.LOCAL_THEN_GLOBAL: ["of-a", "of-b", "of-here"],
    Scope.LOCAL_AND_GLOBAL: ["of-a", "of-b", "of-here", "of-there"],
    Scope.GLOBAL_ONLY: ["of-b", "of-there"],
}


@pytest.mark.rule("RE-14")
@pytest.mark.parametrize("scope", Scope)
@async_test
async def test_each_scope_finds_what_it_says_from_a_hub_and_from_its_leaf(scope: Scope) -> None:
    async with (
        fleet("here", "there") as [_, (here, url), (there, _)],
        leaf("a", url) as a,
        leaf("b", url) as b,
        leaf("asks", url) as asks,
    ):
        await offering(a, "of-a")
        await offering(b, "of-b", everywhere=True)
        await offering(here, "of-here")
        await offering(there, "of-there", everywhere=True)
        for node in (here, asks):
            found = names(await node.discover(*OFFER, scope))
            assert found == FROM_THE_HUB[scope]
            for name in found:
                assert (await node.request(name, b"?")).payload == b"?"


@pytest.mark.rule("RE-14")
@async_test
async def test_local_then_global_looks_elsewhere_only_if_there_is_none_here() -> None:
    async with fleet("here", "there") as [_, (here, url), (there, _)], leaf("a", url) as a:
        await offering(there, "of-there", everywhere=True)
        assert names(await a.discover(*OFFER, Scope.LOCAL_THEN_GLOBAL)) == ["of-there"]
        assert names(await a.discover(*OFFER, Scope.LOCAL_ONLY)) == []
        await offering(here, "of-here")
        assert names(await a.discover(*OFFER, Scope.LOCAL_THEN_GLOBAL)) == ["of-here"]


@async_test
async def test_local_then_global_finds_at_a_leaf_whatever_local_only_finds() -> None:
    async with hub() as (_, url), leaf("a", url) as a, leaf("b", url) as b:
        await offering(a, "of-a")
        await offering(b, "of-b")
        assert names(await a.discover(*OFFER, Scope.LOCAL_ONLY)) == ["of-a", "of-b"]
        assert names(await a.discover(*OFFER, Scope.LOCAL_THEN_GLOBAL)) == ["of-a", "of-b"]


@async_test
async def test_through_a_hub_of_a_hub_the_global_directory_is_found_too() -> None:
    async with (
        fleet("top", "there") as [_, (_, top_url), (there, _)],
        hub("middle") as (middle, middle_url),
        leaf("a", middle_url) as a,
    ):
        await middle.connect(top_url, name="up", parent=True)
        await offering(a, TRUCK, everywhere=True)
        await there.discover(*OFFER)
        assert existing(there).address == place_address(place_of(top_url))
        await until(lambda: middle.router.table.contains(TRUCK, middle.now()))
        assert (await there.request(TRUCK, b"down")).payload == b"down"


@pytest.mark.parametrize("scope", [Scope.LOCAL_THEN_GLOBAL, Scope.LOCAL_AND_GLOBAL])
@async_test
async def test_what_the_hosting_node_offers_at_home_is_not_found_from_elsewhere(
    scope: Scope,
) -> None:
    async with fleet("there") as [(host, _), (there, _)]:
        await offering(host, "at-home")
        assert await there.discover(*OFFER, scope) == []


@async_test
async def test_a_node_alone_finds_its_own() -> None:
    async with Node("alone") as node:
        await offering(node, TRUCK)
        for scope in (Scope.LOCAL_ONLY, Scope.LOCAL_THEN_GLOBAL, Scope.LOCAL_AND_GLOBAL):
            assert names(await node.discover(*OFFER, scope)) == [TRUCK]
        assert await node.discover(*OFFER, Scope.GLOBAL_ONLY) == []


@async_test
async def test_registering_for_everybody_without_a_directory_is_an_error_that_says_what_to_do() -> (
    None
):
    async with Node("alone") as node:
        with pytest.raises(LocalError, match="host a directory here, ask one elsewhere"):
            await node.register(TRUCK, *OFFER, everywhere=True)
    async with hub() as (_, url), leaf("a", url) as a:
        with pytest.raises(LocalError, match=r"the directory at hub => .* refused: .*host a direc"):
            await a.register(TRUCK, *OFFER, everywhere=True)


@async_test
async def test_a_node_that_listens_nowhere_must_say_where_it_is_reached() -> None:
    async with hub("directory") as (host, url):
        host.host_directory()
        async with Node("shy", limits=QUIET) as shy:
            shy.ask_directory(f"tcp#{place_of(url)}")
            with pytest.raises(LocalError, match="no address where others could reach it"):
                await shy.register(TRUCK, *OFFER, everywhere=True)
            shy.ask_directory(f"tcp#{place_of(url)} => {NAME}", address="tcp#gate.example:4000")
            await shy.register(TRUCK, *OFFER, everywhere=True)
        await host.discover(*OFFER)
        assert existing(host).address.data == b"gate.example:4000"


@async_test
async def test_what_cannot_be_a_name_is_refused_at_once() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        for node, bad in product((center, a), ("", "two words", "0x00")):
            with pytest.raises(LocalError, match="invalid participant, domain or name"):
                await node.register(bad, *OFFER)


@async_test
async def test_a_directory_that_cannot_be_reached_is_told_and_costs_only_the_question() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        center.ask_directory("tcp#127.0.0.1:1")
        await offering(a, TRUCK)
        with pytest.raises(UndeliverableError, match="TRANSPORT_DOWN"):
            await center.discover("fleet", "fuel")
        with pytest.raises(WaystationError, match="TRANSPORT_DOWN"):
            await a.discover("fleet", "fuel")
        assert names(await a.discover(*OFFER, Scope.LOCAL_ONLY)) == [TRUCK]


@async_test
async def test_a_directory_that_was_restarted_is_filled_by_registering_again() -> None:
    async with Node("here", limits=QUIET) as here:
        await here.listen("tcp://127.0.0.1:0")
        async with hub("directory") as (host, url):
            host.host_directory()
            here.ask_directory(f"tcp#{place_of(url)}")
            await offering(here, TRUCK, everywhere=True)
            assert len(await host.discover(*OFFER)) == 1
        async with Node("directory", limits=QUIET) as host:
            host.host_directory()
            await host.listen(url)
            assert await host.discover(*OFFER) == []
            await until_registered(here)
            assert len(await host.discover(*OFFER)) == 1


@async_test
async def test_a_hub_that_was_restarted_learns_again_what_its_leaves_offer() -> None:
    async with Node("a", limits=QUIET) as a:
        async with hub() as (_, url):
            await a.connect(url, name="hub", parent=True)
            await offering(a, TRUCK)
        async with Node("hub", hub=True, limits=QUIET) as center:
            await center.listen(url)
            await until(lambda: knows(center, TRUCK))
            async with asyncio.timeout(SOON):
                while True:
                    if await center.discover(*OFFER):
                        break
                    await asyncio.sleep(0.01)


async def until_registered(node: Node) -> None:
    """The first attempts may meet the session that ended, or a place that is left alone a while."""
    async with asyncio.timeout(20):
        while True:
            try:
                await node.register(TRUCK, *OFFER, everywhere=True)
            except UndeliverableError:
                await asyncio.sleep(0.02)
            else:
                return


QUESTIONS = {
    "nothing": b"",
    "no JSON": b"\xff\x00",
    "no question": b"[]",
    "an unknown question": b'{"ask": "dance"}',
    "an unknown scope": b'{"ask": "lookup", "domain": "a", "name": "b", "scope": "MARS"}',
    "a provider without a name": b'{"ask": "register", "provider": {"participant": "x"}}',
    "a provider nobody could send to": (
        b'{"ask": "register", "provider": {"participant": "a b", "domain": "d", "name": "n"}}'
    ),
    "a provider from before all time": (
        b'{"ask": "register", "provider": '
        b'{"participant": "a", "domain": "d", "name": "n", "expiry": -1}}'
    ),
}


@async_test
async def test_a_bad_question_is_answered_with_what_is_wrong_and_changes_nothing() -> None:
    async with hub() as (center, url):
        await offering(center, TRUCK)
        peer = await RawPeer.dial(place_of(url))
        for name, question in QUESTIONS.items():
            peer.send(NAME, question)
            answer = json.loads((await peer.hear()).payload)
            assert answer["providers"] == [], name
            assert answer["error"], name
        assert names(await center.discover(*OFFER)) == [TRUCK]
        peer.close()


ANSWERS = {
    "nothing": b"",
    "no JSON": b"\xff\x00",
    "no answer": b'{"providers": 7}',
    "a provider nobody could send to": (
        b'{"providers": [{"participant": "", "domain": "d", "name": "n", "address": "tcp#a:1"}]}'
    ),
    "a place of no known kind": (
        b'{"providers": [{"participant": "x", "domain": "d", "name": "n", "address": "moon#1"}]}'
    ),
    "a provider from before all time": (
        b'{"providers": [{"participant": "x", "domain": "d", "name": "n", "address": "tcp#a:1",'
        b' "expiry": -1}]}'
    ),
}


async def ask_a_directory_that_answers(payload: bytes) -> Exception | None:
    """What a look-up raises when the directory answers so."""
    async with Node("broken", limits=QUIET) as broken, Node("asks", limits=QUIET) as asks:

        async def answer(message: object, context: Context) -> None:
            del message
            await context.reply(payload)

        broken.start_worker((NAME,), answer, reserved=True)
        listening = await broken.listen("tcp://127.0.0.1:0")
        asks.ask_directory(f"tcp#{listening.place}")
        try:
            await asks.discover(*OFFER)
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            return error
        return None


@pytest.mark.parametrize("name", ANSWERS)
@async_test
async def test_a_bad_answer_of_a_directory_is_the_directorys_fault(name: str) -> None:
    error = await ask_a_directory_that_answers(ANSWERS[name])
    assert error is None or (
        isinstance(error, WaystationError) and not isinstance(error, LocalError)
    )


@async_test
async def test_no_directory_makes_a_node_send_elsewhere_what_is_its_own() -> None:
    payload = json.dumps(
        {
            "providers": [
                {"participant": name, "domain": "d", "name": "n", "address": "tcp#127.0.0.1:1"}
                for name in ("mine", "waystation.directory", "request-1")
            ]
        }
    ).encode()
    async with Node("broken", limits=QUIET) as broken, Node("asks", limits=QUIET) as asks:

        async def answer(message: object, context: Context) -> None:
            del message
            await context.reply(payload)

        echo(asks, "mine")
        broken.start_worker((NAME,), answer, reserved=True)
        listening = await broken.listen("tcp://127.0.0.1:0")
        asks.ask_directory(f"tcp#{listening.place}")
        await asks.discover("d", "n")
        assert existing(asks, "mine").local
        assert entry_of(asks, "waystation.directory") is None
        assert entry_of(asks, "request-1") is None


# What a leaf can do to others


@async_test
async def test_a_leaf_cannot_unregister_what_another_offers() -> None:
    async with hub() as (center, url), leaf("a", url) as a, leaf("b", url) as b:
        await offering(a, TRUCK)
        with contextlib.suppress(WaystationError):
            await b.unregister(TRUCK)
        assert names(await center.discover(*OFFER)) == [TRUCK]


@async_test
async def test_what_a_lost_leaf_offered_is_not_found_any_more() -> None:
    async with hub() as (center, url):
        async with leaf("a", url) as a:
            await offering(a, TRUCK)
            await until(lambda: knows(center, TRUCK))
        await until(lambda: not knows(center, TRUCK))
        assert await center.discover(*OFFER) == []


@async_test
async def test_what_a_lost_leaf_offered_for_a_while_is_over_with_its_time() -> None:
    clock = ManualClock()
    async with hub(clock=clock) as (center, url):
        async with leaf("a", url, clock=clock) as a:
            echo(a, TRUCK)
            await a.register(TRUCK, *OFFER, ttl=60)
        clock.advance(60)
        assert await center.discover(*OFFER) == []


async def never_answers(peer: RawPeer) -> None:
    with contextlib.suppress(EOFError):
        while True:
            await peer.hear()
    peer.close()


@async_test
async def test_a_directory_beyond_that_is_silent_does_not_hold_up_who_asks_for_something_here() -> (
    None
):
    async with (
        raw_listener(never_answers) as place,
        hub() as (center, url),
        leaf("a", url) as a,
        leaf("b", url) as b,
    ):
        await offering(a, TRUCK)
        center.ask_directory(f"tcp#{place}")
        stuck = asyncio.ensure_future(a.discover(*OFFER, Scope.GLOBAL_ONLY))
        await until(lambda: any(str(s.place) == f"1#{place}" for s in center.sessions))
        try:
            async with asyncio.timeout(SOON):
                assert names(await b.discover(*OFFER, Scope.LOCAL_ONLY)) == [TRUCK]
        finally:
            stuck.cancel()
            await center.close(drain=0)


@async_test
async def test_a_look_up_ends_in_a_ring_of_hubs() -> None:
    async with hub("one") as (one, one_url), hub("two") as (two, two_url):
        await one.connect(two_url, name="up", parent=True)
        await two.connect(one_url, name="up", parent=True)
        await settle()
        try:
            async with asyncio.timeout(SOON):
                assert await one.discover(*OFFER, Scope.LOCAL_ONLY) == []
        finally:
            await one.close(drain=0)
            await two.close(drain=0)


@async_test
async def test_who_registers_with_a_name_of_somebody_else_does_not_get_its_messages() -> None:
    async with hub() as (center, url), leaf("a", url) as a, leaf("b", url) as b:
        echo(a, TRUCK)
        await until(lambda: knows(center, TRUCK))
        before = existing(center)
        with contextlib.suppress(WaystationError):  # whether or not that is told
            await b.register(TRUCK, *OFFER)  # it has no such worker
        await center.discover(*OFFER)
        assert existing(center) == before
        assert (await center.request(TRUCK, b"?")).payload == b"?"
        assert (await center.send("nobody", b"?")).reason is Reason.NO_ROUTE
