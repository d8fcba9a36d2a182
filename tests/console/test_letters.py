"""Durable messages on the pages: listed, shown, retried and dropped (DU-5)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.console.live import Browser, hub, shown
from waystation.core.message import Message
from waystation.node import Context, Node, StoreSettings
from waystation.node.letters import Selection, select
from waystation.testing import async_test, until
from waystation.testing.workers import collect

EVIL = "<b>truck</b>"


@asynccontextmanager
async def kept(directory: Path) -> AsyncIterator[tuple[Browser, Node, list[str]]]:
    """A console with a store: two messages wait there, and one is dead; their ids."""
    store = StoreSettings(directory=directory, fsync="off", attempts=1, pause=0.01)
    async with Node("garage", store=store) as node, hub() as top:

        @node.worker("broken")
        def broken(message: Message, context: Context) -> None:  # noqa: ARG001
            raise ValueError("<i>no paper</i>")

        sent: list[Any] = [
            await node.send(to, b"<u>come</u> home", durable=True)
            for to in ("truck-7", EVIL, "broken")
        ]
        await until(lambda: node.custody and node.custody.dead == 1)
        async with shown(top.url, stores=(directory,)) as browser:
            yield browser, node, [one.id for one in sent]


def ids_of(text: str) -> list[str]:
    return re.findall(r"<code>([0-9a-f]{12})…</code>", text)


@pytest.mark.rule("DU-5")
@async_test
async def test_what_waits_and_what_ended_is_listed_and_found(tmp_path: Path) -> None:
    async with kept(tmp_path) as (browser, _, (first, second, dead)):
        page = await browser.get("/letters")
        assert ids_of(page.text) == [first[:12], second[:12]]
        assert EVIL not in page.text
        assert "&lt;b&gt;truck" in page.text
        only = await browser.get("/letters?participant=truck-7", X_Fragment="rows")
        assert ids_of(only.text) == [first[:12]]
        assert ids_of((await browser.get("/letters?older=1h")).text) == []
        ended = await browser.get("/letters?kind=dead")
        assert ids_of(ended.text) == [dead[:12]]
        assert "FAILED ValueError: &lt;i&gt;no paper" in ended.text
        assert ids_of((await browser.get("/letters?kind=dead&reason=EXPIRED")).text) == []
        assert ids_of((await browser.get("/letters?kind=dead&reason=FAILED")).text) == [dead[:12]]
        one = await browser.get(f"/letters?kind=dead&id={dead[:8]}", X_Fragment="view")
        assert "&lt;u&gt;come&lt;/u&gt; home" in one.text
        assert f'href="/why?id={dead}"' in one.text
        assert "invalid message id" in (await browser.get("/letters?id=%25")).text
        assert "No matches" in (await browser.get("/letters?id=0000")).text


@pytest.mark.rule("DU-5")
@async_test
async def test_letters_are_retried_and_dropped(tmp_path: Path) -> None:
    async with kept(tmp_path) as (browser, node, (first, second, dead)):
        dropped = await browser.post("/letters", {"do": "drop", "kind": "parked", "id": second})
        assert (dropped.status, "1 message is a dead letter now" in dropped.text) == (200, True)
        assert ids_of(dropped.text) == [first[:12]]
        await node.stop_worker("broken")
        found = collect(node, "broken")
        again = await browser.post("/letters", {"do": "retry", "kind": "dead", "id": dead})
        assert "1 message is sent again" in again.text
        await until(lambda: [one.id for one in found] == [dead])
        gone = await browser.post("/letters", {"do": "drop", "kind": "dead", "participant": EVIL})
        assert "1 dead letter is gone" in gone.text
        tried = await browser.post("/letters", {"do": "retry", "kind": "parked"})
        assert "1 message is tried now" in tried.text
        assert select(tmp_path, "dead", Selection()) == []


@async_test
async def test_nothing_is_done_for_others_nor_in_other_stores(tmp_path: Path) -> None:
    async with kept(tmp_path / "store") as (browser, _, (first, *_rest)):
        form = {"do": "drop", "kind": "parked", "id": first}
        foreign = await browser.post("/letters", form, Origin="http://evil.example")
        assert foreign.status == 403
        elsewhere = await browser.post("/letters", {**form, "store": "/etc"})
        assert elsewhere.status == 200  # the only store that there is
        for wrong in ({"do": "burn"}, {"do": "drop", "participant": "nobody"}):
            assert (await browser.post("/letters", wrong)).status == 422
    async with hub() as top, shown(top.url) as browser:
        assert "The console has no store" in (await browser.get("/letters")).text
        assert (await browser.post("/letters", {"do": "drop"})).status == 422
