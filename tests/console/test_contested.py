"""Contested names on the pages: who has them, who stands by, and for how long."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.console.live import hub, shown
from waystation.core.address import Address
from waystation.core.claims import Claim, Claims
from waystation.core.damping import Damping
from waystation.core.routing import RoutingEntry
from waystation.node import Node
from waystation.node.contested import ContestedNames
from waystation.testing import async_test

EVIL = "<b>truck</b>"


@pytest.fixture
def contested(monkeypatch: pytest.MonkeyPatch) -> Iterator[ContestedNames]:
    """Every node has sixty names that several owners claim, and one with a wicked name."""
    claims = Claims("hub")
    names = ContestedNames(claims, Damping())
    for name in [EVIL, *(f"truck-{number}" for number in range(60))]:
        for node in ("a", EVIL, "c", "d", "e", "f", "g"):
            session = f"tcp-{node}".encode()
            change = claims.announce(Claim(name, session, node, node, 1, (node,)), 5)
            assert change is not None
            names.note(change, 5)
    monkeypatch.setattr(Node, "contested", names)
    return iter([names])


def cells(text: str) -> list[list[str]]:
    rows = re.findall("<tr>\n(.*?)</tr>", text, re.DOTALL)
    return [re.findall(r"<td[^>]*>(?:<[^>]+>)*([^<]*)", row) for row in rows]


@pytest.mark.rule("CL-4")
@pytest.mark.usefixtures("contested")
@async_test
async def test_contested_names_are_listed_with_holder_and_standbys() -> None:
    async with hub() as top, shown(top.url) as browser:
        await browser.until("/contested", lambda text: ">61</a>" in text)  # on the node's card
        page = await browser.get("/contested?find=truck-7*", X_Fragment="rows")
        [row] = cells(page.text)
        assert row[:4] == [
            "truck-7",
            "a",
            "tcp-a",
            "&lt;b&gt;truck&lt;/b&gt;, c, d, e, f and 1 more",
        ]
        assert "1 of 1 matching; 61 in total" in " ".join(page.text.split())
        assert (
            "427 claims, 366 standing by; 0 names held back; 0 claims refused; 0 of 0 probes"
            in (page.text)
        )
        second = await browser.get(f"/contested?node={top.url}&page=2", X_Fragment="rows")
        assert (len(cells(second.text)), "page 2 of 2" in second.text) == (11, True)
        assert EVIL not in second.text
        by_node = await browser.get("/contested?find=g", X_Fragment="rows")
        assert len(cells(by_node.text)) == 20  # the first few, of every name that g stands by for


@pytest.mark.usefixtures("contested")
@async_test
async def test_a_contested_route_is_marked_and_leads_to_who_claims_it() -> None:
    async with hub() as top, shown(top.url) as browser:
        for name in ("truck-7", "truck-x"):
            top.node.put_route(RoutingEntry(name, Address(1, b"a:1"), local=False))
        await browser.until("/routes", lambda text: 'class="card here"' in text)
        page = await browser.get("/routes?find=truck-", X_Fragment="rows")
        assert page.text.count('class="badge contested"') == 1
        assert re.search(r'class="badge contested" href="/contested\?[^"]*find=truck-7"', page.text)


@async_test
async def test_without_contests_the_page_says_so_and_the_card_says_nothing() -> None:
    async with hub() as top, shown(top.url) as browser:
        text = await browser.until("/contested", lambda text: 'class="card here"' in text)
        assert "None." in text
        assert "Contested names</dt>" not in text
