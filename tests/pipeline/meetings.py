"""Random journals of nodes that meet: their sessions, what these measured, and how nodes ended."""

from __future__ import annotations

import random
from collections import defaultdict

from tests.pipeline.journals import BEGIN
from waystation.testing.oracle import Row, Tables

NAMES = ("hub", "left", "right", "far", "alone")
HOUR = 3_600_000_000


def meetings(seed: int) -> Tables:
    """The rows of some nodes with several incarnations, in any order."""
    rng = random.Random(seed)
    tables: Tables = defaultdict(list)
    for node in NAMES:
        at, incarnation = BEGIN + rng.randrange(HOUR), BEGIN // 1_000
        for _ in range(rng.randint(1, 3)):
            at = _live(rng, tables, node, incarnation, at)
            at += rng.choice([0, 0, 1, HOUR // 2, -7])
            incarnation += rng.choice([1, 5_000])
    for rows in tables.values():
        rng.shuffle(rows)
    return tables


def _live(rng: random.Random, tables: Tables, node: str, incarnation: int, at: int) -> int:
    seq = 0

    def add(table: str, **fields: object) -> None:
        nonlocal seq
        row: Row = {"node": node, "incarnation": incarnation, "seq": seq, "at": at, **fields}
        tables[table].append(row)
        seq += 1

    if rng.random() < 0.8:
        sample = rng.choice(["process 7", "waystation 0.2.0 sample=0.25", ""])
        add("nodes", kind="start", detail=sample, lost=0)
    for _ in range(rng.randint(0, 60)):
        at += rng.choice([0, 1, 1_000, 5_000_000, HOUR // 9, -3])
        if rng.random() < 0.1:
            add("subscriptions", kind="subscribe", pattern="p/b", receiver=node)
        elif rng.random() < 0.1:
            earlier = f"incarnation {incarnation - rng.choice([1, 5_000, 77])}: torn"
            detail = rng.choice(["the writer could not keep up", earlier])
            add("nodes", kind="lost", detail=detail, lost=rng.randint(0, 9))
        else:
            add("sessions", **_event(rng, node))
    if rng.random() < 0.5:
        add("nodes", kind="stop", detail="closed", lost=0)
    return at


def _event(rng: random.Random, node: str) -> Row:
    peer = rng.choice([None, *NAMES])
    kind = rng.choice(["open", "open", "close", "clock", "clock", "refused", "denied"])
    measured = kind == "clock"
    return {
        "kind": kind,
        "session": rng.choice(["one", "two", f"to {peer}"]),
        "role": rng.choice([None, "peer", "leaf", "parent"]),
        "transport": rng.choice([None, "tcp"]),
        "place": f"1#{node}:{rng.randint(1, 3)}",
        "peer": peer,
        "identity": rng.choice([None, None, peer]),
        "reason": rng.choice([None, "TRANSPORT_DOWN"]) if kind == "close" else None,
        "offset_us": rng.randint(-9_000, 9_000) if measured else None,
        "rtt_us": rng.choice([None, 5, 5, 70, 900]) if measured else None,
    }
