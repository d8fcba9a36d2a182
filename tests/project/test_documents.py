"""The documents tell the truth: their code runs, their links lead somewhere, their files exist."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import waystation

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(waystation.__path__, "waystation.")
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_code_block_runs(path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{name_of(path)}, block {number}", "exec"), names)  # noqa: S102


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_link_leads_to_a_file(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{name_of(path)} links to {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []


@pytest.mark.parametrize("module", ["waystation", *MODULES])
def test_every_example_in_a_docstring_runs(module: str) -> None:
    result = doctest.testmod(
        importlib.import_module(module),
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
        raise_on_error=False,
    )
    assert result.failed == 0


@pytest.mark.parametrize("path", [*DOCUMENTS, *(ROOT / "src").rglob("*.py")], ids=name_of)
def test_the_project_stands_alone(path: Path) -> None:
    """No path of somebody's machine, no address of a registry."""
    text = path.read_text("utf-8")
    for foreign in ("/home/", "/root/", "/work/", "pypi.org", "npmjs", "repo1.maven", "crates.io"):
        assert foreign not in text, f"{name_of(path)} mentions {foreign}"
