"""The steps of the pipeline: each is one function from frames to a frame, and can be called alone.

    read_journal ─► route_history ────────┐
        │           subscription_history ─┼─► expected ─► audit
        └─────────► messages ─────────────┴─► traces, health

CONTRACT and docs/reference/tables.md say what a table means; folding.py, deciding.py,
comparing.py and tracing.py compute it. This module only defines inputs and outputs.
With frames directly from `read_journal`, the first five work node by node without a shuffle;
any other frames with the same columns are shuffled by node first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from waystation.core.message import HOP_LIMIT
from waystation.errors import LocalError
from waystation.journal.schema import MESSAGES, NODES, ROUTES, SESSIONS, SUBSCRIPTIONS
from waystation.pipeline.instants import instant
from waystation.pipeline.journal import Journal, Origin, marked, origin_of
from waystation.pipeline.kernels import node_tables
from waystation.pipeline.kernels.answering import ANSWERS, tied
from waystation.pipeline.kernels.columns import coded_name
from waystation.pipeline.kernels.comparing import compare, route_differences
from waystation.pipeline.kernels.deciding import Past, coded_decisions
from waystation.pipeline.kernels.evidence import Facts, Known
from waystation.pipeline.kernels.health import counted, health_of, sums
from waystation.pipeline.kernels.node_data import FileData, FrameData, NodeData, sound_rows
from waystation.pipeline.kernels.normal import normal
from waystation.pipeline.kernels.tracing import (
    PACKED,
    assembled,
    coded_steps,
    packed,
    received_from_answers,
    sent_to_requests,
    together,
    unpacked,
)
from waystation.pipeline.making import built
from waystation.pipeline.surveying import known_of
from waystation.pipeline.tables import BUILT, still_open, table_of
from waystation.pipeline.work import (
    BYTES_PER_TASK,
    PIECES,
    Through,
    checked,
    from_frames,
    gathered,
    mapped,
    pieces,
)

_JUDGED_BY: Final = (MESSAGES, ROUTES, SUBSCRIPTIONS, SESSIONS)
_HISTORIES: Final = ("route_history", "subscription_history", "session_history")

OfNode: TypeAlias = Callable[[NodeData], Iterator[pa.Table]]
"""What a step computes for one node."""


def route_history(routes: DataFrame, nodes: DataFrame | None = None) -> DataFrame:
    """The routing entries of each node with their periods of validity (SP-1).

    `nodes` says when incarnations started and stopped; frames of `read_journal` include it.

    ```text
    history = pipeline.route_history(journal.routes)
    history.where("closed_by = 'expired'").groupBy("participant").count().show()
    ```
    """
    return _history("route_history", ROUTES, routes, nodes, node_tables.route_history)


def subscription_history(subscriptions: DataFrame, nodes: DataFrame | None = None) -> DataFrame:
    """The subscriptions at each node with their periods of validity (SP-2).

    ```text
    pipeline.subscription_history(journal.subscriptions).where("valid_to is null").show()
    ```
    """
    work = node_tables.subscription_history
    return _history("subscription_history", SUBSCRIPTIONS, subscriptions, nodes, work)


def _history(
    built: str, table: str, events: DataFrame, nodes: DataFrame | None, work: OfNode
) -> DataFrame:
    origin = origin_of(events, table)
    if origin is not None and _is_of(nodes, NODES, origin.journal):
        frame = origin.journal.work((table,), work, BUILT[built])
        return marked(frame, Origin(origin.journal, built))
    frames = {table: events} if nodes is None else {table: events, NODES: nodes}
    return from_frames(frames, work, BUILT[built])


def routing_table(history: DataFrame, at: str | datetime, node: str | None = None) -> DataFrame:
    """The rows of a history that were valid at a time: the routing tables at that time.

    Works for `subscription_history` as well.

    ```text
    pipeline.routing_table(history, at="2026-11-15T12:00:00Z", node="truck-7").show()
    ```
    """
    then = f.timestamp_micros(f.lit(instant(at)))
    valid = (f.col("valid_from") <= then) & (
        f.col("valid_to").isNull() | (f.col("valid_to") > then)
    )
    found = history.where(valid)
    return found if node is None else found.where(f.col("node") == node)


def coalesced(history: DataFrame) -> DataFrame:
    """`route_history` without its renewals: a row for each stay of a participant at an address.

    Most rows of the history of a fleet renew an entry that is already there. Here those that follow
    each other without a gap, and differ in their expiry at most, are one row, with the number of
    its `renewals` and the last `expiry`.

    ```text
    pipeline.coalesced(history).where("participant = 'truck-7'").orderBy("valid_from").show()
    ```
    """
    whose = ("node", "incarnation", "participant")
    place = f.struct("address", "local", "visible", "sticky")
    in_order = Window.partitionBy(*whose).orderBy("valid_from")
    renews = (f.lag(place).over(in_order) == place) & (
        f.lag("valid_to").over(in_order) == f.col("valid_from")
    )
    begins = f.when(f.coalesce(renews, f.lit(False)), 0).otherwise(1)
    last = f.max_by(f.struct("expiry", "valid_to", "closed_by"), "valid_from").alias("last")
    return (
        history.withColumn("place", place)
        .withColumn("begins", begins)
        .withColumn("stay", f.sum("begins").over(in_order))
        .groupBy(*whose, "stay")
        .agg(
            f.first("place").alias("place"),
            f.min("valid_from").alias("valid_from"),
            last,
            (f.count(f.lit(1)) - 1).alias("renewals"),
        )
        .select(*whose, "place.*", "valid_from", "last.*", "renewals")
    )


def expected(
    messages: DataFrame,
    route_history: DataFrame,
    subscription_history: DataFrame,
    session_history: DataFrame | None = None,
    *,
    hop_limit: int = HOP_LIMIT,
) -> DataFrame:
    """The outcome that the rules require for each message that entered a node (SP-2).

    Broadcasts of version 2 also go to parents and global transports, which `session_history` tells;
    with frames directly from `read_journal` it is always included.

    ```text
    subscriptions = pipeline.subscription_history(journal.subscriptions)
    expected = pipeline.expected(journal.messages, history, subscriptions)
    ```
    """
    if hop_limit < 1:
        raise LocalError(f"invalid hop limit {hop_limit}", rule="WK-11", hint="give 1 or more")

    histories = {
        "route_history": route_history,
        "subscription_history": subscription_history,
        **({} if session_history is None else {"session_history": session_history}),
    }
    journal = _same_journal((messages, MESSAGES), *((frame, n) for n, frame in histories.items()))
    if journal is not None:

        def work(data: FileData) -> Iterator[pa.Table]:
            found = node_tables.judged(data, ("expected",), hop_limit)
            return (rows for rows in found if table_of(rows) == "expected")

        frame = journal.work(_JUDGED_BY, work, BUILT["expected"], frugal=True)
        return marked(frame, Origin(journal, "expected", hop_limit))

    def work_on_frames(data: FrameData) -> Iterator[pa.Table]:
        given = [data.given(name) for name in _HISTORIES]
        yield from coded_decisions(data.node, data.events(MESSAGES), Past(*given), hop_limit)

    return from_frames({MESSAGES: messages, **histories}, work_on_frames, BUILT["expected"])


expected_deliveries = expected


def audit(expected: DataFrame, messages: DataFrame, routes: DataFrame | None = None) -> DataFrame:
    """Compare expected with actual outcomes, one row per recipient.

    With `routes`, also each put that a node decided differently from the rules; with
    frames directly from `read_journal` these are always included.

    ```text
    lost = pipeline.audit(expected, journal.messages).where("verdict <> 'ok'")
    ```
    """
    origin = origin_of(expected, "expected")
    journal = _same_journal((expected, "expected"), (messages, MESSAGES))
    if journal is not None and origin is not None and _is_of(routes, ROUTES, journal):
        limit = origin.hop_limit

        def work(data: FileData) -> Iterator[pa.Table]:
            found = node_tables.judged(data, ("audit",), limit)
            return (rows for rows in found if table_of(rows) == "audit")

        return journal.work(_JUDGED_BY, work, BUILT["audit"])

    def work_on_frames(data: FrameData) -> Iterator[pa.Table]:
        yield compare(data.node, data.given("expected"), data.events(MESSAGES))
        yield route_differences(data.node, data.events(ROUTES))

    frames = {"expected": expected, MESSAGES: messages}
    if routes is not None:
        frames[ROUTES] = routes
    return from_frames(frames, work_on_frames, BUILT["audit"])


def _is_of(frame: DataFrame | None, table: str, journal: Journal) -> bool:
    """Whether a frame is this table of the journal, or was not given."""
    origin = None if frame is None else origin_of(frame, table)
    return frame is None or (origin is not None and origin.journal is journal)


def _same_journal(*frames: tuple[DataFrame, str]) -> Journal | None:
    """The journal that all these frames come from, if there is one."""
    origins = [origin_of(frame, table) for frame, table in frames]
    journals = {id(origin.journal): origin.journal for origin in origins if origin is not None}
    return journals.popitem()[1] if len(journals) == 1 and None not in origins else None


def traces(messages: DataFrame, *, paths: bool = True, known: Known | None = None) -> DataFrame:
    """The path of each message over all nodes, from its rows, grouped by its id.

    Without `paths` the column `path` is null, and is not computed. `known` is what the journal
    tells beside messages: of clocks, sessions, and what nodes kept. Frames of `read_journal`
    include it; with any other frame it is what `pipeline.known_of(journal)` returns. Without it
    clocks are taken to be right, and what became of a copy that left and did not arrive is unknown.

    ```text
    pipeline.traces(journal.messages).where("not complete or looped").show()
    ```
    """
    return _traces(messages, paths=paths, known=known)


def traces_by_state(messages: DataFrame, known: Known) -> DataFrame:
    """The traces, for our own tasks: those that other records can change say so (tables.py)."""
    return _traces(messages, paths=True, known=known, by_state=True)


def _traces(
    messages: DataFrame, *, paths: bool, known: Known | None, by_state: bool = False
) -> DataFrame:
    parts = _trace_partitions(messages)
    origin = origin_of(messages, MESSAGES)
    if known is None:
        known = Known(has_answers=True) if origin is None else known_of(origin.journal)
    told, has_answers = known.encoded(), known.has_answers

    def pack(found: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return packed(found, parts, paths=paths)

    def assemble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        held = _held(batches)
        if not held:
            return
        made = assembled(together(held), Facts(Known.decoded(told)), paths=paths)
        if has_answers:
            yield from sent_to_requests(made, parts)
        else:
            yield from ended(made, ANSWERS.empty_table())

    def tie(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        yield from ended(*received_from_answers(_held(batches)))

    def ended(made: pa.Table, answers: pa.Table) -> Iterator[pa.Table]:
        found = tied(made, answers, paths=paths)
        if not by_state:
            yield found
            return
        is_open = made.column("is_open")
        yield found.filter(pc.invert(is_open))
        yield still_open(found.filter(is_open))

    sent = _of_messages(messages, coded_steps, PACKED, through=pack)
    if not has_answers:
        return mapped(_brought(sent, parts), assemble, BUILT["traces"])
    # An answer is a message of its own: its trace is made elsewhere than that of its request.
    made = mapped(_brought(sent, parts), assemble, PACKED)
    return mapped(_brought(made, parts), tie, BUILT["traces"])


def _held(batches: Iterator[pa.RecordBatch]) -> list[pa.Table]:
    """The tables in rows of PACKED."""
    return [table for batch in batches for table in unpacked(batch.column("steps"))]


def _brought(frame: DataFrame, parts: int) -> DataFrame:
    """Rows of PACKED where their part is: a separate task, if Spark supports it (4.1 and newer)."""
    bring = getattr(frame, "repartitionById", frame.repartition)
    found: DataFrame = bring(parts, "part")
    return found


def _trace_partitions(messages: DataFrame) -> int:
    """The number of partitions, so that the messages of each fit into a task's memory."""
    configured = messages.sparkSession.conf.get("spark.sql.shuffle.partitions", "200")
    origin = origin_of(messages, MESSAGES)
    size = 0
    if origin is not None:
        nodes = origin.journal.listing.nodes.values()
        size = sum(file.size for tables in nodes for file in tables.get(MESSAGES, ()))
    return max(int(str(configured)), size // BYTES_PER_TASK)


def traces_of(journal: Journal) -> DataFrame:
    """The traces of a journal."""
    return traces(journal.messages)


def health(messages: DataFrame, *, window: float = 60.0) -> DataFrame:
    """Outcomes by node and time window (in seconds): their number, size and latency.

    ```text
    pipeline.health(journal.messages, window=300).orderBy("window_start").show()
    ```
    """
    width = round(window * 1_000_000)
    if width < 1:
        raise LocalError(f"invalid window {window} s", rule="SP-1", hint="give seconds above 0")

    def together(found: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for tallies in sums(found):
            yield pa.Table.from_batches([pieces("tally", tallies)])

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for _, tables in gathered(batches):
            yield health_of(tables["tally"])

    tallies = _of_messages(messages, partial(counted, window=width), PIECES, through=together)
    brought = tallies.repartition("node").sortWithinPartitions("node")
    return mapped(brought, work, BUILT["health"])


def health_of_journal(journal: Journal) -> DataFrame:
    """The health of a journal's nodes."""
    return health(journal.messages)


def _of_messages(
    messages: DataFrame,
    view: Callable[[pa.Table], pa.Table],
    schema: pa.Schema,
    *,
    through: Through | None = None,
) -> DataFrame:
    """The results of a function for the valid rows of `messages`, wherever they come from.

    `through` is then applied to all results of one task.
    """
    origin = origin_of(messages, MESSAGES)
    if origin is not None:

        def read(data: FileData) -> Iterator[pa.Table]:
            for rows in data.coded_batches(MESSAGES):
                yield view(rows.append_column("node", coded_name(data.node, rows.num_rows)))

        return origin.journal.work((MESSAGES,), read, schema, through=through)

    def viewed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            named = normal(MESSAGES, rows).append_column("node", rows.column("node"))
            yield view(sound_rows(MESSAGES, named))

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        found = viewed(batches)
        return found if through is None else through(found)

    return mapped(checked(MESSAGES, messages), convert, schema)


def rejects(journal: Journal) -> DataFrame:
    """The files and rows that could not be read, and why (SP-5).

    ```text
    pipeline.rejects(journal).groupBy("table", "problem").count().show()
    ```
    """
    return built(journal, "rejects")
