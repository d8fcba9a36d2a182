"""The tables of the journal: names, columns and types (CONTRACT), and the rows of its own.

Only what a table looks like lives here. How records become columns is in convert.py, where they lie
on the disk in layout.py.
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
MESSAGES: Final = "messages"

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    # The column `node` stands in the path, not in the file.
    NODES: pa.schema({**_EVERY_TABLE, "kind": TEXT, "detail": TEXT, "lost": pa.int64()}),
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

ADDED: Final = frozenset({"dialect"})
"""Columns that files of older journals do not have; there they count as null."""


def conforming(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, in its order; a KeyError where one is missing that never was."""
    for name in ADDED.intersection(schema.names).difference(batch.schema.names):
        field = schema.field(name)
        batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    return batch.select(schema.names).cast(schema)


class NodeKind(StrEnum):
    """What happened to the journal of a node, in its own words."""

    START = "start"
    STOP = "stop"
    LOST = "lost"


class NodeRecord(Struct, frozen=True, gc=False):
    """A row of `nodes`: the journal speaks of itself.

    `lost` is how many records it stands for; 0 where nobody can tell, or nothing was lost.
    """

    kind: NodeKind
    detail: str
    at: int
    lost: int = 0
