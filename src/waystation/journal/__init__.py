"""The journal: what happened at a node, columnar, crash-safe, nearly free (OB-4 .. OB-6).

It stands on the core and knows nothing of nodes; `Journal.note` takes the records that a node
gives to its observers. It needs pyarrow: `pip install 'waystation[journal]'`.
"""

from importlib.util import find_spec

from waystation.errors import LocalError

if find_spec("pyarrow") is None:
    raise LocalError(
        "the journal needs pyarrow, which is not installed",
        rule="OB-5",
        hint="pip install 'waystation[journal]'",
    )

from waystation.journal.writer import Journal

__all__ = ["Journal"]
