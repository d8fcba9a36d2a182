"""Of which time a node's journal tells: from when to when, with what share of its messages.

What no record tells may have happened all the same: only where a node's record reaches, something
that is not on it did not happen. No Spark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import pyarrow as pa
from msgspec import Struct, field

from waystation.core.visits import DAY
from waystation.journal.schema import INSTANT, NODES, TEXT
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.tables import BUILT, part_of

NAME: Final = "coverage"

_SAMPLE: Final = re.compile(r"\bsample=([0-9]*\.?[0-9]+)")
_ABOUT: Final = re.compile(r"incarnation ([0-9]{1,18}):")
_LOSSES: Final = ("lost", "corrupt")


class Accounts(Struct):
    """What the rows of `nodes` tell about the records of each incarnation."""

    sample: dict[int, float] = field(default_factory=dict)  # the share of messages that is kept
    lost: dict[int, int] = field(default_factory=dict)  # records that are known to be missing

    @classmethod
    def of(cls, nodes: pa.Table) -> Accounts:
        """From the rows of `nodes`, in any order.

        What a crash left incomplete is told by the next incarnation, and counts for its own.
        """
        found = cls()
        names = ("incarnation", "seq", "kind", "detail", "lost")
        rows = list(zip(*(nodes.column(name).to_pylist() for name in names), strict=True))
        known = {incarnation for incarnation, *_ in rows}
        for incarnation, _, kind, detail, lost in sorted(rows, key=_backwards):
            text = detail or ""
            if kind == "start":  # the first of an incarnation comes last
                told = _SAMPLE.search(text)
                found.sample[incarnation] = float(told[1]) if told else 1.0
            elif kind in _LOSSES:
                about = _ABOUT.match(text)
                whose = int(about[1]) if about else incarnation
                whose = whose if whose in known else incarnation
                found.lost[whose] = found.lost.get(whose, 0) + (lost or 0)
        return found


def _backwards(row: tuple[int, int, str, str | None, int | None]) -> tuple[int, int]:
    return row[0], -row[1]


def coverage(data: FileData, asked: Collection[str] = ()) -> Iterator[pa.Table]:
    """The incarnations of a node, and what is on record of each."""
    del asked  # it makes one table
    lives = data.lifetimes()
    accounts = Accounts.of(data.small_table(NODES))
    found = covered(data.node, lives.begins(), lives.ends(), data.latest(), accounts, data.unsealed)
    yield part_of(NAME, found)


def covered(
    node: str,
    begins: Mapping[int, int],
    ends: Mapping[int, tuple[int, bool]],
    latest: Mapping[int, int],
    accounts: Accounts,
    unsealed: Collection[int],
) -> pa.Table:
    """The rows of one node, from when incarnations began, ended, and were last heard of."""
    numbers = sorted(begins)
    begun = [begins[number] for number in numbers]
    ended = [ends.get(number) for number in numbers]
    columns = [
        pa.array([node] * len(numbers), TEXT),
        pa.array(numbers, pa.int64()),
        pa.array(begun, pa.int64()).view(INSTANT),
        pa.array(
            [max(at, latest.get(number, at)) for number, at in zip(numbers, begun, strict=True)],
            pa.int64(),
        ).view(INSTANT),
        pa.array([accounts.sample.get(number, 1.0) for number in numbers], pa.float64()),
        pa.array([accounts.lost.get(number, 0) for number in numbers], pa.int64()),
        pa.array([number not in unsealed for number in numbers], pa.bool_()),
        pa.array([None if end is None else "stop" if end[1] else "crash" for end in ended], TEXT),
        pa.array([at // DAY for at in begun], pa.date32()),
    ]
    return pa.table(columns, schema=BUILT[NAME])
