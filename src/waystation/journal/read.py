"""Reading a journal back, sealed files and live tails alike, while it is written or not.

A reader is given whole rows only, each once, in the order of (incarnation, seq) for each table of
each node. What cannot be read is reported and left out; nothing that lies in a file raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from waystation.journal.layout import (
    REMOVED,
    SEALED,
    TAIL,
    Stem,
    all_nodes,
    files_in,
    table_directory,
)
from waystation.journal.schema import (
    MEMBERS,
    MESSAGES,
    ROUTES,
    SCHEMAS,
    SUBSCRIPTIONS,
    conforming,
)

UNREADABLE: Final = (
    pa.ArrowException,
    EOFError,
    LookupError,  # a column that is not there
    MemoryError,
    OSError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What Arrow raises when it is given bytes that are not Arrow, or not those of our tables."""

Report: TypeAlias = Callable[[Path, str], None]
"""Hears which file could not be read, and why."""

Position: TypeAlias = tuple[int, int]
"""How far something was read: (incarnation, seq)."""

BEGINNING: Final[Position] = (-1, -1)
_LISTINGS: Final = 100  # files come and go while we look; so often we look again

# Tails.


class TailContent(Struct):
    """What could be read of a tail.

    `whole` is where the last readable batch ends; `torn` are the bytes behind it, and `problem`
    says what is wrong with them. A tail that is being written may well be torn for a moment.
    """

    schema: pa.Schema | None
    batches: list[pa.RecordBatch]
    whole: int
    torn: int
    problem: str

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return sum(batch.num_rows for batch in self.batches)


def read_tail(path: Path, start: int = 0, schema: pa.Schema | None = None) -> TailContent:
    """Read the whole batches of a tail; go on at `start` if its schema is known from before.

    The file is read, not mapped: a writer that takes back half a batch makes it shorter.
    """
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    source = pa.BufferReader(data)
    content = TailContent(schema, [], start, 0, "")
    try:
        while source.tell() < len(data):
            _read_message(source, content)
            content.whole = start + source.tell()
    except UNREADABLE as error:
        content.problem = " ".join(str(error).split()) or type(error).__name__
    content.torn = start + len(data) - content.whole
    return content


def _read_message(source: pa.BufferReader, content: TailContent) -> None:
    if content.schema is None:
        content.schema = pa.ipc.read_schema(source)
        return
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), content.schema)
    batch.validate(full=True)
    content.batches.append(batch)


# Sealed files.

LAST_SEQ: Final = b"waystation.last_seq"
"""The key in the footer of a file under which its last seq stands."""


class Footer(Struct, frozen=True):
    """What the footer of a sealed file tells."""

    stem: Stem
    path: Path
    rows: int
    last: int  # the last seq
    size: int  # in bytes
    schema: pa.Schema
    ours: bool = True  # written by this package, which numbers rows without gaps


def read_footer(path: Path) -> Footer:
    """Read the footer of a sealed file; raises one of UNREADABLE."""
    stem = Stem.parse(path.name)
    if stem is None:
        raise ValueError(f"{path.name} is no name of a sealed file")
    size = path.stat().st_size
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        told = (metadata.metadata or {}).get(LAST_SEQ)
        last = _last_seq(file) if told is None else int(told)
        ours = told is not None
        return Footer(stem, path, metadata.num_rows, last, size, file.schema_arrow, ours)


def _last_seq(file: Any) -> int:
    """Files of other make do not tell; then the rows do."""
    return int(max(file.read(["seq"]).column("seq").to_pylist(), default=-1))


def footers_in(directory: Path, problems: list[tuple[Path, str]]) -> list[Footer]:
    """The footers of all sealed files that can be read, covered ones included, in order."""
    footers = []
    for stem in files_in(directory, SEALED):
        path = directory / stem.sealed
        try:
            footers.append(read_footer(path))
        except FileNotFoundError:
            continue  # compacted or removed meanwhile
        except UNREADABLE as error:
            problems.append((path, said(error)))
    return footers


