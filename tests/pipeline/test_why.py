"""One message, explained from the tables that the pipeline built."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.why.fleets import MadeUp, write_journal
from tests.why.test_why import NOWHERE, one, story
from tests.why.test_why_agrees import told_of
from waystation import pipeline
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError
from waystation.node import Node
from waystation.why import explain
from waystation.why.tables import explain_from_tables


def test_built_tables_give_the_same_explanation(tmp_path: Path, spark: SparkSession) -> None:
    async def lose_one() -> str:
        async with Node("hub", journal=tmp_path / "journal") as node:
            far = Address.parse("tcp#127.0.0.1:1")
            soon = node.now() + 20
            node.put_route(RoutingEntry("truck-3", far, local=False, expiry=soon))
            await asyncio.sleep(0.1)
            return await one(node, "truck-3")

    id = asyncio.run(lose_one())
    pipeline.build(tmp_path / "journal", tmp_path / "tables", spark=spark)
    explanation = explain_from_tables(tmp_path / "tables", id)
    from_journal = explain(tmp_path / "journal", id)
    assert explanation.summary == from_journal.summary
    assert explanation.ways == from_journal.ways
    assert explanation.summary.startswith(
        "dropped at hub, NO_ROUTE: the route to truck-3 had expired "
    )
    assert explanation.hops[0].as_expected
    assert "DROPPED NO_ROUTE (truck-3)" in story(explanation)
    with pytest.raises(LocalError, match="have no message"):
        explain_from_tables(tmp_path / "tables", NOWHERE)
    with pytest.raises(LocalError, match="no table traces"):
        explain_from_tables(tmp_path, id)


def test_every_message_of_a_fleet_is_told_alike(tmp_path: Path, spark: SparkSession) -> None:
    journal = MadeUp(11, 40).journal(old=frozenset({"b"}))
    write_journal(tmp_path / "journal", journal)
    pipeline.build(tmp_path / "journal", tmp_path / "tables", spark=spark)
    for id in sorted({row["message_id"] for row in journal["messages"]}):
        from_tables = explain_from_tables(tmp_path / "tables", id)
        from_journal = explain(tmp_path / "journal", id)
        assert told_of(from_tables) == told_of(from_journal)
        assert [(hop.node, hop.received_at, hop.follows) for hop in from_tables.hops] == [
            (hop.node, hop.received_at, hop.follows) for hop in from_journal.hops
        ]


def test_tables_of_an_earlier_version_are_to_be_built_again(tmp_path: Path) -> None:
    id = f"{9:032x}"
    (tmp_path / "traces").mkdir()
    pq.write_table(pa.table({"message_id": [id]}), tmp_path / "traces" / "part-0.parquet")
    with pytest.raises(LocalError, match="build them again"):
        explain_from_tables(tmp_path, id)
