"""The seven scenarios in the life of a routing entry, over real links, each by its number (RE).

    1 a local provider registers locally     5 a global provider is discovered
    2 a local provider registers globally    6 a global proxy is added (an incoming request)
    3 a provider unregisters                 7 an entry expires
    4 a local proxy is built

A provider is a worker of a node or of one of its leaves. To register globally is to be listed in
the directory of a node that the others ask; a global address is that of another node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.node.live import RawPeer, place_address
from tests.node.test_broadcasts import Broker, BrokerClient
from tests.node.test_hubs import QUIET, hub, knows, leaf
from waystation.core.address import Address
from waystation.core.directory import Provider, Scope
from waystation.core.expiry import NEVER, Deadlines
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.routing import Refusal, RouteKind, RoutingEntry
from waystation.errors import LocalError
from waystation.node import FAIL, Context, Node, Wait
from waystation.testing import (
    DEADLINE,
    ManualClock,
    Recorder,
    async_test,
    collect,
    echo,
    settle,
    until,
)
from waystation.wire.hierarchy import Announce, encode

TRUCK = "truck-7"
OFFER = ("fleet", "position")
SLOT_SECONDS = Deadlines.SLOT_MS / 1000


def entry_of(node: Node, participant: str = TRUCK) -> RoutingEntry | None:
    return node.router.table.lookup(participant, node.now())


def existing(node: Node, participant: str = TRUCK) -> RoutingEntry:
    entry = entry_of(node, participant)
    assert entry is not None
    return entry


def place_of(url: str) -> str:
    return url.removeprefix("tcp://")


def changes(journal: Recorder, participant: str = TRUCK) -> list[tuple[str, bool, bool]]:
    """What happened to a participant: the kind, whether local, whether accepted."""
    return [
        (change.kind.value, change.entry.local, change.accepted)
        for change in journal.routes
        if change.entry.participant == participant
    ]


@asynccontextmanager
async def fleet(*names: str, **options: Any) -> AsyncIterator[list[tuple[Node, str]]]:
    """A node that hosts the directory, and hubs that ask it; the host comes first."""
    async with hub("directory", **options) as (host, url):
        host.host_directory()
        nodes = [(host, url)]
        for name in names:
            node = Node(name, hub=True, limits=QUIET, **options)
            listening = await node.listen("tcp://127.0.0.1:0")
            node.ask_directory(f"tcp#{place_of(url)}")
            nodes.append((node, listening.url))
        try:
            yield nodes
        finally:
            for node, _ in nodes[1:]:
                await node.close()


# 1. A local provider registers locally


@pytest.mark.rule("RE-2")
@async_test
async def test_1a_the_first_registration_creates_the_entry_at_the_leaf_and_at_its_hub() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        heard = Recorder(center)
        assert entry_of(center) is None
        echo(a, TRUCK)
        assert existing(a) == RoutingEntry(TRUCK, Address(0, TRUCK.encode()), local=True)
        await until(lambda: knows(center, TRUCK))
        [session] = center.sessions
        assert existing(center) == RoutingEntry(TRUCK, session.address, local=True)
        assert changes(heard) == [("put", True, True)]
        await a.register(TRUCK, *OFFER)
        found = await center.discover(*OFFER, Scope.LOCAL_ONLY)
        assert [provider.participant for provider in found] == [TRUCK]


@pytest.mark.rule("RE-3", "RE-7")
@async_test
async def test_1b_a_restarted_provider_replaces_its_entry_and_is_reached_at_its_new_place() -> None:
    async with hub() as (center, url), leaf("first", url) as first:
        echo(first, TRUCK)
        await until(lambda: knows(center, TRUCK))
        before = existing(center)
        async with leaf("second", url) as second:  # while nobody knows yet that the first is gone
            got = collect(second, TRUCK)
            await until(lambda: existing(center).address != before.address)
            assert existing(center).expiry == NEVER
            await center.send(TRUCK, b"to the second")
            await until(lambda: got)
            await first.sessions[0].close()
            await until(lambda: len(center.sessions) == 1)
            assert knows(center, TRUCK)  # the old one's end does not take the new one along


# 2. A local provider registers globally


@pytest.mark.rule("RE-2", "RE-14")
@async_test
async def test_2a_the_first_global_registration_is_found_from_everywhere() -> None:
    async with (
        fleet("here", "there") as [_, (here, here_url), (there, _)],
        leaf("a", here_url) as a,
    ):
        echo(a, TRUCK)
        await a.register(TRUCK, *OFFER, everywhere=True)
        assert existing(here).local
        assert entry_of(there) is None
        [found] = await there.discover(*OFFER, Scope.GLOBAL_ONLY)
        assert found == Provider(TRUCK, *OFFER, here_url.replace("://", "#"))
        assert (await there.request(TRUCK, b"hello")).payload == b"hello"


@pytest.mark.rule("RE-4", "RE-7", "RE-9")
@async_test
async def test_2b1_a_provider_that_was_discovered_elsewhere_comes_back_here() -> None:
    async with fleet("old", "new") as [_, (old, old_url), (new, new_url)]:
        echo(old, TRUCK)
        await old.register(TRUCK, *OFFER, everywhere=True)
        await new.discover(*OFFER)  # a proxy was faster than the provider's return
        discovered = existing(new)
        assert discovered.address == place_address(place_of(old_url))
        assert not discovered.local
        await old.stop_worker(TRUCK)
        async with leaf("a", new_url) as a:
            got = collect(a, TRUCK)
            await until(lambda: existing(new).local)
            assert existing(new).expiry == NEVER  # the later one of the two
            assert not existing(new).visible  # the newest put decides
            await new.send(TRUCK, b"here again")
            await until(lambda: got)


@pytest.mark.rule("RE-3", "RE-12")
@async_test
async def test_2b2_a_provider_that_crashed_registers_again_before_anybody_noticed() -> None:
    async with hub() as (center, url):
        crashed = await RawPeer.dial(place_of(url))  # it says no goodbye
        crashed.control(encode(Announce([(TRUCK, False, center.now() + 3_600_000)])))
        await until(lambda: knows(center, TRUCK))
        before = existing(center)
        async with leaf("again", url) as again:
            echo(again, TRUCK)
            await until(lambda: existing(center).address != before.address)
            assert existing(center).expiry == NEVER
            crashed.reset()
            await until(lambda: len(center.sessions) == 1)
            assert (await center.request(TRUCK, b"alive?")).payload == b"alive?"


@pytest.mark.rule("RE-4", "RE-8")
@async_test
async def test_2b_a_protected_entry_stays_protected_when_the_provider_comes_back() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        there = Address(1, b"127.0.0.1:1")
        center.put_route(RoutingEntry(TRUCK, there, local=False, expiry=1, sticky=True))
        echo(a, TRUCK)
        await until(lambda: existing(center).local)
        assert existing(center).sticky


# 3. A provider unregisters


@pytest.mark.rule("RE-11")
@async_test
async def test_3_a_provider_that_stops_has_no_entry_anywhere() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        heard = Recorder(center)
        echo(a, TRUCK)
        await a.register(TRUCK, *OFFER)
        await a.unregister(TRUCK)
        assert await center.discover(*OFFER) == []
        assert knows(center, TRUCK)  # it can be sent to until it stops
        await a.stop_worker(TRUCK)
        assert entry_of(a) is None
        await until(lambda: not knows(center, TRUCK))
        assert changes(heard) == [("put", True, True), ("remove", True, True)]
        assert (await center.send(TRUCK, b"?", policy=FAIL)).reason is Reason.NO_ROUTE
        assert center.remove_route(TRUCK) is None  # once more is no error
        await a.unregister(TRUCK)


@async_test
async def test_3_a_global_provider_that_unregisters_is_not_found_any_more() -> None:
    async with (
        fleet("here", "there") as [_, (here, here_url), (there, _)],
        leaf("a", here_url) as a,
    ):
        echo(a, TRUCK)
        await a.register(TRUCK, *OFFER, everywhere=True)
        assert len(await there.discover(*OFFER, Scope.GLOBAL_ONLY)) == 1
        await a.unregister(TRUCK)
        for node in (a, here, there):
            assert await node.discover(*OFFER, Scope.LOCAL_AND_GLOBAL) == []


# 4. A local proxy is built


@pytest.mark.rule("RE-2", "RE-11")
@async_test
async def test_4_every_open_question_has_an_entry_of_its_own() -> None:
    async with hub() as (center, url):
        async with leaf("a", url) as a:
            heard = Recorder(a)
            echo(center)
            for _ in range(2):  # the second three where the first were
                await asyncio.gather(*(a.request("hub => echo", b"?") for _ in range(3)))
        proxies = [
            (change.entry.participant, change.kind)
            for change in heard.routes
            if change.entry.participant.startswith("request-")
        ]
        names = [name for name, _ in proxies]
        assert len(set(names)) == 3
        assert [kind for _, kind in proxies] == [RouteKind.PUT] * 3 + [RouteKind.REMOVE] * 3
        assert not any(knows(a, name) for name in names)
        assert not any(knows(center, name) for name in names)  # they mean nothing to others


@pytest.mark.rule("RE-2")
@async_test
async def test_4_a_subscriber_has_an_entry_here_and_at_the_hub() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        subscription = a.subscribe("truck-7", "position")
        name = subscription.address.name
        await until(lambda: knows(center, name))
        assert existing(a, name).local
        assert existing(center, name).local
        await subscription.close()
        await until(lambda: not knows(center, name))


# 5. A global provider is discovered


@pytest.mark.rule("RE-2", "RE-14", "RE-16")
@async_test
async def test_5_1_a_discovered_provider_without_an_entry_gets_one() -> None:
    async with fleet("here", "there") as [_, (here, here_url), (there, there_url)]:
        echo(here, TRUCK)
        await here.register(TRUCK, *OFFER, everywhere=True)  # without an end
        async with leaf("b", there_url) as b:
            assert entry_of(b) is None
            await b.discover(*OFFER)
            assert existing(there).address == place_address(place_of(here_url))
            assert not existing(there).local
            assert existing(there).visible
            assert existing(there).expiry != NEVER  # what was found is asked for again one day
            assert existing(b).address == Address(0, b"hub")
            assert (await b.request(TRUCK, b"by name")).payload == b"by name"


@pytest.mark.rule("RE-5", "RE-7")
@async_test
async def test_5_2_a_provider_that_moved_is_found_at_its_new_place() -> None:
    async with fleet("first", "second", "asks") as [_, (first, one), (second, two), (asks, _)]:
        echo(first, TRUCK)
        await first.register(TRUCK, *OFFER, everywhere=True, ttl=3_600)
        await asks.discover(*OFFER)
        before = existing(asks)
        assert before.address == place_address(place_of(one))
        await first.stop_worker(TRUCK)
        got = collect(second, TRUCK)
        await second.register(TRUCK, *OFFER, everywhere=True, ttl=60)
        await asks.discover(*OFFER)
        after = existing(asks)
        assert after.address == place_address(place_of(two))
        assert after.expiry == before.expiry  # the later one of the two
        await asks.send(TRUCK, b"there")
        await until(lambda: got)


ASKS_GLOBALLY = [Scope.GLOBAL_ONLY, Scope.LOCAL_AND_GLOBAL, Scope.LOCAL_THEN_GLOBAL]


@pytest.mark.rule("RE-6", "RE-14")
@pytest.mark.parametrize("scope", ASKS_GLOBALLY)
@async_test
async def test_5_3_a_local_entry_is_kept_whatever_was_discovered(scope: Scope) -> None:
    async with fleet("stale", "here") as [_, (stale, _), (here, here_url)]:
        echo(stale, TRUCK)
        await stale.register(TRUCK, *OFFER, everywhere=True)
        async with leaf("a", here_url) as a:
            got = collect(a, TRUCK)  # it is here, and listed nowhere yet
            await until(lambda: knows(here, TRUCK))
            before = existing(here)
            heard = Recorder(here)
            await here.discover(*OFFER, scope)
            assert existing(here) == before
            assert changes(heard) == [("put", False, False)]
            [refused] = [change for change in heard.routes if not change.accepted]
            assert refused.refusal is Refusal.LOCAL_STAYS
            await here.send(TRUCK, b"stays")
            await until(lambda: got)


@pytest.mark.rule("RE-6", "RE-14")
@async_test
async def test_5_3_a_worker_of_the_node_itself_is_kept_as_well() -> None:
    async with fleet("stale", "here") as [_, (stale, _), (here, _)]:
        echo(stale, TRUCK)
        await stale.register(TRUCK, *OFFER, everywhere=True)
        got = collect(here, TRUCK)
        await here.discover(*OFFER, Scope.GLOBAL_ONLY)
        assert existing(here).local
        await here.send(TRUCK, b"stays")
        await until(lambda: got)


@pytest.mark.rule("RE-15")
@async_test
async def test_5_a_node_that_finds_its_own_address_does_not_send_to_itself() -> None:
    async with fleet("here") as [(host, _), (here, here_url)]:
        echo(here, TRUCK)
        await here.register(TRUCK, *OFFER, everywhere=True)
        await here.stop_worker(TRUCK)  # it crashed, and is still listed with the address of `here`
        [found] = await here.discover(*OFFER, Scope.GLOBAL_ONLY)
        assert found.address == here_url.replace("://", "#")
        assert entry_of(here) is None
        assert (await here.send(TRUCK, b"?", policy=FAIL)).reason is Reason.NO_ROUTE
        await host.discover(*OFFER)
        assert not existing(host).local  # for others it is a route like any other


@pytest.mark.rule("RE-14")
@async_test
async def test_5_a_provider_of_the_node_that_hosts_the_directory_is_reached_from_elsewhere() -> (
    None
):
    async with fleet("there") as [(host, _), (there, _)]:
        echo(host, TRUCK)
        await host.register(TRUCK, *OFFER, everywhere=True)
        await there.discover(*OFFER)
        assert (await there.request(TRUCK, b"hello", policy=FAIL)).payload == b"hello"


# 6. A global proxy is added (an incoming request)


@asynccontextmanager
async def asked_from_outside() -> AsyncIterator[tuple[ManualClock, Node, RawPeer]]:
    """A node with an echo, whose clock stands still, and a peer that reaches it from outside."""
    clock = ManualClock()
    async with Node("inside", limits=QUIET, clock=clock) as node:
        echo(node)
        listening = await node.listen("tcp://127.0.0.1:0", outside=True)
        peer = await RawPeer.dial(listening.place)
        try:
            yield clock, node, peer
        finally:
            peer.close()


async def ask(node: Node, peer: RawPeer, seconds: float | None, sender: str = "proxy") -> float:
    """A question that lives so long; the instant at which that is over."""
    expiry = NEVER if seconds is None else node.now() + round(seconds * 1000)
    peer.send("echo", b"?", back=sender, id=node.new_id(), expiry=expiry)
    await peer.hear()
    return expiry


@pytest.mark.rule("RE-2", "RE-13")
@async_test
async def test_6a_the_first_request_leaves_the_way_back_for_as_long_as_it_lives() -> None:
    async with asked_from_outside() as (_, node, peer):
        expiry = await ask(node, peer, 60)
        [session] = node.sessions
        assert existing(node, "proxy") == RoutingEntry(
            "proxy", session.address, local=False, visible=True, expiry=expiry
        )
        await node.send("proxy", b"later")
        assert (await peer.hear()).payload == b"later"


@pytest.mark.rule("RE-7", "RE-13")
@async_test
async def test_6b_a_later_request_extends_the_entry_and_a_shorter_one_does_not_shorten_it() -> None:
    async with asked_from_outside() as (clock, node, peer):
        await ask(node, peer, 60)
        clock.advance(30)
        extended = await ask(node, peer, 60)
        assert existing(node, "proxy").expiry == extended
        await ask(node, peer, 5)
        assert existing(node, "proxy").expiry == extended
        await ask(node, peer, None)
        assert existing(node, "proxy").expiry == NEVER


@pytest.mark.rule("RE-10", "RE-13")
@async_test
async def test_6c_the_entry_of_a_proxy_that_asks_no_more_is_over() -> None:
    async with asked_from_outside() as (clock, node, peer):
        await ask(node, peer, 60)
        clock.advance(60)
        assert entry_of(node, "proxy") is None
        assert (await node.send("proxy", b"?", policy=FAIL)).reason is Reason.NO_ROUTE
        await ask(node, peer, 60)  # and comes back with the next request
        assert knows(node, "proxy")


@pytest.mark.rule("RE-12", "RE-13")
@async_test
async def test_6c_the_entry_of_a_proxy_goes_with_its_connection() -> None:
    async with asked_from_outside() as (_, node, peer):
        await ask(node, peer, None)
        peer.close()
        await until(lambda: not knows(node, "proxy"))


@pytest.mark.rule("RE-6", "RE-13")
@async_test
async def test_6_a_request_does_not_take_the_name_of_somebody_here() -> None:
    async with asked_from_outside() as (_, node, peer):
        heard = Recorder(node)
        before = existing(node, "echo")
        await ask(node, peer, 60, sender="echo")
        assert existing(node, "echo") == before
        assert changes(heard, "echo") == [("put", False, False)]


@pytest.mark.rule("RE-13")
@async_test
async def test_6_a_request_that_a_leaf_passes_on_for_somebody_else_leaves_no_entry() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        echo(center)
        assert (await a.request("hub => echo", b"?")).payload == b"?"
        peers = {session.name for session in center.sessions}
        names = set(center.router.table.snapshot(center.now()))
        assert names == {"echo", "waystation.directory", *peers}


# 7. An entry expires


@pytest.mark.rule("RE-10", "RE-16")
@async_test
async def test_7_an_entry_is_dead_at_its_instant_unless_it_is_sticky_or_never_ends() -> None:
    clock = ManualClock()
    async with Node("hub", limits=QUIET, clock=clock) as node:
        there = Address(1, b"127.0.0.1:1")
        end = node.now() + 10_000
        node.put_route(RoutingEntry("ends", there, local=False, expiry=end))
        node.put_route(RoutingEntry("sticks", there, local=False, expiry=end, sticky=True))
        node.put_route(RoutingEntry("never", there, local=False))
        clock.advance(9.99)
        assert knows(node, "ends")
        clock.advance(0.01)
        assert [knows(node, name) for name in ("ends", "sticks", "never")] == [False, True, True]
        heard = Recorder(node)
        assert (await node.send("ends", b"?", policy=FAIL)).reason is Reason.NO_ROUTE
        assert node.remove_route("ends") is None
        node.put_route(RoutingEntry("ends", there, local=False, expiry=end + 1))
        assert existing(node, "ends").expiry == end + 1
        assert [change.kind for change in heard.routes] == [RouteKind.PUT]


@pytest.mark.rule("RE-10")
@async_test
async def test_7_what_a_leaf_announced_for_a_while_is_over_at_the_hub_at_the_same_instant() -> None:
    clock = ManualClock()
    async with hub(clock=clock) as (center, url):
        peer = await RawPeer.dial(place_of(url))
        end = center.now() + 5_000
        peer.control(encode(Announce([(TRUCK, False, end)])))
        await until(lambda: knows(center, TRUCK))
        clock.advance(5)
        assert not knows(center, TRUCK)
        peer.close()


@pytest.mark.rule("RE-10", "RE-14")
@async_test
async def test_7_a_registration_with_an_end_is_over_unless_it_is_renewed() -> None:
    clock = ManualClock()
    async with fleet("here", "there", clock=clock) as [(host, _), (here, _), (there, _)]:
        echo(here, TRUCK)
        await here.register(TRUCK, *OFFER, everywhere=True, ttl=60)
        await there.discover(*OFFER)
        end = existing(there).expiry
        clock.advance(30)
        await here.register(TRUCK, *OFFER, everywhere=True, ttl=60)
        await there.discover(*OFFER)
        assert existing(there).expiry == end + 30_000
        clock.advance(61)
        assert entry_of(there) is None
        for node in (host, here, there):
            assert await node.discover(*OFFER) == []


@pytest.mark.rule("RE-10", "RE-17")
@async_test
async def test_7_the_memory_of_dead_entries_is_freed_while_the_node_lives() -> None:
    async with asked_from_outside() as (clock, node, peer):
        await ask(node, peer, 1)
        held = len(node.router.table)
        for number in range(100):
            await ask(node, peer, 1, sender=f"proxy-{number}")
        clock.advance(1 + 2 * SLOT_SECONDS)
        await ask(node, peer, 1, sender="last")  # something happens, should that be the occasion
        await until(lambda: len(node.router.table) <= held, seconds=DEADLINE)


@async_test
async def test_a_proxy_and_its_provider_talk_across_hubs_as_in_all_scenarios_together() -> None:
    async with (
        fleet("left", "right") as [_, (_, left_url), (_, right_url)],
        leaf("provider", left_url) as provider,
        leaf("consumer", right_url) as consumer,
    ):

        @provider.worker(TRUCK)
        async def position(message: Message, context: Context) -> None:
            del message
            await context.reply(b"48.1,11.6")

        await provider.register(TRUCK, *OFFER, everywhere=True)
        [found] = await consumer.discover(*OFFER)
        answer = await consumer.request(found.participant, b"where?")
        assert answer.payload == b"48.1,11.6"
        verdict = await consumer.send(TRUCK, b"no answer wanted")
        assert verdict.outcome is Outcome.FORWARDED
        await settle()


# Broadcasts follow the entries of their providers


class _Heard(list[bytes]):
    def __call__(self, message: Message) -> None:
        self.append(message.payload)


@pytest.mark.rule("MC-12", "MC-13")
@async_test
async def test_a_provider_that_moves_to_another_hub_is_heard_there_by_who_subscribed_before() -> (
    None
):
    broker = Broker()
    async with hub("near") as (near, near_url), hub("far") as (far, far_url):
        near.use(BrokerClient(broker))
        far.use(BrokerClient(broker))
        heard = _Heard()
        async with leaf("a", near_url) as a:
            await a.publish("news", b"first")
            await until(lambda: knows(near, "a"))
            near.subscribe("a", "news", "*", callback=heard)
            await a.publish("news", b"here")
            await until(lambda: heard == [b"here"])
        await until(lambda: not knows(near, "a"))
        async with leaf("a", far_url) as a:
            await a.publish("news", b"there")
            await until(lambda: heard == [b"here", b"there"], seconds=DEADLINE)


@async_test
async def test_a_node_that_is_closed_takes_no_subscription_that_never_ends() -> None:
    node = Node("garage")
    await node.close()
    with pytest.raises((LocalError, StopAsyncIteration)):
        async with asyncio.timeout(1):
            await anext(node.subscribe("garage", "news"))


# Two parents


@pytest.mark.rule("MC-9")
@async_test
async def test_a_leaf_of_two_hubs_hears_a_broadcast_once() -> None:
    async with (
        hub("one") as (one, one_url),
        hub("two") as (two, two_url),
        Node("a", limits=QUIET) as a,
        Node("b", limits=QUIET) as b,
    ):
        for node in (a, b):
            await node.connect(one_url, name="one", parent=True)
            await node.connect(two_url, name="two", parent=True)
        heard = _Heard()
        echo(b)
        b.subscribe("a", "news", "*", callback=heard)
        hubs = (one, two)
        await until(lambda: all(len(h.router.subscriptions) == 1 for h in hubs))
        await a.publish("news", b"once")
        for center in hubs:  # an answer from b comes behind the copy that went the same way
            [session] = [s for s in center.sessions if s.peer == "b"]
            await a.request(f"{center.name} => {session.name} => echo", b"?")
        assert heard == [b"once"]


@pytest.mark.rule("RE-12")
@async_test
async def test_a_leaf_of_two_hubs_finds_its_way_when_one_of_them_is_gone() -> None:
    async with (
        hub("one") as (one, one_url),
        hub("two") as (two, two_url),
        Node("a", limits=QUIET) as a,
        Node("b", limits=QUIET) as b,
    ):
        for node in (a, b):
            await node.connect(one_url, name="one", parent=True)
            await node.connect(two_url, name="two", parent=True)
        echo(b, TRUCK)
        await until(lambda: knows(one, TRUCK) and knows(two, TRUCK))
        await a.request(TRUCK, b"over the first")
        await one.close()
        await until(lambda: sum(session.is_open for session in a.sessions) == 1)
        answer = await a.request(TRUCK, b"over the second", policy=Wait(2))
        assert answer.payload == b"over the second"
