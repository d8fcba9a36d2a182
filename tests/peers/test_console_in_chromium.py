"""The console in a real browser: headless Chromium, by clicks and keys, and what is then to see.

Where WAYSTATION_SCREENSHOTS names a directory, pictures of the pages are left there.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.console.live import Told, hub, leaf, pretending, shown
from tests.console.test_moments import at, message, put_journal, put_messages
from tests.node.live import Scenario
from tests.peers.kept import PeerMissing, needed, tool
from tests.pipeline.test_whatif import Story
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry
from waystation.node import Node
from waystation.testing import echo, run_checked, until

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
VIEWS = (
    "connections", "routes", "subscriptions", "contested", "incidents", "past", "why", "send",
)  # fmt: skip
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


async def picture(page: Any, name: str, *, whole: bool = True) -> None:
    """Leave a picture where somebody wants them: of the whole page, or of what is in view."""
    directory = os.environ.get("WAYSTATION_SCREENSHOTS")
    if directory:
        await page.screenshot(path=Path(directory) / f"{name}.png", full_page=whole)


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


@pytest.mark.ci
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
        for _ in ("Send", "Letters", "Why"):  # from the view back into the menu, and on
            await page.keyboard.press("Shift+Tab")
        await page.keyboard.press("Enter")
        await sees(page, "main h2", "Explain a message")
        await page.click("nav >> text=Incidents")
        await sees(page, "#rows", "NO_ROUTE")
        await picture(page, "losses")
        await page.click(".losses a >> text=why?")
        await sees(page, ".account .summary", "dropped at hub, NO_ROUTE")
        await picture(page, "why")


@runs
async def test_a_truck_dies_before_the_eyes(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        east = await enter(hub("garage-east", journal=tmp_path))
        west = await enter(hub("garage-west", journal=tmp_path))
        await west.node.connect(east.url, parent=True)
        for number in range(9):
            await enter(leaf(f"van-{number}", east, tmp_path))
        for number in range(5, 8):
            await enter(leaf(f"truck-{number}", west, tmp_path))
        dies = AsyncExitStack()
        await dies.enter_async_context(leaf("truck-8", west, tmp_path))
        console = await enter(shown(east.url, west.url, journal=tmp_path, interval=LOOK))
        page = await enter(browsing())
        await page.goto(f"http://{console.place}/send")
        await page.locator(".box.peer.here[data-node=truck-8]").wait_for()
        await until(lambda: "truck-8-echo" in east.node.router.table.snapshot(0))
        await east.node.request("truck-8-echo", b"are you there?")
        await page.fill("#route", "van-3-echo")
        await page.click("button.main")
        await page.locator(".box.lit[data-node=van-3]").wait_for()  # which was folded
        assert await is_in_view(page, ".box[data-node=van-3]")
        await dies.aclose()
        await page.locator(".box.peer.gone[data-node=truck-8]").wait_for()
        await sees(page, "#topology h2", "1 in trouble")
        await page.fill("#route", "truck-8-echo")
        await page.click("button.main")
        await sees(page, ".account .summary", "dropped")
        await page.click("text=why?")
        await sees(page, ".waterfall li.dropped .badge.fact", "truck-8")
        await page.locator(".box.lit[data-node=garage-east]").wait_for()
        await page.locator(".traveller").wait_for(state="detached")
        await page.locator("#topology .badge.then").wait_for()  # the fleet of that moment
        await picture(page, "truck-dies", whole=False)
        await page.click("nav >> text=Incidents")
        await page.locator("#topology .badge.then").wait_for(state="detached")
        await sees(page, ".losses li", "truck-8")
        await picture(page, "truck-lost", whole=False)


@runs
async def test_one_click_tells_what_would_have_helped(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    Story(journal)
    async with (
        hub() as top,
        shown(top.url, journal=journal, interval=LOOK) as console,
        browsing() as page,
    ):
        await page.goto(f"http://{console.place}/incidents")
        await page.locator(".losses button").first.click()
        await sees(page, ".helped", "lost messages would have arrived")
        await picture(page, "helped")
        await page.click(".helped a")
        await page.locator(".helped").wait_for(state="detached")


@asynccontextmanager
async def large_fleet() -> AsyncIterator[list[str]]:
    """The URLs of seven hubs, connected to each other, with 500 leaves."""
    hubs = [f"hub-{number}" for number in range(7)]
    urls: list[str] = []
    async with AsyncExitStack() as stack:
        for number, name in enumerate(hubs):
            leaves = [f"truck-{number}{leaf:02}" for leaf in range(71 + (number < 3))]
            if number == 3:
                leaves[4] += "-stuck"
            others = [hub for hub in hubs if hub != name]
            told = await stack.enter_async_context(pretending(name, leaves, *others))
            urls.append(told.url)
        yield urls


async def is_in_view(page: Any, selector: str) -> bool:
    """Whether an element is inside the part of the picture that is to be seen."""
    inside = """(selector) => {
        const outer = document.getElementById("map").getBoundingClientRect();
        const inner = document.querySelector(selector).getBoundingClientRect();
        return inner.left >= outer.left - 1 && inner.top >= outer.top - 1
            && inner.right <= outer.right + 1 && inner.bottom <= outer.bottom + 1;
    }"""  # at once, since the picture is replaced while it is looked at
    return bool(await page.evaluate(inside, selector))


@runs
async def test_seven_hubs_and_500_leaves_are_legible() -> None:
    async with (
        large_fleet() as urls,
        shown(*urls, interval=LOOK) as console,
        browsing() as page,
    ):
        await page.goto(f"http://{console.place}/")
        await sees(page, "#topology h2", "500 leaves, 1 in trouble")
        assert await page.locator(".box.hub").count() == 7
        assert await page.locator(".box.fold").count() == 7
        for number in range(7):
            assert await is_in_view(page, f".box.hub[data-node=hub-{number}]")
        await sees(page, ".label", r"tcp · \d+/s")
        assert await page.locator(".dots.slow").count() == 1
        await picture(page, "many", whole=False)

        await page.evaluate("document.querySelector('.box.hub').isTheSame = true")
        uptime = await page.locator("#nodes .place").first.text_content()
        newer = "(uptime) => document.querySelector('#nodes .place').textContent !== uptime"
        await page.wait_for_function(newer, arg=uptime)  # only what changed is replaced
        assert await page.evaluate("document.querySelector('.box.hub').isTheSame")

        await page.click(".box.fold[data-unfold=hub-3]")
        await page.locator(".box.leaf.slow").wait_for()
        assert await page.locator(".box.leaf").count() == 71
        letters = "document.querySelector('.box.leaf text').getBoundingClientRect().height"
        assert await page.evaluate(letters) > 9  # as wide as there is room
        await picture(page, "many-unfolded", whole=False)
        scale = "document.querySelector('#map svg').viewBox.baseVal.width"
        await page.focus("#map")
        before = await page.evaluate(scale)
        await page.keyboard.press("+")
        closer = await page.evaluate(scale)
        assert closer < before
        await page.hover("#map")
        await page.mouse.wheel(0, -100)
        assert await page.evaluate(scale) < closer
        await page.click("[data-zoom=fit]")
        assert await is_in_view(page, ".box.hub[data-node=hub-6]")
        fold = page.locator(".box.fold[data-unfold=hub-3]")
        await fold.focus()
        await page.keyboard.press("Space")
        await page.locator(".box.leaf").first.wait_for(state="detached")

        await page.click("[data-internals]")
        await page.locator("[data-internals][aria-checked=true]").wait_for()
        await page.wait_for_url("**/connections?internals=yes")


@runs
async def test_the_past_is_chosen_with_the_slider_and_played_again(tmp_path: Path) -> None:
    put_journal(tmp_path)
    put_messages(tmp_path)
    async with (
        hub() as top,
        shown(top.url, journal=tmp_path, interval=LOOK) as console,
        browsing() as page,
    ):
        await page.goto(f"http://{console.place}/past?at={at(6)}&node=hub")
        await page.locator(".box.node.here[data-node=truck]").wait_for()
        await sees(page, ".box.server text", "^broker$")
        await sees(page, "#moment-words", "4 nodes running")
        await page.focus("#moment")
        for _ in range(45):  # a step is a tenth of a second
            await page.keyboard.press("ArrowRight")
        await page.locator(".box.node.gone[data-node=truck]").wait_for()
        await sees(page, ".changes li.bad", "lost truck: ended without a goodbye")
        await sees(page, "#moment-words", "1 gone")
        await picture(page, "past", whole=False)

        await page.click("#play")
        await sees(page, "#play", "Pause")
        await sees(page, "#rows td .outcome.bad", "NO_ROUTE")
        await page.click("#play")
        await sees(page, "#play", "Play")
        await page.click("nav >> text=Routes")
        await page.locator(".box.hub.here[data-node=hub]").wait_for()
        await page.locator(".box[data-node=truck]").wait_for(state="detached")
        await page.go_back()
        await page.locator("#topology .badge.then").wait_for()


@runs
async def test_pages_are_named_for_those_who_do_not_see_them(tmp_path: Path) -> None:
    """Landmarks, one main heading, and a name for everything that can be used."""
    nameless = """() => [...document.querySelectorAll("a, button, input, select, textarea")]
        .filter((one) => one.type !== "hidden" && !(one.getAttribute("aria-label")
            || one.textContent.trim() || one.labels?.length || one.title))
        .map((one) => one.outerHTML.slice(0, 120))"""
    twice = """() => [...document.querySelectorAll("[id]")].map((one) => one.id)
        .filter((id, at, all) => all.indexOf(id) !== at)"""
    async with (
        fleet(tmp_path) as (top, gate),
        shown(top.url, gate.url, journal=tmp_path, interval=LOOK) as console,
        browsing() as page,
    ):
        for name in VIEWS:
            await page.goto(f"http://{console.place}/{name}")
            await sees(page, "#nodes .card.here", "gateway")
            for landmark in ("header", "nav[aria-label]", "main", "h1", "#pulse[role=status]"):
                assert await page.locator(landmark).count() == 1, (name, landmark)
            assert await page.evaluate(nameless) == [], name
            assert await page.evaluate(twice) == [], name
            await page.keyboard.press("Tab")
            focused = await page.evaluate("document.activeElement.className")
            assert focused == "skip", name  # the first stop leads past the picture


CONTRAST = """() => {
    const parts = (color) => (color.match(/[\\d.]+/g) || []).map(Number);
    const light = ([red, green, blue]) => [red, green, blue].map((one) => one / 255)
        .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
        .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (element) => {
        const paper = element ? parts(getComputedStyle(element).backgroundColor) : [255, 255, 255];
        return paper.length === 4 && paper[3] === 0 ? behind(element.parentElement) : paper;
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const told = [...element.childNodes].filter((one) => one.nodeType === 3);
        const text = told.map((one) => one.data.trim()).join("");
        const box = element.getBoundingClientRect();
        if (!text || !box.width || element.closest("svg, option, select, .skip")) continue;
        const style = getComputedStyle(element);
        const [one, other] = [light(parts(style.color)), light(behind(element))];
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (ratio < 4.5) found.push(`${element.outerHTML.slice(0, 90)} ${ratio.toFixed(2)}`);
    }
    return found;
}"""
"""The texts whose contrast to what is behind them is less than 4.5 to 1."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out(tmp_path: Path, scheme: str) -> None:
    put_journal(tmp_path)
    put_messages(tmp_path)

    @runs
    async def scenario() -> None:
        async with (
            hub() as top,
            leaf("truck-7", top),
            shown(top.url, "tcp://127.0.0.1:1", journal=tmp_path, interval=LOOK) as console,
            browsing(color_scheme=scheme, reduced_motion="reduce") as page,
        ):
            for name in (*VIEWS, f"why?id={message(13)['message_id']}"):
                await page.goto(f"http://{console.place}/{name}")
                await sees(page, "#pulse", "^live$")
                assert await page.evaluate(CONTRAST) == [], name

    scenario()


