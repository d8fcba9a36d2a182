"""`watch`: Structured Streaming reports the files of a journal as they appear, batch by batch.

The stream consists of files, not of rows: Spark lists the journal, remembers in its checkpoint what
it has reported, and limits the number of files at a time. engine.py processes them,
whoever reports them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from waystation.errors import LocalError, quote
from waystation.locations import local_directory
from waystation.pipeline.listing import Wanted, list_journal, locate
from waystation.pipeline.shipping import check_executors, check_shared, is_connect, is_local
from waystation.pipeline.spark_session import session, ship
from waystation.pipeline.store import PARQUET, check_format, prepared_directory
from waystation.pipeline.watching.alerts import Alerts, Watchman
from waystation.pipeline.watching.engine import Batch, Engine, Run, Task

FILES_AT_ONCE: Final = 1_000
EVERY_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.1
_MOST_BUCKETS: Final = 64
_FILE: Final = "path string, modificationTime timestamp, length long, content binary"


class Watched(Struct, frozen=True):
    """The result of a watch, from its start to its end."""

    batches: int
    files: int
    rows: int
    messages: int
    dropped: dict[str, int]
    rejected: int
    seconds: float
    out: str


def watch(
    journal: str | Path,
    out: str | Path,
    checkpoint: str | Path,
    *,
    spark: SparkSession | None = None,
    once: bool = False,
    every: float = EVERY_SECONDS,
    files_at_once: int = FILES_AT_ONCE,
    alerts: Alerts | None = None,
    progress: Callable[[Batch], None] | None = None,
    stop: threading.Event | None = None,
) -> Watched:
    """Keep the tables in `out` up to date with a journal that grows, until `stop` is set.

    After each batch they hold what `build` would make of the same files (SP-3). A batch takes
    the files sealed since the last one, every `every` seconds, at most `files_at_once`. With `once`
    it ends when the existing files are processed. `checkpoint` keeps the progress: after a crash it
    continues from there, without gaps or duplicates.

    ```text
    pipeline.watch("journal/", "tables/", "checkpoint/", progress=print)
    ```
    """
    _check(every=every, files_at_once=files_at_once)
    root = str(local_directory(journal, "a journal that watch follows").absolute())
    place = local_directory(checkpoint, "the progress of watch")
    tables = local_directory(out, "tables that watch keeps up to date")
    check_format(str(tables), PARQUET)
    found = spark if spark is not None else session()
    _reach_executors(found, root, tables)
    engine = Engine(root, tables, place, runs_on(found), buckets=_buckets(found))
    began = time.monotonic()
    try:
        _check_checkpoint(engine, place / "spark")
        watchman = None
        if alerts is not None:
            told = place / "alerts.json"
            watchman = Watchman(alerts, tables=str(Path(out).absolute()), remembered=told)
        taking = _Taking(engine, root, watchman, progress)
        if is_connect(found):
            _look(taking, stop or threading.Event(), once=once, every=every)
        else:
            _listen(
                found,
                taking,
                place / "spark",
                stop or threading.Event(),
                once,
                every,
                files_at_once,
            )
    finally:
        engine.close()
    return taking.summary(str(tables), time.monotonic() - began)


class _Taking:
    """Processes batches, one at a time, and reports each."""

    def __init__(
        self,
        engine: Engine,
        root: str,
        watchman: Watchman | None,
        progress: Callable[[Batch], None] | None,
    ) -> None:
        self._engine = engine
        self._directory = locate(root)[1]
        self.root = root
        self._watchman = watchman
        self._progress = progress
        self._totals: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._busy = threading.Lock()
        self._over = False
        self.error: BaseException | None = None

    def listed(self) -> list[str]:
        """All files that the journal has now."""
        listing = list_journal(self.root, Wanted())
        return [*listing.files(), *(stray.path for stray in listing.strays)]

    def take_frame(self, frame: DataFrame, number: int) -> None:
        """Process the files that Spark reports; Spark's batch number is not used."""
        del number
        try:
            mark = f"{self._directory}/"
            self.take([row[0].rpartition(mark)[2] for row in frame.collect()])
        except BaseException as error:
            self.error = self.error or error
            raise

    def take(self, paths: list[str]) -> None:
        """Process these files, unless the watch has ended."""
        with self._busy:
            if self._over:
                raise _OverError
            batch = self._engine.take_in(paths)
            if batch is None:
                return
            self._totals.update(
                batches=1,
                files=batch.files,
                rows=batch.rows,
                messages=batch.messages,
                rejected=batch.rejected,
            )
            self._dropped.update(batch.dropped)
            if self._progress is not None:
                self._progress(batch)
            if self._watchman is not None:
                self._watchman.look_at(batch)

    def end(self) -> None:
        """Wait for the current batch, and process no more."""
        with self._busy:
            self._over = True

    def summary(self, out: str, seconds: float) -> Watched:
        """The result of all batches."""
        totals = self._totals
        return Watched(
            totals["batches"],
            totals["files"],
            totals["rows"],
            totals["messages"],
            dict(self._dropped.most_common()),
            totals["rejected"],
            seconds,
            out,
        )


