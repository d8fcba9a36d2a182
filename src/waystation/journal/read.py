"""Reading a journal: tails, sealed files, and all rows in order, even while it is being written.

Everything that opens journal files to read them is here. `read_tail` and `read_sealed` read one
file, `SealedFile` parts of one, wherever Arrow can read, `TableReader` one table of one node,
`JournalReader` a whole journal. The latter two return only complete rows, each once, in the order
of (incarnation, seq) for each table of each node; what cannot be read is reported and skipped, so
no content of a file makes them raise.

What writes a journal is never imported here: `waystation why` and others start with this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import merge
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from waystation.journal.checksum import differs, is_changed
from waystation.journal.frames import Damage, Frame, read_frames
from waystation.journal.layout import (
    OLD_TAIL,
    REMOVED,
    SEALED,
    TAIL,
    Stem,
    all_nodes,
    files_in,
    table_directory,
    tails_in,
)
from waystation.journal.pruning import instant_bounds, may_hold_text
from waystation.journal.schema import (
    CLAIMS,
    INSTANT,
    MEMBERS,
    MESSAGES,
    ROUTES,
    SCHEMAS,
    SUBSCRIPTIONS,
    VERSION_KEY,
    conform,
    version_in,
)

UNREADABLE: Final = (
    pa.ArrowException,
    EOFError,
    LookupError,  # a missing column
    MemoryError,
    OSError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What Arrow raises for bytes that are not Arrow or Parquet, or do not have our columns."""

T = TypeVar("T")

ReportProblem: TypeAlias = Callable[[Path, str], None]
"""Called with a file that cannot be read, and why."""

Position: TypeAlias = tuple[int, int]
"""A row's place in the order of its node: (incarnation, seq)."""

LAST_SEQ: Final = b"waystation.last_seq"
"""The key of a sealed file's last seq in its footer."""

_BEGINNING: Final[Position] = (-1, -1)
_MAX_LISTINGS: Final = 100  # files come and go during a read; then the directory is listed again


_SMALL: Final = 2**20  # bytes of a file that is read as a whole

_LOOKS: Final = 5  # at a tail that ends in the middle of a batch, before that is reported
_BETWEEN_LOOKS: Final = 0.02  # seconds


def error_text(error: BaseException) -> str:
    """An exception's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__


# Tails.


class TailContent(Struct):
    """What could be read of a tail.

    `end` is the offset at which the last complete batch ends. `torn` is the number of bytes at the
    end that are incomplete, and `problem` says what is wrong with those. A tail that is being
    written may be torn briefly. `damaged` are the bytes that failed their checksum (OB-9).
    """

    schema: pa.Schema | None
    batches: list[pa.RecordBatch]
    end: int
    torn: int = 0
    problem: str = ""
    damaged: list[Damage] = []

    @property
    def rows(self) -> int:
        """The number of rows in the batches."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def version(self) -> int:
        """The version of the rows."""
        return version_in(None if self.schema is None else self.schema.metadata)


def read_tail(path: Path, start: int = 0, schema: pa.Schema | None = None) -> TailContent:
    """Read the complete batches of a tail, each validated.

    To continue an earlier read, pass its `end` and `schema`. The file is read, not mapped, because
    a writer that undoes a partial write makes it shorter. Raises OSError if it cannot be opened.
    """
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    return read_tail_bytes(data, start, schema, is_old=path.suffix == OLD_TAIL)


def read_tail_bytes(
    data: bytes, start: int = 0, schema: pa.Schema | None = None, *, is_old: bool
) -> TailContent:
    """The complete batches in the bytes of a tail, from `start` on."""
    content = TailContent(schema, [], start)
    if is_old:
        _read_stream(data, content)
    else:
        _read_frames(data, content)
    return content


def _read_frames(data: bytes, content: TailContent) -> None:
    for found in read_frames(data, content.end):
        damage = _read_frame(found, content) if isinstance(found, Frame) else found
        if damage is None:
            continue
        if damage.torn:
            content.torn, content.problem = damage.size, damage.problem
        else:
            content.damaged.append(damage)


