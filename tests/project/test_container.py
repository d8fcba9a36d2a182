"""The images of the Dockerfile: what they run exists, and they are built as images should be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from waystation.cli import waystation

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
STAGE = re.compile(r"^FROM (\S+) AS (\w+)\n(.*?)(?=^FROM |\Z)", re.MULTILINE | re.DOTALL)
STAGES = {match[2]: (match[1], match[3]) for match in STAGE.finditer(TEXT)}
IMAGES = ("router", "node")
LINTER = Path(sys.executable).with_name("hadolint")


def values(image: str, word: str) -> list[str]:
    """What an instruction says, in an image and in what it is built on."""
    base, text = STAGES[image]
    found = re.findall(rf"^{word} +(.*)$", text, re.MULTILINE)
    return (values(base, word) if base in STAGES else []) + found


def variables(image: str) -> dict[str, str]:
    pairs = " ".join(values(image, "ENV")).split()
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.skipif(not LINTER.exists(), reason="hadolint has no package for this platform")
def test_the_linter_finds_nothing() -> None:
    result = subprocess.run(
        [LINTER, ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "")


def test_every_base_has_a_version_of_its_own() -> None:
    bases = {base for base, _ in STAGES.values()} - set(STAGES)
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+", base) for base in bases)


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_without_root_and_says_how_it_is(image: str) -> None:
    assert values(image, "USER")[-1] == "10001:10001"
    [check] = values(image, "HEALTHCHECK")
    assert "CMD [" in check


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_a_command_with_variables_that_it_reads(image: str) -> None:
    assert json.loads(values(image, "ENTRYPOINT")[-1]) == ["waystation"]
    [name] = json.loads(values(image, "CMD")[-1])
    assert name == image
    command = waystation.get_command(click.Context(waystation), name)
    assert command is not None
    options = {parameter.name for parameter in command.params}
    set_here = {key for key in variables(image) if key.startswith("WAYSTATION_")}
    assert {key.removeprefix("WAYSTATION_").lower() for key in set_here} <= options
    required = {parameter.name for parameter in command.params if parameter.required}
    assert {f"WAYSTATION_{str(option).upper()}" for option in required} <= set_here


def test_the_extras_of_the_images_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [extras] = re.findall(r'"\.\[([\w,]+)\]"', TEXT)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_what_the_images_are_built_from_is_not_ignored() -> None:
    kept = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    copied = re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE)
    sources = {source for line in copied for source in line.split()[:-1]}
    assert sources == kept
    assert all((ROOT / source).exists() for source in sources)
