"""Layout of a journal's directory: paths, file names, and how a node's name is escaped in them.

    JOURNAL/<table>/node=<node>/<incarnation>-<first seq>.parquet    sealed
    JOURNAL/<table>/node=<node>/.<incarnation>-<first seq>.tail      being written
    JOURNAL/<table>/node=<node>/.<incarnation>-<first seq>.arrows    the same, by version 0.1
    JOURNAL/<table>/node=<node>/.<incarnation>-<first seq>.seal.tmp  being sealed
    JOURNAL/<table>/node=<node>/.<incarnation>-<first seq>.pack.tmp  being compacted
    JOURNAL/<table>/node=<node>/.<incarnation>-<first seq>.<byte>.corrupt
                                                                     what a tail had from there on
    JOURNAL/<table>/node=<node>/_removed                             what retention removed
    JOURNAL/.node=<node>.lock                                        held by the node's writer
    JOURNAL/.pack.lock                                               held while files are removed

Spark ignores names that start with `.` or `_`. Nothing here opens a file.
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
OLD_TAIL: Final = ".arrows"  # without checksums
NEW_TAIL: Final = ".tail"  # another name: version 0.1 would remove a tail that it cannot read
TAIL: Final = (NEW_TAIL, OLD_TAIL)
CORRUPT: Final = ".corrupt"
SEALING: Final = ".seal.tmp"
COMPACTING: Final = ".pack.tmp"
REMOVED: Final = "_removed"

_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(32)}
_HEX: Final = re.compile("%([0-9A-Fa-f]{2})")
_STEM: Final = re.compile(r"\.?(\d{1,18})-(\d{1,18})")
_MAX_NAME_BYTES: Final = 240  # file systems allow 255; leaves room for `.lock` and the like


class Stem(Struct, frozen=True, order=True):
    """What a file's name says: the incarnation of its rows and the seq of the first.

    >>> Stem.parse(".1700000000000-42.arrows")
    Stem(incarnation=1700000000000, first=42)
    >>> Stem.parse("part-0.parquet") is None
    True
    """

    incarnation: int
    first: int

    @classmethod
    def parse(cls, name: str) -> Stem | None:
        """The stem of a file name, or None if no file of the journal has such a name."""
        stem, _, _ = name.removeprefix(".").partition(".")
        found = _STEM.fullmatch(stem)
        return cls(int(found[1]), int(found[2])) if found else None

    @property
    def sealed(self) -> str:
        """The name of the sealed file."""
        return f"{self.incarnation}-{self.first}{SEALED}"

    @property
    def tail(self) -> str:
        """The name of the tail, as it is written now; `tails_in` finds older ones too."""
        return f".{self.incarnation}-{self.first}{NEW_TAIL}"

    def corrupt(self, start: int) -> str:
        """The name of the file with the damaged bytes that a tail had at this offset."""
        return f".{self.incarnation}-{self.first}.{start}{CORRUPT}"

    def temporary(self, suffix: str) -> str:
        """The name of the sealed file while it is being written."""
        return f".{self.incarnation}-{self.first}{suffix}"


def escape(node: str) -> str:
    """Escape a node's name for a path, as Spark and Hive do.

    >>> escape("hall/2: left"), unescape("hall%2F2%3A left")
    ('hall%2F2%3A left', 'hall/2: left')
    """
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in node)


def unescape(text: str) -> str:
    """The node's name that was escaped for a path."""
    return _HEX.sub(lambda found: chr(int(found[1], 16)), text)


def check_node(node: str) -> str:
    """Return the name; raise LocalError if it cannot be part of a path."""
    problem = ""
    if not isinstance(node, str) or not node:
        problem = "it must be a non-empty string"
    else:
        try:
            if len(f"node={escape(node)}".encode()) > _MAX_NAME_BYTES:
                problem = "too long for a directory name"
        except UnicodeEncodeError:
            problem = "not valid UTF-8"
    if problem:
        raise LocalError(
            f"invalid node name {quote(node)}: {problem}",
            rule="OB-4",
            hint=f"choose a name of at most {_MAX_NAME_BYTES} bytes (escaped, with `node=`)",
        )
    return node


def table_directory(journal: Path, table: str, node: str) -> Path:
    """The directory of one table of one node."""
    return journal / table / f"node={escape(node)}"


def lock_path(journal: Path, node: str) -> Path:
    """The lock file of a node's writer."""
    return journal / f".node={escape(node)}.lock"


def housekeeping_lock_path(journal: Path) -> Path:
    """The lock file of compaction and retention."""
    return journal / ".pack.lock"


def nodes_of(journal: Path, table: str) -> list[str]:
    """The nodes that have a directory for this table, sorted."""
    try:
        names = [path.name for path in (journal / table).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(unescape(name[5:]) for name in names if name.startswith("node="))


def all_nodes(journal: Path) -> list[str]:
    """The nodes that have a directory for any table, sorted."""
    return sorted({node for table in SCHEMAS for node in nodes_of(journal, table)})


def files_in(directory: Path, suffix: str | tuple[str, ...]) -> list[Stem]:
    """The journal's files with this suffix, in the order of their rows."""
    return sorted(stem for name, stem in _named(directory) if name.endswith(suffix))


def tails_in(directory: Path) -> dict[Stem, Path]:
    """The tails of a table's directory, of this version and the first, in the order of their rows.

    A path may be gone by the time it is opened: then the tail has been sealed.
    """
    tails = [(stem, name) for name, stem in _named(directory) if name.endswith(TAIL)]
    return {stem: directory / name for stem, name in sorted(tails)}


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
    """The highest incarnation that any file of a node has, or 0."""
    return max(
        (
            stem.incarnation
            for table in SCHEMAS
            for _, stem in _named(table_directory(journal, table, node))
        ),
        default=0,
    )
