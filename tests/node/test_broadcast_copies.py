"""Second copies of broadcasts: known at every node, but never by a stranger's word (FL-6)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from mqtt5 import PublishPacket

from tests.node.live import RawPeer
from tests.node.test_broadcasts import Heard
from tests.node.test_hubs import hub, leaf
from tests.transports.mqtt_live import broker_here
from waystation.core.address import Address, Route
from waystation.core.message import Message
from waystation.core.multicast import ADDRESS_TYPE
from waystation.core.outcome import Outcome, Reason
from waystation.core.routing import RoutingEntry
from waystation.node import FAIL, Node
from waystation.testing import Recorder, async_test, echo, settle, until
from waystation.transports.mqtt import Mqtt
from waystation.transports.tcp import Tcp
from waystation.wire.ockam import encode_control, encode_frame

HELLO = b'{"waystation": "hello", "node": "rogue", "types": {}}'
NEWS = "255#a/news"
ID = "4bf9" * 8


def news(payload: bytes, id: str) -> Message:
    return Message(Route((Address(ADDRESS_TYPE, b"a/news"),)), Route(), payload, id)


@pytest.mark.rule("FL-6")
@async_test
async def test_a_publisher_with_two_parents_is_heard_once_at_the_top() -> None:
    async with AsyncExitStack() as stack:
        top, top_url = await stack.enter_async_context(hub("top"))
        a = await stack.enter_async_context(Node("a"))
        for name in ("left", "right"):
            middle, url = await stack.enter_async_context(hub(name))
            await middle.connect(top_url, name="up", parent=True)
            await a.connect(url, name=name, parent=True)
        heard, at_top = Heard(), Recorder(top)
        top.subscribe("a", "news", "*", callback=heard)
        for number in range(3):
            await a.publish("news", b"%d" % number)
        await until(lambda: at_top.counts()["DUPLICATE"] == 3)
        await until(lambda: len(heard.payloads) == 3)
        assert sorted(heard.payloads) == [b"0", b"1", b"2"]
        assert at_top.counts() == {"DELIVERED": 3, "DUPLICATE": 3}
        at_top.check_outcomes()


@pytest.mark.rule("FL-6")
@async_test
async def test_two_hubs_on_one_broker_are_heard_once_beyond_it() -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(broker_here())
        a = await stack.enter_async_context(Node("a"))
        for name in ("left", "right"):
            mqtt = Mqtt(f"mqtt://{broker.place}", topic=f"hubs/{name}")
            _, url = await stack.enter_async_context(hub(name, transports=[Tcp(), mqtt]))
            await a.connect(url, name=name, parent=True)
        mqtt = Mqtt(f"mqtt://{broker.place}", topic="hubs/far")
        far = await stack.enter_async_context(Node("far", transports=[mqtt]))
        heard, at_far = Heard(), Recorder(far)
        far.subscribe("a", "news", "*", callback=heard)

        async def said_twice() -> None:
            while at_far.counts()["DUPLICATE"] < 3:
                await a.publish("news", b"%d" % len(heard.payloads))
                await asyncio.sleep(0.01)

        await asyncio.wait_for(said_twice(), 60)  # as soon as both hubs are connected
        await settle()
        delivered = [
            r.arrival.message.id for r in at_far.messages if str(r.verdict.outcome) == "DELIVERED"
        ]
        assert len(delivered) == len(set(delivered)) == len(heard.payloads)


@pytest.mark.rule("FL-6", "MC-9")
@async_test
async def test_an_echo_from_a_parent_is_dropped_and_told() -> None:
    async with hub("top") as (_, url), leaf("a", url) as a:
        heard, at_a = Heard(), Recorder(a)
        a.subscribe("a", "news", "*", callback=heard)
        published = await a.publish("news", b"1")
        a.post(news(b"1", published.id), from_global=True)  # as a parent of the first version does
        await until(lambda: heard.payloads)
        assert heard.payloads == [b"1"]
        assert at_a.counts()["DUPLICATE"] == 1


@pytest.mark.rule("MC-9")
@async_test
async def test_no_copy_goes_back_over_the_session_that_a_broadcast_came_by() -> None:
    async with hub("top") as (top, url), leaf("a", url) as a, leaf("b", url) as b:
        mine, theirs, at_a, at_top = Heard(), Heard(), Recorder(a), Recorder(top)
        a.subscribe("+", "news", "*", callback=mine)
        b.subscribe("a", "news", "*", callback=theirs)
        await until(lambda: len(top.router.subscriptions) == 2)
        published = await a.publish("news", b"1")
        await until(lambda: theirs.payloads)
        await top.publish("news", b"2")  # whatever had gone to a before is there before this
        await until(lambda: len(mine.payloads) == 2)
        assert (mine.payloads, theirs.payloads) == ([b"1", b"2"], [b"1"])
        assert at_a.counts()["DUPLICATE"] == 0
        rows = [row for row in at_top.messages if row.arrival.message.id == published.id]
        assert [row.verdict.outcome for row in rows] == ["FORWARDED"]


@pytest.mark.rule("MC-9", "MC-15")
@async_test
async def test_a_broadcast_that_only_its_publisher_wants_ends_at_the_hub() -> None:
    async with hub("top") as (top, url), leaf("a", url) as a:
        at_top = Recorder(top)
        a.subscribe("a", "news", "*", callback=lambda _: None)
        await until(lambda: len(top.router.subscriptions) == 1)
        published = await a.publish("news", b"1")
        assert [copy.outcome for copy in published] == ["DELIVERED", "FORWARDED"]
        await until(lambda: at_top.messages)
        assert at_top.counts() == {"NO_SUBSCRIBER": 1}


@pytest.mark.rule("MC-9")
@async_test
async def test_no_copy_goes_back_to_a_peer_that_sent_a_broadcast_along_a_route() -> None:
    async with Node("center") as center, Node("peer") as peer:
        listening = await peer.listen("tcp://127.0.0.1:0")
        session, heard = await center.connect(listening.url), Heard()
        center.put_route(RoutingEntry("by-name", session.address, local=False))
        center.put_route(RoutingEntry("by-place", session.place, local=False))
        for receiver in ("by-name", "by-place"):
            center.router.subscriptions.subscribe("p/news", receiver)
        center.subscribe("p", "news", callback=heard)
        at_center = Recorder(center)
        await until(lambda: peer.sessions)
        await peer.send(f"{peer.sessions[0].name} => 255#p/news", b"1")
        await until(lambda: heard.payloads)
        assert at_center.counts() == {"DELIVERED": 1}
        published = await center.publish("news", b"2", provider="p")
        names = {copy.recipient for copy in published if copy.outcome is Outcome.FORWARDED}
        assert names == {"by-name", "by-place"}


@pytest.mark.rule("FL-6", "MC-10")
@async_test
async def test_what_came_from_above_first_still_goes_up_from_below_once() -> None:
    async with hub("top") as (top, top_url), hub("middle") as (middle, _):
        await middle.connect(top_url, name="up", parent=True)
        heard, heard_above, at_middle = Heard(), Heard(), Recorder(middle)
        top.subscribe("a", "news", callback=heard_above)
        middle.subscribe("a", "news", callback=heard)
        middle.post(news(b"1", ID), from_global=True)
        await until(lambda: heard.payloads)
        for _ in range(3):
            middle.post(news(b"1", ID))
        await until(lambda: heard_above.payloads)
        await until(lambda: at_middle.counts()["DUPLICATE"] == 3)
        assert at_middle.counts() == {"DELIVERED": 1, "DUPLICATE": 3, "FORWARDED": 1}
        assert (heard.payloads, heard_above.payloads) == ([b"1"], [b"1"])


@pytest.mark.rule("FL-6")
@async_test
async def test_a_copy_that_had_gone_too_far_is_not_the_first() -> None:
    async with Node("a", hop_limit=2) as node:
        heard, journal = Heard(), Recorder(node)
        node.subscribe("a", "news", callback=heard)
        onward = Route((Address(ADDRESS_TYPE, b"a/news"),))
        node.post(Message(onward, Route.parse("x => y"), b"1", ID))
        node.post(Message(onward, Route.parse("y"), b"1", ID))
        await until(lambda: heard.payloads)
        assert journal.counts() == {"HOP_LIMIT": 1, "DELIVERED": 1}


@pytest.mark.rule("FL-6", "TM-2")
@async_test
async def test_a_copy_that_had_expired_is_not_the_first() -> None:
    """Over a broker nobody tells the time: a session that knows the clock brings it alive."""
    async with Node("a") as node:
        heard, journal = Heard(), Recorder(node)
        node.subscribe("a", "news", callback=heard)
        onward = Route((Address(ADDRESS_TYPE, b"a/news"),))
        node.post(Message(onward, Route(), b"1", ID, expiry=node.now() - 1), from_global=True)
        node.post(Message(onward, Route(), b"1", ID, expiry=node.now() + 60_000), from_global=True)
        node.post(Message(onward, Route(), b"1", ID, expiry=node.now() - 1), from_global=True)
        await until(lambda: heard.payloads and journal.counts()["DUPLICATE"])
        assert journal.counts() == {"EXPIRED": 1, "DELIVERED": 1, "DUPLICATE": 1}


@async_test
async def test_the_same_id_under_another_name_is_another_broadcast() -> None:
    async with Node("a") as node:
        heard = Heard()
        node.subscribe("a", "*", callback=heard)
        for broadcast in (b"a/news", b"a/weather"):
            onward = Route((Address(ADDRESS_TYPE, broadcast),))
            node.post(Message(onward, Route(), broadcast, ID))
        await until(lambda: heard.payloads == [b"a/news", b"a/weather"])


def next_ids(id: str, number: int) -> list[str]:
    """What would follow an id if ids were counted."""
    return [f"{int(id, 16) + more:032x}" for more in range(1, number + 1)]


@pytest.mark.rule("FL-6")
@async_test
async def test_a_stranger_who_saw_one_id_silences_nobody() -> None:
    async with hub("top") as (top, top_url), hub("middle") as (middle, url):
        await middle.connect(top_url, name="up", parent=True)
        async with leaf("a", url) as a:
            heard, at_middle = Heard(), Recorder(middle)
            top.subscribe("a", "news", "*", callback=heard)
            await a.publish("news", b"first")
            await until(lambda: heard.payloads)
            seen = at_middle.messages[0].arrival.message.id
            stranger = await RawPeer.dial(url.removeprefix("tcp://"))
            for id in [seen, *next_ids(seen, 300)]:
                stranger.send(NEWS, b"noise", id=id)
            await until(lambda: heard.payloads.count(b"noise") == 301)
            for number in range(300):
                await a.publish("news", b"%d" % number)
            await until(lambda: len(heard.payloads) == 1 + 301 + 300)
            assert at_middle.counts()["DUPLICATE"] == 0
            stranger.close()


@pytest.mark.rule("FL-6")
@pytest.mark.parametrize("route", [NEWS, f"up => {NEWS}", f"relay => {NEWS}"])
@async_test
async def test_an_id_that_a_stranger_brought_never_makes_a_node_drop(route: str) -> None:
    """Not even by a way over nodes of ours, which do not know who chose the id."""
    async with hub("top") as (top, top_url), hub("middle") as (middle, url):
        await middle.connect(top_url, name="up", parent=True)
        echo(middle, "relay")
        heard, at_top = Heard(), Recorder(top)
        top.subscribe("a", "news", callback=heard)
        stranger, ours = [await RawPeer.dial(url.removeprefix("tcp://")) for _ in range(2)]
        for _ in range(2):
            stranger.send(route, b"forged", id=ID)
        await until(lambda: heard.payloads == [b"forged", b"forged"])
        ours.say(encode_control(HELLO))
        for _ in range(2):
            ours.send(NEWS, b"true", id=ID)
        await until(lambda: b"true" in heard.payloads)
        ids = [record.arrival.message.id for record in at_top.messages]
        assert heard.payloads == [b"forged", b"forged", b"true"]
        assert len(set(ids)) == len(ids)
        stranger.close()
        ours.close()


@pytest.mark.rule("FL-6", "AD-7")
@async_test
async def test_a_broadcast_without_an_id_gets_one_where_it_enters() -> None:
    mqtt = Mqtt("mqtt://127.0.0.1:1")
    async with hub(transports=[Tcp(), mqtt]) as (center, url):
        heard, journal = Heard(), Recorder(center)
        center.subscribe("a", "news", callback=heard)
        peer = await RawPeer.dial(url.removeprefix("tcp://"))
        peer.say(encode_control(HELLO))
        for _ in range(2):
            peer.send(NEWS, b"1")
        frame = encode_frame(Message(Route.parse("a/news"), Route(), b"2"))
        mqtt.received([PublishPacket("a/news", frame)] * 2)
        await until(lambda: len(heard.payloads) == 4)
        ids = {record.arrival.message.id for record in journal.messages}
        assert len(ids) == 4
        assert "0" * 32 not in ids
        peer.close()


@async_test
async def test_a_copy_of_a_request_gets_no_error_answer() -> None:
    async with hub() as (center, url):
        journal = Recorder(center)
        peer = await RawPeer.dial(url.removeprefix("tcp://"))
        peer.say(encode_control(HELLO))
        center.subscribe("a", "news")
        for _ in range(2):
            peer.send(NEWS, b"?", "request-1", id=ID)
        peer.send("nobody", b"?", "request-2", id=ID)
        answer = await peer.hear()
        assert b"NO_ROUTE" in answer.payload
        assert journal.counts()["DUPLICATE"] == 1
        peer.close()


@pytest.mark.rule("OB-8", "MC-9")
@async_test
async def test_a_copy_that_is_dropped_for_several_receivers_ends_once_and_names_them_all() -> None:
    async with hub("top") as (top, url), leaf("a", url) as a:
        subscribed = [a.subscribe("top", "news", "*") for _ in range(2)]
        await until(lambda: len(top.router.subscriptions) == 2)
        at_top = Recorder(top)
        top.sessions[0].pause()  # its link takes nothing at the moment
        published = await top.publish("news", b"1", policy=FAIL)
        rows = at_top.messages
        names = {subscription.address.name for subscription in subscribed}
        assert {row.verdict.recipient for row in rows} == names
        assert {copy.recipient for copy in published} == names
        assert published.reason is Reason.QUEUE_FULL
        assert len({(row.at, row.out) for row in rows}) == 1
        top.sessions[0].resume()
