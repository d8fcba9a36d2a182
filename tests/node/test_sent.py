"""What `send` and `publish` return, and what the errors of requests say: which message it is."""

from __future__ import annotations

import pytest

from tests.node.test_hubs import hub, knows, leaf
from tests.rule_errors import breaks
from tests.transports.mqtt_live import broker_here, soon
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.errors import LocalError, NoReplyError, UndeliverableError, WaystationError
from waystation.node import FAIL, Node
from waystation.node.sent import Published, Sent
from waystation.testing import Recorder, async_test, collect, until
from waystation.transports.mqtt import Mqtt


@pytest.mark.rule("OB-3")
@async_test
async def test_send_returns_the_id_and_the_outcome() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        collect(node, "sink")
        sent = await node.send("sink", b"1")
        assert (sent.outcome, sent.reason, sent.recipient) == (Outcome.DELIVERED, None, "sink")
        await until(lambda: journal.messages)
        assert journal.messages[0].arrival.message.id == sent.id
        lost = await node.send("nobody", b"2")
        assert (lost.outcome, lost.reason) == (Outcome.DROPPED, Reason.NO_ROUTE)
        assert (lost.recipient, lost.address) == ("nobody", None)
        assert journal.messages[1].arrival.message.id == lost.id
    closed = await node.send("sink", b"3")
    assert closed.reason is Reason.REFUSED


@pytest.mark.rule("OB-1", "OB-3")
@async_test
async def test_a_hub_forwards_to_its_leaf_which_delivers() -> None:
    async with hub() as (center, url), leaf("a", url) as a:
        got = collect(a, "truck-7")
        await until(lambda: knows(center, "truck-7"))
        at_hub, at_leaf = Recorder(center), Recorder(a)
        sent = await center.send("truck-7", b"hello")
        assert (sent.outcome, sent.recipient) == (Outcome.FORWARDED, "truck-7")
        await until(lambda: got and at_hub.messages and at_leaf.messages)
        [session] = center.sessions
        left = at_hub.messages[0]
        assert left.verdict == Verdict(Outcome.FORWARDED, None, "truck-7", session.address)
        assert left.out == session.name
        assert at_leaf.counts() == {"DELIVERED": 1}
        assert at_leaf.messages[0].arrival.message.id == sent.id


@pytest.mark.rule("OB-3", "MC-15")
@async_test
async def test_publish_returns_the_id_and_what_became_of_it() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        unheard = await node.publish("news", b"1")
        assert (unheard.outcome, unheard.reason) == (Outcome.DROPPED, Reason.NO_SUBSCRIBER)
        assert journal.messages[0].arrival.message.id == unheard.id
        full = node.subscribe("garage", "news", inbox=1)
        await node.publish("news", b"2")
        dropped = await node.publish("news", b"3", policy=FAIL)
        assert (dropped.outcome, dropped.reason) == (Outcome.DROPPED, Reason.QUEUE_FULL)
        assert dropped.recipient == full.address.name
        node.subscribe("garage", "news")
        for_one = await node.publish("news", b"4", policy=FAIL)
        assert (for_one.outcome, for_one.reason) == (Outcome.DELIVERED, None)
        assert {copy.reason for copy in for_one} == {None, Reason.QUEUE_FULL}


@pytest.mark.rule("MC-15")
@async_test
async def test_what_went_up_is_forwarded_and_nobody_says_that_it_has_no_subscriber() -> None:
    async with hub("top") as (top, top_url), hub("middle") as (middle, url), leaf("a", url) as a:
        await middle.connect(top_url, name="up", parent=True)
        records = [Recorder(node) for node in (a, middle, top)]
        published = await a.publish("news", b"1")
        assert (published.outcome, published.reason) == (Outcome.FORWARDED, None)
        assert published.recipient is None
        await until(lambda: records[2].messages)
        await until(lambda: records[1].messages)
        counts = [record.counts() for record in records]
        assert counts == [{"FORWARDED": 1}, {"FORWARDED": 1}, {"NO_SUBSCRIBER": 1}]


@pytest.mark.rule("MC-15", "OB-7")
@async_test
async def test_what_went_to_a_broker_is_forwarded() -> None:
    async with broker_here() as broker, Node("hub", hub=True) as node:
        mqtt = Mqtt(f"mqtt://{broker.place}", backoff=soon())
        node.use(mqtt)
        journal = Recorder(node)
        early = await node.publish("news", b"1")
        assert (early.outcome, early.reason) == (Outcome.DROPPED, Reason.TRANSPORT_DOWN)
        await until(lambda: mqtt.client.is_open)
        published = await node.publish("news", b"2")
        assert (published.outcome, published.reason) == (Outcome.FORWARDED, None)
        await until(lambda: len(journal.messages) == 2)
        assert journal.counts() == {"TRANSPORT_DOWN": 1, "FORWARDED": 1}
        quiet = await node.publish("other", b"3", visible=False)
        assert quiet.reason is Reason.NO_SUBSCRIBER


@pytest.mark.rule("MC-10")
@pytest.mark.parametrize("visible", [True, False])
@async_test
async def test_a_worker_publishes_as_visible_as_it_is(visible: bool) -> None:
    async with Node("garage") as node:
        node.start_worker(("truck",), lambda *_: None, visible=visible)
        other = f"visible={not visible}"
        with pytest.raises(LocalError, match=other, check=breaks("MC-10")) as error:
            await node.publish("news", b"", provider="truck", visible=not visible)
        assert f"node.worker('truck', {other})" in str(error.value)
        assert error.value.message_id is None
        for fitting in (None, visible):
            published = await node.publish("news", b"", provider="truck", visible=fitting)
            assert published.reason is Reason.NO_SUBSCRIBER


@pytest.mark.rule("MC-10")
@async_test
async def test_a_name_that_only_publishes_is_as_visible_as_was_said_last() -> None:
    async with Node("garage") as node:

        def is_visible() -> bool:
            entry = node.router.table.lookup("truck", node.now())
            assert entry is not None
            return entry.visible

        seen = []
        for visible in (None, False, None, True, None):
            await node.publish("news", b"", provider="truck", visible=visible)
            seen.append(is_visible())
        assert seen == [True, False, False, True, True]


@pytest.mark.rule("OB-3")
@async_test
async def test_the_errors_of_requests_tell_which_message_it_was() -> None:
    async with Node("garage") as node:
        journal = Recorder(node)
        collect(node, "silent")
        ids = []
        for route, expected in (("nobody", UndeliverableError), ("silent", NoReplyError)):
            with pytest.raises(WaystationError) as error:
                await node.request(route, b"?", timeout=0.05)
            assert isinstance(error.value, expected)
            ids.append(error.value.message_id)
        await until(lambda: len(journal.messages) == 2)
        assert [record.arrival.message.id for record in journal.messages] == ids


@pytest.mark.parametrize(
    ("outcomes", "best"),
    [
        ("DROPPED QUEUED FORWARDED DELIVERED", "DELIVERED"),
        ("DROPPED QUEUED FORWARDED", "FORWARDED"),
        ("DROPPED QUEUED", "QUEUED"),
        ("DROPPED", "DROPPED"),
    ],
)
def test_the_outcome_of_a_broadcast_is_the_best_of_its_copies(outcomes: str, best: str) -> None:
    copies = [Verdict(Outcome(word)) for word in outcomes.split()]
    published = Published.of("4bf9" * 8, copies)
    assert isinstance(published, Sent)
    assert (published.outcome, list(published)) == (best, copies)
