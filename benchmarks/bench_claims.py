"""What announcements cost a hub: from many leaves, again, and beside a million other names.

Sessions are over a network in memory, and the payloads of leaves are handed to the hub as if a link
had brought them: what is measured is what the hub does with them. A change of one name must not
cost more because there are many.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from msgspec import structs

import waystation
from benchmarks.harness import Report, in_turns, medians_of
from waystation import Node
from waystation.node import Limits
from waystation.testing import MemoryNetwork, until
from waystation.wire.hierarchy import Announce, Withdraw, encode

PACKAGES = ("msgspec", "uvloop")
TURNS = 5
LEAVES = 10_000
NAMES = 5  # of each leaf
CHANGES = 2_000
SIZES = (1_000, 100_000, 1_000_000)
LIMITS = Limits(heartbeat=0.0, participants=10_000_000, sessions=1_000_000)


def run(report: Report) -> None:
    once = in_turns({"first": partial(announce, 1), "again": partial(announce, 2)}, TURNS)
    report.note(f"names of {LEAVES:,} leaves announced", medians_of(once), "names/s")
    sizes = in_turns({f"{size:,} names": partial(relay, size) for size in SIZES}, TURNS)
    report.note("changes of a name, relayed to a parent", medians_of(sizes), "changes/s")


def announce(times: int) -> float:
    """Names a second that a hub takes, the last of so many times that they are announced."""
    return waystation.run(_announce(times))


def relay(names: int) -> float:
    """Changes a second that a hub relays while it has so many names."""
    return waystation.run(_relay(names))


async def _announce(times: int) -> float:
    network = MemoryNetwork()
    async with (
        Node("hub", hub=True, transports=[network.transport()], limits=LIMITS) as hub,
        Node("leaves", transports=[network.transport()], limits=LIMITS) as leaves,
    ):
        place = (await hub.listen("mem://any")).place
        for number in range(LEAVES):
            await leaves.connect(f"mem://{place}", name=f"leaf-{number}", keep=False)
        await until(lambda: len(hub.sessions) == LEAVES, seconds=300)
        await until(lambda: all(session.peer for session in hub.sessions), seconds=300)
        for number, session in enumerate(hub.sessions):  # each as if of a node of its own
            greeting = session._greeting  # noqa: SLF001
            assert greeting.peer is not None
            greeting.peer = structs.replace(greeting.peer, node=f"leaf-{number}")
        payloads = [
            encode(Announce([(f"name-{number}-{each}", False, None) for each in range(NAMES)]))
            for number in range(LEAVES)
        ]
        for _ in range(times):
            start = time.perf_counter()
            for session, payload in zip(hub.sessions, payloads, strict=True):
                hub._kernel.hierarchy.receive(session, payload)  # noqa: SLF001 - as a link does
            seconds = time.perf_counter() - start
        assert hub.router.table.contains("name-0-0", hub.now())
        return LEAVES * NAMES / seconds


async def _relay(names: int) -> float:
    network = MemoryNetwork()
    async with (
        Node("top", hub=True, transports=[network.transport()], limits=LIMITS) as top,
        Node("hub", hub=True, transports=[network.transport()], limits=LIMITS) as hub,
        Node("leaf", transports=[network.transport()], limits=LIMITS) as leaf,
    ):
        above, place = [(await each.listen("mem://any")).place for each in (top, hub)]
        await leaf.connect(f"mem://{place}")
        await until(lambda: len(hub.sessions) == 1)
        [session] = hub.sessions
        take = partial(hub._kernel.hierarchy.receive, session)  # noqa: SLF001 - as a link does
        for begin in range(0, names, 256):
            some = range(begin, min(begin + 256, names))
            take(encode(Announce([(f"name-{each}", False, None) for each in some])))
        await hub.connect(f"mem://{above}", parent=True)
        await until(lambda: len(top.router.table) >= names, seconds=600)
        start = time.perf_counter()
        for number in range(CHANGES):
            take(encode(Announce([(f"more-{number}", False, None)])))
            await asyncio.sleep(0)
        await until(lambda: top.router.table.contains(f"more-{CHANGES - 1}", top.now()), 600)
        for number in range(CHANGES):
            take(encode(Withdraw([f"more-{number}"])))
            await asyncio.sleep(0)
        await until(lambda: not top.router.table.contains(f"more-{CHANGES - 1}", top.now()), 600)
        return 2 * CHANGES / (time.perf_counter() - start)
