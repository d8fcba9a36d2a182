"""The registry of the tables that the pipeline builds: one entry for each, and all that follows.

What a table is made of, its columns, and what makes it stand here once. The order of a build and
its progress, the data source, `watch`, the report and docs/reference/tables.md follow from it. So a
new table is an entry here, a module with what makes it, and its tests.

What makes a table is named, not imported: this module opens nothing, needs no Spark, and may be
imported by what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct

from waystation.journal.schema import (
    INSTANT,
    MESSAGES,
    NODES,
    ROUTES,
    SCHEMAS,
    SESSIONS,
    SUBSCRIPTIONS,
    TEXT,
)

LONG: Final = pa.int64()
FLAG: Final = pa.bool_()
DATE: Final = pa.date32()

ROWS_READ: Final = "rows read"
"""In place of a table: how many rows a kernel found in the files of each table of the journal."""

_PACKAGE: Final = "waystation.pipeline"
_TABLE: Final = b"waystation.table"
_OPEN: Final = b"waystation.open"


class BuiltColumn(Struct, frozen=True):
    """A column of a built table, and its text for the reference."""

    type: Any
    text: str


class Table(Struct, frozen=True, kw_only=True):
    """A table that the pipeline builds.

    Without `exchange` it is made node by node: `made_by` names a function that takes the data of a
    node, and the names of the tables that are wanted, and yields parts of these. With it, the rows
    of several nodes meet: `made_by` names a function that takes a journal and returns a frame.
    Tables that are made `together` are made of one read.
    """

    name: str
    text: str  # what a row is
    columns: Mapping[str, BuiltColumn]
    key: tuple[str, ...]
    day: str  # the column whose day is the row's; `day` itself if no other tells
    inputs: tuple[str, ...]  # tables of the journal; a large node is split by the first
    made_by: str  # module:function, in this package
    call: str = ""  # how to get it as a frame
    together: str = ""
    split: bool = True  # whether a large node may be made in several parts
    frugal: bool = False  # whether a part may be larger than those of others
    exchange: bool = False
    watched: bool = True  # whether `watch` keeps it up to date
    reported: bool = False  # whether the report shows it
    beside: str = ""  # module:function of a journal: rows that belong to no node
    of: tuple[str, ...] = ()  # tables that it is made of; `made_by` also takes how to get these

    @property
    def schema(self) -> pa.Schema:
        """Its columns, as Arrow has them."""
        return pa.schema({name: column.type for name, column in self.columns.items()})


def _columns(**columns: tuple[Any, str]) -> dict[str, BuiltColumn]:
    return {name: BuiltColumn(*described) for name, described in columns.items()}


HOP: Final = pa.struct(
    {
        "node": TEXT,
        "at": INSTANT,
        "outcome": TEXT,
        "reason": TEXT,
        "next_hop": TEXT,
        "incarnation": LONG,
        "received_at": INSTANT,
        "left_at": INSTANT,
        "via": TEXT,
        "from_node": TEXT,
        "out": TEXT,
        "next_node": TEXT,
        "recipient": TEXT,
        "follows": pa.int32(),
        "depth": pa.int32(),
    }
)
"""A step of a message: one outcome of one visit to a node."""

LOST: Final = pa.struct(
    {
        "recipient": TEXT,
        "reason": TEXT,
        "node": TEXT,
        "incarnation": LONG,
        "at": INSTANT,
        "received_at": INSTANT,
        "outcome": TEXT,
        "out": TEXT,
        "next_node": TEXT,
        "expiry": INSTANT,
        "onward": TEXT,
        "internal": FLAG,
    }
)
"""A step by which somebody went without, and what it takes to find out why."""

_EVERY_TABLE: Final = (MESSAGES, *(table for table in SCHEMAS if table != MESSAGES))
_AT_NODE: Final = _columns(
    node=(TEXT, "the node"),
    incarnation=(LONG, "when the node's process started, in milliseconds"),
)
_VALIDITY: Final = _columns(
    valid_from=(INSTANT, "the beginning of the interval"),
    valid_to=(INSTANT, "its end, exclusive; null while it lasts"),
    closed_by=(TEXT, "why it ended; null while it lasts"),
    day=(DATE, "the day (UTC) of the beginning"),
)
_OUTCOME: Final = _columns(
    outcome=(TEXT, "what must happen"), reason=(TEXT, "why it is dropped, if it is")
)

_OF_VISIT: Final = _columns(
    incarnation=(LONG, "when the node's process started, in milliseconds"),
    received_at=(INSTANT, "when the message entered the node, or the put was made"),
    event_time=(INSTANT, "the same, under a name that is no word of SQL"),
    multicast_id=(TEXT, "what it was published under, if it was"),
    next_node=(TEXT, "the node that a copy goes to, where that is known"),
    day=(DATE, "the day (UTC) when it entered the node"),
)
_KEY_OF_VISIT: Final = (
    *("message_id", "node", "incarnation", "received_at", "recipient", "address"),
)
_JUDGED_BY: Final = (MESSAGES, ROUTES, SUBSCRIPTIONS, SESSIONS)

REGISTRY: Final[tuple[Table, ...]] = (
    Table(
        name="route_history",
        text="A routing entry of a node, and when it was valid.",
        columns={
            **_AT_NODE,
            **_columns(
                participant=(TEXT, "whose entry it is"),
                address=(TEXT, "where its messages go"),
                local=(FLAG, "whether it is local to the node"),
                visible=(FLAG, "whether it is known outside of the hierarchy"),
                sticky=(FLAG, "whether it stays when it has expired"),
                expiry=(INSTANT, "when it expires; null is never"),
            ),
            **_VALIDITY,
        },
        key=("node", "incarnation", "participant", "valid_from"),
        reported=True,
        day="valid_from",
        inputs=(ROUTES,),
        made_by="kernels.node_tables:route_history",
        call="route_history(routes)",
    ),
    Table(
        name="subscription_history",
        text="A subscription at a node, and when it was valid.",
        columns={
            **_AT_NODE,
            **_columns(
                pattern=(TEXT, "the multicast ids that it is about"),
                receiver=(TEXT, "who receives these"),
            ),
            **_VALIDITY,
        },
        key=("node", "incarnation", "pattern", "receiver", "valid_from"),
        reported=True,
        day="valid_from",
        inputs=(SUBSCRIPTIONS,),
        made_by="kernels.node_tables:subscription_history",
        call="subscription_history(subscriptions)",
    ),
    Table(
        name="expected",
        text="What the rules require of a message that entered a node, for one recipient.",
        columns={
            **_columns(
                message_id=(TEXT, "the message"),
                node=(TEXT, "the node that it entered"),
                at=(INSTANT, "when it did"),
                recipient=(TEXT, "whom it is for; null for a copy upward, or if nobody is named"),
                address=(TEXT, "where it goes; null if it is dropped, waits, or goes upward"),
            ),
            **_OUTCOME,
            **_OF_VISIT,
        },
        key=_KEY_OF_VISIT,
        reported=True,
        day="received_at",
        inputs=_JUDGED_BY,
        made_by="kernels.node_tables:judged",
        call="expected(messages, route_history, subscription_history, session_history)",
        together="judged",
        frugal=True,
    ),
    Table(
        name="audit",
        text="An expected outcome beside the actual one.",
        columns={
            **_columns(
                message_id=(TEXT, "the message; null in rows about a put"),
                node=(TEXT, "the node"),
                recipient=(TEXT, "whom it is for, or whose entry was put"),
                expected=(TEXT, "the outcome that the rules require"),
                actual=(TEXT, "the outcome that the node recorded"),
                verdict=(TEXT, "`ok`, `missing`, `unexpected` or `different`"),
                reason=(TEXT, "why it was dropped, if it was"),
                address=(TEXT, "where it should go, else where it went; of a put, its address"),
            ),
            **_OF_VISIT,
        },
        key=_KEY_OF_VISIT,
        reported=True,
        day="received_at",
        inputs=_JUDGED_BY,
        made_by="kernels.node_tables:judged",
        call="audit(expected, messages)",
        together="judged",
    ),
    Table(
        name="traces",
        text="A message on its way over all nodes, from where it entered the fleet.",
        columns=_columns(
            message_id=(TEXT, "the message"),
            started=(INSTANT, "when it entered its first node, by the corrected clock"),
            ended=(INSTANT, "its last step, by the corrected clock"),
            hops=(pa.int32(), "how many nodes it entered after the first"),
            path=(pa.list_(HOP), "the steps, none before one that it follows"),
            outcome=(TEXT, "of the message as a whole"),
            reason=(TEXT, "why it was lost, if it was"),
            latency_ms=(pa.float64(), "until the last delivery, else until the last step"),
            complete=(FLAG, "whether nothing is lost, unknown or waiting"),
            symmetric=(FLAG, "whether the answer came back by the same nodes; null without one"),
            looped=(FLAG, "whether it entered a node twice with the same onward route"),
            origin=(TEXT, "the node and incarnation where it entered the fleet; null if unknown"),
            sender=(TEXT, "who sent it, if that is proven"),
            recipient=(TEXT, "whom it is for; null if there are several"),
            multicast_id=(TEXT, "the multicast id, if it has one"),
            answers=(TEXT, "the message that it answers, if it is an answer"),
            answered_by=(TEXT, "its answer; the first of several"),
            legs=(pa.int32(), "one, and one for each known answer"),
            delivered=(pa.int32(), "how many deliveries are on record"),
            lost_copies=(pa.int32(), "how many recipients went without"),
            unknown_copies=(pa.int32(), "how many copies left for where the record does not reach"),
            left_fleet=(pa.int32(), "how many copies left for nodes without a journal"),
            internal=(FLAG, "whether nodes sent it for themselves, not for an application"),
            is_complete=(FLAG, "`complete`, under a name that is no word of SQL"),
            is_symmetric=(FLAG, "`symmetric`, likewise"),
            is_looped=(FLAG, "`looped`, likewise"),
            lost=(pa.list_(LOST), "the steps by which somebody went without, for `losses`"),
            fates=(pa.list_(TEXT), "what became of each step of `path`, in the same order"),
            waiting=(pa.int32(), "how many copies wait when the record ends"),
            durable=(FLAG, "whether a node had it in its store"),
            day=(DATE, "the day (UTC) when it entered its first node, by that node's clock"),
        ),
        key=("message_id", "origin"),
        reported=True,
        day="day",
        inputs=(MESSAGES,),
        made_by="steps:traces_of",
        call="traces(messages)",
        exchange=True,
    ),
    Table(
        name="health",
        text="The messages of a node with one outcome in one window of time.",
        columns=_columns(
            node=(TEXT, "the node"),
            window_start=(INSTANT, "the beginning of the window"),
            outcome=(TEXT, "what happened"),
            reason=(TEXT, "why, if they were dropped"),
            address_type=(TEXT, "the type of the address that they went to"),
            messages=(LONG, "how many"),
            bytes=(LONG, "their size"),
            p50_ms=(pa.float64(), "the median time at the node"),
            p99_ms=(pa.float64(), "the time at the node that 99 % did not exceed"),
            day=(DATE, "the day (UTC) of the window"),
        ),
        key=("node", "window_start", "outcome", "reason", "address_type"),
        reported=True,
        day="window_start",
        inputs=(MESSAGES,),
        made_by="steps:health_of_journal",
        call="health(messages)",
        exchange=True,
    ),
    Table(
        name="clocks",
        text="How far the clock of a peer was ahead of a node's, in one hour.",
        columns=_columns(
            node=(TEXT, "the node that measured, or had the traffic"),
            peer=(TEXT, "the node whose clock it is, by the name that it gave itself"),
            from_time=(INSTANT, "the beginning of the hour (UTC)"),
            to_time=(INSTANT, "its end, exclusive"),
            offset_us=(LONG, "how far the peer's clock was ahead, in microseconds"),
            rtt_us=(LONG, "the least round trip, twice the largest error"),
            source=(TEXT, "`session`: a session measured it; `traffic`: messages both ways tell"),
            correction_us=(LONG, "how far the node's own clock was ahead of the reference"),
            day=(DATE, "the day (UTC) of the hour"),
        ),
        key=("node", "peer", "from_time"),
        day="from_time",
        inputs=(SESSIONS, MESSAGES),
        made_by="clocks:clocks",
        exchange=True,
    ),
    Table(
        name="session_history",
        text="A session of a node with a peer, and when it was open.",
        columns={
            **_AT_NODE,
            **_columns(
                session=(TEXT, "its local name"),
                role=(TEXT, "what the peer is to the node: `parent`, `leaf`, `peer`, …"),
                transport=(TEXT, "what carries it"),
                place=(TEXT, "the address of the peer"),
                peer=(TEXT, "the name that the peer gave itself; null if it gave none"),
                identity=(TEXT, "the name that it proved; null if it proved none"),
                opened_at=(INSTANT, "when it opened"),
                closed_at=(INSTANT, "when it ended; null while it is open"),
                closed_by=(TEXT, "`closed`, `lost`, `stopped` or `restart`; null while it is open"),
                reason=(TEXT, "why it was lost"),
                day=(DATE, "the day (UTC) when it opened"),
            ),
        },
        key=("node", "incarnation", "session", "opened_at"),
        day="opened_at",
        inputs=(SESSIONS, NODES),
        made_by="kernels.sessions:session_history",
        together="survey",
        split=False,
    ),
    Table(
        name="coverage",
        text="An incarnation of a node, and how far its record reaches.",
        columns={
            **_AT_NODE,
            **_columns(
                from_time=(INSTANT, "when it began"),
                to_time=(INSTANT, "its last record"),
                sample=(pa.float64(), "the share of messages that it kept; it kept all drops"),
                lost=(LONG, "records that are known to be missing"),
                sealed=(FLAG, "whether all its records are in sealed files, which are read"),
                ended_by=(TEXT, "`stop` or `crash`; null if it may still run"),
                day=(DATE, "the day (UTC) when it began"),
            ),
        },
        key=("node", "incarnation"),
        day="from_time",
        inputs=_EVERY_TABLE,
        made_by="kernels.coverage:coverage",
        together="survey",
        split=False,
    ),
    Table(
        name="rejects",
        text="A row or a file of the journal that cannot be read.",
        columns=_columns(
            table=(TEXT, "its table"),
            node=(TEXT, "its node; null for a file that belongs to none"),
            file=(TEXT, "the file, relative to the journal's directory"),
            row=(TEXT, "the row as JSON; null for a file or a part of one"),
            problem=(TEXT, "what is wrong with it"),
            source_table=(TEXT, "`table`, under a name that is no word of SQL"),
            day=(DATE, "the day (UTC) of the file's first row; null if that is unknown"),
        ),
        key=("table", "node", "file", "row"),
        reported=True,
        day="day",
        inputs=_EVERY_TABLE,
        made_by="kernels.node_tables:rejects",
        call="rejects(journal)",
        together="survey",
        split=False,
        beside="kernels.node_tables:strays",
    ),
    Table(
        name="losses",
        text="A copy of a message that did not reach whom it was for.",
        columns=_columns(
            message_id=(TEXT, "the message"),
            origin=(TEXT, "the node and incarnation where it entered the fleet; null if unknown"),
            recipient=(TEXT, "who went without; null if nobody is named"),
            event_time=(INSTANT, "when it ended, or left for where it did not arrive"),
            at_visit=(INSTANT, "when it had entered that node"),
            node=(TEXT, "where it ended, or the last node that had it"),
            next_node=(TEXT, "the node that it left for, or waited for"),
            sender=(TEXT, "who sent it, if that is proven"),
            multicast_id=(TEXT, "what it was published under, if it was"),
            reason=(TEXT, "why it was dropped, or `VANISHED`"),
            cause=(TEXT, "the same for people, with what happened before and after"),
            internal=(FLAG, "whether nodes sent it for themselves"),
            incident_id=(TEXT, "the incident behind it"),
            day=(DATE, "the day (UTC) when its message entered the fleet"),
        ),
        key=("message_id", "origin", "recipient"),
        day="day",
        inputs=(MESSAGES,),
        made_by="losses:losses",
        exchange=True,
        of=("traces", "route_history", "session_history", "coverage"),
    ),
    Table(
        name="incidents",
        text="Something that went wrong, and the messages that it cost.",
        columns=_columns(
            incident_id=(TEXT, "the same whenever it is found"),
            kind=(TEXT, "`node_crashed`, `node_stopped`, `link_lost`, `route_expired`, …"),
            node=(TEXT, "where it happened; null for a topic that nobody hears"),
            started=(INSTANT, "when it began, by the clock of that node"),
            ended=(INSTANT, "when it was over; null while it lasts"),
            participants=(pa.list_(TEXT), "who went without"),
            lost=(LONG, "how many losses it explains, without those of the nodes themselves"),
            cause=(TEXT, "what happened, for people"),
            evidence=(pa.list_(TEXT), "messages that were lost by it: the first ten"),
            day=(DATE, "the day (UTC) when it began"),
        ),
        key=("incident_id",),
        day="started",
        inputs=(MESSAGES,),
        made_by="losses:incidents",
        exchange=True,
        of=("traces", "route_history", "session_history", "coverage"),
    ),
)
"""Every table, in the order in which they are built."""

BY_NAME: Final[Mapping[str, Table]] = {table.name: table for table in REGISTRY}
TABLES: Final = tuple(BY_NAME)
"""The names of the tables, in the order in which they are built."""

DERIVED: Final = frozenset(("day", "is_complete", "is_symmetric", "is_looped", "source_table"))
"""Columns that follow from others, for those who read tables. No step reads them."""

BUILT: Final[Mapping[str, pa.Schema]] = {table.name: table.schema for table in REGISTRY}
"""The schema of each table."""

WHATIF: Final = pa.schema(
    {
        "message_id": TEXT,
        "origin": TEXT,
        "recipient": TEXT,
        "before_outcome": TEXT,
        "before_reason": TEXT,
        "before_node": TEXT,
        "after_outcome": TEXT,
        "after_reason": TEXT,
        "after_node": TEXT,
        "hops_before": pa.int32(),
        "hops_after": pa.int32(),
        "verdict": TEXT,
        "why": TEXT,
        "internal": FLAG,
        "change": TEXT,
    }
)
"""A message for one recipient: how it ended, and how it would have, had there been a change."""

STORED: Final[Mapping[str, pa.Schema]] = {**BUILT, "whatif": WHATIF}
"""The schema of each table that can be written: those of a build, and the answer of `whatif`."""

TAKEN: Final[Mapping[str, pa.Schema]] = {
    name: pa.schema([field for field in schema if field.name not in DERIVED])
    for name, schema in BUILT.items()
}
"""The columns of each table that a step which takes it needs."""

REPORTED: Final = tuple(table.name for table in REGISTRY if table.reported)
"""The tables that the report shows."""

WATCHED: Final = tuple(table.name for table in REGISTRY if table.watched)
"""The tables that `watch` keeps up to date."""


def passes(asked: Iterable[str]) -> list[tuple[Table, ...]]:
    """The tables in the order in which they are built, those together that need one read.

    >>> [[table.name for table in found] for found in passes(["audit", "health", "expected"])]
    [['expected', 'audit'], ['health']]
    """
    wanted = set(asked)
    found: dict[str, list[Table]] = {}
    for table in REGISTRY:
        if table.name in wanted:
            found.setdefault(table.together or table.name, []).append(table)
    return [tuple(tables) for tables in found.values()]


def maker(named: str) -> Callable[..., Any]:
    """The function that the registry names."""
    module, _, function = named.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"{_PACKAGE}.{module}"), function)
    return found


def part_of(table: str, rows: pa.Table) -> pa.Table:
    """Rows with the name of their table, which tells them apart where several are made together."""
    return rows.replace_schema_metadata({_TABLE: table})


def table_of(rows: pa.Table) -> str | None:
    """The table that rows are a part of, if they tell."""
    told = (rows.schema.metadata or {}).get(_TABLE)
    return None if told is None else str(told.decode())


def still_open(rows: pa.Table) -> pa.Table:
    """Rows that say of themselves that later records can change them."""
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), _OPEN: b"1"})


def is_still_open(rows: pa.Table) -> bool:
    """Whether rows say so."""
    return _OPEN in (rows.schema.metadata or {})
