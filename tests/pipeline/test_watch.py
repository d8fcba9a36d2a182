"""`watch` on Spark: the stream of files, its checkpoint, its end, and its readers (SP-3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.frames import assert_same
from tests.pipeline.small import put_rows, row
from tests.pipeline.watched import assert_up_to_date, table_in
from waystation import pipeline
from waystation.errors import LocalError
from waystation.pipeline.tables import WATCHED
from waystation.pipeline.watching import Batch, watch
from waystation.pipeline.watching import stream as streams
from waystation.why.tables import explain_from_tables

pytestmark = pytest.mark.timeout(600)  # Spark on a loaded machine takes its time

PATIENCE = 240.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def id_of(number: int) -> str:
    return f"{number:032x}"


@pytest.mark.rule("SP-3")
def test_watched_tables_equal_those_of_a_build_while_the_journal_grows(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, out, checkpoint = tmp_path / "journal", tmp_path / "tables", tmp_path / "checkpoint"
    journal.mkdir()  # nobody has written to it yet
    told: list[Batch] = []
    stop = threading.Event()
    failed: list[BaseException] = []

    def follow() -> None:
        try:
            watch(journal, out, checkpoint, spark=spark, every=0, progress=told.append, stop=stop)
        except BaseException as error:  # noqa: BLE001 - told in the other thread
            failed.append(error)

    watching = threading.Thread(target=follow)
    watching.start()
    until(lambda: failed != [] or (out / "rejects").exists())
    put_rows(journal, "routes", [row("routes", 1)])
    put_rows(journal, "messages", [row("messages", 2), row("messages", 3, message_id="none")])
    until(lambda: failed != [] or sum(batch.rows for batch in told) == 3)
    assert table_in(out, "traces").num_rows == 1
    put_rows(journal, "messages", [row("messages", 9, message_id=id_of(9))], node="hall%2F2")
    until(lambda: failed != [] or sum(batch.rows for batch in told) == 4)
    stop.set()
    watching.join()
    assert not failed
    assert explain_from_tables(out, id_of(9)).hops[0].node == "hall/2"
    put_rows(journal, "routes", [row("routes", 20, kind="remove")])
    put_rows(journal, "messages", [row("messages", 21, message_id=id_of(21))])
    done = watch(journal, out, checkpoint, spark=spark, once=True)
    assert (done.batches, done.files, done.rows) == (1, 2, 2)
    assert watch(journal, out, checkpoint, spark=spark, once=True).batches == 0
    assert_up_to_date(out, journal)
    pipeline.build(journal, tmp_path / "built", spark=spark)
    for table in WATCHED:
        built = pq.read_table(tmp_path / "built" / table).to_pylist()
        assert_same(pq.read_table(out / table).to_pylist(), built)
    assert spark.read.parquet(str(out / "audit")).count() == len(table_in(out, "audit"))


def test_an_impossible_watch_is_refused_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    with pytest.raises(LocalError, match="no such journal"):
        watch(journal, tmp_path / "t", tmp_path / "c", spark=spark, once=True)
    journal.mkdir()
    with pytest.raises(LocalError, match="every -1 s"):
        watch(journal, tmp_path / "t", tmp_path / "c", spark=spark, every=-1)
    (tmp_path / "c" / "spark" / "commits").mkdir(parents=True)
    (tmp_path / "c" / "spark" / "commits" / "0").write_text("v1\n{}")
    with pytest.raises(LocalError, match="is incomplete"):
        watch(journal, tmp_path / "t", tmp_path / "c", spark=spark, once=True)
    put_rows(journal, "messages", [row("messages", 2)])
    monkeypatch.setattr(streams, "is_connect", lambda _: True)  # where no batch can call back
    assert watch(journal, tmp_path / "t2", tmp_path / "c2", spark=spark, once=True).rows == 1
    assert_up_to_date(tmp_path / "t2", journal)


@pytest.mark.rule("SP-4")
def test_executors_elsewhere_get_the_package_and_are_checked_before_the_first_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "tables"
    asked: list[object] = []
    monkeypatch.setattr(streams, "is_local", lambda _: False)
    monkeypatch.setattr(streams, "ship", lambda _: asked.append("ship"))
    monkeypatch.setattr(streams, "check_executors", lambda _: asked.append("check"))
    monkeypatch.setattr(streams, "check_shared", lambda _, **seen: asked.append(seen))
    with pytest.raises(LocalError, match="no such journal"):
        watch(journal, out, tmp_path / "c", spark=spark, once=True)
    assert asked == []
    put_rows(journal, "messages", [row("messages", 2)])
    tell = asked.append
    watch(journal, out, tmp_path / "c", spark=spark, once=True, progress=lambda _: tell("batch"))
    assert asked == ["ship", "check", {"read": [str(journal)], "write": [out]}, "batch"]
    monkeypatch.undo()
    assert watch(journal, out, tmp_path / "c", spark=spark, once=True).batches == 0
    assert asked[4:] == []  # of executors in this process nothing is asked
