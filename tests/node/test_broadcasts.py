"""Broadcasts through live nodes: in one process, over a hub, and around rings (MC)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.node.test_hubs import hub, knows, leaf
from tests.rule_errors import breaks
from waystation.core.address import Address
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.errors import LocalError
from waystation.node import FAIL, Limits, Node, Wait
from waystation.testing import Recorder, async_test, collect, settle, until

TREE = ["+", "a", "a/+", "a/+/b", "a/*", "*", "+/+/a", "+/+/*"]
PUBLISHED = {  # MC-7
    "brod": {"*"},
    "brod/a": {"+", "a", "a/*", "*"},
    "brod/a/z": {"a/+", "a/*", "*", "+/+/*"},
    "brod/a/b/a": {"a/*", "*", "+/+/a", "+/+/*"},
    "brod/a/z/b": {"a/+/b", "a/*", "*", "+/+/*"},
    "brod/z": {"+", "*"},
    "anotherBrod": set(),
}


class Heard:
    """What came over a subscription."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def __call__(self, message: Message) -> None:
        self.payloads.append(message.payload)


@pytest.mark.rule("MC-7")
@async_test
async def test_the_reference_table_holds_for_a_live_node() -> None:
    async with Node("provider") as node:
        heard: dict[str, Heard] = {}
        for pattern in TREE:
            heard[pattern] = Heard()
            node.subscribe("provider", "brod", pattern, callback=heard[pattern])
        for published, receivers in PUBLISHED.items():
            broadcast, _, partition = published.partition("/")
            verdicts = await node.publish(broadcast, published.encode(), partition=partition)
            await until(
                lambda p=published, r=receivers: (  # type: ignore[misc]
                    {name for name, one in heard.items() if p.encode() in one.payloads} == r
                )
            )
            reached = [verdict for verdict in verdicts if verdict.reason is None]
            assert len(reached) == len(receivers)


@pytest.mark.rule("MC-8")
@async_test
async def test_a_subscriber_hears_what_is_published_while_it_is_there() -> None:
    async with Node("garage") as node:
        await node.publish("temperature", b"before", partition="eu/de/munich")
        subscription = node.subscribe("garage", "temperature", "eu/+/munich")
        await node.publish("temperature", b"21.5", partition="eu/de/munich", ttl=60)
        await node.publish("temperature", b"elsewhere", partition="eu/de/berlin")
        async for message in subscription:
            assert message.payload == b"21.5"
            await subscription.close()
        verdicts = await node.publish("temperature", b"after", partition="eu/de/munich")
        assert [verdict.reason for verdict in verdicts] == [Reason.NO_SUBSCRIBER]


@pytest.mark.rule("MC-5")
@async_test
async def test_a_wildcard_is_never_published() -> None:
    async with Node("garage") as node:
        heard = Recorder(node)
        with pytest.raises(LocalError, check=breaks("MC-5")):
            await node.publish("temperature", b"", partition="eu/+")
        assert heard.messages == []


@pytest.mark.rule("MC-9")
@async_test
async def test_several_receivers_behind_one_leaf_get_one_copy_over_the_wire() -> None:
    async with hub() as (center, url), leaf("a", url) as a, leaf("b", url) as b:
        first, second, third = Heard(), Heard(), Heard()
        b.subscribe("a", "news", "*", callback=first)
        b.subscribe("a", "news", "+", callback=second)
        center.subscribe("a", "news", "x", callback=third)
        await until(lambda: len(center.router.subscriptions) == 3)
        at_b = Recorder(b)
        await a.publish("news", b"1", partition="x")
        await until(lambda: first.payloads and second.payloads and third.payloads)
        assert (first.payloads, second.payloads, third.payloads) == ([b"1"], [b"1"], [b"1"])
        entered = {(r.arrival.message.id, r.arrival.received_at) for r in at_b.messages}
        assert len(entered) == 1
        assert {r.arrival.multicast_id for r in at_b.messages} == {"a/news/x"}


