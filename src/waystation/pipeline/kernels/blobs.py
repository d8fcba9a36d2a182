"""Serialize tables to bytes in a column, and back: how many rows move between tasks at once.

To Spark a blob is one large value that it does not inspect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa


def blobs_of(tables: Iterable[pa.Table]) -> pa.Array:
    """Each table as a blob; all are written to one buffer, which becomes the column."""
    sink, bounds = pa.BufferOutputStream(), [0]
    for table in tables:
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        bounds.append(sink.tell())
    buffers = [None, pa.py_buffer(np.array(bounds, np.int32)), sink.getvalue()]
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def tables_of(blobs: pa.Array) -> Iterator[pa.Table]:
    """The tables that were serialized.

    >>> some = [pa.table({"a": [1, 2]}), pa.table({"b": ["x"]})]
    >>> list(tables_of(blobs_of(some))) == some
    True
    """
    for blob in blobs:
        with pa.ipc.open_stream(blob.as_buffer()) as stream:
            yield stream.read_all()
