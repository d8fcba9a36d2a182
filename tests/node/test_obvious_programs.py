"""The programs that everybody writes first work every time, whoever starts first, without pauses.

Each is run a hundred times over TCP, since what goes wrong here goes wrong now and then.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import waystation
from waystation import Node
from waystation.core.message import Message
from waystation.node import Context
from waystation.testing import async_test

TIMES = 100


async def echo(message: Message, context: Context) -> None:
    await context.reply(message.payload)


async def hub(node: Node) -> str:
    return (await node.listen("tcp://127.0.0.1:0")).url


async def leaf(node: Node, url: str) -> None:
    await node.connect(url, name="hub", parent=True)


@async_test
async def test_a_worker_and_then_a_request() -> None:
    for number in range(TIMES):
        async with Node("hub", hub=True) as center, Node("truck") as truck, Node("phone") as phone:
            url = await hub(center)
            await leaf(truck, url)
            truck.start_worker(("truck-7",), echo)
            await truck.ready()
            await leaf(phone, url)
            reply = await phone.request("truck-7", b"%d" % number)
            assert reply.payload == b"%d" % number
            assert (await center.request("truck-7", b"from the hub")).payload == b"from the hub"


@async_test
async def test_a_request_to_a_worker_that_nobody_waited_for() -> None:
    for number in range(TIMES):
        async with Node("hub", hub=True) as center, Node("truck") as truck, Node("phone") as phone:
            url = await hub(center)
            await leaf(phone, url)
            await leaf(truck, url)
            truck.start_worker(("truck-7",), echo)
            reply = await phone.request("truck-7", b"%d" % number)
            assert reply.payload == b"%d" % number


@async_test
async def test_a_request_before_there_is_a_worker() -> None:
    for number in range(TIMES):
        async with Node("hub", hub=True) as center, Node("truck") as truck, Node("phone") as phone:
            url = await hub(center)
            await leaf(phone, url)
            asking = asyncio.ensure_future(phone.request("truck-7", b"%d" % number))
            await leaf(truck, url)
            truck.start_worker(("truck-7",), echo)
            assert (await asking).payload == b"%d" % number


@async_test
async def test_the_leaves_before_the_hub() -> None:
    async with Node("probe") as probe:
        url = await hub(probe)  # a port that is free from now on
    for number in range(TIMES):
        async with Node("truck") as truck, Node("phone") as phone:
            truck.start_worker(("truck-7",), echo)
            for node in (truck, phone):
                await node.connect(url, name="hub", parent=True, wait=None)
            asking = asyncio.ensure_future(phone.request("truck-7", b"%d" % number))
            async with Node("hub", hub=True) as center:
                await center.listen(url)
                await truck.ready()
                assert (await asking).payload == b"%d" % number


@pytest.mark.parametrize("pattern", ["eu/de", "eu/+", "*"])
@async_test
async def test_a_subscription_and_then_a_broadcast(pattern: str) -> None:
    for number in range(TIMES):
        async with Node("hub", hub=True) as center, Node("truck") as truck, Node("phone") as phone:
            url = await hub(center)
            for node in (truck, phone):
                await leaf(node, url)
            async with phone.subscribe("truck", "position", pattern) as positions:
                await truck.publish("position", b"%d" % number, partition="eu/de")
                assert (await anext(positions)).payload == b"%d" % number


@async_test
async def test_a_subscription_and_ready_and_then_a_broadcast_from_the_hub() -> None:
    for number in range(TIMES):
        async with Node("hub", hub=True) as center, Node("phone") as phone:
            await leaf(phone, await hub(center))
            positions = phone.subscribe("hub", "position", "*")
            await phone.ready()
            await center.publish("position", b"%d" % number)
            assert (await anext(positions)).payload == b"%d" % number


@async_test
async def test_two_levels_of_hubs() -> None:
    for number in range(TIMES):
        async with (
            Node("top", hub=True) as top,
            Node("left", hub=True) as left,
            Node("right", hub=True) as right,
            Node("truck") as truck,
            Node("phone") as phone,
        ):
            top_url = await hub(top)
            left_url, right_url = await hub(left), await hub(right)
            await leaf(left, top_url)
            await leaf(right, top_url)
            await leaf(truck, left_url)
            await leaf(phone, right_url)
            async with phone.subscribe("truck", "position", "*") as positions:
                asking = asyncio.ensure_future(phone.request("truck-7", b"%d" % number))
                truck.start_worker(("truck-7",), echo)
                await truck.ready()
                assert (await top.request("truck-7", b"down")).payload == b"down"
                assert (await asking).payload == b"%d" % number
                await truck.publish("position", b"%d" % number, partition="eu/de")
                assert (await anext(positions)).payload == b"%d" % number


@pytest.mark.parametrize("part", range(5))  # since an explanation takes a while
@async_test
async def test_a_fleet_with_a_journal_and_why(part: int, tmp_path: Path) -> None:
    async with waystation.Node("hub", hub=True, journal=tmp_path) as center:
        url = await hub(center)
        for number in range(part, TIMES, 5):
            async with (
                waystation.leaf(url, name="truck") as truck,
                waystation.leaf(url) as dispatcher,
            ):

                @truck.worker(f"brakes-{number}")
                async def check(message: Message, context: Context) -> bytes:  # noqa: ARG001
                    return b"fine"

                reply = await dispatcher.request(f"brakes-{number}", b"how are they?")
                assert reply.payload == b"fine"
            with pytest.raises(waystation.UndeliverableError) as caught:
                await center.request(f"brakes-{number}", b"and now?", policy=waystation.FAIL)
            told = await center.why(caught.value.message_id)
            assert told.summary.startswith("dropped at hub, ")
            assert f"brakes-{number} had left" in told.summary
