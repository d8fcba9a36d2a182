"""Polars doing the steps of the pipeline, in one process, with the formulations that suit it best.

Histories: it reads and partitions, numpy folds (folds.py). Look-ups: an as-of join by participant.
Multicast: distinct ids are joined to patterns shape by shape (shapes.py). Traces: the visits,
deliveries and loops of each message, as in DuckDB's subject, which says what is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from benchmarks.pipeline import folds
from benchmarks.pipeline.shapes import rewriting, shapes_of

_ENTRY = ["message_id", "node", "incarnation", "received_at"]
_HOLDER = ["node", "incarnation", "recipient"]


class Polars:
    """One journal."""

    name = "Polars"

    def __init__(self, journal: Path, out: Path) -> None:
        self._journal = journal
        self._out = out

    def close(self) -> None:
        pass

    def _write(self, table: str, rows: pl.DataFrame) -> None:
        rows.write_parquet(self._out / f"{table}.parquet", compression="zstd")

    def _rows(self, table: str) -> pl.LazyFrame:
        return pl.scan_parquet(f"{self._journal}/{table}/node=*/*.parquet", hive_partitioning=True)

    def _by_node(self, table: str) -> dict[str, pa.Table]:
        parts = self._rows(table).collect().partition_by("node", as_dict=True)
        return {str(key[0]): _plain(part.to_arrow()) for key, part in parts.items()}

    def route_history(self) -> None:
        self._write("route_history", self._fold_routes())

    def _fold_routes(self) -> pl.DataFrame:
        return _frame(folds.route_history(self._by_node("routes"), self._by_node("nodes")))

    def expected(self) -> None:
        history = self._fold_routes()
        subscribed = _frame(
            folds.subscription_history(self._by_node("subscriptions"), self._by_node("nodes"))
        )
        entries = self._entries()
        refused = entries.filter(pl.col("refused").is_not_null())
        entries = entries.filter(pl.col("refused").is_null())
        unicast = entries.filter(pl.col("kind") == "unicast")
        local = unicast["address"].str.starts_with("0#")
        receivers = _receivers(entries.filter(pl.col("kind") == "multicast"), subscribed)
        unwanted = entries.filter(pl.col("kind") == "multicast").join(
            receivers, on="entry", how="anti"
        )
        asked = pl.concat(
            [
                unicast.filter(local).with_columns(recipient=pl.col("address").str.slice(2)),
                entries.join(receivers, on="entry"),
            ],
            how="diagonal",
        ).select("message_id", "at", *_HOLDER)
        parts = [
            _looked_up(asked, history),
            _dropped(refused, pl.col("refused")),
            _dropped(unwanted, pl.lit("NO_SUBSCRIBER")),
            _dropped(unicast.filter(local.is_null()), pl.lit("NO_ROUTE")),
            unicast.filter(~local).select(
                "message_id",
                "node",
                "at",
                "address",
                recipient=pl.lit(None, pl.String),
                outcome=pl.lit("FORWARDED"),
                reason=pl.lit(None, pl.String),
            ),
        ]
        order = ["message_id", "node", "at", "recipient", "address", "outcome", "reason"]
        self._write("expected", pl.concat([part.select(order) for part in parts]))

    def _entries(self) -> pl.DataFrame:
        rows = self._rows("messages").select(
            *_ENTRY,
            "kind",
            "expiry",
            at=pl.col("received_at"),
            id=pl.col("multicast_id"),
            address=pl.col("onward").list.get(0, null_on_oob=True),
            hops=pl.col("return").list.len(),
        )
        expired = pl.col("at") >= pl.col("expiry")
        refused = pl.when(expired).then(pl.lit("EXPIRED")).when(pl.col("hops") >= 32)
        return (
            rows.unique(_ENTRY, keep="any")
            .with_columns(refused=refused.then(pl.lit("HOP_LIMIT")))
            .collect()
            .with_row_index("entry")
        )

    def traces(self) -> None:
        by_seq = pl.col("onward", "reason").sort_by("seq").first()
        visits = (
            self._rows("messages")
            .select(
                *(*_ENTRY, "at", "seq", "outcome", "reason"),
                onward=pl.lit(" ") + pl.col("onward").list.join(" "),
            )
            .group_by(_ENTRY)
            .agg(
                by_seq, last=pl.col("at").max(), delivered=(pl.col("outcome") == "DELIVERED").sum()
            )
        )
        entered = pl.struct("node", "onward").filter(pl.col("reason").ne_missing("DUPLICATE"))
        found = visits.group_by("message_id").agg(
            started=pl.col("received_at").min(),
            ended=pl.col("last").max(),
            hops=pl.len() - 1,
            delivered=pl.col("delivered").sum(),
            looped=entered.len() > entered.n_unique(),
        )
        self._write("traces", found.collect())

    def digest(self, table: str) -> list[tuple[Any, ...]]:
        word, a, b = _DIGESTS[table]
        written = pl.scan_parquet(self._out / f"{table}.parquet")
        rows = written.group_by(word=word).agg(rows=pl.len(), a=a, b=b).sort("word").collect()
        return rows.rows()


def _plain(rows: pa.Table) -> pa.Table:
    """Polars' own kinds of text, as the fold knows them."""
    fields = []
    for field in rows.schema:
        text = pa.types.is_large_string(field.type) or field.type == pa.string_view()
        fields.append(pa.field(field.name, pa.string() if text else field.type))
    return rows.cast(pa.schema(fields))


