"""Secure channels beside Ockam's Rust node: handshakes and sealed messages; what a proof costs.

Every figure is the median of five turns, in which all subjects do the same work one after the
other, each with two processes over TCP on one machine. A handshake is a channel opened, both sides
proven, and closed. Sealed messages pass through one channel. The last two cases compare Waystation
with itself: sessions a second with identities and without, and messages a second of nodes that keep
a journal, with identities in it and without.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from benchmarks.harness import Report, in_turns, medians_of
from benchmarks.live.measure import Subject
from benchmarks.live.ockam_subject import DEFAULT, ONE_THREAD, VERSIONS
from benchmarks.secure.node_subject import (
    HANDSHAKES,
    JOURNALLED,
    JOURNALLED_PLAIN,
    PLAIN,
    PROVEN_SESSIONS,
    SECURE,
    SESSIONS,
)
from tests.peers.kept import PeerMissing
from tests.peers.ockam_peer import build

PACKAGES = ("msgspec", "uvloop", "cryptography")
TURNS = 5

Figure = Callable[[], float]


class Sealing(Protocol):
    """Whatever seals messages: Ockam's node."""

    @property
    def name(self) -> str: ...

    def handshakes(self, count: int) -> float: ...

    def sealed(self, size: int, count: int) -> float: ...

    def sealed_round_trip(self, size: int, count: int) -> tuple[float, float]: ...


def run(report: Report, turns: int = TURNS, share: int = 1) -> None:
    """Measure; a trial does one of `share` parts of the work, in fewer turns."""
    rust: list[Sealing] = []
    try:
        build()
    except PeerMissing as missing:
        print(f"  without Ockam's Rust node: {missing}")
    else:
        report.versions |= VERSIONS
        rust = [ONE_THREAD, DEFAULT]
    opened = max(200 // share, 1)
    compare(
        report,
        "handshakes",
        {HANDSHAKES.name: _rate(HANDSHAKES, 0, opened)}
        | {each.name: partial(each.handshakes, opened) for each in rust},
        "handshakes/s",
        turns,
    )
    for size, name, count in ((100, "100 B", 20_000), (10 * 1024, "10 KiB", 10_000)):
        sent = count // share
        compare(
            report,
            f"sealed, {name}, one way",
            {SECURE.name: _rate(SECURE, size, sent)}
            | {each.name: partial(each.sealed, size, sent) for each in rust}
            | {PLAIN.name: _rate(PLAIN, size, sent)},
            "msg/s",
            turns,
        )
        round_trips(report, f"sealed, {name}, round trip", rust, size, 2_000 // share, turns)
    compare(
        report,
        "sessions",
        {each.name: _rate(each, 0, opened) for each in (PROVEN_SESSIONS, SESSIONS)},
        "sessions/s",
        turns,
    )
    compare(
        report,
        "both nodes journalling, 100 B, one way",
        {each.name: _rate(each, 100, 100_000 // share) for each in (JOURNALLED, JOURNALLED_PLAIN)},
        "msg/s",
        turns,
    )


def _rate(subject: Subject, size: int, count: int) -> Figure:
    return partial(subject.one_way, 1, size, count)


def compare(report: Report, case: str, subjects: dict[str, Figure], unit: str, turns: int) -> None:
    if not report.has(case):
        report.note(case, medians_of(in_turns(subjects, turns)), unit)


def round_trips(
    report: Report, case: str, rust: list[Sealing], size: int, count: int, turns: int
) -> None:
    """The median of the turns' p50, and of their p99; a ratio below 1 is good for us."""
    if report.has(f"{case} p50", f"{case} p99"):
        return
    measures = {SECURE.name: partial(SECURE.round_trip, 1, size, count)}
    measures |= {each.name: partial(each.sealed_round_trip, size, count) for each in rust}
    found = in_turns(measures, turns)
    for place, what in enumerate(("p50", "p99")):
        trips = {name: [trip[place] for trip in each] for name, each in found.items()}
        report.note(f"{case} {what}", medians_of(trips), "us")
