"""Durable subscriptions and what is published to them (DU-8)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.node.test_durable import durable_rows, quick
from waystation.core.grants import Grant, Grants
from waystation.core.message import Message
from waystation.core.outcome import Outcome
from waystation.core.record import MessageRecord
from waystation.errors import LocalError
from waystation.node import Node
from waystation.testing import Fleet, until
from waystation.testing.recorder import Recorder
from waystation.wire.custody import WORKER, Keep, Unkeep, encode


class Archive:
    """A subscriber that keeps what it gets."""

    def __init__(
        self, node: Node, topic: str = "garage/news", name: str = "archive", **options: Any
    ) -> None:
        self.got: list[bytes] = []
        self.topics: list[str | None] = []
        self.subscription = node.subscribe(topic, durable=name, callback=self.take, **options)

    def take(self, message: Message) -> None:
        self.got.append(message.payload)
        self.topics.append(message.broadcast)


def hearing(*patterns: str) -> Grants:
    """Grants that let everybody hear this, and do whatever else there is."""
    return Grants(
        [Grant(anyone=True, announce=("*",), send=("*",), publish=("*",), subscribe=patterns)]
    )


def keeps(node: Node) -> list[tuple[str, str]]:
    """The durable subscriptions that a node knows: pattern and receiver."""
    return sorted(node._kernel.custody.kept._kept)  # noqa: SLF001


def held(node: Node) -> int:
    return 0 if node.custody is None else node.custody.messages


def offers(recorder: Recorder) -> list[MessageRecord]:
    """The messages about custody that a node has received."""
    return [record for record in recorder.messages if record.verdict.recipient == WORKER]


@pytest.mark.rule("DU-8")
def test_what_was_published_while_it_was_away_arrives_when_it_returns(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("garage", store=quick(tmp_path)) as node:
            first = Archive(node)
            (receipt,) = await node.publish("news", b"1", durable=True)
            assert receipt.outcome is Outcome.QUEUED
            await until(lambda: first.got == [b"1"])
            await first.subscription.close()
            for payload in (b"2", b"3"):
                await node.publish("news", payload, durable=True)
        async with Node("garage", store=quick(tmp_path)) as node:  # before anybody subscribes
            await node.publish("news", b"4", durable=True)
            await until(lambda: held(node) == 3)
            again = Archive(node)
            await until(lambda: again.got == [b"2", b"3", b"4"])
            assert again.topics == ["news"] * 3
            await until(lambda: held(node) == 0)

    asyncio.run(scenario())


@pytest.mark.rule("DU-8")
def test_a_hub_keeps_the_subscription_and_what_is_published(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        hub = await fleet.hub("hub", top, store=quick(tmp_path / "hub"))
        garage = await fleet.leaf("garage", top, store=quick(tmp_path / "garage"))
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        archive = Archive(office)
        await until(lambda: keeps(top))  # it is promised to those that are known then
        await garage.publish("news", b"0", durable=True)
        await until(lambda: archive.got == [b"0"])
        await fleet.stop(office)
        for payload in (b"1", b"2"):
            await garage.publish("news", payload, durable=True)
        await until(lambda: held(garage) == 0 and held(top) + held(hub) == 2)
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        again = Archive(office)
        await until(lambda: again.got == [b"1", b"2"])
        await until(lambda: not any(map(held, fleet)))
        assert archive.got == [b"0"]

    Fleet().run(scenario)


@pytest.mark.rule("DU-8")
def test_it_outlives_the_hubs_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        stores = [quick(tmp_path / name) for name in ("hub", "office")]
        async with Node("hub", hub=True, store=stores[0]) as hub:
            listening = await hub.listen("tcp://127.0.0.1:0")
            async with Node("office", store=stores[1]) as office:
                await office.connect(listening.url, parent=True)
                async with Archive(office).subscription:
                    await until(lambda: hub._kernel.custody.kept)  # noqa: SLF001
        async with Node("hub", hub=True, store=stores[0]) as hub:
            await hub.publish("garage/news", b"1", durable=True)
            await until(lambda: held(hub) == 1)
            listening = await hub.listen("tcp://127.0.0.1:0")
            async with Node("office", store=stores[1]) as office:
                archive = Archive(office)
                await office.connect(listening.url, parent=True)
                await until(lambda: archive.got == [b"1"])
                await until(lambda: held(hub) == 0)

    asyncio.run(scenario())


@pytest.mark.rule("DU-8")
def test_a_subscriber_reached_over_two_hubs_gets_each_message_once(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        hub = await fleet.hub("hub", top, store=quick(tmp_path / "hub"))
        garage = await fleet.leaf("garage", hub, store=quick(tmp_path / "garage"))
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        archive = Archive(office)
        await fleet.ready()
        await until(lambda: len(top._kernel.custody.kept) == 1)  # noqa: SLF001
        for number in range(20):
            await garage.publish("news", b"%d" % number, durable=True)
        await until(lambda: len(archive.got) >= 20 and not any(map(held, fleet)))
        assert archive.got == [b"%d" % number for number in range(20)]

    Fleet().run(scenario)


@pytest.mark.rule("DU-8")
def test_it_ends_when_it_is_unsubscribed_or_was_away_for_too_long(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub"))
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        kept = hub._kernel.custody.kept  # noqa: SLF001
        archive = Archive(office)
        await until(lambda: len(kept) == 1)
        await archive.subscription.unsubscribe()
        await until(lambda: len(kept) == 0)
        recorder = fleet.recorder(hub)
        await hub.publish("garage/news", b"1", durable=True)
        await until(lambda: ("NO_SUBSCRIBER", None, None) in durable_rows(recorder))
        short = Archive(office, keep=0)
        await until(lambda: len(kept) == 1)
        await short.subscription.close()
        await fleet.stop(office)
        kept._told_at = 0  # noqa: SLF001 - the next look is not in a minute
        await asyncio.sleep(1.1)  # it counts seconds
        kept._told_at = 0  # noqa: SLF001
        kept.sweep()
        assert len(kept) == 0

    Fleet().run(scenario)


@pytest.mark.rule("DU-7", "DU-8")
def test_a_callback_that_raises_gets_the_message_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("garage", store=quick(tmp_path)) as node:
            recorder, seen = Recorder(node), list[bytes]()

            def take(message: Message) -> None:
                seen.append(message.payload)
                if len(seen) < 3:
                    raise ValueError("not yet")

            node.subscribe("garage/news", durable="archive", callback=take)
            for payload in (b"1", b"2"):
                await node.publish("news", payload, durable=True)
            await until(lambda: held(node) == 0)
            assert seen == [b"1", b"1", b"1", b"2"]
            await until(lambda: ("DELIVERED", 3, None) in durable_rows(recorder))

    asyncio.run(scenario())


@pytest.mark.rule("DU-8")
def test_a_message_is_acknowledged_when_the_next_one_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("garage", store=quick(tmp_path)) as node:
            subscription = node.subscribe("garage/news", durable="archive")
            for payload in (b"1", b"2"):
                await node.publish("news", payload, durable=True)
            assert (await anext(subscription)).payload == b"1"
            assert (await anext(subscription)).payload == b"2"
            await subscription.close()
        async with Node("garage", store=quick(tmp_path)) as node:
            again = node.subscribe("garage/news", durable="archive")
            assert (await anext(again)).payload == b"2"
            with pytest.raises(LocalError, match="already"):
                node.subscribe("garage/news", durable="archive")

    asyncio.run(scenario())


def test_a_durable_subscription_needs_a_store() -> None:
    async def scenario() -> None:
        async with Node("garage") as node:
            with pytest.raises(LocalError, match="has no store"):
                node.subscribe("garage/news", durable="archive")

    asyncio.run(scenario())


# Over hubs without a store, and from leaves that are not believed


@pytest.mark.rule("DU-2", "DU-8")
def test_it_is_known_above_a_hub_without_a_store(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        hub = await fleet.hub("hub", top)
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        Archive(office, "top/news")
        await until(lambda: len(keeps(top)) == 1)
        await fleet.stop(office)
        for payload in (b"1", b"2"):
            await top.publish("news", payload, durable=True)
        await until(lambda: held(top) == 2)
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        again = Archive(office, "top/news")
        await until(lambda: again.got == [b"1", b"2"])
        await until(lambda: not any(map(held, fleet)))
        await again.subscription.unsubscribe()
        await until(lambda: not keeps(top) and not keeps(hub))

    Fleet().run(scenario)


@pytest.mark.rule("DU-2", "DU-8")
def test_what_is_published_below_a_hub_without_a_store_reaches_those_above_and_beside(
    tmp_path: Path,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        hub = await fleet.hub("hub", top)
        garage = await fleet.leaf("garage", hub, store=quick(tmp_path / "garage"))
        beside = await fleet.leaf("beside", hub, store=quick(tmp_path / "beside"))
        above = await fleet.leaf("above", top, store=quick(tmp_path / "above"))
        archives = [Archive(node) for node in (beside, above)]
        await until(lambda: len(keeps(top)) == 2)
        for payload in (b"1", b"2"):
            await garage.publish("news", payload, durable=True)
        await until(lambda: [one.got for one in archives] == [[b"1", b"2"]] * 2)
        await until(lambda: not any(map(held, fleet)))

    Fleet().run(scenario)


@pytest.mark.rule("DU-2", "DU-8")
def test_what_is_published_below_hubs_without_a_store_waits_for_one(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        hub = await fleet.hub("hub")
        garage = await fleet.leaf("garage", hub, store=quick(tmp_path / "garage"))
        archive = Archive(top)
        await garage.publish("news", b"1", durable=True)
        assert held(garage) == 1
        await fleet.connect(hub, top, parent=True)
        await until(lambda: archive.got == [b"1"])
        await until(lambda: held(garage) == 0)

    Fleet().run(scenario)


@pytest.mark.rule("DU-2", "DU-8")
def test_what_is_published_below_several_hubs_without_a_store_is_passed_up(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        middle = await fleet.hub("middle", top)
        hub = await fleet.hub("hub", middle)
        garage = await fleet.leaf("garage", hub, store=quick(tmp_path / "garage"))
        beside = await fleet.leaf("beside", hub, store=quick(tmp_path / "beside"))
        archives = [Archive(node) for node in (top, beside)]
        await until(lambda: len(keeps(top)) == 2)
        for payload in (b"1", b"2"):
            await garage.publish("news", payload, durable=True)
        await until(lambda: [one.got for one in archives] == [[b"1", b"2"]] * 2)
        await until(lambda: not any(map(held, fleet)))

    Fleet().run(scenario)


@pytest.mark.rule("DU-2", "DU-8")
def test_hubs_without_a_store_pass_nothing_in_circles(tmp_path: Path) -> None:
    """They are each other's parents: what comes back stays with its holder, and is not dead."""

    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        left, right = await fleet.hub("left"), await fleet.hub("right")
        await fleet.connect(left, right, parent=True)
        await fleet.connect(right, left, parent=True)
        garage = await fleet.leaf("garage", left, store=quick(tmp_path / "garage"))
        archive = Archive(top)
        await garage.publish("news", b"1", durable=True)
        await until(lambda: len(offers(fleet.recorder(left))) >= 2)  # the second came back
        await fleet.connect(right, top, parent=True)
        await until(lambda: archive.got == [b"1"])
        await until(lambda: held(garage) == 0)
        assert garage.custody is not None
        assert garage.custody.dead == 0

    Fleet().run(scenario)


