"""A standalone cluster of several processes, whose Python lacks this package."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import elsewhere
from tests.pipeline.elsewhere import ended, started, until
from tests.pipeline.watched import assert_up_to_date
from waystation import pipeline
from waystation.testing.spark import SHORT_LIVED, Cluster

pytestmark = pytest.mark.timeout(1_800)  # Spark on a loaded machine takes its time


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("cluster")
    return found


@pytest.fixture(scope="module")
def journal(place: Path) -> Path:
    return elsewhere.small_fleet(place / "journal")


@pytest.fixture(scope="module")
def cluster(place: Path) -> Iterator[Cluster]:
    conf = place / "spark" / "conf"
    conf.mkdir(parents=True)
    options = " ".join(SHORT_LIVED)
    (conf / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 4\n"
        f"spark.driver.extraJavaOptions {options}\n"
        f"spark.executor.extraJavaOptions {options}\n"
    )
    with Cluster(place / "spark", workers=2) as found:
        yield found
    for worker in found.workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)


@pytest.mark.peer
@pytest.mark.rule("SP-4")
def test_a_cluster_builds_the_same_tables_although_a_worker_dies(
    spark: SparkSession, cluster: Cluster, journal: Path, place: Path
) -> None:
    """The package is sent to the executors: their own Python lacks it."""
    out = place / "tables"
    build = started(
        *("pipeline", "build", "--journal", journal, "--out", out),
        *("--master", cluster.url, "--json"),
        PYSPARK_PYTHON=elsewhere.bare_python(place / "bare"),
        SPARK_CONF_DIR=place / "spark" / "conf",
    )
    until((out / ".expected.new").exists, build)
    cluster.workers[0].kill()
    assert not (out / "rejects").exists()  # so there was work left
    pipeline.build(journal, place / "local", spark=spark)
    code, said, complaint = ended(build)
    assert (code, complaint) == (0, "")
    assert json.loads(said)["tables"]["audit"]["rows"] > 0
    elsewhere.assert_same_tables(out, place / "local")


_WATCH = """
import sys
from pyspark.sql import SparkSession
from waystation.pipeline.watching import watch

master, journal, place = sys.argv[1:]
spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
print(watch(journal, place + "/tables", place + "/checkpoint", spark=spark, once=True).files)
spark.stop()
"""


@pytest.mark.peer
@pytest.mark.rule("SP-4")
def test_a_watch_sends_the_package_to_a_cluster_with_a_session_of_ones_own(
    cluster: Cluster, journal: Path, place: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WATCH, cluster.url, str(journal), str(place / "watched")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=elsewhere.environment_of(
            PYSPARK_PYTHON=elsewhere.bare_python(place / "bare-too"),
            SPARK_CONF_DIR=place / "spark" / "conf",
            SPARK_LOCAL_IP="127.0.0.1",
        ),
    ) as program:
        code, said, complaint = ended(program)
    assert code == 0, complaint
    assert int(said) > 0
    assert_up_to_date(place / "watched" / "tables", journal)


@pytest.mark.fault
def test_missing_packages_of_executors_are_reported_before_the_first_step(
    cluster: Cluster, journal: Path, place: Path
) -> None:
    python = elsewhere.bare_python(place / "poor", without=["msgspec", "pyarrow"])
    table = ("pipeline", "table", "--journal", journal, "--at", "1d", "--master", cluster.url)
    code, said, complaint = ended(started(*table, PYSPARK_PYTHON=python))
    assert (code, said) == (1, "")
    assert f"the executors on {socket.gethostname()} (Python 3." in complaint
    assert "have no msgspec, no pyarrow; install the versions" in complaint
    assert "\n" not in complaint


def test_a_master_that_does_not_listen_is_reported_at_once(journal: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    table = ("pipeline", "table", "--journal", journal, "--at", "1d", "--master", master)
    code, said, complaint = ended(started(*table))
    assert (code, said) == (1, "")
    assert f"cannot connect to {master}: Connection refused; start Spark there" in complaint
    assert "\n" not in complaint
