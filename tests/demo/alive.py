"""Which processes there are, as tests ask."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

EFFECT_TIMEOUT = 240.0
"""Seconds after which whatever a test waits for will not come any more."""


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is not a zombie that waits to be buried."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found += [int(path.name), *children_of(int(path.name))]
    return found


def started_by(out: Path) -> list[int]:
    """The pids of all processes that a demonstration has started so far."""
    file = out / "processes.json"
    return [told["pid"] for told in json.loads(file.read_text())] if file.exists() else []


def until(condition: Callable[[], object]) -> None:
    """Wait for something to come true."""
    deadline = time.monotonic() + EFFECT_TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it never came to it"
        time.sleep(0.02)


def until_gone(pids: Iterable[int]) -> None:
    """Wait until none of these processes is there any more."""
    known = list(pids)
    until(lambda: not any(map(is_alive, known)))