def _read_frame(frame: Frame, content: TailContent) -> Damage | None:
    """Take the rows of a frame; returns what is wrong if they cannot be read."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(frame.payload)) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
    except UNREADABLE as error:
        return Damage(frame.start, frame.size, frame.rows, error_text(error))
    content.schema = stream.schema
    content.batches += batches
    content.end = frame.end
    return None


def _read_stream(data: bytes, content: TailContent) -> None:
    """Read a tail of the first version: a schema, then batches, without checksums."""
    source = pa.BufferReader(data)
    start = content.end
    try:
        while source.tell() < len(data):
            _read_message(source, content)
            content.end = start + source.tell()
    except UNREADABLE as error:
        content.problem = error_text(error)
    content.torn = start + len(data) - content.end


def _read_message(source: pa.BufferReader, content: TailContent) -> None:
    if content.schema is None:
        content.schema = pa.ipc.read_schema(source)
        return
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), content.schema)
    batch.validate(full=True)
    content.batches.append(batch)


# Sealed files. A compacted file takes the name of the first file it was made of, and the others are
# removed after that. In between, or after a crash in between, rows are in two files. So each file
# says in its footer how far it goes, and a file that starts before the end of the one before it is
# covered by that one.


class Footer(Struct, frozen=True):
    """What the footer of a sealed file says."""

    stem: Stem
    path: Path
    rows: int
    last: int  # the last seq
    size: int  # of the file, in bytes
    schema: pa.Schema
    ours: bool = True  # written by this package, which leaves no gaps between seqs
    version: int = 1


def read_footer(path: Path) -> Footer:
    """Read the footer of a sealed file; raises one of UNREADABLE."""
    stem = Stem.parse(path.name)
    if stem is None:
        raise ValueError(f"{path.name} is not the name of a sealed file")
    size = path.stat().st_size
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        stored = (metadata.metadata or {}).get(LAST_SEQ)
        return Footer(
            stem,
            path,
            metadata.num_rows,
            _greatest_seq(file) if stored is None else int(stored),
            size,
            file.schema_arrow,
            ours=stored is not None,
            version=version_in(metadata.metadata),
        )


def _greatest_seq(file: Any) -> int:
    """The last seq by the rows, for files written by other programs."""
    return int(max(file.read(["seq"]).column("seq").to_pylist(), default=-1))


def read_footers(directory: Path, problems: list[tuple[Path, str]]) -> list[Footer]:
    """The footers of all readable sealed files in order, covered ones included."""
    footers = []
    for stem in files_in(directory, SEALED):
        path = directory / stem.sealed
        try:
            footers.append(read_footer(path))
        except FileNotFoundError:
            continue  # compacted or removed meanwhile
        except UNREADABLE as error:
            problems.append((path, error_text(error)))
    return footers


def split_covered(footers: list[Footer]) -> tuple[list[Footer], list[Footer]]:
    """Split footers into those that count and those that an earlier file covers."""
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


def read_sealed(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a sealed file, or some columns of them, checksums verified.

    Raises one of UNREADABLE. A row group that cannot be read costs no other: the error is raised
    after the last one (OB-9). Of `columns` those that the file lacks are left out.
    """
    source, changed = _checked(path)
    damaged = ["its checksum is wrong, so rows may be missing or changed"] * changed
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        if columns is not None:
            names = file.schema_arrow.names
            columns = [name for name in columns if name in names]
        read = partial(_read_row_group, file, columns)
        yield from _each_group(file.num_row_groups, read, damaged)


def _each_group(
    groups: int, read: Callable[[int], Iterator[T]], damaged: list[str] | None = None
) -> Iterator[T]:
    """What is read of each row group; what is damaged is raised as one error at the end (OB-9)."""
    problems = damaged or []
    for group in range(groups):
        try:
            yield from read(group)
        except UNREADABLE as error:
            problems.append(f"row group {group + 1} of {groups}: {error_text(error)}")
    if problems:
        raise ValueError("; ".join(problems))


def _checked(path: Path) -> tuple[Path | pa.Buffer, bool]:
    """What to read a file from, and whether its checksum is wrong; a small one is read once."""
    if path.stat().st_size > _SMALL:
        return path, is_changed(path)
    data = path.read_bytes()
    return pa.py_buffer(data), differs(BytesIO(data))


def _read_row_group(
    file: Any, columns: Sequence[str] | None, group: int
) -> Iterator[pa.RecordBatch]:
    for batch in file.iter_batches(
        batch_size=16_384, row_groups=[group], columns=columns, use_threads=False
    ):
        batch.validate(full=True)
        yield batch


