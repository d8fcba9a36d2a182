"""The steps of the pipeline: each is one function from frames to a frame, and can be called alone.

    read_journal ─► route_history ────────┐
        │           subscription_history ─┼─► expected ─► audit
        └─────────► messages ─────────────┴─► traces, health

What a table means is in CONTRACT and docs/reference/tables.md, how it is computed in folding.py,
deciding.py, comparing.py and tracing.py. Here it is only said what goes in and what comes out.
Given frames straight from `read_journal`, the first five work node by node and exchange nothing;
given any other frames with the same columns, they bring the rows together by node first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from waystation.core.message import HOP_LIMIT
from waystation.errors import LocalError
from waystation.pipeline.columns import repeated
from waystation.pipeline.comparing import compare, route_differences, waiting_ids
from waystation.pipeline.deciding import decide
from waystation.pipeline.folding import fold_routes, fold_subscriptions
from waystation.pipeline.health import SAMPLES, sample
from waystation.pipeline.journal import Journal, Origin, instant, marked, origin_of
from waystation.pipeline.node_data import FileData, FrameData, NodeData, sound_rows
from waystation.pipeline.normal import normal
from waystation.pipeline.schema import (
    BUILT,
    MESSAGES,
    NODES,
    ROUTES,
    SUBSCRIPTIONS,
    TEXT,
    spark_schema,
)
from waystation.pipeline.tracing import STEPS, steps, trace
from waystation.pipeline.work import BYTES_PER_TASK, checked, from_frames

OfNode: TypeAlias = Callable[[NodeData], Iterator[pa.Table]]
"""What a step makes of one node."""


def route_history(routes: DataFrame, nodes: DataFrame | None = None) -> DataFrame:
    """Who was reached how at each node, from when to when (SP-1).

    `nodes` tells when incarnations began and stopped; frames of `read_journal` know it already.

    ```text
    history = pipeline.route_history(journal.routes)
    history.where("closed_by = 'expired'").groupBy("participant").count().show()
    ```
    """

    def work(data: NodeData) -> Iterator[pa.Table]:
        yield fold_routes(data.node, data.events(ROUTES), data.lifetimes())

    return _history("route_history", ROUTES, routes, nodes, work)


def subscription_history(subscriptions: DataFrame, nodes: DataFrame | None = None) -> DataFrame:
    """Who was subscribed to what at each node, from when to when (SP-2).

    ```text
    pipeline.subscription_history(journal.subscriptions).where("valid_to is null").show()
    ```
    """

    def work(data: NodeData) -> Iterator[pa.Table]:
        yield fold_subscriptions(data.node, data.events(SUBSCRIPTIONS), data.lifetimes())

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
    """The rows of a history that were valid at an instant: the routing tables of that moment.

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


def expected(
    messages: DataFrame,
    route_history: DataFrame,
    subscription_history: DataFrame,
    *,
    hop_limit: int = HOP_LIMIT,
) -> DataFrame:
    """What the rules say must have happened to each message that entered a node (SP-2).

    ```text
    subscriptions = pipeline.subscription_history(journal.subscriptions)
    expected = pipeline.expected(journal.messages, history, subscriptions)
    ```
    """
    if hop_limit < 1:
        raise LocalError(
            f"the hop limit is {hop_limit}", rule="WK-11", hint="give a number from 1 on"
        )

    def work(data: NodeData) -> Iterator[pa.Table]:
        messages = data.events(MESSAGES)
        if messages.num_rows:
            yield from decide(
                data.node, messages, data.route_history, data.subscription_history, hop_limit
            )

    journal = _same_journal(
        (messages, MESSAGES),
        (route_history, "route_history"),
        (subscription_history, "subscription_history"),
    )
    if journal is not None:
        tables = (MESSAGES, ROUTES, SUBSCRIPTIONS)
        frame = journal.work(tables, work, BUILT["expected"])
        return marked(frame, Origin(journal, "expected", hop_limit))
    frames = {
        MESSAGES: messages,
        "route_history": route_history,
        "subscription_history": subscription_history,
    }
    return from_frames(frames, work, BUILT["expected"])


expected_deliveries = expected


def audit(expected: DataFrame, messages: DataFrame, routes: DataFrame | None = None) -> DataFrame:
    """What must have happened against what did, one row for each recipient.

    With `routes`, also each put that a node took or refused otherwise than the rules say; with
    frames straight from `read_journal` these are there in any case.

    ```text
    lost = pipeline.audit(expected, journal.messages).where("verdict <> 'ok'")
    ```
    """
    origin = origin_of(expected, "expected")
    journal = _same_journal((expected, "expected"), (messages, MESSAGES))
    if journal is not None and origin is not None and _is_of(routes, ROUTES, journal):
        limit = origin.hop_limit

        def work(data: FileData) -> Iterator[pa.Table]:
            rows = data.events(MESSAGES)
            routes, subscriptions = data.route_history, data.subscription_history
            ruled = list(decide(data.node, rows, routes, subscriptions, limit))
            whole = pa.concat_tables([BUILT["expected"].empty_table(), *ruled])
            yield compare(data.node, whole, rows, data.later_entries(waiting_ids(rows)))
            if data.is_first_share:
                for part in data.parts(ROUTES):
                    yield route_differences(data.node, part.events(ROUTES))

        return journal.work((MESSAGES, ROUTES, SUBSCRIPTIONS), work, BUILT["audit"])

    def work_on_frames(data: FrameData) -> Iterator[pa.Table]:
        yield compare(data.node, data.given("expected"), data.events(MESSAGES))
        yield route_differences(data.node, data.events(ROUTES))

    frames = {"expected": expected, MESSAGES: messages}
    if routes is not None:
        frames[ROUTES] = routes
    return from_frames(frames, work_on_frames, BUILT["audit"])


