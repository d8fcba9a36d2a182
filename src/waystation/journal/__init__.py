"""The journal: what happened at a node, in columnar, crash-safe files (OB-4 .. OB-6, OB-9).

`Journal.note` takes the records that a node passes to its observers; the journal itself knows
nothing of nodes. It needs pyarrow: `pip install 'waystation[journal]'`.

    schema        tables, columns, types          layout        paths and file names
    write         Journal: takes records          read          tails, sealed files, rows in order
    convert       records to Arrow                pruning       which row groups to skip
    tail          files being written             check         whether all rows are there
    seal          tails to Parquet, recovery      housekeeping  compaction and retention
    frames        batches of a tail, checked      checksum      of a sealed file
    files         locks and fsync                 otel          spans for OpenTelemetry

What reads never imports what writes (write, convert, tail, seal, housekeeping).
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from waystation.errors import LocalError

if TYPE_CHECKING:
    from waystation.journal.write import Journal

if find_spec("pyarrow") is None:
    raise LocalError(
        "the journal needs pyarrow, which is not installed",
        rule="OB-5",
        hint="pip install 'waystation[journal]'",
    )

__all__ = ["Journal"]


def __getattr__(name: str) -> Any:
    """Import the writer on demand: most users of this package only read."""
    if name == "Journal":
        from waystation.journal import write  # noqa: PLC0415

        return write.Journal
    raise AttributeError(f"module 'waystation.journal' has no attribute {name!r}")
