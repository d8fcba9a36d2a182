"""The registry: what it says of a table holds, and everything else follows from it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.frames import assert_same, collected
from tests.pipeline.journals import busy, journal_of, write
from tests.pipeline.meetings import meetings
from waystation import pipeline
from waystation.errors import LocalError
from waystation.journal.schema import SCHEMAS
from waystation.pipeline.source.options import TABLES as READABLE
from waystation.pipeline.tables import (
    BUILT,
    BY_NAME,
    REGISTRY,
    TABLES,
    WATCHED,
    Table,
    maker,
    part_of,
    passes,
    table_of,
)
from waystation.pipeline.watching.buckets import SHELVES
from waystation.testing.oracle import Tables


@pytest.mark.parametrize("table", REGISTRY, ids=lambda table: table.name)
def test_an_entry_is_complete(table: Table) -> None:
    assert {*table.key, table.day} <= set(table.columns)
    assert set(table.inputs) <= set(SCHEMAS)
    assert table.text.endswith(".")
    assert all(column.text for column in table.columns.values())
    assert table.schema == BUILT[table.name]
    assert table.day == "day" or table.columns[table.day].type == pa.timestamp("us", "UTC")
    assert table.columns["day"].type == pa.date32()
    assert callable(maker(table.made_by))
    assert not table.beside or callable(maker(table.beside))
    assert len({other.split for other in REGISTRY if other.together == table.together}) == 1 or (
        not table.together
    )


def test_names_are_unique_and_in_order() -> None:
    assert [table.name for table in REGISTRY] == list(TABLES)
    assert len(BY_NAME) == len(REGISTRY)


def test_passes_keep_the_order_and_hold_each_table_once() -> None:
    found = [[table.name for table in tables] for tables in passes(reversed(TABLES))]
    assert [name for names in found for name in names] == list(TABLES)
    assert ["expected", "audit"] in found
    assert ["session_history", "coverage", "rejects"] in found
    assert passes([]) == []


def test_what_is_made_node_by_node_can_be_read_by_the_data_source() -> None:
    by_node = [table.name for table in REGISTRY if not table.exchange]
    assert list(READABLE) == [*SCHEMAS, *by_node]


def test_watch_has_a_shelf_for_each_table_that_it_keeps() -> None:
    kept = {kind.table for kind in SHELVES.values() if kind.table is not None}
    assert kept | {"traces", "clocks", "losses", "incidents"} == set(WATCHED)


def test_rows_tell_their_table() -> None:
    rows = pa.table({"a": [1]})
    assert table_of(part_of("health", rows)) == "health"
    assert table_of(rows) is None


@pytest.fixture(scope="module")
def rows() -> Tables:
    tables = journal_of([busy(seed) for seed in range(6)])
    return {**tables, **{name: tables[name] + found for name, found in meetings(2).items()}}


@pytest.fixture(scope="module")
def journal(
    spark: SparkSession, rows: Tables, tmp_path_factory: pytest.TempPathFactory
) -> pipeline.Journal:
    directory = tmp_path_factory.mktemp("registry") / "journal"
    (write(directory, rows) / "routes" / "stray.parquet").write_bytes(b"")
    return pipeline.read_journal(spark, directory)


@pytest.mark.timeout(900)
@pytest.mark.rule("SP-5")
def test_a_build_writes_what_each_frame_holds(
    journal: pipeline.Journal, rows: Tables, tmp_path: Path
) -> None:
    summary = pipeline.build(journal, tmp_path)
    assert summary.rows_in == {table: len(rows.get(table, ())) for table in SCHEMAS}
    for table in TABLES:
        written = pq.read_table(tmp_path / table)
        assert written.schema.equals(BUILT[table]), table
        assert summary.tables[table].rows == written.num_rows
        frame = pipeline.built(journal, table)
        assert_same(written.to_pylist(), frame.toArrow().to_pylist())
        assert written.num_rows, table


def test_the_data_source_reads_what_a_build_writes(
    spark: SparkSession, journal: pipeline.Journal
) -> None:
    pipeline.register(spark)
    for table in (table.name for table in REGISTRY if not table.exchange):
        read = spark.read.format("waystation").option("table", table).load(journal.path)
        assert_same(collected(read), collected(pipeline.built(journal, table)))


def test_a_table_that_is_not_there_is_named(journal: pipeline.Journal) -> None:
    with pytest.raises(LocalError, match="unknown table 'losess'; choose from route_history"):
        pipeline.built(journal, "losess")
