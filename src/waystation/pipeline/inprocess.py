"""Losses and incidents of a small journal, found in this process: no JVM is started.

The kernels that Spark's tasks run are run here, one node after the other, and the core explains
what they find. The rows are those that a build writes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, convert, structs

from waystation.core.incidents import (
    FLEET,
    Covered,
    Entry,
    Explained,
    Found,
    Incident,
    Loss,
    Missing,
    Past,
    Session,
    found_in,
)
from waystation.core.losses import Lost
from waystation.core.multicast import Subscriptions
from waystation.core.visits import DAY, VANISHED
from waystation.journal.schema import INSTANT, MESSAGES, WRITTEN_VERSION
from waystation.locations import is_remote
from waystation.pipeline.kernels import node_tables
from waystation.pipeline.kernels.answering import MADE
from waystation.pipeline.kernels.columns import coded_name
from waystation.pipeline.kernels.coverage import coverage
from waystation.pipeline.kernels.evidence import Facts, Known
from waystation.pipeline.kernels.gossip import gossip_losses, gossip_losses_in
from waystation.pipeline.kernels.node_data import FileData, Share, Sought
from waystation.pipeline.kernels.sessions import sessions_of
from waystation.pipeline.kernels.tracing import assembled, coded_steps, together
from waystation.pipeline.listing import EVERYTHING, Listing, Wanted, list_journal
from waystation.pipeline.surveying import known_in
from waystation.pipeline.tables import BUILT, DATE

Row = dict[str, Any]
_Rows = list[tuple[FileData, list[pa.Table]]]

_OF_TRACE: Final = ("message_id", "origin", "sender", "multicast_id", "day")


class Survey(Struct, frozen=True):
    """What is known of a journal's nodes, and what was lost there."""

    coverage: list[Covered]
    peers: set[str]  # the nodes that these had sessions with
    found: Found


def survey(journal: str, wanted: Wanted = EVERYTHING) -> Survey:
    """The losses and incidents of a journal, and how far the records of its nodes reach."""
    return survey_files(listed(journal, wanted), wanted)


def listed(journal: str, wanted: Wanted = EVERYTHING) -> Listing:
    """The files of a journal; in a directory also what is not sealed yet."""
    return list_journal(journal, wanted, tails=not is_remote(journal))


def survey_files(listing: Listing, wanted: Wanted = EVERYTHING) -> Survey:
    """The same of the files of a journal."""
    return survey_data(list(nodes_of(listing, wanted)))


def survey_data(data: Sequence[FileData]) -> Survey:
    """The same of the data of its nodes."""
    known = known_in(data)
    lost = losses_in(traces_in(data, known))
    for one in data:
        for rows in gossip_losses(one):
            lost += losses_in(rows)
    return _surveyed(data, known, lost)


def survey_of(
    data: Sequence[FileData], participant: str, patterns: Collection[str] = ()
) -> Survey | None:
    """What one participant went without, if its own rows tell all of it; else None.

    Row groups whose Bloom filter rules the participant out are not read. `patterns` are what it
    subscribed to: of what was published under them, also those losses that name nobody. In files
    of version 1 not every row names its recipient; such journals are read as a whole.
    """
    if any(version < WRITTEN_VERSION for one in data for version in one.versions(MESSAGES)):
        return None
    own = _sought(data, Sought("recipient", frozenset([participant])))
    known = known_in(data)
    lost = [
        *_lost_alone(data, known, own, participant),
        *_lost_among_others(data, known, own, participant, patterns),
    ]
    for one, rows in own:
        if one.keeps_members:
            lost += [loss for part in gossip_losses_in(one.node, rows) for loss in losses_in(part)]
    return _surveyed(data, known, lost)


def _lost_alone(
    data: Sequence[FileData], known: Known, own: _Rows, participant: str
) -> Iterator[Loss]:
    """What was for the participant only. Other nodes may name another address of the same route."""
    alone = [(one, [_unicast(rows) for rows in parts]) for one, parts in own]
    lost = [one for one in losses_in(_traces_of(alone, known)) if _is_for(one, participant)]
    doubtful = {one.message_id for one in lost if one.origin is None or one.lost.reason == VANISHED}
    yield from (one for one in lost if one.message_id not in doubtful)
    if doubtful:
        whole = _sought(data, Sought("message_id", frozenset(doubtful)))
        again = losses_in(_traces_of(whole, known))
        yield from (one for one in again if _is_for(one, participant))


def _lost_among_others(
    data: Sequence[FileData],
    known: Known,
    own: _Rows,
    participant: str,
    patterns: Collection[str],
) -> Iterator[Loss]:
    """What was published for the participant or, under these patterns, for nobody by name.

    Each node names its own receivers, so all rows of such a message are read.
    """
    columns = [rows.column("multicast_id") for _, parts in own for rows in parts]
    named = {id for column in columns for id in pc.unique(column).to_pylist()} - {None}
    if not patterns and not named:
        return
    topics = matcher_of(patterns)
    heard = Sought("multicast_id", passes=lambda text: text in named or bool(topics.match(text)))
    for loss in losses_in(_traces_of(_sought(data, heard), known)):
        if loss.lost.recipient is None or _is_for(loss, participant):
            yield loss


def _is_for(loss: Loss, participant: str) -> bool:
    return loss.lost.recipient == participant


def _unicast(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_null(rows.column("multicast_id")))


def _surveyed(data: Sequence[FileData], known: Known, lost: list[Loss]) -> Survey:
    past = past_of(data, known, lost)
    return Survey(list(past.coverage), peers_in(past.sessions), found_in(lost, past))


def matcher_of(patterns: Iterable[str]) -> Subscriptions:
    """What tells whether an id was published under one of these."""
    found = Subscriptions()
    for pattern in patterns:
        found.subscribe(pattern, "asked")
    return found


