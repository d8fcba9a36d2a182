"""How far a stream has read a table, as it stands in Spark's checkpoint.

For each node, the files that were read, each with its size and its last seq, and the spans of seqs
of files that are no longer there. Two offsets say which rows lie between them by their seqs, not by
files: so a batch that is read again after a crash has the same rows, even if somebody compacted the
journal meanwhile, and a compacted file brings nothing twice. No files are opened here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.pipeline.listing import File
from waystation.pipeline.source_spans import Spans, by_incarnation

VERSION: Final = 1

Place = tuple[int, int, int]
"""The incarnation, the lowest and the highest seq of a file."""


class Mark(Struct, frozen=True):
    """How far one node was read.

    `files` has [size, last seq] by name, or [size] for a file whose rows have no known span: that
    one is read once, as a whole. `past` has the spans of files that went, by incarnation.
    """

    files: dict[str, list[int]] = {}
    past: dict[str, list[tuple[int, int]]] = {}

    def spans(self) -> Spans:
        """All seqs that were read."""
        return by_incarnation([*self.places().values(), *self._past_places()])

    def places(self) -> dict[str, Place]:
        """The spans of the files that are there, by name."""
        return {
            name: (*_numbers(name), found[1])
            for name, found in self.files.items()
            if len(found) == 2
        }

    def whole_files(self) -> set[tuple[str, int]]:
        """The files that were read as a whole, with the size they had."""
        return {(name, found[0]) for name, found in self.files.items() if len(found) == 1}

    def knows(self, file: File) -> bool:
        """Whether a file was read, and is still the same."""
        found = self.files.get(name_of(file))
        if found is None:
            return False
        return found[0] == file.size or (len(found) == 1 and file.incarnation < 0)

    def advanced(self, read: Mapping[str, tuple[int, Place | None]], there: Iterable[str]) -> Mark:
        """How far it is read with these files as well; `there` is what is listed now.

        The spans of files that went are joined where nothing of what is there lies between.
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
        """The offset that Spark gives back, which must be one of this table."""
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
        """The same for Spark; equal offsets are written alike."""
        ordered = dict(sorted(self.nodes.items()))
        found: dict[str, Any] = msgspec.to_builtins(Offset(self.table, ordered))
        return found

    def mark(self, node: str) -> Mark:
        """How far a node was read."""
        return self.nodes.get(node, Mark())


def name_of(file: File) -> str:
    """The name of a file, without what all names have in common."""
    name = file.path.rpartition("/")[2]
    return name.removesuffix(".parquet") if file.incarnation >= 0 else name


def _numbers(name: str) -> tuple[int, int]:
    incarnation, _, first = name.partition("-")
    return int(incarnation), int(first)


def _numbers_or_none(name: str) -> tuple[int, int] | None:
    incarnation, _, first = name.partition("-")
    return (int(incarnation), int(first)) if incarnation.isdigit() and first.isdigit() else None


def _joined(gone: list[Place], there: list[Place]) -> dict[str, list[tuple[int, int]]]:
    """The spans of files that went: each run of them, between two that are there, is one."""
    found: dict[str, list[tuple[int, int]]] = {}
    marked = [*((place, False) for place in there), *((place, True) for place in gone)]
    marked.sort(key=lambda one: (one[0][0], one[0][1], one[1], one[0][2]))
    run: int | None = None  # the incarnation of the run that goes on
    reach: tuple[int, int] = (-1, -1)  # how far what is there goes
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
