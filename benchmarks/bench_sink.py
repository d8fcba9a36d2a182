"""Spark's frames into a node, and a journal into Spark: rows a second through the data source.

Sending: a frame of 100-byte payloads to a worker of a node in another process, from the call of
`save` until every message is confirmed; beside it a plain node that sends the same messages from
one process without Spark, and asks for nothing. Reading: one aggregate over the messages of a
simulated journal, through the data source, through `read_journal`, and by Spark's own reader of
Parquet, which checks no row. WAYSTATION_BENCH_ROWS says how many rows are read (1000000).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import waystation
from benchmarks.harness import Report, in_turns, medians_of
from benchmarks.pipeline import journals
from waystation import Node, pipeline

PACKAGES = ("pyspark", "pyarrow", "uvloop")
TURNS = 5
SENT = 300_000
READ = int(os.environ.get("WAYSTATION_BENCH_ROWS", "1000000").split(",")[0])
PAYLOAD = 100


def run(report: Report) -> None:
    spark = pipeline.session("bench sink", master="local[2]")
    pipeline.register(spark)
    try:
        _sending(report, spark)
        _reading(report, spark)
    finally:
        spark.stop()


def _sending(report: Report, spark: SparkSession) -> None:
    with _receiver() as url:
        subjects: dict[str, Callable[[], float]] = {
            name: partial(_send_frame, _frame(spark, tasks), url)
            for name, tasks in {"waystation, 2 tasks": 2, "waystation, 1 task": 1}.items()
        }
        subjects["a node without Spark"] = partial(_send_alone, url)
        for measure in subjects.values():  # warm up
            measure()
        found = medians_of(in_turns(subjects, TURNS))
    report.note(f"send a frame, {PAYLOAD} B each", found, "rows/s")


def _frame(spark: SparkSession, tasks: int) -> DataFrame:
    rows = spark.range(0, SENT, 1, tasks)
    text = f.rpad(f.col("id").cast("string"), PAYLOAD, "x")
    frame = rows.select(f.lit("sink").alias("route"), text.alias("payload")).cache()
    frame.count()
    return frame


def _send_frame(frame: DataFrame, url: str) -> float:
    start = time.perf_counter()
    frame.write.format("waystation").mode("append").option("via", url).save()
    return SENT / (time.perf_counter() - start)


def _send_alone(url: str) -> float:
    return waystation.run(_send_from_here(url))


async def _send_from_here(url: str) -> float:
    payload = b"x" * PAYLOAD
    async with Node("alone") as node:
        await node.connect(url, name="via")
        start = time.perf_counter()
        for _ in range(SENT):
            await node.send("via => sink", payload)
        await node.request("via => done", b"")
        return SENT / (time.perf_counter() - start)


@contextmanager
def _receiver() -> Iterator[str]:
    """A node in another process; gives its URL."""
    command = [sys.executable, "-m", "benchmarks.bench_sink"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.terminate()


async def _receive() -> None:
    async with Node("receiver", hub=True) as node:
        node.start_worker(("sink",), lambda *_: None, inbox=10_000)

        @node.worker("done")
        async def done(_: waystation.Message, context: waystation.Context) -> None:
            await context.reply(b"")

        print((await node.listen("tcp://127.0.0.1:0")).url, flush=True)
        await asyncio.Event().wait()


def _reading(report: Report, spark: SparkSession) -> None:
    place = journals.messages(READ)
    node = min(path.name for path in (place / "messages").iterdir()).removeprefix("node=")
    frames: dict[str, Callable[[], DataFrame]] = {
        "waystation": lambda: spark.read.format("waystation").load(str(place)),
        "waystation, 4 columns": lambda: (
            spark.read.format("waystation")
            .schema("node string, outcome string, at timestamp, bytes int")
            .load(str(place))
        ),
        "read_journal": lambda: pipeline.read_journal(spark, place).messages,
        "Spark's Parquet reader": lambda: spark.read.parquet(str(place / "messages")),
    }
    for what, narrow in {"all": "true", "one node of": f"node = '{node}'"}.items():
        subjects = {name: partial(_aggregate, make, narrow) for name, make in frames.items()}
        rows = {name: measure()[0] for name, measure in subjects.items()}
        assert len(set(rows.values())) == 1, rows
        found = in_turns(subjects, TURNS)
        seconds = medians_of({name: [took for _, took in turns] for name, turns in found.items()})
        rates = {name: next(iter(rows.values())) / took for name, took in seconds.items()}
        report.note(f"read {what} {READ:,} messages", rates, "rows/s")


def _aggregate(make: Callable[[], DataFrame], narrow: str) -> tuple[int, float]:
    start = time.perf_counter()
    [row] = make().where(narrow).agg(f.count("*"), f.sum("bytes"), f.max("at")).collect()
    return int(row[0]), time.perf_counter() - start


if __name__ == "__main__":
    waystation.run(_receive())