@pytest.mark.rule("MC-10", "MC-11")
@async_test
async def test_what_came_from_the_parent_does_not_go_up_again() -> None:
    async with hub("top") as (top, top_url), hub("middle") as (middle, middle_url):
        await middle.connect(top_url, name="up", parent=True)
        async with leaf("a", top_url) as a, leaf("b", middle_url) as b:
            heard = Heard()
            b.subscribe("a", "news", "*", callback=heard)
            await until(lambda: len(top.router.subscriptions) == 1)
            at_top, at_middle = Recorder(top), Recorder(middle)
            await a.publish("news", b"1")
            await until(lambda: heard.payloads)
            await b.publish("other", b"2", provider="b")
            await until(lambda: len(at_top.messages) == 2)
            assert heard.payloads == [b"1"]
            down = [r for r in at_middle.messages if r.arrival.message.payload == b"1"]
            assert [r.arrival.from_global for r in down] == [True]
            assert [r.verdict.outcome for r in down] == [Outcome.FORWARDED]  # to b, not up
            assert [r.verdict.recipient for r in down] != [None]


@pytest.mark.rule("MC-11")
@async_test
async def test_a_broadcast_ends_in_a_ring_of_hubs() -> None:
    async with hub("one") as (one, one_url), hub("two") as (two, two_url):
        await one.connect(two_url, name="up", parent=True)
        await two.connect(one_url, name="up", parent=True)
        heard = Heard()
        one.subscribe("one", "news", "*", callback=heard)
        await until(lambda: len(two.router.subscriptions) == 1)
        at_one = Recorder(one)
        await one.publish("news", b"1")
        await until(lambda: at_one.counts()["DUPLICATE"] == 1)  # over the other session
        assert heard.payloads == [b"1"]


@pytest.mark.rule("MC-9", "MC-11")
@async_test
async def test_a_leaf_that_subscribes_to_its_own_broadcasts_hears_them_once() -> None:
    async with hub("top") as (top, top_url), hub("middle") as (middle, middle_url):
        await middle.connect(top_url, name="up", parent=True)
        async with leaf("a", middle_url) as a, leaf("b", middle_url) as b:
            mine, theirs, last = Heard(), Heard(), Heard()
            a.subscribe("+", "news", "*", callback=mine)
            b.subscribe("a", "news", "*", callback=theirs)
            b.subscribe("c", "news", "*", callback=last)
            await until(lambda: len(top.router.subscriptions) == 3)
            at_middle = Recorder(middle)
            await a.publish("news", b"1")
            async with leaf("c", top_url) as c:
                await c.publish("news", b"2")
                await until(lambda: last.payloads)
            await until(lambda: len(mine.payloads) == 2)
            assert (mine.payloads, theirs.payloads) == ([b"1", b"2"], [b"1"])
            assert at_middle.counts()["DUPLICATE"] == 0


@pytest.mark.rule("MC-14")
@async_test
async def test_a_broadcast_nobody_takes_in_time_is_expired() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        subscription = node.subscribe("garage", "news")
        await node.publish("news", b"old", ttl=0.01)
        await asyncio.sleep(0.05)
        await node.publish("news", b"new", ttl=60)
        message = await anext(subscription)
        assert message.payload == b"new"
        assert journal.outcomes() == [(b"old", "EXPIRED"), (b"new", "DELIVERED")]


@pytest.mark.rule("MC-15")
@async_test
async def test_a_broadcast_without_a_receiver_is_dropped_and_never_queued() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        await node.publish("news", b"1", policy=Wait(60))
        assert journal.outcomes() == [(b"1", "NO_SUBSCRIBER")]
        subscription = node.subscribe("garage", "news")
        await node.publish("news", b"2")
        assert (await anext(subscription)).payload == b"2"


@async_test
async def test_a_slow_subscriber_costs_only_itself() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        slow = node.subscribe("garage", "news", inbox=2)
        quick = Heard()
        node.subscribe("garage", "news", callback=quick)
        for number in range(10):
            await node.publish("news", b"%d" % number, policy=FAIL)
            await asyncio.sleep(0)
        await until(lambda: len(quick.payloads) == 10)
        assert journal.counts() == {"DELIVERED": 10, "QUEUE_FULL": 8}
        assert [(await anext(slow)).payload for _ in range(2)] == [b"0", b"1"]


