"""The fuzz targets hold for their corpora and for what is near; `make fuzz` looks further."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from waystation.testing.fuzzing import __main__ as program
from waystation.testing.fuzzing.targets import TARGETS, Target, run

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/testing/corpus"
SLOW = frozenset({"session"})


@pytest.fixture(autouse=True)
def _quietly() -> None:
    logging.getLogger("waystation").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_of_a_target_is_there_and_holds(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    for path in files:
        run(TARGETS[name], path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_near_the_corpus_holds(name: str) -> None:
    chance = random.Random(name)
    corpus = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    for _ in range(5 if name in SLOW else 300):
        run(TARGETS[name], changed(chance.choice(corpus), chance))


def changed(data: bytes, chance: random.Random) -> bytes:
    """Bytes with a few changes: flipped, cut, repeated, replaced."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(found) + 1)
        found[place : place + chance.randint(0, 3)] = chance.choice(
            (b"", chance.randbytes(1), b"\xff\xff\xff\xff", bytes(found[place : place + 8]) * 2)
        )
    return bytes(found)


def test_what_nobody_may_raise_is_a_finding() -> None:
    def fail(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        run(Target(fail, ()), b"x")


def test_a_mistake_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["nothing"])
    assert "unknown target 'nothing'; give one of ockam" in capsys.readouterr().err


def test_bytes_that_were_kept_can_be_tried_again(tmp_path: Path) -> None:
    kept = tmp_path / "found"
    kept.write_bytes(b"\x01\x02")
    assert program.main(["smrf", "--again", str(kept)]) == 0


@pytest.mark.fault
@pytest.mark.timeout(3600)
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed: make fuzz")
@pytest.mark.parametrize("name", TARGETS)
def test_a_minute_of_fuzzing_finds_nothing(name: str, tmp_path: Path) -> None:
    corpus = tmp_path / name
    corpus.mkdir()
    for path in (CORPUS / name).iterdir():
        (corpus / path.name).write_bytes(path.read_bytes())
    command = ["-m", "waystation.testing.fuzzing", name, "--seconds", "60", "--corpus"]
    done = subprocess.run(
        [sys.executable, *command, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
