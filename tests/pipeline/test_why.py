"""One message, explained from the tables that the pipeline built."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.why.test_why import NOWHERE, one, story
from waystation import pipeline
from waystation.core.address import Address
from waystation.core.routing import RoutingEntry
from waystation.errors import LocalError
from waystation.node import Node
from waystation.pipeline.tables import BUILT
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
    assert explanation.summary.startswith("dropped at hub, NO_ROUTE: truck-3 had expired ")
    assert explanation.hops[0].as_expected
    assert "DROPPED NO_ROUTE (truck-3)" in story(explanation)
    with pytest.raises(LocalError, match="have no message"):
        explain_from_tables(tmp_path / "tables", NOWHERE)
    with pytest.raises(LocalError, match="no table traces"):
        explain_from_tables(tmp_path, id)


def test_a_node_that_records_late_still_comes_first(tmp_path: Path) -> None:
    id = f"{9:032x}"
    dropped = {"node": "hub", "at": 20, "outcome": "DROPPED", "reason": "NO_ROUTE"}
    passed_on = {"node": "truck", "at": 30, "outcome": "FORWARDED", "next_hop": "1#h:1"}
    rows = {
        "traces": [{"message_id": id, "path": [dropped, passed_on], "complete": False}],
        "expected": [
            {"message_id": id, "node": node, "at": at, "outcome": "DROPPED"}
            for node, at in (("truck", 10), ("hub", 15))
        ],
        "audit": [],
        "route_history": [],
    }
    for table, found in rows.items():
        (tmp_path / table).mkdir()
        pq.write_table(
            pa.Table.from_pylist(found, BUILT[table]), tmp_path / table / "part-0.parquet"
        )
    explanation = explain_from_tables(tmp_path, id)
    assert [hop.node for hop in explanation.hops] == ["truck", "hub"]
    assert explanation.summary.startswith("dropped at hub, NO_ROUTE")
    assert explanation.remarks == ()