@async_test
async def test_a_publisher_may_wait_for_a_slow_subscriber() -> None:
    async with Node("garage") as node:
        slow = node.subscribe("garage", "news", inbox=1)

        async def publish() -> None:
            for number in range(20):
                await node.publish("news", b"%d" % number)

        publishing = asyncio.ensure_future(publish())
        got = [(await anext(slow)).payload for _ in range(20)]
        await publishing
        assert got == [b"%d" % number for number in range(20)]


@async_test
async def test_a_publisher_waits_for_several_slow_subscribers_one_after_the_other() -> None:
    async with Node("garage") as node:
        heard = [Heard() for _ in range(5)]
        for one in heard:
            node.subscribe("garage", "news", callback=one, inbox=4)
        for number in range(200):
            await node.publish("news", b"%d" % number)
        await until(lambda: all(len(one.payloads) == 200 for one in heard))


@async_test
async def test_a_subscriber_that_fails_loses_that_one_message() -> None:
    async with Node("garage") as node:
        got: list[bytes] = []

        async def fails(message: Message) -> None:
            got.append(message.payload)
            if message.payload == b"0":
                raise RuntimeError("no")

        node.subscribe("garage", "news", callback=fails)
        for number in range(3):
            await node.publish("news", b"%d" % number)
        await until(lambda: got == [b"0", b"1", b"2"])


@async_test
async def test_a_consumer_that_restarts_gets_its_broadcasts_again_without_help() -> None:
    async with hub() as (center, url), leaf("provider", url) as provider:
        for restart in range(3):
            async with leaf("consumer", url) as consumer:
                heard = Heard()
                consumer.subscribe("provider", "news", "*", callback=heard)
                await until(lambda: len(center.router.subscriptions) == 1)
                await provider.publish("news", b"%d" % restart)
                await until(lambda h=heard, r=restart: h.payloads == [b"%d" % r])  # type: ignore[misc]
            await until(lambda: len(center.router.subscriptions) == 0)


@async_test
async def test_subscriptions_come_back_with_the_connection() -> None:
    async with hub() as (center, url), leaf("a", url) as a, leaf("b", url) as b:
        heard = Heard()
        b.subscribe("a", "news", "*", callback=heard)
        await until(lambda: len(center.router.subscriptions) == 1)
        b.sessions[0].abort_link()
        await until(lambda: len(center.router.subscriptions) == 0)
        await until(lambda: len(center.router.subscriptions) == 1)
        await a.publish("news", b"again")
        await until(lambda: heard.payloads == [b"again"])


class Broker:
    """Carries broadcasts between nodes of one process, as a real one would."""

    def __init__(self) -> None:
        self.clients: list[BrokerClient] = []


class BrokerClient:
    """The transport of one node to the broker: the smallest that fits the seam."""

    type_name: ClassVar[str] = "broker"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.patterns: list[str] = []
        self.published: list[str] = []
        self._received: Callable[[str, Message], None] = lambda _, __: None
        broker.clients.append(self)

    async def listen(self, place: Any, accept: Any) -> Any:
        raise AssertionError((place, accept))

    async def dial(self, places: Any, owner: Any) -> Any:
        raise AssertionError((places, owner))

    def attach(self, received: Callable[[str, Message], None], changed: Any = None) -> None:
        del changed
        self._received = received

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def publish(
        self, multicast_id: str, message: Message, on_end: Callable[[Reason | None], None]
    ) -> Reason | None:
        self.published.append(multicast_id)
        for client in self._broker.clients:
            if client is not self and client.patterns:
                client._received(multicast_id, message)
        on_end(None)
        return None

    def subscribe(self, pattern: str) -> None:
        self.patterns.append(pattern)

    def unsubscribe(self, pattern: str) -> None:
        self.patterns.remove(pattern)


