"""Messages sent from the page: their outcomes, hop by hop, and the reasons."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.console.live import Browser, hub, leaf, shown
from waystation.node import Node
from waystation.testing import DEADLINE, async_test, until


async def send(browser: Browser, via: str, route: str, **form: str) -> str:
    """Send a message; returns the path of the page that shows it."""
    fields = {"via": via, "route": route, "ttl": "20", "reply": "yes", **form}
    page = await browser.post("/send", fields)
    assert page.status == 303, page.text
    return page.headers["location"]


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@async_test
async def test_a_reply_is_shown() -> None:
    async with hub() as top, shown(top.url) as browser:
        await browser.until("/send", lambda text: "here" in text)
        path = await send(browser, top.url, "echo", payload="hello <world>")
        text = await browser.until(path, lambda text: "reply after" in text, X_Fragment="rows")
        assert '<pre tabindex="0">hello &lt;world&gt;</pre>' in text
        assert "console" in text
        assert "FORWARDED" in text
        path = await send(browser, top.url, "echo", payload="ff00", coding="hex")
        await browser.until(path, lambda text: ">0xff00</pre>" in text, X_Fragment="rows")
        await browser.until("/send", lambda text: "Sent messages" in text)


@pytest.mark.rule("OB-2")
@async_test
async def test_a_drop_at_another_node_is_shown_with_its_node_and_reason() -> None:
    async with hub() as top, shown(top.url) as browser:
        await browser.until("/send", lambda text: "here" in text)
        path = await send(browser, top.url, "nobody")
        text = await browser.until(path, lambda text: "dropped by" in text, X_Fragment="rows")
        assert "dropped by hub: NO_ROUTE" in text


@async_test
async def test_without_reply_and_journal_the_outcome_is_unknown() -> None:
    async with hub() as top, shown(top.url) as browser:
        await browser.until("/send", lambda text: "here" in text)
        path = await send(browser, top.url, "echo", reply="")
        text = await browser.until(path, lambda text: "no journal here" in text)
        assert "watching" not in text


@async_test
async def test_a_missing_reply_is_reported_after_the_time_to_live() -> None:
    async with hub() as top, shown(top.url) as browser:

        @top.node.worker("silent")
        def silent(*_: object) -> None:
            pass

        await browser.until("/send", lambda text: "here" in text)
        path = await send(browser, top.url, "silent", ttl="0.2")
        text = await browser.until(path, lambda text: "no reply within 0.2 s" in text)
        assert "watching" not in text


@async_test
async def test_with_a_journal_every_hop_of_message_and_reply_is_shown(tmp_path: Path) -> None:
    async with (
        hub(journal=tmp_path) as top,
        leaf("truck", top, tmp_path) as truck,
        # short: the events below show all hops before it is over
        shown(top.url, truck.url, journal=tmp_path, journal_wait=0.5) as browser,
    ):
        await until(lambda: "truck-echo" in top.node.router.table.snapshot(0))
        await browser.until("/send", lambda text: text.count("card here") == 2)
        async with browser.events() as events:
            path = await send(browser, top.url, "truck-echo", payload="x")
            async for name, data in events:
                stops = data.get("stops", [])
                if name == "hops" and stops == [
                    "console", "hub", "truck", "hub", "console",
                ]:  # fmt: skip
                    break
        text = plain(await browser.until(path, lambda text: "watching" not in text))
        assert "reply after" in text
        for hop in ("hub", "truck"):
            assert len(re.findall(rf"\b{hop} [\d:.]+ (?:FORWARDED|DELIVERED)", text)) == 2
        id = path.partition("=")[2]
        why = plain(await browser.until(f"/why?id={id}", lambda text: "waterfall" in text))
        assert "delivered at truck" in why
        lost = await send(browser, top.url, "truk-echo", reply="")
        text = await browser.until(lost, lambda text: "dropped at hub" in text)
        assert "NO_ROUTE" in text
        why = plain((await browser.get(f"/why?id={lost.partition('=')[2]}")).text)
        assert "the closest names are truck-echo" in why
        losses = await browser.get("/incidents")
        assert lost.partition("=")[2] in losses.text


@async_test
async def test_why_reports_an_invalid_or_unknown_id(tmp_path: Path) -> None:
    async with hub() as top, shown(top.url, journal=tmp_path) as browser:
        assert "invalid message id" in (await browser.get("/why?id=xyz")).text
        assert "the journal has no message" in (await browser.get(f"/why?id={'ab' * 16}")).text
        assert "Nothing was lost" in (await browser.get("/incidents")).text
    async with hub() as top, shown(top.url) as browser:
        assert "--journal DIR" in (await browser.get("/incidents")).text
        assert "the console has no journal" in (await browser.get(f"/why?id={'ab' * 16}")).text


MISTAKES = [
    ({"via": "tcp://nobody:1"}, "no node is selected"),
    ({"route": ""}, "the route is empty"),
    ({"route": "no such#type"}, "white space"),
    ({"route": "a =>"}, "invalid address "),
    ({"payload": "0g", "coding": "hex"}, "invalid hexadecimal payload"),
    ({"payload": "x" * 70_000}, "70,000 bytes"),
    ({"ttl": "soon"}, "time to live"),
    ({"ttl": "nan"}, "time to live"),
    ({"ttl": "-1"}, "time to live"),
    ({"ttl": "1e9"}, "time to live"),
]


@async_test
async def test_a_mistake_in_the_form_is_reported_with_the_form() -> None:
    async with hub() as top, shown(top.url) as browser:
        for form, problem in MISTAKES:
            fields = {"via": top.url, "route": "echo", "ttl": "1", "payload": "kept", **form}
            page = await browser.post("/send", fields)
            assert page.status == 422
            assert problem in page.text
            assert fields["payload"] in page.text


@async_test
async def test_a_form_that_is_too_large_is_refused() -> None:
    async with hub() as top, shown(top.url) as browser:
        assert (await browser.post("/send", "payload=" + "x" * 300_000)).status == 413
        assert (await browser.post("/send", "&".join(["a=b"] * 50))).status == 422
        assert (await browser.get("/send?watch=unknown")).status == 200


@async_test
async def test_the_number_of_messages_in_flight_is_limited() -> None:
    async with hub() as top, shown(top.url, kept=2) as browser:

        @top.node.worker("silent")
        def silent(*_: object) -> None:
            pass

        await browser.until("/send", lambda text: "here" in text)
        paths = [await send(browser, top.url, "silent", ttl="60") for _ in range(2)]
        page = await browser.post("/send", {"via": top.url, "route": "echo", "ttl": "1"})
        assert "2 messages are in flight already" in page.text
        assert len(set(paths)) == 2


@async_test
async def test_only_the_latest_messages_are_remembered() -> None:
    async with hub() as top, shown(top.url, kept=2) as browser:
        await browser.until("/send", lambda text: "here" in text)
        for _ in range(4):
            path = await send(browser, top.url, "echo")
            await browser.until(path, lambda text: "watching" not in text)
        page = await browser.get("/send")
        assert page.text.count("/send?watch=") == 2


@async_test
async def test_a_message_through_a_node_that_is_away_is_dropped() -> None:
    async with Node("gone") as gone:
        nobody = (await gone.listen("tcp://127.0.0.1:0")).url
    async with shown(nobody) as browser:
        path = await send(browser, nobody, "echo", ttl="0.1")
        async with asyncio.timeout(DEADLINE):
            text = await browser.until(path, lambda text: "watching" not in text)
        assert "dropped at console: TRANSPORT_DOWN" in text or "no reply" in text
