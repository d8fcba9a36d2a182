"""This checkout beside another revision of it: what a change costs, or brings.

    python -m benchmarks.against REVISION [part of a case's name ...]

TURNS says how often each case is run, RESULT what the file of results is called. Each case is run
in a process of its own, in turns by both revisions, each with its own benchmarks and sources; the
other one is checked out beside. The median of the ratios counts, and the spread of the other
revision against itself says how much of it is noise.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Report

HERE = Path(__file__).resolve().parent.parent
TURNS = 7
PACKAGES = ("msgspec", "uvloop")


class Case(NamedTuple):
    """A program that prints one number, in a unit; more is better unless it is a time."""

    program: str
    unit: str


_LIVE = "from benchmarks.live.node_subject import IN_PROCESS, TCP\n"
_WEB = "from benchmarks.websocket.node_subject import NODE\n"
_ROUTER = "from benchmarks.router.subjects import OURS_2, OURS_5, memory, rate\n"
_GROUPS = (
    "from benchmarks.groups.measure import cold_start, rate\n"
    "from benchmarks.groups.routers import Router\n"
)
_MQTT = """
import benchmarks.bench_mqtt as b, time
def measure(work, qos, n):
    with b.our_broker() as place:
        b.looped(work, place, qos, n // 10)
        began = time.perf_counter()
        return b.looped(work, place, qos, n) / (time.perf_counter() - began)
"""
# The other revision may not have it.
_CLAIMS = (HERE / "benchmarks" / "bench_claims.py").read_text()

CASES = {
    "live: in process, one way": Case(
        _LIVE + "print(IN_PROCESS.one_way(1, 100, 300_000))", "msg/s"
    ),
    "live: in process, request and reply": Case(
        _LIVE + "print(IN_PROCESS.round_trip(1, 100, 20_000)[0])", "us"
    ),
    "live: TCP, 1 hop, 100 B, one way": Case(
        _LIVE + "print(TCP.one_way(1, 100, 200_000))", "msg/s"
    ),
    "live: TCP, 2 hops, 100 B, one way": Case(
        _LIVE + "print(TCP.one_way(2, 100, 100_000))", "msg/s"
    ),
    "live: TCP, 1 hop, 10 KiB, one way": Case(
        _LIVE + "print(TCP.one_way(1, 10240, 20_000))", "msg/s"
    ),
    "live: TCP, 1 hop, 100 B, round trip p50": Case(
        _LIVE + "print(TCP.round_trip(1, 100, 3_000)[0])", "us"
    ),
    "live: TCP, 1 hop, 100 B, round trip p99": Case(
        _LIVE + "print(TCP.round_trip(1, 100, 3_000)[1])", "us"
    ),
    "live: idle connection": Case(
        "from benchmarks.bench_live import idle_connections\n"
        "class R:\n"
        "    def add(self, case, subject, value, unit): print(value)\n"
        "idle_connections(R())",
        "KiB",
    ),
    "websocket: 100 B, one way": Case(_WEB + "print(NODE.one_way(1, 100, 100_000))", "msg/s"),
    "websocket: 100 B, round trip p50": Case(
        _WEB + "print(NODE.round_trip(1, 100, 3_000)[0])", "us"
    ),
    "websocket: 2,000 leaves until all have announced": Case(
        "from benchmarks.websocket import leaves\nprint(leaves.measure(2_000).seconds_first)", "s"
    ),
    "claims: 10,000 leaves announce": Case(_CLAIMS + "print(announce(1))", "names/s"),
    "claims: 10,000 leaves announce again": Case(_CLAIMS + "print(announce(2))", "names/s"),
    "claims: a change beside 100,000 names": Case(_CLAIMS + "print(relay(100_000))", "changes/s"),
    "router: JGroups 5, one to one, 100 B": Case(
        _ROUTER + "print(rate(OURS_5, 'one to one', 100).deliveries)", "msg/s"
    ),
    "router: JGroups 5, one to eight, 1000 B": Case(
        _ROUTER + "print(rate(OURS_5, 'one to eight', 1000).deliveries)", "msg/s"
    ),
    "router: JGroups 5, eight to eight, 100 B": Case(
        _ROUTER + "print(rate(OURS_5, 'eight to eight', 100).deliveries)", "msg/s"
    ),
    "router: JGroups 2, one to one, 100 B": Case(
        _ROUTER + "print(rate(OURS_2, 'one to one', 100).deliveries)", "msg/s"
    ),
    "router: memory with 1,000 members": Case(_ROUTER + "print(memory(OURS_5))", "MiB"),
    "groups: direct TCP, 100 B": Case(
        _GROUPS + "with Router() as r: print(rate(f'gossip+tcp://{r.place}', 100, 200_000))",
        "msg/s",
    ),
    "groups: tunnel, 100 B": Case(
        _GROUPS + "with Router() as r: print(rate(f'gossip://{r.place}', 100, 200_000))", "msg/s"
    ),
    "groups: UDP, 100 B": Case(
        _GROUPS + "print(rate('udp://239.255.71.71:45571', 100, 200_000))", "msg/s"
    ),
    "groups: cold start of 100 members": Case(_GROUPS + "print(cold_start(100))", "s"),
    "mqtt: QoS 0, nodes": Case(_MQTT + "print(measure(b.nodes_one_way, 0, 20_000))", "msg/s"),
    "mqtt: QoS 1, nodes": Case(_MQTT + "print(measure(b.nodes_one_way, 1, 20_000))", "msg/s"),
    "mqtt: QoS 1, bare client": Case(
        _MQTT + "print(measure(b.client_one_way, 1, 20_000))", "msg/s"
    ),
}

_IS_RATE = frozenset({"msg/s", "names/s", "changes/s"})


def measure(case: Case, checkout: Path) -> float:
    """One run of a case by one revision."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{checkout}"}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", case.program],
        cwd=checkout,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return float(done.stdout.split()[-1])


def compare(report: Report, name: str, case: Case, other: Path, turns: int) -> None:
    """Run a case by both revisions in turns, and note how they compare."""
    before: list[float] = []
    after: list[float] = []
    for turn in range(turns):
        for checkout in (other, HERE) if turn % 2 else (HERE, other):
            (after if checkout == HERE else before).append(measure(case, checkout))
    old, new = statistics.median(before), statistics.median(after)
    report.add(name, "before", old, case.unit)
    report.add(name, "after", new, case.unit)
    speed = new / old if case.unit in _IS_RATE else old / new
    report.add(name, "after / before, above 1 is better", speed, "ratio")
    report.add(name, "largest / smallest before", max(before) / min(before), "ratio")


def main(arguments: list[str]) -> None:
    """Compare with the revision that the first argument names."""
    if not arguments:
        sys.exit("usage: python -m benchmarks.against REVISION [part of a case's name ...]")
    revision, *wanted = arguments
    turns = int(os.environ.get("TURNS", TURNS))
    chosen = {n: c for n, c in CASES.items() if not wanted or any(part in n for part in wanted)}
    report = Report(os.environ.get("RESULT", "against"), PACKAGES, keep=True)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(other), revision], check=True)  # noqa: S603
        try:
            for name, case in chosen.items():
                compare(report, name, case, other, turns)
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)  # noqa: S603
    report.write()


if __name__ == "__main__":
    main(sys.argv[1:])
