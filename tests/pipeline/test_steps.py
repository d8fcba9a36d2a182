"""Each step alone: its inputs, its results, and its plan."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tests.pipeline.small import BEGIN, SECOND, put_rows, row
from waystation import pipeline
from waystation.errors import LocalError
from waystation.pipeline.instants import instant
from waystation.pipeline.schema import spark_schema
from waystation.pipeline.tables import BUILT, BY_NAME


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes; one delivered message, one lost message, and one put recorded wrongly."""
    journal = tmp_path_factory.mktemp("steps") / "journal"
    put_rows(journal, "nodes", [row("nodes", 0), row("nodes", 90, kind="stop")])
    put_rows(
        journal,
        "routes",
        [
            row("routes", 1),
            row("routes", 2, participant="b", address="1#h:1", local=False),
            row(
                "routes", 3, address="1#h:1", local=False
            ),  # must be refused, but is recorded as accepted
        ],
    )
    put_rows(
        journal, "subscriptions", [row("subscriptions", 4), row("subscriptions", 5, receiver="b")]
    )
    first, second = f"{1:032x}", f"{2:032x}"
    sent: dict[str, Any] = {"outcome": "FORWARDED", "next_hop": "1#h:1", "recipient": None}
    put_rows(
        journal,
        "messages",
        [
            row("messages", 10, message_id=first, onward=["0#b"], **sent),
            row(
                "messages", 11, message_id=second, kind="multicast", multicast_id="p/b/x", onward=[]
            ),
            row("messages", 12, message_id=f"{3:032x}", outcome="DROPPED", reason="QUEUE_FULL"),
        ],
    )
    put_rows(journal, "nodes", [row("nodes", 0)], node="truck")
    put_rows(journal, "routes", [row("routes", 1, participant="b", address="0#b")], node="truck")
    arrived = {**row("messages", 20, message_id=first, onward=["0#b"], recipient="b")}
    put_rows(journal, "messages", [{**arrived, "return": ["1#h:9"]}], node="truck")
    (journal / "routes" / "node=truck" / "broken.parquet").write_bytes(b"broken")
    (journal / "routes" / "stray.txt").write_text("stray")
    return journal


@pytest.fixture(scope="module")
def journal(spark: SparkSession, directory: Path) -> pipeline.Journal:
    return pipeline.read_journal(spark, directory)


def histories(journal: pipeline.Journal) -> tuple[DataFrame, DataFrame]:
    return (
        pipeline.route_history(journal.routes),
        pipeline.subscription_history(journal.subscriptions),
    )


def expected(journal: pipeline.Journal) -> DataFrame:
    return pipeline.expected(journal.messages, *histories(journal))


def built(table: str) -> Callable[[pipeline.Journal], DataFrame]:
    return lambda journal: pipeline.built(journal, table)


STEPS: dict[str, Callable[[pipeline.Journal], DataFrame]] = {
    # What is made of other tables has its plans in test_losses.py.
    **{table: built(table) for table in pipeline.TABLES if not BY_NAME[table].of},
    "route_history": lambda journal: histories(journal)[0],
    "subscription_history": lambda journal: histories(journal)[1],
    "expected": expected,
    "audit": lambda journal: pipeline.audit(expected(journal), journal.messages),
    "traces": lambda journal: pipeline.traces(journal.messages),
    "health": lambda journal: pipeline.health(journal.messages),
    "rejects": pipeline.rejects,
}


def typed(frame: DataFrame | StructType) -> list[tuple[str, str]]:
    fields = frame if isinstance(frame, StructType) else frame.schema
    return [(field.name, field.dataType.simpleString()) for field in fields]


def plan_of(frame: DataFrame) -> str:
    told = io.StringIO()
    with redirect_stdout(told):
        frame.explain("formatted")
    return told.getvalue()


