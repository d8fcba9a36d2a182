"""Journals in a store: which nodes they have. Nothing here opens a file."""

from __future__ import annotations

from pyarrow.fs import FileSelector

from waystation.journal.filesystems import complaining, file_system
from waystation.journal.layout import unescape
from waystation.journal.schema import SCHEMAS

_NODE = "node="


def nodes_in_store(place: str) -> set[str]:
    """The names of the nodes that a journal in a store has files of."""
    system, path = file_system(place)
    found: set[str] = set()
    with complaining(place, "read"):
        for table in SCHEMAS:
            selector = FileSelector(f"{path}/{table}", allow_not_found=True)
            names = [info.base_name for info in system.get_file_info(selector)]
            found |= {unescape(name[len(_NODE) :]) for name in names if name.startswith(_NODE)}
    return found
