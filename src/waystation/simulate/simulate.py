"""`simulate`: the journal of a simulated fleet, written by Spark, and what really happened in it.

Spark distributes the cells of the fleet; each task writes the journal of its nodes as live nodes
would (fleet_journal.py). Beside it is what a journal cannot know: the true fate of each copy of
each message, and the faults behind the losses (fleet_truth.py). `score` compares the pipeline's
findings with that.

    JOURNAL/_truth/fleet.json              the requested size, and the number of rows
    JOURNAL/_truth/copies/<cell>.parquet   how each copy ended
    JOURNAL/_truth/faults/<cell>.parquet   what went wrong, and the messages lost by it

Names that start with `_` are invisible to readers of the journal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from waystation.errors import LocalError, quote
from waystation.journal.schema import SCHEMAS
from waystation.locations import local_directory
from waystation.pipeline.shipping import check_shared
from waystation.pipeline.spark_session import ship
from waystation.simulate.fleet import Fleet, Otherwise
from waystation.simulate.journal import TRUTH, CellWriter, copies_path, faults_path, prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_TASKS: Final = 4_096
NOTHING: Final = Otherwise()
_LOOK_SECONDS: Final = 0.2


class Simulated(Struct, frozen=True):
    """What a simulation wrote: the rows of each table of the journal, and the number of losses."""

    journal: str
    nodes: int
    rows: dict[str, int]
    losses: int


def simulate(
    spark: SparkSession,
    out: str | Path,
    *,
    nodes: int,
    participants: int,
    messages: int,
    seed: int = 0,
    gaps: bool = False,
    otherwise: Otherwise | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """Write the journal of a simulated fleet, and what really happened in it.

    The same numbers and the same seed give the same rows, whatever number of tasks write them.
    `out` must be new, and every executor must be able to write there. With `gaps` some nodes have
    no journal, or only a sample, or lost the last second before a crash. `otherwise` is what is
    different in a second fleet of the same seed. `progress` is called now and then with the number
    of parts that are done, and of all parts.
    """
    directory = local_directory(out, "a simulated journal").absolute()
    _check(directory, nodes=nodes, participants=participants, messages=messages)
    fleet = Fleet(nodes, participants, messages, seed, gaps=gaps, otherwise=otherwise or NOTHING)
    prepare(directory)
    ship(spark)
    check_shared(spark, write=[path(directory, 0).parent for path in (copies_path, faults_path)])
    cells = spark.range(0, fleet.cells, 1, min(fleet.cells, MAX_TASKS))
    written = cells.mapInArrow(_Task(fleet, str(directory)), "table string, rows long")
    rows = dict.fromkeys([*SCHEMAS, "copies", "losses"], 0)
    with _telling(progress, directory, fleet.cells):
        for row in written.groupBy("table").sum("rows").collect():
            rows[row[0]] = row[1]
    lost, copies = rows.pop("losses"), rows.pop("copies")
    done = Simulated(str(directory), nodes, rows, lost)
    told = {**msgspec.to_builtins(fleet), "rows": rows, "copies": copies, "losses": lost}
    (directory / TRUTH / "fleet.json").write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    return done


@contextmanager
def _telling(
    progress: Callable[[int, int], None] | None, directory: Path, cells: int
) -> Iterator[None]:
    """Report how far the tasks are, judging by the files that they have written."""
    if progress is None:
        yield
        return
    tell, over = progress, Event()

    def look() -> None:
        copies = copies_path(directory, 0).parent
        while not over.wait(_LOOK_SECONDS):
            tell(sum(not path.name.startswith(".") for path in copies.iterdir()), cells)

    watcher = Thread(target=look, name="waystation simulate", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    tell(cells, cells)


def _check(directory: Path, *, nodes: int, participants: int, messages: int) -> None:
    if nodes < 2 or participants < 0 or messages < 0:
        raise LocalError(
            f"invalid fleet: {nodes} nodes, {participants} participants, {messages} messages",
            rule="SP-2",
            hint="give at least 2 nodes: a hub and a leaf",
        )
    if directory.exists() and any(directory.iterdir()):
        raise LocalError(
            f"{quote(str(directory))} is not empty",
            rule="SP-2",
            hint="give a new directory",
        )


class _Task:
    """The function that Spark runs: it takes numbers of cells, and writes their journals."""

    def __init__(self, fleet: Fleet, directory: str) -> None:
        self._fleet = fleet
        self._directory = directory

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = CellWriter(self._fleet, number, Path(self._directory)).write()
                yield pa.RecordBatch.from_pydict(
                    {"table": list(rows), "rows": pa.array(rows.values(), pa.int64())}
                )


class Tally(Struct, frozen=True):
    """Copies lost by one cause: their number, of those found, and of those with the right cause."""

    lost: int
    found: int
    right: int


class Score(Struct, frozen=True):
    """The findings of the pipeline compared with the truth, cause by cause."""

    causes: dict[str, Tally]

    def _total(self, field: str) -> int:
        return sum(getattr(tally, field) for tally in self.causes.values())

    @property
    def precision(self) -> float:
        """The share of the findings that are right."""
        return self._total("right") / max(self._total("found"), 1)

    @property
    def recall(self) -> float:
        """The share of the losses that were found."""
        return self._total("right") / max(self._total("lost"), 1)


def findings(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Why each lost copy was lost, according to the tables: message_id, node, cause.

    A copy was dropped if `audit` shows DROPPED, and vanished if no visit of its trace came from
    where it was sent. If there was no route, `route_history` and `session_history` have the cause.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    dropped = tables["audit"].where("actual = 'DROPPED' AND reason <> 'DUPLICATE'")
    no_route = dropped.where("reason = 'NO_ROUTE'").select("message_id", "node", "recipient")
    entered = tables["expected"].where("reason = 'NO_ROUTE'")
    asked = no_route.join(entered, ["message_id", "node", "recipient"])
    history = tables["route_history"].select(
        "node", f.col("participant").alias("recipient"), "valid_to", "closed_by"
    )
    sessions = tables["session_history"].select("node", f.col("session").alias("recipient"))
    sessions = sessions.distinct().withColumn("closed", f.lit("closed"))
    before = asked.join(history, ["node", "recipient"], "left")
    before = before.join(sessions, ["node", "recipient"], "left")
    past = f.col("valid_to") <= f.col("at")
    ended = f.max_by(f.when(past, f.col("closed_by")), f.when(past, f.col("valid_to")))
    why = f.coalesce(ended, f.first("closed"), f.lit("never"))
    routes = before.groupBy("message_id", "node", "recipient").agg(
        f.concat(f.lit("NO_ROUTE, "), why).alias("cause")
    )
    others = dropped.where("reason <> 'NO_ROUTE'")
    return (
        routes.select("message_id", "node", "cause")
        .unionByName(others.select("message_id", "node", f.col("reason").alias("cause")))
        .unionByName(_vanished(tables["traces"]))
    )


def _vanished(traces: DataFrame) -> DataFrame:
    """Copies that left for a node where the message did not come from there."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    gone = f.expr(
        "filter(path, left -> left.outcome = 'FORWARDED' AND left.next_node IS NOT NULL AND NOT "
        "exists(path, came -> came.node = left.next_node AND came.from_node <=> left.node))"
    )
    return traces.select("message_id", f.explode(gone).alias("left")).select(
        "message_id", f.col("left.node").alias("node"), f.lit("VANISHED").alias("cause")
    )