def _frame(rows: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _looked_up(asked: pl.DataFrame, history: pl.DataFrame) -> pl.DataFrame:
    known = history.select(
        "node", "incarnation", "address", "local", "valid_from", "valid_to",
        recipient=pl.col("participant"),
    )  # fmt: skip
    joined = asked.sort("at").join_asof(
        known.sort("valid_from"),
        left_on="at",
        right_on="valid_from",
        by=_HOLDER,
        strategy="backward",
        check_sortedness=False,
    )
    held = pl.col("valid_to").is_null() | (pl.col("at") < pl.col("valid_to"))
    found = pl.col("valid_from").is_not_null() & held
    outcome = pl.when(~found).then(pl.lit("DROPPED")).when(pl.col("local"))
    return joined.with_columns(
        address=pl.when(found).then("address"),
        outcome=outcome.then(pl.lit("DELIVERED")).otherwise(pl.lit("FORWARDED")),
        reason=pl.when(~found).then(pl.lit("NO_ROUTE")),
    )


def _dropped(entries: pl.DataFrame, reason: pl.Expr) -> pl.DataFrame:
    nothing = pl.lit(None, pl.String)
    return entries.select(
        "message_id",
        "node",
        "at",
        recipient=nothing,
        address=nothing,
        outcome=pl.lit("DROPPED"),
        reason=reason,
    )


def _receivers(published: pl.DataFrame, subscribed: pl.DataFrame) -> pl.DataFrame:
    """Who gets each publication: `entry` and `recipient`."""
    ids = published.select("id").unique().with_columns(s=pl.col("id").str.split("/"))
    patterns = subscribed.select("pattern").unique()
    matched = [_shape_join(ids, patterns, shape) for shape in shapes_of(patterns["pattern"])]
    if not matched:
        matched = [pl.DataFrame(schema={"id": pl.String, "pattern": pl.String})]
    covered = published.join(pl.concat(matched), on="id").join(
        subscribed, on=["node", "incarnation", "pattern"]
    )
    open_still = pl.col("valid_to").is_null() | (pl.col("at") < pl.col("valid_to"))
    live = covered.filter((pl.col("valid_from") <= pl.col("at")) & open_still)
    return live.select("entry", recipient=pl.col("receiver")).unique()


def _shape_join(ids: pl.DataFrame, patterns: pl.DataFrame, shape: str) -> pl.DataFrame:
    least, open_ended, kept = rewriting(shape)
    length = pl.col("s").list.len()
    fitting = ids.filter(length >= least if open_ended else length == least)
    parts = [pl.lit("+") if n is None else pl.col("s").list.get(n) for n in kept]
    wanted = pl.concat_str([*parts, *([pl.lit("*")] if open_ended else [])], separator="/")
    return fitting.select("id", pattern=wanted).join(patterns, on="pattern")


def _rest(name: str) -> pl.Expr:
    micros = pl.col(name).dt.epoch("us") % 1_000_003
    return micros.sum().cast(pl.Int64)


_DIGESTS: dict[str, tuple[pl.Expr, pl.Expr, pl.Expr]] = {
    "route_history": (pl.col("closed_by").fill_null("-"), _rest("valid_from"), _rest("valid_to")),
    "expected": (
        pl.coalesce("reason", "outcome"),
        _rest("at"),
        (pl.col("recipient").count() + pl.col("address").count()).cast(pl.Int64),
    ),
    "traces": (
        pl.concat_str("looped", pl.col("delivered") > 0, separator=" "),
        pl.col("delivered").sum().cast(pl.Int64),
        pl.col("hops").sum().cast(pl.Int64),
    ),
}
