"""Each line of SECURITY.md names tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.project.test_hostile_peers_page import ROOT, existing

pytestmark = pytest.mark.xdist_group("hostile peers page")  # reads all tests, once

LINES = [
    line
    for line in (ROOT / "SECURITY.md").read_text("utf-8").splitlines()
    if line.startswith("|") and not line.startswith("|---") and not line.endswith("| test |")
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip())
def test_every_line_names_tests_that_exist(line: str) -> None:
    named = re.findall(r"`(test_\w+)`", line.split("|")[3])
    assert named
    assert [name for name in named if name not in existing()] == []
