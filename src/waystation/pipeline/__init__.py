"""The pipeline: history tables of a whole fleet, built from its journals with Spark.

It reads the journals that nodes write and builds tables of them with Spark. Each step is one
function from frames to a frame; `build` does all of them and writes the tables. It needs PySpark:
`pip install 'waystation[spark]'`.
"""

from importlib.util import find_spec

from waystation.errors import LocalError

if not all(map(find_spec, ("pyspark", "pyarrow", "pandas"))):
    raise LocalError(
        "the pipeline needs PySpark, pyarrow and pandas, which are not all installed",
        rule="SP-4",
        hint="pip install 'waystation[spark]'",
    )

from waystation.pipeline.building import Progress, Summary, TableSummary, build
from waystation.pipeline.journal import Journal, read_journal
from waystation.pipeline.making import built
from waystation.pipeline.source.datasource import register
from waystation.pipeline.spark_session import session, ship
from waystation.pipeline.steps import (
    audit,
    coalesced,
    expected,
    expected_deliveries,
    health,
    rejects,
    route_history,
    routing_table,
    subscription_history,
    traces,
)
from waystation.pipeline.surveying import known_of
from waystation.pipeline.tables import TABLES
from waystation.pipeline.watching import Alert, Alerts, Batch, Watched, watch

__all__ = [
    "TABLES",
    "Alert",
    "Alerts",
    "Batch",
    "Journal",
    "Progress",
    "Summary",
    "TableSummary",
    "Watched",
    "audit",
    "build",
    "built",
    "coalesced",
    "expected",
    "expected_deliveries",
    "health",
    "known_of",
    "read_journal",
    "register",
    "rejects",
    "route_history",
    "routing_table",
    "session",
    "ship",
    "subscription_history",
    "traces",
    "watch",
]
