"""The console in a real browser: headless Chromium, by clicks and keys, and what is then to see.

Where WAYSTATION_SCREENSHOTS names a directory, pictures of the pages are left there.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.console.live import Told, hub, leaf, shown
from tests.node.live import Scenario
from tests.peers.kept import PeerMissing, needed, tool
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry
from waystation.node import Node
from waystation.testing import run_checked, until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

STATUS_TIMEOUT = 60_000
"""Milliseconds after which whatever a test waits for will not be seen any more."""

LOOK = 0.3
"""Seconds between two looks at a node: a browser draws each of them."""

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE = {"width": 360, "height": 740}
SCREEN = {"width": 1440, "height": 900}
TOKEN = "a-token-of-many-letters"  # noqa: S105 - opens nothing but these tests


def runs(scenario: Scenario) -> Callable[..., None]:
    """A test written as a coroutine, with more time than others: a browser is slow to start."""

    @functools.wraps(scenario)
    def test(*args: Any, **options: Any) -> None:
        run_checked(lambda: scenario(*args, **options), seconds=380.0)

    return test


def chromium() -> tuple[Any, str]:
    """What drives a browser, and where the browser is."""
    try:
        playwright = import_module("playwright.async_api")
    except ImportError:
        raise PeerMissing("playwright is not installed; pip install playwright") from None
    for name in ("chromium", "chromium-browser", "google-chrome"):
        try:
            return playwright, tool(name)
        except PeerMissing:
            continue
    raise PeerMissing("there is no chromium")


@asynccontextmanager
async def browsing(**options: Any) -> AsyncIterator[Any]:
    """A page of a browser; fails if the browser had anything to complain about."""
    playwright, program = needed("Chromium", chromium)
    complaints: list[str] = []
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            context = await browser.new_context(**{"viewport": SCREEN, **options})
            page = await context.new_page()
            page.set_default_timeout(STATUS_TIMEOUT)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: _note(complaints, said))
            yield page
        finally:
            await browser.close()
    assert complaints == []


def _note(complaints: list[str], said: Any) -> None:
    """A refusal by the policy, or any other error; not that a console which ended is away."""
    if said.type == "error" and "Failed to load resource" not in said.text:
        complaints.append(said.text)


async def picture(page: Any, name: str) -> None:
    """Leave a picture where somebody wants them."""
    directory = os.environ.get("WAYSTATION_SCREENSHOTS")
    if directory:
        await page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)


async def sees(page: Any, selector: str, text: str) -> None:
    """Wait until something is to be seen."""
    await page.locator(selector).filter(has_text=re.compile(text)).first.wait_for()


@asynccontextmanager
async def fleet(directory: Path) -> AsyncIterator[tuple[Told, Told]]:
    """A hub and a leaf with journals, a guest, some routes, subscriptions and losses."""
    async with (
        hub(journal=directory) as top,
        leaf("gateway", top, directory) as gate,
        Node("truck-7") as truck,
        Node("truck-8") as other,
    ):
        for guest in (truck, other):
            await guest.connect(gate.url)
        for number in range(120):
            place = Address(1, f"10.0.0.{number}:4000".encode())
            top.node.put_route(RoutingEntry(f"sensor-{number}", place, local=False))
        gate.node.subscribe("garage", "temperature", "eu/+")
        gate.node.subscribe("garage", "pressure", "*")
        await until(lambda: "gateway-echo" in top.node.router.table.snapshot(0))
        await truck.send("nobody", b"")
        await top.node.send("nobody", b"hello")
        yield top, gate


@runs
async def test_a_fleet_is_looked_at_by_clicks_and_keys(tmp_path: Path) -> None:
    async with (
        fleet(tmp_path) as (top, gate),
        shown(top.url, gate.url, journal=tmp_path, interval=LOOK) as console,
        browsing() as page,
    ):
        await page.goto(f"http://{console.place}/")
        await sees(page, "#pulse", "^live$")
        await page.locator(".box.hub.here[data-node=hub]").wait_for()
        await page.locator(".box.peer[data-node=truck-7]").wait_for()
        await sees(page, "#rows", "gateway")
        await picture(page, "connections")

        await page.click("nav >> text=Routes")
        await sees(page, "main h2", "Routing table")  # the view before it has a #find, too
        await page.fill("#find", "sensor-11")
        await sees(page, "#rows", "11 of 11 matching")
        await page.select_option("#node", gate.url)
        await sees(page, "#rows", "No matches")
        assert "find=sensor-11" in page.url
        await page.select_option("#node", top.url)
        await page.fill("#find", "")
        await page.click("text=next →")
        await sees(page, "#rows", "page 2 of 3")
        await picture(page, "routes")
        await page.go_back()
        await sees(page, "nav [aria-current]", "Routes")

        await page.click("nav >> text=Subscriptions")
        await sees(page, "#rows", re.escape("garage/temperature/eu/+"))
        await picture(page, "subscriptions")
        await page.keyboard.press("Shift+Tab")  # from the view back into the menu, and on
        await page.keyboard.press("Shift+Tab")
        await page.keyboard.press("Enter")
        await sees(page, "main h2", "Explain a message")
        await sees(page, "#rows", "NO_ROUTE")
        await picture(page, "losses")
        await page.click("#rows tbody a")
        await sees(page, ".account .summary", "dropped at hub, NO_ROUTE")
        await picture(page, "why")


@runs
async def test_a_message_is_sent_and_watched_as_it_hops(tmp_path: Path) -> None:
    async with (
        fleet(tmp_path) as (top, gate),
        shown(top.url, gate.url, journal=tmp_path, interval=LOOK) as console,
        browsing() as page,
    ):
        await page.goto(f"http://{console.place}/send")
        await sees(page, "#nodes .card.here:nth-child(2)", "gateway")
        await page.fill("#route", "gateway-echo")
        await page.fill("#payload", "hello <there>")
        await page.keyboard.press("Tab")
        await page.click("button.main")
        await sees(page, ".account .summary", "reply after")
        await sees(page, ".journey li.back", "gateway")
        await sees(page, ".account pre", "^hello <there>$")
        await page.locator(".box.lit[data-node=gateway]").wait_for()
        lit = page.locator(".line.lit[data-left=hub][data-right=gateway]")
        await lit.wait_for(state="attached")  # a straight line has no height to be seen
        await page.locator(".traveller").wait_for(state="detached")
        await picture(page, "sent")
        await page.click("text=why?")
        await sees(page, ".account .summary", "delivered at hub, gateway")
        await page.go_back()
        await sees(page, ".account .summary", "reply after")

        assert await page.input_value("#payload") == "hello <there>"
        await page.fill("#route", "gateway-ecko")
        await page.uncheck("#reply")
        await page.click("button.main")
        await sees(page, ".account .summary", "dropped at hub: NO_ROUTE")
        await page.fill("#route", "white space")
        await page.click("button.main")
        await sees(page, ".problem", "white space")
        assert await page.input_value("#route") == "white space"


@runs
async def test_a_node_goes_away_and_comes_back_before_the_eyes() -> None:
    async with hub("stays") as stays:
        async with hub("goes") as goes:
            url = goes.url
            watching = shown(stays.url, url, interval=LOOK)
            console = await watching.__aenter__()
            looking = browsing()
            page = await looking.__aenter__()
            await page.goto(f"http://{console.place}/routes")
            await sees(page, "#nodes .card.here:nth-child(2)", "goes")
        await sees(page, "#nodes .card.away", "goes")
        await page.locator(".box.away[data-node=goes]").wait_for()
        await picture(page, "away")
        async with hub("goes", url):
            await sees(page, "#nodes .card.here:nth-child(2)", "goes")
        await watching.__aexit__(None, None, None)
        await sees(page, "#pulse.lost", "no connection to the console")
        await looking.__aexit__(None, None, None)


@runs
async def test_names_that_are_programs_stay_text() -> None:
    evil = "<img/src=x/onerror=alert(1)>"
    dialogs: list[object] = []
    async with (
        hub(evil) as top,
        Node(evil + "2") as guest,
        shown(top.url, interval=LOOK) as console,
    ):
        await guest.connect(top.url)
        top.node.put_route(RoutingEntry(evil, Address(0, b"x"), local=False))
        async with browsing() as page:
            page.on("dialog", lambda dialog: dialogs.append(dialog))  # noqa: PLW0108 - it keeps notes
            await page.goto(f"http://{console.place}/routes")
            await sees(page, "#nodes h3", re.escape(evil))
            await sees(page, "#rows td", re.escape(evil))
            assert await page.locator("#fleet img, #view img").count() == 0
    assert dialogs == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_the_night(tmp_path: Path, scheme: str) -> None:
    @runs
    async def scenario() -> None:
        async with (
            fleet(tmp_path) as (top, gate),
            shown(top.url, gate.url, journal=tmp_path, interval=LOOK) as console,
            browsing(viewport=PHONE, color_scheme=scheme) as page,
        ):
            for name in ("connections", "routes", "subscriptions", "why", "send"):
                await page.goto(f"http://{console.place}/{name}")
                await sees(page, "#nodes .card.here:nth-child(2)", "gateway")
                width = await page.evaluate("document.documentElement.scrollWidth")
                assert width <= PHONE["width"], name
                await picture(page, f"phone-{scheme}-{name}")
            await page.set_viewport_size(SCREEN)
            await picture(page, f"screen-{scheme}")

    scenario()


@runs
async def test_a_locked_console_is_opened_with_its_token() -> None:
    async with (
        hub() as top,
        shown(top.url, token=TOKEN, interval=LOOK) as console,
        browsing() as page,
    ):
        await page.goto(f"http://{console.place}/routes")
        await page.fill("#token", "a-wrong-guess-of-it")
        await page.keyboard.press("Enter")
        await sees(page, ".problem", "Wrong token")
        await picture(page, "login")
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await sees(page, "#pulse", "^live$")
        await sees(page, "#nodes .card.here", "hub")


@runs
async def test_without_its_script_the_pages_still_work() -> None:
    async with (
        hub() as top,
        shown(top.url, interval=LOOK) as console,
        browsing(java_script_enabled=False) as page,
    ):
        await console.until("/", lambda _: True)
        await console.until("/routes", lambda text: "card here" in text)
        await page.goto(f"http://{console.place}/routes")
        await page.fill("#find", "ech")
        await page.click("text=Find")
        await page.wait_for_url("**find=ech**")
        await sees(page, "#rows td", "^echo$")
        await page.click("nav >> text=Send")
        await page.fill("#route", "echo")
        await page.click("button.main")
        await page.wait_for_url("**watch=**")
        await page.reload()
        await sees(page, ".account", "message [0-9a-f]{32}")
