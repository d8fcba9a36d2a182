"""Each row of the page about hostile peers names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from waystation.testing import LISTENER_CHECKS

pytestmark = pytest.mark.xdist_group("hostile peers page")  # reads all tests, once

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/explanation/hostile-peers.md"
HEAD = ("what the peer does", "what happens", "test")


def rows() -> list[tuple[str, ...]]:
    """The cells of each row, without heads and the lines below them."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in cells if row != HEAD and set(row) != {"---"}]


@cache
def existing() -> set[str]:
    """The names of all tests."""
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def named(row: tuple[str, ...]) -> list[str]:
    return re.findall(r"`([^`]+)`", row[2])


def is_there(name: str) -> bool:
    """`…-` stands for the name before it; what follows is the check of a listener."""
    test, _, check = name.partition("…-")
    if check and check.rstrip("]") not in LISTENER_CHECKS:
        return False
    return test == "" or test.rstrip("[") in existing()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_row_names_tests_that_exist(row: tuple[str, ...]) -> None:
    assert len(row) == len(HEAD)
    assert named(row)
    assert [name for name in named(row) if not is_there(name)] == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert not is_there("test_nothing_of_the_kind")
    assert not is_there("…-survives everything")


def test_no_row_is_there_twice() -> None:
    does = [row[:2] for row in rows()]
    assert len(does) == len(set(does)) > 0
