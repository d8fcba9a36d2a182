"""What a gossip router dropped: losses of messages that have no traces. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from waystation.journal.schema import MESSAGES, TEXT
from waystation.pipeline.kernels.columns import days, longs
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.tables import DATE, LOST

DROPPED: Final = pa.schema(
    {
        "message_id": TEXT,
        "origin": TEXT,
        "sender": TEXT,
        "multicast_id": TEXT,
        "day": DATE,
        "lost": LOST,
    }
)
"""A loss with the columns of the trace that it has not."""

_TO_MEMBERS: Final = "6#"


def gossip_losses(data: FileData) -> Iterator[pa.Table]:
    """What a node that keeps members dropped of what was for them."""
    if data.has(MESSAGES) and data.keeps_members:
        yield from gossip_losses_in(data.node, data.coded_batches(MESSAGES))


def gossip_losses_in(node: str, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same of some of its rows."""
    for coded in parts:
        ended = pc.and_(
            pc.equal(coded.column("outcome").cast(TEXT), "DROPPED"),
            pc.greater(pc.list_value_length(coded.column("onward")), 0),
        )
        rows = coded.filter(ended)
        if not rows.num_rows:
            continue
        first = pc.list_element(rows.column("onward").cast(pa.list_(TEXT)), 0)
        reason = rows.column("reason").cast(TEXT)
        ours = pc.and_(
            pc.starts_with(first, _TO_MEMBERS),
            pc.fill_null(pc.not_equal(reason, "DUPLICATE"), fill_value=False),
        )
        rows = rows.filter(ours).combine_chunks()
        if rows.num_rows:
            yield _as_losses(node, rows)


def _as_losses(node: str, rows: pa.Table) -> pa.Table:
    count = rows.num_rows
    given = {
        "node": pa.repeat(pa.scalar(node, TEXT), count),
        "onward": pc.binary_join(rows.column("onward").cast(pa.list_(TEXT)), " "),
        "internal": pa.repeat(pa.scalar(False), count),
    }
    fields = [
        _plain(given.get(field.name, rows[field.name] if field.name not in given else None), field)
        for field in LOST
    ]
    columns = [
        rows.column("message_id").cast(TEXT),
        pa.nulls(count, TEXT),
        rows.column("sender").cast(TEXT),
        rows.column("multicast_id").cast(TEXT),
        days(longs(rows, "received_at")),
        pa.StructArray.from_arrays(fields, fields=list(LOST)),
    ]
    return pa.table(columns, schema=DROPPED)


def _plain(values: pa.ChunkedArray | pa.Array, field: pa.Field) -> pa.Array:
    found = values.cast(field.type)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
