"""A node's rate against the size of its routing table: what a message costs must not grow with it.

Messages go to participants elsewhere, a thousand different ones in turn, by way of a carrier that
only counts: what is measured is the look-up, the decision, and the record of it.
"""

from __future__ import annotations

import random
import time
from functools import partial

import waystation
from benchmarks.harness import Report, in_turns, medians_of, resident_bytes
from waystation import Address, Message, Node, Route
from waystation.core.outcome import Reason
from waystation.core.routing import RoutingEntry

PACKAGES = ("msgspec", "uvloop")
TURNS = 5
MESSAGES = 100_000
SIZES = (1_000, 100_000, 1_000_000)


def run(report: Report) -> None:
    rates = in_turns({f"{size:,} entries": partial(_rate, size) for size in SIZES}, TURNS)
    report.note("messages to participants elsewhere", medians_of(rates), "msg/s")
    report.add("an entry in the table", "waystation", _bytes_each(), "bytes")


def _fill(node: Node, entries: int) -> None:
    def take(message: Message, address: Address) -> Reason | None:  # noqa: ARG001
        return None

    number = node.register_type("nowhere", take)
    for each in range(entries):
        entry = RoutingEntry(f"truck-{each}", Address(number, b"%d" % (each % 500)), local=False)
        node.router.table.put(entry, now=0)


def _rate(entries: int) -> float:
    return waystation.run(_measure(entries))


async def _measure(entries: int) -> float:
    async with Node("hub") as node:
        _fill(node, entries)
        rng = random.Random(1)
        routes = [Route.parse(f"truck-{rng.randrange(entries)}") for _ in range(1_000)]
        start = time.perf_counter()
        for number in range(MESSAGES):
            await node.send(routes[number % 1_000], b"x" * 100)
        return MESSAGES / (time.perf_counter() - start)


def _bytes_each() -> float:
    node = Node("hub")
    before = resident_bytes()
    _fill(node, 200_000)
    return (resident_bytes() - before) / 200_000
