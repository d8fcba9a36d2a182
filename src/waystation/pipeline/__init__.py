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


def check_installed(extra: str, *packages: str) -> None:
    """Raise an error that says what to install, unless these packages are there."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise LocalError(
            f"this needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            "not installed",
            rule="SP-4",
            hint=f"pip install 'waystation[{extra}]'",
        )


def check_spark_installed() -> None:
    """Raise an error that says what to install, unless all that Spark needs is there."""
    check_installed("spark", "pyspark", "pyarrow", "pandas")


def check_columns_installed() -> None:
    """Raise an error that says what to install, unless all that needs no Spark works."""
    check_installed("journal", "pyarrow", "numpy")


def __getattr__(name: str) -> Any:
    """Import what needs Spark on demand."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_spark_installed()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
