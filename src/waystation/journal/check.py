"""Checking a journal: whether every file has the right form, and every row is there.

A journal may be checked while it is being written: a tail that is torn for a moment, or sealed
meanwhile, is not a problem.
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
    CORRUPT,
    SEALED,
    Stem,
    all_nodes,
    files_in,
    table_directory,
    tails_in,
)
from waystation.journal.read import (
    UNREADABLE,
    Footer,
    TailContent,
    error_text,
    read_footer,
    read_sealed,
    read_tail,
    removed_rows,
)
from waystation.journal.schema import ADDED_COLUMNS, NODES, SCHEMAS

Span: TypeAlias = tuple[int, int]
"""A run of consecutive seqs: the first and the last."""

RECHECK_SECONDS: Final = 0.1
"""How long to wait before looking again at what may only be incomplete for a moment."""

_MAX_RECHECKS: Final = 5


class Problem(Struct, frozen=True):
    """Something wrong with a journal; prints as one line."""

    kind: str
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}: {self.detail}"


class _Incarnation(Struct):
    """What was found of one incarnation over all tables."""

    spans: list[Span]
    reported: int = 0  # lost records that its rows account for
    removed: int = 0  # rows that retention removed
    ours: bool = True  # written by this package, which leaves no gaps between seqs


def check(journal: Path, recheck_seconds: float = RECHECK_SECONDS) -> list[Problem]:
    """All problems of a journal, in the order of its files."""
    problems = list(_check_names(journal))
    for node in all_nodes(journal):
        problems += _check_node(journal, node, recheck_seconds)
    return problems


def _check_node(journal: Path, node: str, recheck_seconds: float) -> list[Problem]:
    """The problems of one node.

    Tables are read one after the other. If the journal is being written, a row may be found whose
    predecessor in another table was not there yet when that table was read. So a gap counts only
    if it is still there at a second look.
    """
    first = _NodeCheck(journal, node, recheck_seconds)
    problems = first.run()
    if not any(problem.kind == "gap" for problem in problems):
        return problems
    time.sleep(recheck_seconds)
    return _NodeCheck(journal, node, recheck_seconds, first.highest()).run()


def _check_names(journal: Path) -> Iterator[Problem]:
    if not journal.is_dir():
        yield Problem("missing", str(journal), "no such directory")
        return
    for table in sorted(journal.iterdir()):
        if table.name[0] in "._":
            continue
        if table.name not in SCHEMAS or not table.is_dir():
            yield Problem("name", table.name, "not a table of the journal")
            continue
        for directory in sorted(table.iterdir()):
            yield from _check_directory(directory, f"{table.name}/{directory.name}")


def _check_directory(directory: Path, name: str) -> Iterator[Problem]:
    if directory.name[0] in "._":
        return
    if not directory.name.startswith("node=") or not directory.is_dir():
        yield Problem("name", name, "expected a directory node=<node>")
        return
    for file in sorted(directory.iterdir()):
        stem = Stem.parse(file.name)
        hidden = file.name[0] in "._"
        if file.name.endswith(CORRUPT):
            detail = "bytes that failed their checksum, set aside; remove them once you know why"
            yield Problem("corrupt", f"{name}/{file.name}", detail)
        if not hidden and (stem is None or file.name != stem.sealed):
            detail = "expected <incarnation>-<first seq>.parquet"
            yield Problem("name", f"{name}/{file.name}", detail)


class _NodeCheck:
    """One pass over the files of a node. Gaps after `horizon` (seq by incarnation) are ignored."""

    def __init__(
        self,
        journal: Path,
        node: str,
        recheck_seconds: float,
        horizon: dict[int, int] | None = None,
    ) -> None:
        self._journal = journal
        self._node = node
        self._recheck_seconds = recheck_seconds
        self._horizon = horizon
        self._problems: list[Problem] = []
        self._incarnations: dict[int, _Incarnation] = {}

    def run(self) -> list[Problem]:
        for table in SCHEMAS:
            directory = table_directory(self._journal, table, self._node)
            tails = tails_in(directory)
            for stem in sorted({*tails, *files_in(directory, SEALED)}):
                self._incarnations.setdefault(stem.incarnation, _Incarnation([]))
                self._check_file(directory / stem.sealed, tails.get(stem), table, stem)
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

    def _add(self, kind: str, path: Path, detail: str) -> None:
        self._problems.append(Problem(kind, str(path.relative_to(self._journal)), detail))

    def _check_file(self, sealed: Path, tail: Path | None, table: str, stem: Stem) -> None:
        try:
            if tail is None or sealed.exists():
                footer = read_footer(sealed)
                self._incarnations[stem.incarnation].ours &= footer.ours
                if self._check_schema(sealed, table, footer.schema):
                    self._check_sealed(table, footer)
            else:
                self._check_tail(tail, table, stem)
        except FileNotFoundError:  # removed or sealed meanwhile
            if sealed.exists():
                self._check_file(sealed, None, table, stem)
        except UNREADABLE as error:
            self._add("unreadable", sealed, error_text(error))

    def _check_schema(self, path: Path, table: str, schema: pa.Schema) -> bool:
        expected = SCHEMAS[table]
        wrong = [
            f"{field.name} should be {_type_name(field.type)}"
            for field in expected
            if not (field.name in ADDED_COLUMNS[table] and field.name not in schema.names)
            and (
                field.name not in schema.names
                or _type_name(schema.field(field.name).type) != _type_name(field.type)
            )
        ]
        if wrong:
            self._add("schema", path, ", ".join(wrong))
        return not wrong

    def _check_sealed(self, table: str, footer: Footer) -> None:
        seqs, reported = [], 0
        try:
            for batch in read_sealed(footer.path):
                self._check_incarnation(footer.path, footer.stem, batch)
                seqs.append(batch.column("seq"))
                reported += _reported_lost(table, batch)
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            self._add("unreadable", footer.path, error_text(error))
        self._check_rows(footer.path, footer.stem, seqs, reported)

    def _check_tail(self, path: Path, table: str, stem: Stem) -> None:
        content = self._read_settled(path)
        if content.torn:
            self._add("torn", path, f"the last {content.torn} bytes are incomplete")
        for damage in content.damaged:
            self._add("corrupt", path, str(damage))
        if content.schema is None or not self._check_schema(path, table, content.schema):
            return
        for batch in content.batches:
            self._check_incarnation(path, stem, batch)
        reported = sum(_reported_lost(table, batch) for batch in content.batches)
        self._check_rows(path, stem, [batch.column("seq") for batch in content.batches], reported)

    def _read_settled(self, path: Path) -> TailContent:
        """Read a tail, again while it is torn: its writer may be in the middle of a batch."""
        content = read_tail(path)
        for _ in range(_MAX_RECHECKS):
            if not (content.torn or content.damaged):
                break
            time.sleep(self._recheck_seconds)
            content = read_tail(path)
        return content

    def _check_incarnation(self, path: Path, stem: Stem, batch: pa.RecordBatch) -> None:
        column = batch.column("incarnation")
        if column.null_count or pc.any(pc.not_equal(column, stem.incarnation)).as_py():
            self._add("incarnation", path, "has rows of another incarnation than its name")

    def _check_rows(self, path: Path, stem: Stem, parts: list[pa.Array], reported: int) -> None:
        seqs = pa.chunked_array(parts, pa.int64()).combine_chunks()
        if not len(seqs):
            return
        if seqs.null_count:
            self._add("seq", path, f"{seqs.null_count} rows have no seq")
            return
        if seqs[0].as_py() < stem.first:  # it may start later, if its first batch was damaged
            self._add("seq", path, f"starts with seq {seqs[0]}, but its name says {stem.first}")
        spans = _spans(seqs)
        if any(after[0] <= before[1] for before, after in pairwise(spans)):
            self._add("order", path, "seqs are not in ascending order")
        found = self._incarnations[stem.incarnation]
        found.spans += spans
        found.reported += reported

    def _check_seqs(self) -> None:
        missing = accounted = 0
        where = ""
        for incarnation, found in sorted(self._incarnations.items()):
            duplicates, gaps = _duplicates_and_gaps(sorted(found.spans))
            if self._horizon is not None:
                gaps = [gap for gap in gaps if gap[0] <= self._horizon.get(incarnation, -1)]
            if duplicates:
                path = f"node {self._node}, incarnation {incarnation}"
                text = (
                    f"{duplicates} seqs are in two rows; if a compaction was cut off, compact again"
                )
                self._problems.append(Problem("duplicate", path, text))
            accounted += found.reported + found.removed
            if found.ours and gaps:
                missing += sum(last - first + 1 for first, last in gaps)
                where = where or f"seq {gaps[0][0]} of incarnation {incarnation}"
        if missing > accounted:  # a loss may be reported by the next incarnation
            text = f"{missing} seqs are missing, first {where}; {accounted} are accounted for"
            self._problems.append(Problem("gap", f"node {self._node}", text))


def _reported_lost(table: str, batch: pa.RecordBatch) -> int:
    return int(pc.sum(batch.column("lost")).as_py() or 0) if table == NODES else 0


def _type_name(type: pa.DataType) -> str:
    """A type's name, without that of a list's element, which does not matter."""
    return f"list<{type.value_type}>" if pa.types.is_list(type) else str(type)


def _spans(seqs: Any) -> list[Span]:
    """The runs of consecutive values in a column of seqs."""
    steps = pc.pairwise_diff(seqs)
    breaks = pc.indices_nonzero(pc.fill_null(pc.not_equal(steps, 1), True)).to_pylist()
    ends = [*(index - 1 for index in breaks[1:]), len(seqs) - 1]
    return [(seqs[a].as_py(), seqs[b].as_py()) for a, b in zip(breaks, ends, strict=True)]


def _duplicates_and_gaps(spans: list[Span]) -> tuple[int, list[Span]]:
    """How many seqs occur twice, and which are missing between 0 and the last."""
    duplicates, gaps, done = 0, [], -1
    for first, last in spans:
        if first > done + 1:
            gaps.append((done + 1, first - 1))
        duplicates += max(0, min(last, done) - first + 1)
        done = max(done, last)
    return duplicates, gaps
