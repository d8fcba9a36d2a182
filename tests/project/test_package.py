"""The package: light to import, whole when built, layered as the architecture says."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import waystation

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = (
    *(".css", ".html", ".js", ".json", ".properties", ".py", ".svg", ".toml", ".typed"),
    *(".png", ".woff2"),
)
"""What a package is made of: code, data, and what pages in a browser need."""


def test_importing_waystation_stays_light() -> None:
    code = "import waystation, sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"asyncio", "click", "pyspark", "pyarrow", "pandas", "mqtt5", "starlette", "uvicorn"}
    assert heavy.isdisjoint(loaded)


def test_every_exported_name_is_there() -> None:
    for name in waystation.__all__:
        assert getattr(waystation, name) is not None


def test_the_layers_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_a_wheel_holds_the_package_and_its_data(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"waystation-{waystation.__version__}-")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src/waystation"
    there = {path for path in package.rglob("*") if path.suffix in PACKAGED and path.is_file()}
    assert package / "py.typed" in there
    assert {path.relative_to(package.parent).as_posix() for path in there} <= names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_a_source_distribution_can_be_built_from_and_tested(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as contents:
        names = {name.partition("/")[2] for name in contents.getnames()}
    assert {
        *("LICENSE", "Makefile", "PACKAGE.md", "README.md", "pyproject.toml", "requirements.lock"),
        *("docs/index.md", "src/waystation/py.typed", "tests/conftest.py"),
    } <= names
    assert not any(name.startswith((".venv", ".ci", "site/", "mutants/")) for name in names)


def test_what_an_index_shows_links_to_no_file() -> None:
    text = (ROOT / "PACKAGE.md").read_text("utf-8")
    assert re.findall(r"\]\((?!https?://)", text) == []
    assert [word for word in re.findall(r"https?://\S+", text) if "127.0.0.1" not in word] == []


def test_every_extra_that_a_message_names_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]:
        for extra in re.findall(r"waystation\[([\w,]+)\]", path.read_text("utf-8")):
            assert set(extra.split(",")) <= set(project["optional-dependencies"]), path
