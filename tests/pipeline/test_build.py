"""A build replaces its tables together, reports its progress, and can be repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.journal.traffic import BEGIN, change_record, claim_record, message_record
from tests.pipeline.small import put_rows, row
from waystation import pipeline
from waystation.core.record import ClaimKind, Record
from waystation.errors import LocalError
from waystation.journal import Journal
from waystation.pipeline import building, store, writing
from waystation.pipeline.store import Place, RenamingStore
from waystation.pipeline.tables import BUILT


def small_journal(directory: Path) -> Path:
    put_rows(directory, "nodes", [row("nodes", 0)])
    put_rows(directory, "routes", [row("routes", 1), row("routes", 2, participant="")])
    put_rows(directory, "messages", [row("messages", 3)])
    return directory


def content(out: Path) -> dict[str, list[str]]:
    return {table: rows_of(out / table) for table in pipeline.TABLES}


def rows_of(table: Path) -> list[str]:
    return sorted(map(str, pq.read_table(table).to_pylist()))


@pytest.mark.rule("SP-5")
def test_a_build_writes_all_tables_and_a_second_one_writes_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, out = small_journal(tmp_path / "journal"), tmp_path / "tables"
    told: list[pipeline.Progress] = []
    summary = pipeline.build(journal, out, spark=spark, progress=told.append)
    assert list(summary.tables) == list(pipeline.TABLES)
    assert summary.rows_in == {
        "nodes": 1, "routes": 2, "subscriptions": 0, "members": 0, "sessions": 0, "claims": 0,
        "messages": 1,
    }  # fmt: skip
    assert summary.rejected == summary.tables["rejects"].rows == 1
    assert [(step.table, step.state) for step in told[:2]] == [
        ("route_history", "started"),
        ("route_history", "done"),
    ]
    assert (told[-1].number, told[-1].of) == (len(pipeline.TABLES),) * 2
    assert [step.rows for step in told if step.table == "rejects"] == [0, 1]
    first = content(out)
    assert [table for table, rows in first.items() if rows] == [
        "route_history", "expected", "audit", "traces", "health", "coverage", "rejects",
    ]  # fmt: skip
    pipeline.build(journal, out, spark=spark, tables=["audit", "route_history", "traces"])
    assert content(out) == first
    assert sorted(path.name for path in out.iterdir()) == sorted(pipeline.TABLES)


@pytest.mark.rule("CL-7")
def test_claims_in_a_journal_change_nothing_that_is_built(
    spark: SparkSession, tmp_path: Path
) -> None:
    records: list[Record] = [change_record(1, "echo"), *map(message_record, range(2, 6))]
    first, last = ([claim_record(number, kind) for kind in ClaimKind] for number in (1, 6))
    for name, noted in (("without", records), ("with", [*first, *records, *last])):
        with Journal(tmp_path / name, "hub-a", incarnation=5, clock=lambda: BEGIN) as journal:
            for record in noted:
                journal.note(record)
        pipeline.build(tmp_path / name, tmp_path / f"{name}-tables", spark=spark)
    assert (tmp_path / "with" / "claims").is_dir()
    assert content(tmp_path / "with-tables") == content(tmp_path / "without-tables")
    assert rows_of(tmp_path / "with-tables" / "traces")


@pytest.mark.rule("SP-5")
def test_a_failed_build_leaves_the_old_table_intact(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = small_journal(tmp_path / "journal"), tmp_path / "tables"
    pipeline.build(journal, out, spark=spark, tables=["route_history"])
    before = pq.read_table(out / "route_history").to_pylist()
    put_rows(journal, "routes", [row("routes", 9, participant="new")])

    def die(place: Place) -> None:
        del place
        raise KeyboardInterrupt

    monkeypatch.setattr(Place, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        pipeline.build(journal, out, spark=spark, tables=["route_history"])
    assert pq.read_table(out / "route_history").to_pylist() == before
    monkeypatch.undo()
    pipeline.build(journal, out, spark=spark, tables=["route_history"])
    assert pq.read_table(out / "route_history").num_rows == len(before) + 1
    assert [path.name for path in out.iterdir()] == ["route_history"]


@pytest.mark.rule("SP-5")
@pytest.mark.timeout(600)
def test_a_killed_build_leaves_every_table_intact(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = small_journal(tmp_path / "journal"), tmp_path / "tables"
    pipeline.build(journal, out, spark=spark, tables=["route_history", "audit"])
    former = {table: rows_of(out / table) for table in ("route_history", "audit")}
    put_rows(journal, "routes", [row("routes", 9, participant="new"), row("routes", 10)])
    kill_in_mid_run(journal, out)
    left = rows_of(out / "route_history")
    assert rows_of(out / "audit") == former["audit"]
    pipeline.build(journal, out, spark=spark, tables=["route_history"])
    newest = rows_of(out / "route_history")
    assert newest != former["route_history"]
    assert left in (former["route_history"], newest)


def kill_in_mid_run(journal: Path, out: Path) -> None:
    """Start a build as a user does, and kill it with all its child processes while it writes."""
    program = str(Path(sys.executable).with_name("waystation"))
    command = [program, "pipeline", "build", "--journal", str(journal), "--out", str(out)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            while not list(out.glob(".*.new")):
                assert process.poll() is None, process.communicate()
                time.sleep(0.001)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_only_files_that_a_task_returned_become_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed or repeated task leaves a hidden file that is never returned."""
    history, place = BUILT["route_history"].empty_table(), Place(tmp_path, "route_history")
    to = RenamingStore(str(tmp_path))
    directories = {"route_history": to.prepare("route_history")}
    told, left = (next(writing.written(directories, iter([history]))) for _ in range(2))
    told = told.set_column(2, "rows", pa.array([5]))
    frame = cast("DataFrame", Told(told.to_pylist()))
    monkeypatch.setattr(to, "prepare", directories.get)
    monkeypatch.setattr(writing, "ended_by", lambda frame, *_: frame)
    done = writing.write_tables(frame, to, directories)
    assert done.rows == {"route_history": 5}
    [shown] = place.hidden.iterdir()
    assert shown.name == told.column("file")[0].as_py()[1:]
    assert left.column("file")[0].as_py()[1:] != shown.name
    assert pq.read_table(shown).schema == history.schema