def find_in_sealed(
    path: Path, column: str, text: str, since: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a sealed file that have a text in a column, checksums verified.

    Row groups whose bounds or Bloom filter rule the text out, or that end before `since`, are
    skipped, and of the others that column is read first. Raises one of UNREADABLE, after all row
    groups that can be read.
    """

    def find(group: int) -> Iterator[pa.RecordBatch]:
        metadata = file.metadata.row_group(group)
        times = instant_bounds(metadata, "at") if since is not None else None
        if times is not None and since is not None and times[1] < since:
            return
        if not may_hold_text(bytes, metadata, column, text):
            return
        texts = file.read_row_group(group, columns=[column], use_threads=False).column(0)
        if pc.any(pc.equal(texts, text)).as_py():
            table = file.read_row_group(group).filter(pc.field(column) == text)
            yield from table.to_batches()

    checked = {"page_checksum_verification": True}
    with pa.OSFile(str(path)) as bytes, pq.ParquetFile(bytes, **checked) as file:
        groups = file.num_row_groups if column in file.schema_arrow.names else 0
        yield from _each_group(groups, find)


def sealed_between(
    path: Path, columns: Sequence[str], since: int, until: int
) -> Iterator[pa.RecordBatch]:
    """Some columns of the rows of a sealed file in [since, until), in microseconds.

    Row groups whose bounds rule that out are skipped; columns that the file lacks are left out.
    Checksums are verified. Raises one of UNREADABLE, after all row groups that can be read.
    """
    within = (pc.field("at") >= pa.scalar(since, INSTANT)) & (
        pc.field("at") < pa.scalar(until, INSTANT)
    )
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        present = [name for name in columns if name in file.schema_arrow.names]

        def read(group: int) -> Iterator[pa.RecordBatch]:
            times = instant_bounds(file.metadata.row_group(group), "at")
            if times is None or (times[1] >= since and times[0] < until):
                rows = file.read_row_group(group, present, use_threads=False).filter(within)
                yield from rows.to_batches()

        yield from _each_group(file.num_row_groups, read)


def sealed_column(path: Path, column: str) -> Iterator[Any]:
    """One column of a sealed file, by row groups.

    Raises one of UNREADABLE, after all row groups that can be read.
    """
    with pq.ParquetFile(path) as file:
        yield from _each_group(
            file.num_row_groups,
            lambda group: iter([file.read_row_group(group, columns=[column]).column(0)]),
        )


ReadGroup: TypeAlias = Callable[[int, Sequence[str]], pa.Table]
"""Reads some columns of a row group, by its number."""


class SealedFile:
    """A sealed file on any file system of Arrow's: its footer, and then the row groups asked for.

    Raises one of UNREADABLE. The file is open until `close`, which keeps the footer; `reading`
    opens it again. So many files can be looked at, although few can be open at a time.

    A tail is read as if it had been sealed, once: its node may go on writing. If that sealed it
    meanwhile, the sealed file is read.
    """

    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path
        self._tail: pa.Buffer | None = None
        self.damaged: list[Damage] = []  # bytes of a tail that failed their checksum (OB-9)
        self._stream = self._opened()
        try:
            file = pq.ParquetFile(self._stream)
            self.version = version_in(file.metadata.metadata)
        except BaseException:
            self._stream.close()
            raise
        self.footer: Any = file.metadata
        self.schema: pa.Schema = file.schema_arrow

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def open(self) -> None:
        """Open the file again, if it is closed."""
        if self._stream.closed:
            self._stream = self._opened()

    def _opened(self) -> Any:
        if self._tail is None and self._path.endswith(TAIL):
            try:
                content = _tail_content(self._system, self._path)
                self._tail, self.damaged = _as_parquet(content), content.damaged
            except FileNotFoundError:
                self._path = _sealed_path(self._path)
        if self._tail is not None:
            return pa.BufferReader(self._tail)
        return self._system.open_input_file(self._path)

    @contextmanager
    def reading(self, coded: Iterable[str] = ()) -> Iterator[ReadGroup]:
        """What reads row groups, checksums verified; the file is closed at the end.

        `coded` are the leaf columns to be read dictionary-encoded. Rows are read in one thread,
        because whoever reads many files has several tasks.
        """
        self.open()
        with self._stream:
            file = pq.ParquetFile(
                self._stream,
                metadata=self.footer,
                read_dictionary=list(coded),
                page_checksum_verification=True,
            )
            yield lambda number, columns: file.read_row_group(
                number, list(columns), use_threads=False
            )

    def may_hold(self, number: int, column: str, texts: Iterable[str]) -> bool:
        """Whether a row group may have one of these texts in a column; the file is left open."""
        self.open()
        group = self.footer.row_group(number)
        return any(may_hold_text(self._stream, group, column, text) for text in texts)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all rows."""
        empty = pa.schema([self.schema.field(name) for name in columns]).empty_table()
        with self.reading() as group:
            groups = [group(number, columns) for number in range(self.footer.num_row_groups)]
        return pa.concat_tables([empty, *groups])


def _sealed_path(tail: str) -> str:
    """The path of a file that was a tail; raises a FileNotFoundError if its name tells nothing."""
    directory, slash, name = tail.rpartition("/")
    stem = Stem.parse(name)
    if stem is None:
        raise FileNotFoundError(tail)
    return f"{directory}{slash}{stem.sealed}"


def _tail_content(system: Any, path: str) -> TailContent:
    with system.open_input_stream(path) as stream:
        return read_tail_bytes(stream.read(), is_old=path.endswith(OLD_TAIL))


def _as_parquet(content: TailContent) -> pa.Buffer:
    """The complete batches of a tail, as the sealed file would have them."""
    if content.schema is None and content.damaged:
        raise ValueError("; ".join(map(str, content.damaged)))
    if content.schema is None:
        raise ValueError("it has no complete batch")
    named = {VERSION_KEY: str(content.version)}
    # A batch has only the columns that it has values for.
    parts = [pa.Table.from_batches([batch]) for batch in content.batches]
    whole = pa.concat_tables([content.schema.empty_table(), *parts], promote_options="default")
    rows = whole.replace_schema_metadata(named)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, store_schema=False)
    return sink.getvalue()


