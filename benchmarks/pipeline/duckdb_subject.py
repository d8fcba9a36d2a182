"""DuckDB doing the steps of the pipeline, in one process, with the formulations that suit it best.

Histories: it reads and sorts, numpy folds (folds.py). Look-ups: an ASOF join by participant.
Multicast: distinct ids are joined to patterns shape by shape (shapes.py). Traces: the visits,
deliveries and loops of each message, by two aggregations. Which visit follows which, corrected
clocks and what became of each copy are left out: DuckDB does less there than the pipeline does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.pipeline import folds
from benchmarks.pipeline.shapes import rewriting, shapes_of


class DuckDB:
    """One connection, one journal."""

    name = "DuckDB"

    def __init__(self, journal: Path, out: Path) -> None:
        self._journal = journal
        self._out = out
        self._sql = duckdb.connect()

    def close(self) -> None:
        self._sql.close()

    def _rows(self, table: str) -> str:
        return f"read_parquet('{self._journal}/{table}/node=*/*.parquet', hive_partitioning=true)"

    def _by_node(self, table: str) -> dict[str, pa.Table]:
        """The rows of each node."""
        sorted_rows = f"SELECT * FROM {self._rows(table)} ORDER BY node"  # noqa: S608
        rows = self._sql.sql(sorted_rows).to_arrow_table()
        counts = self._sql.execute(
            f"SELECT node, count(*) FROM {self._rows(table)} GROUP BY node ORDER BY node"  # noqa: S608
        ).fetchall()
        found, first = {}, 0
        for node, count in counts:
            found[node] = rows.slice(first, count)
            first += count
        return found

    def route_history(self) -> None:
        self._fold_routes()
        self._write("route_history", "SELECT * FROM history")

    def _fold_routes(self) -> None:
        self.history = folds.route_history(self._by_node("routes"), self._by_node("nodes"))
        self._sql.register("history", self.history)

    def expected(self) -> None:
        self._fold_routes()
        subscribed = folds.subscription_history(
            self._by_node("subscriptions"), self._by_node("nodes")
        )
        self._sql.register("subscribed", subscribed)
        self._sql.execute(_ENTRIES.format(messages=self._rows("messages")))
        shapes = shapes_of(subscribed.column("pattern").unique().to_pylist())
        joins = " UNION ALL ".join(map(_shape_join, shapes)) or _NO_MATCH
        self._sql.execute(f"CREATE OR REPLACE TEMP TABLE matched AS {joins}")
        self._write("expected", _EXPECTED)

    def traces(self) -> None:
        self._write("traces", _TRACES.format(messages=self._rows("messages")))

    def _write(self, table: str, query: str) -> None:
        self._sql.execute(f"COPY ({query}) TO '{self._file(table)}' (COMPRESSION zstd)")

    def _file(self, table: str) -> Path:
        return self._out / f"{table}.parquet"

    def digest(self, table: str) -> list[tuple[Any, ...]]:
        """What the result comes to, in a form that all subjects can give."""
        return self._sql.execute(DIGESTS[table].format(f"'{self._file(table)}'")).fetchall()


_ENTRIES = """
CREATE OR REPLACE TEMP TABLE entries AS
SELECT row_number() OVER () AS entry, * FROM (
    SELECT message_id, node, incarnation, received_at AS "at", first(kind) AS kind,
        first(onward[1]) AS address, first(len("return")) AS hops, first(expiry) AS expiry,
        first(multicast_id) AS id
    FROM {messages} GROUP BY message_id, node, incarnation, received_at)
"""

_NO_MATCH = "SELECT NULL::VARCHAR AS id, NULL::VARCHAR AS pattern WHERE false"


def _shape_join(shape: str) -> str:
    least, open_ended, kept = rewriting(shape)
    parts = ["'+'" if place is None else f"s[{place + 1}]" for place in kept]
    rewritten = " || '/' || ".join([*parts, *(["'*'"] if open_ended else [])])
    fits = f"len(s) >= {least}" if open_ended else f"len(s) = {least}"
    return f"""
        SELECT id, pattern FROM
            (SELECT id, {rewritten} AS wanted FROM
                (SELECT id, string_split(id, '/') AS s FROM
                    (SELECT DISTINCT id FROM entries WHERE kind = 'multicast'))
                WHERE {fits})
        JOIN (SELECT DISTINCT pattern FROM subscribed) ON pattern = wanted"""  # noqa: S608


_EXPECTED = """
WITH judged AS (
    SELECT *, CASE WHEN expiry IS NOT NULL AND "at" >= expiry THEN 'EXPIRED'
        WHEN hops >= 32 THEN 'HOP_LIMIT' END AS refused FROM entries),
