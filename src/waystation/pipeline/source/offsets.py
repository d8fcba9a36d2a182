"""How far a stream has read a table: the offset in Spark's checkpoint.

For each node, the files that were read, each with its size and its last seq, and the ranges of seq
of files that no longer exist. The rows between two offsets are identified by their seq, not by
files: so a batch that is read again after a crash has the same rows, even if the journal was
compacted meanwhile, and a compacted file returns nothing twice. No files are opened here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.pipeline.listing import File
from waystation.pipeline.source.spans import Spans, by_incarnation

VERSION: Final = 1

Place = tuple[int, int, int]
"""The incarnation, the lowest and the highest seq of a file."""


class Mark(Struct, frozen=True):
    """How far one node was read.

    `files` has [size, last seq] by name, or [size] for a file whose range of seq is unknown: that
    one is read once, as a whole. `past` has the ranges of removed files, by incarnation.
    """

    files: dict[str, list[int]] = {}
    past: dict[str, list[tuple[int, int]]] = {}

    def spans(self) -> Spans:
        """All seqs that were read."""
        return by_incarnation([*self.places().values(), *self._past_places()])

    def places(self) -> dict[str, Place]:
        """The ranges of the existing files, by name."""
        return {
            name: (*_numbers(name), found[1])
            for name, found in self.files.items()
            if len(found) == 2
        }

    def whole_files(self) -> set[tuple[str, int]]:
        """The files that were read as a whole, with their size at that time."""
        return {(name, found[0]) for name, found in self.files.items() if len(found) == 1}

    def knows(self, file: File) -> bool:
        """Whether a file was read, and is unchanged."""
        found = self.files.get(name_of(file))
        if found is None:
            return False
        return found[0] == file.size or (len(found) == 1 and file.incarnation < 0)

    def advanced(self, read: Mapping[str, tuple[int, Place | None]], there: Iterable[str]) -> Mark:
        """The offset after these files are read as well; `there` is the current list of files.

        The ranges of removed files are merged if no existing file lies between them.
        """
        listed = {*there, *read}
        files = {name: found for name, found in self.files.items() if name in listed}
        for name, (size, place) in read.items():
            own = place is not None and _numbers_or_none(name) == place[:2]
            files[name] = [size, place[2]] if own and place is not None else [size]
        gone = [place for name, place in self.places().items() if name not in listed]
        kept = Mark(files)
        past = _joined([*self._past_places(), *gone], list(kept.places().values()))
        return Mark(dict(sorted(files.items())), past)

    def _past_places(self) -> list[Place]:
        return [(int(number), *span) for number, spans in self.past.items() for span in spans]


class Offset(Struct, frozen=True):
    """How far a table was read."""

    table: str
    nodes: dict[str, Mark] = {}
    version: int = VERSION

    @classmethod
    def read(cls, value: Mapping[str, Any], table: str) -> Offset:
        """Parse an offset that Spark returns; it must be one of this table."""
        try:
            found = msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise _foreign(f"it cannot be read ({error})") from None
        if found.version != VERSION:
            raise _foreign(f"it has the version {found.version}")
        if found.table != table:
            raise _foreign(f"it is of the table {quote(found.table)}, not {table}")
        return found

    def written(self) -> dict[str, Any]:
        """The offset for Spark; equal offsets have the same text."""
        ordered = dict(sorted(self.nodes.items()))
        found: dict[str, Any] = msgspec.to_builtins(Offset(self.table, ordered))
        return found

    def mark(self, node: str) -> Mark:
        """How far a node was read."""
        return self.nodes.get(node, Mark())


def name_of(file: File) -> str:
    """The name of a file, without the part that all names have in common."""
    name = file.path.rpartition("/")[2]
    return name.removesuffix(".parquet") if file.incarnation >= 0 else name


def _numbers(name: str) -> tuple[int, int]:
    incarnation, _, first = name.partition("-")
    return int(incarnation), int(first)


def _numbers_or_none(name: str) -> tuple[int, int] | None:
    incarnation, _, first = name.partition("-")
    return (int(incarnation), int(first)) if incarnation.isdigit() and first.isdigit() else None


def _joined(gone: list[Place], there: list[Place]) -> dict[str, list[tuple[int, int]]]:
    """The ranges of removed files: each run of them, between two existing files, is one range."""
    found: dict[str, list[tuple[int, int]]] = {}
    marked = [*((place, False) for place in there), *((place, True) for place in gone)]
    marked.sort(key=lambda one: (one[0][0], one[0][1], one[1], one[0][2]))
    run: int | None = None  # the incarnation of the current run
    reach: tuple[int, int] = (-1, -1)  # the end of the existing files so far
    for (incarnation, low, high), is_gone in marked:
        if not is_gone:
            reach = max(reach, (incarnation, high))
            run = None
        elif (incarnation, high) > reach:
            spans = found.setdefault(str(incarnation), [])
            if run == incarnation:
                spans[-1] = (spans[-1][0], max(spans[-1][1], high))
            else:
                spans.append((low, high))
            run = incarnation
    return found


def _foreign(problem: str) -> LocalError:
    return LocalError(
        f"the checkpoint has an invalid offset: {problem}",
        rule="SP-3",
        hint="use a separate checkpoint for this query",
    )
