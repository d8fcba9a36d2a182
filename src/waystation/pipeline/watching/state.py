"""The state of each node between two batches: its files, the ends of incarnations, the hot range.

Values only, and how they are read from a footer; node_step.py uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct, field

from waystation.core.corrections import Link
from waystation.core.coverage import NodeRow
from waystation.journal.pruning import instant_bounds, number_bounds
from waystation.journal.read import parquet_footer
from waystation.pipeline.kernels.checks import LAST as LAST_AT
from waystation.pipeline.kernels.coverage import Accounts
from waystation.pipeline.kernels.lifetimes import Lifetimes
from waystation.pipeline.kernels.node_data import UNREADABLE
from waystation.pipeline.kernels.normal import UnfitError, check_columns
from waystation.pipeline.listing import File
from waystation.pipeline.watching.segments import FIRST, LAST, Segment

Files = dict[str, list[File]]
"""The files of a node by table."""


class Known(Struct, frozen=True):
    """A file of the journal that was read, with the values from its footer.

    Bounds are the minimum and the maximum; None means unknown, so it may be any.
    """

    file: File
    rows: int = 0
    incarnation: int | None = None  # if all rows have the same one
    seq: tuple[int, int] | None = None
    at: tuple[int, int] | None = None
    received: tuple[int, int] | None = None
    fits: bool = True  # whether it has the columns of its table

    @property
    def is_numbered(self) -> bool:
        """Whether it is known which rows it may share with other files."""
        return not self.rows or (self.incarnation is not None and self.seq is not None)

    @property
    def tells_its_end(self) -> bool:
        """Whether it is known when its last record was made."""
        return (
            self.fits
            and bool(self.rows)
            and self.incarnation is not None
            and self.incarnation >= 0
            and self.at is not None
            and self.at[0] >= 0
            and self.at[1] <= LAST_AT
        )

    def shares_with(self, other: Known) -> bool:
        """Whether a row may be in both files."""
        if not self.rows or not other.rows:
            return False
        if self.seq is None or other.seq is None or None in (self.incarnation, other.incarnation):
            return True
        return (
            self.incarnation == other.incarnation
            and self.seq[0] <= other.seq[1]
            and other.seq[0] <= self.seq[1]
        )


class NodeState(Struct):
    """What is known about a node.

    Messages received from `hot` on are kept in memory, since the next batch will very likely have
    more records of them. So are the tallies of the windows from `window` on, and the closed
    intervals that reach beyond `past`.
    """

    files: dict[str, list[Known]] = field(default_factory=dict)
    ends: dict[int, tuple[int, bool]] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    unstarted: set[int] = field(default_factory=set)  # incarnations without a start row
    accounts: Accounts = field(default_factory=Accounts)
    reached: dict[int, int] = field(default_factory=dict)  # the last `at` of each incarnation
    latest: dict[str, dict[int, int]] = field(default_factory=dict)  # `at`, by table, incarnation
    final: dict[int, int] = field(default_factory=dict)  # the last end among closed intervals
    received: int = FIRST  # the latest of all messages
    hot: int = FIRST
    window: int = FIRST
    past: int = LAST
    waiting: dict[str, int] = field(default_factory=dict)  # queued, without an outcome so far
    told: list[NodeRow] = field(default_factory=list)  # all rows of `nodes`
    links: dict[int, list[Link]] = field(default_factory=dict)  # what it measured, by the hour
    brokers: list[tuple[int, str]] = field(default_factory=list)
    peers: dict[int, set[str]] = field(default_factory=dict)  # of its messages, by the hour

    def all_files(self) -> Files:
        """Its files as the journal lists them."""
        return {table: [known.file for known in files] for table, files in self.files.items()}


class BucketState(Struct):
    """The state of some nodes, and the segments of their tables."""

    nodes: dict[str, NodeState] = field(default_factory=dict)
    segments: dict[str, list[Segment]] = field(default_factory=dict)


class Ends(Lifetimes):
    """The ends of incarnations that are already known."""

    def __init__(self, ends: Mapping[int, tuple[int, bool]]) -> None:
        super().__init__()
        self._ends = dict(ends)

    def ends(self) -> dict[int, tuple[int, bool]]:
        """When each incarnation ended, if it did, and whether by a stop."""
        return self._ends


def encoded(state: BucketState) -> bytes:
    """Serialize a state."""
    return msgspec.msgpack.encode(state)


def decoded(state: bytes) -> BucketState:
    """Deserialize a state."""
    return msgspec.msgpack.decode(state, type=BucketState)


def known_files(system: Any, directory: str, files: Files) -> dict[str, list[Known]]:
    """The files with the values from their footers; none of those that cannot be read."""
    return {
        table: [_known(system, directory, table, file) for file in found]
        for table, found in files.items()
    }


def _known(system: Any, directory: str, table: str, file: File) -> Known:
    try:
        footer = parquet_footer(system, f"{directory}/{file.path}")
    except UNREADABLE:
        return Known(file)  # its reader reports it as a reject
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if not groups:
        return Known(file)
    incarnations = _bounds(number_bounds(group, "incarnation") for group in groups)
    same = incarnations is not None and incarnations[0] == incarnations[1]
    return Known(
        file,
        footer.num_rows,
        incarnations[0] if incarnations is not None and same else None,
        _bounds(number_bounds(group, "seq") for group in groups),
        _bounds(instant_bounds(group, "at") for group in groups),
        _bounds(instant_bounds(group, "received_at") for group in groups),
        _fits(table, footer),
    )


def _fits(table: str, footer: Any) -> bool:
    try:
        check_columns(table, footer.schema.to_arrow_schema())
    except (UnfitError, pa.ArrowException):
        return False
    return True


def _bounds(found: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    pairs = list(found)
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def listed(files: Mapping[str, list[Known]]) -> Files:
    """The files as the journal lists them."""
    return {table: [known.file for known in found] for table, found in files.items()}


def both(
    former: Mapping[str, list[Known]], new: Mapping[str, list[Known]]
) -> dict[str, list[Known]]:
    """Old and new files, in the order of their rows."""
    tables = {**former, **new}
    both = {table: [*former.get(table, ()), *new.get(table, ())] for table in tables}
    for files in both.values():
        files.sort(key=lambda known: (known.file.incarnation, known.file.first, known.file.path))
    return both


def share_rows(former: Mapping[str, list[Known]], new: Mapping[str, list[Known]]) -> bool:
    """Whether a row may be in an old file and in a new one."""
    for table, files in new.items():
        known = former.get(table, [])
        if not known:
            continue
        if not all(file.is_numbered for file in (*known, *files)):
            return True
        top = tops(known)
        late = [
            file
            for file in files
            if file.seq is not None and file.seq[0] <= top.get(file.incarnation, -1)
        ]
        if any(file.shares_with(other) for file in late for other in known):
            return True
    return False


def tops(files: Iterable[Known]) -> dict[int | None, int]:
    """The highest seq of each incarnation."""
    found: dict[int | None, int] = {}
    for file in files:
        if file.seq is not None:
            found[file.incarnation] = max(found.get(file.incarnation, -1), file.seq[1])
    return found
