"""Round trips through a hub, while another leaf of it is stopped and messages to it pile up.

Four processes: two hubs, of which one (this process) sends, and two leaves of the other hub. One
leaf replies; the other is stopped by a signal, and 10 kB messages are sent to it for as long as
somebody takes them. What is compared are requests to the leaf that replies, with that and without.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import waystation
from benchmarks.harness import Report, in_turns, medians_of
from waystation import Message, Node
from waystation.node.policy import Wait
from waystation.node.worker import Context

PACKAGES = ("msgspec", "uvloop")
TURNS = 7
TRIPS = 2_000
LOAD = 10_000  # bytes of each message to the leaf that is stopped


def run(report: Report) -> None:
    with ExitStack() as stack:
        hub, url = stack.enter_context(_child("hub"))
        stack.enter_context(_child("leaf", "replies", url))
        stopped, _ = stack.enter_context(_child("leaf", "stopped", url))
        del hub
        measures = {
            "one leaf is stopped": partial(_trips, url, stopped),
            "nobody is stopped": partial(_trips, url, None),
        }
        found = in_turns(measures, TURNS)
    for place, what in enumerate(("p50", "p99")):
        trips = {name: [trip[place] for trip in each] for name, each in found.items()}
        report.note(f"hub to hub to leaf, round trip {what}", medians_of(trips), "us")


@contextmanager
def _child(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of this program, and the first line that it prints."""
    program = [sys.executable, "-m", "benchmarks.bench_flow", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as child:  # noqa: S603 - ourselves
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


def _trips(url: str, stopped: subprocess.Popen[str] | None) -> tuple[float, float]:
    """The median and the 99th percentile of round trips, in microseconds."""
    if stopped is not None:
        stopped.send_signal(signal.SIGSTOP)
    try:
        times = sorted(waystation.run(_measure(url, loaded=stopped is not None)))
    finally:
        if stopped is not None:
            stopped.send_signal(signal.SIGCONT)
            time.sleep(1.0)  # until it has read what was left
    return times[len(times) // 2] * 1e6, times[len(times) * 99 // 100] * 1e6


async def _measure(url: str, *, loaded: bool) -> list[float]:
    async with Node("other-hub", hub=True) as node:
        await node.connect(url, parent=True, wait=10.0)
        load = asyncio.create_task(_load(node)) if loaded else None
        await asyncio.sleep(2.0)  # until nobody takes more of the load
        times = []
        for _ in range(TRIPS):
            start = time.perf_counter()
            await node.request("replies", bytes(100), timeout=30.0)
            times.append(time.perf_counter() - start)
        if load is not None:
            load.cancel()
        return times


async def _load(node: Node) -> None:
    while True:
        await node.send("stopped", bytes(LOAD), policy=Wait(60.0))


async def _hub() -> None:
    async with Node("hub", hub=True) as node:
        listening = await node.listen("tcp://127.0.0.1:0")
        print(listening.url, flush=True)
        await asyncio.Event().wait()


async def _leaf(name: str, url: str) -> None:
    async with Node(f"leaf-{name}") as node:

        @node.worker(name)
        async def reply(message: Message, context: Context) -> None:
            if message.return_route.addresses:
                await context.reply(message.payload)

        await node.connect(url, parent=True, wait=10.0)
        print("connected", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    waystation.run(_hub() if role == "hub" else _leaf(*rest))
