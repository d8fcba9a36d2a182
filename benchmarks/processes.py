"""What a process and all it started take of a machine: memory, processor time (Linux)."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def free_bytes() -> int:
    """The memory that nobody uses."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    [found] = [line for line in lines if line.startswith("MemAvailable:")]
    return int(found.split()[1]) * 1_024


def tree_bytes(pid: int) -> int:
    """The memory of a process and all it started; what they share counts once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        own = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1_024
    except OSError:  # it has ended
        return 0
    return own + sum(map(tree_bytes, children_of(pid)))


def tree_seconds(pid: int) -> float:
    """The processor time of a process and all it started that are still there."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(tree_seconds, children_of(pid)))


def children_of(pid: int) -> set[int]:
    """What a process has started."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return {int(child) for task in tasks for child in task.read_text().split()}
    except OSError:
        return set()


def stop_tree(pid: int) -> None:
    """End a process and all it started."""
    for child in children_of(pid):
        stop_tree(child)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
