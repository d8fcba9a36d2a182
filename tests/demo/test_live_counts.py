"""Following journals while they are written: counts, rates and drops."""

from __future__ import annotations

import asyncio
from pathlib import Path

from waystation.core.message import Message
from waystation.demo.live_counts import Drop, LiveCounts
from waystation.node import Context, Node
from waystation.node.status import STATUS, Status


async def work(journal: Path) -> None:
    async with Node("garage", journal=journal) as node:

        @node.worker("echo")
        async def echo(message: Message, context: Context) -> None:
            await context.reply(message.payload)

        await node.request("echo", b"hello")
        await node.send("nobody", b"hello")


def test_what_happened_is_counted_once(tmp_path: Path) -> None:
    live = LiveCounts(tmp_path)
    live.look()
    assert live.counts == {}
    asyncio.run(work(tmp_path))
    for _ in range(2):
        live.look()
        assert live.counts["garage"] == {"DELIVERED": 2, "NO_ROUTE": 1}
    [drop] = live.drops
    assert drop == Drop("garage", "NO_ROUTE", "0#nobody", drop.message_id)
    assert live.rates()["garage"]["NO_ROUTE"] > 0


def test_drops_are_counted_by_place_reason_and_whom_they_were_for(tmp_path: Path) -> None:
    live = LiveCounts(tmp_path)
    live.drops += [
        Drop("hub", "NO_ROUTE", "0#truck-1", ""),
        Drop("hub", "NO_ROUTE", "0#truck-2", ""),
        Drop("hub", "EXPIRED", "0#truck-2", ""),
        Drop("leaf", "NO_ROUTE", "0#truck-2", ""),
    ]
    assert live.dropped("hub", "NO_ROUTE") == 2
    assert live.dropped("hub", "NO_ROUTE", "0#truck-2") == 1
    assert live.dropped("hub", "NO_ROUTE", since=1) == 1


def test_a_console_that_asks_for_the_status_keeps_no_fleet_from_being_quiet(tmp_path: Path) -> None:
    async def ask() -> None:
        async with Node("garage", journal=tmp_path) as node:
            status = Status(node)
            status.start()
            await node.request(STATUS, b"")

    live = LiveCounts(tmp_path)
    before = live.changed_at
    asyncio.run(ask())
    live.look()
    assert live.counts["garage"] == {"DELIVERED": 2}
    assert live.changed_at == before
    asyncio.run(work(tmp_path))
    live.look()
    assert live.changed_at > before
