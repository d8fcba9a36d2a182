"""Journals and tables in an object store: the same rows as on a local disk, and never a mixture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.pipeline.s3_server import bucket, put_directory, s3_endpoint
from tests.pipeline.small import put_rows, row
from tests.pipeline.test_build import small_journal
from tests.pipeline.test_incidents import written
from waystation import pipeline
from waystation.cli import waystation
from waystation.errors import LocalError
from waystation.journal.filesystems import file_system, files_below
from waystation.pipeline.lost import Question, lost_in_journal
from waystation.pipeline.store import DeltaStore, opened_store
from waystation.report import write_report
from waystation.simulate.fleet import Fleet
from waystation.why.finished import StoredTables, read_build
from waystation.why.tables import explain_from_tables

__all__ = ["bucket", "s3_endpoint"]

ID = f"{7:032x}"


def content(out: str | Path) -> dict[str, list[Any]]:
    """The rows of all tables at a place, as our readers see them."""
    stored = StoredTables(out)
    found = {table: stored.dataset(table) for table in pipeline.TABLES}
    return {
        table: sorted(map(repr, dataset.to_table().to_pylist()))
        for table, dataset in found.items()
        if dataset is not None
    }


@pytest.mark.rule("SP-7")
@pytest.mark.timeout(300)
def test_a_journal_in_s3_gives_the_same_tables_in_s3(
    spark: SparkSession, tmp_path: Path, bucket: str
) -> None:
    journal = small_journal(tmp_path / "journal")
    put_directory(journal, f"{bucket}/journal")
    pipeline.build(journal, tmp_path / "tables", spark=spark)
    scheme_of_hadoop = bucket.replace("s3://", "s3a://")
    done = pipeline.build(f"{scheme_of_hadoop}/journal/", f"{bucket}/tables", spark=spark)
    assert done.out == f"{bucket}/tables"
    assert content(done.out) == content(tmp_path / "tables")
    assert not list(tmp_path.glob("s3*"))
    here = explain_from_tables(tmp_path / "tables", ID)
    assert explain_from_tables(done.out, ID) == here
    write_report(done.out, tmp_path / "there.html", title="The same")
    write_report(tmp_path / "tables", tmp_path / "here.html", title="The same")
    texts = [(tmp_path / f"{name}.html").read_text() for name in ("here", "there")]
    assert texts[0].replace(str(tmp_path / "tables"), "T") == texts[1].replace(done.out, "T")


@pytest.mark.rule("SP-7")
def test_what_was_lost_is_found_in_a_journal_in_s3(tmp_path: Path, bucket: str) -> None:
    here = written(tmp_path / "journal", Fleet(9, 120, 1_000, seed=7, gaps=True))
    there = f"{bucket}/journal"
    put_directory(here, there)
    question = ("lost", "--json", "--internal")
    answer = said(*question, "--journal", here)
    losses = json.loads(answer)["losses"]
    assert len(losses) > 50
    assert said(*question, "--journal", f"{there.replace('s3:', 's3a:')}/") == answer
    name = next(loss["recipient"] for loss in losses if loss["recipient"])
    asked = (*question, "--participant", name)
    assert said(*asked, "--journal", there) == said(*asked, "--journal", here)
    assert lost_in_journal(there, Question(participant=name), large=0).losses
    for place, hint in (there, "--tables TABLES"), (here.as_uri(), f"--journal {here}"):
        assert said("lost", "--journal", place).splitlines()[-1].endswith(hint)


def said(*arguments: object) -> str:
    result = CliRunner().invoke(waystation, [str(part) for part in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.rule("SP-7")
def test_what_cannot_be_read_from_a_store_is_refused_in_one_line(bucket: str) -> None:
    refused = CliRunner().invoke(waystation, ["why", "--last-loss", "--journal", f"{bucket}/j"])
    assert refused.exit_code == 2
    said = " ".join(refused.output.split())
    assert "is in a store; build its tables with `waystation pipeline build` and give --tab" in said
    nothing = CliRunner().invoke(waystation, ["lost", "--journal", f"{bucket}/nowhere"])
    assert nothing.exit_code == 1
    assert "/nowhere' is not a journal" in str(nothing.exception)
    unknown = CliRunner().invoke(waystation, ["lost", "--journal", "ftp://fleet/journal"])
    assert unknown.exit_code == 2
    assert "is in no store that is supported" in unknown.output


@pytest.fixture(params=["s3", "local"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place for Delta tables."""
    if request.param == "s3":
        yield f"{request.getfixturevalue('bucket')}/tables"
    else:
        yield str(tmp_path / "tables")


class KilledError(BaseException):
    """As if the process had been killed there."""


