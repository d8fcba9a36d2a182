"""Build days of tables, each alone or several together, beside the days that are there (SP-6).

What is written of a day are the rows that a build of the whole journal would have on it. Little is
read for that: of messages the day itself, and as far around it as those that are under way at
midnight reach; other tables, which are small, from the beginning. With a day, what is there of
other days is written again where its records may tell more: intervals that lasted until then,
traces of messages that were under way, what waited, and losses with their incidents.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from waystation.core.message import NO_ID
from waystation.core.visits import DAY
from waystation.errors import LocalError
from waystation.journal.filesystems import file_system
from waystation.journal.schema import MESSAGES, TEXT
from waystation.pipeline.days import (
    ENDS,
    BuiltDay,
    Days,
    Files,
    State,
    checked_state,
    day_of_file,
    day_text,
    directory_of,
    runs,
    span_of,
    write_state,
)
from waystation.pipeline.journal import Journal
from waystation.pipeline.kernels.node_data import FileData
from waystation.pipeline.making import built, made, rows_beside
from waystation.pipeline.steps import health_of_journal, traces_by_state
from waystation.pipeline.store import PartFile, Store
from waystation.pipeline.surveying import known_of
from waystation.pipeline.tables import BY_NAME, LONG, STORED, TABLES, Table, maker, passes
from waystation.pipeline.work import mapped
from waystation.pipeline.writing import write_days, write_empty

_LIGHT: Final = pa.schema({"message_id": TEXT, "at": LONG, "received": LONG, "answers": TEXT})
_JUDGED: Final = ("expected", "audit")
_EXPLAINED: Final = ("losses", "incidents")

Tell = Callable[[str, int, float], None]
"""Is told of a table: its name, and its rows and seconds when it is complete, else -1."""


class Asked(Struct, frozen=True):
    """Which days are built, and which are kept."""

    days: frozenset[int] = frozenset()
    changed: bool = False  # those that are new, or whose files changed
    keep: int | None = None  # so many days; earlier ones are removed
    lookahead: int | None = None  # microseconds after the last day; records beyond are not read


class DaysDone(Struct, frozen=True):
    """What was done."""

    days: list[str]
    removed: list[str]
    rows: dict[str, int]
    bytes: dict[str, int]
    seconds: dict[str, float]


def build_days(journal: Journal, store: Store, asked: Asked, tell: Tell) -> DaysDone:
    """Build days of all tables, and publish them together."""
    state = checked_state(store.out)
    files = Files.of(journal.listing, state)
    plan = _Plan.of(state, files, asked)
    if not plan.days and not plan.removed:
        return DaysDone([], [], {}, {}, {})
    work = _Work(journal, store, plan, files, _horizon(plan, asked))
    try:
        done = work.run(tell)
    finally:
        work.release()
    begun = replace(state, unfinished=sorted(map(day_text, plan.days)))
    write_state(store.out, begun)
    store.publish_days(work.files, work.gone())
    write_state(store.out, plan.state(state, files))
    return done


def _horizon(plan: _Plan, asked: Asked) -> int | None:
    days = {*plan.days, *plan.built}
    if asked.lookahead is None or not days:
        return None
    return (max(days) + 1) * DAY + asked.lookahead


class _Plan(Struct, frozen=True):
    """The days that are built, those that are there, and those that are removed."""

    days: frozenset[int]
    built: frozenset[int]  # before, and kept
    refreshed: frozenset[int]  # of those: may be written again, since the journal has all of them
    removed: frozenset[int]

    @classmethod
    def of(cls, state: State, files: Files, asked: Asked) -> _Plan:
        built = state.built
        pruned = {day for day, found in built.items() if files.is_pruned(day, found)}
        for day in sorted(asked.days & pruned):
            raise LocalError(
                f"the journal no longer has all records of {day_text(day)}",
                rule="SP-6",
                hint="that day is left as it was built",
            )
        days = set(asked.days)
        if asked.changed:
            days |= files.changed(state)
        first = _first_kept({*days, *built}, asked.keep)
        unfinished = set(State(days=dict.fromkeys(state.unfinished, BuiltDay(0, 0))).built)
        days = {day for day in days | (unfinished - pruned) if day >= first}
        removed = frozenset(day for day in built if day < first)
        kept = frozenset(built) - removed
        return cls(frozenset(days), kept, kept - pruned, removed)

    def state(self, former: State, files: Files) -> State:
        """What is known when all is published."""
        days = {day_text(day): found for day, found in former.built.items() if day in self.built}
        days |= {day_text(day): BuiltDay(files.build, files.begins) for day in self.days}
        return State(dict(sorted(days.items())), files.spans, builds=files.build)


def _first_kept(days: Collection[int], keep: int | None) -> int:
    """The first day that is kept; days ahead of the clock are those of damaged records."""
    today = int(datetime.now(UTC).timestamp()) // 86_400
    past = [day for day in days if day <= today + 1]
    return min([*days, 0]) if keep is None or not past else max(past) - keep + 1


class _Work:
    """The work for days of all tables."""

    def __init__(
        self, journal: Journal, store: Store, plan: _Plan, files: Files, until: int | None
    ) -> None:
        self._spark, self._listing = journal.spark, journal.listing
        self._wanted = replace(journal.wanted, until=until)
        self._whole = self._view()
        self._store, self._plan, self._span = store, plan, files
        self._end = files.horizon if until is None else min(files.horizon, until)
        self._before = {table: store.stored(table) for table in TABLES}
        self._places: dict[str, str] = {}
        self._days: dict[str, frozenset[int | None]] = {}
        self._windows: dict[tuple[int, ...], tuple[tuple[int, int], set[int]]] = {}
        self._held: dict[str, DataFrame] = {}
        self.files: dict[str, list[PartFile]] = {}

    def _view(self, **limits: Any) -> Journal:
        """The journal with other limits."""
        return Journal(self._spark, self._listing, replace(self._wanted, **limits))

    def release(self) -> None:
        """Let go of what was held for several tables."""
        for frame in self._held.values():
            frame.unpersist()

    def gone(self) -> dict[str, set[str]]:
        """The directories of each table that are replaced or removed."""
        removed = self._plan.removed
        return {
            table: {directory_of(day) for day in (*days, *removed)}
            for table, days in self._days.items()
        }

    def run(self, tell: Tell) -> DaysDone:
        """Write all tables."""
        seconds: dict[str, float] = {}
        for group in passes(TABLES):
            began = time.monotonic()
            for table in group:
                tell(table.name, -1, 0.0)
                self._prepare(table.name)
            if self._plan.days:
                self._write(group)
            for table in group:
                self._complete(table.name)
                seconds[table.name] = (time.monotonic() - began) / len(group)
                tell(table.name, self._rows(table.name), seconds[table.name])
        return DaysDone(
            sorted(map(day_text, self._plan.days)),
            sorted(map(day_text, self._plan.removed)),
            {table: self._rows(table) for table in TABLES},
            {table: sum(file.size for file in self.files[table]) for table in TABLES},
            seconds,
        )

    def _rows(self, table: str) -> int:
        return sum(file.rows for file in self.files[table])

    def _prepare(self, table: str) -> None:
        days = frozenset(self._days_of(table)) if self._plan.days else frozenset[int | None]()
        self._days[table], self.files[table] = days, []
        self._places[table] = self._store.prepare_days(table, map(directory_of, days))

    def _complete(self, table: str) -> None:
        """Let each day have a file, which tells the columns."""
        there = {file.name.partition("/")[0] for file in self.files[table]}
        for day in self._days[table] - {None}:
            if directory_of(day) not in there:
                self.files[table] += write_empty(table, self._places[table], directory_of(day))
        self._store.keep(table, self.files[table])

    # Which days of a table are written

    def _days_of(self, table: str) -> set[int | None]:
        days: set[int | None] = set(self._plan.days)
        if table == "rejects":
            return days | {None}
        if table in _EXPLAINED:
            return days | self._plan.refreshed
        more: set[int] = set()
        if table in ENDS:
            more |= self._lasting(table)
        if table in _JUDGED:
            more |= self._waiting("audit")
        if table == "traces":
            more |= self._waiting("traces")
            for run in runs(self._plan.days):
                more |= self._window(run)[1]
        return days | (more & self._plan.refreshed)

    def _waiting(self, table: str) -> set[int]:
        """The days with rows that any record may change."""
        paths = [path for path in self._before[table] if "/open-" in path]
        return {day for path in paths if (day := day_of_file(path)) is not None}

    def _lasting(self, table: str) -> set[int]:
        """The days with intervals that had not ended when the first of the days began."""
        since = min(self._plan.days) * DAY
        found: set[int] = set()
        for path in self._before[table]:
            day = day_of_file(path)
            if day is not None and day not in found and _lasts(path, *ENDS[table], since):
                found.add(day)
        return found

    def _window(self, run: list[int]) -> tuple[tuple[int, int], set[int]]:
        """When all rows were made of the messages on some days, and the days these are of."""
        key = tuple(run)
        if key not in self._windows:
            self._windows[key] = self._found_window(*span_of(run))
        return self._windows[key]

    def _found_window(self, low: int, high: int) -> tuple[tuple[int, int], set[int]]:
        back = ahead = 2 * DAY
        while True:
            view = self._view(received=(low, high), at=(low - back, high + ahead))
            first, last, days = _related(view, low, high)
            may_be_before = first < low - back + DAY and self._span.begins < low - back
            may_be_after = last >= high + ahead - DAY and self._end >= high + ahead
            if not may_be_before and not may_be_after:
                return (min(first, low), max(last + 1, high)), days
            back, ahead = back * (1 + may_be_before), ahead * (1 + may_be_after)

    # How they are written

    def _write(self, group: tuple[Table, ...]) -> None:
        names = [table.name for table in group]
        table = names[0]
        if table in _JUDGED:
            for run in runs(self._known_days(table)):
                view = self._view(received=span_of(run))
                self._take(made(view, group), names, run)
        elif table == "traces":
            known = known_of(self._whole)
            for run in runs(self._known_days(table)):
                window, _ = self._window(run)
                view = self._view(received=span_of(run), at=window)
                self._take(traces_by_state(view.messages, known), names, run)
        elif table == "health":
            for run in runs(self._plan.days):
                self._take(health_of_journal(self._view(at=span_of(run))), names, run)
        elif table in _EXPLAINED:
            self._take(maker(BY_NAME[table].made_by)(self._whole, self._table), names)
        else:
            view = self._view(begun=span_of(self._plan.days))
            beside = {one.name: rows_beside(view, one) for one in group}
            self._take(made(view, group), names, beside=beside)

    def _known_days(self, table: str) -> list[int]:
        return [day for day in self._days[table] if day is not None]

    def _take(
        self,
        frame: DataFrame,
        tables: Iterable[str],
        run: Iterable[int] | None = None,
        beside: Mapping[str, pa.Table] | None = None,
    ) -> None:
        places = {table: self._places[table] for table in tables}
        wanted = {
            table: Days(self._days[table] if run is None else frozenset(run), self._end)
            for table in places
        }
        for table, files in write_days(frame, places, wanted, beside).files.items():
            self.files[table] += files

    def _table(self, name: str) -> DataFrame:
        """Another table: of traces those of all days that are there, of others all of it."""
        if name != "traces":
            if name not in self._held:  # statements take them several times
                self._held[name] = built(self._whole, name).cache()
            return self._held[name]
        replaced = self.gone()[name]
        kept = [path for path in self._before[name] if path.split("/")[-2] not in replaced]
        paths = [*kept, *self._store.written(name, self.files[name])]
        return _rows_in(self._spark, name, paths)


def _lasts(path: str, end: str, ended: str, since: int) -> bool:
    """Whether a file has an interval that has no end yet, or ends at or after an instant."""
    system, place = file_system(path)
    rows = pq.read_table(
        place, filesystem=system, columns=[*dict.fromkeys((end, ended))], partitioning=None
    )
    beyond = pc.greater_equal(rows.column(end).cast(pa.int64()), since)
    found = pc.or_kleene(pc.is_null(rows.column(ended)), beyond)
    return bool(pc.any(pc.fill_null(found, fill_value=False)).as_py())


def _rows_in(spark: SparkSession, table: str, paths: list[str]) -> DataFrame:
    """The rows of files of a table that is kept by day."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                system, place = file_system(paths[number])
                day = pa.scalar(day_of_file(paths[number]), pa.int32())
                with system.open_input_file(place) as file:
                    for rows in pq.ParquetFile(file).iter_batches():
                        days = pa.repeat(day, rows.num_rows).view(pa.date32())
                        found = pa.Table.from_batches([rows]).append_column("day", days)
                        yield found.select(STORED[table].names)

    return mapped(spark.range(0, len(paths), 1, max(len(paths), 1)), read, STORED[table])