receivers AS (
    SELECT DISTINCT e.entry, s.receiver FROM judged e
    JOIN matched m ON e.id = m.id
    JOIN subscribed s ON s.node = e.node AND s.incarnation = e.incarnation
        AND s.pattern = m.pattern AND s.valid_from <= e."at"
        AND (s.valid_to IS NULL OR e."at" < s.valid_to)
    WHERE e.kind = 'multicast' AND e.refused IS NULL),
asked AS (
    SELECT message_id, node, incarnation, "at", address[3:] AS recipient FROM judged
    WHERE kind = 'unicast' AND refused IS NULL AND address LIKE '0#%'
    UNION ALL
    SELECT e.message_id, e.node, e.incarnation, e."at", r.receiver
    FROM receivers r JOIN judged e ON e.entry = r.entry),
answered AS (
    SELECT a.*, h.address, h.local,
        h.valid_from IS NOT NULL AND (h.valid_to IS NULL OR a."at" < h.valid_to) AS found
    FROM asked a ASOF LEFT JOIN history h ON a.node = h.node AND a.incarnation = h.incarnation
        AND a.recipient = h.participant AND a."at" >= h.valid_from)
SELECT message_id, node, "at", recipient, CASE WHEN found THEN address END AS address,
    CASE WHEN NOT found THEN 'DROPPED' WHEN local THEN 'DELIVERED' ELSE 'FORWARDED' END AS outcome,
    CASE WHEN NOT found THEN 'NO_ROUTE' END AS reason FROM answered
UNION ALL
SELECT message_id, node, "at", NULL, NULL, 'DROPPED', refused FROM judged WHERE refused IS NOT NULL
UNION ALL
SELECT message_id, node, "at", NULL, address, 'FORWARDED', NULL FROM judged
WHERE refused IS NULL AND kind = 'unicast' AND address NOT LIKE '0#%'
UNION ALL
SELECT message_id, node, "at", NULL, NULL, 'DROPPED', 'NO_ROUTE' FROM judged
WHERE refused IS NULL AND kind = 'unicast' AND address IS NULL
UNION ALL
SELECT message_id, node, "at", NULL, NULL, 'DROPPED', 'NO_SUBSCRIBER' FROM judged e
WHERE refused IS NULL AND kind = 'multicast'
    AND NOT EXISTS (SELECT 1 FROM receivers r WHERE r.entry = e.entry)
"""

_TRACES = """
WITH visits AS (
    SELECT message_id, node, incarnation, received_at,
        arg_min(' ' || array_to_string(onward, ' '), seq) AS onward,
        arg_min(coalesce(reason, ''), seq) = 'DUPLICATE' AS again,
        max("at") AS last, count(*) FILTER (outcome = 'DELIVERED') AS delivered
    FROM {messages} GROUP BY message_id, node, incarnation, received_at)
SELECT message_id, min(received_at) AS started, max(last) AS ended, count(*) - 1 AS hops,
    sum(delivered) AS delivered,
    count(*) FILTER (NOT again) > count(DISTINCT (node, onward)) FILTER (NOT again) AS looped
FROM visits GROUP BY message_id
"""

DIGESTS = {
    "route_history": """SELECT coalesce(closed_by, '-') AS word, count(*) AS rows,
        sum(epoch_us(valid_from) % 1000003)::BIGINT AS a,
        coalesce(sum(epoch_us(valid_to) % 1000003), 0)::BIGINT AS b
        FROM {} GROUP BY word ORDER BY word""",
    "expected": """SELECT coalesce(reason, outcome) AS word, count(*) AS rows,
        sum(epoch_us("at") % 1000003)::BIGINT AS a, (count(recipient) + count(address))::BIGINT AS b
        FROM {} GROUP BY word ORDER BY word""",
    "traces": """SELECT concat_ws(' ', looped, delivered > 0) AS word, count(*) AS rows,
        sum(delivered)::BIGINT AS a, sum(hops)::BIGINT AS b
        FROM {} GROUP BY word ORDER BY word""",
}
