"""What a receiver that does not read costs the others of its group, with our router."""

from __future__ import annotations

import subprocess
import time

from benchmarks.router.load import Job, join
from benchmarks.router.subjects import OURS_5, WINDOW, ask, under_load

STUCK = 77
SETTLE = 1.0


def stuck_ratio() -> float:
    """The rate of eight receivers beside a ninth that does not read, by their rate without it."""
    with under_load(OURS_5, "one to eight", 1000) as (running, receiver, _):
        before = rate_of(ask(receiver), wait(receiver))
        dead = join(Job("receive", 5, running.port, "one to eight", 1000), STUCK)
        time.sleep(SETTLE)
        with_it = rate_of(ask(receiver), wait(receiver))
        dead.close()
        time.sleep(SETTLE)
        after = rate_of(ask(receiver), wait(receiver))
    return with_it / ((before + after) / 2)


def wait(receiver: subprocess.Popen[str]) -> list[float]:
    time.sleep(WINDOW)
    return ask(receiver)


def rate_of(first: list[float], last: list[float]) -> float:
    return (last[1] - first[1]) / (last[0] - first[0])
