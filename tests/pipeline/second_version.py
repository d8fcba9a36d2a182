"""Small journals of the second version, written by hand: a hub, its leaves, and their clocks.

Messages go from leaf to leaf over the hub, and are answered; some are for all leaves, wait for an
absent one, or vanish on the way. Leaves whose clocks are wrong are corrected by what the hub
measured of them. Times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_rows, row
from waystation.core.coverage import is_sampled

LEAVES = ("leaf-1", "leaf-2", "leaf-3")
AHEAD = {"hub": 0, "leaf-1": 2 * SECOND, "leaf-2": -SECOND, "leaf-3": 0}
STEP = SECOND // 5

Row = dict[str, Any]


class SmallFleet:
    """A hub and its leaves, while they write their journals."""

    def __init__(self, seed: int, messages: int = 40) -> None:
        self._random = Random(seed)
        self._now = 10 * SECOND  # after BEGIN
        self._rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self._seq: dict[str, int] = defaultdict(int)
        self.vanished: set[str] = set()
        for node in AHEAD:
            self._write(node, "nodes", detail="waystation 0.2.0 sample=1.0")
        for leaf in LEAVES:
            told = {"session": leaf, "role": "leaf", "peer": leaf}
            self._write("hub", "sessions", **told)
            clock = {"offset_us": AHEAD[leaf], "rtt_us": 100}
            self._write("hub", "sessions", kind="clock", **told, **clock)
        for number in range(1, messages + 1):
            self._message(number)
        self._now += 60 * SECOND
        for node in AHEAD:  # so far their records reach
            self._write(node, "members")

    def _write(self, node: str, table: str, **columns: Any) -> None:
        seq = self._seq[node]
        self._seq[node] += 1
        self._rows[node, table].append(row(table, seq, self._now + AHEAD[node], **columns))

    def _tick(self) -> int:
        self._now += self._random.randint(1, STEP)
        return self._now

    def _message(self, number: int) -> None:
        self._now += STEP
        sender, receiver = self._random.sample(LEAVES, 2)
        id, fate = f"{number:032x}", self._random.random()
        if fate < 0.2:
            self._to_all(id, sender)
            return
        lost = fate > 0.8
        self._way(id, [sender, "hub", receiver], lost=lost, waits=fate < 0.35)
        if not lost and fate > 0.5:
            self._way(f"{1000 + number:032x}", [receiver, "hub", sender], answers=id)

    def _visit(self, id: str, node: str, former: str | None, back: list[str]) -> Row:
        return {
            "message_id": id,
            "onward": ["0#worker"],
            "return": back,
            "recipient": "worker",
            "received_at": BEGIN + self._tick() + AHEAD[node],
            "via": None if former is None else f"to-{former}",
            "from_node": former,
            "origin": f"{node}/{INCARNATION}" if former is None else None,
        }

    def _way(
        self,
        id: str,
        nodes: list[str],
        *,
        lost: bool = False,
        waits: bool = False,
        answers: str | None = None,
    ) -> None:
        back: list[str] = []
        former = None
        for place, node in enumerate(nodes):
            visit = {**self._visit(id, node, former, back), "answers": None if place else answers}
            if waits and node == "hub":
                self._tick()
                self._write(node, "messages", **visit, outcome="QUEUED")
                if self._random.random() < 0.5:
                    return
            self._tick()
            if place + 1 == len(nodes):
                self._write(node, "messages", **visit)
                return
            left = {"outcome": "FORWARDED", "out": f"to-{nodes[place + 1]}"}
            self._write(node, "messages", **visit, **left, next_node=nodes[place + 1])
            if lost and node == "hub":
                self.vanished.add(id)
                return
            back, former = [f"0#to-{node}", *back], node

    def _to_all(self, id: str, sender: str) -> None:
        common = {"kind": "multicast", "multicast_id": "p/b"}
        visit = {**self._visit(id, sender, None, []), **common, "recipient": None}
        self._tick()
        self._write(sender, "messages", **visit, outcome="FORWARDED", out="to-hub", next_node="hub")
        visit = {**self._visit(id, "hub", sender, ["0#a"]), **common}
        self._tick()
        reached = [leaf for leaf in LEAVES if leaf != sender]
        for leaf in reached:
            left = {"outcome": "FORWARDED", "out": f"to-{leaf}", "next_node": leaf, "copy": 0}
            self._write("hub", "messages", **{**visit, "recipient": f"{leaf}/1"}, **left)
        for leaf in reached:
            arrived = {**self._visit(id, leaf, "hub", ["0#b", "0#a"]), **common}
            self._tick()
            if self._random.random() < 0.8:
                self._write(leaf, "messages", **{**arrived, "recipient": f"{leaf}/1"})
            else:
                self.vanished.add(id)

    def sample(self, node: str, share: float) -> None:
        """Let a node keep a share of its messages only."""
        self._rows[node, "nodes"][0]["detail"] = f"waystation 0.2.0 sample={share}"
        rows = self._rows[node, "messages"]
        rows[:] = [found for found in rows if is_sampled(found["message_id"], share)]

    def write(self, journal: Path, chunk: int = 10_000) -> list[str]:
        """Write it to a journal, in files of this many rows; returns their paths in it."""
        found = []
        for (node, table), rows in self._rows.items():
            for first in range(0, len(rows), chunk):
                part = rows[first : first + chunk]
                path = put_rows(journal, table, part, node, version=2)
                found.append(str(path.relative_to(journal)))
        return found
