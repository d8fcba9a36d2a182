"""Explanations from built tables, without a journal."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.console.live import hub, shown
from waystation.pipeline.tables import BUILT
from waystation.testing import async_test

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
AT = 1_794_814_841_379_000


def build_tables(directory: Path) -> None:
    """The rows of the pipeline about one lost message, as far as an explanation needs them."""
    here = {"node": "hub", "incarnation": 1}
    dropped = {"outcome": "DROPPED", "reason": "NO_ROUTE", "recipient": "truck-7"}
    counts = {"hops": 0, "legs": 1, "delivered": 0, "lost_copies": 1, "unknown_copies": 0}
    trace = {
        "message_id": ID, "origin": "hub/1", "started": AT, "ended": AT, "latency_ms": 0.0,
        "path": [{**here, **dropped, "at": AT, "received_at": AT, "depth": 0}],
        **dropped, **counts, "left_fleet": 0, "waiting": 0, "fates": ["dropped"],
        "lost": [{**here, **dropped, "at": AT, "received_at": AT, "onward": "0#truck-7"}],
        "durable": False, "complete": False, "looped": False, "internal": False,
    }  # fmt: skip
    rows = {
        "traces": trace,
        "expected": {"message_id": ID, **here, "at": AT, "received_at": AT, **dropped},
        "audit": {"message_id": ID, **here, "received_at": AT, "verdict": "ok"},
        "route_history": {
            **here, "participant": "truck-7", "address": "1#10.0.0.7:4000", "local": False,
            "expiry": AT - 1_200_000, "valid_from": AT - 60_000_000,
            "valid_to": AT - 1_200_000, "closed_by": "expired",
        },
    }  # fmt: skip
    for name, row in rows.items():
        (directory / name).mkdir(parents=True)
        table = pa.Table.from_pylist([row], BUILT[name])
        pq.write_table(table, directory / name / "part-0.parquet")


@async_test
async def test_built_tables_explain_what_the_journal_does_not_have(tmp_path: Path) -> None:
    tables, journal = tmp_path / "tables", tmp_path / "journal"
    build_tables(tables)
    journal.mkdir()
    async with hub() as top:
        async with shown(top.url, tables=tables) as browser:
            text = (await browser.get(f"/why?id={ID.upper()}")).text
            assert "the route to truck-7 had expired 1.2 s before" in text
            assert "have no message" in (await browser.get(f"/why?id={'ab' * 16}")).text
        async with shown(top.url, tables=tables, journal=journal) as browser:
            text = (await browser.get(f"/why?id={ID}")).text
            assert "the route to truck-7 had expired 1.2 s before" in text
        async with shown(top.url, tables=journal) as browser:
            assert "has no table traces" in (await browser.get(f"/why?id={ID}")).text
