"""The documents tell the truth: their code runs, their links lead somewhere, their files exist."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import waystation
from tests.project.transcripts import Desk, steps_of
from waystation.config.reader import read_settings
from waystation.gossip_router import Admission
from waystation.whatif.changes import parse_changes

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(waystation.__path__, "waystation.")
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(path: Path, language: str) -> list[str]:
    block = rf"^```{language}\n(.*?)^```"
    return re.findall(block, path.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_code_block_runs(path: Path) -> None:
    names: dict[str, object] = {}
    for number, block in enumerate(blocks_of(path, "python"), 1):
        exec(compile(block, f"{name_of(path)}, block {number}", "exec"), names)  # noqa: S102


PLAYED = [path for path in DOCUMENTS if "\n```console" in path.read_text("utf-8")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PLAYED, ids=name_of)
def test_every_terminal_session_goes_as_it_is_written(path: Path, tmp_path: Path) -> None:
    page = path.read_text("utf-8")
    desk = Desk(tmp_path, page)
    try:
        for step in steps_of(page):
            desk.play(step)
    finally:
        desk.end()


CONFIGURED = [path for path in DOCUMENTS if "\n```toml" in path.read_text("utf-8")]


@pytest.mark.parametrize("path", CONFIGURED, ids=name_of)
def test_every_configuration_has_only_keys_that_there_are(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    for block in blocks_of(path, "toml"):
        whole = "[node]" in block or "[groups." in block
        file.write_text(block if whole else f'[node]\nname = "n"\n{block}', "utf-8")
        if "[groups." in block:  # who may use which group of a router
            Admission.load(file)
        elif "[[without]]" in block:  # a changed past
            parse_changes(block)
        else:
            _, problems = read_settings(file)
            assert problems.found == []


def anchors_of(page: str) -> set[str]:
    """The headings of a page, as links name them."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(path: Path) -> None:
    page = path.read_text("utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page):
        if "://" in target:
            continue
        aim = path.parent / target if target else path
        assert aim.exists(), f"{name_of(path)} links to {target}"
        if anchor and aim.suffix == ".md":
            there = anchors_of(aim.read_text("utf-8"))
            assert anchor in there, f"{name_of(path)} links to {target}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")
    index += (ROOT / "docs/reference/api.md").read_text("utf-8").replace("(api/", "(reference/api/")
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
