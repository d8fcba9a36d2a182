"""A hop over a WebSocket beside the package websockets alone, and many leaves on one hub.

The work is that of live/measure.py; every figure is the median of the turns, in which all subjects
do the same work one after the other. The same nodes over TCP show what of a hop is the WebSocket's
and what is the node's. What the leaves do stands in websocket/leaves.py.
"""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Report, in_turns, medians_of
from benchmarks.live.node_subject import TCP
from benchmarks.websocket import leaves
from benchmarks.websocket.bare_subject import BARE
from benchmarks.websocket.node_subject import NODE

PACKAGES = ("msgspec", "uvloop", "websockets")
TURNS = 5
SUBJECTS = (NODE, BARE, TCP)
SIZES = ((100, "100 B", 100_000), (10 * 1024, "10 KiB", 20_000))
LEAVES = 10_000


def run(report: Report) -> None:
    for size, name, count in SIZES:
        if not report.has(f"{name}, one way"):
            rates = {s.name: partial(s.one_way, 1, size, count) for s in SUBJECTS}
            report.note(f"{name}, one way", medians_of(in_turns(rates, TURNS)), "msg/s")
        if report.has(f"{name}, round trip p50", f"{name}, round trip p99"):
            continue
        trips = {s.name: partial(s.round_trip, 1, size, 2_000) for s in SUBJECTS}
        found = in_turns(trips, TURNS)
        for place, what in enumerate(("p50", "p99")):
            each = {subject: [trip[place] for trip in turns] for subject, turns in found.items()}
            report.note(f"{name}, round trip {what}", medians_of(each), "us")
    many_leaves(report)


def many_leaves(report: Report) -> None:
    figures = leaves.measure(LEAVES)
    case = f"{LEAVES:,} leaves on one hub"
    report.add(case, "memory for each, at the hub", figures.bytes_each / 1024, "KiB")
    report.add(case, "until all have announced", figures.seconds_first, "s")
    report.add(case, "until all have again, hub killed", figures.seconds_again, "s")
