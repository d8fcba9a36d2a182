"""What moved at a past moment, for a replay, and how much moved when, for a timeline.

Of each file its seconds are counted once; of a tail, what is new in it. Rows are read only from the
files, and there only from the row groups, that can have some of the window. This module needs
pyarrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.journal.layout import SEALED, files_in, nodes_of, table_directory, tails_in
from waystation.journal.read import (
    UNREADABLE,
    instants_as_integers,
    read_sealed,
    read_tail,
    sealed_between,
)
from waystation.journal.schema import MESSAGES

MAX_COUNTED: Final = 20_000_000
"""Maximum number of rows that are counted for the timeline; the newest files come first."""

BUCKETS: Final = 160
"""Maximum number of parts of a timeline; none is shorter than a second."""

SECOND: Final = 1_000_000

_COLUMNS: Final = (
    "incarnation", "seq", "at", "message_id", "outcome", "reason", "recipient", "out", "next_node",
    "internal",
)  # fmt: skip


class Fleet(Protocol):
    """What must be known of the nodes whose messages moved."""

    def clock_ahead(self, node: str, at: int) -> int:
        """How far a node's clock is ahead of the reference, in microseconds."""

    def peer_over(self, node: str, incarnation: int, session: str | None) -> str:
        """What a session of a node led to; empty if that is not known."""


class Move(Struct, frozen=True):
    """A step of a message: it left a node for another, or ended there; times corrected."""

    at: int
    node: str
    to: str  # empty if it ended at the node
    outcome: str
    reason: str
    recipient: str
    message_id: str

    @property
    def is_dropped(self) -> bool:
        """Whether it was lost there."""
        return self.outcome == "DROPPED"


class Moves(Struct, frozen=True):
    """What moved in a window, in order; at most so many steps, but all are counted."""

    steps: list[Move]
    total: int
    dropped: int
    rates: dict[tuple[str, str], float]  # messages per second from a node to another
    drops: dict[str, float]  # messages per second that a node dropped


class Bucket(Struct, frozen=True):
    """A part of the timeline: how many rows there were, and how many of them drops."""

    messages: int
    drops: int


class Timeline(Struct, frozen=True):
    """How much moved when, between two times in microseconds."""

    first: int
    last: int
    buckets: list[Bucket]
    most: int
    is_cut: bool  # whether there are older files that were not counted


