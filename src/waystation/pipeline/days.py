"""The days of built tables: which there are, of which files they are made, what may still change.

A row of a table belongs to one day (UTC). Where tables are kept by day, each day of a table is a
directory of its own, and can be built again alone (SP-6). Rows that later records can change, such
as an entry that is still valid, are in files of their own there, whose names begin with `open-`.
`_state/days.json`, beside the tables, says which days were built of which files of the journal. No
Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from waystation.core.visits import DAY
from waystation.errors import LocalError, quote
from waystation.journal.filesystems import (
    complaining,
    exists,
    file_system,
    write_whole,
)
from waystation.journal.pruning import instant_bounds
from waystation.journal.read import SealedFile
from waystation.journal.schema import CLAIMS, MESSAGES
from waystation.pipeline.kernels.checks import LAST
from waystation.pipeline.kernels.node_data import UNREADABLE
from waystation.pipeline.listing import File, Listing, locate
from waystation.pipeline.store import NO_DAY
from waystation.pipeline.tables import TABLES, is_still_open
from waystation.why.finished import DAYS, read_build, read_told

YESTERDAY: Final = "yesterday"
_EPOCH: Final = date(1970, 1, 1)
_NAME: Final = "day="
_LOOKED_AT_ONCE: Final = 16
_MANY: Final = 2  # days of a file beyond which its rows tell which they are
_ALONE: Final = (MESSAGES, CLAIMS)  # tables whose rows tell nothing about later days


# Names of days


def day_number(text: str) -> int:
    """The number of a day, from 1970 on; raises a LocalError if it is none.

    >>> day_number("1970-01-03")
    2
    """
    if text == YESTERDAY:
        return (datetime.now(UTC).date() - _EPOCH).days - 1
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise LocalError(
            f"{quote(text)} is not a day",
            rule="SP-6",
            hint="give 2026-11-16, 2026-11-01..2026-11-16, or yesterday",
        ) from None


def day_numbers(texts: Iterable[str]) -> set[int]:
    """The numbers of days and of ranges of days.

    >>> sorted(day_numbers(["1970-01-03", "1970-01-05..1970-01-07"]))
    [2, 4, 5, 6]
    """
    found: set[int] = set()
    for text in texts:
        first, separator, last = text.partition("..")
        low = day_number(first)
        high = day_number(last) if separator else low
        if high < low:
            raise LocalError(
                f"{quote(text)} ends before it begins",
                rule="SP-6",
                hint="give the earlier day first",
            )
        found.update(range(low, high + 1))
    return found


def day_text(number: int) -> str:
    """A day as people write it.

    >>> day_text(2)
    '1970-01-03'
    """
    return str(_EPOCH + timedelta(days=number))


def directory_of(number: int | None) -> str:
    """The name of a day's directory.

    >>> directory_of(2)
    'day=1970-01-03'
    """
    return f"{_NAME}{NO_DAY if number is None else day_text(number)}"


def day_of_file(path: str) -> int | None:
    """The day of a file of a table, by its directory; None if that is unknown."""
    text = path.rpartition("/")[0].rpartition("/")[2].removeprefix(_NAME)
    return None if text == NO_DAY else day_number(text)


def span_of(days: Collection[int]) -> tuple[int, int]:
    """From when to when these days are, in microseconds."""
    return min(days) * DAY, (max(days) + 1) * DAY


def runs(days: Iterable[int]) -> list[list[int]]:
    """Days that follow each other, together.

    >>> runs([5, 1, 2, 6, 9])
    [[1, 2], [5, 6], [9]]
    """
    found: list[list[int]] = []
    for day in sorted(days):
        if found and found[-1][-1] == day - 1:
            found[-1].append(day)
        else:
            found.append([day])
    return found


# What is written


class Days(Struct, frozen=True):
    """The days of a table that are written, and until when records tell."""

    wanted: frozenset[int | None]
    horizon: int

    def parts(self, table: str, rows: pa.Table) -> Iterator[tuple[str, bool, pa.Table]]:
        """Rows by the directory of their day, and by whether they may still change."""
        numbers = rows.column("day").cast(pa.int32())
        for day in pc.unique(numbers).to_pylist():
            if day not in self.wanted:
                continue
            chosen = pc.is_null(numbers) if day is None else pc.equal(numbers, day)
            found = rows.filter(pc.fill_null(chosen, fill_value=False))
            may_change = pc.fill_null(_may_change(table, found, self.horizon), fill_value=False)
            for is_open, flags in ((False, pc.invert(may_change)), (True, may_change)):
                part = found.filter(flags)
                if part.num_rows:
                    yield directory_of(day), is_open, part


def _may_change(table: str, rows: pa.Table, horizon: int) -> Any:
    """Which rows later records can change."""
    if is_still_open(rows):
        return pa.repeat(pa.scalar(True), rows.num_rows)
    tells = _OPEN.get(table)
    return pa.repeat(pa.scalar(False), rows.num_rows) if tells is None else tells(rows, horizon)


def _lasts(rows: pa.Table, horizon: int) -> Any:
    """Entries that are valid still, or will be until they expire unless they are renewed."""
    ends = rows.column("valid_to")
    beyond = pc.greater(ends.cast(pa.int64()), horizon)
    return pc.or_(pc.is_null(ends), pc.fill_null(beyond, fill_value=False))


def _lacks(name: str) -> Callable[[pa.Table, int], Any]:
    return lambda rows, _: pc.is_null(rows.column(name))


def _waits(rows: pa.Table, _: int) -> Any:
    return pc.equal(rows.column("actual"), "QUEUED")


_OPEN: Final[Mapping[str, Callable[[pa.Table, int], Any]]] = {
    "route_history": _lasts,
    "subscription_history": _lasts,
    "session_history": _lacks("closed_at"),
    "coverage": _lacks("ended_by"),
    "audit": _waits,
    "incidents": _lacks("ended"),
}
"""How rows of tables tell that they may still change. Traces are told apart where they are made."""

ENDS: Final[Mapping[str, tuple[str, str]]] = {
    "route_history": ("valid_to", "valid_to"),
    "subscription_history": ("valid_to", "valid_to"),
    "session_history": ("closed_at", "closed_at"),
    "coverage": ("to_time", "ended_by"),
}
"""The tables of what lasts: the columns with its end, and that is null as long as it has none."""


# What is known of the journal


class Span(Struct, frozen=True, array_like=True):
    """A file of a journal: its size, the days of its rows, and its first and last record."""

    size: int
    days: list[int]
    first: int
    last: int
    seen: int = 0  # the number of the first build that it was there for


class BuiltDay(Struct, frozen=True):
    """A day that was built."""

    build: int  # its number
    begins: int  # the first record that the journal had then


class State(Struct, frozen=True):
    """What `_state/days.json` says."""

    days: dict[str, BuiltDay] = {}
    files: dict[str, Span] = {}  # of the journal, relative to its directory
    unfinished: list[str] = []  # days of a build that may have been killed while it published
    builds: int = 0  # how many there were
    version: int = 1

    @property
    def built(self) -> dict[int, BuiltDay]:
        """The days that were built, by their numbers."""
        return {day_number(text): built for text, built in self.days.items()}


def read_state(out: str) -> State | None:
    """What is known of the tables at a place; None if they are not kept by day."""
    return read_told(out, DAYS, State, rule="SP-6")


def checked_state(out: str) -> State:
    """What is known of the days at a place; raises a LocalError if whole tables are there."""
    state = read_state(out)
    if state is not None:
        return state
    build = read_build(out)
    system, path = file_system(out)
    are_there = any(exists(system, f"{path}/{table}") for table in TABLES)
    if bool(build.tables) if build is not None else are_there:
        raise LocalError(
            f"the tables in {out} are not kept by day",
            rule="SP-6",
            hint="give another directory for days, or build all of it without days",
        )
    return State()


def refuse_days(out: str) -> None:
    """Raise a LocalError if tables are kept by day: a build of all would replace what is kept."""
    if read_state(out) is not None:
        raise LocalError(
            f"the tables in {out} are kept by day",
            rule="SP-6",
            hint="give --day or --changed, or another directory",
        )


def write_state(out: str, state: State) -> None:
    """Say it."""
    system, path = file_system(out)
    with complaining(out, "write to"):
        write_whole(system, f"{path}/{DAYS}", msgspec.json.encode(state))


class Files(Struct, frozen=True):
    """The files of a journal, and when their records were made."""

    spans: dict[str, Span]
    build: int  # the number of this build
    begins: int = 0  # the first record

    @classmethod
    def of(cls, listing: Listing, state: State) -> Files:
        """Those of a listing; only files that are not known yet are looked at."""
        number = state.builds + 1
        system, directory = locate(listing.root)
        every = [
            (table, file)
            for tables in listing.nodes.values()
            for table, files in tables.items()
            for file in files
        ]

        def look(found: tuple[str, File]) -> Span:
            table, file = found
            former = state.files.get(file.path)
            if former is not None and former.size == file.size:
                return former
            new = _span(system, f"{directory}/{file.path}", table, file.size)
            return replace(new, seen=number)

        with ThreadPoolExecutor(_LOOKED_AT_ONCE) as pool:
            spans = list(pool.map(look, every))
        begins = [
            max(span.first, file.incarnation * 1_000 - DAY)
            for (_, file), span in zip(every, spans, strict=True)
            if span.days
        ]
        told = {file.path: span for (_, file), span in zip(every, spans, strict=True)}
        return cls(told, number, min(begins, default=0))

    @property
    def days(self) -> set[int]:
        """The days with records."""
        return {day for span in self.spans.values() for day in span.days}

    @property
    def horizon(self) -> int:
        """The last record."""
        return max((span.last for span in self.spans.values()), default=0)

    def is_pruned(self, day: int, built: BuiltDay) -> bool:
        """Whether records that a day was made of are no longer there."""
        return self.begins > built.begins and self.begins > (day - 1) * DAY

    def changed(self, state: State) -> set[int]:
        """The days that are new, or that files belong to which came after they were built.

        Files that are no longer there change nothing. Routes, subscriptions, sessions and so on
        hold from then on; a message is of its day.
        """
        built = state.built
        first = min((found.build for found in built.values()), default=0)
        late = [
            (path, span) for path, span in self.spans.items() if span.seen > first and span.days
        ]
        return {
            day
            for day in self.days
            if day not in built
            or (
                not self.is_pruned(day, built[day])
                and any(
                    span.seen > built[day].build and _touches(path, span, day)
                    for path, span in late
                )
            )
        }


def _touches(path: str, span: Span, day: int) -> bool:
    if path.partition("/")[0] in _ALONE:
        return day in span.days
    return span.days[0] <= day


def _span(system: Any, path: str, table: str, size: int) -> Span:
    """When the records of a file were made; a file that cannot be read has none."""
    names = ["at", "received_at"] if table == MESSAGES else ["at"]
    try:
        sealed = SealedFile(system, path)
        try:
            return _span_of(sealed, [name for name in names if name in sealed.schema.names], size)
        finally:
            sealed.close()
    except UNREADABLE:
        return Span(size, [], 0, 0)


def _span_of(sealed: SealedFile, names: list[str], size: int) -> Span:
    if "at" not in names:
        return Span(size, [], 0, 0)
    groups = [sealed.footer.row_group(number) for number in range(sealed.footer.num_row_groups)]
    bounds = {name: [instant_bounds(group, name) for group in groups] for name in names}
    known = [found for told in bounds.values() for found in told if found is not None]
    if known and len(known) == len(groups) * len(names):
        low, high = min(low for low, _ in known), max(high for _, high in known)
        if low >= 0 and high <= LAST and high // DAY - low // DAY < _MANY:
            ats = [found for found in bounds["at"] if found is not None]
            days = list(range(low // DAY, high // DAY + 1))
            return Span(size, days, min(ats)[0], max(high for _, high in ats))
    rows = sealed.read(names)
    instants = [
        pc.drop_null(rows.column(name)).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        for name in names
    ]
    if not len(instants[0]):
        return Span(size, [], 0, 0)
    numbers = {day for values in instants for day in _days_in(values)}
    told = pc.min_max(instants[0])
    return Span(size, sorted(numbers), told["min"].as_py(), told["max"].as_py())


def _days_in(instants: pa.ChunkedArray) -> list[int]:
    """The days of instants, without those that are impossible."""
    possible = pc.and_(pc.greater_equal(instants, 0), pc.less_equal(instants, LAST))
    found: list[int] = pc.unique(pc.divide(instants.filter(possible), DAY)).to_pylist()
    return found
