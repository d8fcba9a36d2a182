"""The files of a journal: which node each belongs to, and which need not be read.

Only names: nothing here opens a file. The journal may be in a directory or in a store, such as s3://
or hdfs://; the driver lists it once, and all steps use that list.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from msgspec import Struct
from pyarrow.fs import FileType

from waystation.errors import LocalError, quote
from waystation.journal.archive import ARCHIVE
from waystation.journal.filesystems import complaining, exists, file_system, files_below
from waystation.journal.layout import TAIL, Stem
from waystation.journal.schema import MEMBERS, MESSAGES
from waystation.locations import is_remote, located
from waystation.pipeline.schema import JOURNAL

_NAME: Final = re.compile(r"(\d{1,18})-(\d{1,18})\.(?:parquet|tail|arrows)")

TAIL_ENDED_SECONDS: Final = 600.0
"""A copy of a tail that did not change for so long is read: its node ended."""

_HEX: Final = re.compile("%([0-9A-Fa-f]{2})")


class File(Struct, frozen=True):
    """A file of the journal; incarnation and first seq according to its name, or -1."""

    path: str  # relative to the journal's directory
    size: int
    incarnation: int = -1
    first: int = -1


class Stray(Struct, frozen=True):
    """A file that belongs to no node."""

    table: str
    path: str


class Wanted(Struct, frozen=True):
    """The part of a journal to read; times in microseconds, `until` exclusive.

    Rows at or after `until` are ignored. Messages and members before `since` are left out;
    the other tables are kept from the start of the incarnations that were running then, since the
    routing table is rebuilt from them. `received` and `at` are spans, [from, to): rows of messages
    within neither are left out. Rejects are those of files that begin in the span `begun`.
    """

    nodes: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None
    received: tuple[int, int] | None = None
    at: tuple[int, int] | None = None
    begun: tuple[int, int] | None = None

    def spans(self, table: str) -> tuple[int | None, int | None]:
        """`since` and `until` for the rows of one table."""
        return (self.since if table in (MESSAGES, MEMBERS) else None), self.until

    def within(self, table: str) -> list[tuple[str, tuple[int, int]]]:
        """The columns of one table that tell whether a row is wanted, and the span of each.

        One of them is enough; without any, all rows are.
        """
        spans = {"received_at": self.received, "at": self.at} if table == MESSAGES else {}
        return [(name, span) for name, span in spans.items() if span is not None]

    def all_messages(self) -> Wanted:
        """The same without limits for single days."""
        return Wanted(self.nodes, None, self.until)


EVERYTHING: Final = Wanted()
"""All of a journal."""


class Listing(Struct, frozen=True):
    """All files to read: those of each table of each node, in the order of their rows."""

    root: str
    nodes: dict[str, dict[str, list[File]]]
    strays: list[Stray]
    unsealed: dict[str, list[int]] = {}  # incarnations with a tail, by node

    def files(self) -> list[str]:
        """Every path, relative to the journal's directory."""
        return sorted(
            file.path
            for tables in self.nodes.values()
            for files in tables.values()
            for file in files
        )

    def of(self, tables: Iterable[str]) -> dict[str, dict[str, list[File]]]:
        """The nodes that have a file of one of these tables."""
        names = set(tables)
        return {node: has for node, has in self.nodes.items() if not names.isdisjoint(has)}


def locate(root: str) -> tuple[Any, str]:
    """The file system of a journal, and its path there."""
    return file_system(root)