def parquet_footer(system: Any, path: str) -> Any:
    """The footer of a sealed file as Parquet has it; raises one of UNREADABLE."""
    if path.endswith(TAIL):
        return SealedFile(system, path).footer
    with system.open_input_file(path) as stream:
        return pq.read_metadata(stream)


def removed_rows(directory: Path, incarnation: int) -> int:
    """How many rows of an incarnation retention has removed from a table's directory."""
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


def last_instant(journal: Path, node: str) -> int | None:
    """The time of a node's last row, in microseconds; None if no file tells.

    Only the end of each table is looked at: the times of a node do not go back.
    """
    ends = [_end_of(table_directory(journal, table, node)) for table in SCHEMAS]
    return max((end for end in ends if end is not None), default=None)


def record_bounds(journal: Path, node: str) -> dict[int, tuple[int, int]]:
    """When the first and the last record of each incarnation of a node were made.

    Footers tell it of sealed files. What cannot be read counts as not there.
    """
    found: dict[int, tuple[int, int]] = {}
    for table in SCHEMAS:
        directory = table_directory(journal, table, node)
        tails = tails_in(directory)
        for stem in {*tails, *files_in(directory, SEALED)}:
            sealed = directory / stem.sealed
            try:
                is_sealed = stem not in tails or sealed.exists()
                bounds = _sealed_bounds(sealed) if is_sealed else _tail_bounds(tails[stem])
            except UNREADABLE:
                continue  # whoever reads the rows reports it
            known = found.get(stem.incarnation)
            both = [one for one in (bounds, known) if one is not None]
            if both:
                low, high = zip(*both, strict=True)
                found[stem.incarnation] = (min(low), max(high))
    return found


def damaged_tails(journal: Path, node: str) -> set[int]:
    """The incarnations of a node with a tail of which bytes failed their checksum."""
    found = set()
    for table in SCHEMAS:
        for stem, path in tails_in(table_directory(journal, table, node)).items():
            try:
                if not path.with_name(stem.sealed).exists() and read_tail(path).damaged:
                    found.add(stem.incarnation)
            except UNREADABLE:
                continue  # sealed meanwhile; whoever reads the rows reports others
    return found


def _sealed_bounds(path: Path) -> tuple[int, int] | None:
    with pq.ParquetFile(path) as file:
        groups = [
            instant_bounds(file.metadata.row_group(number), "at")
            for number in range(file.num_row_groups)
        ]
        if None in groups:  # another program wrote it, without statistics
            return _bounds([file.read(["at"])])
    known = [bounds for bounds in groups if bounds is not None]
    if not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _tail_bounds(path: Path) -> tuple[int, int] | None:
    return _bounds(read_tail(path).batches)