@pytest.mark.rule("DU-2", "DU-8")
def test_behind_one_of_several_hubs_without_a_store_there_may_be_one(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        lonely, hub = await fleet.hub("lonely"), await fleet.hub("hub", top)
        below = await fleet.hub("below", lonely, hub)
        garage = await fleet.leaf("garage", below, store=quick(tmp_path / "garage"))
        both = await fleet.leaf("both", lonely, hub, store=quick(tmp_path / "both"))
        archives = [Archive(top), Archive(top, "both/news", "other")]
        await garage.publish("news", b"1", durable=True)
        await both.publish("news", b"2", durable=True)
        await until(lambda: [one.got for one in archives] == [[b"1"], [b"2"]])
        await until(lambda: not any(map(held, fleet)))

    Fleet().run(scenario)


@pytest.mark.rule("DU-2", "DU-8")
def test_a_hub_without_a_store_tells_a_parent_that_it_finds_later(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        hub = await fleet.hub("hub")
        office = await fleet.leaf("office", store=quick(tmp_path / "office"))
        Archive(office, "top/news")
        await fleet.connect(office, hub, parent=True)
        await until(lambda: len(keeps(hub)) == 1)
        await fleet.connect(hub, top, parent=True)
        await until(lambda: len(keeps(top)) == 1)

    Fleet().run(scenario)


@pytest.mark.rule("DU-8", "ID-3")
@pytest.mark.parametrize("has_store", [True, False])
def test_nobody_keeps_or_ends_the_subscription_of_another(tmp_path: Path, has_store: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        hub = await fleet.hub("hub", top, store=quick(tmp_path / "hub") if has_store else None)
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        mallory = await fleet.leaf("mallory", hub, store=quick(tmp_path / "mallory"))
        archive = Archive(office)
        await until(lambda: len(keeps(top)) == 1)
        (key,) = keeps(top)

        async def lie(pattern: str) -> None:
            kept, (parent,) = mallory._kernel.custody.kept, mallory.sessions  # noqa: SLF001
            lies = (Keep([("all/secrets", key[1], 60)]), Unkeep([key]))
            for told in lies:
                kept._send(parent, encode(told))  # noqa: SLF001
            Archive(mallory, pattern, pattern)  # it takes the same way, and comes last
            await until(lambda: pattern in {each[0] for each in keeps(top)})
            for node in (hub, top):
                assert [each for each in keeps(node) if each[1] == key[1]] == [key]

        await lie("mallory/first")
        await archive.subscription.close()
        await fleet.stop(office)
        await fleet.forgets(hub, key[1])
        await lie("mallory/second")

    Fleet().run(scenario)


@pytest.mark.rule("DU-8", "ID-3")
@pytest.mark.parametrize("has_store", [True, False])
def test_what_is_not_granted_is_not_told_to_the_hubs_above(tmp_path: Path, has_store: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        store = quick(tmp_path / "hub") if has_store else None
        hub = await fleet.hub("hub", top, store=store, grants=hearing("top/news"))
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        Archive(office, "top/secrets", "secrets")
        Archive(office, "top/news")
        await until(lambda: keeps(top))
        assert [each[0] for each in keeps(top)] == ["top/news"]
        assert hub.denied["subscribe"] >= 1

    Fleet().run(scenario)


@pytest.mark.rule("DU-8", "ID-5")
@pytest.mark.parametrize("is_away", [True, False])
def test_it_ends_at_once_when_it_is_no_longer_granted(tmp_path: Path, is_away: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        store = quick(tmp_path / "hub")
        hub = await fleet.hub("hub", top, store=store, grants=hearing("top/*"))
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        Archive(office, "top/secrets", "secrets")
        Archive(office, "top/news")
        await until(lambda: len(keeps(top)) == 2)
        if is_away:
            await fleet.stop(office)
        hub.change_grants(hearing("top/news"))
        assert [each[0] for each in keeps(hub)] == ["top/news"]
        await until(lambda: [each[0] for each in keeps(top)] == ["top/news"])

    Fleet().run(scenario)


@pytest.mark.rule("DU-8", "ID-5")
@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_it_ends_when_its_grant_goes_and_its_hub_was_restarted(tmp_path: Path, when: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top", store=quick(tmp_path / "top"))
        store, less = quick(tmp_path / "hub"), hearing("top/news")
        hub = await fleet.hub("hub", top, store=store, grants=hearing("top/*"))
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        Archive(office, "top/secrets", "secrets")
        Archive(office, "top/news")
        await until(lambda: len(keeps(top)) == 2)
        await fleet.stop(office)
        if when == "before":
            hub.change_grants(less)
        await fleet.stop(hub)
        grants = less if when == "while" else hearing("top/*")
        hub = await fleet.hub("hub", top, store=store, grants=grants)
        if when == "after":
            assert len(keeps(hub)) == 2
            hub.change_grants(less)
        assert [each[0] for each in keeps(hub)] == ["top/news"]
        await until(lambda: [each[0] for each in keeps(top)] == ["top/news"])
        await fleet.stop(hub)
        hub = await fleet.hub("hub", top, store=store, grants=hearing("top/*"))
        assert [each[0] for each in keeps(hub)] == ["top/news"]  # it does not come back

    Fleet().run(scenario)


@pytest.mark.rule("DU-8")
def test_a_store_without_a_note_of_who_told_of_it_is_read(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        store = quick(tmp_path / "hub")
        hub = await fleet.hub("hub", store=store, grants=hearing("hub/*"))
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        Archive(office, "hub/news")
        await until(lambda: keeps(hub))
        await fleet.stop(office)
        await fleet.stop(hub)
        with contextlib.closing(sqlite3.connect(tmp_path / "hub" / "custody.sqlite")) as database:
            database.execute("drop table kept_by")
            database.commit()
        hub = await fleet.hub("hub", store=store, grants=hearing())
        assert len(keeps(hub)) == 1  # whose it is cannot be known

    Fleet().run(scenario)


@pytest.mark.rule("DU-8", "ID-5")
@pytest.mark.parametrize("is_restarted", [True, False])
def test_what_waits_for_who_may_no_longer_hear_it_is_refused(
    tmp_path: Path, is_restarted: bool
) -> None:
    async def scenario(fleet: Fleet) -> None:
        store = quick(tmp_path / "hub")
        hub = await fleet.hub("hub", store=store, grants=hearing("hub/*"))
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        Archive(office, "hub/*")
        await until(lambda: keeps(hub))
        await fleet.stop(office)
        for topic in ("secrets", "news"):
            await hub.publish(topic, topic.encode(), durable=True)
        await until(lambda: held(hub) == 2)
        less = hearing("hub/news")
        if is_restarted:
            await fleet.stop(hub)
            hub = await fleet.hub("hub", store=store, grants=less)
        else:
            hub.change_grants(less)
        office = await fleet.leaf("office", hub, store=quick(tmp_path / "office"))
        again = Archive(office, "hub/*")
        await until(lambda: held(hub) == 0)
        await until(lambda: again.got == [b"news"])
        await until(lambda: not keeps(hub))
        assert ("REFUSED", None, None) in durable_rows(fleet.recorder(hub))

    Fleet().run(scenario)
