"""The pipeline itself, on a local Spark, and the cross join that it does without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from waystation import pipeline
from waystation.pipeline.store import RenamingStore
from waystation.pipeline.writing import write_tables


class Spark:
    """One session, one journal. Each step writes its table."""

    name = "waystation"

    def __init__(self, journal: Path, out: Path) -> None:
        self._spark = pipeline.session("bench", config={"spark.driver.memory": "6g"})
        self._path = journal
        self._out = out

    def close(self) -> None:
        self._spark.stop()

    def _frame(self, table: str) -> DataFrame:
        journal = pipeline.read_journal(self._spark, self._path)
        if table == "route_history":
            return pipeline.route_history(journal.routes)
        if table == "traces":
            return pipeline.traces(journal.messages, paths=False)
        return pipeline.expected(
            journal.messages,
            pipeline.route_history(journal.routes),
            pipeline.subscription_history(journal.subscriptions),
        )

    def route_history(self) -> None:
        self._write("route_history")

    def expected(self) -> None:
        self._write("expected")

    def traces(self) -> None:
        self._write("traces")

    def _write(self, table: str) -> None:
        write_tables(self._frame(table), RenamingStore(str(self._out)), [table])

    def cross_join(self) -> None:
        """Publications against patterns by a regular expression: every pair is looked at."""
        journal = pipeline.read_journal(self._spark, self._path)
        patterns = journal.subscriptions.select(
            f.concat(
                f.lit("^"),
                f.regexp_replace(f.regexp_replace("pattern", r"\+", "[^/]+"), r"/\*$", "(/.*)?"),
                f.lit("$"),
            ).alias("expression")
        )
        published = journal.messages.select("message_id", "multicast_id")
        matched = published.join(patterns, f.expr("multicast_id RLIKE expression"))
        matched.write.format("noop").mode("overwrite").save()

    def digest(self, table: str) -> list[tuple[Any, ...]]:
        frame = self._spark.read.parquet(str(self._out / table))
        word, a, b = _DIGESTS[table]
        rows = frame.groupBy(f.expr(word).alias("word")).agg(
            f.count("*"), f.expr(a).cast("long"), f.expr(b).cast("long")
        )
        return sorted(tuple(row) for row in rows.collect())


_DIGESTS = {
    "route_history": (
        "coalesce(closed_by, '-')",
        "sum(unix_micros(valid_from) % 1000003)",
        "coalesce(sum(unix_micros(valid_to) % 1000003), 0)",
    ),
    "expected": (
        "coalesce(reason, outcome)",
        "sum(unix_micros(at) % 1000003)",
        "count(recipient) + count(address)",
    ),
    "traces": (
        "concat_ws(' ', looped, delivered > 0)",
        "sum(delivered)",
        "sum(hops)",
    ),
}
