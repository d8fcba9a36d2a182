"""The routing table: put, look-up and remove in a table of a thousand entries and of a million.

Two kinds of traffic. "hot": the table is that large, and the work of the moment concerns a thousand
participants in it, as on a live node. "sweep": every participant of the table once, in random
order, which measures the machine's memory more than the table; a plain dict doing the same stands
beside it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from benchmarks.harness import Report, resident_bytes, seconds
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry, RoutingTable

SMALL, LARGE = 1_000, 1_000_000
HOT = 1_000
TURNS = 7
PER_ADDRESS = 100  # participants behind one connection


def entries(count: int, prefix: str, rng: random.Random) -> list[RoutingEntry]:
    addresses = [Address(3, b"connection-%d" % number) for number in range(max(1, count // 100))]
    made = [
        RoutingEntry(
            f"{prefix}-{number:07d}",
            addresses[number // PER_ADDRESS],
            local=True,
            expiry=10_000_000 + rng.randrange(3_600_000),
        )
        for number in range(count)
    ]
    rng.shuffle(made)
    return made


def filled(count: int, rng: random.Random) -> RoutingTable:
    table = RoutingTable([Address(7, b"own/inbox")])
    for entry in entries(count, "participant", rng):
        table.put(entry, now=0)
    table.purge(now=0)
    return table


class Work:
    """The four operations on some participants of one table."""

    def __init__(self, table: RoutingTable, chosen: list[RoutingEntry]) -> None:
        self.table = table
        self.names = [entry.participant for entry in chosen]
        self.rows = [(entry.participant, entry.address, entry.expiry) for entry in chosen]

    def put(self) -> None:
        put = self.table.put
        for participant, address, expiry in self.rows:
            put(RoutingEntry(participant, address, True, False, expiry), 5)

    def look_up(self) -> None:
        lookup = self.table.lookup
        for name in self.names:
            lookup(name, 5)

    def extend(self) -> None:
        put = self.table.put
        for participant, address, expiry in self.rows:
            put(RoutingEntry(participant, address, True, False, expiry + 60_000), 5)

    def remove(self) -> None:
        remove = self.table.remove
        for name in self.names:
            remove(name, 5)


class DictWork:
    """The same operations on a plain dict, which keeps no rule: the floor."""

    def __init__(self, table: dict[str, RoutingEntry], chosen: list[RoutingEntry]) -> None:
        self.table = table
        self.names = [entry.participant for entry in chosen]
        self.rows = [(entry.participant, entry.address, entry.expiry) for entry in chosen]

    def put(self) -> None:
        table = self.table
        for participant, address, expiry in self.rows:
            table[participant] = RoutingEntry(participant, address, True, False, expiry)

    def look_up(self) -> None:
        get = self.table.get
        for name in self.names:
            get(name)

    def extend(self) -> None:
        self.put()

    def remove(self) -> None:
        for name in self.names:
            del self.table[name]


def measure(
    report: Report, case: str, work: dict[str, Work | DictWork], rounds: int
) -> dict[tuple[str, str], float]:
    """Nanoseconds of each operation for each subject; the subjects take turns."""
    operations = ("put", "look_up", "extend", "remove")
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(TURNS):
        for subject, doer in work.items():
            spent = dict.fromkeys(operations, 0.0)
            for _ in range(rounds):
                for operation in operations:
                    method: Callable[[], None] = getattr(doer, operation)
                    spent[operation] += seconds(method, collect=False)
            for operation, total in spent.items():
                each = total / rounds / len(doer.names)
                times.setdefault((subject, operation), []).append(each)
    medians = {key: statistics.median(values) for key, values in times.items()}
    for (subject, operation), median in sorted(medians.items(), key=lambda item: item[0][1]):
        report.add(f"{case} {operation}", subject, 1 / median, "ops/s")
    return medians


def run(report: Report) -> None:
    rng = random.Random(20)
    before = resident_bytes()
    large = filled(LARGE, rng)
    report.add("memory", "RoutingTable", (resident_bytes() - before) / LARGE, "bytes/entry")
    before = resident_bytes()
    plain = {entry.participant: entry for entry in entries(LARGE, "plain", rng)}
    report.add(
        "memory", "dict of the same entries", (resident_bytes() - before) / LARGE, "bytes/entry"
    )

    hot = entries(HOT, "hot", rng)
    medians = measure(
        report,
        "hot",
        {
            "RoutingTable, 1 k": Work(filled(SMALL, rng), hot),
            "RoutingTable, 1 M": Work(large, hot),
            "dict, 1 k": DictWork(
                {entry.participant: entry for entry in entries(SMALL, "x", rng)}, hot
            ),
            "dict, 1 M": DictWork(plain, hot),
        },
        rounds=20,
    )
    for operation in ("put", "look_up", "extend", "remove"):
        for subject in ("RoutingTable", "dict"):
            small, big = (
                medians[f"{subject}, 1 k", operation],
                medians[f"{subject}, 1 M", operation],
            )
            report.add(f"hot {operation}", f"{subject}: cost at 1 M / at 1 k", big / small, "ratio")

    del large, plain
    everyone = entries(LARGE, "everyone", rng)
    measure(
        report,
        "sweep",
        {
            "RoutingTable, 1 M": Work(RoutingTable(), everyone),
            "dict, 1 M": DictWork({}, everyone),
        },
        rounds=1,
    )