GRID = (32, 20)
"""What a picture is reduced to, so that fonts make no difference."""

ALIKE = 14.0
"""How far two pictures may differ, in steps of brightness out of 255, on average."""

KNOWN = Path(__file__).parents[1] / "data/console_pictures.json"

REDUCE = """async ([data, columns, rows]) => {
    const blob = await (await fetch(data)).blob();
    const bitmap = await createImageBitmap(blob);
    const canvas = new OffscreenCanvas(columns, rows);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    let [source, width, height] = [bitmap, bitmap.width, bitmap.height];
    while (width > columns * 2 && height > rows * 2) { // by halves, so that every pixel counts
        [width, height] = [Math.ceil(width / 2), Math.ceil(height / 2)];
        const half = new OffscreenCanvas(width, height);
        half.getContext("2d").drawImage(source, 0, 0, width, height);
        source = half;
    }
    context.drawImage(source, 0, 0, columns, rows);
    const pixels = context.getImageData(0, 0, columns, rows).data;
    return Array.from({ length: columns * rows }, (_, at) =>
        Math.round((pixels[at * 4] + pixels[at * 4 + 1] + pixels[at * 4 + 2]) / 3));
}"""


async def reduced(page: Any) -> list[int]:
    """What is in view, as a small grid of brightnesses."""
    data = base64.b64encode(await page.screenshot()).decode()
    blank = await page.context.new_page()
    try:
        found: list[int] = await blank.evaluate(REDUCE, [f"data:image/png;base64,{data}", *GRID])
        return found
    finally:
        await blank.close()


