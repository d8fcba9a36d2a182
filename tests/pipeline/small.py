"""Small journals, written by hand, for tests that need to know every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from waystation.journal.schema import VERSION_KEY
from waystation.pipeline.schema import JOURNAL

INCARNATION = 1_700_000_000_000
BEGIN = INCARNATION * 1_000  # in microseconds
SECOND = 1_000_000

_ROWS: dict[str, dict[str, Any]] = {
    "nodes": {"kind": "start", "detail": "", "lost": 0},
    "routes": {
        "kind": "put",
        "participant": "a",
        "address": "0#a",
        "local": True,
        "visible": False,
        "expiry": None,
        "sticky": False,
        "accepted": True,
    },
    "subscriptions": {"kind": "subscribe", "pattern": "p/b/*", "receiver": "a"},
    "members": {"kind": "join", "grp": "g", "uuid": "u", "name": "n", "physical": ["1#h:1"]},
    "sessions": {"kind": "open", "session": "s", "role": "peer", "peer": "p", "place": "1#h:1"},
    "claims": {
        "kind": "claim",
        "participant": "a",
        "session": "s",
        "owner": "o",
        "proven": False,
        "origin": "n",
        "number": 1,
        "path": ["n"],
        "reason": None,
        "detail": None,
    },
    "messages": {
        "message_id": f"{7:032x}",
        "kind": "unicast",
        "onward": ["0#a"],
        "return": [],
        "multicast_id": None,
        "outcome": "DELIVERED",
        "reason": None,
        "next_hop": None,
        "recipient": "a",
        "bytes": 1,
        "expiry": None,
        "from_global": False,
    },
}


def row(table: str, seq: int, at: int | None = None, **fields: Any) -> dict[str, Any]:
    """A valid row; times count from BEGIN, by default one second for each seq."""
    instant = BEGIN + (seq * SECOND if at is None else at)
    found = {"incarnation": INCARNATION, "seq": seq, "at": instant, **_ROWS[table], **fields}
    if table == "messages":
        found.setdefault("received_at", instant)
    return found


def table_of(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as an Arrow table with the journal's schema."""
    columns = {}
    for name, column in JOURNAL[table].items():
        if column.of_the_file:
            continue
        values = [found.get(name) for found in rows]
        instant = pa.types.is_timestamp(column.type)
        columns[name] = pa.array(values, pa.int64() if instant else column.type).cast(column.type)
    return pa.table(columns)


def put_file(journal: Path, table: str, node: str, name: str, content: pa.Table) -> Path:
    """Write one file of a journal."""
    directory = journal / table / f"node={node}"
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, directory / name)
    return directory / name


def put_rows(
    journal: Path,
    table: str,
    rows: list[dict[str, Any]],
    node: str = "garage",
    name: str = "",
    version: int = 1,
) -> Path:
    """Write rows as one file, with the name that it should have."""
    name = name or f"{rows[0]['incarnation']}-{rows[0]['seq']}.parquet"
    content = table_of(table, rows)
    if version != 1:  # the first version wrote none
        content = content.replace_schema_metadata({VERSION_KEY: str(version)})
    return put_file(journal, table, node, name, content)
