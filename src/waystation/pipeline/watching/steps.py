"""Steps of messages as tasks pass them on: one chunk, with dictionary-encoded strings.

tracing.py explains steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from waystation.journal.schema import TEXT
from waystation.pipeline.kernels.tracing import STEPS
from waystation.pipeline.schema import CODED

_CODED: Final = pa.schema(
    [
        field.with_type(CODED) if field.type == TEXT and field.name != "message_id" else field
        for field in STEPS
    ]
)


def gathered(parts: Iterable[pa.Table]) -> pa.Table:
    """Steps from several sources in one table."""
    cast = [part.cast(_CODED) for part in parts]
    return pa.concat_tables([_CODED.empty_table(), *cast]).combine_chunks()
