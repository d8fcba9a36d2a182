"""The pages of the console, with live nodes behind them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.console.live import hub, leaf, pretending, shown
from waystation import __version__
from waystation.console import pages as module
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry
from waystation.node import Node, keyfile
from waystation.node.links import CAPABILITIES
from waystation.testing import DEADLINE, Recorder, async_test, echo, until

EVIL = "<script>alert(1)&\"'"


def card_states(text: str) -> list[str]:
    return re.findall(r'<li class="card (\w+)" data-key', text)


@async_test
async def test_a_fleet_is_shown_with_its_connections() -> None:
    async with hub() as top, leaf("truck", top) as truck, shown(top.url, truck.url) as browser:
        text = await browser.until(
            "/connections", lambda text: card_states(text) == ["here", "here"]
        )
        assert 'data-node="hub"' in text
        assert 'data-node="truck"' in text
        assert 'data-left="hub" data-right="truck"' in text
        rows = await browser.get("/connections?node=" + truck.url, X_Fragment="rows")
        assert rows.text.count("<tr>") == 2  # the head and the hub
        assert "1 internal not shown" in rows.text
        everything = f"/connections?internals=yes&node={truck.url}"
        rows = await browser.get(everything, X_Fragment="rows")
        assert rows.text.count("<tr>") == 3  # and the console
        assert "parent" in rows.text
        assert rows.text.count(f">{__version__}</td>") == 2
        assert f'title="{", ".join(CAPABILITIES)}"' in rows.text
        found = await browser.get(f"/connections?node={top.url}&find=tru", X_Fragment="rows")
        assert "1 of 1 matching; 2 in total" in " ".join(found.text.split())
        first = await browser.get("/")
        assert (first.status, first.headers["location"]) == (303, "/connections")


@pytest.mark.rule("ID-2")
@async_test
async def test_proven_and_unproven_names_are_told_apart(tmp_path: Path) -> None:
    key, journal = keyfile.create(tmp_path / "key"), tmp_path / "J"
    async with (
        hub(journal=journal, identity=keyfile.create(tmp_path / "hub")) as top,
        leaf("truck", top, identity=key) as truck,
        leaf("car", top) as car,
        shown(top.url, journal=journal) as browser,
    ):
        ids = []
        for each in (truck, car):
            heard = Recorder(each.node)
            await each.node.request("echo", b"hello")
            ids.append(heard.messages[0].arrival.message.id)
            heard.stop()
        rows = await browser.until(
            f"/connections?node={top.url}",
            lambda text: text.count("proven</span>") == 2,
            X_Fragment="rows",
        )
        assert f'title="{key.identifier}">proven</span>' in rows
        assert 'title="it claims this name without proof">unproven</span>' in rows
        drawn = await browser.get("/connections")
        assert f"truck, here, proven to be {key.identifier}</title>" in drawn.text
        assert "car, here, its name is not proven</title>" in drawn.text
        told = await browser.until(f"/why?id={ids[0]}", lambda text: "sent by" in text)
        assert f"<code>{key.identifier}</code>" in told
        told = await browser.until(f"/why?id={ids[1]}", lambda text: "received" in text)
        assert "sent by" not in told


PROVEN = '<span class="badge proven" title="it has proven who it is">proven</span>'
UNPROVEN = '<span class="badge unproven" title="it claims this name without proof">unproven</span>'


@pytest.mark.rule("ID-2")
@async_test
async def test_names_are_proven_or_not_on_the_pages_of_routes_contests_and_the_past(
    tmp_path: Path,
) -> None:
    key, journal = keyfile.create(tmp_path / "key"), tmp_path / "J"

    async with (
        hub(journal=journal, identity=keyfile.create(tmp_path / "hub")) as top,
        leaf("truck", top, identity=key) as truck,
        leaf("car", top) as car,
        shown(top.url, journal=journal) as browser,
    ):
        echo(truck.node, "of-truck")
        echo(car.node, "of-car")
        echo(truck.node, "of-both")
        await until(lambda: top.node.router.table.lookup("of-both", top.node.now()))
        echo(car.node, "of-both")
        await until(lambda: "of-both" in top.node.contested)
        routes = await browser.until(
            f"/routes?node={top.url}&find=of-",
            lambda text: all(name in text for name in ("of-car", "of-truck", "of-both")),
            X_Fragment="rows",
        )
        assert f"<td>of-truck {PROVEN}" in routes
        assert f"<td>of-car {UNPROVEN}" in routes
        contests = await browser.until(
            f"/contested?node={top.url}", lambda text: "of-both" in text, X_Fragment="rows"
        )
        assert f"<td>truck {PROVEN}</td>" in contests
        assert f"<td>car {UNPROVEN}</td>" in contests
        later = top.node.now() * 1000 + 60_000_000
        past = await browser.until(
            f"/past?at={later}&node=hub&find=of-",
            lambda text: "<td>of-both" in text,
            X_Fragment="rows",
        )
        assert f"<td>of-truck {PROVEN}</td>" in past
        assert f"<td>of-car {UNPROVEN}</td>" in past
        assert f"<td>of-both {PROVEN}</td>" in past
        own = await browser.get("/routes?find=echo", X_Fragment="rows")
        assert "<td>echo</td>" in own.text  # nobody claims what a node has itself


@async_test
async def test_a_large_table_is_searched_and_paged_at_the_node() -> None:
    async with hub() as top, shown(top.url) as browser:
        address = Address(1, b"10.0.0.7:4000")
        for number in range(100_000):
            top.node.put_route(RoutingEntry(f"truck-{number}", address, local=False))
        await browser.until("/routes", lambda text: card_states(text) == ["here"])

        page = await browser.get(f"/routes?node={top.url}&page=3", X_Fragment="rows")
        names = re.findall(r"<td>(truck-\d+)</td>", page.text)
        assert len(names) == 50
        assert "page 3 of 2,001" in page.text
        assert len(page.text) < 100_000
        assert "data-live" not in page.text  # such a large table is not refreshed
        found = await browser.get("/routes?find=-4242", X_Fragment="rows")
        assert re.findall(r"<td>(truck-\d+)</td>", found.text)[:2] == ["truck-4242", "truck-42420"]
        assert "11 of 11 matching" in " ".join(found.text.split())
        exact = await browser.get(f"/routes?node={top.url}&find=truck-99*", X_Fragment="rows")
        assert "50 of 1,111 matching" in " ".join(exact.text.split())
        beyond = await browser.get(f"/routes?node={top.url}&page=999999999999", X_Fragment="rows")
        assert beyond.status == 200


@async_test
async def test_a_table_too_large_to_search_requires_the_full_name() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waystation.node.status.LARGE_TABLE", 3)
        async with hub() as top, shown(top.url) as browser:
            for name in ("a", "b", "c"):
                echo(top.node, name)
            await browser.until("/routes", lambda text: card_states(text) == ["here"])
            everything = await browser.get("/routes", X_Fragment="rows")
            assert "too many to search" in everything.text
            found = await browser.get("/routes?find=b", X_Fragment="rows")
            assert "<td>b</td>" in found.text


@async_test
async def test_routes_over_a_session_and_subscriptions_are_found() -> None:
    async with hub() as top, leaf("truck", top) as truck, shown(top.url, truck.url) as browser:
        truck.node.subscribe("garage", "temperature", "eu/+")
        await until(lambda: len(top.node.router.subscriptions) == 1)
        await browser.until("/", lambda _: True)
        rows = await browser.until(
            f"/connections?node={top.url}", lambda text: "over=0%23" in text, X_Fragment="rows"
        )
        over = re.search(r'href="(/routes[^"]*over=0%23[^"]*)"', rows)
        assert over
        routes = await browser.get(over[1].replace("&amp;", "&"), X_Fragment="rows")
        assert f"<td>truck-echo {UNPROVEN}</td>" in routes.text
        assert "<td>echo</td>" not in routes.text
        subscriptions = await browser.get("/subscriptions?find=temp*eu", X_Fragment="rows")
        assert "No matches" in subscriptions.text
        subscriptions = await browser.get("/subscriptions?find=temp", X_Fragment="rows")
        assert subscriptions.text.count("garage/temperature/eu/+") == 2  # at the leaf and the hub


@async_test
async def test_names_from_peers_are_escaped() -> None:
    async with hub(EVIL) as top, Node(EVIL + "2") as guest, shown(top.url) as browser:
        await guest.connect(top.url)
        top.node.put_route(RoutingEntry(EVIL, Address(0, b"<b>"), local=False))
        await browser.until("/connections", lambda text: "&#34;&#39;2" in text)
        for path in ("/connections", "/routes", f"/routes?find={EVIL[:8]}", "/send", "/why?id=<b>"):
            page = await browser.get(path)
            assert "<script>alert" not in page.text
            assert "<b>" not in re.sub(r"<b>[\w ,./]+</b>", "", page.text)


@async_test
async def test_a_node_that_goes_away_is_shown_as_away_and_comes_back_by_itself() -> None:
    async with hub("stays") as stays:
        async with hub("goes") as goes:
            url = goes.url
            context = shown(stays.url, url)
            browser = await context.__aenter__()
            await browser.until("/routes", lambda text: card_states(text) == ["here", "here"])
        text = await browser.until("/routes", lambda text: card_states(text) == ["here", "away"])
        assert "goes" in text  # its last status is still shown
        assert "is away" in (await browser.get("/routes", X_Fragment="rows")).text
        async with hub("goes", url):
            await browser.until("/routes", lambda text: card_states(text) == ["here", "here"])
            await context.__aexit__(None, None, None)


@async_test
async def test_an_unreachable_node_and_a_silent_node_are_distinguished() -> None:
    async with Node("mute") as mute:
        listener = await mute.listen("tcp://127.0.0.1:0")
        async with Node("gone") as gone:
            nobody = (await gone.listen("tcp://127.0.0.1:0")).url
        async with shown(listener.url, nobody) as browser:
            text = await browser.until(
                "/connections", lambda text: card_states(text) == ["silent", "away"]
            )
            assert "[status] enabled = true" in text
            assert "NO_ROUTE" in text


@async_test
async def test_events_report_changes_of_the_fleet() -> None:
    async with hub() as top, shown(top.url) as browser, browser.events() as events:
        seen = 0
        async for name, data in events:
            assert name == "fleet"
            if "a-guest" in data["html"]:
                break
            if card_states(data["html"]) == ["here"] and not seen:
                seen = 1
                guest = Node("a-guest")
                await guest.connect(top.url)
        await guest.close()


@async_test
async def test_too_many_open_pages_are_refused() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MAX_STREAMS", 1)
        async with hub() as top, shown(top.url) as browser:
            async with browser.events() as events:
                await anext(events)
                assert (await browser.get("/events")).status == 503
            await browser.until("/", lambda _: True)


@async_test
async def test_an_open_stream_does_not_delay_the_shutdown() -> None:
    async with hub() as top:
        context = shown(top.url)
        browser = await context.__aenter__()
        async with browser.events() as events:
            await anext(events)
            async with asyncio.timeout(DEADLINE):
                await context.__aexit__(None, None, None)
                assert [name async for name, _ in events if name != "fleet"] == []


@async_test
async def test_a_console_with_a_token_requires_it() -> None:
    token = "a-token-of-many-letters"  # noqa: S105
    async with hub() as top, shown(top.url, token=token) as browser:
        page = await browser.get("/routes")
        assert (page.status, page.headers["location"]) == (303, "/login")
        assert "token" in (await browser.get("/login")).text
        wrong = await browser.post("/login", {"token": "another"})
        assert wrong.status == 403
        assert "Wrong token" in wrong.text
        assert (await browser.get("/login?token=another")).status == 403
        assert (await browser.post("/login", "%ff&&&=&")).status == 403
        for admitted in (
            await browser.post("/login", {"token": token}),
            await browser.get(f"/login?token={token}"),
        ):
            assert admitted.status == 303
            cookie = admitted.headers["set-cookie"].partition(";")[0]
            assert (await browser.get("/routes", Cookie=cookie)).status == 200


@async_test
async def test_the_page_and_everything_it_loads_exist() -> None:
    async with hub() as top, shown(top.url) as browser:
        page = await browser.get("/connections")
        for path in set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)):
            assert (await browser.get(path)).status == 200
        assert "http://" not in re.sub(r'value="[^"]*"', "", page.text).replace("tcp://", "")
        assert " style=" not in page.text  # the policy would not allow it
        assert (await browser.get("/login")).status == 303  # nothing to log in to
        assert (await browser.get("/nowhere")).status == 404
        assert (await browser.get("/static/../pages.py")).status == 404


@async_test
async def test_routes_lead_to_names_and_those_of_nodes_are_behind_a_switch() -> None:
    async with hub() as top, leaf("truck", top), shown(top.url) as browser:
        plain = await browser.until("/routes", lambda text: "truck-echo" in text)
        leads = rf"<td>truck-echo {UNPROVEN}</td>\s*<td><span title=\"0#tcp-\S+\">truck</span>"
        assert re.search(leads, plain)
        assert "waystation.status" not in plain
        assert "internal not shown" in plain
        assert "waystation.status" in (await browser.get("/routes?internals=yes")).text


@async_test
async def test_a_peer_that_dies_is_shown_as_gone_until_it_comes_back() -> None:
    async with hub() as top, shown(top.url) as browser:
        async with leaf("truck", top):
            await browser.until("/routes", lambda text: 'class="box peer here"' in text)
        text = await browser.until("/routes", lambda text: 'class="box peer gone"' in text)
        assert "1 in trouble" in text
        async with leaf("truck", top):
            await browser.until("/routes", lambda text: "in trouble" not in text)


@async_test
async def test_leaves_are_unfolded_on_request_and_those_on_a_path_are_shown() -> None:
    leaves = [f"leaf-{number:03}" for number in range(72)]
    async with pretending("hub", leaves) as top, shown(top.url) as browser:
        text = await browser.until("/routes", lambda text: "72 leaves" in text)
        assert 'aria-expanded="false"' in text
        assert "leaf-005" not in text
        async with browser.events("?show=leaf-005") as events:
            async for name, data in events:
                if name == "fleet" and 'data-node="leaf-005"' in data["html"]:
                    assert "71 leaves" in data["html"]
                    break
        text = (await browser.get("/routes?unfold=hub")).text
        assert 'aria-expanded="true"' in text
        assert text.count('class="box leaf here"') == 72
