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

ROWS_READ: Final = "rows read"
"""In place of a table: how many rows a kernel found in the files of each table of the journal."""

_PACKAGE: Final = "waystation.pipeline"
_TABLE: Final = b"waystation.table"


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
    day: str | None  # the column whose day is the row's; None if it has no time
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

    @property
    def schema(self) -> pa.Schema:
        """Its columns, as Arrow has them."""
        return pa.schema({name: column.type for name, column in self.columns.items()})


def _columns(**columns: tuple[Any, str]) -> dict[str, BuiltColumn]:
    return {name: BuiltColumn(*described) for name, described in columns.items()}


HOP: Final = pa.struct(
    {"node": TEXT, "at": INSTANT, "outcome": TEXT, "reason": TEXT, "next_hop": TEXT}
)
_EVERY_TABLE: Final = (MESSAGES, *(table for table in SCHEMAS if table != MESSAGES))
_AT_NODE: Final = _columns(
    node=(TEXT, "the node"),
    incarnation=(LONG, "when the node's process started, in milliseconds"),
)
_VALIDITY: Final = _columns(
    valid_from=(INSTANT, "the beginning of the interval"),
    valid_to=(INSTANT, "its end, exclusive; null while it lasts"),
    closed_by=(TEXT, "why it ended; null while it lasts"),
)
_OUTCOME: Final = _columns(
    outcome=(TEXT, "what must happen"), reason=(TEXT, "why it is dropped, if it is")
)

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
        made_by="kernels:route_history",
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
        made_by="kernels:subscription_history",
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
                recipient=(TEXT, "whom it is for; null where no name was looked up"),
                address=(TEXT, "where it goes; null if it is dropped"),
            ),
            **_OUTCOME,
        },
        key=("message_id", "node", "at", "recipient", "address"),
        reported=True,
        day="at",
        inputs=(MESSAGES, ROUTES, SUBSCRIPTIONS),
        made_by="kernels:judged",
        call="expected(messages, route_history, subscription_history)",
        together="judged",
        frugal=True,
    ),
    Table(
        name="audit",
        text="An expected outcome beside the actual one.",
        columns=_columns(
            message_id=(TEXT, "the message; null in rows about a put"),
            node=(TEXT, "the node"),
            recipient=(TEXT, "whom it is for, or whose entry was put"),
            expected=(TEXT, "the outcome that the rules require"),
            actual=(TEXT, "the outcome that the node recorded"),
            verdict=(TEXT, "`ok`, `missing`, `unexpected` or `different`"),
            reason=(TEXT, "why it was dropped, if it was"),
        ),
        key=("message_id", "node", "recipient"),
        reported=True,
        day=None,
        inputs=(MESSAGES, ROUTES, SUBSCRIPTIONS),
        made_by="kernels:judged",
        call="audit(expected, messages)",
        together="judged",
    ),
    Table(
        name="traces",
        text="A message on its way over all nodes.",
        columns=_columns(
            message_id=(TEXT, "the message"),
            started=(INSTANT, "its first step"),
            ended=(INSTANT, "its last one"),
            hops=(pa.int32(), "the number of steps"),
            path=(pa.list_(HOP), "the steps, in order"),
            outcome=(TEXT, "of its last step"),
            reason=(TEXT, "of its last step, if that is a drop"),
            latency_ms=(pa.float64(), "from the first step to the last"),
            complete=(FLAG, "whether it was delivered or dropped in the end"),
            symmetric=(FLAG, "whether each return route extends the one before"),
            looped=(FLAG, "whether it entered a node twice with the same onward route"),
        ),
        key=("message_id",),
        reported=True,
        day="started",
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
            node=(TEXT, "the node that measured"),
            peer=(TEXT, "the node whose clock it measured, by the name that it gave itself"),
            from_time=(INSTANT, "the beginning of the hour (UTC)"),
            to_time=(INSTANT, "its end, exclusive"),
            offset_us=(LONG, "how far the peer's clock was ahead, in microseconds"),
            rtt_us=(LONG, "the round trip of that measurement, twice the largest error"),
            source=(TEXT, "`session`: a session measured it"),
            correction_us=(LONG, "how far the node's own clock was ahead of the reference"),
        ),
        key=("node", "peer", "from_time"),
        day="from_time",
        inputs=(SESSIONS,),
        made_by="clocks:clocks",
        exchange=True,
        watched=False,
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
            ),
        },
        key=("node", "incarnation", "session", "opened_at"),
        day="opened_at",
        inputs=(SESSIONS, NODES),
        made_by="sessions:session_history",
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
            ),
        },
        key=("node", "incarnation"),
        day="from_time",
        inputs=_EVERY_TABLE,
        made_by="coverage:coverage",
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
        ),
        key=("table", "node", "file", "row"),
        reported=True,
        day=None,
        inputs=_EVERY_TABLE,
        made_by="kernels:rejects",
        call="rejects(journal)",
        together="survey",
        split=False,
        beside="kernels:strays",
    ),
)
"""Every table, in the order in which they are built."""

BY_NAME: Final[Mapping[str, Table]] = {table.name: table for table in REGISTRY}
TABLES: Final = tuple(BY_NAME)
"""The names of the tables, in the order in which they are built."""

BUILT: Final[Mapping[str, pa.Schema]] = {table.name: table.schema for table in REGISTRY}
"""The schema of each table."""

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