def _related(journal: Journal, low: int, high: int) -> tuple[int, int, set[int]]:
    """The messages with a row in a span, or received in it, with their requests and answers.

    Returns their first and their last row, and the days when they were received.
    """

    def read(data: FileData) -> Iterator[pa.Table]:
        for rows in data.coded_batches(MESSAGES):
            known = rows.filter(pc.not_equal(rows.column("message_id"), NO_ID))
            columns = {
                "message_id": known.column("message_id"),
                "at": known.column("at").cast(pa.int64()),
                "received": known.column("received_at").cast(pa.int64()),
                "answers": known.column("answers").cast(TEXT),
            }
            yield pa.table(columns).cast(_LIGHT)

    inside = " OR ".join(f"({name} >= {low} AND {name} < {high})" for name in ("at", "received"))
    ids = (
        journal.work((MESSAGES,), read, _LIGHT)
        .groupBy("message_id")
        .agg(
            f.min("at").alias("low"),
            f.max("at").alias("high"),
            f.collect_set(f.expr(f"received div {DAY}")).alias("days"),
            f.max("answers").alias("answers"),
            f.max(f.expr(inside)).alias("touched"),
        )
        .cache()
    )
    try:
        touched = ids.where("touched")
        asked = touched.selectExpr("answers AS message_id").where("message_id IS NOT NULL")
        answering = touched.selectExpr("message_id AS answers")
        related = touched.unionByName(ids.join(asked, "message_id", "left_semi")).unionByName(
            ids.join(answering, "answers", "left_semi").select(*ids.columns)
        )
        days = f.array_distinct(f.flatten(f.collect_set("days")))
        [found] = related.agg(f.min("low"), f.max("high"), days).collect()
    finally:
        ids.unpersist()
    if found[0] is None:
        return low, high - 1, set()
    return int(found[0]), int(found[1]), set(found[2])