@pytest.mark.rule("MC-10", "MC-12")
@async_test
async def test_a_hub_publishes_globally_what_is_visible_and_subscribes_once_for_all() -> None:
    broker = Broker()
    here, there = BrokerClient(broker), BrokerClient(broker)
    async with hub("here") as (near, near_url), hub("there") as (far, far_url):
        near.use(here)
        far.use(there)
        async with leaf("a", near_url) as a, leaf("b", far_url) as b:
            heard = [Heard(), Heard()]
            subscriptions = [b.subscribe("a", "news", "*", callback=one) for one in heard]
            await until(lambda: there.patterns == ["a/news/*"])
            await a.publish("news", b"1", partition="x")
            await until(lambda: all(one.payloads == [b"1"] for one in heard))
            await a.publish("secret", b"2", provider="inside", visible=False)
            await a.publish("news", b"3")
            await until(lambda: all(one.payloads == [b"1", b"3"] for one in heard))
            assert here.published == ["a/news/x", "a/news"]
            await subscriptions[0].close()
            await until(lambda: len(far.router.subscriptions) == 1)
            assert there.patterns == ["a/news/*"]
            await subscriptions[1].close()
            await until(lambda: there.patterns == [])


@pytest.mark.rule("MC-13")
@async_test
async def test_a_provider_in_this_node_needs_no_broker() -> None:
    broker = Broker()
    client = BrokerClient(broker)
    async with Node("garage") as node:
        node.use(client)
        await node.publish("news", b"1")  # it is known from now on
        heard = Heard()
        node.subscribe("garage", "news", callback=heard)
        node.subscribe("elsewhere", "news")
        assert client.patterns == ["elsewhere/news"]
        await node.publish("news", b"2")
        await until(lambda: heard.payloads == [b"2"])


@pytest.mark.rule("MC-11")
@async_test
async def test_two_hubs_and_two_brokers_in_a_ring_come_to_an_end() -> None:
    brokers = Broker(), Broker()
    async with Node("one", limits=Limits(heartbeat=0)) as one, Node("two") as two:
        for node in (one, two):
            for broker in brokers:
                kind = type("Client", (BrokerClient,), {"type_name": f"b{brokers.index(broker)}"})
                node.use(kind(broker))
        heard = Heard()
        two.subscribe("one", "news", "*", callback=heard)
        one.subscribe("one", "news", "*")
        await one.publish("news", b"1")
        await until(lambda: heard.payloads == [b"1"])
        await asyncio.sleep(0.05)
        assert heard.payloads == [b"1"]


@async_test
async def test_a_message_to_who_only_publishes_is_refused() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        await a.publish("news", b"1")
        await until(lambda: knows(center, "a"))
        verdict = await a.send("a", b"hello")
        assert verdict.reason is Reason.REFUSED


@async_test
async def test_what_was_not_taken_is_accounted_for_when_the_node_closes() -> None:
    node = Node("garage")
    journal = Recorder(node)
    node.subscribe("garage", "news")
    await node.publish("news", b"1")
    await node.close()
    refused = await node.publish("news", b"2")
    assert refused.reason is Reason.REFUSED
    assert journal.outcomes() == [(b"1", "TRANSPORT_DOWN"), (b"2", "REFUSED")]
    journal.check_outcomes()


@pytest.mark.rule("OB-1")
@async_test
async def test_a_publisher_that_is_cancelled_leaves_no_subscriber_without_outcome() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        subscriptions = [node.subscribe("garage", "news", inbox=1) for _ in range(3)]
        await node.publish("news", b"1")
        publishing = asyncio.ensure_future(node.publish("news", b"2"))
        await settle()
        publishing.cancel()
        await asyncio.wait([publishing])
        assert journal.outcomes() == 3 * [(b"2", "QUEUE_FULL")]
        for subscription in subscriptions:
            assert (await anext(subscription)).payload == b"1"


@async_test
async def test_a_message_can_name_its_sender() -> None:
    async with Node("node") as node:
        got, answers = collect(node, "door"), collect(node, "bell")
        await node.send("door", b"knock", sender="bell")
        await until(lambda: got)
        await node.route(got[0].reply_from(Address(0, b"door"), b"yes", id=node.new_id()))
        await until(lambda: answers)
