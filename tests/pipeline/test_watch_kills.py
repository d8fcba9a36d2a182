"""The process that keeps tables up to date is killed at random; nothing is lost or duplicated."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.journals import busy, journal_of, write
from tests.pipeline.watched import assert_up_to_date, table_in
from waystation.demo.processes import WAYSTATION
from waystation.pipeline.tables import WATCHED

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
CHILD = (sys.executable, "-m", "tests.pipeline.watch_child")


def journal_in(place: Path, nodes: int) -> Path:
    rows = journal_of([busy(900 + number, 50) for number in range(nodes)])
    return write(place / "journal", rows, chunk=25)


def check_whole(out: Path) -> None:
    """Every existing table can be read, and belongs to one batch."""
    for table in WATCHED:
        if (out / table).exists():
            table_in(out, table)


def killed(command: tuple[str, ...], until: float) -> bool:
    """Run and kill after this many seconds of work; returns whether it had finished."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(until)
        os.killpg(process.pid, signal.SIGKILL)
        return process.stdout.read() == "done\n"


def check_kills(place: Path, kills: int, nodes: int, longest: float) -> None:
    rng = random.Random(kills)
    journal = journal_in(place, nodes)
    command = (*CHILD, str(journal), str(place), "7")
    done = [killed(command, rng.uniform(0, longest)) for _ in range(kills)]
    check_whole(place / "tables")
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert_up_to_date(place / "tables", journal)
    assert len(done) == kills


@pytest.mark.rule("SP-3")
def test_kills_at_random_moments_neither_lose_nor_duplicate_rows(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=3, nodes=4, longest=0.6)


@pytest.mark.fault
def test_many_kills_neither_lose_nor_duplicate_rows(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=30, nodes=12, longest=1.5)


@pytest.mark.fault
def test_a_killed_driver_continues_from_its_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(5)
    journal = journal_in(tmp_path, 12)
    out, checkpoint = tmp_path / "tables", tmp_path / "checkpoint"
    options = ("--out", out, "--checkpoint", checkpoint, "--files", 9, "--once", "--json")
    command = (*WAYSTATION, "pipeline", "watch", "--journal", journal, *options)
    for _ in range(5):
        process = subprocess.Popen(
            [*map(str, command)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        with process:
            assert process.stdout is not None
            process.stdout.readline()  # a batch is done, and the next one has started
            time.sleep(rng.uniform(0, 2))
            os.killpg(process.pid, signal.SIGKILL)
    check_whole(out)
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    assert_up_to_date(out, journal)
