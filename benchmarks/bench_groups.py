"""Groups: from a cold start to a full view, messages between two members, a router that is killed.

Our own figures only: a JGroups channel does more (views, flow control over the whole group) and
less (no outcome for each message). Messages go from a process to another one; all members of a cold
start live in one process, which therefore does the work of all of them.
"""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks.groups.measure import cold_start, rate, recoveries
from benchmarks.groups.routers import Router
from benchmarks.harness import Report, in_turns, medians_of

PACKAGES = ("uvloop", "msgspec")
CROWDS = {10: 5, 100: 3, 1_000: 1}
"""How many members, and how often that is measured."""

SIZES = (100, 1_000)
MESSAGES = 200_000
SUBJECT = "waystation, tunnel"
MULTICAST = "udp://239.255.71.71:45571"


def run(
    report: Report,
    turns: int = 5,
    messages: int = MESSAGES,
    kills: int = 50,
    crowds: dict[int, int] | None = None,
) -> None:
    for count, times in (CROWDS if crowds is None else crowds).items():
        case = f"cold start to a full view, {count} members"
        if report.has(case):
            continue
        elapsed = [cold_start(count) for _ in range(times)]
        report.add(case, SUBJECT, statistics.median(elapsed), "s")
    with Router() as router:
        ways = {
            "waystation, direct TCP": f"gossip+tcp://{router.place}",
            SUBJECT: f"gossip://{router.place}",
            "waystation, UDP": MULTICAST,
        }
        for size in SIZES:
            case = f"member to member, {size} B"
            if report.has(case):
                continue
            found = in_turns(
                {name: partial(rate, via, size, messages) for name, via in ways.items()}, turns
            )
            report.note(case, medians_of(found), "msg/s")
    for routers, what in ((2, "one of two routers killed"), (1, "the only router killed")):
        found_again = recoveries("gossip", kills, routers)
        gaps = [each.gap for each in found_again]
        report.add(f"{what}: no message for, median", SUBJECT, statistics.median(gaps), "s")
        report.add(f"{what}: no message for, worst", SUBJECT, max(gaps), "s")
    after = [each.after for each in found_again]
    report.add(
        "the new router listens: messages after, median", SUBJECT, statistics.median(after), "s"
    )
    report.add("the new router listens: messages after, worst", SUBJECT, max(after), "s")
