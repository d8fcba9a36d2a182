"""The tables that the pipeline reads and builds: names, columns, types, and defaults (CONTRACT).

Only the structure of tables is here, as Arrow schemas; Spark's are made from them.
The values that a row may hold are in checks.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

INSTANT: Final = pa.timestamp("us", "UTC")
TEXT: Final = pa.string()
TEXTS: Final = pa.list_(TEXT)
CODED: Final = pa.dictionary(pa.int32(), TEXT)
"""Dictionary-encoded strings: what is read in this form is never expanded row by row."""

NODES: Final = "nodes"
ROUTES: Final = "routes"
SUBSCRIPTIONS: Final = "subscriptions"
MEMBERS: Final = "members"
MESSAGES: Final = "messages"


class Column(Struct, frozen=True):
    """A column of the journal; if it is not `required`, files of other versions may lack it.

    Then every row has the `default`; `same_as` names a column whose values are used instead.
    """

    type: Any
    required: bool = True
    default: Any = None
    same_as: str | None = None


def _optional(type: Any, default: Any = None) -> Column:
    return Column(type, required=False, default=default)


_EVERY_TABLE: Final = {
    "incarnation": Column(pa.int64()),
    "seq": Column(pa.int64()),
    "at": Column(INSTANT),
}

JOURNAL: Final[Mapping[str, Mapping[str, Column]]] = {
    NODES: {
        **_EVERY_TABLE,
        "kind": Column(TEXT),
        "detail": _optional(TEXT, ""),
        "lost": _optional(pa.int64(), 0),
    },
    ROUTES: {
        **_EVERY_TABLE,
        "kind": Column(TEXT),
        "participant": Column(TEXT),
        "address": Column(TEXT),
        "local": Column(pa.bool_()),
        "visible": _optional(pa.bool_(), default=False),
        "expiry": _optional(INSTANT),
        "sticky": _optional(pa.bool_(), default=False),
        "accepted": _optional(pa.bool_()),
    },
    SUBSCRIPTIONS: {
        **_EVERY_TABLE,
        "kind": Column(TEXT),
        "pattern": Column(TEXT),
        "receiver": Column(TEXT),
    },
    MEMBERS: {
        **_EVERY_TABLE,
        "kind": Column(TEXT),
        "grp": Column(TEXT),
        "uuid": Column(TEXT),
        "name": _optional(TEXT, ""),
        "physical": _optional(TEXTS, []),
    },
    MESSAGES: {
        **_EVERY_TABLE,
        "message_id": Column(TEXT),
        "kind": Column(TEXT),
        "onward": Column(TEXTS),
        "return": _optional(TEXTS, []),
        "multicast_id": _optional(TEXT),
        "outcome": Column(TEXT),
        "reason": _optional(TEXT),
        "next_hop": _optional(TEXT),
        "recipient": _optional(TEXT),
        "bytes": _optional(pa.int32(), 0),
        "expiry": _optional(INSTANT),
        "from_global": _optional(pa.bool_(), default=False),
        "received_at": Column(INSTANT, required=False, same_as="at"),
    },
}
"""The columns of each table of the journal, without `node`, which is in the path."""

HISTORY_KEYS: Final = {"node": TEXT, "incarnation": pa.int64()}
_VALIDITY: Final = {"valid_from": INSTANT, "valid_to": INSTANT, "closed_by": TEXT}
HOP: Final = pa.struct(
    {"node": TEXT, "at": INSTANT, "outcome": TEXT, "reason": TEXT, "next_hop": TEXT}
)

BUILT: Final[Mapping[str, pa.Schema]] = {
    "route_history": pa.schema(
        {
            **HISTORY_KEYS,
            "participant": TEXT,
            "address": TEXT,
            "local": pa.bool_(),
            "visible": pa.bool_(),
            "sticky": pa.bool_(),
            "expiry": INSTANT,
            **_VALIDITY,
        }
    ),
    "subscription_history": pa.schema(
        {**HISTORY_KEYS, "pattern": TEXT, "receiver": TEXT, **_VALIDITY}
    ),
    "expected": pa.schema(
        {
            "message_id": TEXT,
            "node": TEXT,
            "at": INSTANT,
            "recipient": TEXT,
            "address": TEXT,
            "outcome": TEXT,
            "reason": TEXT,
        }
    ),
    "traces": pa.schema(
        {
            "message_id": TEXT,
            "started": INSTANT,
            "ended": INSTANT,
            "hops": pa.int32(),
            "path": pa.list_(HOP),
            "outcome": TEXT,
            "reason": TEXT,
            "latency_ms": pa.float64(),
            "complete": pa.bool_(),
            "symmetric": pa.bool_(),
            "looped": pa.bool_(),
        }
    ),
    "audit": pa.schema(
        {
            "message_id": TEXT,
            "node": TEXT,
            "recipient": TEXT,
            "expected": TEXT,
            "actual": TEXT,
            "verdict": TEXT,
            "reason": TEXT,
        }
    ),
    "health": pa.schema(
        {
            "node": TEXT,
            "window_start": INSTANT,
            "outcome": TEXT,
            "reason": TEXT,
            "address_type": TEXT,
            "messages": pa.int64(),
            "bytes": pa.int64(),
            "p50_ms": pa.float64(),
            "p99_ms": pa.float64(),
        }
    ),
    "rejects": pa.schema({"table": TEXT, "node": TEXT, "file": TEXT, "row": TEXT, "problem": TEXT}),
}
"""The schema of each table that the pipeline builds."""


def coded_schema(table: str, plain: Collection[str] = ()) -> pa.Schema:
    """The schema of a table of the journal as the steps read it, without `node`.

    Strings are CODED, except the ids of messages, which hardly repeat, and the columns in `plain`,
    which do not repeat either.
    """
    columns = {name: column.type for name, column in JOURNAL[table].items()}
    for name, type in columns.items():
        if type == TEXTS:
            columns[name] = pa.list_(CODED)
        elif type == TEXT and name != "message_id" and name not in plain:
            columns[name] = CODED
    return pa.schema(columns)


def journal_schema(table: str) -> pa.Schema:
    """The schema of a table of the journal as frames have it, `node` first."""
    columns = {name: column.type for name, column in JOURNAL[table].items()}
    return pa.schema({"node": TEXT, **columns})


def spark_schema(schema: pa.Schema) -> StructType:
    """The schema of a table of the journal for Spark; timestamps are TimestampType."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)
