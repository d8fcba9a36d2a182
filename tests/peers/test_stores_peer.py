"""Journals and tables in a real S3 server and a real HDFS; what other programs read of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.journal.test_ship import files_in
from tests.peers.hadoop_peer import hdfs
from tests.peers.kept import PeerMissing, called, kept, needed
from tests.pipeline.elsewhere import small_fleet
from tests.pipeline.s3_server import bucket_at, put_directory, s3_server, settings_for
from tests.pipeline.test_stores import content
from waystation.demo.processes import WAYSTATION
from waystation.journal.filesystems import file_system, files_below, storage_options
from waystation.why.finished import StoredTables

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_800)]
WAIT_SECONDS = 900.0


@pytest.fixture(scope="module", params=["s3", "hdfs"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URI of an empty store; the environment says how to reach it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "s3":
            with s3_server() as endpoint:
                for name, value in settings_for(endpoint).items():
                    patch.setenv(name, value)
                yield bucket_at(endpoint)
        else:
            with hdfs(tmp_path_factory.mktemp("hdfs")) as place:
                yield f"{place}/fleet"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_fleet(tmp_path_factory.mktemp("fleet") / "journal")


@pytest.fixture(scope="module")
def expected(journal: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The tables that a build on the local disk makes."""
    out = tmp_path_factory.mktemp("local") / "tables"
    command("pipeline", "build", "--journal", journal, "--out", out)
    return content(out)


