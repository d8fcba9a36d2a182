"""Finds messages without their ids: by the beginning of one, or by whom it was for and when.

Little is read: of files only the column that is asked for, unless a row fits; files and row groups
whose statistics or Bloom filter rule it out are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.core.message import NO_ID
from waystation.errors import LocalError
from waystation.journal.layout import SEALED, all_nodes, files_in, table_directory, tails_in
from waystation.journal.read import (
    UNREADABLE,
    find_in_sealed,
    instants_as_integers,
    read_tail,
    sealed_column,
)
from waystation.journal.schema import INSTANT, MESSAGES, conform
from waystation.why.finished import StoredTables

SPAN: Final = 5 * 60 * 1_000_000
"""Microseconds: what is asked for at a time is looked for this long before and after it."""

MOST: Final = 10
"""At most this many messages are listed."""


class Candidate(Struct, frozen=True, order=True):
    """A message that may be meant: how far from the asked time, when, which, and how it ended."""

    distance: int
    at: int  # microseconds since the epoch
    message_id: str
    node: str
    outcome: str
    reason: str | None = None


# By the beginning of an id


def ids_in_journal(journal: Path, beginning: str) -> list[str]:
    """The ids in a journal that begin so, sorted; more than a few are not collected."""
    found: set[str] = set()
    for values in _id_columns(journal):
        found.update(_beginning_with(values, beginning))
        if len(found) > MOST:
            break
    return sorted(found)


def ids_in_tables(tables: str | Path, beginning: str) -> list[str]:
    """The ids in the table `traces` that begin so, sorted."""
    wanted = pc.starts_with(pc.field("message_id"), beginning)
    rows = _dataset(tables, "traces").to_table(columns=["message_id"], filter=wanted)
    return sorted(set(rows.column("message_id").to_pylist()))


def the_only_one(ids: list[str], beginning: str, where: str | Path) -> str:
    """The id, if there is exactly one; raises a LocalError that lists those that it can be."""
    if not ids:
        raise LocalError(
            f"{where} has no message whose id begins with {beginning}",
            rule="OB-4",
            hint="check the id and the directory",
        )
    if len(ids) > 1:
        more = " and more" if len(ids) > MOST else ""
        raise LocalError(
            f"several messages begin with {beginning}: {', '.join(ids[:MOST])}{more}",
            rule="OB-4",
            hint="give more digits",
        )
    return ids[0]


def _id_columns(journal: Path) -> Iterator[Any]:
    for node in all_nodes(journal):
        directory = table_directory(journal, MESSAGES, node)
        for tail in tails_in(directory).values():
            try:
                content = read_tail(tail)
            except (FileNotFoundError, *UNREADABLE):
                continue
            yield from (batch.column("message_id") for batch in content.batches)
        for stem in files_in(directory, SEALED):
            try:
                yield from sealed_column(directory / stem.sealed, "message_id")
            except (FileNotFoundError, *UNREADABLE):
                continue  # compacted meanwhile, or damaged: `journal check` tells


def _beginning_with(values: Any, beginning: str) -> set[str]:
    fits = pc.starts_with(values, beginning)
    return set(values.filter(fits).to_pylist()) - {NO_ID}


# By whom it was for, and when


def near_in_journal(journal: Path, participant: str, at: int) -> list[Candidate]:
    """The messages for a participant that are nearest to a time, within five minutes of it."""
    rows: list[dict[str, Any]] = []
    for node in all_nodes(journal):
        directory = table_directory(journal, MESSAGES, node)
        for batch in _batches_for(directory, participant, at - SPAN):
            near = batch.filter(_near("at", at))
            rows += [{"node": node, **row} for row in instants_as_integers(near).to_pylist()]
    return _nearest(
        Candidate(
            abs(row["at"] - at),
            row["at"],
            row["message_id"],
            row["node"],
            row["outcome"],
            row["reason"],
        )
        for row in rows
    )


def near_in_tables(tables: str | Path, participant: str, at: int) -> list[Candidate]:
    """The same from the tables that a build wrote."""
    found: list[Candidate] = []
    sent = _dataset(tables, "traces").to_table(
        columns=["message_id", "ended", "outcome", "reason", "origin"],
        filter=(pc.field("recipient") == participant) & _near("ended", at),
    )
    for row in instants_as_integers(sent).to_pylist():
        node = (row["origin"] or "").rpartition("/")[0]
        found.append(
            Candidate(
                abs(row["ended"] - at),
                row["ended"],
                row["message_id"],
                node,
                row["outcome"],
                row["reason"],
            )
        )
    losses = StoredTables(tables).dataset("losses")
    if losses is not None:
        lost = losses.to_table(
            columns=["message_id", "event_time", "node", "reason"],
            filter=(pc.field("recipient") == participant) & _near("event_time", at),
        )
        for row in instants_as_integers(lost).to_pylist():
            distance = abs(row["event_time"] - at)
            found.append(
                Candidate(
                    distance,
                    row["event_time"],
                    row["message_id"],
                    row["node"],
                    "DROPPED",
                    row["reason"],
                )
            )
    return _nearest(found)


def last_loss_in_tables(tables: str | Path, participant: str | None) -> str | None:
    """The message that was lost last, for a participant or for anybody."""
    wanted = ~pc.field("internal")
    if participant is not None:
        wanted &= pc.field("recipient") == participant
    rows = _dataset(tables, "losses").to_table(columns=["message_id", "event_time"], filter=wanted)
    if not rows.num_rows:
        return None
    found: str = rows.sort_by([("event_time", "descending")]).column("message_id")[0].as_py()
    return found


def _batches_for(directory: Path, participant: str, since: int) -> Iterator[pa.RecordBatch]:
    for tail in tails_in(directory).values():
        try:
            content = read_tail(tail)
        except (FileNotFoundError, *UNREADABLE):
            continue
        for batch in content.batches:
            if "recipient" in batch.schema.names:
                yield conform(batch.filter(pc.field("recipient") == participant), MESSAGES)
    for stem in files_in(directory, SEALED):
        try:
            for batch in find_in_sealed(directory / stem.sealed, "recipient", participant, since):
                yield conform(batch, MESSAGES)
        except (FileNotFoundError, *UNREADABLE):
            continue


def _nearest(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The nearest of each message, the nearest messages first; how each ended counts."""
    best: dict[str, Candidate] = {}
    for one in sorted(candidates):
        best.setdefault(one.message_id, one)
    return sorted(best.values())[:MOST]


def _near(column: str, at: int) -> pc.Expression:
    low, high = (pa.scalar(at + side * SPAN, INSTANT) for side in (-1, 1))
    return (pc.field(column) >= low) & (pc.field(column) <= high)


def _dataset(tables: str | Path, table: str) -> Any:
    found = StoredTables(tables).dataset(table)
    if found is None:
        raise LocalError(
            f"{tables} has no table {table}",
            rule="OB-4",
            hint="build the tables with `waystation pipeline build`",
        )
    return found
