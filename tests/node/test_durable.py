"""Durable messages: custody from the sender's disk to the worker (DU)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.node.live import RawPeer
from waystation.core.access import Access, AccessRule
from waystation.core.custody import CustodyArrival
from waystation.core.message import Message
from waystation.core.outcome import Outcome, Reason
from waystation.core.record import ClaimKind
from waystation.errors import LocalError, UndeliverableError
from waystation.node import Context, Limits, Node, StoreSettings
from waystation.testing import Fleet, Recorder, run_checked, until
from waystation.testing.waiting import settle
from waystation.testing.workers import collect, echo


def quick(directory: Path, **options: Any) -> StoreSettings:
    """A store that does not wait for the disk, nor for long between attempts."""
    options.setdefault("fsync", "off")
    options.setdefault("pause", 0.01)
    options.setdefault("answer", 0.5)
    return StoreSettings(directory=directory, **options)


def durable_rows(recorder: Recorder) -> list[tuple[str, int | None, str | None]]:
    """What was recorded of durable messages: outcome or reason, attempt, custodian."""
    return [
        ((r.verdict.reason or r.verdict.outcome).value, r.arrival.attempt, r.arrival.custodian)
        for r in recorder.messages
        if isinstance(r.arrival, CustodyArrival)
    ]


def payloads(found: list[Message]) -> list[bytes]:
    return [message.payload for message in found]


# At one node


@pytest.mark.rule("DU-1")
def test_a_durable_message_is_queued_when_it_is_on_disk_and_then_handled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path)) as node:
            recorder, found = Recorder(node), collect(node, "archive")
            receipt: Any = await node.send("archive", b"hello", durable=True)
            assert (receipt.outcome, receipt.recipient) == (Outcome.QUEUED, "archive")
            assert len(receipt.id) == 32
            await until(lambda: len(durable_rows(recorder)) == 2)
            assert payloads(found) == [b"hello"]
            assert durable_rows(recorder) == [("QUEUED", None, None), ("DELIVERED", 1, None)]
            assert node.custody is not None
            assert (node.custody.messages, node.custody.bytes) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.rule("DU-1")
def test_a_node_without_a_store_cannot_send_durable_messages() -> None:
    async def scenario() -> None:
        async with Node("hub") as node:
            assert node.custody is None
            with pytest.raises(LocalError, match=r"has no store.*store="):
                await node.send("archive", b"hello", durable=True)

    asyncio.run(scenario())


@pytest.mark.rule("DU-1")
def test_a_durable_message_has_a_life_by_default(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path, ttl=100)) as node:
            recorder, now = Recorder(node), node.now()
            await node.send("archive", b"", durable=True)
            await node.send("archive", b"", durable=True, ttl=5)
            lives = [record.arrival.message.expiry - now for record in recorder.messages]
            assert 100_000 <= lives[0] < 130_000
            assert 5_000 <= lives[1] < 35_000

    asyncio.run(scenario())


@pytest.mark.rule("DU-3")
def test_what_was_queued_survives_the_process_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path)) as node:
            for number in range(200):  # more than are kept in memory
                await node.send("archive", b"%d" % number, durable=True)
        async with Node("hub", store=quick(tmp_path)) as node:
            assert node.custody is not None
            assert node.custody.messages == 200
            found = collect(node, "archive")
            await until(lambda: len(found) == 200)
            assert payloads(found) == [b"%d" % number for number in range(200)]
            await until(lambda: node.custody and not node.custody.messages)
        async with Node("hub", store=quick(tmp_path)) as node:
            assert node.custody is not None
            assert node.custody.messages == 0

    asyncio.run(scenario())


@pytest.mark.rule("DU-7")
def test_a_handler_that_raises_is_called_again_and_later_ones_wait_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path)) as node:
            recorder, seen = Recorder(node), list[tuple[bytes, int]]()

            @node.worker("archive")
            async def archive(message: Message, context: Context) -> None:
                seen.append((message.payload, context.attempt))
                if message.payload == b"first" and context.attempt < 3:
                    raise ValueError("not yet")

            for payload in (b"first", b"second"):
                await node.send("archive", payload, durable=True)
            await until(lambda: len(durable_rows(recorder)) == 6)
            assert seen == [(b"first", 1), (b"first", 2), (b"first", 3), (b"second", 1)]
            assert [row for row in durable_rows(recorder) if row[1]] == [
                ("QUEUED", 1, None),
                ("QUEUED", 2, None),
                ("DELIVERED", 3, None),
                ("DELIVERED", 1, None),
            ]

    asyncio.run(scenario())


@pytest.mark.rule("DU-7")
@pytest.mark.rule("DU-5")
def test_after_so_many_attempts_it_is_a_dead_letter_with_what_was_raised(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path, attempts=2)) as node:
            recorder, other = Recorder(node), collect(node, "other")

            @node.worker("archive")
            def archive(message: Message, context: Context) -> None:  # noqa: ARG001
                raise ValueError("the archive is full")

            await node.send("archive", b"first", durable=True)
            await node.send("other", b"", durable=True)
            await until(lambda: len(other) == 1)
            await until(lambda: ("FAILED", 2, None) in durable_rows(recorder))
            await until(lambda: node.custody is not None and node.custody.messages == 0)
            assert node.custody is not None
            assert node.custody.dead == 1
            (row,) = dead_rows(tmp_path)
            assert row == ("archive", "FAILED", "ValueError: the archive is full", 2)

    asyncio.run(scenario())


def dead_rows(directory: Path) -> list[tuple[str, str, str, int]]:
    """What a program beside the node reads of its dead letters."""
    with contextlib.closing(sqlite3.connect(directory / "custody.sqlite")) as db:
        query = "select receiver, reason, detail, attempt from dead order by id"
        return db.execute(query).fetchall()


@pytest.mark.rule("DU-5")
def test_what_expires_is_a_dead_letter_wherever_it_stands(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path)) as node:
            recorder = Recorder(node)
            await node.send("nobody", b"long", durable=True, ttl=100)
            await node.send("nobody", b"short", durable=True, ttl=0.01)
            await until(lambda: ("EXPIRED", None, None) in durable_rows(recorder))
            found = collect(node, "nobody")
            await until(lambda: payloads(found) == [b"long"])
            assert [row[:2] for row in dead_rows(tmp_path)] == [("nobody", "EXPIRED")]

    asyncio.run(scenario())


@pytest.mark.rule("DU-5")
@pytest.mark.parametrize(
    "bounds",
    [{"messages": 2}, {"bytes": 1_100}, {"receiver_messages": 2}, {"receiver_bytes": 1_100}],
)
def test_a_full_store_refuses_and_takes_again_when_there_is_room(
    tmp_path: Path, bounds: dict[str, int]
) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path, **bounds)) as node:
            outcomes = [await node.send("archive", b"", durable=True) for _ in range(3)]
            assert [one.reason for one in outcomes] == [None, None, Reason.QUEUE_FULL]
            found = collect(node, "archive")
            await until(lambda: len(found) == 2)
            await until(lambda: node.custody and not node.custody.messages)
            assert (await node.send("archive", b"", durable=True)).reason is None

    asyncio.run(scenario())


@pytest.mark.rule("DU-5")
def test_the_bound_of_one_receiver_is_not_that_of_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path, receiver_messages=1)) as node:
            outcomes = [await node.send(name, b"", durable=True) for name in ("a", "a", "b")]
            assert [one.reason for one in outcomes] == [None, Reason.QUEUE_FULL, None]

    asyncio.run(scenario())


def test_a_durable_request_gets_its_reply(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path)) as node:
            echo(node)
            assert (await node.request("echo", b"hello", durable=True)).payload == b"hello"
            with pytest.raises(UndeliverableError, match="UNKNOWN_TYPE"):
                await node.request("77#nowhere => x", b"", durable=True, timeout=20)

    asyncio.run(scenario())


def test_stopping_a_worker_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path)) as node:
            started = asyncio.Event()

            @node.worker("archive", inbox=1)
            async def archive(message: Message, context: Context) -> None:  # noqa: ARG001
                started.set()
                await asyncio.Event().wait()

            for number in range(5):
                await node.send("archive", b"%d" % number, durable=True)
            await started.wait()
            await node.stop_worker("archive")
            attempts: list[tuple[bytes, int]] = []

            @node.worker("archive")
            async def again(message: Message, context: Context) -> None:
                attempts.append((message.payload, context.attempt))

            await until(lambda: len(attempts) == 5)
            assert attempts == [(b"0", 2), (b"1", 1), (b"2", 1), (b"3", 1), (b"4", 1)]

    asyncio.run(scenario())


# Between nodes


@pytest.mark.rule("DU-2")
@pytest.mark.rule("DU-4")
def test_custody_goes_from_store_to_store_in_order(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub"))
        phone = await fleet.leaf("phone", hub, store=quick(tmp_path / "phone"))
        truck = await fleet.leaf("truck", hub, store=quick(tmp_path / "truck"))
        found = collect(truck, "truck-7")
        await fleet.ready()
        for number in range(150):
            await phone.send("truck-7", b"%d" % number, durable=True)
        await until(lambda: len(found) == 150)
        assert payloads(found) == [b"%d" % number for number in range(150)]
        await until(lambda: not any(node.custody and node.custody.messages for node in fleet))
        expected = [
            (phone, ("FORWARDED", None, "hub")),
            (hub, ("FORWARDED", None, "truck")),
            (truck, ("DELIVERED", 1, None)),
        ]
        for node, row in expected:
            recorder = fleet.recorder(node)
            await until(lambda: durable_rows(recorder).count(row) == 150)  # noqa: B023
            assert durable_rows(recorder).count(("QUEUED", None, None)) == 150

    Fleet().run(scenario)


@pytest.mark.rule("DU-1")
def test_a_hub_keeps_what_is_for_a_truck_in_a_tunnel(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub"))
        phone = await fleet.leaf("phone", hub, store=quick(tmp_path / "phone"))
        await fleet.ready()
        await phone.send("truck-7", b"hello", durable=True)
        await until(lambda: hub.custody and hub.custody.parked == 1)
        await fleet.stop(phone)
        truck = await fleet.leaf("truck", hub, store=quick(tmp_path / "truck"))
        found = collect(truck, "truck-7")
        await until(lambda: payloads(found) == [b"hello"])

    Fleet().run(scenario)


@pytest.mark.rule("DU-2")
def test_hubs_without_a_store_pass_custody_on(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        top = await fleet.hub("top")
        left, right = await fleet.hub("left", top), await fleet.hub("right", top)
        phone = await fleet.leaf("phone", left, store=quick(tmp_path / "phone"))
        truck = await fleet.leaf("truck", right, store=quick(tmp_path / "truck"))
        found = collect(truck, "truck-7")
        await fleet.ready()
        await phone.send("truck-7", b"hello", durable=True)
        await until(lambda: payloads(found) == [b"hello"])
        await until(lambda: ("FORWARDED", None, "truck") in durable_rows(fleet.recorder(phone)))

    Fleet().run(scenario)


@pytest.mark.rule("DU-2")
def test_a_message_stays_queued_while_its_receiver_has_no_store(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub"))
        truck = await fleet.leaf("truck", hub)
        found = collect(truck, "truck-7")
        await fleet.ready()
        await hub.send("truck-7", b"hello", durable=True)
        offers = fleet.recorder(hub).messages
        await until(lambda: len([r for r in offers if r.arrival.via is not None]) >= 1)
        assert found == []
        assert durable_rows(fleet.recorder(hub)) == [("QUEUED", None, None)]

    Fleet().run(scenario)


@pytest.mark.rule("DU-2")
def test_a_lost_answer_is_made_up_for_and_nothing_comes_twice(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub"))
        truck = await fleet.leaf("truck", hub, store=quick(tmp_path / "truck"))
        found = collect(truck, "truck-7")
        await fleet.ready()
        for number in range(30):
            await hub.send("truck-7", b"%d" % number, durable=True)
            if number % 5 == 0:
                fleet.cut(hub, truck)
        await until(lambda: len(found) == 30)
        await until(lambda: hub.custody and not hub.custody.messages)
        assert payloads(found) == [b"%d" % number for number in range(30)]

    Fleet().run(scenario)


@pytest.mark.rule("DU-2")
def test_access_rules_judge_what_is_inside(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        access = Access([AccessRule(True, ("phone",), ("allowed",))])
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub"), access=access)
        phone = await fleet.leaf("phone", hub, store=quick(tmp_path / "phone"))
        found = collect(hub, "allowed", "secret")
        await fleet.ready()
        await phone.send("secret", b"no", durable=True)
        await phone.send("allowed", b"yes", durable=True)
        await until(lambda: payloads(found) == [b"yes"])
        await until(lambda: ("REFUSED", None, None) in durable_rows(fleet.recorder(phone)))
        assert [row[:2] for row in dead_rows(tmp_path / "phone")] == [("secret", "REFUSED")]

    Fleet().run(scenario)


def test_a_route_over_a_worker_and_a_session_is_followed(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        one = await fleet.node("one", store=quick(tmp_path / "one"))
        two = await fleet.node("two", store=quick(tmp_path / "two"))
        await fleet.connect(one, two)
        collect(one, "hop")
        found = collect(two, "archive")
        await one.send("hop => two => archive", b"hello", durable=True)
        await until(lambda: payloads(found) == [b"hello"])
        assert [str(hop) for hop in found[0].return_route.addresses][-1] == "0#hop"

    Fleet().run(scenario)


def test_a_reply_to_a_durable_request_finds_its_way_back(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub"))
        phone = await fleet.leaf("phone", hub, store=quick(tmp_path / "phone"))
        truck = await fleet.leaf("truck", hub, store=quick(tmp_path / "truck"))
        echo(truck, "truck-7")
        await fleet.ready()
        assert (await phone.request("truck-7", b"hello", durable=True)).payload == b"hello"

    Fleet().run(scenario)


@pytest.mark.rule("CL-1")
def test_a_node_with_a_store_is_the_same_owner_after_a_restart(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub")
        numbers = []
        for _ in range(2):
            truck = await fleet.leaf("truck", hub, store=quick(tmp_path / "truck"))
            collect(truck, "truck-7")
            await fleet.ready()
            numbers.append(next(iter(truck.sessions)).number)
            await fleet.stop(truck)
        first, second = (r for r in fleet.recorder(hub).claims if r.kind is ClaimKind.CLAIM)
        assert first.owner == second.owner
        assert numbers[0] < numbers[1]

    Fleet().run(scenario)


@pytest.mark.rule("DU-2")
def test_what_was_offered_over_a_lost_link_is_offered_over_the_next(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        patient = quick(tmp_path / "hub", answer=1_000)
        hub = await fleet.hub("hub", store=patient)
        truck = await fleet.leaf("truck", hub, store=quick(tmp_path / "truck"))
        found = collect(truck, "truck-7")
        await fleet.ready()
        fleet.freeze(truck)
        await hub.send("truck-7", b"1", durable=True)
        await settle()
        fleet.cut(hub, truck)
        fleet.heal()
        await until(lambda: payloads(found) == [b"1"])

    Fleet().run(scenario)


@pytest.mark.rule("DU-4")
def test_after_a_change_of_route_a_late_message_says_so_and_comes_once(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        first = await fleet.hub("first", store=quick(tmp_path / "first"))
        second = await fleet.hub("second", store=quick(tmp_path / "second"))
        phone = await fleet.node("phone", store=quick(tmp_path / "phone"))
        await fleet.connect(phone, first)
        await fleet.connect(phone, second)
        truck = await fleet.leaf("truck", second, store=quick(tmp_path / "truck"))
        seen: list[tuple[bytes, bool]] = []

        @truck.worker("truck-7")
        async def handle(message: Message, context: Context) -> None:
            seen.append((message.payload, context.late))

        await fleet.ready()
        await phone.send("first => truck-7", b"1", durable=True)
        await until(lambda: first.custody and first.custody.parked == 1)
        await phone.send("second => truck-7", b"2", durable=True)
        await until(lambda: seen)
        await fleet.connect(truck, first, parent=True)
        await until(lambda: len(seen) == 2)
        await phone.send("first => truck-7", b"3", durable=True)
        await until(lambda: len(seen) == 3)
        assert seen == [(b"2", False), (b"1", True), (b"3", False)]

    Fleet().run(scenario)


@pytest.mark.rule("DU-6")
def test_towards_a_stranger_the_promise_ends_when_the_bytes_have_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node("hub", store=quick(tmp_path), limits=Limits(heartbeat=0)) as node:
            recorder = Recorder(node)
            listening = await node.listen("tcp://127.0.0.1:0")
            stranger = await RawPeer.dial(listening.place)
            await until(lambda: node.sessions and node.sessions[0].is_open)
            for payload in (b"1", b"2"):
                await node.send(f"{node.sessions[0].name} => app", payload, durable=True)
            assert [(await stranger.hear()).payload for _ in range(2)] == [b"1", b"2"]
            await until(lambda: node.custody and not node.custody.messages)
            assert durable_rows(recorder).count(("FORWARDED", None, "ended")) == 2
            stranger.close()

    run_checked(scenario)


@pytest.mark.rule("DU-2")
@pytest.mark.parametrize("scheme", ["tcp", "ws", "udp", "http"])
def test_custody_is_passed_over_every_transport(tmp_path: Path, scheme: str) -> None:
    async def scenario() -> None:
        async with (
            Node("hub", hub=True, store=quick(tmp_path / "hub")) as hub,
            Node("truck", store=quick(tmp_path / "truck")) as truck,
        ):
            listening = await hub.listen(f"{scheme}://127.0.0.1:0")
            found = collect(hub, "archive")
            await truck.connect(listening.url, parent=True)
            sent = [bytes([number]) * 1_000 for number in range(100)]  # more than a datagram takes
            for payload in sent:
                await truck.send("archive", payload, durable=True)
            await until(lambda: len(found) == 100)
            assert payloads(found) == sent
            await until(lambda: truck.custody and not truck.custody.messages)

    run_checked(scenario)


@pytest.mark.rule("DU-5")
def test_the_pairs_that_a_store_knows_are_bounded(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        hub = await fleet.hub("hub", store=quick(tmp_path / "hub", pairs=1))
        phone = await fleet.leaf("phone", hub, store=quick(tmp_path / "phone", pairs=2))
        await fleet.ready()
        outcomes = [await phone.send(name, b"", durable=True) for name in ("a", "b", "c")]
        assert [one.reason for one in outcomes] == [None, None, Reason.QUEUE_FULL]
        await until(lambda: hub.custody and hub.custody.messages == 1)
        await until(lambda: phone.custody and phone.custody.messages == 1)

    Fleet().run(scenario)