def command(*arguments: object, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [*WAYSTATION, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
        env=os.environ | environment,
    )
    assert done.returncode == code, done
    return done.stdout + done.stderr


@pytest.mark.rule("SP-7")
@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_shipped_journal_is_built_where_it_is(
    store: str, journal: Path, expected: dict[str, list[Any]], tmp_path: Path, format: str
) -> None:
    if format == "parquet" and store.startswith("s3"):
        pytest.skip("S3 has no renames")
    there, out = f"{store}/journal", f"{store}/tables-{format}"
    command("journal", "ship", journal, "--to", there, "--once")
    assert "0 files" in command("journal", "ship", journal, "--to", there, "--once")
    system, path = file_system(there)
    arrived = {
        info.path[len(path) + 1 :]: system.open_input_stream(info.path).read()
        for info in files_below(system, path)
        if info.path.endswith(".parquet")
    }
    assert arrived == files_in(journal)
    command("pipeline", "build", "--journal", there, "--out", out, "--format", format)
    assert content(out) == expected
    page = tmp_path / "report.html"
    command("pipeline", "report", "--tables", out, "--out", page)
    assert page.stat().st_size > 10_000
    id = StoredTables(out).dataset("traces").to_table(["message_id"])[0][0].as_py()  # type: ignore[union-attr]
    assert id in command("why", id, "--tables", out)
    at = ("--at", "2026-01-01T00:00:00", "--conf", "spark.sql.shuffle.partitions=2")
    local = command("pipeline", "table", "--journal", journal, *at)
    assert command("pipeline", "table", "--journal", there, *at) == local


@pytest.mark.rule("SP-7")
def test_a_build_that_is_killed_while_it_commits_leaves_the_old_tables(
    store: str, journal: Path, expected: dict[str, list[Any]]
) -> None:
    out = f"{store}/killed"
    build = ("pipeline", "build", "--journal", journal, "--out", out, "--format", "delta")
    command(*build)
    before = StoredTables(out)
    for commits in (1, 3):
        done = kill_after_commits(commits, build)
        assert done == -signal.SIGKILL
        assert content(out) == expected
    command(*build)
    assert content(out) == expected
    dataset = before.dataset("traces")  # a reader that began before still reads what it opened
    assert dataset is not None
    assert sorted(map(repr, dataset.to_table().to_pylist())) == expected["traces"]


def kill_after_commits(commits: int, arguments: tuple[object, ...]) -> int:
    """Run a build that is killed, by its own hand, after that many commits."""
    program = (
        "import os, signal, sys\n"
        "from waystation.pipeline import store\n"
        "commit, done = store.DeltaStore._commit, []\n"
        "def count(self, table, *what):\n"
        f"    if len(done) == {commits}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    done.append(table)\n"
        "    return commit(self, table, *what)\n"
        "store.DeltaStore._commit = count\n"
        "from waystation.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            process.wait(WAIT_SECONDS)
        finally:
            with_children_killed(process)
    return process.returncode


def with_children_killed(process: subprocess.Popen[bytes]) -> None:
    """Java outlives its driver for a moment; it is of the same process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        time.sleep(0)


def test_other_programs_read_the_tables(
    store: str, journal: Path, expected: dict[str, list[Any]]
) -> None:
    out = f"{store}/read"
    command("pipeline", "build", "--journal", journal, "--out", out, "--format", "delta")
    for table in ("traces", "audit", "route_history"):
        place = f"{out}/{table}"
        opened = DeltaTable(place, storage_options=storage_options(place))
        rows = len(expected[table])
        assert opened.to_pandas().shape[0] == rows
        lazy = pl.scan_delta(opened)
        assert lazy.select(pl.len()).collect().item() == rows
        arrow = opened.to_pyarrow_table()
        with duckdb.connect() as connection:
            connection.register("arrow", arrow)
            [(counted,)] = connection.execute("select count(*) from arrow").fetchall()
        assert counted == rows == arrow.num_rows
        if "message_id" in arrow.column_names:
            id = arrow["message_id"][0].as_py()
            found = opened.to_pyarrow_table(filters=[("message_id", "=", id)])
            assert found.num_rows == arrow.column("message_id").to_pylist().count(id)
        times = [field.name for field in arrow.schema if str(field.type).startswith("timestamp")]
        for name in times:  # the statistics leave out no file that has the row
            value = arrow[name].drop_null()[0]
            kept = opened.to_pyarrow_table(filters=[(name, "=", value)])
            assert kept.num_rows == arrow[name].to_pylist().count(value.as_py())


OLDEST = "4.0.0"
"""The oldest PySpark that pyproject.toml allows; all other tests use the newest."""


def oldest_pyspark() -> Path:
    """The directory of that release, with what it needs of its own."""

    def make(sources: dict[str, bytes], home: Path) -> None:
        del sources
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            target = Path(scratch) / "packages"
            uv = str(Path(sys.executable).with_name("uv"))
            wanted = ("--no-deps", f"pyspark=={OLDEST}", "py4j==0.10.9.9")
            done = called(
                [uv, "pip", "install", "--target", str(target), *wanted], home.parent, 900
            )
            if done.returncode:
                raise PeerMissing(f"uv failed: {done.stderr[-400:]}")
            target.rename(home)  # seen whole or not at all

    return kept("pyspark-oldest", {"version": OLDEST.encode()}, make)


@pytest.mark.rule("SP-4")
def test_the_oldest_pyspark_builds_the_same_tables(
    journal: Path, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    packages = str(needed("the oldest PySpark", oldest_pyspark))
    told = subprocess.run(
        [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": packages},
    )
    assert told.stdout.strip() == OLDEST
    out = tmp_path / "tables"
    build = ("pipeline", "build", "--journal", journal, "--out", out, "--format", "delta")
    command(*build, PYTHONPATH=packages)
    assert content(out) == expected


def test_the_data_source_reads_a_journal_in_a_store(store: str, journal: Path) -> None:
    put_directory(journal, f"{store}/source")
    program = (
        "import sys\n"
        "from waystation import pipeline\n"
        "spark = pipeline.session(master='local[2]')\n"
        "pipeline.register(spark)\n"
        "for place in sys.argv[1:]:\n"
        "    for table in ('messages', 'route_history'):\n"
        "        read = spark.read.format('waystation').option('table', table)\n"
        "        print(table, read.load(place).count())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(journal), f"{store}/source"],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_SECONDS,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[:2] == lines[2:]
