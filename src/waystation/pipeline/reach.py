"""Whose records there are, and how far they reach: what is told before anything else.

Where no record reaches, nothing is said to be lost. No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct

from waystation.core.incidents import FLEET, Covered
from waystation.pipeline.inprocess import covered_of, plain_rows
from waystation.pipeline.tables import TAKEN
from waystation.why.finished import StoredTables

TELLING: Final = ("coverage", "session_history")
"""The tables that tell it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED: Final = 3  # missing nodes


class Reach(Struct, frozen=True):
    """Whose records there are, and how far they reach."""

    nodes: int
    missing: list[str]  # nodes that others had sessions with, and that have no record
    complete_until: int | None  # microseconds since the epoch

    @classmethod
    def of(cls, coverage: Iterable[Covered], peers: Iterable[str]) -> Reach:
        """From the lives of nodes, and the names of nodes that they had sessions with."""
        last: dict[str, Covered] = {}
        for life in coverage:
            if life.node not in last or last[life.node].from_time < life.from_time:
                last[life.node] = life
        alive = [life.to_time for life in last.values() if life.ended_by is None]
        ends = [life.to_time for life in last.values()]
        until = min(alive) if alive else max(ends, default=None)
        return cls(len(last), sorted({*peers} - last.keys()), until)

    def said(self, named: Callable[[str], str] = str) -> str:
        """The same for people; `named` shows a name.

        >>> Reach(2, ["truck-7"], 0).said()
        '2 of 3 nodes, complete until 1970-01-01 00:00:00 UTC; no record of truck-7'
        """
        until = self.complete_until
        complete = "" if until is None else f", complete until {_clock(until)}"
        first = ", ".join(map(named, self.missing[:_NAMED]))
        others = len(self.missing) - _NAMED
        more = f" and {others:,} more" if others > 0 else ""
        missing = f"; no record of {first}{more}" if self.missing else ""
        return f"{self.nodes:,} of {self.nodes + len(self.missing):,} nodes{complete}{missing}"


def reach_in_tables(tables: StoredTables) -> Reach | None:
    """How far the tables of a build reach; None if it made no table that tells."""
    coverage, sessions = (tables.dataset(name) for name in TELLING)
    return None if coverage is None or sessions is None else reach_in(coverage, sessions)


def reach_in(coverage: ds.Dataset, sessions: ds.Dataset) -> Reach:
    """How far records reach, from the tables `coverage` and `session_history`."""
    lives, peers = [], []
    if coverage.files:
        found = coverage.to_table(columns=TAKEN["coverage"].names).cast(TAKEN["coverage"])
        lives = [covered_of(row) for row in plain_rows(found)]
    if sessions.files:
        met = sessions.to_table(columns=["peer"], filter=pc.field("role").isin(FLEET))
        peers = pc.unique(met.column("peer")).drop_null().to_pylist()
    return Reach.of(lives, peers)


def _clock(at: int) -> str:
    return (_EPOCH + timedelta(microseconds=at)).strftime("%Y-%m-%d %H:%M:%S UTC")