def _bounds(rows: Iterable[Any]) -> tuple[int, int] | None:
    spans = [pc.min_max(part.column("at").cast(pa.int64())).as_py() for part in rows]
    known = [span for span in spans if span["min"] is not None]
    if not known:
        return None
    return min(span["min"] for span in known), max(span["max"] for span in known)


def _end_of(directory: Path) -> int | None:
    tails = tails_in(directory)
    for stem in sorted({*tails, *files_in(directory, SEALED)}, reverse=True):
        try:
            sealed = directory / stem.sealed
            is_sealed = stem not in tails or sealed.exists()
            end = end_of_sealed(sealed) if is_sealed else _end_of_tail(tails[stem])
        except UNREADABLE:
            continue  # whoever reads the rows reports it
        if end is not None:
            return end
    return None


def end_of_sealed(path: Path) -> int | None:
    """The time of the last row of a sealed file, in microseconds."""
    with pq.ParquetFile(path) as file:
        groups = file.num_row_groups
        if not groups:
            return None
        return _latest(file.read_row_group(groups - 1, columns=["at"], use_threads=False))


def _end_of_tail(path: Path) -> int | None:
    batches = read_tail(path).batches
    return _latest(batches[-1]) if batches else None


def _latest(rows: pa.Table | pa.RecordBatch) -> int | None:
    latest = pc.max(rows.column("at").cast(pa.int64())).as_py()
    return None if latest is None else int(latest)


# Rows.


class Entry(Struct, frozen=True):
    """One row of a journal. Timestamps are microseconds since the epoch."""

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


