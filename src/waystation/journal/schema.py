"""The schema of the journal: its tables, their columns and types, and the kinds of its own rows.

Readers import this too, so it stays cheap and writes nothing. How records become columns is in
convert.py, where the files are in layout.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import pyarrow as pa
from msgspec import Struct

INSTANT: Final = pa.timestamp("us", "UTC")
TEXT: Final = pa.string()
TEXTS: Final = pa.list_(TEXT)

_EVERY_TABLE: Final = {"incarnation": pa.int64(), "seq": pa.int64(), "at": INSTANT}

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
        }
    ),
    SUBSCRIPTIONS: pa.schema({**_EVERY_TABLE, "kind": TEXT, "pattern": TEXT, "receiver": TEXT}),
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
        }
    ),
}
"""The schema of each table, by its name."""

ADDED_COLUMNS: Final = frozenset({"dialect", "offset_us"})
"""Columns that files from before they were added lack; they are read as null there."""


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with exactly the columns of a schema, in its order.

    Raises KeyError when a column is missing that every version of the journal has.
    """
    for name in ADDED_COLUMNS.intersection(schema.names).difference(batch.schema.names):
        field = schema.field(name)
        batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    return batch.select(schema.names).cast(schema)


class NodeKind(StrEnum):
    """What a row of `nodes` tells: the journal's own life, or the state of the node's clock."""

    START = "start"
    STOP = "stop"
    LOST = "lost"
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