@pytest.mark.rule("SP-7")
@pytest.mark.timeout(300)
def test_a_build_that_ends_in_mid_commit_leaves_the_old_tables(
    spark: SparkSession, tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = small_journal(tmp_path / "journal")
    tables = ("route_history", "audit", "coverage")
    pipeline.build(journal, out, spark=spark, tables=tables, format="delta")
    before, during = content(out), StoredTables(out)
    put_rows(journal, "routes", [row("routes", 9, participant="new")])
    commit = DeltaStore._commit

    def die(store: DeltaStore, table: str, *rest: Any) -> int:
        if table == "coverage":
            raise KilledError
        return commit(store, table, *rest)

    monkeypatch.setattr(DeltaStore, "_commit", die)
    with pytest.raises(KilledError):
        pipeline.build(journal, out, spark=spark, tables=tables, format="delta")
    assert content(out) == before  # although a newer version of two tables is committed
    monkeypatch.setattr(DeltaStore, "_commit", commit)
    pipeline.build(journal, out, spark=spark, tables=tables, format="delta")
    after = content(out)
    assert len(after["route_history"]) == len(before["route_history"]) + 1
    old = during.dataset("route_history")  # whoever had opened the tables still reads theirs
    assert old is not None
    assert sorted(map(repr, old.to_table().to_pylist())) == before["route_history"]


@pytest.mark.rule("SP-7")
def test_what_is_not_supported_is_refused_before_anything_is_written(
    tmp_path: Path, bucket: str
) -> None:
    with pytest.raises(LocalError, match="S3 has no renames; give --format delta"):
        opened_store(f"{bucket}/tables", "parquet")
    with pytest.raises(
        LocalError, match=r"cannot write to s3://nobody/tables: .*bucket does not exist"
    ):
        opened_store("s3://nobody/tables")
    with pytest.raises(LocalError, match="unknown format 'orc'"):
        opened_store(tmp_path / "tables", "orc")
    system, path = file_system(bucket)
    assert not list(files_below(system, path))
    assert not (tmp_path / "tables").exists()


@pytest.mark.rule("SP-7")
def test_formats_are_not_mixed_in_one_directory(tmp_path: Path) -> None:
    opened_store(tmp_path / "delta", "delta")
    with pytest.raises(LocalError, match="are Delta tables"):
        opened_store(tmp_path / "delta", "parquet")
    nobody: Any = object()
    with pytest.raises(LocalError, match="are Delta tables; give another directory"):
        pipeline.watch(tmp_path, tmp_path / "delta", tmp_path / "checkpoint", spark=nobody)
    (tmp_path / "plain" / "audit").mkdir(parents=True)
    with pytest.raises(LocalError, match="are not Delta tables"):
        opened_store(tmp_path / "plain", "delta")


@pytest.mark.rule("SP-7")
def test_watch_refuses_stores(tmp_path: Path) -> None:
    places = [str(tmp_path)] * 3
    nobody: Any = object()
    for number in range(3):
        given = [*places]
        given[number] = "s3://fleet/somewhere"
        with pytest.raises(LocalError, match="cannot be in 's3://fleet/somewhere'"):
            pipeline.watch(*given, spark=nobody)
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.journal.filesystems.find_spec", lambda _: None)
    with pytest.raises(LocalError, match=r"needs deltalake.*pip install 'waystation\[stores\]'"):
        opened_store(tmp_path, "delta")
    with pytest.raises(LocalError, match=r"needs hdfs-native.*pip install 'waystation\[stores\]'"):
        opened_store("hdfs://127.0.0.1:9/tables")


def test_the_files_of_a_table_keep_statistics_and_bloom_filters(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, out = small_journal(tmp_path / "journal"), tmp_path / "tables"
    pipeline.build(journal, out, spark=spark, tables=["audit"], format="delta")
    build = read_build(out)
    assert build is not None
    table = DeltaTable(str(out / "audit"), version=build.tables["audit"])
    told = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sum(action["num_records"] for action in told) == len(content(out)["audit"])
    assert all("max.received_at" in action for action in told if action["num_records"])
    for uri in table.file_uris():
        footer = pq.read_metadata(uri)
        if footer.num_rows:
            chunks = [footer.row_group(0).column(n) for n in range(footer.num_columns)]
            filtered = {c.path_in_schema for c in chunks if c.bloom_filter_offset is not None}
            assert filtered == {"message_id", "recipient"}


@pytest.mark.rule("SP-7")
def test_other_readers_of_a_delta_table_find_every_value_of_every_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, out = small_journal(tmp_path / "journal"), tmp_path / "tables"
    pipeline.build(journal, out, spark=spark, tables=["audit", "traces"], format="delta")
    for name in ("audit", "traces"):
        table = DeltaTable(str(out / name))
        every = table.to_pyarrow_table()
        assert every.num_rows
        for column in every.schema:
            held = every[column.name].drop_null()
            if len(held) and not pa.types.is_nested(column.type):
                found = table.to_pyarrow_table(filters=[(column.name, "=", held[0])])
                assert found.num_rows == held.to_pylist().count(held[0].as_py()), column.name
        nothing = [c.name for c in every.schema if every[c.name].null_count == every.num_rows]
        for missing in nothing:
            found = table.to_pyarrow_dataset().to_table(filter=pc.field(missing).is_null())
            assert found.num_rows == every.num_rows, missing
