"""Watched nodes with an invalid status: it is shown as such, and affects nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.console.live import Told, hub, shown
from tests.node.live import QUICK
from waystation.console import fleet as module
from waystation.core.access import Access
from waystation.core.message import Message
from waystation.node import Context, Node
from waystation.node.status import STATUS, Snapshot
from waystation.testing import async_test, collect, settle, until

STRANGE = {
    "node": "\u202eevil" * 100,
    "at": -(2**62),
    "uptime": 1e300,
    "counts": {f"<b>{number}": 2**62 for number in range(1_000)},
    "rates": {"DELIVERED": 1e308, "<i>": 1e308},
    "bytes": -1,
    "bytes_rate": -1e308,
    "routes_total": -5,
    "routes": [
        {"participant": "x" * 2_000, "address": "", "local": False, "expiry": 2**62}
        for _ in range(500)
    ],
    "sessions_total": 2**60,
    "sessions": [
        {
            "name": "",
            "place": "\x00",
            "peer": None,
            "open": True,
            "opened_here": number % 2 == 0,
            "version": "\u202e<b>" * 99,
            "can": ['"<i>'] * 99,
        }
        for number in range(500)
    ],
    "session_events": {},
    "journal_lost": -1,
    "subscriptions": [{"pattern": "\n", "receiver": ""}] * 500,
    "subscriptions_fitting": 2**60,
    "routes_fitting": 2**60,
}


@asynccontextmanager
async def telling_nonsense(payload: bytes) -> AsyncIterator[Told]:
    """A node with the status that the test gives."""

    async def answer(_: Message, context: Context) -> None:
        await context.reply(payload)

    async with Node("liar", limits=QUICK) as node:
        node.start_worker((STATUS,), answer, reserved=True)
        yield Told(node, (await node.listen("tcp://127.0.0.1:0")).url)


@async_test
async def test_an_invalid_status_is_reported_and_does_not_affect_other_nodes() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_STATUS_BYTES", 50_000)
        async with (
            hub() as good,
            telling_nonsense(b"{") as one,
            telling_nonsense(b"\xff" * 60_000) as other,
            shown(good.url, one.url, other.url) as browser,
        ):
            text = await browser.until("/routes", lambda text: text.count("card silent") == 2)
            assert "invalid status" in text
            assert "the status is too large: 60,000 bytes" in text
            await browser.until("/routes", lambda text: "card here" in text)


@async_test
async def test_unusual_numbers_and_names_are_displayed_safely() -> None:
    strange = msgspec.json.encode(STRANGE)
    msgspec.json.decode(strange, type=Snapshot)
    async with telling_nonsense(strange) as liar, shown(liar.url) as browser:
        text = await browser.until("/send", lambda text: "card here" in text)
        assert "\u202e" not in text
        for view in ("connections", "routes", "subscriptions"):
            page = await browser.get(f"/{view}?node={liar.url}&page=3")
            assert page.status == 200
            assert len(page.text) < 200_000
            assert all(mark not in page.text for mark in ("\u202e", "<i>"))


@async_test
async def test_no_watched_node_reaches_another_one_through_the_console() -> None:
    async with hub("one") as one, hub("two") as two:
        got = collect(two.node, "target")
        async with Node("console", limits=QUICK, access=Access(())) as watcher:
            sessions = [
                await watcher.connect(told.url, name=f"watched-{number}")
                for number, told in enumerate((one, two), 1)
            ]
            assert all(session.is_open for session in sessions)
            await until(lambda: one.node.sessions and one.node.sessions[0].peer == "console")
            back = one.node.sessions[0].name
            await one.node.send(f"{back} => watched-2 => target", b"hello")
            answer = await watcher.request("watched-1 => echo", b"still")
            assert answer.payload == b"still"  # it came after the other one
            await settle()
            await asyncio.sleep(0)
            assert got == []
