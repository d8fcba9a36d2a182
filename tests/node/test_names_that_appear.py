"""A leaf's request waits for a name that nobody has yet; its hub tells when somebody has it."""

from __future__ import annotations

import asyncio

import pytest

from tests.node.live import RawPeer, raw_listener
from tests.node.test_hierarchy_attacks import Attacker
from tests.node.test_hubs import QUIET, hub, knows, leaf
from tests.node.test_readiness import told
from tests.node.test_routing_scenarios import place_of
from waystation.core.outcome import Reason
from waystation.errors import UndeliverableError
from waystation.node import FAIL, Node, Wait
from waystation.testing import Recorder, async_test, echo, until
from waystation.wire import hierarchy as wire
from waystation.wire.hierarchy import Appeared, Resolve, Resolved, Withdraw
from waystation.wire.ockam import PREFACE

TRUCK = "truck-7"
LONG = 600.0
"""Timeout in seconds that no test would wait for."""


@async_test
async def test_a_request_is_answered_by_a_worker_that_comes_later() -> None:
    async with hub() as (_, url), leaf("a", url) as a:
        asking = asyncio.ensure_future(a.request(TRUCK, b"early", timeout=LONG))
        await until(lambda: a._kernel.waiting.for_absent)
        async with leaf("b", url) as b:
            echo(b, TRUCK)
            assert (await asking).payload == b"early"


@async_test
async def test_a_request_waits_for_a_worker_behind_another_hub_two_levels_up() -> None:
    async with (
        hub("top") as (_, top_url),
        hub("left") as (left, left_url),
        hub("right") as (right, right_url),
        leaf("a", left_url) as a,
    ):
        for node in (left, right):
            await node.connect(top_url, name="up", parent=True)
        asking = asyncio.ensure_future(a.request(TRUCK, b"far", timeout=LONG))
        await until(lambda: a._kernel.waiting.for_absent)
        async with leaf("b", right_url) as b:
            echo(b, TRUCK)
            assert (await asking).payload == b"far"


@async_test
async def test_a_request_waits_for_its_own_node_to_start_the_worker() -> None:
    async with hub() as (_, url), leaf("a", url) as a:
        asking = asyncio.ensure_future(a.request(TRUCK, b"at home", timeout=LONG))
        await until(lambda: a._kernel.waiting.for_absent)
        echo(a, TRUCK)
        assert (await asking).payload == b"at home"


@async_test
async def test_a_request_waits_for_its_hub_to_come_and_then_for_the_name() -> None:
    async with hub() as (_, url):
        pass  # and so its port is free
    async with Node("a", limits=QUIET) as a:
        await a.connect(url, name="hub", parent=True, wait=None)
        asking = asyncio.ensure_future(a.request(TRUCK, b"first", timeout=LONG))
        await until(lambda: a._kernel.waiting.for_absent)
        async with Node("hub", hub=True, limits=QUIET) as center:
            await center.listen(url)
            async with leaf("b", url) as b:
                echo(b, TRUCK)
                assert (await asking).payload == b"first"


@async_test
async def test_a_name_that_never_appears_fails_the_request_with_the_reason_and_its_id() -> None:
    async with hub() as (_, url), leaf("a", url) as a:
        journal = Recorder(a)
        with pytest.raises(UndeliverableError, match="truck-7 was dropped: NO_ROUTE") as caught:
            await a.request(TRUCK, b"?", timeout=0.3)
        error = caught.value
        assert (error.reason, error.node) == (Reason.NO_ROUTE, None)
        [record] = [one for one in journal.messages if one.arrival.message.payload == b"?"]
        assert (record.verdict.reason, record.verdict.recipient) == (Reason.NO_ROUTE, TRUCK)
        assert error.message_id == record.arrival.message.id
        assert error.message_id in str(error)
        await until(lambda: not a._kernel.waiting.waited_for)
    journal.check_outcomes()


@async_test
async def test_a_request_that_is_cancelled_waits_no_longer() -> None:
    async with hub() as (_, url), leaf("a", url) as a:
        journal = Recorder(a)
        asking = asyncio.ensure_future(a.request(TRUCK, b"?", timeout=LONG))
        await until(lambda: a._kernel.waiting.for_absent)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: not a._kernel.waiting.waited_for)
        assert a._kernel.waiting.for_absent == 0
        assert journal.outcomes() == [(b"?", "NO_ROUTE")]


@async_test
async def test_a_request_with_another_policy_does_not_wait_for_a_name() -> None:
    async with hub() as (_, url), leaf("a", url) as a:
        for policy in (FAIL, Wait(LONG)):
            with pytest.raises(UndeliverableError, match="NO_ROUTE"):
                await a.request(TRUCK, b"?", timeout=LONG, policy=policy)


@async_test
async def test_a_node_without_a_parent_does_not_wait_for_a_name() -> None:
    async with hub() as (center, _), Node("alone") as alone:
        for node in (center, alone):
            with pytest.raises(UndeliverableError, match="NO_ROUTE"):
                await node.request(TRUCK, b"?", timeout=LONG)
            with pytest.raises(UndeliverableError, match="TRANSPORT_DOWN"):
                await node.request("tcp#127.0.0.1:1 => echo", b"?", timeout=LONG)