def score(spark: SparkSession, journal: str | Path, tables: str | Path) -> Score:
    """Compare what `build` found in a simulated journal with the truth beside it."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    names = ("audit", "expected", "route_history", "session_history", "traces")
    found = findings({name: spark.read.parquet(_shared(tables, name)) for name in names})
    truth = spark.read.parquet(_shared(journal, f"{TRUTH}/copies"))
    truth = truth.where("outcome <> 'DELIVERED' AND reason <> 'DUPLICATE'")
    cause = f.concat_ws(", ", "reason", "detail").alias("cause")
    keys = ["message_id", "node", "cause"]
    lost = truth.select("message_id", "node", cause).groupBy(*keys).agg(f.count("*").alias("lost"))
    both = lost.join(found.groupBy(*keys).agg(f.count("*").alias("found")), keys, "full")
    both = both.na.fill(0, ["lost", "found"])
    by_cause = both.groupBy("cause").agg(
        f.sum("lost"), f.sum("found"), f.sum(f.least("lost", "found"))
    )
    return Score({row[0]: Tally(*row[1:]) for row in sorted(by_cause.collect())})


def _shared(directory: str | Path, table: str) -> str:
    """The absolute URI of a directory: the executors' default file system may be another one."""
    return f"file://{Path(directory).absolute() / table}"
