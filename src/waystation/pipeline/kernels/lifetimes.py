"""When the incarnations of a node began and ended (CONTRACT): folds are cut at the end of theirs.

Only that; no files and no Spark.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from waystation.pipeline.kernels.columns import NEVER, Flags, Longs, numbered

REPLACED, REMOVED, EXPIRED, STOPPED, RESTART, OPEN = range(6)
"""The cause of an interval's end, or that it is open."""


class Lifetimes:
    """The starts and stops of one node's incarnations, collected from its tables.

    >>> lives = Lifetimes()
    >>> lives.begin(1, seq=0, at=100)
    >>> lives.begin(2, seq=0, at=500)
    >>> lives.ends()
    {1: (500, False)}
    """

    def __init__(self) -> None:
        self._started: dict[int, tuple[int, int]] = {}  # incarnation: seq and at of its start row
        self._first: dict[int, tuple[int, int]] = {}  # of its first record of any kind
        self._stopped: dict[int, tuple[int, int]] = {}

    def begin(self, incarnation: int, seq: int, at: int) -> None:
        """Add a record of an incarnation; the one with the lowest seq counts."""
        _keep_least(self._first, incarnation, (seq, at))

    def add(self, nodes: pa.Table) -> None:
        """Add rows of the table `nodes`."""
        kinds = nodes.column("kind").to_pylist()
        ats = nodes.column("at").cast(pa.int64()).to_pylist()
        rows = zip(
            nodes.column("incarnation").to_pylist(),
            nodes.column("seq").to_pylist(),
            ats,
            strict=True,
        )
        for kind, (incarnation, seq, at) in zip(kinds, rows, strict=True):
            self.begin(incarnation, seq, at)
            if kind == "start":
                _keep_least(self._started, incarnation, (seq, at))
            elif kind == "stop":
                _keep_least(self._stopped, incarnation, (seq, at))

    def add_firsts(self, events: pa.Table) -> None:
        """Add the first record of each incarnation among these rows."""
        if not events.num_rows:
            return
        keys = pa.table(
            {
                "incarnation": events.column("incarnation"),
                "seq": events.column("seq"),
                "at": events.column("at").cast(pa.int64()),
            }
        )
        least = keys.group_by("incarnation").aggregate([("seq", "min")])
        for row in keys.join(least, ["incarnation", "seq"], ["incarnation", "seq_min"]).to_pylist():
            self.begin(row["incarnation"], row["seq"], row["at"])

    def first_seq(self, incarnation: int) -> int | None:
        """The lowest known seq of an incarnation."""
        found = self._first.get(incarnation)
        return None if found is None else found[0]

    def started(self, incarnation: int) -> bool:
        """Whether the start row of an incarnation is known."""
        return incarnation in self._started

    def begins(self) -> dict[int, int]:
        """When each incarnation began: at its start row, else at its first record."""
        return {number: at for number, (_, at) in sorted({**self._first, **self._started}.items())}

    def ends(self) -> dict[int, tuple[int, bool]]:
        """When each incarnation ended, if it did, and whether by a stop."""
        found = {}
        for (incarnation, _), (_, at) in pairwise(self.begins().items()):
            found[incarnation] = (at, False)
        for incarnation, (_, at) in self._stopped.items():
            found[incarnation] = (at, True)
        return found

    def ends_of(self, incarnations: Longs) -> tuple[Longs, Flags]:
        """For each row: when its incarnation ended, or the maximum; and whether by a stop."""
        numbers, rows = numbered(incarnations)
        ends = self.ends()
        found = [ends.get(number, (NEVER, False)) for number in numbers.tolist()]
        instants = np.array([at for at, _ in found], np.int64)
        stops = np.array([stopped for _, stopped in found], np.bool_)
        return instants[rows], stops[rows]


def cut(lifetimes: Lifetimes, incarnation: Longs, to: Longs, why: Longs) -> None:
    """Cut intervals, in place, at the end of their incarnation."""
    ends, stopped = lifetimes.ends_of(incarnation)
    beyond = ends < to
    to[beyond] = ends[beyond]
    why[beyond] = np.where(stopped[beyond], STOPPED, RESTART)


def _keep_least(kept: dict[int, tuple[int, int]], incarnation: int, found: tuple[int, int]) -> None:
    if incarnation not in kept or found < kept[incarnation]:
        kept[incarnation] = found
