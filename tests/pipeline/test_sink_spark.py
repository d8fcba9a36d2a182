"""Frames and streams of Spark are sent as messages, and nothing is lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.pipeline.sink_fleet import PATIENCE, Fleet, until
from waystation.pipeline.source.datasource import register

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def test_a_frame_is_sent_although_the_hub_is_killed_meanwhile(
    source: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    """The truck accepts nothing until the hub has died, with all that it held, and is back.

    There is more to send than both hold of it, so the tasks are in the middle of it.
    """
    rows = 4_000
    text = f.rpad(f.concat(f.lit("row "), f.col("id").cast("string")), 12_000, " ")
    frame = source.range(0, rows, 1, 2).select(
        f.lit("truck-7").alias("route"), text.alias("payload")
    )
    writer = (
        frame.write.format("waystation")
        .mode("append")
        .option("summary", str(tmp_path / "summary.json"))
        .options(via=fleet.url, campaign="recall", window="50", timeout=str(PATIENCE))
    )
    fleet.close_gate()

    def cut_the_power() -> None:
        until(fleet.somebody_waits)
        fleet.hub.kill()
        fleet.hub.start()
        fleet.open_gate()

    meanwhile = threading.Thread(target=cut_the_power)
    meanwhile.start()
    writer.save()
    meanwhile.join(PATIENCE)
    assert not meanwhile.is_alive()
    until(lambda: fleet.payloads() == {f"row {number}" for number in range(rows)})
    assert len({id for id, _ in fleet.got()}) == rows
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["campaign"], summary["messages"], summary["tasks"]) == ("recall", rows, 2)
    assert summary["repeated"] > 0


def test_a_frame_that_cannot_be_sent_fails_the_write(source: SparkSession, fleet: Fleet) -> None:
    frame = source.createDataFrame([("truck-7", "a"), (None, "b")], "route string, payload string")
    writer = frame.coalesce(1).write.format("waystation").option("via", fleet.url)
    with pytest.raises(PySparkException, match="row 1 of this task cannot be sent"):
        writer.mode("append").save()


def test_a_stream_sends_each_batch_and_continues_after_a_restart(
    source: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()

    def send(name: str, *payloads: str) -> None:
        lines = [json.dumps({"payload": payload}) for payload in payloads]
        (orders / name).write_text("\n".join(lines))
        query = (
            source.readStream.schema("payload string")
            .json(str(orders))
            .withColumn("multicast_id", f.lit("office/recall/eu/de"))
            .writeStream.format("waystation")
            .options(via=fleet.url, campaign="orders", checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(100)
        assert query.exception() is None

    def got() -> list[tuple[str, str]]:
        return [(id, payload) for id, payload in fleet.got() if payload in ("stop", "go")]

    send("one", "stop", "stop", "go")
    send("two", "stop")  # the same row is another message in another batch
    until(lambda: len(got()) >= 4)
    assert Counter(payload for _, payload in got()) == {"stop": 3, "go": 1}
    assert len({id for id, _ in got()}) == 4
