"""Our gossip router beside JGroups' own, the newest 5.x in both modes and 2.12.

The load is described in router/load.py: it is the same for all, in their own format. Every figure
is the median of five turns, in which all routers do the same one after the other, each started
anew. A delivery is one message at one receiver: one message to a group of eight makes eight. The
delays are measured at half of what the slowest router of that format delivers.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from benchmarks.harness import Report, in_turns, medians_of
from benchmarks.router.churn import MEMBERS, PACE, churn
from benchmarks.router.load import RECEIVERS, Shape
from benchmarks.router.stuck import stuck_ratio
from benchmarks.router.subjects import (
    BLOCKING,
    CONNECTIONS,
    JGROUPS_2,
    NIO,
    OURS_2,
    OURS_5,
    Subject,
    copies,
    delay,
    memory,
    rate,
)
from tests.peers.jgroups_peer import VERSIONS, build
from tests.peers.kept import PeerMissing

PACKAGES = ("uvloop",)
TURNS = 5
SIZES = (100, 1000)


def run(report: Report, turns: int = TURNS) -> None:
    groups: list[list[Subject]] = [[OURS_5, NIO, BLOCKING], [OURS_2, JGROUPS_2]]
    try:
        build()
    except PeerMissing as missing:
        print(f"  without JGroups: {missing}")
        groups = [[OURS_5], [OURS_2]]
    else:
        measured = ("jgroups2", "jgroups5")
        report.versions |= {name: VERSIONS[name]["version"] for name in measured}
    for subjects in groups:
        for shape in RECEIVERS:
            for size in SIZES:
                under_load(report, subjects, shape, size, turns)
    everybody = [subject for subjects in groups for subject in subjects]
    if not report.has(f"memory, {CONNECTIONS} members"):
        found = in_turns({subject.name: partial(memory, subject) for subject in everybody}, turns)
        report.note(f"memory, {CONNECTIONS} members", medians_of(found), "MiB")
    for subject in groups[0]:
        with_changes(report, subject)
    ratios = [stuck_ratio() for _ in range(turns)]
    report.add(
        "rate beside a stuck receiver / without", "waystation", statistics.median(ratios), "ratio"
    )


def with_changes(report: Report, subject: Subject) -> None:
    """Members come and go: how long a list takes, who is suspected, what is left open."""
    case = f"{MEMBERS} members, {PACE} joins and leaves a second"
    if report.has(f"{case}, descriptors left open", subjects=[subject.name]):
        report.has(f"{case}, *", subjects=[subject.name])
        return
    found = churn(subject)
    report.add(f"{case}, list of members p50", subject.name, found.p50 * 1e3, "ms")
    report.add(f"{case}, list of members p99", subject.name, found.p99 * 1e3, "ms")
    report.add(f"{case}, false SUSPECTs", subject.name, found.suspects, "notices")
    report.add(f"{case}, descriptors left open", subject.name, found.descriptors, "descriptors")


def under_load(
    report: Report, subjects: Sequence[Subject], shape: Shape, size: int, turns: int
) -> None:
    case = f"{shape}, {size} B"
    kinds = ("CPU", "delivered of what was sent", "delay p50 at *", "delay p99 at *")
    names = [subject.name for subject in subjects]
    if report.has(case, *(f"{case}, {kind}" for kind in kinds), subjects=names):
        return
    rates = in_turns({s.name: partial(rate, s, shape, size) for s in subjects}, turns)
    delivered = medians_of({name: [r.deliveries for r in each] for name, each in rates.items()})
    report.note(case, delivered, "deliveries/s")
    cpu = medians_of({name: [r.cpu for r in each] for name, each in rates.items()})
    report.note(f"{case}, CPU", cpu, "s/million")
    kept = medians_of({name: [r.kept for r in each] for name, each in rates.items()})
    for name, share in kept.items():
        report.add(f"{case}, delivered of what was sent", name, share, "share")
    half = int(min(delivered.values()) / copies(shape) / 2)
    delays = in_turns({s.name: partial(delay, s, shape, size, half) for s in subjects}, turns)
    for place, what in enumerate(("p50", "p99")):
        middle = medians_of({name: [d[place] for d in each] for name, each in delays.items()})
        report.note(f"{case}, delay {what} at {half} msg/s", middle, "us")
