"""Which row of a node's messages stands for a visit: the one that is decided about. No Spark."""

from __future__ import annotations

import pyarrow as pa

from waystation.pipeline.kernels.columns import Longs, column, longs
from waystation.pipeline.kernels.visits import entries


def standing_for(rows: pa.Table, some: Longs) -> dict[int, int]:
    """For each of some rows, the row of the same visit that is decided about."""
    if not len(some):
        return {}
    stand = entries(rows)
    ids, received = column(rows, "message_id"), longs(rows, "received_at")
    wanted = set(received[some].tolist())
    near = [row for row in stand.tolist() if int(received[row]) in wanted]
    keys = {(ids[row].as_py(), int(received[row])): row for row in near}
    return {row: keys[ids[row].as_py(), int(received[row])] for row in some.tolist()}
