"""The journal: what happened at a node, columnar, crash-safe, nearly free (OB-4 .. OB-6).

It stands on the core and knows nothing of nodes; `Journal.note` takes the records that a node
gives to its observers. It needs pyarrow: `pip install 'waystation[journal]'`.
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
    """Load what writes only when somebody asks for it: most who come here read."""
    if name == "Journal":
        from waystation.journal import write  # noqa: PLC0415

        return write.Journal
    raise AttributeError(f"module 'waystation.journal' has no attribute {name!r}")
