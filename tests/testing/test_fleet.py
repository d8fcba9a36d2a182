"""A fleet makes nodes that know each other, breaks what it is told to, and checks the outcomes."""

from __future__ import annotations

import asyncio

import pytest

from waystation.core.message import Message
from waystation.core.outcome import Outcome, Verdict
from waystation.core.record import MessageRecord
from waystation.errors import UndeliverableError
from waystation.node import FAIL, Context, Queue
from waystation.testing import Fleet, Recorder, collect, echo, has_route, until
from waystation.testing.fixtures import FLEETS, fleet
from waystation.transports.websocket import WebSocket

__all__ = ["fleet"]  # a fixture

everywhere = pytest.mark.parametrize("fleet", FLEETS, indirect=True)


@everywhere
def test_leaves_of_one_hub_reach_each_other_as_soon_as_it_is_ready(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        truck, phone = await fleet.leaf("truck", hub), await fleet.leaf("phone", hub)
        echo(truck, "truck-7")
        await fleet.ready()
        assert (await phone.request("truck-7", b"hello")).payload == b"hello"
        assert fleet.recorder(hub).counts() == {"FORWARDED": 2}
        assert [node.name for node in fleet] == ["hub", "truck", "phone"]
        assert fleet["truck"] is truck

    fleet.run(scenario)


@everywhere
def test_a_ready_fleet_knows_subscriptions_and_what_is_behind_other_hubs(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top")
        left, right = await fleet.hub("left", top), await fleet.hub("right", top)
        truck, phone = await fleet.leaf("truck", left), await fleet.leaf("phone", right)
        got: list[bytes] = []
        phone.subscribe("truck", "position", callback=lambda message: got.append(message.payload))
        echo(phone, "phone-1")
        await fleet.ready()
        assert has_route(top, "phone-1")
        await truck.publish("position", b"here")
        await until(lambda: got == [b"here"])

    fleet.run(scenario)


@everywhere
def test_a_cut_link_is_replaced(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        left, right = await fleet.node("left"), await fleet.node("right")
        echo(right)
        session = await fleet.connect(left, right)
        fleet.cut(left, right)
        await until(lambda: session.openings == 2)
        await fleet.ready()
        assert (await left.request("right => echo", b"again")).payload == b"again"

    fleet.run(scenario)


@everywhere
def test_a_partition_separates_until_it_heals(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        truck, phone = await fleet.leaf("truck", hub), await fleet.leaf("phone", hub)
        echo(truck, "truck-7")
        echo(phone, "phone-1")
        await fleet.ready()
        fleet.partition(truck)
        await fleet.forgets(hub, "truck-7")
        with pytest.raises(UndeliverableError, match="NO_ROUTE"):
            await phone.request("truck-7", b"lost", timeout=0.2)
        assert (await hub.request("phone-1", b"stays")).payload == b"stays"
        fleet.heal()
        await fleet.ready()
        assert (await phone.request("truck-7", b"back")).payload == b"back"

    fleet.run(scenario)


@everywhere
def test_what_is_frozen_arrives_when_it_heals(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        left, right = await fleet.node("left"), await fleet.node("right")
        got = collect(right, "sink")
        session = await fleet.connect(left, right)
        fleet.freeze(right)
        await left.send("right => sink", b"slow")
        assert session.is_open
        fleet.heal()
        await until(lambda: [message.payload for message in got] == [b"slow"])

    fleet.run(scenario)


@everywhere
def test_a_node_that_is_killed_says_nothing_and_is_missed(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        truck = await fleet.leaf("truck", hub)
        echo(truck, "truck-7")
        await fleet.ready()
        heard = fleet.recorder(hub)
        await fleet.kill(truck)
        await fleet.forgets(hub, "truck-7")
        assert [kind for kind, _ in heard.session_events()] == ["opened", "closed"]
        assert [node.name for node in fleet] == ["hub"]
        again = await fleet.leaf("truck", hub)
        echo(again, "truck-7")
        await fleet.knows(hub, "truck-7")

    fleet.run(scenario)


@everywhere
def test_a_node_that_is_stopped_says_goodbye(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        truck = await fleet.leaf("truck", hub)
        await fleet.stop(truck)
        heard = fleet.recorder(hub)
        await until(lambda: heard.session_events()[-1] == ("closed", None))

    fleet.run(scenario)


def test_a_fleet_runs_over_any_transport() -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        echo(await fleet.leaf("truck", hub), "truck-7")
        await fleet.ready()
        assert (await hub.request("truck-7", b"hello")).payload == b"hello"

    Fleet(WebSocket, "ws://127.0.0.1:0").run(scenario)


def test_names_are_unique_and_only_who_listens_can_be_connected_to(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        left = await fleet.node("left", listen=False)
        with pytest.raises(ValueError, match="already a node 'left'"):
            await fleet.node("left")
        with pytest.raises(ValueError, match="'left' does not listen"):
            await fleet.connect(await fleet.node("right"), left)

    fleet.run(scenario)


@pytest.mark.rule("OB-1")
def test_a_message_with_two_outcomes_or_none_fails_the_test(fleet: Fleet) -> None:
    recorders: list[Recorder] = []

    async def scenario(fleet: Fleet) -> None:
        node = await fleet.node("node")
        recorders.append(fleet.recorder(node))
        await node.send("nobody", b"?", policy=FAIL)
        (record,) = recorders[0].messages
        queued = MessageRecord(record.arrival, Verdict(Outcome.QUEUED), record.at)
        recorders[0].messages[:] = [queued]
        with pytest.raises(AssertionError, match="without an outcome"):
            fleet.check_outcomes()
        recorders[0].messages[:] = [record, record]

    with pytest.raises(AssertionError, match="more than one outcome"):
        fleet.run(scenario)


@pytest.mark.rule("OB-1")
def test_what_waits_when_a_fleet_ends_has_an_outcome_too(fleet: Fleet) -> None:
    told: list[str] = []

    async def scenario(fleet: Fleet) -> None:
        node = await fleet.node("node")
        never = asyncio.Event()

        @node.worker("stuck")
        async def stuck(message: Message, context: Context) -> None:  # noqa: ARG001
            await never.wait()

        await node.send("stuck", b"1")
        await node.send("absent", b"2", policy=Queue(30, persist=True))
        recorder = fleet.recorder(node)
        await fleet.stop(node, drain=0)
        told.extend(word for _, word in recorder.outcomes())

    fleet.run(scenario)
    assert len(told) == 3
    assert told.count("QUEUED") == 1


def test_an_error_in_a_task_that_nobody_awaits_fails_the_test(fleet: Fleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.node("node")
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="division by zero"):
        fleet.run(scenario)
