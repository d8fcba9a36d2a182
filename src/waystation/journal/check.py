"""Checking a journal: whether every file is what CONTRACT says, and every row is there.

Each problem is one line. A journal may be checked while it is written: what is torn for a moment,
or sealed meanwhile, is no problem.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from waystation.journal.layout import (
    SEALED,
    TAIL,
    Stem,
    all_nodes,
    files_in,
    table_directory,
)
from waystation.journal.read import (
    UNREADABLE,
    Footer,
    TailContent,
    read_batches,
    read_footer,
    read_tail,
    removed_rows,
    said,
)
from waystation.journal.schema import ADDED, NODES, SCHEMAS

Span: TypeAlias = tuple[int, int]
"""Consecutive seqs: the first and the last."""

_LOOKS: Final = 5
_LOOK_AGAIN_SECONDS: Final = 0.1


class Problem(Struct, frozen=True):
    """Something that is not as it should be."""

    kind: str
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}: {self.detail}"


class _Incarnation(Struct):
    """What was found of one incarnation over all tables."""

    spans: list[Span]
    told: int = 0  # how many lost records its rows tell of
    removed: int = 0
    ours: bool = True


def check(journal: Path) -> list[Problem]:
    """All problems of a journal, in the order of its files."""
    problems = list(_check_names(journal))
    for node in all_nodes(journal):
        problems += _check_node(journal, node)
    return problems


def _check_node(journal: Path, node: str) -> list[Problem]:
    """The problems of one node.

    Tables are read one after the other. Of one that is being written, rows may be seen whose
    neighbours in a table read before were not there yet: what is missing must still be missing
    when we look again.
    """
    first = _Node(journal, node)
    problems = first.check()
    if not any(problem.kind == "gap" for problem in problems):
        return problems
    time.sleep(_LOOK_AGAIN_SECONDS)
    return _Node(journal, node, first.highest()).check()


def _check_names(journal: Path) -> Iterator[Problem]:
    if not journal.is_dir():
        yield Problem("missing", str(journal), "there is no such directory")
        return
    for table in sorted(journal.iterdir()):
        if table.name[0] in "._":
            continue
        if table.name not in SCHEMAS or not table.is_dir():
            yield Problem("name", table.name, "no table of the journal has this name")
            continue
        for directory in sorted(table.iterdir()):
            yield from _check_directory(directory, f"{table.name}/{directory.name}")


def _check_directory(directory: Path, shown: str) -> Iterator[Problem]:
    if directory.name[0] in "._":
        return
    if not directory.name.startswith("node=") or not directory.is_dir():
        yield Problem("name", shown, "a directory node=<node> should stand here")
        return
    for file in sorted(directory.iterdir()):
        stem = Stem.parse(file.name)
        hidden = file.name[0] in "._"
        if not hidden and (stem is None or file.name != stem.sealed):
            detail = "no <incarnation>-<first seq>.parquet"
            yield Problem("name", f"{shown}/{file.name}", detail)


class _Node:
    """Goes through the files of one node, and remembers which seqs it saw."""

    def __init__(self, journal: Path, node: str, horizon: dict[int, int] | None = None) -> None:
        self._journal = journal
        self._node = node
        self._horizon = horizon
        self._problems: list[Problem] = []
        self._incarnations: dict[int, _Incarnation] = {}

    def check(self) -> list[Problem]:
        for table in SCHEMAS:
            directory = table_directory(self._journal, table, self._node)
            tails = files_in(directory, TAIL)
            for stem in sorted({*tails, *files_in(directory, SEALED)}):
                self._incarnations.setdefault(stem.incarnation, _Incarnation([]))
                self._check_file(directory, table, stem)
            for incarnation, found in self._incarnations.items():
                found.removed += removed_rows(directory, incarnation)
        self._check_seqs()
        return self._problems

    def highest(self) -> dict[int, int]:
        """The highest seq of each incarnation."""
        return {
            incarnation: max((last for _, last in found.spans), default=-1)
            for incarnation, found in self._incarnations.items()
        }

    def _say(self, kind: str, path: Path, detail: str) -> None:
        self._problems.append(Problem(kind, str(path.relative_to(self._journal)), detail))

    def _check_file(self, directory: Path, table: str, stem: Stem) -> None:
        sealed = directory / stem.sealed
        try:
            if sealed.exists():
                footer = read_footer(sealed)
                self._incarnations[stem.incarnation].ours &= footer.ours
                if self._check_schema(sealed, table, footer.schema):
                    self._check_sealed(table, footer)
            else:
                self._check_tail(directory / stem.tail, table, stem)
        except FileNotFoundError:  # removed or sealed meanwhile
            if sealed.exists():
                self._check_file(directory, table, stem)
        except UNREADABLE as error:
            self._say("unreadable", sealed, said(error))

    def _check_schema(self, path: Path, table: str, schema: pa.Schema) -> bool:
        expected = SCHEMAS[table]
        wrong = [
            f"{field.name} should be {_type_name(field.type)}"
            for field in expected
            if not (field.name in ADDED and field.name not in schema.names)
            and (
                field.name not in schema.names
                or _type_name(schema.field(field.name).type) != _type_name(field.type)
            )
        ]
        if wrong:
            self._say("schema", path, ", ".join(wrong))
        return not wrong

    def _check_sealed(self, table: str, footer: Footer) -> None:
        seqs, told = [], 0
        for batch in read_batches(footer.path):
            self._check_incarnation(footer.path, footer.stem, batch)
            seqs.append(batch.column("seq"))
            told += _told(table, batch)
        self._check_rows(footer.path, footer.stem, seqs, told)

    def _check_tail(self, path: Path, table: str, stem: Stem) -> None:
        content = _settled(path)
        if content.torn:
            detail = f"{content.torn} bytes from byte {content.whole} on are not whole"
            self._say("torn", path, detail)
        if content.schema is None or not self._check_schema(path, table, content.schema):
            return
        for batch in content.batches:
            self._check_incarnation(path, stem, batch)
        told = sum(_told(table, batch) for batch in content.batches)
        self._check_rows(path, stem, [batch.column("seq") for batch in content.batches], told)

    def _check_incarnation(self, path: Path, stem: Stem, batch: pa.RecordBatch) -> None:
        column = batch.column("incarnation")
        if column.null_count or pc.any(pc.not_equal(column, stem.incarnation)).as_py():
            self._say("incarnation", path, "has rows of another incarnation than its name says")

    def _check_rows(self, path: Path, stem: Stem, parts: list[pa.Array], told: int) -> None:
        seqs = pa.chunked_array(parts, pa.int64()).combine_chunks()
        if not len(seqs):
            return
        if seqs.null_count:
            self._say("seq", path, f"{seqs.null_count} rows have no seq")
            return
        if seqs[0].as_py() != stem.first:
            self._say("seq", path, f"begins with seq {seqs[0]}, not with {stem.first}")
        spans = _spans(seqs)
        if any(after[0] <= before[1] for before, after in pairwise(spans)):
            self._say("order", path, "the seqs do not rise from row to row")
        found = self._incarnations[stem.incarnation]
        found.spans += spans
        found.told += told

    def _check_seqs(self) -> None:
        missing = told = 0
        where = ""
        for incarnation, found in sorted(self._incarnations.items()):
            doubled, gaps = _doubled_and_gaps(sorted(found.spans))
            if self._horizon is not None:
                gaps = [gap for gap in gaps if gap[0] <= self._horizon.get(incarnation, -1)]
            if doubled:
                text = (
                    f"{doubled} seqs stand in two rows; if a compaction was cut off, compact again"
                )
                self._problems.append(Problem("duplicate", self._named(incarnation), text))
            told += found.told + found.removed
            if found.ours and gaps:
                missing += sum(last - first + 1 for first, last in gaps)
                where = where or f"incarnation {incarnation} from seq {gaps[0][0]} on"
        if missing > told:  # a loss may be told by the next incarnation
            text = f"{missing} seqs are missing, the first of {where}; {told} are accounted for"
            self._problems.append(Problem("gap", f"node {self._node}", text))

    def _named(self, incarnation: int) -> str:
        return f"node {self._node}, incarnation {incarnation}"


def _told(table: str, batch: pa.RecordBatch) -> int:
    return int(pc.sum(batch.column("lost")).as_py() or 0) if table == NODES else 0


def _type_name(type: pa.DataType) -> str:
    """A type without the name of a list's element, which no program relies on."""
    return f"list<{type.value_type}>" if pa.types.is_list(type) else str(type)


def _settled(path: Path) -> TailContent:
    """A tail, read again as long as it is torn and somebody goes on writing it."""
    content = read_tail(path)
    for _ in range(_LOOKS):
        if not content.torn:
            break
        time.sleep(_LOOK_AGAIN_SECONDS)
        content = read_tail(path)
    return content


def _spans(seqs: Any) -> list[Span]:
    """The consecutive pieces of a column of seqs."""
    steps = pc.pairwise_diff(seqs)
    breaks = pc.indices_nonzero(pc.fill_null(pc.not_equal(steps, 1), True)).to_pylist()
    ends = [*(index - 1 for index in breaks[1:]), len(seqs) - 1]
    return [(seqs[a].as_py(), seqs[b].as_py()) for a, b in zip(breaks, ends, strict=True)]


def _doubled_and_gaps(spans: list[Span]) -> tuple[int, list[Span]]:
    """How many seqs come twice, and which are missing between 0 and the last."""
    doubled, gaps, done = 0, [], -1
    for first, last in spans:
        if first > done + 1:
            gaps.append((done + 1, first - 1))
        doubled += max(0, min(last, done) - first + 1)
        done = max(done, last)
    return doubled, gaps