@async_test
async def test_a_leaf_does_not_wait_for_a_place_that_cannot_be_reached() -> None:
    async with hub() as (_, url), leaf("a", url) as a:
        with pytest.raises(UndeliverableError, match="TRANSPORT_DOWN"):
            await a.request("tcp#127.0.0.1:1 => echo", b"?", timeout=LONG)


@async_test
async def test_what_a_leaf_sends_without_asking_for_a_reply_does_not_wait() -> None:
    async with hub() as (_, url), leaf("a", url) as a:
        assert (await a.send(TRUCK, b"?")).reason is Reason.NO_ROUTE


# What the hub tells


@async_test
async def test_a_hub_tells_who_asked_in_vain_when_the_name_comes_and_when_it_goes() -> None:
    async with hub() as (center, url), leaf("b", url) as b:
        peer = await Attacker.dial(place_of(url))
        peer.tell(Resolve(1, TRUCK))
        assert await told(peer, Resolved) == Resolved(1, found=False)
        echo(b, TRUCK)
        assert await told(peer, Appeared) == Appeared([TRUCK])
        await b.stop_worker(TRUCK)
        assert await told(peer, Withdraw) == Withdraw([TRUCK])
        assert TRUCK not in center._kernel.hierarchy.questions._wanted
        peer.close()


@async_test
async def test_a_hub_tells_what_its_own_parent_told_it() -> None:
    async with (
        hub("top") as (_, top_url),
        hub("low") as (low, low_url),
        leaf("b", top_url) as b,
    ):
        await low.connect(top_url, name="up", parent=True)
        peer = await Attacker.dial(place_of(low_url))
        peer.tell(Resolve(1, TRUCK))
        assert await told(peer, Resolved) == Resolved(1, found=False)
        echo(b, TRUCK)
        assert await told(peer, Appeared) == Appeared([TRUCK])
        assert knows(low, TRUCK)
        peer.close()


@async_test
async def test_who_has_the_name_itself_is_not_told_of_it() -> None:
    async with hub() as (center, url):
        peer, other = await Attacker.dial(place_of(url)), await Attacker.dial(place_of(url))
        for one in (peer, other):
            one.tell(Resolve(1, TRUCK))
            await told(one, Resolved)
        peer.announce(TRUCK)
        assert await told(other, Appeared) == Appeared([TRUCK])
        peer.tell(Resolve(2, "nobody"))
        said = wire.read(await peer.hear_control())
        assert said == Resolved(2, found=False)
        assert knows(center, TRUCK)
        peer.close()
        other.close()


@async_test
async def test_a_leaf_believes_its_hub_that_a_name_has_come() -> None:
    over = asyncio.Event()

    async def parent(peer: RawPeer) -> None:
        """Knows nothing, however often it is asked, and then says that the name is there."""
        peer.say(PREFACE)
        question = await told(peer, Resolve)
        peer.control(wire.encode(Resolved(question.number, found=False)))
        peer.control(wire.encode(Appeared(["unasked", TRUCK])))
        request = await peer.hear()
        assert str(request.onward_route.first) == f"0#{TRUCK}"
        over.set()

    async with raw_listener(parent) as place, Node("a", limits=QUIET) as a:
        session = await a.connect(f"tcp://{place}", name="hub", parent=True)
        asking = asyncio.ensure_future(a.request(TRUCK, b"?", timeout=LONG))
        await over.wait()
        assert not knows(a, "unasked")
        asking.cancel()
        session.give_up()


@async_test
async def test_only_a_parent_can_say_that_a_name_has_come() -> None:
    async with hub("top") as (_, top_url), hub("low") as (low, low_url):
        await low.connect(top_url, name="up", parent=True)
        asking = asyncio.ensure_future(low.request(TRUCK, b"secret", timeout=LONG))
        await until(lambda: low._kernel.waiting.for_absent)
        peer = await Attacker.dial(place_of(low_url))
        peer.tell(Appeared([TRUCK]), Resolve(1, "nobody"))
        await told(peer, Resolved)
        assert not knows(low, TRUCK)
        asking.cancel()
        peer.close()


@pytest.mark.rule("FL-5")
@async_test
async def test_a_hub_remembers_a_limited_number_of_names_and_of_those_who_asked() -> None:
    async with hub() as (center, url):
        wanted = center._kernel.hierarchy.questions._wanted
        wanted.LIMIT = 3
        peers = [await Attacker.dial(place_of(url)) for _ in range(5)]
        for number in range(10):
            peers[0].tell(Resolve(number, f"truck-{number}"))
            await told(peers[0], Resolved)
        assert list(wanted.askers) == ["truck-7", "truck-8", "truck-9"]
        for peer in peers:
            peer.tell(Resolve(10, TRUCK))
            await told(peer, Resolved)
        assert len(wanted.askers[TRUCK]) == 3
        for peer in peers:
            peer.close()
        await until(lambda: not center.sessions)
        echo(center, TRUCK)
        assert list(wanted.askers) == ["truck-8", "truck-9"]
