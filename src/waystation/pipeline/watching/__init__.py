"""The tables of a journal, kept up to date while it grows (SP-3).

    Spark's file source ─► stream.py ─► engine.py ─► buckets.py ─► node_step.py   node by node
                                             └─────► traces.py                    message by message

store.py says where files are; segments.py has the files that never change.
"""

from waystation.pipeline.watching.alerts import Alert, Alerts
from waystation.pipeline.watching.engine import Batch
from waystation.pipeline.watching.stream import Watched, watch

__all__ = ["Alert", "Alerts", "Batch", "Watched", "watch"]