def difference(one: list[int], other: list[int]) -> float:
    """How far two grids differ on average."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


PAGES = {"past": f"past?at={at(12)}&node=hub", "why": f"why?id={13:032x}"}
"""What is compared: at the end of both, the truck is gone."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("view", "size"), [("past", "screen"), ("past", "phone"), ("why", "screen")]
)
def test_a_past_moment_looks_as_it_did(tmp_path: Path, view: str, scheme: str, size: str) -> None:
    """With WAYSTATION_NEW_PICTURES set, the pictures of today become those to compare with."""
    put_journal(tmp_path)
    put_messages(tmp_path)
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    found: list[int] = []

    @runs
    async def scenario() -> None:
        viewport = SCREEN if size == "screen" else PHONE
        async with (
            hub() as top,
            shown(top.url, journal=tmp_path, interval=LOOK) as console,
            browsing(viewport=viewport, color_scheme=scheme, reduced_motion="reduce") as page,
        ):
            await page.goto(f"http://{console.place}/{PAGES[view]}")
            await page.locator(".box.node.gone[data-node=truck]").wait_for()
            await sees(page, "#pulse", "^live$")
            await page.evaluate("document.activeElement.blur()")
            found.extend(await reduced(page))

    scenario()
    name = f"{view}-{size}-{scheme}"
    if os.environ.get("WAYSTATION_NEW_PICTURES"):
        KNOWN.write_text(json.dumps({**known, name: found}, sort_keys=True) + "\n")
        return
    assert difference(found, known[name]) < ALIKE
    other = "dark" if scheme == "light" else "light"
    assert difference(found, known[f"{view}-{size}-{other}"]) > 5 * ALIKE  # it does tell