def list_journal(root: str, wanted: Wanted, *, tails: bool = False) -> Listing:
    """List a journal; raises a LocalError if it does not exist.

    A directory is made absolute: executors have another working directory. With `tails` the files
    include what is not sealed yet, as far as it is written.
    """
    system, path = locate(root)
    with complaining(root, "read"):
        kind = system.get_file_info(path).type
    if kind is not FileType.Directory:
        raise LocalError(
            f"no such journal: {quote(root)}",
            rule="SP-1",
            hint="give the directory that nodes write their journal to",
        )
    is_copy = is_remote(root) or exists(system, f"{path}/{ARCHIVE}")
    now = time.time()
    nodes: dict[str, dict[str, list[File]]] = {}
    strays: list[Stray] = []
    unsealed: dict[str, set[int]] = {}
    for table in JOURNAL:
        found = dict(_files(system, f"{path}/{table}"))
        sizes = {below: size for below, (size, _) in found.items()}
        readable = set[str]()
        for below, name, incarnation in _unsealed(sizes):
            if is_copy and found[below][1] < now - TAIL_ENDED_SECONDS:
                readable.add(below)
            else:
                unsealed.setdefault(name, set()).add(incarnation)
        readable.update(below for below, _, _ in _unsealed(sizes) if tails)
        for below in (*filter(_is_visible, sizes), *sorted(readable)):
            file = _file(f"{table}/{below}", sizes[below])
            node = _node_of(below)
            if node is None:
                strays.append(Stray(table, file.path))
            elif wanted.nodes is None or node in wanted.nodes:
                nodes.setdefault(node, {}).setdefault(table, []).append(file)
    for tables in nodes.values():
        for files in tables.values():
            files.sort(key=_order)
    needed = {node: _needed(tables, wanted) for node, tables in sorted(nodes.items())}
    return Listing(
        located(root),
        {node: has for node, has in needed.items() if has},
        strays,
        {node: sorted(numbers) for node, numbers in unsealed.items()},
    )


def _files(system: Any, directory: str) -> Iterator[tuple[str, tuple[int, float]]]:
    """All files below a directory: their paths relative to it, sizes, and times of change."""
    for info in files_below(system, directory):
        changed = 0.0 if info.mtime is None else info.mtime.timestamp()
        yield info.path[len(directory) + 1 :], (info.size or 0, changed)


def _is_visible(path: str) -> bool:
    """Whether Spark would also see a file: no name starts with a dot or an underscore."""
    return not any(part.startswith((".", "_")) for part in path.split("/"))


def _unsealed(paths: Collection[str]) -> Iterator[tuple[str, str, int]]:
    """The tails with their node and incarnation, but those that are sealed and only not removed."""
    for path in paths:
        directory, _, name = path.rpartition("/")
        stem = Stem.parse(name) if name.endswith(TAIL) else None
        node = _node_of(path)
        if stem is not None and node is not None and f"{directory}/{stem.sealed}" not in paths:
            yield path, node, stem.incarnation


def _file(path: str, size: int) -> File:
    named = _NAME.fullmatch(path.rpartition("/")[2].removeprefix("."))
    return File(path, size, int(named[1]), int(named[2])) if named else File(path, size)


def _order(file: File) -> tuple[int, int, str]:
    return file.incarnation, file.first, file.path


def _node_of(path: str) -> str | None:
    """The node that a file belongs to; its name is escaped as Spark and Hive do it in paths."""
    directory, _, rest = path.partition("/")
    if not directory.startswith("node=") or not rest or "/" in rest:
        return None
    return _HEX.sub(lambda found: chr(int(found[1], 16)), directory[5:])


def _needed(tables: dict[str, list[File]], wanted: Wanted) -> dict[str, list[File]]:
    """The files of a node without those that, by their names, contain nothing that is needed.

    An incarnation is the time at which its process started, in milliseconds, and it had ended when
    the next one started.
    """
    numbers = sorted({file.incarnation for files in tables.values() for file in files} - {-1})
    over = [number for number in numbers[1:] if _at_or_before(number, wanted.since)]
    earliest = max(over, default=0)  # the earlier ones had ended by then
    kept = {
        table: [
            file
            for file in files
            if file.incarnation == -1
            or (file.incarnation >= earliest and not _at_or_after(file.incarnation, wanted.until))
        ]
        for table, files in tables.items()
    }
    return {table: files for table, files in kept.items() if files}


def _at_or_before(incarnation: int, instant: int | None) -> bool:
    return instant is not None and incarnation * 1_000 <= instant


def _at_or_after(incarnation: int, instant: int | None) -> bool:
    return instant is not None and incarnation * 1_000 >= instant
