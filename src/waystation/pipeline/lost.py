"""What was lost, for who asks: from a journal in this process, or from the tables of a build.

A journal is read where it is: row groups of messages whose Bloom filter rules the participant out
are skipped. Both ways give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs

from waystation.core.coverage import MARGIN
from waystation.core.incidents import Explained, Incident, Loss
from waystation.errors import LocalError, quote
from waystation.journal.layout import SEALED
from waystation.journal.schema import INSTANT, MESSAGES
from waystation.pipeline.inprocess import (
    Survey,
    listed,
    matcher_of,
    nodes_of,
    plain_rows,
    survey_data,
    survey_of,
)
from waystation.pipeline.kernels import node_tables
from waystation.pipeline.kernels.node_data import FileData, Reject
from waystation.pipeline.listing import EVERYTHING
from waystation.pipeline.reach import Reach, reach_in_tables
from waystation.pipeline.tables import TAKEN
from waystation.why.finished import StoredTables

Row = dict[str, Any]

LARGE: Final = 1_000_000
"""A journal with more rows about messages is not read as a whole, if that can be avoided."""


class Question(Struct, frozen=True, kw_only=True):
    """Which losses are asked for; None does not restrict. Times are microseconds."""

    participant: str | None = None
    topic: str | None = None
    node: str | None = None
    reason: str | None = None
    since: int | None = None
    until: int | None = None
    internal: bool = False


class LostCopy(Struct, frozen=True, kw_only=True):
    """A row of `losses`. Times are microseconds since the epoch."""

    message_id: str
    origin: str | None
    recipient: str | None
    event_time: int
    at_visit: int
    node: str
    next_node: str | None
    sender: str | None
    multicast_id: str | None
    reason: str
    cause: str
    internal: bool
    incident_id: str | None
    may_have_missed: bool = False  # nobody is named; the participant had subscribed to it then


class Answer(Struct, frozen=True):
    """What was lost, in the order of time, and who is missing."""

    reach: Reach
    losses: list[LostCopy]
    incidents: list[Incident]
    unread: int = 0  # files that could not be read, or not as a whole


def lost_in_journal(journal: str, question: Question, *, large: int = LARGE) -> Answer:
    """The losses of a journal, in a directory or a store.

    In a directory it includes what is not sealed yet, and changes nothing there. Of a journal with
    more rows than `large` only those are read that are about the participant, if one is asked for,
    or about what it subscribed to.
    """
    data = list(nodes_of(listed(journal), EVERYTHING))
    history: list[Row] = []
    found: Survey | None = None
    if question.participant is not None:
        history = list(_subscriptions_in(data, question.participant))
        if sum(one.rows(MESSAGES) for one in data) > large:
            patterns = {row["pattern"] for row in history}
            found = survey_of(data, question.participant, patterns)
    if found is None:
        found = survey_data(data)
    answer = lost_in_survey(found, question, history)
    return structs.replace(answer, unread=_unread(row for one in data for row in one.rejects))


def lost_in_tables(out: str | Path, question: Question) -> Answer:
    """The losses in the tables that a build wrote."""
    tables = StoredTables(out)
    history: list[Row] = []
    if question.participant is not None:
        history = _rows(
            tables, "subscription_history", pc.field("receiver") == question.participant
        )
    wanted = _condition(question, subscribed=bool(history))
    rows = [LostCopy(**row) for row in _rows(tables, "losses", wanted)]
    reach = reach_in_tables(tables)
    if reach is None:
        raise _lacks(tables, "coverage")
    chosen = list(_chosen(question, rows, _Subscribed(history)))
    ids = pa.array({loss.incident_id for loss in chosen}, pa.string())
    behind = _rows(tables, "incidents", pc.field("incident_id").isin(ids))
    return Answer(
        reach,
        chosen,
        _behind(chosen, (Incident(**row) for row in behind)),
        _unread_for(tables),
    )


def _unread(rejects: Iterable[Reject]) -> int:
    """How many files could not be read: what is rejected there is no row.

    Those that are being written do not count: they may have no rows yet.
    """
    return len({file for _, _, file, row, *_ in rejects if row is None and file.endswith(SEALED)})


def _unread_for(tables: StoredTables) -> int:
    """The same of the files that the tables were built from."""
    rejects = tables.dataset("rejects")
    if rejects is None or not rejects.files:
        return 0
    found = rejects.to_table(columns=["file"], filter=pc.field("row").is_null())
    return len(pc.unique(found.column("file")))


def lost_in_survey(found: Survey, question: Question, history: Iterable[Row] = ()) -> Answer:
    """The losses of a journal that was surveyed; `history` has the participant's subscriptions."""
    rows = [_copy(one) for one in found.found.losses]
    chosen = list(_chosen(question, rows, _Subscribed(history)))
    reach = Reach.of(found.coverage, found.peers)
    return Answer(reach, chosen, _behind(chosen, found.found.incidents))


