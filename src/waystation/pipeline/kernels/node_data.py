"""The data of one node that a step works on, from files or from frames.

This runs in the executors. All reading goes through here: files are opened, converted to the
current columns and validated, and what is invalid is recorded as a reject (SP-5). Nothing here
raises an error because of the content of a file.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial, reduce
from typing import Any, Final, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from waystation.journal.pruning import instant_bounds, number_bounds
from waystation.journal.read import ReadGroup, SealedFile
from waystation.journal.schema import MEMBERS, MESSAGES, NODES, ROUTES, SUBSCRIPTIONS, TEXT
from waystation.pipeline.kernels.checks import LAST, problems_of
from waystation.pipeline.kernels.columns import Flags, Longs, codes, column, encoded, longs
from waystation.pipeline.kernels.folding import coded_routes, coded_subscriptions, written_out
from waystation.pipeline.kernels.lifetimes import Lifetimes
from waystation.pipeline.kernels.normal import UnfitError, check_columns, coded, normal
from waystation.pipeline.kernels.stretches import FOLDED_AT_ONCE
from waystation.pipeline.listing import File, Wanted, locate
from waystation.pipeline.schema import (
    CODED,
    JOURNAL,
    VERSION,
    coded_schema,
    plain_schema,
    steps_columns,
)
from waystation.pipeline.tables import BUILT

UNREADABLE: Final = (pa.ArrowException, OSError, UnfitError, ValueError)
"""What reading an invalid file can raise."""

_NOT_THE_FILE: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT}
)
_SPLIT_BY: Final = {ROUTES: ["participant"], SUBSCRIPTIONS: ["pattern", "receiver"]}
"""The columns that identify a fold of a table, within an incarnation."""

_FIRST: Final = -(2**63)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Reject = tuple[str, str | None, str, str | None, str, int | None]
"""Table, node, file, row as JSON, problem: a row of `rejects`; and when the file begins."""


class NodeData(Protocol):
    """One node's part of a journal."""

    @property
    def node(self) -> str:
        """Its name."""

    def events(self, table: str) -> pa.Table:
        """The valid rows of a table of the journal, without the column `node`."""

    def coded_events(self, table: str) -> pa.Table:
        """The valid rows of a table, with dictionary-encoded strings where they are read so."""

    def lifetimes(self) -> Lifetimes:
        """When its incarnations began and ended."""

    @property
    def route_history(self) -> pa.Table:
        """The routing entries of the node."""

    @property
    def subscription_history(self) -> pa.Table:
        """The subscriptions at the node."""

    @property
    def coded_route_history(self) -> pa.Table:
        """The routing entries, with strings encoded as they are read; without the node."""

    @property
    def coded_subscription_history(self) -> pa.Table:
        """The subscriptions, with strings encoded as they are read; without the node."""


class Share(Struct, frozen=True):
    """The work of one task for one node: all of it, or a part.

    Part `part` of `parts` has the participants (or the pairs of pattern and receiver) with its own
    hash. `received` limits messages to those received in one of the `spans`, [from, to), in
    microseconds.
    """

    node: str
    files: dict[str, list[File]]
    part: int = 0
    parts: int = 1
    received: tuple[int, int] | None = None
    spans: int = 1
    unsealed: list[int] = []  # incarnations that have records which are not in these files


class _Source(Struct):
    """A file of a table, and the columns that it has."""

    file: File
    sealed: SealedFile
    names: list[str]


class Sought(Struct, frozen=True):
    """What a row must have in a column: one of some texts, or one that passes."""

    name: str
    texts: frozenset[str] = frozenset()
    passes: Callable[[str], bool] | None = None

    def may_be_in(self, sealed: SealedFile, group: int) -> bool:
        """Whether a row group of a file may have such a row."""
        return self.passes is not None or sealed.may_hold(group, self.name, self.texts)

    def among(self, values: Any) -> pa.Array:
        """Which values of the column are so."""
        if self.passes is None:
            return pc.is_in(values, pa.array(sorted(self.texts), TEXT))
        texts = encoded(values.combine_chunks())
        passing = np.array([*map(self.passes, texts.dictionary.to_pylist()), False], np.bool_)
        return pa.array(passing[codes(texts)])


