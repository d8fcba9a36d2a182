"""Tables that follow a journal: rows a second while it is fed at full speed, and how far behind.

The first part cuts a simulated hour into slices of equal time, as nodes seal their files, and takes
them in slice by slice; `build` over the whole journal stands beside it. "last quarter" against
"first quarter" says whether it stays as fast while the tables grow. The second part has a live node
drop messages, and waits until each is a row of a table: from `send` to the row, with files sealed
four times a second and batches as fast as they come. WAYSTATION_BENCH_WATCH says how many messages
are simulated (1500000; each leaves about three rows).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import waystation
from benchmarks.harness import Report
from waystation import pipeline
from waystation.journal import Journal
from waystation.pipeline.watching import Batch, watch
from waystation.simulate.simulate import simulate

PACKAGES = ("pyspark", "pyarrow", "numpy")
MESSAGES = int(os.environ.get("WAYSTATION_BENCH_WATCH", "1500000"))
NODES = 34
SLICES = 8
DROPS = 60
HOUR = 3_600_000_000
PATIENCE = 120.0


def run(report: Report) -> None:
    spark = pipeline.session("waystation watch")
    try:
        with tempfile.TemporaryDirectory(prefix="waystation-watch-") as directory:
            sustained(report, spark, Path(directory))
        with tempfile.TemporaryDirectory(prefix="waystation-watch-") as directory:
            behind(report, spark, Path(directory))
    finally:
        spark.stop()


def sustained(report: Report, spark: Any, place: Path) -> None:
    """Feed a journal slice by slice, each as soon as the former is in the tables."""
    people = MESSAGES // 30
    simulate(spark, place / "whole", nodes=NODES, participants=people, messages=MESSAGES)
    slices = cut(place / "whole", place / "slices")
    journal = place / "journal"
    journal.mkdir()
    batches: list[Batch] = []
    took = 0.0
    for number in sorted(slices):
        for path in slices[number]:
            target = journal / path.relative_to(place / "slices")
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
        done = watch(
            journal,
            place / "tables",
            place / "checkpoint",
            spark=spark,
            once=True,
            files_at_once=10**6,
            progress=batches.append,
        )
        took += done.seconds
    rows = sum(batch.rows for batch in batches)
    size_text = f"{rows / 1e6:.2g} M rows, {NODES} nodes, {SLICES} batches"
    spent = sum(batch.seconds for batch in batches[1:])
    rates = [batch.rows_per_second for batch in batches]
    quarter = max(1, len(rates) // 4)
    case = f"watch, {size_text}"
    warm = sum(batch.rows for batch in batches[1:]) / spent
    report.add(case, "batches", warm, "rows/s")
    report.add(case, "with Spark's start and listing", rows / took, "rows/s")
    report.add(case, "first quarter", float(np.median(rates[1 : 1 + quarter])), "rows/s")
    report.add(case, "last quarter", float(np.median(rates[-quarter:])), "rows/s")
    start = time.monotonic()
    pipeline.build(journal, place / "built", spark=spark)
    report.add(case, "build, once", rows / (time.monotonic() - start), "rows/s")
    for table in pipeline.TABLES:
        ours, theirs = (
            sum(pq.read_metadata(path).num_rows for path in (place / out / table).glob("*.parquet"))
            for out in ("tables", "built")
        )
        if ours != theirs:
            raise AssertionError(f"{table} has {ours} rows by watch and {theirs} by build")
    shutil.rmtree(place / "built")


def cut(source: Path, target: Path) -> dict[int, list[Path]]:
    """The same journal in files of equal time, as if all nodes sealed at the same instants."""
    found: dict[int, list[Path]] = {}
    starts = [pq.read_table(path, columns=["at"]) for path in source.glob("nodes/*/*.parquet")]
    begin = min(_instants(rows).min() for rows in starts)
    for path in sorted(source.glob("*/node=*/*.parquet")):
        whole = pq.read_table(path, partitioning=None)
        number = np.maximum.accumulate((_instants(whole) - begin) * SLICES // HOUR)
        for which in np.unique(number).tolist():
            rows = np.flatnonzero(number == which)
            part = whole.slice(int(rows[0]), len(rows))
            name = f"{path.name.partition('-')[0]}-{part.column('seq')[0].as_py()}.parquet"
            place = target / path.parent.relative_to(source) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(part, place, compression="zstd")
            found.setdefault(min(which, SLICES - 1), []).append(place)
    return found


def _instants(rows: pa.Table) -> Any:
    return np.asarray(rows.column("at").combine_chunks().view(pa.int64()))


def behind(report: Report, spark: Any, place: Path) -> None:
    """How long after a drop its row is in a table."""
    (place / "journal").mkdir()
    stop = threading.Event()
    options: dict[str, Any] = {"spark": spark, "every": 0, "stop": stop}
    places = place / "journal", place / "tables", place / "checkpoint"
    following = threading.Thread(target=watch, args=places, kwargs=options)
    following.start()
    try:
        waits = sorted(asyncio.run(drop_and_look(place)))
    finally:
        stop.set()
        following.join()
    case = "from a drop to its row, files sealed every 0.25 s"
    for share in (0.5, 0.99):
        value = waits[min(len(waits) - 1, round(share * len(waits)))]
        report.add(case, f"p{share * 100:g}", value, "s")


async def drop_and_look(place: Path) -> list[float]:
    journal = Journal(place / "journal", "garage", flush_seconds=0.05, seal_seconds=0.25)
    waits = []
    async with waystation.Node("garage") as node:
        node.observe(journal.note)
        for number in range(DROPS + 1):
            rows = _dropped(place)
            start = time.monotonic()
            await node.send("nobody", b"")
            while _dropped(place) == rows:
                if time.monotonic() - start > PATIENCE:
                    raise AssertionError("the row does not come")
                await asyncio.sleep(0.01)
            if number:  # the first one waits for Spark
                waits.append(time.monotonic() - start)
    await asyncio.to_thread(journal.close)
    return waits


def _dropped(place: Path) -> int:
    """How many rows the table of verdicts has."""
    while True:
        try:
            paths = list((place / "tables" / "audit").glob("*.parquet"))
            return sum(pq.read_metadata(path).num_rows for path in paths)
        except FileNotFoundError:  # a new version took its place meanwhile
            continue