def _behind(losses: list[LostCopy], incidents: Iterable[Incident]) -> list[Incident]:
    ids = {loss.incident_id for loss in losses}
    found = [incident for incident in incidents if incident.incident_id in ids]
    return sorted(found, key=lambda incident: (incident.started, incident.incident_id))


def _copy(one: Explained) -> LostCopy:
    loss: Loss = one.loss
    lost = loss.lost
    return LostCopy(
        message_id=loss.message_id,
        origin=loss.origin,
        recipient=lost.recipient,
        event_time=lost.at,
        at_visit=lost.received_at,
        node=lost.node,
        next_node=lost.next_node,
        sender=loss.sender,
        multicast_id=loss.multicast_id,
        reason=lost.reason,
        cause=one.cause,
        internal=lost.internal,
        incident_id=one.incident_id,
    )


# What is asked for


def _chosen(
    question: Question, rows: Iterable[LostCopy], subscribed: _Subscribed
) -> Iterator[LostCopy]:
    """The rows that are asked for, and those that the participant may have missed, in order."""
    topics = matcher_of([] if question.topic is None else [question.topic])
    for row in sorted(rows, key=lambda row: (row.event_time, row.message_id, row.recipient or "")):
        if not _fits(question, row):
            continue
        if question.topic is not None and (
            row.multicast_id is None or not topics.match(row.multicast_id)
        ):
            continue
        if question.participant in (None, row.recipient):
            yield row
        elif row.recipient is None and subscribed.to(row):
            yield structs.replace(row, may_have_missed=True)


def _fits(question: Question, row: LostCopy) -> bool:
    return (
        question.node in (None, row.node)
        and question.reason in (None, row.reason)
        and (question.since is None or row.event_time >= question.since)
        and (question.until is None or row.event_time < question.until)
        and (question.internal or not row.internal)
    )


def _condition(question: Question, *, subscribed: bool) -> pc.Expression | None:
    """What files and row groups can be skipped by."""
    conditions = []
    if question.participant is not None:
        named = pc.field("recipient") == question.participant
        # What is for nobody by name can only have been missed by who subscribed to something.
        conditions.append(named | pc.field("recipient").is_null() if subscribed else named)
    if question.node is not None:
        conditions.append(pc.field("node") == question.node)
    if question.reason is not None:
        conditions.append(pc.field("reason") == question.reason)
    if question.since is not None:
        conditions.append(pc.field("event_time") >= pa.scalar(question.since, INSTANT))
    if question.until is not None:
        conditions.append(pc.field("event_time") < pa.scalar(question.until, INSTANT))
    found: pc.Expression | None = None
    for condition in conditions:
        found = condition if found is None else found & condition
    return found


class _Subscribed:
    """The subscriptions of a participant, and when they were valid."""

    def __init__(self, history: Iterable[Row]) -> None:
        self._held = [
            (matcher_of([row["pattern"]]), row["valid_from"], row["valid_to"]) for row in history
        ]

    def to(self, loss: LostCopy) -> bool:
        """Whether the participant was subscribed to what was lost, anywhere, at that time."""
        if loss.multicast_id is None:
            return False
        at = loss.event_time
        return any(
            since - MARGIN <= at and (until is None or at < until + MARGIN)
            for matcher, since, until in self._held
            if matcher.match(loss.multicast_id)
        )


def _subscriptions_in(data: Iterable[FileData], participant: str) -> Iterator[Row]:
    for one in data:
        for part in node_tables.subscription_history_of(one, participant):
            yield from plain_rows(part)


def _rows(tables: StoredTables, table: str, wanted: pc.Expression | None = None) -> list[Row]:
    dataset = tables.dataset(table)
    if dataset is None:
        raise _lacks(tables, table)
    found = dataset.to_table(columns=TAKEN[table].names, filter=wanted)
    return plain_rows(found.cast(TAKEN[table]))


def _lacks(tables: StoredTables, table: str) -> LocalError:
    return LocalError(
        f"{quote(str(tables.out))} has no table {table}",
        rule="OB-4",
        hint="build the tables again with `waystation pipeline build`",
    )