def _sought(data: Sequence[FileData], sought: Sought) -> _Rows:
    """The rows about messages of each node that are sought."""

    def of_node(one: FileData) -> list[pa.Table]:
        return [rows for rows in one.sought_rows(MESSAGES, sought) if rows.num_rows]

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # Arrow releases the GIL
        found = zip(data, threads.map(of_node, data), strict=True)
        return [(one, rows) for one, rows in found if rows]


def _traces_of(found: _Rows, known: Known) -> pa.Table:
    """The traces of these rows of nodes, without their paths."""
    return _assembled(((one.node, rows) for one, parts in found for rows in parts), known)


def peers_in(sessions: Iterable[Session]) -> set[str]:
    """The nodes of the fleet that others had sessions with."""
    return {one.peer for one in sessions if one.peer is not None and one.role in FLEET}


def nodes_of(listing: Listing, wanted: Wanted) -> Iterator[FileData]:
    """The data of each node of a journal."""
    for node, files in listing.nodes.items():
        share = Share(node, files, unsealed=listing.unsealed.get(node, []))
        yield FileData(listing.root, share, wanted)


def traces_in(data: Iterable[FileData], known: Known) -> pa.Table:
    """The traces of all messages, without their paths."""
    return _assembled(
        ((one.node, rows) for one in data for rows in one.coded_batches(MESSAGES)), known
    )


def _assembled(parts: Iterable[tuple[str, pa.Table]], known: Known) -> pa.Table:
    steps = [
        coded_steps(rows.append_column("node", coded_name(node, rows.num_rows)))
        for node, rows in parts
    ]
    if not steps:
        return MADE.empty_table()
    return assembled(together(steps), Facts(known), paths=False)


def losses_in(traces: pa.Table) -> list[Loss]:
    """The losses of traces, or of rows with the same columns."""
    lost = traces.column("lost")
    if pa.types.is_list(lost.type):
        traces = traces.filter(pc.greater(pc.list_value_length(lost), 0))
    rows = plain_rows(traces.select([*_OF_TRACE, "lost"]))
    return [
        Loss(**{name: row[name] for name in _OF_TRACE}, lost=convert(step, Lost))
        for row in rows
        for step in (row["lost"] if isinstance(row["lost"], list) else [row["lost"]])
    ]


def past_of(data: Iterable[FileData], known: Known, losses: Collection[Loss]) -> Past:
    """What the nodes tell, as far as it may explain these losses."""
    names: dict[str, set[str]] = {}
    for loss in losses:
        if loss.lost.recipient is not None:
            names.setdefault(loss.lost.node, set()).add(loss.lost.recipient)
    entries: list[Entry] = []
    sessions: list[Session] = []
    covered: list[Covered] = []
    for one in data:
        sessions += [session_of(row) for row in plain_rows(sessions_of(one))]
        for part in coverage(one):
            covered += [covered_of(row) for row in plain_rows(part)]
        wanted = names.get(one.node, set())
        if wanted:
            for part in node_tables.route_history_of(one, wanted):
                entries += [entry_of(row) for row in plain_rows(part)]
    return Past(entries, sessions, covered, list(gaps_of(known)), corrections_of(known))


def gaps_of(known: Known) -> Iterator[Missing]:
    """When records of nodes are missing."""
    for node, lives in sorted(known.lives.items()):
        for life in lives:
            for since, until in life.gaps:
                yield Missing(node, since, until)


def corrections_of(known: Known) -> dict[tuple[str, int], int]:
    """How far clocks were ahead, by node and hour."""
    return {
        (node, hour): ahead for hour, found in known.hours.items() for node, ahead in found.items()
    }


def entry_of(row: Row) -> Entry:
    """A row of `route_history`."""
    names = ("node", "incarnation", "participant", "address", "valid_from", "valid_to", "closed_by")
    return Entry(*(row[name] for name in names))


def session_of(row: Row) -> Session:
    """A row of `session_history`."""
    return Session(*(row[name] for name in Session._fields))


def covered_of(row: Row) -> Covered:
    """A row of `coverage`."""
    return Covered(*(row[name] for name in Covered._fields))


def plain_rows(table: pa.Table) -> list[Row]:
    """Rows with numbers for instants and days, also within lists."""
    rows: list[Row] = table.cast(
        pa.schema([pa.field(field.name, _numbers(field.type)) for field in table.schema])
    ).to_pylist()
    return rows


def _numbers(type: pa.DataType) -> pa.DataType:
    if type == INSTANT:
        return pa.int64()
    if type == DATE:
        return pa.int32()
    if pa.types.is_dictionary(type):
        return type.value_type
    if pa.types.is_list(type):
        return pa.list_(_numbers(type.value_type))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _numbers(field.type)) for field in type])
    return type


def loss_table(losses: Iterable[Explained]) -> pa.Table:
    """The table `losses` of these."""
    return _table(
        "losses",
        [
            {
                **{name: getattr(one.loss, name) for name in _OF_TRACE},
                **structs.asdict(one.loss.lost),
                "event_time": one.loss.lost.at,
                "at_visit": one.loss.lost.received_at,
                "cause": one.cause,
                "incident_id": one.incident_id,
            }
            for one in losses
        ],
    )


def incident_table(incidents: Iterable[Incident]) -> pa.Table:
    """The table `incidents` of these."""
    return _table(
        "incidents", [{**structs.asdict(one), "day": one.started // DAY} for one in incidents]
    )


def _table(table: str, rows: list[Row]) -> pa.Table:
    columns = []
    for field in BUILT[table]:
        values = [row[field.name] for row in rows]
        if field.type == INSTANT:
            columns.append(pa.array(values, pa.int64()).view(INSTANT))
        else:
            columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=BUILT[table])
