"""The tables of a journal, kept up to date while it grows (SP-3).

    Spark's file source ─► stream.py ─► engine.py ─► buckets.py ─► node_step.py   node by node
                                             └─────► traces.py                    message by message

What lies where is in store.py; files that never change, in segments.py.
"""

from waystation.pipeline.watching.alerts import Alert, Alerts
from waystation.pipeline.watching.engine import Batch
from waystation.pipeline.watching.stream import Watched, watch

__all__ = ["Alert", "Alerts", "Batch", "Watched", "watch"]