@pytest.mark.parametrize("table", STEPS)
def test_no_plan_has_a_cartesian_product_and_a_shuffle_only_where_nodes_meet(
    journal: pipeline.Journal, table: str
) -> None:
    frame = STEPS[table](journal)
    plan = plan_of(frame)
    for costly in ("NestedLoop", "Cartesian", "BatchEvalPython", "SortMergeJoin"):
        assert costly not in plan
    assert ("Exchange" in plan) == BY_NAME[table].exchange
    assert typed(frame) == typed(spark_schema(BUILT[table]))


def test_a_routing_table_is_a_filter_and_nothing_else(journal: pipeline.Journal) -> None:
    history = pipeline.route_history(journal.routes)
    plan = plan_of(pipeline.routing_table(history, at="2026-11-15T12:00:00Z"))
    assert "Filter" in plan
    assert "Exchange" not in plan


def test_renewals_are_merged_into_stays(spark: SparkSession) -> None:
    def entry(since: int, until: int | None, address: str, closed_by: str | None, at: str) -> Any:
        times = [None if second is None else at_second(second) for second in (since, until)]
        return ("hub", 1, at, address, True, True, False, times[1], *times, closed_by, None)

    history = spark.createDataFrame(
        [
            entry(0, 5, "a", "replaced", "truck"),
            entry(5, 9, "a", "replaced", "truck"),
            entry(9, 12, "b", "expired", "truck"),  # it moved
            entry(12, 20, "b", "removed", "truck"),
            entry(30, None, "b", None, "truck"),  # it was away in between
            entry(5, 9, "a", "removed", "van"),
        ],
        spark_schema(BUILT["route_history"]),
    )
    stays = pipeline.coalesced(history).orderBy("participant", "valid_from").collect()
    told = [
        (row.participant, row.address, row.valid_from, row.valid_to, row.closed_by, row.renewals)
        for row in stays
    ]
    assert told == [
        ("truck", "a", at_second(0), at_second(9), "replaced", 1),
        ("truck", "b", at_second(9), at_second(20), "removed", 1),
        ("truck", "b", at_second(30), None, None, 0),
        ("van", "a", at_second(5), at_second(9), "removed", 0),
    ]
    assert stays[1].expiry == at_second(20)  # the last one


def at_second(second: int) -> datetime:
    return datetime(2026, 11, 15, 12, 0, second)  # noqa: DTZ001 - as Spark gives them back


def test_a_journal_says_what_it_is(journal: pipeline.Journal, directory: Path) -> None:
    told = repr(journal)
    assert told.startswith(f"<Journal {directory}: 2 nodes, ")
    assert "files; " in told
    assert "messages " in told
    assert journal.claims.columns[0] == "node"


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.toArrow().to_pylist()))


@pytest.mark.rule("SP-1", "SP-2")
def test_frames_that_were_changed_give_the_same_tables_after_one_shuffle(
    journal: pipeline.Journal,
) -> None:
    def anew(frame: DataFrame) -> DataFrame:
        return frame.where("node is not null")

    routes = pipeline.route_history(anew(journal.routes), journal.nodes)
    assert "Exchange" in plan_of(routes)
    assert rows_of(routes) == rows_of(STEPS["route_history"](journal))
    ruled = pipeline.expected_deliveries(anew(journal.messages), *histories(journal))
    assert rows_of(ruled) == rows_of(expected(journal))
    found = pipeline.audit(anew(expected(journal)), journal.messages, journal.routes)
    assert rows_of(found) == rows_of(STEPS["audit"](journal))
    assert rows_of(pipeline.health(anew(journal.messages))) == rows_of(STEPS["health"](journal))


