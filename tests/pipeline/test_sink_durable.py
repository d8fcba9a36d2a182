"""With `durable`, a row is confirmed when a node has it on disk (DU-1)."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.pipeline.sink_fleet import PATIENCE, until
from waystation.errors import LocalError
from waystation.node.letters import Described, Selection, select
from waystation.pipeline.sink.options import Sending
from waystation.pipeline.sink.rows import BadRowError, Ids, outgoing
from waystation.pipeline.sink.writer import NotConfirmedError, send_all
from waystation.pipeline.source.datasource import register

pytestmark = pytest.mark.timeout(300)


class Hub:
    """A hub with a store, in a process of its own: `waystation node`."""

    def __init__(self, directory: Path, more: str = "") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.store = directory / "store"
        self.file = directory / "hub.toml"
        text = f'[node]\nname = "hub"\nhub = true\n{more}\n[[listen]]\nurl = "{self.url}"\n'
        self.file.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "waystation", "node", "--config", str(self.file)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if b"is ready" in line:
                return
        raise AssertionError("it did not start")

    def kill(self) -> None:
        """Kill it, as a power failure would."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def parked(self) -> list[Described]:
        return select(self.store, "parked", Selection())


@contextmanager
def running(directory: Path, more: str = 'store = "store"') -> Iterator[Hub]:
    hub = Hub(directory, more)
    hub.start()
    try:
        yield hub
    finally:
        hub.kill()


def sending(url: str, **options: str) -> Sending:
    usual = {"via": url, "campaign": "c", "durable": "true", "window": "100", "timeout": "60"}
    return Sending.of({**usual, **options}, streaming=False)


def rows(count: int, to: str = "truck-7", begin: int = 0) -> pa.RecordBatch:
    numbers = range(begin, begin + count)
    return pa.record_batch({"route": [to] * count, "payload": [f"row {n}" for n in numbers]})


@pytest.mark.rule("DU-1")
def test_what_is_confirmed_survives_the_node(tmp_path: Path) -> None:
    """Nobody is called truck-7 yet: it all waits there, with the ids of the rows."""
    with running(tmp_path) as hub:
        found = rows(1_000)
        sent = send_all(iter([found]), sending(hub.url), batch=None)
        hub.kill()
        ids = [one.id for one in outgoing(found, (), Ids("c", None), 0)]
        parked = hub.parked()
    assert (sent.messages, sent.repeated) == (1_000, 0)
    assert sorted(one.id for one in parked) == sorted(ids)
    assert {(one.sender, one.participant) for one in parked} == {("spark", "truck-7")}


@pytest.mark.rule("DU-1")
def test_nothing_is_lost_when_the_node_is_killed_meanwhile(tmp_path: Path) -> None:
    with running(tmp_path) as hub:

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(500)
            until(lambda: len(hub.parked()) > 100)
            hub.kill()
            comes_back = threading.Thread(target=hub.start)
            comes_back.start()
            yield rows(500, begin=500)
            comes_back.join(PATIENCE)
            yield rows(500, begin=1_000)

        send_all(batches(), sending(hub.url), batch=None)
        hub.kill()
        payloads = {one.payload.decode() for one in hub.parked()}
    assert payloads == {f"row {number}" for number in range(1_500)}


@pytest.mark.rule("DU-5")
def test_a_full_store_fails_the_task_after_its_timeout(tmp_path: Path) -> None:
    with running(tmp_path, 'store = "store"\n[store]\nmessages = 10\n') as hub:
        with pytest.raises(NotConfirmedError, match="row 0 found no room, QUEUE_FULL"):
            send_all(iter([rows(20)]), sending(hub.url, timeout="1"), batch=None)
        assert hub.parked() == []  # of one receiver, all or none


def test_a_node_without_a_store_is_an_error(tmp_path: Path) -> None:
    no_store = pytest.raises(LocalError, match="'hub' has no store for durable messages")
    with running(tmp_path, "") as hub, no_store:
        send_all(iter([rows(1)]), sending(hub.url), batch=None)
    assert not Sending.of({"via": "tcp://127.0.0.1:1"}, streaming=False).durable
    with pytest.raises(LocalError, match="durable"):
        Sending.of({"via": "tcp://127.0.0.1:1", "durable": "perhaps"}, streaming=False)


def test_a_broken_route_fails_the_task_with_its_row(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        found = pa.record_batch({"route": ["truck-7", ""], "payload": ["a", "b"]})
        with pytest.raises(BadRowError, match="row 1"):
            send_all(iter([found]), sending(hub.url), batch=None)


@pytest.mark.rule("DU-1")
def test_spark_writes_durably(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    frame = spark.range(0, 2_000, 1, 2).select(
        f.concat(f.lit("truck-"), (f.col("id") % 3).cast("string")).alias("route"),
        f.col("id").cast("string").alias("payload"),
    )
    with running(tmp_path) as hub:
        writer = frame.write.format("waystation").mode("append").option("durable", "true")
        writer.options(via=hub.url, campaign="recall").save()
        hub.kill()
        parked = hub.parked()
    assert {int(one.payload) for one in parked} == set(range(2_000))
    assert {one.participant for one in parked} == {"truck-0", "truck-1", "truck-2"}