class _OverError(Exception):
    """A batch began after the end of the watch; Spark will report it again."""


def runs_on(spark: SparkSession) -> Run:
    """Let Spark run the tasks, each on its own."""

    def run(task: Task, orders: list[bytes]) -> list[bytes]:
        if not orders:
            return []

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    result = pa.array([task(orders[number])], pa.binary())
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([number]), result], ["number", "done"]
                    )

        numbers = spark.range(0, len(orders), 1, len(orders))
        rows = numbers.mapInArrow(work, "number long, done binary").collect()
        results = {row[0]: bytes(row[1]) for row in rows}
        return [results[number] for number in range(len(orders))]

    return run


def _listen(
    spark: SparkSession,
    taking: _Taking,
    checkpoint: Path,
    stop: threading.Event,
    once: bool,
    every: float,
    files_at_once: int,
) -> None:
    """Let Spark report new files until the end."""
    files = (
        spark.readStream.format("binaryFile")
        .schema(_FILE)
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", files_at_once)
        .option("maxFileAge", "36500d")  # a late file counts like any other
        .load(taking.root)
        .select("path")  # so that no content is read
    )
    writer = files.writeStream.option("checkpointLocation", str(checkpoint))
    writer = writer.foreachBatch(taking.take_frame)
    timed: dict[str, Any] = {"processingTime": f"{max(every, _LOOK_SECONDS)} seconds"}
    with _listing_here(spark):
        query = writer.trigger(**({"availableNow": True} if once else timed)).start()
        try:
            while query.isActive and not stop.wait(_LOOK_SECONDS):
                pass
        finally:
            taking.end()
            query.stop()
    failed = query.exception()
    if taking.error is not None and not isinstance(taking.error, _OverError):
        raise taking.error
    if failed is not None and taking.error is None:
        raise failed


@contextmanager
def _listing_here(spark: SparkSession) -> Iterator[None]:
    """Let the driver list the journal itself: a job for each listing takes longer."""
    name, many = "spark.sql.sources.parallelPartitionDiscovery.threshold", "100000"
    before = spark.conf.get(name)
    spark.conf.set(name, many)
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(name, before)


def _look(taking: _Taking, stop: threading.Event, *, once: bool, every: float) -> None:
    """List new files here: over Spark Connect, no batch can call back into this program."""
    while not stop.is_set():
        taking.take(taking.listed())
        if once or stop.wait(every):
            return


def _buckets(spark: SparkSession) -> int:
    configured = int(str(spark.conf.get("spark.sql.shuffle.partitions", "200")))
    return max(1, min(configured, _MOST_BUCKETS))


def _reach_executors(spark: SparkSession, journal: str, tables: Path) -> None:
    """Send this package to the executors, and check them and what they see, as for a build."""
    if is_local(spark):
        return
    list_journal(journal, Wanted())  # it says if there is none
    ship(spark)
    check_executors(spark)
    check_shared(spark, read=[journal], write=[Path(prepared_directory(tables))])


def _check(*, every: float, files_at_once: int) -> None:
    if every < 0 or files_at_once < 1:
        raise LocalError(
            f"invalid batches: every {every} s, {files_at_once} files",
            rule="SP-3",
            hint="give 0 or more seconds, and 1 or more files",
        )


def _check_checkpoint(engine: Engine, spark: Path) -> None:
    """Refuse a checkpoint in which Spark knows of files that were not processed."""
    if engine.batch < 0 and any((spark / "commits").glob("[0-9]*")):
        raise LocalError(
            f"the checkpoint {quote(str(spark.parent))} is incomplete: its progress is missing",
            rule="SP-3",
            hint="use a new checkpoint directory; the tables are then rebuilt",
        )
