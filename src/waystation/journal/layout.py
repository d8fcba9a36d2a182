"""Where the journal lies: directories, file names, and how a node's name is written in a path.

    JOURNAL/<table>/node=<node>/<incarnation>-<first seq>.parquet    sealed
    JOURNAL/<table>/node=<node>/.<incarnation>-<first seq>.arrows    a tail, being written
    JOURNAL/<table>/node=<node>/.<incarnation>-<first seq>.seal.tmp  being sealed
    JOURNAL/<table>/node=<node>/.<incarnation>-<first seq>.pack.tmp  being compacted
    JOURNAL/<table>/node=<node>/_removed                             what retention took away
    JOURNAL/.node=<node>.lock                                        held by the node's writer
    JOURNAL/.pack.lock                                               held while files are removed

What starts with `.` or `_` is invisible to Spark. Nothing here opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.journal.schema import SCHEMAS

SEALED: Final = ".parquet"
TAIL: Final = ".arrows"
SEALING: Final = ".seal.tmp"
COMPACTING: Final = ".pack.tmp"
REMOVED: Final = "_removed"

_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(32)}
_HEX: Final = re.compile("%([0-9A-Fa-f]{2})")
_STEM: Final = re.compile(r"\.?(\d{1,18})-(\d{1,18})")
_MAX_NAME_BYTES: Final = 240  # file systems take 255; `.lock` and the like need some


class Stem(Struct, frozen=True, order=True):
    """What a file holds: rows of one incarnation from one seq on.

    >>> Stem.parse(".1700000000000-42.arrows")
    Stem(incarnation=1700000000000, first=42)
    >>> Stem.parse("part-0.parquet") is None
    True
    """

    incarnation: int
    first: int

    @classmethod
    def parse(cls, name: str) -> Stem | None:
        """The stem of a file name of the journal, or None for any other."""
        stem, _, _ = name.removeprefix(".").partition(".")
        found = _STEM.fullmatch(stem)
        return cls(int(found[1]), int(found[2])) if found else None

    @property
    def sealed(self) -> str:
        """The name of the sealed file."""
        return f"{self.incarnation}-{self.first}{SEALED}"

    @property
    def tail(self) -> str:
        """The name of the tail."""
        return f".{self.incarnation}-{self.first}{TAIL}"

    def temporary(self, suffix: str) -> str:
        """The name of the sealed file while it is not whole yet."""
        return f".{self.incarnation}-{self.first}{suffix}"


def escaped(node: str) -> str:
    """A node's name as Spark and Hive write it in a path.

    >>> escaped("hall/2: left"), unescaped("hall%2F2%3A left")
    ('hall%2F2%3A left', 'hall/2: left')
    """
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in node)


def unescaped(text: str) -> str:
    """The name of a node from its path."""
    return _HEX.sub(lambda found: chr(int(found[1], 16)), text)


def check_node(node: str) -> str:
    """Return the name, or raise the LocalError that says why it cannot stand in a path."""
    problem = ""
    if not isinstance(node, str) or not node:
        problem = "is no name"
    else:
        try:
            if len(f"node={escaped(node)}".encode()) > _MAX_NAME_BYTES:
                problem = "is too long for a directory"
        except UnicodeEncodeError:
            problem = "cannot be written as UTF-8"
    if problem:
        raise LocalError(
            f"the node {quote(node)} {problem}",
            rule="OB-4",
            hint=f"give a text that takes at most {_MAX_NAME_BYTES} bytes in a path",
        )
    return node


def table_directory(journal: Path, table: str, node: str) -> Path:
    """Where one table of one node lies."""
    return journal / table / f"node={escaped(node)}"


def lock_path(journal: Path, node: str) -> Path:
    """The file that the writer of a node holds locked."""
    return journal / f".node={escaped(node)}.lock"


def packing_lock_path(journal: Path) -> Path:
    """The file that whoever removes or replaces sealed files holds locked."""
    return journal / ".pack.lock"


def nodes_of(journal: Path, table: str) -> list[str]:
    """The nodes that have a directory for this table, sorted."""
    try:
        names = [path.name for path in (journal / table).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(unescaped(name[5:]) for name in names if name.startswith("node="))


def all_nodes(journal: Path) -> list[str]:
    """The nodes that have a directory for any table, sorted."""
    return sorted({node for table in SCHEMAS for node in nodes_of(journal, table)})


def files_in(directory: Path, suffix: str) -> list[Stem]:
    """The files of the journal with this suffix, in the order of their rows."""
    return sorted(stem for name, stem in _named(directory) if name.endswith(suffix))


def _named(directory: Path) -> Iterator[tuple[str, Stem]]:
    try:
        names = [path.name for path in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        stem = Stem.parse(name)
        if stem is not None:
            yield name, stem


def last_incarnation(journal: Path, node: str) -> int:
    """The highest incarnation of a node that left any file, or 0."""
    return max(
        (
            stem.incarnation
            for table in SCHEMAS
            for _, stem in _named(table_directory(journal, table, node))
        ),
        default=0,
    )
