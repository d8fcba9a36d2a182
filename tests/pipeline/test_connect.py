"""Spark Connect: a server that supports only data frames, and whose Python lacks this package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import elsewhere
from tests.pipeline.elsewhere import ended, environment_of, started
from waystation import pipeline
from waystation.testing.spark import ConnectServer

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_800)]  # a loaded machine takes its time

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("connect")
    return found


@pytest.fixture(scope="module")
def journal(place: Path) -> Path:
    return elsewhere.small_fleet(place / "journal")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[ConnectServer]:
    python = elsewhere.bare_python(place / "bare")
    with ConnectServer(
        place / "server",
        config={"spark.sql.shuffle.partitions": "4"},
        environment={"PYSPARK_PYTHON": str(python)},
    ) as found:
        yield found


@pytest.mark.rule("SP-4")
def test_a_build_over_connect_gives_the_tables_of_a_local_run(
    spark: SparkSession, server: ConnectServer, journal: Path, place: Path
) -> None:
    out = place / "tables"
    build = started("pipeline", "build", "--journal", journal, "--out", out, "--master", server.url)
    pipeline.build(journal, place / "local", spark=spark)
    code, said, complaint = ended(build)
    assert (code, complaint) == (0, "")
    assert said.splitlines()[1].startswith("read ")
    elsewhere.assert_same_tables(out, place / "local")


_NOTEBOOK = """
import json, runpy, sys
from waystation import pipeline
from waystation.pipeline.making import built
from waystation.simulate.simulate import simulate

url, journal, place, example = sys.argv[1:]
spark = pipeline.session(master=url)
names = runpy.run_path(example)
found = {"lost": [row.reason for row in names["dropped"]]}

read = pipeline.read_journal(spark, journal)
history = pipeline.route_history(read.routes)
subscriptions = pipeline.subscription_history(read.subscriptions)
expected = pipeline.expected(read.messages, history, subscriptions)
every = "seq >= 0"  # frames that were changed have forgotten their files
routes, nodes, messages = (frame.where(every) for frame in (read.routes, read.nodes, read.messages))
again = pipeline.route_history(routes, nodes)
named = "node is not null"
sessions = built(read, "session_history").where(named)
own = pipeline.expected(messages, again, subscriptions.where(named), sessions)
found["history"] = [history.count(), history.exceptAll(again).count()]
found["expected"] = [expected.count(), expected.exceptAll(own).count()]
found["health"] = pipeline.health(messages).count() == pipeline.health(read.messages).count()
made = simulate(spark, place + "/made", nodes=3, participants=5, messages=50)
found["made"] = made.rows["messages"]
print(json.dumps(found))
spark.stop()
"""


@pytest.mark.rule("SP-4")
def test_a_notebook_runs_on_spark_connect(
    server: ConnectServer, journal: Path, tmp_path: Path
) -> None:
    example = ROOT / "examples" / "pipeline_notebook.py"
    done = subprocess.run(
        [sys.executable, "-c", _NOTEBOOK, server.url, journal, tmp_path, example],
        capture_output=True,
        text=True,
        check=False,
        env=environment_of(),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["lost"] == ["NO_ROUTE"]
    assert found["history"][0] > 0
    assert found["expected"][0] > 0
    assert (found["history"][1], found["expected"][1]) == (0, 0)
    assert found["health"]
    assert found["made"] > 50