class RowFilter(Struct, frozen=True):
    """Which rows to read. An empty set or None does not restrict."""

    tables: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    message: str | None = None
    outcomes: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    participant: str | None = None
    since: int | None = None  # in microseconds, inclusive
    until: int | None = None  # in microseconds, exclusive

    def allows_table(self, table: str) -> bool:
        """Whether any row of this table can pass."""
        if self.message is not None or self.outcomes or self.reasons:
            return table == MESSAGES and (not self.tables or table in self.tables)
        return not self.tables or table in self.tables

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that pass every condition but the participant."""
        conditions = []
        if self.since is not None:
            conditions.append(pc.field("at") >= pa.scalar(self.since, INSTANT))
        if self.until is not None:
            conditions.append(pc.field("at") < pa.scalar(self.until, INSTANT))
        if self.message is not None:
            conditions.append(pc.field("message_id") == self.message)
        if self.outcomes:
            conditions.append(pc.field("outcome").isin(sorted(self.outcomes)))
        if self.reasons:
            conditions.append(pc.field("reason").isin(sorted(self.reasons)))
        for condition in conditions:
            batch = batch.filter(condition)
        return batch

    def allows_participant(self, entry: Entry) -> bool:
        """Whether a row is about the participant, if one is given."""
        return self.participant is None or self.participant in _participants(entry)


_PARTICIPANT_COLUMN: Final = {
    ROUTES: "participant",
    SUBSCRIPTIONS: "receiver",
    MEMBERS: "name",
    CLAIMS: "participant",
}


def _participants(entry: Entry) -> set[str]:
    fields = entry.fields
    if entry.table == MESSAGES:
        routes = [*(fields["onward"] or ()), *(fields["return"] or ())]
        named = {address[2:] for address in routes if address and address.startswith("0#")}
        return named | {fields["recipient"]}
    column = _PARTICIPANT_COLUMN.get(entry.table)
    return {fields[column]} if column else set()


class TableReader:
    """Reads one table of one node; each call of `batches` continues where the last one ended.

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

    def __init__(self, journal: Path, table: str, node: str, report: ReportProblem) -> None:
        self._directory = table_directory(journal, table, node)
        self._table = table
        self._report = report
        self._reported: set[tuple[Path, int]] = set()
        self._done = _BEGINNING
        self._paths: dict[Stem, Path] = {}  # of the tails
        self._tails: dict[Stem, tuple[int, pa.Schema]] = {}  # how far each tail was read

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that earlier calls did not return."""
        for _ in range(_MAX_LISTINGS):
            try:
                for stem in self._stems():
                    yield from self._new_rows(stem)
            except FileNotFoundError:
                continue  # sealed, compacted or removed meanwhile: list the directory again
            return

    def _stems(self) -> list[Stem]:
        tails = self._paths = tails_in(self._directory)
        sealed = files_in(self._directory, SEALED)  # second: finds a tail that was just sealed
        self._tails = {stem: self._tails[stem] for stem in tails if stem in self._tails}
        return sorted({*tails, *sealed})

    def _new_rows(self, stem: Stem) -> Iterator[pa.RecordBatch]:
        done = self._done  # rows up to here are skipped; a covered file starts before it
        try:
            for batch in self._read(stem):
                new = _after(conform(batch, self._table), stem.incarnation, done)
                if new.num_rows:
                    last = pc.max(new.column("seq")).as_py()
                    self._done = max(self._done, (stem.incarnation, last))
                    yield new
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            self._report_once(self._directory / stem.sealed, error_text(error))

    def _read(self, stem: Stem) -> Iterator[pa.RecordBatch]:
        path = self._directory / stem.sealed
        if stem in self._paths and not path.exists():
            yield from self._read_tail(stem, self._paths[stem])
        elif self._goes_further(stem, path):
            yield from read_sealed(path)

    def _goes_further(self, stem: Stem, path: Path) -> bool:
        """Whether a sealed file has rows after those that were read; mostly its name tells."""
        incarnation, seq = self._done
        if stem.incarnation != incarnation or stem.first > seq:
            return stem.incarnation >= incarnation
        return read_footer(path).last > seq

    def _read_tail(self, stem: Stem, path: Path) -> Iterator[pa.RecordBatch]:
        start, schema = self._tails.get(stem, (0, None))
        content = read_tail(path, start, schema)
        if content.schema is not None:
            self._tails[stem] = content.end, content.schema
        yield from content.batches
        if content.torn and not _is_growing(path, content.end + content.torn):
            self._report_once(path, f"the last {content.torn} bytes are incomplete")
        for damage in content.damaged:
            self._report_once(path, str(damage), damage.start)

    def _report_once(self, path: Path, problem: str, where: int = -1) -> None:
        if (path, where) not in self._reported:
            self._reported.add((path, where))
            self._report(path, problem)


def _is_growing(path: Path, size: int) -> bool:
    """Whether a tail changes its size: its writer was in the middle of a batch."""
    for _ in range(_LOOKS):
        time.sleep(_BETWEEN_LOOKS)
        try:
            if path.stat().st_size != size:
                return True
        except FileNotFoundError:  # sealed meanwhile
            return True
    return False


def _after(batch: pa.RecordBatch, incarnation: int, done: Position) -> pa.RecordBatch:
    if incarnation != done[0]:
        return batch
    return batch.filter(pc.field("seq") > done[1])


class JournalReader:
    """Reads the rows of a journal; each call of `entries` continues where the last one ended."""

    def __init__(
        self, journal: Path, report: ReportProblem, filter: RowFilter | None = None
    ) -> None:
        self._journal = journal
        self._report = report
        self._filter = RowFilter() if filter is None else filter
        self._readers: dict[tuple[str, str], TableReader] = {}

    def entries(self) -> Iterator[Entry]:
        """The rows that earlier calls did not return.

        The rows of a node are in its own order; those of several nodes are merged by time.
        """
        nodes = self._filter.nodes or all_nodes(self._journal)
        return merge(*(self._of_node(node) for node in sorted(nodes)), key=lambda entry: entry.at)

    def _of_node(self, node: str) -> Iterator[Entry]:
        tables = [table for table in SCHEMAS if self._filter.allows_table(table)]
        streams = [self._of_table(table, node) for table in tables]
        return merge(*streams, key=lambda entry: entry.position)

    def _of_table(self, table: str, node: str) -> Iterator[Entry]:
        reader = self._readers.get((table, node))
        if reader is None:
            reader = TableReader(self._journal, table, node, self._report)
            self._readers[table, node] = reader
        for batch in reader.batches():
            for fields in instants_as_integers(self._filter.apply(batch)).to_pylist():
                entry = Entry(table, node, fields)
                if self._filter.allows_participant(entry):
                    yield entry


def instants_as_integers(rows: Any) -> Any:
    """A batch or table with timestamps as microseconds: Python gets them in a tenth of the time."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in rows.columns
    ]
    return type(rows).from_arrays(columns, names=rows.schema.names)
