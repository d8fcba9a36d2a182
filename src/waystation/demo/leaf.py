"""A leaf of the fleet as a process: `python -m waystation.demo.leaf FILE ROLE PACE`.

Runs the node of FILE, and the traffic of its role. Commands come as lines on standard input; the
leaf stops at its end. It prints `node NAME is ready`, and `resting` when it was told to `rest` and
all of its traffic has finished.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from waystation.config import plan_from, running
from waystation.demo.fleet import Pace
from waystation.demo.traffic import ROLES, Orders, TrafficPeriod
from waystation.node import run
from waystation.node.runner import stop_signals

REST: Final = "rest"
RESTING: Final = "resting"


async def main(file: Path, role: str, pace: Pace) -> None:
    """Run until told to stop."""
    with stop_signals() as told:
        living = asyncio.create_task(_live(file, role, pace, told.set))
        ending = asyncio.create_task(told.wait())
        await asyncio.wait({living, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        living.cancel()
        with suppress(asyncio.CancelledError):
            await living


async def _live(file: Path, role: str, pace: Pace, end: Callable[[], None]) -> None:
    async with running(plan_from(file)) as live:
        acting, period = ROLES[role](live.node, pace), TrafficPeriod()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_obey({REST: period.end, **acting.orders}, end))
            traffic = [tasks.create_task(work) for work in acting.traffic(period)]
            await acting.settled.wait()
            _say(f"node {live.node.name} is ready")
            await asyncio.gather(*traffic, period.over())
            _say(RESTING)


async def _obey(orders: Orders, end: Callable[[], None]) -> None:
    """Execute the commands on standard input, until its end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while order := (await reader.readline()).decode().strip():
        orders[order]()
    end()


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - read by the parent process


if __name__ == "__main__":
    run(main(Path(sys.argv[1]), sys.argv[2], msgspec.json.decode(sys.argv[3], type=Pace)))
