"""Broadcasts within one live node: publications and deliveries a second, by receivers.

The subscribers are callbacks; a publication counts when all of them were called. The last case has
many more subscriptions beside the one that matches: they must not cost anything (MC-16).
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import waystation
from benchmarks.harness import Report, in_turns, medians_of
from waystation import Message, Node

PACKAGES = ("msgspec", "uvloop")
TURNS = 5
CASES = ((1, 50_000), (10, 10_000), (1_000, 200))
OTHERS = 100_000


def run(report: Report) -> None:
    found = in_turns({str(n): partial(_rate, n, count, 0) for n, count in CASES}, TURNS)
    for (receivers, _), rate in zip(CASES, medians_of(found).values(), strict=True):
        case = f"publish to {receivers:,} local receivers"
        report.add(case, "waystation", rate, "publications/s")
        report.add(case, "waystation, delivered", rate * receivers, "messages/s")
    others = in_turns(
        {f"{beside:,} others": partial(_rate, 1, 20_000, beside) for beside in (OTHERS, 0)}, TURNS
    )
    report.note("publish beside subscriptions that do not match", medians_of(others), "pub/s")


def _rate(receivers: int, publications: int, others: int) -> float:
    return waystation.run(_measure(receivers, publications, others))


async def _measure(receivers: int, publications: int, others: int) -> float:
    got = 0

    def take(message: Message) -> None:  # noqa: ARG001
        nonlocal got
        got += 1

    async with Node("provider") as node:
        for number in range(others):  # without a reader each: they never match
            node.router.subscriptions.subscribe(
                f"provider/other/p{number % 1000}/q{number}/+", "nobody"
            )
        for _ in range(receivers):
            node.subscribe("provider", "news", "eu/+/munich", callback=take)
        await node.publish("news", b"", partition="eu/de/munich")  # it is known from now on
        got, payload = 0, b"x" * 100
        start = time.perf_counter()
        for number in range(publications):
            await node.publish("news", payload, partition=f"eu/c{number % 500}/munich")
        while got < publications * receivers:  # noqa: ASYNC110 - an event is set per message
            await asyncio.sleep(0)
        return publications / (time.perf_counter() - start)
