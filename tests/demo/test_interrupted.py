"""A demonstration that is interrupted, at any moment: no process is left, and no torn file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.demo.alive import EFFECT_TIMEOUT, children_of, is_alive, started_by, until, until_gone
from waystation.demo.fleet import PROCESSES
from waystation.journal.check import check

pytestmark = pytest.mark.timeout(600)  # ten processes start, on a machine that may be busy

DEMO = "from waystation.cli import main; main()"
WITHOUT_A_FLEET = """
import waystation.cli.demo as command
from waystation.cli import main
from waystation.demo.run import DemoRun

command._run = lambda directory, seconds, console, page: DemoRun([], [], {}, 0.0)
main()
"""


SLOW_SPARK = (
    WITHOUT_A_FLEET.replace("main()", "")
    + """
import os, time
from waystation import pipeline

log = os.dup(1)  # while Spark starts, what is written goes elsewhere

class Session:
    def stop(self):
        os.write(log, b"put away\\n")

def slow(**_):
    os.write(log, b"half begun\\n")
    time.sleep(1.0)
    os.write(log, b"begun\\n")
    return Session()

pipeline.session = slow
main()
"""
)


class Demo:
    """`waystation demo` as a process."""

    def __init__(self, process: subprocess.Popen[str], out: Path, log: Path) -> None:
        self.process = process
        self.out = out
        self._log = log

    def said(self) -> str:
        return self._log.read_text("utf-8")

    def until_it_says(self, words: str) -> None:
        until(lambda: words in self.said() or self.process.poll() is not None)
        assert words in self.said()

    def interrupt(self, how: signal.Signals) -> None:
        """End it, and see that all it started ends with it."""
        begun = {*started_by(self.out), *children_of(self.process.pid)}
        self.process.send_signal(how)
        assert self.process.wait(EFFECT_TIMEOUT) == 1, self.said()
        begun.update(started_by(self.out))
        assert not any(map(is_alive, started_by(self.out)))  # at once: it has seen to that
        until_gone(begun)
        assert self.said().splitlines()[-1] == "waystation: interrupted"


@contextmanager
def demo(out: Path, *more: str, code: str = DEMO, **environment: str) -> Iterator[Demo]:
    log = out.with_suffix(".log")
    arguments = [sys.executable, "-c", code, "demo", "--out", str(out), "--seconds", "1", *more]
    with (
        log.open("wb") as said,
        subprocess.Popen(
            arguments, stdout=said, stderr=said, text=True, env=os.environ | environment
        ) as process,
    ):
        try:
            yield Demo(process, out, log)
        finally:
            process.kill()


def no_file_is_torn(out: Path) -> None:
    for name in ("demo.json", "processes.json"):
        json.loads((out / name).read_text())
    assert [path.name for path in out.glob(".*") if path.name != ".demo.lock"] == []
    # What a killed node left is for its next start to seal.
    found = [problem for problem in check(out / "journal") if "truck-2" not in problem.path]
    assert found == []


def places(out: Path) -> set[str]:
    """Where the processes of a fleet listen."""
    files = [*(out / "config").glob("*.toml"), *(out / "logs").glob("*.log")]
    return {place for file in files for place in re.findall(r"127\.0\.0\.1:\d+", file.read_text())}


def test_while_the_fleet_starts(tmp_path: Path) -> None:
    with demo(tmp_path / "demo") as begun:
        until(lambda: len(started_by(begun.out)) >= 2 or begun.process.poll() is not None)
        begun.interrupt(signal.SIGINT)
        assert len(started_by(begun.out)) < len(PROCESSES)
        no_file_is_torn(begun.out)


def test_two_side_by_side_while_they_break_things(tmp_path: Path) -> None:
    with demo(tmp_path / "one") as one, demo(tmp_path / "two") as two:
        for begun in (one, two):
            begun.until_it_says("fault: truck-2 is killed")
        one.interrupt(signal.SIGINT)
        assert two.process.poll() is None
        two.interrupt(signal.SIGTERM)
        for begun in (one, two):
            assert len(started_by(begun.out)) >= len(PROCESSES)
            no_file_is_torn(begun.out)
        assert places(one.out) & places(two.out) <= {"127.0.0.1:0"}


def test_while_spark_starts_it_is_not_left_half_begun(tmp_path: Path) -> None:
    with demo(tmp_path / "demo", code=SLOW_SPARK) as begun:
        begun.until_it_says("half begun")
        begun.interrupt(signal.SIGHUP)
        said = [line for line in begun.said().splitlines() if line]
        assert said[-4:] == ["half begun", "begun", "put away", "waystation: interrupted"]
        assert list((begun.out / "tables").iterdir()) == []


def test_without_java_it_says_what_is_missing_and_does_the_rest(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    path = str(tmp_path / "nothing")
    with demo(tmp_path / "demo", code=WITHOUT_A_FLEET, PATH=path, JAVA_HOME="") as ended:
        assert ended.process.wait(EFFECT_TIMEOUT) == 1
        lines = ended.said().splitlines()
        assert f"Output: {ended.out}" in lines
        assert lines[-1].startswith("waystation: the tables were not built: Spark needs Java")
        told = json.loads((ended.out / "demo.json").read_text())
        assert told["state"] == "incomplete"