def _is_of(frame: DataFrame | None, table: str, journal: Journal) -> bool:
    """Whether a frame is this table of the journal, or nothing else was given in its place."""
    origin = None if frame is None else origin_of(frame, table)
    return frame is None or (origin is not None and origin.journal is journal)


def _same_journal(*frames: tuple[DataFrame, str]) -> Journal | None:
    """The journal that all these frames stand for, if there is one."""
    origins = [origin_of(frame, table) for frame, table in frames]
    journals = {id(origin.journal): origin.journal for origin in origins if origin is not None}
    return journals.popitem()[1] if len(journals) == 1 and None not in origins else None


def traces(messages: DataFrame, *, paths: bool = True) -> DataFrame:
    """The way of each message over all nodes. The rows of a message are brought together by its id.

    Without `paths` the column `path` is null, and nothing is built for it.

    ```text
    pipeline.traces(journal.messages).where("not complete or looped").show()
    ```
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch for batch in batches if batch.num_rows]
        if held:
            found = trace(pa.Table.from_batches(held), paths=paths)
            yield from found.to_batches(max_chunksize=65_536)

    read = _of_messages(messages, steps, STEPS)
    together = read.repartition(_trace_partitions(messages), "message_id")
    return together.mapInArrow(work, spark_schema(BUILT["traces"]))


def _trace_partitions(messages: DataFrame) -> int:
    """So many that each fits into memory: a task holds all messages of its partition."""
    configured = messages.sparkSession.conf.get("spark.sql.shuffle.partitions", "200")
    origin = origin_of(messages, MESSAGES)
    size = 0
    if origin is not None:
        nodes = origin.journal.listing.nodes.values()
        size = sum(file.size for tables in nodes for file in tables.get(MESSAGES, ()))
    return max(int(str(configured)), size // BYTES_PER_TASK)


def health(messages: DataFrame, *, window: float = 60.0) -> DataFrame:
    """Outcomes by node and window of so many seconds: how many, how large, and how long they took.

    ```text
    pipeline.health(journal.messages, window=300).orderBy("window_start").show()
    ```
    """
    width = round(window * 1_000_000)
    if width < 1:
        raise LocalError(f"the window is {window} s", rule="SP-1", hint="give seconds above 0")
    micros = f.unix_micros("at")
    start = f.timestamp_micros(micros - f.pmod(micros, f.lit(width)))
    keys = ["node", "window_start", "outcome", "reason", "address_type"]
    return (
        _of_messages(messages, sample, SAMPLES)
        .withColumn("window_start", start)
        .groupBy(*keys)
        .agg(
            f.count("*").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.percentile("milliseconds", [0.5, 0.99]).alias("percentiles"),
        )
        .withColumn("p50_ms", f.col("percentiles")[0])
        .withColumn("p99_ms", f.col("percentiles")[1])
        .select(*BUILT["health"].names)
    )


def _of_messages(
    messages: DataFrame, view: Callable[[pa.Table], pa.Table], schema: pa.Schema
) -> DataFrame:
    """What a function makes of the sound rows of `messages`, wherever they come from."""
    origin = origin_of(messages, MESSAGES)
    if origin is not None:

        def read(data: FileData) -> Iterator[pa.Table]:
            for rows in data.batches(MESSAGES):
                named = rows.append_column("node", repeated(data.node, rows.num_rows))
                yield view(named)

        return origin.journal.work((MESSAGES,), read, schema)

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            named = normal(MESSAGES, rows).append_column("node", rows.column("node"))
            found = view(sound_rows(MESSAGES, named))
            yield from found.cast(schema).to_batches()

    return checked(MESSAGES, messages).mapInArrow(convert, spark_schema(schema))


def rejects(journal: Journal) -> DataFrame:
    """What could not be read: files and rows, and why (SP-5).

    ```text
    pipeline.rejects(journal).groupBy("table", "problem").count().show()
    ```
    """
    schema = BUILT["rejects"]
    strays = [
        (stray.table, None, stray.path, None, "it lies in no directory node=<name>")
        for stray in journal.listing.strays
    ]

    def work(data: FileData) -> Iterator[pa.Table]:
        found = data.all_rejects()
        if found:
            columns = [pa.array(values, TEXT) for values in zip(*found, strict=True)]
            yield pa.Table.from_arrays(columns, schema=schema)

    tables = ("messages", "routes", "subscriptions", "members", "nodes")
    frame = journal.work(tables, work, schema, split=False)
    if not strays:
        return frame
    return frame.unionAll(journal.spark.createDataFrame(strays, spark_schema(schema)))