class Told:
    """A frame that has these rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


def put_table(directory: Path, text: str) -> None:
    directory.mkdir(parents=True)
    (directory / "part").write_text(text)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_table_is_replaced_by_a_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    if not atomic:
        monkeypatch.setattr(store, "_exchange", lambda *_: False)
    place = Place(tmp_path, "audit")
    for text in ("old", "new"):
        put_table(Path(place.prepare()), text)
        place.replace()
    assert (tmp_path / "audit" / "part").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["audit"]


def test_a_kill_between_two_renames_is_repaired(tmp_path: Path) -> None:
    put_table(tmp_path / ".audit.former", "old")
    put_table(tmp_path / ".audit.new", "half")
    Place(tmp_path, "audit").prepare()
    assert (tmp_path / "audit" / "part").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["audit"]


def test_an_impossible_build_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="unknown table 'tracez'"):
        pipeline.build(tmp_path, tmp_path / "out", tables=["tracez"])
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot write the tables"):
        pipeline.build(tmp_path, tmp_path / "file" / "out")


def test_a_session_without_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(LocalError, match="Java, which is not installed; install Java 17 or 21"):
        pipeline.session(config={"spark.app.name": "a new one"})


def test_the_package_itself_imports_no_spark() -> None:
    program = "import sys, waystation; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_steps_use_nothing_that_only_a_classic_session_has() -> None:
    """So they also run on Spark Connect (SP-4)."""
    directory = Path(building.__file__).parent
    for file in directory.glob("*.py"):
        if file.name != "spark_session.py":
            text = file.read_text("utf-8")
            for classic in ("sparkContext", ".rdd", "_jvm", "_jdf"):
                assert classic not in text, f"{file.name} has {classic}"
