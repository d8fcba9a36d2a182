"""The newest part of a journal in a directory: bounded, and with what is not sealed yet. No Spark.

For who looks at a running fleet again and again. Messages are bounded in time and in number. What
happened to nodes, sessions and routes is taken from the start of the incarnations that ran then,
since it explains what was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from waystation.core.visits import DAY
from waystation.errors import LocalError, quote
from waystation.journal.layout import SEALED
from waystation.journal.pruning import instant_bounds
from waystation.journal.read import UNREADABLE, parquet_footer
from waystation.journal.schema import MESSAGES
from waystation.pipeline.listing import File, Listing, Wanted, list_journal, locate

EVERYTHING: Final = Wanted()

SETTLED: Final = 60_000_000
"""Microseconds after a cut from which on messages are whole: most live for less."""


ROW_BYTES: Final = 300
"""What a row about a message takes in a tail, more or less."""


class Bounds(Struct, frozen=True, kw_only=True):
    """How much of a journal is read."""

    rows: int = 300_000  # about messages; those that are not sealed yet come on top
    message_files: int = 500
    span: int = DAY  # microseconds
    files: int = 20_000  # of all tables


DEFAULT_BOUNDS: Final = Bounds()


class Recent(Struct, frozen=True):
    """The newest part of a journal."""

    listing: Listing
    wanted: Wanted
    rows: int  # about messages; of what is not sealed yet, an estimate

    @property
    def since(self) -> int | None:
        """From when on it tells what was lost; None if the journal is whole."""
        cut = self.wanted.since
        return None if cut is None else cut + SETTLED


class _Group(Struct, frozen=True, order=True):
    """Rows of a file that are stored together."""

    high: int
    low: int
    rows: int


def recent_part(journal: Path, bounds: Bounds = DEFAULT_BOUNDS) -> Recent:
    """The newest part of a journal; raises a LocalError if even that has too many files."""
    listing = list_journal(str(journal), EVERYTHING, tails=True)
    chosen, groups = _newest(listing, bounds)
    left_out = {
        file.path
        for node, tables in listing.nodes.items()
        for file in tables.get(MESSAGES, [])[: chosen[node]]
    }
    since = _cut(groups, bounds)
    ends = list(_ends_of_left_out(listing, chosen))
    if ends:
        since = max([*ends, *([] if since is None else [since])])
    wanted = Wanted(since=since)
    if since is not None:
        listing = _without(list_journal(str(journal), wanted, tails=True), left_out)
    if len(listing.files()) > bounds.files:
        raise LocalError(
            f"{quote(str(journal))} has too many files to be looked at here",
            rule="OB-4",
            hint="ask `waystation lost`, or the tables of `waystation pipeline build`",
        )
    rows = sum(group.rows for group in groups if since is None or group.high >= since)
    return Recent(listing, wanted, rows + _unsealed_bytes(listing) // ROW_BYTES)


def _unsealed_bytes(listing: Listing) -> int:
    return sum(
        file.size
        for tables in listing.nodes.values()
        for file in tables.get(MESSAGES, [])
        if not file.path.endswith(SEALED)
    )


def _newest(listing: Listing, bounds: Bounds) -> tuple[dict[str, int], list[_Group]]:
    """The place of the first file about messages to read, by node; and the rows in those files."""
    root = Path(listing.root)
    candidates: list[tuple[float, str, int]] = []
    for node, tables in listing.nodes.items():
        files, changed = tables.get(MESSAGES, []), inf
        for place in range(len(files) - 1, -1, -1):
            # No file is newer than a later one, whatever its time of change says: a copy may have
            # changed at any time.
            changed = min(changed, _changed(root / files[place].path))
            candidates.append((changed, node, place))
    first = {node: len(tables.get(MESSAGES, [])) for node, tables in listing.nodes.items()}
    groups: list[_Group] = []
    for _, node, place in sorted(candidates, reverse=True)[: bounds.message_files]:
        if sum(group.rows for group in groups) > bounds.rows:
            break
        first[node] = place
        groups += _groups_of(listing, listing.nodes[node][MESSAGES][place])
    return first, groups


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # a tail that was sealed meanwhile
        return inf


def _groups_of(listing: Listing, file: File) -> Iterator[_Group]:
    """The rows of a sealed file; a tail is small, and is not counted."""
    if not file.path.endswith(SEALED):
        return
    system, directory = locate(listing.root)
    try:
        footer = parquet_footer(system, f"{directory}/{file.path}")
    except UNREADABLE:
        return  # who reads it reports that
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        bounds = instant_bounds(group, "at")
        if bounds is not None:
            yield _Group(bounds[1], bounds[0], group.num_rows)


def _ends_of_left_out(listing: Listing, chosen: dict[str, int]) -> Iterator[int]:
    """After which time nothing is left out, by each node of which something is."""
    for node, place in chosen.items():
        if place:
            last = listing.nodes[node][MESSAGES][place - 1]
            yield from (group.high + 1 for group in _groups_of(listing, last))


def _cut(groups: list[_Group], bounds: Bounds) -> int | None:
    """The time from which on rows are read; None if all are."""
    if not groups:
        return None
    newest, oldest = max(groups).high, min(group.low for group in groups)
    cut, rows = newest - bounds.span, 0
    for place, group in enumerate(sorted(groups, reverse=True)):
        rows += group.rows
        if place and rows > bounds.rows:
            cut = max(cut, group.high + 1)
            break
    return cut if cut > oldest else None


def _without(listing: Listing, left_out: set[str]) -> Listing:
    nodes = {}
    for node, tables in listing.nodes.items():
        kept = {
            table: [file for file in files if file.path not in left_out]
            for table, files in tables.items()
        }
        nodes[node] = {table: files for table, files in kept.items() if files}
    return replace(listing, nodes={node: has for node, has in nodes.items() if has})
