"""The schema of the journal: its tables, their columns and types, and the kinds of its own rows.

Readers import this too, so it stays cheap and writes nothing. How records become columns is in
convert.py, where the files are in layout.py.

A column is only ever added, and files from before it was are read with nulls in it (UP-3). What the
values of a row mean may still change: the version in a file's metadata says what they mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

import pyarrow as pa
from msgspec import Struct

INSTANT: Final = pa.timestamp("us", "UTC")
TEXT: Final = pa.string()
TEXTS: Final = pa.list_(TEXT)

VERSION_KEY: Final = b"waystation.version"
"""The key of a file's version, in the metadata of a sealed file and in the schema of a tail."""

WRITTEN_VERSION: Final = 2
"""The version of the files that this package writes."""

_EVERY_TABLE: Final = {"incarnation": pa.int64(), "seq": pa.int64(), "at": INSTANT}

# Whose word a change was.
_SOURCE: Final = {"session": TEXT, "cause": TEXT, "message_id": TEXT}

NODES: Final = "nodes"
ROUTES: Final = "routes"
SUBSCRIPTIONS: Final = "subscriptions"
MEMBERS: Final = "members"
SESSIONS: Final = "sessions"
CLAIMS: Final = "claims"
MESSAGES: Final = "messages"

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    # The column `node` is in the path (node=<node>), not in the file.
    NODES: pa.schema(
        {
            **_EVERY_TABLE,
            "kind": TEXT,
            "detail": TEXT,
            "lost": pa.int64(),
            "offset_us": pa.int64(),
        }
    ),
    ROUTES: pa.schema(
        {
            **_EVERY_TABLE,
            "kind": TEXT,
            "participant": TEXT,
            "address": TEXT,
            "local": pa.bool_(),
            "visible": pa.bool_(),
            "expiry": INSTANT,
            "sticky": pa.bool_(),
            "accepted": pa.bool_(),
            **_SOURCE,
        }
    ),
    SUBSCRIPTIONS: pa.schema(
        {**_EVERY_TABLE, "kind": TEXT, "pattern": TEXT, "receiver": TEXT, **_SOURCE}
    ),
    MEMBERS: pa.schema(
        {
            **_EVERY_TABLE,
            "kind": TEXT,
            "grp": TEXT,
            "uuid": TEXT,
            "name": TEXT,
            "physical": TEXTS,
            "dialect": TEXT,
        }
    ),
    SESSIONS: pa.schema(
        {
            **_EVERY_TABLE,
            "kind": TEXT,
            "session": TEXT,
            "role": TEXT,
            "transport": TEXT,
            "place": TEXT,
            "peer": TEXT,
            "peer_incarnation": pa.int64(),
            "identity": TEXT,
            "reason": TEXT,
            "detail": TEXT,
            "offset_us": pa.int64(),
            "rtt_us": pa.int64(),
        }
    ),
    CLAIMS: pa.schema(
        {
            **_EVERY_TABLE,
            "kind": TEXT,
            "participant": TEXT,
            "session": TEXT,
            "owner": TEXT,
            "proven": pa.bool_(),
            "origin": TEXT,
            "number": pa.int64(),
            "path": TEXTS,
            "reason": TEXT,
            "detail": TEXT,
        }
    ),
    MESSAGES: pa.schema(
        {
            **_EVERY_TABLE,
            "message_id": TEXT,
            "kind": TEXT,
            "onward": TEXTS,
            "return": TEXTS,
            "multicast_id": TEXT,
            "outcome": TEXT,
            "reason": TEXT,
            "next_hop": TEXT,
            "recipient": TEXT,
            "bytes": pa.int32(),
            "expiry": INSTANT,
            "from_global": pa.bool_(),
            "received_at": INSTANT,
            "origin": TEXT,
            "answers": TEXT,
            "via": TEXT,
            "from_node": TEXT,
            "out": TEXT,
            "next_node": TEXT,
            "copy": pa.int32(),
            "sender": TEXT,
            "durable": pa.bool_(),
            "attempt": pa.int32(),
            "custodian": TEXT,
            "internal": pa.bool_(),
        }
    ),
}
"""The schema of each table, by its name."""

ADDED_COLUMNS: Final[Mapping[str, Collection[str]]] = {
    NODES: ["offset_us"],
    ROUTES: list(_SOURCE),
    SUBSCRIPTIONS: list(_SOURCE),
    MEMBERS: ["dialect"],
    SESSIONS: [],
    CLAIMS: [],
    MESSAGES: SCHEMAS[MESSAGES].names[SCHEMAS[MESSAGES].get_field_index("origin") :],
}
"""Columns that files from before they were added lack; they are read as null there."""


def conform(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """A batch with exactly the columns of a table, in their order.

    Raises KeyError when a column is missing that every version of the journal has.
    """
    schema = SCHEMAS[table]
    present = set(batch.schema.names)
    lacking = [name for name in ADDED_COLUMNS[table] if name not in present]
    columns = [
        pa.nulls(batch.num_rows, field.type) if field.name in lacking else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names).cast(schema)


def version_in(metadata: Mapping[bytes, bytes] | None) -> int:
    """The version that a file's metadata tells; the first version wrote none.

    >>> version_in({b"waystation.version": b"2"}), version_in(None)
    (2, 1)
    """
    return int((metadata or {}).get(VERSION_KEY, b"1"))


class NodeKind(StrEnum):
    """What a row of `nodes` tells: the journal's own life, or the state of the node's clock."""

    START = "start"
    STOP = "stop"
    LOST = "lost"
    CORRUPT = "corrupt"
    CLOCK = "clock"


class NodeRecord(Struct, frozen=True, gc=False):
    """A row of `nodes`, which the journal writes about itself.

    `lost` is the number of lost records that the row accounts for; 0 if none or unknown.
    `offset_us` is how far the wall clock is ahead of the node's, in a row about that.
    """

    kind: NodeKind
    detail: str
    at: int
    lost: int = 0
    offset_us: int | None = None
