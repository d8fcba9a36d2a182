"""The page about upgrades names all that versions differ in."""

from __future__ import annotations

from pathlib import Path

import pytest

from waystation.node.links import CAPABILITIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/upgrade.md").read_text("utf-8")


@pytest.mark.rule("UP-4")
def test_the_page_has_a_row_for_everything_that_a_node_can_do() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert set(CAPABILITIES) <= {row.split("`")[1] for row in rows}


@pytest.mark.rule("UP-4")
def test_the_page_states_the_order_and_the_way_back() -> None:
    order = [PAGE.index(f"{number}. **{what}**") for number, what in enumerate(ORDER, 1)]
    assert order == sorted(order)
    assert "\n## The way back\n" in PAGE


ORDER = ("The pipeline and the tools", "Hubs", "Leaves")
