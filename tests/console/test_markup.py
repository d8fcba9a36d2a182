"""The names by which the style sheet, the script and the tests in a browser find parts of a page.

A selector with a name that no page has finds nothing, and nothing complains: here somebody does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.console.live import hub, shown
from waystation.console import pages
from waystation.console.fleet import State
from waystation.testing import async_test

CONSOLE = Path(pages.__file__).parent
STYLE = (CONSOLE / "static" / "console.css").read_text("utf-8")
SCRIPT = (CONSOLE / "static" / "console.js").read_text("utf-8")
IN_A_BROWSER = (Path(__file__).parents[1] / "peers/test_console_in_chromium.py").read_text("utf-8")

OF_BOXES_AND_LINES = {
    "hub",
    "node",
    "peer",
    "server",
    "leaf",
    "fold",
    "open",
    "slow",
    "gone",
    "trouble",
    "left",
    "right",
    *(f"w{weight}" for weight in range(5)),
    *State,
}
"""Classes that topology.py and layout.py give to what is drawn."""

HEADINGS = {
    "connections": "Connections",
    "routes": "Routing table",
    "subscriptions": "Subscriptions",
    "contested": "Contested names",
    "incidents": "Incidents",
    "past": "The past",
    "why": "Explain a message",
    "send": "Send a message",
}


def given() -> set[str]:
    """The classes and ids of all elements that the templates, the layout and the script make."""
    found = " ".join(file.read_text("utf-8") for file in (CONSOLE / "templates").iterdir())
    texts = re.findall(r'(?:class|id)="((?:[^"{]|{{.*?}})*)"', found)
    texts += re.findall(r'(?:toggle|add|setPulse)\("(\w+)"', SCRIPT)
    texts += re.findall(r'setAttribute\("class", "(\w+)"', SCRIPT)
    texts += re.findall(r"OWN = \[(.*?)\]", SCRIPT)
    return OF_BOXES_AND_LINES | set(re.findall(r"[\w-]+", " ".join(texts)))


def named(selectors: list[str]) -> set[str]:
    """The classes and ids in selectors."""
    return set(re.findall(r"[.#]([a-z][\w-]*)", " ".join(selectors)))


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        pytest.param(re.sub(r"/\*.*?\*/", "", STYLE), r"(?:^|[{}])([^{};]+){", id="style sheet"),
        pytest.param(SCRIPT, r'(?:All|Selector|closest|matches)\("([^"]+)"', id="script"),
        pytest.param(
            IN_A_BROWSER,
            r'(?:locator|click|fill|check|option|value|sees)\((?:page, )?"([^"]+)"',
            id="tests in a browser",
        ),
    ],
)
def test_what_a_selector_looks_for_is_on_a_page(text: str, selector: str) -> None:
    names = named(re.findall(selector, text, re.MULTILINE))
    assert names
    assert names <= given()


@async_test
async def test_each_view_has_its_heading() -> None:
    async with hub() as top, shown(top.url) as browser:
        for view, heading in HEADINGS.items():
            page = await browser.get(f"/{view}", X_Fragment="view")
            assert re.findall("<h2>(.*)</h2>", page.text) == [heading]
