"""The format `waystation` in Spark: the rows of read_journal, in batch and streaming queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.frames import assert_same, collected
from tests.pipeline.small import BEGIN, put_rows, row
from waystation import pipeline
from waystation.pipeline.source.datasource import PUSHDOWN, register

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes with all tables, one of them with an invalid row and an invalid file."""
    place = tmp_path_factory.mktemp("journal")
    for node in ("a", "b", "c"):
        put_rows(place, "nodes", [row("nodes", 0)], node)
        put_rows(place, "routes", [row("routes", seq, expiry=BEGIN) for seq in range(1, 5)], node)
        put_rows(place, "subscriptions", [row("subscriptions", 5)], node)
        put_rows(place, "members", [row("members", 6)], node)
        for first in range(10, 40, 10):
            outcomes = [("DELIVERED", None), ("DROPPED", "NO_ROUTE")] * 5
            rows = [
                row("messages", first + n, outcome=outcome, reason=reason, bytes=n)
                for n, (outcome, reason) in enumerate(outcomes)
            ]
            put_rows(place, "messages", rows, node)
    put_rows(place, "messages", [row("messages", 50, outcome="LOST"), row("messages", 51)], "c")
    (place / "routes/node=c/1-9.parquet").write_bytes(b"no Parquet at all")
    return place


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def read(spark: SparkSession, journal: Path, table: str, **options: str) -> DataFrame:
    return spark.read.format("waystation").options(table=table, **options).load(str(journal))


def test_registering_lets_filters_be_pushed_down(source: SparkSession) -> None:
    assert source.conf.get(PUSHDOWN) == "true"
    register(source)  # calling it again is allowed


@pytest.mark.rule("SP-5")
def test_rejects_are_those_of_the_pipeline(source: SparkSession, journal: Path) -> None:
    wanted = pipeline.rejects(pipeline.read_journal(source, journal))
    found = read(source, journal, "rejects")
    assert found.schema.simpleString() == wanted.schema.simpleString()
    assert_same(collected(found), collected(wanted))


MUCH = (
    "node in ('a', 'c') and at >= timestamp'2023-11-14 22:13:33Z' and seq % 3 = 0 and kind <> 'x' "
    "and (seq < 22 or seq > 35) and node not like 'b%' and reason is null"
)


@pytest.mark.parametrize(
    ("pushdown", "asked"), [("true", MUCH), ("false", "node = 'b' and outcome = 'DROPPED'")]
)
def test_a_filter_gives_the_same_rows_wherever_it_is_applied(
    source: SparkSession, journal: Path, pushdown: str, asked: str
) -> None:
    found = read(source, journal, "messages", pushdown=pushdown, partitionBytes="1000").where(asked)
    messages = pipeline.read_journal(source, journal).messages
    assert found.schema.simpleString() == messages.schema.simpleString()
    wanted = collected(messages.where(asked))
    assert wanted
    assert_same(collected(found), wanted)


def test_an_invalid_option_fails_where_the_frame_is_created(
    source: SparkSession, journal: Path
) -> None:
    with pytest.raises(PySparkException, match="unknown table 'route'; give one of nodes"):
        read(source, journal, "route")


def run_stream(spark: SparkSession, journal: Path, place: Path, **options: str) -> list[int]:
    """Read what is available now into a table; returns the number of rows of each batch."""
    query = (
        spark.readStream.format("waystation")
        .options(table="messages", **options)
        .load(str(journal))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "rows"))
    )
    query.awaitTermination(100)
    assert query.exception() is None
    assert not query.isActive
    return [found["numInputRows"] for found in query.recentProgress if found["numInputRows"]]


def test_a_stream_that_is_restarted_gives_every_row_once(
    source: SparkSession, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    for first in (10, 20):
        put_rows(journal, "messages", [row("messages", first + n) for n in range(4)], "a")
    assert run_stream(source, journal, tmp_path, maxFilesPerTrigger="1") == [4, 4]
    put_rows(journal, "messages", [row("messages", n) for n in range(3)], "a")  # late
    put_rows(journal, "messages", [row("messages", n) for n in range(5)], "b")
    assert sum(run_stream(source, journal, tmp_path)) == 8
    rows = collected(source.read.parquet(str(tmp_path / "rows")))
    assert_same(rows, collected(pipeline.read_journal(source, journal).messages))