class _Counted(Struct):
    """The seconds of a file, by the clock of its node: rows and drops of each."""

    node: str
    rows: Counter[int]
    drops: Counter[int]
    end: int = 0  # of a tail: where the last read ended
    schema: pa.Schema | None = None

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The first and the last of its microseconds; None without rows."""
        if not self.rows:
            return None
        return min(self.rows) * SECOND, (max(self.rows) + 1) * SECOND


class Movements:
    """The messages of a journal by time."""

    def __init__(self, journal: Path, *, max_counted: int = MAX_COUNTED) -> None:
        self._journal = journal
        self._max_counted = max_counted
        self._files: dict[Path, _Counted] = {}
        self._uncounted: set[Path] = set()

    # The timeline

    def refresh(self) -> None:
        """Count what is new."""
        present: set[Path] = set()
        budget = self._max_counted - sum(sum(one.rows.values()) for one in self._files.values())
        for node, path in self._listed():
            present.add(path)
            if path.suffix == SEALED and (path in self._files or budget <= 0):
                self._uncounted |= {path} - self._files.keys()
                continue
            known = self._files.setdefault(path, _Counted(node, Counter(), Counter()))
            before = sum(known.rows.values())
            try:
                for batch in self._new_in(path, known):
                    _count(batch, known)
            except UNREADABLE:
                continue  # sealed meanwhile, or damaged: `waystation journal check` reports that
            budget -= sum(known.rows.values()) - before
        self._files = {path: one for path, one in self._files.items() if path in present}
        self._uncounted &= present

    def _listed(self) -> Iterator[tuple[str, Path]]:
        """All files with their nodes, the newest of each node first."""
        for node in nodes_of(self._journal, MESSAGES):
            directory = table_directory(self._journal, MESSAGES, node)
            tails = tails_in(directory)
            sealed = {stem: directory / stem.sealed for stem in files_in(directory, SEALED)}
            for stem in sorted({*tails, *sealed}, reverse=True):
                yield node, sealed.get(stem) or tails[stem]

    def _new_in(self, path: Path, known: _Counted) -> Iterator[pa.RecordBatch]:
        if path.suffix == SEALED:
            return read_sealed(path)
        content = read_tail(path, known.end, known.schema)
        if content.schema is not None:
            known.end, known.schema = content.end, content.schema
        return iter(content.batches)

    def timeline(self, first: int | None, last: int | None, fleet: Fleet) -> Timeline | None:
        """How much moved when, by the reference clock; None if nothing is on record."""
        known = [
            (low - fleet.clock_ahead(one.node, low), high - fleet.clock_ahead(one.node, high))
            for one in self._files.values()
            if one.bounds is not None
            for low, high in [one.bounds]
        ]
        begins = [low for low, _ in known] + ([first] if first is not None else [])
        ends = [high for _, high in known] + ([last] if last is not None else [])
        if not begins:
            return None
        low, high = min(begins), max([*ends, min(begins) + SECOND])
        parts = max(1, min(BUCKETS, (high - low) // SECOND))
        rows, drops = [0] * parts, [0] * parts
        scale = parts / (high - low)
        for one in self._files.values():
            for counts, into in ((one.rows, rows), (one.drops, drops)):
                for second, count in counts.items():
                    middle = second * SECOND + SECOND // 2
                    middle -= fleet.clock_ahead(one.node, middle)
                    into[max(0, min(parts - 1, int((middle - low) * scale)))] += count
        buckets = [Bucket(*both) for both in zip(rows, drops, strict=True)]
        return Timeline(low, high, buckets, max(rows), bool(self._uncounted))

    # A window

    def between(self, since: int, until: int, most: int, fleet: Fleet, *, internals: bool) -> Moves:
        """What moved in [since, until) of the reference clock."""
        steps: list[Move] = []
        seen: set[tuple[str, int, int]] = set()
        for node in nodes_of(self._journal, MESSAGES):
            shift = fleet.clock_ahead(node, since)
            for row in self._rows(node, since + shift, until + shift, internals=internals):
                position = node, row["incarnation"], row["seq"]
                if position not in seen:  # a compacted file may exist beside its sources
                    seen.add(position)
                    over = fleet.peer_over(node, row["incarnation"], row["out"])
                    steps.append(_move(node, row, over, shift))
        steps.sort(key=lambda step: (step.at, step.node))
        seconds = max(1, until - since) / SECOND
        counts = Counter((step.node, step.to) for step in steps if step.to)
        drops = Counter(step.node for step in steps if step.is_dropped)
        return Moves(
            _thinned(steps, most),
            len(steps),
            drops.total(),
            {ends: count / seconds for ends, count in counts.items()},
            {node: count / seconds for node, count in drops.items()},
        )

    def _rows(
        self, node: str, since: int, until: int, *, internals: bool
    ) -> Iterator[dict[str, Any]]:
        directory = table_directory(self._journal, MESSAGES, node)
        for batch in self._batches(directory, since, until):
            times = batch.column("at").cast(pa.int64())
            wanted = pc.and_(pc.greater_equal(times, since), pc.less(times, until))
            if not pc.any(wanted).as_py():
                continue
            if not internals and "internal" in batch.schema.names:  # not in the first version
                wanted = pc.and_not(wanted, pc.fill_null(batch.column("internal"), False))
            present = [name for name in _COLUMNS if name in batch.schema.names]
            rows = instants_as_integers(batch.select(present).filter(wanted)).to_pylist()
            lacking = dict.fromkeys(set(_COLUMNS) - set(present))
            yield from ({**lacking, **row} for row in rows)

    def _batches(self, directory: Path, since: int, until: int) -> Iterator[pa.RecordBatch]:
        tails = tails_in(directory)
        sealed = {stem: directory / stem.sealed for stem in files_in(directory, SEALED)}
        for stem in sorted({*tails, *sealed}):
            path = sealed.get(stem) or tails[stem]
            if not self._may_hold(path, since, until):
                continue
            try:
                if path.suffix == SEALED:
                    yield from sealed_between(path, _COLUMNS, since, until)
                else:
                    yield from read_tail(path).batches
            except UNREADABLE:
                continue

    def _may_hold(self, path: Path, since: int, until: int) -> bool:
        known = self._files.get(path)
        if known is None:
            return True
        if known.bounds is None:
            return path.suffix != SEALED
        is_over = path.suffix == SEALED and known.bounds[1] <= since  # a tail may have grown
        return known.bounds[0] < until and not is_over


def _count(batch: pa.RecordBatch, into: _Counted) -> None:
    seconds = pc.divide(batch.column("at").cast(pa.int64()), SECOND)
    into.rows.update(_value_counts(seconds))
    dropped = pc.equal(batch.column("outcome"), "DROPPED")
    into.drops.update(_value_counts(seconds.filter(pc.fill_null(dropped, False))))


def _value_counts(seconds: pa.Array) -> dict[int, int]:
    counts = seconds.value_counts()
    pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    return {second: count for second, count in pairs if second is not None}


def _move(node: str, row: dict[str, Any], over: str, shift: int) -> Move:
    to = row["next_node"] or over
    return Move(
        row["at"] - shift,
        node,
        to if row["outcome"] == "FORWARDED" else "",
        row["outcome"] or "",
        row["reason"] or "",
        row["recipient"] or "",
        row["message_id"] or "",
    )


def _thinned(steps: list[Move], most: int) -> list[Move]:
    """At most so many of them: drops first, and the others evenly spread."""
    if len(steps) <= most:
        return steps
    drops = [step for step in steps if step.is_dropped][:most]
    others = [step for step in steps if not step.is_dropped]
    room = most - len(drops)
    kept = [others[number * len(others) // room] for number in range(room)] if room else []
    return sorted([*drops, *kept], key=lambda step: (step.at, step.node))
