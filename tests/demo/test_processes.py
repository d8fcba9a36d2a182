"""Processes: ready when they say so, ended by their pid, and never left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.alive import EFFECT_TIMEOUT, is_alive, until, until_gone
from waystation.demo.directory import DemoDirectory, prepared
from waystation.demo.processes import Processes
from waystation.errors import LocalError

OBEDIENT = "print('ready', flush=True); print('heard', input(), flush=True); input()"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    " print('ready', flush=True); time.sleep(600)"
)
ORPHAN = """
import sys
from pathlib import Path
from waystation.demo.directory import prepared
from waystation.demo.processes import Processes

with prepared(Path(sys.argv[1])) as directory:
    Processes(directory).start("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"])
    print("started", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DemoDirectory]:
    with prepared(tmp_path / "demo") as found:
        yield found


@pytest.fixture
def processes(directory: DemoDirectory) -> Iterator[Processes]:
    made = Processes(directory)
    yield made
    made.end_all()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_what_it_says_is_heard_and_orders_are_obeyed(processes: Processes) -> None:
    child = processes.start("one", python(OBEDIENT), takes_orders=True)
    until(lambda: child.lines() == ["ready"])
    child.order("go on")
    until(lambda: child.lines() == ["ready", "heard go on"])
    child.kill()
    child.order("too late")


def test_what_an_earlier_process_said_is_not_heard_again(processes: Processes) -> None:
    for _ in range(2):
        child = processes.start("one", python("print('ready', flush=True)"))
        until(lambda: not child.is_running)  # noqa: B023 - called at once
        assert child.lines() == ["ready"]


def test_all_are_written_down_with_their_pids(
    processes: Processes, directory: DemoDirectory
) -> None:
    child = processes.start("one", python(OBEDIENT), takes_orders=True)
    [told] = json.loads((directory.out / "processes.json").read_text())
    assert (told["name"], told["pid"], told["state"]) == ("one", child.pid, "running")
    processes.end(["one"])
    [told] = json.loads((directory.out / "processes.json").read_text())
    assert told["state"] == f"ended with {-signal.SIGTERM}"


def test_who_does_not_end_is_killed(processes: Processes) -> None:
    child = processes.start("one", python(STUBBORN))
    until(lambda: child.lines() == ["ready"])
    processes.end(["one"], grace=0.1)
    assert not is_alive(child.pid)


def test_one_that_ended_by_itself_is_an_error_with_its_last_words(processes: Processes) -> None:
    child = processes.start("one", python("print('I am'); print('no more')"))
    until(lambda: not child.is_running)
    with pytest.raises(LocalError, match=r"one ended unexpectedly: no more; see .*one\.log"):
        processes.check(["one"])


def test_options_for_the_demonstration_are_not_those_of_its_processes(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_NAME", "mine")
    child = processes.start("one", python("import os; print(os.environ.get('WAYSTATION_NAME'))"))
    until(lambda: child.lines() == ["None"])


def test_none_outlives_a_demonstration_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path / "demo")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        [told] = json.loads((tmp_path / "demo" / "processes.json").read_text())
        parent.kill()
        parent.wait(EFFECT_TIMEOUT)
        until_gone([told["pid"]])