def split_covered(footers: list[Footer]) -> tuple[list[Footer], list[Footer]]:
    """Those that count, and those that a file before them covers."""
    counting: list[Footer] = []
    covered: list[Footer] = []
    for footer in footers:
        before = counting[-1] if counting else None
        same = before is not None and before.stem.incarnation == footer.stem.incarnation
        if same and before is not None and footer.stem.first <= before.last:
            covered.append(footer)
        else:
            counting.append(footer)
    return counting, covered


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a sealed file, each batch validated; raises one of UNREADABLE."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(batch_size=16_384, use_threads=False):
            batch.validate(full=True)
            yield batch


def said(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def removed_rows(directory: Path, incarnation: int) -> int:
    """How many rows of an incarnation retention has removed from a directory."""
    try:
        lines = (directory / REMOVED).read_text("ascii", "replace").splitlines()
    except OSError:
        return 0
    rows = 0
    for line in lines:
        fields = line.split()
        if len(fields) == 4 and all(map(str.isdigit, fields)) and int(fields[0]) == incarnation:
            rows += int(fields[3])
    return rows


# Rows.


class Entry(Struct, frozen=True):
    """One row of a journal. Instants are microseconds since the epoch."""

    table: str
    node: str
    fields: dict[str, Any]

    @property
    def at(self) -> int:
        """When it happened."""
        return int(self.fields["at"] or 0)

    @property
    def position(self) -> Position:
        """Its place in the order of its node."""
        return int(self.fields["incarnation"] or 0), int(self.fields["seq"] or 0)


class Wanted(Struct, frozen=True):
    """Which rows somebody wants to see; empty means all."""

    tables: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    message: str | None = None
    outcomes: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    participant: str | None = None
    since: int | None = None  # in microseconds, this instant included
    until: int | None = None  # in microseconds, this instant excluded

    def wants_table(self, table: str) -> bool:
        """Whether any row of this table can be wanted."""
        if self.message is not None or self.outcomes or self.reasons:
            return table == MESSAGES and (not self.tables or table in self.tables)
        return not self.tables or table in self.tables

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that may be wanted, as far as Arrow can tell."""
        conditions = []
        if self.since is not None:
            conditions.append(pc.field("at") >= _instant(self.since))
        if self.until is not None:
            conditions.append(pc.field("at") < _instant(self.until))
        if self.message is not None:
            conditions.append(pc.field("message_id") == self.message)
        if self.outcomes:
            conditions.append(pc.field("outcome").isin(sorted(self.outcomes)))
        if self.reasons:
            conditions.append(pc.field("reason").isin(sorted(self.reasons)))
        for condition in conditions:
            batch = batch.filter(condition)
        return batch

    def concerns(self, entry: Entry) -> bool:
        """Whether a row is about the participant."""
        return self.participant is None or self.participant in _participants(entry)


def _instant(microseconds: int) -> pa.Scalar:
    return pa.scalar(microseconds, pa.timestamp("us", "UTC"))


def _participants(entry: Entry) -> set[str]:
    fields = entry.fields
    if entry.table == MESSAGES:
        routes = [*(fields["onward"] or ()), *(fields["return"] or ())]
        named = {address[2:] for address in routes if address and address.startswith("0#")}
        return named | {fields["recipient"]}
    column = {ROUTES: "participant", SUBSCRIPTIONS: "receiver", MEMBERS: "name"}.get(entry.table)
    return {fields[column]} if column else set()


class TableReader:
    """Reads one table of one node, and goes on where it stopped.

    >>> from tempfile import mkdtemp
    >>> from waystation.journal import Journal
    >>> directory = Path(mkdtemp())
    >>> Journal(directory, "garage").close()
    >>> reader = TableReader(directory, "nodes", "garage", report=print)
    >>> [batch.column("kind").to_pylist() for batch in reader.batches()]
    [['start', 'stop']]
    >>> list(reader.batches())
    []
    """

    def __init__(self, journal: Path, table: str, node: str, report: Report) -> None:
        self._directory = table_directory(journal, table, node)
        self._schema = SCHEMAS[table]
        self._report = report
        self._reported: set[Path] = set()
        self._done = BEGINNING
        self._places: dict[Stem, tuple[int, pa.Schema]] = {}  # how far each tail was read

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that were not given out before."""
        for _ in range(_LISTINGS):
            try:
                for stem in self._stems():
                    yield from self._rows_of(stem)
            except FileNotFoundError:
                continue  # sealed, compacted or removed under our eyes: see what is there now
            return

    def _stems(self) -> list[Stem]:
        tails = files_in(self._directory, TAIL)
        sealed = files_in(self._directory, SEALED)  # second: what vanished there is found here
        self._places = {stem: self._places[stem] for stem in tails if stem in self._places}
        return sorted({*tails, *sealed})

    def _rows_of(self, stem: Stem) -> Iterator[pa.RecordBatch]:
        before = self._done  # a file that is covered by the one before it begins below this
        try:
            for batch in self._open(stem):
                fresh = _after(batch, stem.incarnation, before)
                if fresh.num_rows:
                    last = pc.max(fresh.column("seq")).as_py()
                    self._done = max(self._done, (stem.incarnation, last))
                    yield fresh
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            self._complain(self._directory / stem.sealed, said(error))

    def _open(self, stem: Stem) -> Iterator[pa.RecordBatch]:
        path = self._directory / stem.sealed
        if not path.exists():
            yield from self._read_tail(stem)
            return
        footer = read_footer(path)
        if (stem.incarnation, footer.last) > self._done:
            for batch in read_batches(path):
                yield self._conforming(batch)

    def _read_tail(self, stem: Stem) -> Iterator[pa.RecordBatch]:
        path = self._directory / stem.tail
        start, schema = self._places.get(stem, (0, None))
        content = read_tail(path, start, schema)
        if content.schema is not None:
            self._places[stem] = content.whole, content.schema
        for batch in content.batches:
            yield self._conforming(batch)
        if content.torn:
            self._complain(path, f"{content.torn} bytes from byte {content.whole} on are not whole")

    def _conforming(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns we know, in our order; raises one of UNREADABLE where one is missing."""
        return conforming(batch, self._schema)

    def _complain(self, path: Path, problem: str) -> None:
        if path not in self._reported:
            self._reported.add(path)
            self._report(path, problem)


def _after(batch: pa.RecordBatch, incarnation: int, done: Position) -> pa.RecordBatch:
    if incarnation != done[0]:
        return batch
    return batch.filter(pc.field("seq") > done[1])


class JournalReader:
    """Reads the wanted rows of a journal, and goes on where it stopped."""

    def __init__(self, journal: Path, report: Report, wanted: Wanted | None = None) -> None:
        self._journal = journal
        self._report = report
        self._wanted = Wanted() if wanted is None else wanted
        self._readers: dict[tuple[str, str], TableReader] = {}

    def entries(self) -> Iterator[Entry]:
        """The rows that were not given out before.

        The rows of a node come in its order; those of several nodes, merged by their instants.
        """
        nodes = self._wanted.nodes or all_nodes(self._journal)
        return merge(*(self._of_node(node) for node in sorted(nodes)), key=lambda entry: entry.at)

    def _of_node(self, node: str) -> Iterator[Entry]:
        tables = [table for table in SCHEMAS if self._wanted.wants_table(table)]
        streams = [self._of_table(table, node) for table in tables]
        return merge(*streams, key=lambda entry: entry.position)

    def _of_table(self, table: str, node: str) -> Iterator[Entry]:
        reader = self._readers.get((table, node))
        if reader is None:
            reader = TableReader(self._journal, table, node, self._report)
            self._readers[table, node] = reader
        for batch in reader.batches():
            for fields in plain(self._wanted.chosen(batch)).to_pylist():
                entry = Entry(table, node, fields)
                if self._wanted.concerns(entry):
                    yield entry


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Instants as numbers, which Python reads in a tenth of the time."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
