"""The page that walks messages through the code names what is there, in ten names or fewer."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/explanation/a-messages-way.md"
SOURCE = ROOT / "src/waystation"
STEP = re.compile(r"^(\d+)\. `([\w/]+\.py)` `([\w.]+)`: ", re.MULTILINE)
MOST_NAMES = 10


def walks() -> list[tuple[str, list[tuple[int, str, str]]]]:
    """The steps of each walk: number, file and name."""
    found = []
    for chapter in PAGE.read_text("utf-8").split("\n## ")[1:]:
        steps = [(int(number), file, name) for number, file, name in STEP.findall(chapter)]
        if steps:
            found.append((chapter.partition("\n")[0], steps))
    return found


STEPS = [(file, name) for _, steps in walks() for _, file, name in steps]


@cache
def names_in(file: str) -> set[str]:
    """The functions and classes of a file, by their qualified names."""

    def below(node: ast.AST, outer: str) -> set[str]:
        names = set()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names |= {outer + child.name} | below(child, f"{outer}{child.name}.")
        return names

    return below(ast.parse((SOURCE / file).read_text("utf-8")), "")


@pytest.mark.parametrize(("file", "name"), STEPS, ids=lambda part: part)
def test_every_file_and_name_of_a_walk_exists(file: str, name: str) -> None:
    assert name in names_in(file)


def test_there_are_six_walks_of_ten_names_at_most() -> None:
    assert len(walks()) == 6
    for title, steps in walks():
        numbers = [number for number, _, _ in steps]
        assert max(numbers) <= MOST_NAMES, title
        assert numbers[: max(numbers)] == list(range(1, max(numbers) + 1)), title


def test_every_file_and_every_name_in_its_text_exists() -> None:
    text = PAGE.read_text("utf-8")
    for file in re.findall(r"`([\w/]+\.py)`", text):
        assert (SOURCE / file).is_file(), file
    for folder in re.findall(r"`(\w+/)`", text):
        assert (SOURCE / folder).is_dir(), folder
    everywhere = {name for path in SOURCE.rglob("*.py") for name in names_in(str(path))}
    for name in re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", text):
        assert name in everywhere, name
