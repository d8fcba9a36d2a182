"""Explanations from built tables, without a journal."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.console.live import hub, shown
from waystation.testing import async_test

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
AT = 1_794_814_841_379_000


def build_tables(directory: Path) -> None:
    """The rows of the pipeline about one lost message, as far as an explanation needs them."""
    step = {"node": "hub", "at": AT, "outcome": "DROPPED", "reason": "NO_ROUTE", "next_hop": None}
    instant = pa.timestamp("us", "UTC")
    path = pa.list_(
        pa.struct({
            "node": pa.string(), "at": instant, "outcome": pa.string(), "reason": pa.string(),
            "next_hop": pa.string(),
        })
    )  # fmt: skip
    tables = {
        "traces": pa.table({
            "message_id": [ID], "path": pa.array([[step]], path), "looped": [False],
            "complete": [True],
        }),
        "expected": pa.table({
            "message_id": [ID], "node": ["hub"], "at": pa.array([AT], instant),
            "recipient": ["truck-7"], "address": pa.array([None], pa.string()),
            "outcome": ["DROPPED"], "reason": ["NO_ROUTE"],
        }),
        "audit": pa.table({"message_id": [ID], "node": ["hub"], "verdict": ["ok"]}),
        "route_history": pa.table({
            "node": ["hub"], "participant": ["truck-7"], "address": ["1#10.0.0.7:4000"],
            "local": [False], "expiry": pa.array([AT - 1_200_000], instant),
            "valid_from": pa.array([AT - 60_000_000], instant),
            "valid_to": pa.array([AT - 1_200_000], instant), "closed_by": ["expired"],
        }),
    }  # fmt: skip
    for name, table in tables.items():
        (directory / name).mkdir(parents=True)
        pq.write_table(table, directory / name / "part-0.parquet")


@async_test
async def test_built_tables_explain_what_the_journal_does_not_have(tmp_path: Path) -> None:
    tables, journal = tmp_path / "tables", tmp_path / "journal"
    build_tables(tables)
    journal.mkdir()
    async with hub() as top:
        async with shown(top.url, tables=tables) as browser:
            text = (await browser.get(f"/why?id={ID.upper()}")).text
            assert "truck-7 had expired 1.2 s before" in text
            assert "have no message" in (await browser.get(f"/why?id={'ab' * 16}")).text
        async with shown(top.url, tables=tables, journal=journal) as browser:
            text = (await browser.get(f"/why?id={ID}")).text
            assert "truck-7 had expired 1.2 s before" in text
        async with shown(top.url, tables=journal) as browser:
            assert "has no table traces" in (await browser.get(f"/why?id={ID}")).text