class Tuning(Struct, frozen=True):
    """How files are read and folded; it changes the cost, but no row."""

    open_at_once: int = 16  # files; with more, each is closed after its footer was read
    many_rows: int = 20_000  # from here on, it pays to check whether strings repeat
    unrepeated_bytes: int = 9  # per row: a column that takes more hardly repeats
    folded_at_once: int = FOLDED_AT_ONCE


DEFAULT_TUNING: Final = Tuning()


class FileData:
    """A node's part of a journal, from its files."""

    def __init__(
        self, root: str, share: Share, wanted: Wanted, tuning: Tuning = DEFAULT_TUNING
    ) -> None:
        self._root = root
        self._system, self._directory = locate(root)
        self._share = share
        self._wanted = wanted
        self._tuning = tuning
        self._looked_at: dict[str, _Source | str] = {}  # a file by its path, or its problem
        self._once: dict[str, tuple[pa.Table, list[Reject]]] = {}  # small tables, by name
        self.rejects: list[Reject] = []
        self._begins: dict[str, int | None] = {}  # of the files with rejects

    @property
    def node(self) -> str:
        """Its name."""
        return self._share.node

    @property
    def is_first_share(self) -> bool:
        """Whether this share does the work that must be done once per node."""
        received = self._share.received
        return self._share.part == 0 and (received is None or received[0] == _FIRST)

    def events(self, table: str) -> pa.Table:
        """The valid rows of a table, without duplicates."""
        return self.coded_events(table).cast(plain_schema(table))

    def small_table(self, table: str) -> pa.Table:
        """The valid rows of a table that is small, and is read once, whoever asks for it."""
        if table not in self._once:
            before = len(self.rejects)
            rows = self.events(table)
            self._once[table] = rows, self.rejects[before:]
        return self._once[table][0]

    def batches(self, table: str) -> Iterator[pa.Table]:
        """The valid rows of a table with every column, in parts, in the order of the files."""
        plain = plain_schema(table, every=True)
        yield from self._sound_rows(table, lambda rows: rows.cast(plain), every=True)

    def coded_events(self, table: str) -> pa.Table:
        """The valid rows of a table, without duplicates, with the schema `coded_schema`."""
        pieces = [self._own_part(table, rows) for rows in self.coded_batches(table)]
        if not pieces:
            return coded_schema(table).empty_table()
        return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces).combine_chunks()

    def coded_batches(self, table: str, *, every: bool = False) -> Iterator[pa.Table]:
        """The coded rows of a table in parts, in the order of the files, whatever part this is.

        They have the columns that steps read, or `every` one.
        """
        yield from self._sound_rows(table, lambda rows: rows, every=every)

    def rows_with(self, table: str, name: str, texts: Iterable[str]) -> Iterator[pa.Table]:
        """The valid coded rows that have one of these texts in a column, in parts.

        Row groups whose bounds or Bloom filter rule that out are not read, and of the others that
        column first.
        """
        yield from self.sought_rows(table, Sought(name, frozenset(texts)))

    def sought_rows(self, table: str, sought: Sought) -> Iterator[pa.Table]:
        """The valid coded rows that are sought, in parts."""
        yield from self._sound_rows(table, lambda rows: rows, every=False, sought=sought)

    def _sound_rows(
        self,
        table: str,
        form: Callable[[pa.Table], pa.Table],
        *,
        every: bool,
        sought: Sought | None = None,
    ) -> Iterator[pa.Table]:
        """The rows of a table in parts, with strings encoded as given, filtered to this share."""
        few = len(self._share.files.get(table, ())) <= self._tuning.open_at_once
        readable = list(self._readable(table, keep_open=few))
        footers = [source.sealed.footer for source in readable]
        repeats, plain = _Repeats(footers), _unrepeated(table, footers, self._tuning)
        for number, source in enumerate(readable):
            for found in self._row_groups(table, source, plain, every=every, sought=sought):
                rows = self._wanted_rows(table, form(repeats.without(number, found)))
                yield self._sound(table, source.file, rows)

    def lifetimes(self) -> Lifetimes:
        """When its incarnations began and ended, from all of its tables."""
        return self._lifetimes

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        """When its incarnations began and ended; computed once.

        Start rows tell nearly all of it; first records are read only where there is none.
        """
        lives = Lifetimes()
        if NODES in self._share.files:
            lives.add(self.small_table(NODES))
        unstarted: dict[int, list[tuple[int, str, File]]] = {}
        for table, files in self._share.files.items():
            for file in files:
                if file.incarnation < 0 or not lives.started(file.incarnation):
                    unstarted.setdefault(file.incarnation, []).append((file.first, table, file))
        for incarnation, files_of in unstarted.items():
            for first, table, file in sorted(files_of, key=lambda found: found[0]):
                seq = lives.first_seq(incarnation)
                if incarnation < 0 or seq is None or first < seq:
                    lives.add_firsts(self._instants_of(table, file, sound=True))
        return lives

    @property
    def route_history(self) -> pa.Table:
        """The routing entries of the node."""
        return written_out("route_history", self.node, self.coded_route_history)

    @property
    def subscription_history(self) -> pa.Table:
        """The subscriptions at the node."""
        return written_out("subscription_history", self.node, self.coded_subscription_history)

    @cached_property
    def coded_route_history(self) -> pa.Table:
        """The routing entries, with dictionary-encoded strings; without the node."""
        events, at_once = self.coded_events(ROUTES), self._tuning.folded_at_once
        return coded_routes(events, self.lifetimes(), at_once).combine_chunks()

    @cached_property
    def coded_subscription_history(self) -> pa.Table:
        """The subscriptions, with dictionary-encoded strings; without the node."""
        events, at_once = self.coded_events(SUBSCRIPTIONS), self._tuning.folded_at_once
        return coded_subscriptions(events, self.lifetimes(), at_once).combine_chunks()

    def later_entries(self, ids: set[str]) -> set[str]:
        """Which of these messages entered the node again after the time range of this share."""
        ends = [span[1] for span in (self._share.received, self._wanted.received) if span]
        if not ids or not ends:
            return set()
        later = Share(self.node, self._share.files, received=(min(ends), 2**63 - 1))
        wanted = self._wanted.all_messages()
        found: set[str] = set()
        for rows in FileData(self._root, later, wanted, self._tuning).coded_batches(MESSAGES):
            found |= ids & set(rows.column("message_id").to_pylist())
        return found

    def multicasts_before(
        self, span: int | None, ids: Collection[str] | None = None
    ) -> pa.Table | None:
        """The multicasts received up to this many microseconds before the messages of this share.

        Or at any time before, and only those of some messages. None if nothing can be before.
        """
        begins = [span[0] for span in (self._share.received, self._wanted.received) if span]
        begin = max(begins, default=_FIRST)
        if begin == _FIRST and self._wanted.since is not None:
            begin = self._wanted.since
        if begin == _FIRST:
            return None
        files = {MESSAGES: self._share.files.get(MESSAGES, [])}
        low = _FIRST if span is None else begin - span
        wanted = self._wanted.all_messages()
        earlier = Share(self.node, files, received=(low, begin))
        found = [plain_schema(MESSAGES).empty_table()]
        for rows in FileData(self._root, earlier, wanted, self._tuning).coded_batches(MESSAGES):
            kept = pc.equal(rows.column("kind").cast(TEXT), "multicast")
            if ids is not None:
                of_these = pc.is_in(rows.column("message_id"), pa.array(list(ids), TEXT))
                kept = pc.and_(kept, of_these)
            found.append(rows.filter(kept).cast(plain_schema(MESSAGES)))
        return pa.concat_tables(found).combine_chunks()

    def has(self, table: str) -> bool:
        """Whether there are files of a table."""
        return table in self._share.files

    @property
    def keeps_members(self) -> bool:
        """Whether it is a gossip router: a row about a member tells, a reject does not (SP-5)."""
        return self.has(MEMBERS) and self.small_table(MEMBERS).num_rows > 0

    @property
    def unsealed(self) -> list[int]:
        """The incarnations that have records which are not in its files yet."""
        return self._share.unsealed

    def latest(self) -> dict[int, int]:
        """When the last record of each incarnation was made, over all tables."""
        return self._latest

    @cached_property
    def _latest(self) -> dict[int, int]:
        """The same, found once; footers tell it for nearly all files."""
        found: dict[int, int] = {}
        for table in self._share.files:
            for source in self._readable(table):
                for incarnation, at in self._ends_of_records(table, source):
                    found[incarnation] = max(at, found.get(incarnation, at))
        return found

    def record_before(self, incarnation: int, seq: int) -> int:
        """When the record before one of an incarnation was made; of the first, when that was."""
        found: list[tuple[int, int]] = []
        for table, files in self._share.files.items():
            for file in files:
                if file.incarnation in (-1, incarnation) and file.first <= seq:
                    rows = self._instants_of(table, file, sound=False)
                    own = rows.filter(pc.equal(rows.column("incarnation"), incarnation))
                    found += zip(longs(own, "seq").tolist(), longs(own, "at").tolist(), strict=True)
        earlier = [record for record in found if record[0] < seq]
        return max(earlier)[1] if earlier else min(found)[1]

    def has_values(self, table: str, name: str) -> bool:
        """Whether rows of a table may have a value in a column, as far as footers tell."""
        for source in self._readable(table):
            footer = source.sealed.footer
            if name not in source.names or not footer.num_row_groups:
                continue
            paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
            place = paths.index(name)
            for number in range(footer.num_row_groups):
                told = footer.row_group(number).column(place).statistics
                if told is None or told.num_values:  # those that are not null
                    return True
        return False

    def received_between(self, since: int, until: int) -> FileData:
        """The same with the messages received in a range only."""
        low, high = self._share.received or (_FIRST, 2**63 - 1)
        share = replace(self._share, received=(max(low, since), min(high, until)))
        return FileData(self._root, share, self._wanted, self._tuning)

    def row_groups(
        self, table: str, names: Sequence[str]
    ) -> Iterator[tuple[Any, Callable[[], pa.Table]]]:
        """What footers tell of the row groups that have these columns, and what reads them.

        All of their rows are read, also those that are not wanted or invalid, and nothing is a
        reject: whoever reads the rows themselves tells of those.
        """
        for source in self._readable(table, rejects=False):
            if not set(names) <= set(source.names):
                continue
            for number in range(source.sealed.footer.num_row_groups):
                group = source.sealed.footer.row_group(number)
                if self._may_hold_wanted(table, group):
                    yield group, partial(_read_group, source, number, names)

    def _ends_of_records(self, table: str, source: _Source) -> Iterable[tuple[int, int]]:
        footer, until = source.sealed.footer, self._wanted.until
        if not footer.num_rows:
            return []
        bounds = [
            instant_bounds(footer.row_group(number), "at")
            for number in range(footer.num_row_groups)
        ]
        span, last = _seq_span(footer), LAST if until is None else min(LAST, until - 1)
        known = [found for found in bounds if found is not None]
        if span is not None and span[0] >= 0 and len(known) == len(bounds):
            low, high = min(low for low, _ in known), max(high for _, high in known)
            if low >= 0 and high <= last:
                return [(span[0], high)]
        rows = self._instants_of(table, source.file, sound=False)
        ats, numbers = longs(rows, "at"), longs(rows, "incarnation")
        sound = (numbers >= 0) & (ats <= last)
        return zip(numbers[sound].tolist(), ats[sound].tolist(), strict=True)

    def damaged_tails(self) -> set[int]:
        """The incarnations with a tail of which bytes failed their checksum.

        Once these are sealed, rows of `nodes` say so.
        """
        return {
            source.file.incarnation
            for table in self._share.files
            for source in self._readable(table, rejects=False)
            if source.sealed.damaged
        }

    def rows(self, table: str) -> int:
        """The number of rows in the files of a table, including invalid and duplicate ones."""
        return sum(source.sealed.footer.num_rows for source in self._readable(table))

    def versions(self, table: str) -> set[int]:
        """The versions of the files of a table."""
        return {source.sealed.version for source in self._readable(table)}

    def all_rejects(self) -> list[Reject]:
        """The rejects of all tables."""
        if self._wanted.begun is not None:
            return self._rejects_of_files(self._wanted.begun)
        self.rejects.clear()
        for table in self._share.files:
            if table in self._once:
                self.rejects += self._once[table][1]
                continue
            for _ in self.coded_batches(table):
                pass
        return self.rejects

    def _rejects_of_files(self, span: tuple[int, int]) -> list[Reject]:
        """The rejects of the files that may begin in a span; others are not read."""
        files = {
            table: [file for file in files if self._may_begin(table, file, span)]
            for table, files in self._share.files.items()
        }
        share = Share(self.node, {table: found for table, found in files.items() if found})
        wanted = self._wanted.all_messages()
        return FileData(self._root, share, wanted, self._tuning).all_rejects()

    def _may_begin(self, table: str, file: File, span: tuple[int, int]) -> bool:
        found = self._looked_at.get(file.path)
        if found is None:
            found = self._looked_at[file.path] = self._look_at(table, file)
            if isinstance(found, _Source):
                found.sealed.close()
        if isinstance(found, str) or not found.sealed.footer.num_row_groups:
            return True
        return _overlaps(found.sealed.footer.row_group(0), "at", *span)

    def _readable(
        self, table: str, *, keep_open: bool = False, rejects: bool = True
    ) -> Iterator[_Source]:
        """The valid files of a table; the others are `rejects`, unless others see to that.

        Each is closed again at once unless it is kept open, since a node may have more files than
        a process can open. Footers are read once.
        """
        for file in self._share.files.get(table, ()):
            found = self._looked_at.get(file.path)
            if found is None:
                found = self._looked_at[file.path] = self._look_at(table, file)
                if not keep_open and isinstance(found, _Source):
                    found.sealed.close()
            told = [found] if isinstance(found, str) else list(map(str, found.sealed.damaged))
            for problem in told if rejects else ():
                self._reject(table, file, None, problem)
            if not isinstance(found, str):
                yield found

    def _look_at(self, table: str, file: File) -> _Source | str:
        """A file with its footer, or what is wrong with it."""
        try:
            sealed = self._opened(file)
            try:
                return _Source(file, sealed, check_columns(table, sealed.schema))
            except UnfitError:
                sealed.close()
                raise
        except UNREADABLE as error:
            _blame_the_file(error)
            return _said(error)

    def _opened(self, file: File) -> SealedFile:
        return SealedFile(self._system, f"{self._directory}/{file.path}")

    def _row_groups(
        self,
        table: str,
        source: _Source,
        plain: list[str],
        *,
        every: bool,
        sought: Sought | None = None,
    ) -> Iterator[pa.Table]:
        """The row groups of a file that may contain wanted rows, with the current columns."""
        file, footer = source.file, source.sealed.footer
        read = JOURNAL[table] if every else steps_columns(table)
        names = [name for name in source.names if name in read]
        groups = [
            number
            for number in range(footer.num_row_groups)
            if self._may_hold_wanted(table, footer.row_group(number))
        ]
        try:
            if sought is not None:
                groups = [n for n in groups if sought.may_be_in(source.sealed, n)]
            if not groups:
                source.sealed.close()
                return
            source.sealed.open()
        except UNREADABLE as error:
            _blame_the_file(error)
            self._reject(table, file, None, _said(error))
            return
        leaves = _coded_leaves(footer, coded_schema(table, plain, every=every))
        with source.sealed.reading(leaves) as read_group:
            for group in groups:
                try:
                    read_rows = _with_sought(read_group, group, names, sought)
                    if read_rows is None:
                        continue
                    read_rows = _versioned(table, read_rows, source.sealed.version)
                    found = coded(table, read_rows, plain, every=every)
                    found.validate(full=True)
                except UNREADABLE as error:
                    _blame_the_file(error)
                    self._reject(table, file, None, f"row group {group}: {_said(error)}")
                else:
                    yield found

    def _may_hold_wanted(self, table: str, group: Any) -> bool:
        if not may_hold_wanted(self._wanted, table, group):
            return False
        received = self._share.received if "received_at" in JOURNAL[table] else None
        return received is None or _overlaps(group, "received_at", *received)

    def _wanted_rows(self, table: str, rows: pa.Table) -> pa.Table:
        since, until = self._wanted.spans(table)
        if since is not None or until is not None:
            rows = rows.filter(_within(rows, "at", since, until))
        within = [_within(rows, name, *span) for name, span in self._wanted.within(table)]
        if within:
            rows = rows.filter(reduce(pc.or_, within))
        received = self._share.received
        if received is not None and "received_at" in JOURNAL[table]:
            rows = rows.filter(_within(rows, "received_at", *received))
        return rows

    def _sound(self, table: str, file: File, rows: pa.Table) -> pa.Table:
        problems = problems_of(table, rows)
        if not problems:
            return rows
        numbers = list(problems)
        bad = _as_json(rows.take(pa.array(numbers, pa.int64())))
        for number, row in zip(numbers, bad, strict=True):
            self._reject(table, file, row, problems[number])
        return _without(rows, numbers)

    def _own_part(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows of the participants, or subscriptions, in this part."""
        if self._share.parts == 1 or table not in _SPLIT_BY or not rows.num_rows:
            return rows
        return rows.filter(pa.array(_hashes(table, rows) % self._share.parts == self._share.part))

    def _instants_of(self, table: str, file: File, *, sound: bool) -> pa.Table:
        """Incarnation, seq and at of the rows of one file that have them, or of the valid ones."""
        names = ["incarnation", "seq", "at"]
        try:
            sealed = self._opened(file)
            there = check_columns(table, sealed.schema)
            read = [name for name in there if name in steps_columns(table)] if sound else names
            rows = sealed.read(read)
            if sound:
                rows = sound_rows(table, normal(table, rows)).select(names)
        except UNREADABLE as error:
            _blame_the_file(error)
            return plain_schema(table).empty_table()  # its reader reports it
        rows = normal(NODES, rows.append_column("kind", pa.nulls(rows.num_rows, pa.string())))
        known = [pc.is_valid(rows.column(name)) for name in names]
        rows = rows.filter(pc.and_(pc.and_(known[0], known[1]), known[2]))
        return rows.filter(_within(rows, "at", 0, self._wanted.until))

    def _reject(self, table: str, file: File, row: str | None, problem: str) -> None:
        if file.path not in self._begins:
            self._begins[file.path] = self._begin_of(table, file)
        begins = self._begins[file.path]
        self.rejects.append((table, self.node, file.path, row, problem, begins))

    def _begin_of(self, table: str, file: File) -> int | None:
        """The time of the first row in a file that has one; None if none has."""
        found = longs(self._instants_of(table, file, sound=False), "at")
        found = found[found <= LAST]
        return int(found[0]) if len(found) else None


class FrameData:
    """One node's part of frames that a user read or changed, already collected."""

    def __init__(self, node: str, tables: dict[str, pa.Table]) -> None:
        self.node = node
        self._tables = tables

    def events(self, table: str) -> pa.Table:
        """The valid rows of a table."""
        if table not in self._tables:
            return plain_schema(table).empty_table()
        return sound_rows(table, normal(table, self._tables[table]))

    def coded_events(self, table: str) -> pa.Table:
        """The valid rows of a table; the strings are plain."""
        return self.events(table)

    def lifetimes(self) -> Lifetimes:
        """When its incarnations began and ended, according to these tables."""
        lives = Lifetimes()
        for table in JOURNAL:
            rows = self.events(table)
            if table == NODES:
                lives.add(rows)
            else:
                lives.add_firsts(rows)
        return lives

    @cached_property
    def route_history(self) -> pa.Table:
        """The routing entries, as given."""
        return self.given("route_history")

    @cached_property
    def subscription_history(self) -> pa.Table:
        """The subscriptions, as given."""
        return self.given("subscription_history")

    @property
    def coded_route_history(self) -> pa.Table:
        """The routing entries, as given; the strings are plain."""
        return self.route_history

    @property
    def coded_subscription_history(self) -> pa.Table:
        """The subscriptions, as given; the strings are plain."""
        return self.subscription_history

    def given(self, name: str) -> pa.Table:
        """A table that an earlier step has built."""
        return self._tables.get(name, BUILT[name].empty_table())


def _with_sought(
    read: ReadGroup, number: int, names: list[str], sought: Sought | None
) -> pa.Table | None:
    """The rows of a row group, or those that are sought; None if there are none of these."""
    if sought is None:
        return read(number, names)
    values = read(number, [sought.name]).column(0) if sought.name in names else None
    if values is None:
        return None
    found = sought.among(values)
    return read(number, names).filter(found) if pc.any(found).as_py() else None


def _read_group(source: _Source, number: int, names: Sequence[str]) -> pa.Table:
    """Some columns of a row group, with dictionary-encoded strings; raises one of UNREADABLE."""
    texts = [name for name in names if source.sealed.schema.field(name).type == TEXT]
    with source.sealed.reading(texts) as read:
        return read(number, names)


def _hashes(table: str, rows: pa.Table) -> Longs:
    """A number for each row, the same for all rows of one fold; from 0 on."""
    hashes = np.zeros(rows.num_rows, np.int64)
    for name in _SPLIT_BY[table]:
        texts = encoded(column(rows, name))
        distinct = [crc32(text.encode()) for text in texts.dictionary.to_pylist()]
        hashes = hashes * 31 + np.array(distinct, np.int64)[codes(texts)]
    return hashes


def _versioned(table: str, rows: pa.Table, version: int) -> pa.Table:
    """The rows of a file with its version, where rows of several versions differ in meaning."""
    if VERSION not in JOURNAL[table]:
        return rows
    told = pa.repeat(pa.scalar(version, JOURNAL[table][VERSION].type), rows.num_rows)
    return rows.append_column(VERSION, told)


def _coded_leaves(footer: Any, schema: pa.Schema) -> list[str]:
    """The columns of a file to be read dictionary-encoded."""
    wanted = {field.name for field in schema if field.type != TEXT}
    leaves = [footer.schema.column(number) for number in range(footer.num_columns)]
    return [
        leaf.path
        for leaf in leaves
        if leaf.physical_type == "BYTE_ARRAY" and leaf.path.partition(".")[0] in wanted
    ]


def _unrepeated(table: str, footers: list[Any], tuning: Tuning) -> list[str]:
    """The columns whose strings hardly repeat, judging by their size: encoding gains nothing."""
    rows = sum(footer.num_rows for footer in footers)
    if rows < tuning.many_rows:
        return []
    sizes = dict.fromkeys((field.name for field in coded_schema(table) if field.type == CODED), 0)
    for footer in footers:
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            for place in range(footer.num_columns):
                found = group.column(place)
                if found.path_in_schema in sizes:
                    sizes[found.path_in_schema] += found.total_uncompressed_size
    return [name for name, size in sizes.items() if size > rows * tuning.unrepeated_bytes]


def sound_rows(table: str, rows: pa.Table) -> pa.Table:
    """The rows of a table without problems."""
    return _without(rows, list(problems_of(table, rows)))


def _without(rows: pa.Table, numbers: list[int]) -> pa.Table:
    if not numbers:
        return rows
    kept = np.ones(rows.num_rows, np.bool_)
    kept[numbers] = False
    return rows.filter(pa.array(kept))


class _Repeats:
    """Finds rows that are in several files, as after an interrupted compaction.

    The first file in the order of names counts. Only files with overlapping ranges of seq are
    compared row by row.
    """

    def __init__(self, footers: Iterable[Any]) -> None:
        spans = [_seq_span(footer) for footer in footers]
        self._seen: dict[int, Any] = {}
        self._overlapping = _overlapping(spans)

    def without(self, number: int, rows: pa.Table) -> pa.Table:
        """These rows of a file, without those of earlier files."""
        if number not in self._overlapping:
            return rows
        keep = np.ones(rows.num_rows, np.bool_)
        pairs = zip(longs(rows, "incarnation").tolist(), longs(rows, "seq").tolist(), strict=True)
        for row, (incarnation, seq) in enumerate(pairs):
            seen = self._seen.setdefault(incarnation, set())
            keep[row] = seq not in seen
            seen.add(seq)
        return rows if keep.all() else rows.filter(pa.array(keep))


def _overlapping(spans: list[tuple[int, int, int] | None]) -> set[int]:
    """The numbers of the files that may share rows with another one."""
    if len(spans) < 2:
        return set()
    unknown = {number for number, span in enumerate(spans) if span is None}
    if unknown:
        return set(range(len(spans)))
    known = sorted((span, number) for number, span in enumerate(spans) if span is not None)
    found: set[int] = set()
    (incarnation, _, end), last = known[0]
    for (number, low, high), file in known[1:]:
        if number == incarnation and low <= end:
            found |= {last, file}
        if number != incarnation or high > end:
            incarnation, end, last = number, high, file
    return found


def _seq_span(metadata: Any) -> tuple[int, int, int] | None:
    """The incarnation, the lowest and the highest seq of a file of one incarnation, if known."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    incarnations = [number_bounds(group, "incarnation") for group in groups]
    seqs = [number_bounds(group, "seq") for group in groups]
    if not groups:
        return (0, 0, -1)
    if None in incarnations or None in seqs:
        return None
    lows = {low for found in incarnations if found for low in found}
    if len(lows) != 1:
        return None
    numbers = [number for found in seqs if found for number in found]
    return lows.pop(), min(numbers), max(numbers)


def may_hold_wanted(wanted: Wanted, table: str, group: Any) -> bool:
    """Whether a row group of a table may contain rows that are wanted."""
    if not _overlaps(group, "at", *wanted.spans(table)):
        return False
    within = wanted.within(table)
    return not within or any(_overlaps(group, name, *span) for name, span in within)


def _overlaps(group: Any, name: str, since: int | None, until: int | None) -> bool:
    """Whether a row group may contain a time of a range, [since, until)."""
    if since is None and until is None:
        return True
    bounds = instant_bounds(group, name)
    if bounds is None:
        return True
    return (until is None or bounds[0] < until) and (since is None or bounds[1] >= since)


def _within(rows: pa.Table, name: str, since: int | None, until: int | None) -> pa.Array:
    """Which rows are in a time range; a row without a timestamp passes, to be rejected later."""
    values = longs(rows, name, -1)
    inside: Flags = np.ones(len(values), np.bool_)
    if since is not None:
        inside &= values >= since
    if until is not None:
        inside &= values < until
    return pa.array(inside | (values == -1))


def _as_json(rows: pa.Table) -> list[str]:
    """Each row as a JSON object; a timestamp that is out of range is a number of microseconds."""
    columns = {}
    for name in rows.column_names:
        values = rows.column(name)
        if pa.types.is_timestamp(values.type):
            columns[name] = [_instant_text(value) for value in values.cast(pa.int64()).to_pylist()]
        else:
            columns[name] = values.to_pylist()
    fields = zip(*columns.values(), strict=True)
    return [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in fields]


def _instant_text(microseconds: int | None) -> str | int | None:
    if microseconds is None:
        return None
    try:
        return str(_EPOCH + timedelta(microseconds=microseconds))
    except OverflowError:
        return microseconds


def _blame_the_file(error: Exception) -> None:
    """Raise errors that are temporary or caused by this machine, so that the task is repeated."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) in _NOT_THE_FILE:
        raise error


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
