"""The routers that are compared: ours, and JGroups' own in their releases and modes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from benchmarks.harness import resident_bytes
from benchmarks.router.load import RECEIVERS, SENDERS, Job, Shape, join
from tests.peers.jgroups_peer import VERSIONS, free_port, real_router, wait_for_port
from waystation.demo.processes import WAYSTATION

WARM_UP = 4.0
"""A JVM compiles what it runs often; before that it is several times slower."""

SETTLED = 1.0
"""What does not compile anything is as fast as it gets after this."""

WINDOW = 2.0
CONNECTIONS = 1000
_TICKS = os.sysconf("SC_CLK_TCK")


class Running(NamedTuple):
    """A router that runs."""

    pid: int
    port: int


class Subject(NamedTuple):
    """A router, in one of its modes, and the format that it is spoken to in."""

    name: str
    generation: Literal[2, 5]
    start: Callable[[], AbstractContextManager[Running]]
    warm_up: float = WARM_UP


class Rate(NamedTuple):
    """Deliveries per second, seconds of the router's CPU per million of them, and what was lost.

    `kept` is the share of deliveries that were made of those that were due.
    """

    deliveries: float
    cpu: float
    kept: float


@contextmanager
def ours() -> Iterator[Running]:
    port = free_port()
    command = ["router", "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*WAYSTATION, *command],
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for_port(port)
            yield Running(process.pid, port)
        finally:
            process.kill()


@contextmanager
def theirs(generation: Literal[2, 5], *options: str) -> Iterator[Running]:
    with real_router(generation, *options) as (process, port):
        yield Running(process.process.pid, port)


NEW, OLD = (VERSIONS[f"jgroups{generation}"]["version"] for generation in (5, 2))
OURS_5 = Subject("waystation", 5, ours, SETTLED)
OURS_2 = Subject("waystation (2.12)", 2, ours, SETTLED)
NIO = Subject(f"JGroups {NEW} -nio true", 5, lambda: theirs(5, "-nio", "true"))
BLOCKING = Subject(f"JGroups {NEW}", 5, lambda: theirs(5))
JGROUPS_2 = Subject(f"JGroups {OLD}", 2, lambda: theirs(2))


@contextmanager
def loaded(job: Job) -> Iterator[subprocess.Popen[str]]:
    """A process of the load generator, once it is ready."""
    command = [sys.executable, "-m", "benchmarks.router.load", msgspec.json.encode(job).decode()]
    with subprocess.Popen(  # noqa: S603 - ourselves
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            assert process.stdout
            if process.stdout.readline() != "ready\n":
                sys.exit(f"bench: the load generator did not start: {job}")
            yield process
        finally:
            process.kill()


def ask(receiver: subprocess.Popen[str]) -> list[float]:
    assert receiver.stdin
    assert receiver.stdout
    receiver.stdin.write("\n")
    receiver.stdin.flush()
    return [float(word) for word in receiver.stdout.readline().split()]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def under_load(
    subject: Subject, shape: Shape, size: int, rate: int = 0
) -> Iterator[tuple[Running, subprocess.Popen[str], subprocess.Popen[str]]]:
    """A router that has been loaded for a while, the receiver of the load, and its sender."""
    with subject.start() as running:
        job = Job("receive", subject.generation, running.port, shape, size, rate)
        with loaded(job) as receiver:
            time.sleep(0.2)  # 5.x does not say when a member is registered
            with loaded(msgspec.structs.replace(job, role="send")) as sender:
                assert sender.stdin
                sender.stdin.write("\n")
                sender.stdin.flush()
                time.sleep(subject.warm_up)
                yield running, receiver, sender


def rate(subject: Subject, shape: Shape, size: int) -> Rate:
    """How much a router delivers when it is given as much as it takes."""
    with under_load(subject, shape, size) as (running, receiver, sender):
        begin, before, *_ = ask(receiver)
        cpu = cpu_seconds(running.pid)
        time.sleep(WINDOW)
        cpu = cpu_seconds(running.pid) - cpu
        end, after, *_ = ask(receiver)
        sender.kill()
        assert sender.stdout
        told = [[float(word) for word in line.split()] for line in sender.stdout]
    deliveries = after - before
    within = [sent for at, sent in told if begin <= at <= end]
    span = [at for at, _ in told if begin <= at <= end]
    sent = (within[-1] - within[0]) / (span[-1] - span[0]) if len(span) > 1 else 0.0
    per_second = deliveries / (end - begin)
    due = sent * copies(shape)
    return Rate(per_second, cpu / deliveries * 1e6, min(1.0, per_second / due) if due else 1.0)


def copies(shape: Shape) -> int:
    """How many deliveries a message makes."""
    return RECEIVERS[shape] if SENDERS[shape] == 1 else 1


def delay(subject: Subject, shape: Shape, size: int, messages: int) -> tuple[float, float]:
    """The median and the 99th percentile in microseconds, at so many messages per second."""
    with under_load(subject, shape, size, messages) as (_, receiver, _sender):
        ask(receiver)
        time.sleep(WINDOW)
        _, _, p50, p99 = ask(receiver)
    return p50, p99


def memory(subject: Subject) -> float:
    """MiB of a router with so many members, each on a connection of its own, that are idle."""
    with subject.start() as running:
        job = Job("receive", subject.generation, running.port, "one to one", 100)
        found = [join(job, number) for number in range(1, CONNECTIONS + 1)]
        time.sleep(1)
        used = resident_bytes(running.pid) / 2**20
        for each in found:
            with suppress(OSError):
                each.close()
    return used
