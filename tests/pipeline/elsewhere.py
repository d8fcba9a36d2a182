"""Helpers for tests with Spark in other processes: a Python without this package, and the commands.

Executors that had the package anyway would prove nothing about shipping it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow.parquet as pq

from tests.pipeline.frames import assert_same
from waystation import pipeline
from waystation.pipeline.shipping import NEEDED
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import write_fleet

NEEDED_BY_PANDAS = ("dateutil", "python_dateutil", "pytz", "six", "tzdata")
WAIT_SECONDS = 900.0


def bare_python(directory: Path, *, without: Collection[str] = ()) -> Path:
    """A Python executable that sees only the packages that executors need.

    Without `site`, no .pth file leads to the sources of an editable install.
    """
    kept = tuple(name for name in (*NEEDED, *NEEDED_BY_PANDAS) if name not in without)
    directory.mkdir(parents=True)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name.startswith(kept):
            (directory / path.name).symlink_to(path)
    program = directory / "bare-python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{directory}" exec "{sys.executable}" -S "$@"\n'
    )
    program.chmod(0o755)
    found = subprocess.run(
        [program, "-c", "import waystation"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert b"No module named 'waystation'" in found.stderr
    return program


def small_fleet(directory: Path) -> Path:
    """The journal of a fleet of several nodes, with losses of most kinds."""
    fleet = Fleet(nodes=9, participants=60, messages=1_500, seed=11)
    write_fleet(fleet, directory)
    return directory


def started(*arguments: object, **environment: object) -> subprocess.Popen[str]:
    """Start the command line in a process of its own, as a user would."""
    return subprocess.Popen(
        [Path(sys.executable).parent / "waystation", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_of(**environment),
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code and the output, without the notice about a long wait."""
    try:
        out, err = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    told = [line for line in err.splitlines() if "waiting for executors" not in line]
    return process.returncode, out, "\n".join(told)


def environment_of(**more: object) -> dict[str, str]:
    """This process's environment without the variables that its own Spark set."""
    left = ("SPARK_", "PYSPARK_", "WAYSTATION_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left)}
    return {**kept, **{name: str(value) for name, value in more.items()}}


def until(found: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for a condition while a process runs."""
    give_up = time.monotonic() + WAIT_SECONDS
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.02)


def assert_same_tables(found: Path, wanted: Path) -> None:
    """All tables have the same rows, in any order."""
    for table in pipeline.TABLES:
        rows, others = (pq.read_table(place / table).to_pylist() for place in (found, wanted))
        assert others or table in ("clocks", "rejects", "session_history")  # it has no sessions
        assert_same(rows, others)
