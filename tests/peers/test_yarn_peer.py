"""Spark on a real YARN: its containers run Python that lacks this package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.peers.hadoop_peer import yarn
from tests.pipeline import elsewhere

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_800)]

SMALL = {
    "spark.sql.shuffle.partitions": "4",
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.yarn.am.memory": "384m",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
}


@pytest.mark.rule("SP-4")
def test_a_build_on_yarn_gives_the_tables_of_a_local_one(tmp_path: Path) -> None:
    journal = elsewhere.small_fleet(tmp_path / "journal")
    build = ("pipeline", "build", "--json", "--journal", journal, "--out")
    settings = [word for pair in SMALL.items() for word in ("--conf", "=".join(pair))]
    with yarn(tmp_path / "yarn") as reached:
        there = elsewhere.started(
            *(*build, tmp_path / "tables", "--master", "yarn", *settings),
            HADOOP_CONF_DIR=reached,
            PYSPARK_PYTHON=elsewhere.bare_python(tmp_path / "bare"),
            SPARK_LOCAL_IP="127.0.0.1",
        )
        code, said, complaint = elsewhere.ended(there)
    assert (code, complaint) == (0, "")
    assert json.loads(said)["tables"]["audit"]["rows"] > 0
    here = elsewhere.started(*build, tmp_path / "local", "--master", "local[2]")
    assert elsewhere.ended(here)[0] == 0
    elsewhere.assert_same_tables(tmp_path / "tables", tmp_path / "local")
