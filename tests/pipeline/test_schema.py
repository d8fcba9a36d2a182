"""What nodes write is what the pipeline reads: one schema, for both."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.small import put_rows, row
from waystation import pipeline
from waystation.journal.schema import SCHEMAS
from waystation.pipeline.kernels.checks import KINDS
from waystation.pipeline.kernels.node_data import FileData, Share
from waystation.pipeline.listing import Wanted, list_journal
from waystation.pipeline.schema import JOURNAL, journal_schema, plain_schema, steps_columns
from waystation.pipeline.source.options import Reading


def with_version(table: str) -> pa.Schema:
    """The columns of a file; for messages, the version of their file as well."""
    schema = SCHEMAS[table]
    return schema.append(pa.field("version", pa.int16())) if table == "messages" else schema


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_that_is_written_is_read(table: str) -> None:
    written = with_version(table)
    assert plain_schema(table, every=True) == written
    assert journal_schema(table).remove(0) == written
    assert Reading.of({"path": "/journal", "table": table}).schema.remove(0) == written


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_table_that_is_written_is_checked(table: str) -> None:
    assert KINDS[table]


@pytest.mark.parametrize("table", SCHEMAS)
def test_steps_read_columns_of_the_table_and_all_that_files_must_have(table: str) -> None:
    read = steps_columns(table)
    assert [name for name in with_version(table).names if name in read] == read
    assert {name for name, column in JOURNAL[table].items() if column.required} <= set(read)


def test_a_column_that_was_added_later_is_in_the_frames(
    spark: SparkSession, tmp_path: Path
) -> None:
    put_rows(tmp_path, "members", [row("members", 0, dialect="JGroups 5")])
    [found] = pipeline.read_journal(spark, tmp_path).members.collect()
    assert found["dialect"] == "JGroups 5"


@pytest.mark.parametrize("table", SCHEMAS)
def test_a_file_with_the_required_columns_alone_has_the_others_by_default(
    table: str, tmp_path: Path
) -> None:
    path = put_rows(tmp_path, table, [row(table, 3)])
    least = [name for name, column in JOURNAL[table].items() if column.required]
    pa.parquet.write_table(pa.parquet.read_table(path, partitioning=None).select(least), path)
    [(node, files)] = list_journal(str(tmp_path), Wanted()).nodes.items()
    data = FileData(str(tmp_path), Share(node, files), Wanted())
    [rows] = data.batches(table)
    assert rows.schema == with_version(table)
    assert rows.num_rows == 1
    assert data.rejects == []


def test_messages_know_the_version_of_their_file(tmp_path: Path) -> None:
    put_rows(tmp_path, "messages", [row("messages", 0)])
    put_rows(tmp_path, "messages", [row("messages", 1), row("messages", 2)], version=2)
    path = put_rows(tmp_path, "messages", [row("messages", 3)])
    stray = pa.parquet.read_table(path, partitioning=None)
    stray = stray.append_column("version", pa.array(["theirs"]))
    pa.parquet.write_table(stray, path)
    [(node, files)] = list_journal(str(tmp_path), Wanted()).nodes.items()
    data = FileData(str(tmp_path), Share(node, files), Wanted())
    assert data.events("messages").column("version").to_pylist() == [1, 2, 2, 1]
    assert data.rejects == []
