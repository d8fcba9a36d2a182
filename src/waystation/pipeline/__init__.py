"""The pipeline: history tables of a whole fleet, built from its journals with Spark.

It reads the journals that nodes write and builds tables of them with Spark. Each step is one
function from frames to a frame; `build` does all of them and writes the tables. It needs PySpark:
`pip install 'waystation[spark]'`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from waystation.errors import LocalError

if TYPE_CHECKING:
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

_HOME: Final = {
    "building": (
        "Progress",
        "Summary",
        "TableSummary",
        "build",
    ),
    "journal": (
        "Journal",
        "read_journal",
    ),
    "making": ("built",),
    "source.datasource": ("register",),
    "spark_session": (
        "session",
        "ship",
    ),
    "steps": (
        "audit",
        "coalesced",
        "expected",
        "expected_deliveries",
        "health",
        "rejects",
        "route_history",
        "routing_table",
        "subscription_history",
        "traces",
    ),
    "surveying": ("known_of",),
    "tables": ("TABLES",),
    "watching": (
        "Alert",
        "Alerts",
        "Batch",
        "Watched",
        "watch",
    ),
}
"""Where each name is at home. They are imported on demand: much of this package needs no Spark."""

_MODULES: Final = {name: module for module, names in _HOME.items() for name in names}


def check_installed(*packages: str) -> None:
    """Raise an error that says what to install, unless these packages are there."""
    if not all(map(find_spec, packages)):
        raise LocalError(
            "the pipeline needs PySpark, pyarrow and pandas, which are not all installed",
            rule="SP-4",
            hint="pip install 'waystation[spark]'",
        )


def check_spark_installed() -> None:
    """Raise an error that says what to install, unless all that Spark needs is there."""
    check_installed("pyspark", "pyarrow", "pandas")


def __getattr__(name: str) -> Any:
    """Import what needs Spark on demand."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_spark_installed()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


check_installed("pyarrow", "numpy")  # without which nothing in this package works
