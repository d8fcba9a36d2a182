"""The tables that the pipeline reads and builds: columns, types, and defaults (CONTRACT).

What the journal has is said in journal/schema.py alone; here is which of its columns a file may
lack, and what counts then. Only the structure of tables is here, as Arrow schemas; Spark's are made
from them. The values that a row may hold are in checks.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct

from waystation.journal.schema import (
    CLAIMS,
    MEMBERS,
    MESSAGES,
    NODES,
    ROUTES,
    SCHEMAS,
    SESSIONS,
    SUBSCRIPTIONS,
    TEXT,
    TEXTS,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CODED: Final = pa.dictionary(pa.int32(), TEXT)
"""Dictionary-encoded strings: what is read in this form is never expanded row by row."""


VERSION: Final = "version"
"""The column of `messages` with the version of each row's file, which says what its values mean."""


class Column(Struct, frozen=True):
    """A column of the journal; if it is not `required`, files of other versions may lack it.

    Then every row has the `default`; `same_as` names a column whose values are used instead.
    A column `of_the_file` is told by its metadata, and is in no file.
    """

    type: Any
    required: bool = True
    default: Any = None
    same_as: str | None = None
    of_the_file: bool = False


_REQUIRED: Final = {
    ROUTES: {"participant", "address", "local"},
    SUBSCRIPTIONS: {"pattern", "receiver"},
    MEMBERS: {"grp", "uuid"},
    SESSIONS: {"session"},
    CLAIMS: {"participant", "session"},
    MESSAGES: {"message_id", "onward", "outcome"},
}
"""The columns without which the rows of a file say nothing, beside those of every table."""

_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    NODES: {"detail": "", "lost": 0},
    ROUTES: {"visible": False, "sticky": False},
    MEMBERS: {"name": "", "physical": []},
    MESSAGES: {"return": [], "bytes": 0, "from_global": False},
}
"""What rows have in a column that their file lacks; null in all others."""

_SAME_AS: Final = {(MESSAGES, "received_at"): "at"}
_OF_EVERY_TABLE: Final = frozenset({"incarnation", "seq", "at", "kind"})


def _column(table: str, field: pa.Field) -> Column:
    name = field.name
    return Column(
        field.type,
        required=name in _OF_EVERY_TABLE or name in _REQUIRED.get(table, ()),
        default=_DEFAULTS.get(table, {}).get(name),
        same_as=_SAME_AS.get((table, name)),
    )


_OF_THE_FILE: Final = {
    MESSAGES: {VERSION: Column(pa.int16(), required=False, default=1, of_the_file=True)}
}

JOURNAL: Final[Mapping[str, Mapping[str, Column]]] = {
    table: {
        **{field.name: _column(table, field) for field in schema},
        **_OF_THE_FILE.get(table, {}),
    }
    for table, schema in SCHEMAS.items()
}
"""Every table that the journal has, with all columns but `node`, which is in the path."""

_DECIDING: Final = {
    ROUTES: [
        *("incarnation", "seq", "at", "kind", "participant", "address", "local", "visible"),
        *("expiry", "sticky", "accepted"),
    ],
    SUBSCRIPTIONS: ["incarnation", "seq", "at", "kind", "pattern", "receiver"],
    MESSAGES: [
        *("incarnation", "seq", "at", "message_id", "kind", "onward", "return", "multicast_id"),
        *("outcome", "reason", "next_hop", "recipient", "bytes", "expiry", "from_global"),
        *("received_at", "origin", "answers", "via", "from_node", "out", "next_node", "copy"),
        *("sender", "durable", "internal", VERSION),
    ],
}
"""The columns of large tables that steps use or check. The others cost them nothing."""


def steps_columns(table: str) -> list[str]:
    """The columns of a table of the journal that the steps read."""
    return _DECIDING.get(table) or list(JOURNAL[table])


def plain_schema(table: str, *, every: bool = False) -> pa.Schema:
    """The schema of a table of the journal, without `node`: as steps read it, or every column."""
    names = list(JOURNAL[table]) if every else steps_columns(table)
    return pa.schema({name: JOURNAL[table][name].type for name in names})


def coded_schema(table: str, plain: Collection[str] = (), *, every: bool = False) -> pa.Schema:
    """The plain schema with dictionary-encoded strings.

    Strings are CODED, except the ids of messages, which hardly repeat, and the columns in `plain`,
    which do not repeat either.
    """
    columns = {field.name: field.type for field in plain_schema(table, every=every)}
    for name, type in columns.items():
        if type == TEXTS:
            columns[name] = pa.list_(CODED)
        elif type == TEXT and name != "message_id" and name not in plain:
            columns[name] = CODED
    return pa.schema(columns)


def journal_schema(table: str) -> pa.Schema:
    """The schema of a table of the journal as frames have it: every column, `node` first."""
    return plain_schema(table, every=True).insert(0, pa.field("node", TEXT))


def spark_schema(schema: pa.Schema) -> StructType:
    """The schema of a table of the journal for Spark; timestamps are TimestampType."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - kernels need no Spark

    return from_arrow_schema(schema, prefer_timestamp_ntz=False)