def test_health_counts_as_spark_counts_and_has_its_percentiles(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(7)
    ends: list[dict[str, Any]] = [{"outcome": "DROPPED", "reason": "EXPIRED"}, {}]
    rows = []
    for number in range(1, 700):
        took = rng.choice([1, 3, 7, 1_000, rng.randrange(10**6)])
        fields = {"message_id": f"{number:032x}", "bytes": rng.randrange(1_000), **rng.choice(ends)}
        rows.append(row("messages", number, received_at=BEGIN + number * SECOND - took, **fields))
    for node in ("hub", "truck"):
        put_rows(tmp_path, "messages", rows[: 500 if node == "hub" else 700], node=node)
    messages = pipeline.read_journal(spark, tmp_path).messages
    counted = (
        messages.withColumn("took", (f.unix_micros("at") - f.unix_micros("received_at")) / 1_000)
        .groupBy("node", f.window("at", "90 seconds").start.alias("window_start"), "outcome")
        .agg(
            f.count("*").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.percentile("took", 0.5).alias("p50_ms"),
            f.percentile("took", 0.99).alias("p99_ms"),
        )
    )
    exact = [f.round(f.col(name), 6).alias(name) for name in ("p50_ms", "p99_ms")]
    found = pipeline.health(messages, window=90).select(*counted.columns[:-2], *exact)
    assert rows_of(found) == rows_of(counted.select(*counted.columns[:-2], *exact))


def test_the_audit_reports_each_loss_with_its_reason(journal: pipeline.Journal) -> None:
    found = STEPS["audit"](journal).toArrow().to_pylist()
    odd = sorted(
        (
            row["node"],
            row["recipient"],
            row["expected"],
            row["actual"],
            row["verdict"],
            row["reason"],
        )
        for row in found
        if row["verdict"] != "ok"
    )
    assert odd == [
        ("garage", "a", "DELIVERED", "DROPPED", "different", "QUEUE_FULL"),
        ("garage", "a", "refused", "accepted", "different", None),
        ("garage", "b", "FORWARDED", None, "missing", None),
    ]


def test_a_trace_goes_over_all_nodes(journal: pipeline.Journal) -> None:
    found = {
        row["message_id"]: row for row in pipeline.traces(journal.messages).toArrow().to_pylist()
    }
    trace = found[f"{1:032x}"]
    assert [hop["node"] for hop in trace["path"]] == ["garage", "truck"]
    assert (trace["hops"], trace["outcome"], trace["latency_ms"]) == (1, "DELIVERED", 10_000.0)
    assert (trace["complete"], trace["symmetric"], trace["looped"]) == (True, None, False)


@pytest.mark.rule("SP-5")
def test_rejects_include_files_of_no_node(journal: pipeline.Journal) -> None:
    found = {row["file"]: row for row in pipeline.rejects(journal).toArrow().to_pylist()}
    assert set(found) == {"routes/node=truck/broken.parquet", "routes/stray.txt"}
    assert found["routes/stray.txt"]["problem"] == "it is not in a directory node=<name>"


def test_a_routing_table_of_one_node_at_an_instant(journal: pipeline.Journal) -> None:
    history = pipeline.route_history(journal.routes)
    at = f"2023-11-14T22:13:{20 + 2:02}Z"  # two seconds after BEGIN
    assert instant(at) == BEGIN + 2 * SECOND
    found = pipeline.routing_table(history, at=at, node="garage").toArrow().to_pylist()
    assert sorted(row["participant"] for row in found) == ["a", "b"]


def test_a_frame_without_the_columns_is_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(LocalError, match="invalid frame for routes: it has no column"):
        pipeline.route_history(spark.range(1))
    frame = spark.range(1)
    with pytest.raises(LocalError, match="invalid hop limit 0"):
        pipeline.expected(frame, frame, frame, hop_limit=0)
    with pytest.raises(LocalError, match="invalid window"):
        pipeline.health(spark.range(1), window=0)


def test_an_empty_journal_gives_empty_tables(spark: SparkSession, tmp_path: Path) -> None:
    journal = pipeline.read_journal(spark, tmp_path)
    for table in ("audit", "traces", "rejects"):
        assert STEPS[table](journal).count() == 0, table