@runs
async def test_a_contested_name_leads_from_its_route_to_who_claims_it() -> None:
    async with (
        hub() as top,
        leaf("gateway", top),
        shown(top.url, interval=LOOK) as console,
        browsing() as page,
    ):
        await page.goto(f"http://{console.place}/routes")
        await sees(page, "#rows", "gateway-echo")
        async with Node("rival") as rival:
            echo(rival, "gateway-echo")
            await rival.connect(top.url, parent=True)
            await page.click("#rows .badge.contested")
            await sees(page, "main h2", "Contested names")
            await sees(page, "#rows tr", r"gateway-echo\s+gateway\s+unproven\s+\S+\s+rival")
            await sees(page, "#nodes dl", r"Contested names\s*1")
            await picture(page, "contested")
        await sees(page, "#rows", "No matches")


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
        await sees(page, ".account .summary", "delivered at gateway")
        await sees(page, ".waterfall li.reply .who", "hub")
        await sees(page, ".waterfall .badge.rule", "as the rules say")
        await page.locator(".box.lit[data-node=gateway]").wait_for()
        await page.locator(".traveller").wait_for(state="detached")
        await picture(page, "waterfall")
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
    evil, name = "<img/src=x/onerror=alert(1)>", "<img>"  # no slash is in the name of a node
    dialogs: list[object] = []
    async with (
        hub(name) as top,
        Node(name + "2") as guest,
        shown(top.url, interval=LOOK) as console,
    ):
        await guest.connect(top.url)
        top.node.put_route(RoutingEntry(evil, Address(0, b"x"), local=False))
        async with browsing() as page:
            page.on("dialog", lambda dialog: dialogs.append(dialog))  # noqa: PLW0108 - it keeps notes
            await page.goto(f"http://{console.place}/routes")
            await sees(page, "#nodes h3", name)
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
            for name in VIEWS:
                await page.goto(f"http://{console.place}/{name}")
                await sees(page, "#nodes .card.here", "gateway")
                width = await page.evaluate("document.documentElement.scrollWidth")
                assert width <= PHONE["width"], name
                current = page.locator("nav [aria-current]")
                box = await current.bounding_box()
                assert box["x"] >= 0, name  # the row of views scrolls to the one that is shown
                assert box["x"] + box["width"] <= PHONE["width"], name
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
