"""What is sent to the executors, and the errors when they cannot run it."""

from __future__ import annotations

import socket
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from waystation import pipeline
from waystation.errors import LocalError
from waystation.pipeline import shipping
from waystation.pipeline.shipping import NEEDED, Surroundings, explained, packed_package
from waystation.pipeline.spark_session import _shipped, places_of

ROOT = Path(__file__).parents[2]


def test_the_package_is_packed_completely_and_reproducibly() -> None:
    first = packed_package()
    packed_package.cache_clear()
    again = packed_package()
    assert (again.name, again.read_bytes()) == (first.name, first.read_bytes())
    with zipfile.ZipFile(again) as archive:
        names = set(archive.namelist())
    assert {"waystation/__init__.py", "waystation/pipeline/work.py"} <= names


def test_the_packed_package_can_be_imported() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import waystation.simulate.simulate;"
        "import waystation.pipeline.steps; print(waystation.__file__)"
    )
    archive = packed_package()
    done = subprocess.run(
        [sys.executable, "-c", code, archive], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{archive}/waystation/__init__.py"


def test_nothing_is_shipped_in_a_local_session(spark: SparkSession) -> None:
    assert shipping.is_local(spark)
    assert not shipping.is_connect(spark)
    pipeline.session()
    assert spark not in _shipped


def test_a_task_reports_its_environment(spark: SparkSession, tmp_path: Path) -> None:
    [found] = shipping.look_around(spark, [str(tmp_path), str(tmp_path / "gone")])
    assert found.lacks() == []
    assert found.python == sys.version.split()[0]
    assert found.unseen == [str(tmp_path / "gone")]


def test_what_is_missing_or_too_old_is_named() -> None:
    fit: dict[str, str | None] = dict.fromkeys(NEEDED, "99.1")
    assert Surroundings("h", "3.11.1", fit, []).lacks() == []
    poor = {**fit, "numpy": None, "pyarrow": "9.0.0", "pandas": ""}
    assert Surroundings("h", "3.11.1", poor, []).lacks() == [
        "no numpy",
        "pyarrow 9.0.0, older than 16",
    ]


def test_the_checked_packages_are_those_that_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    oldest = dict(line.split(",")[0].split(">=") for line in asked if ">=" in line)
    assert {name: oldest.get(name, least) for name, least in NEEDED.items()} == NEEDED


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in",
            "the executors run Python 3.9, but this is Python 3.",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/python": error=2, No such file',
            "the executors have no program /opt/python; set PYSPARK_PYTHON to",
        ),
        ("ModuleNotFoundError: No module named 'pyarrow'", "the executors have no pyarrow;"),
    ],
)
def test_errors_of_executors_are_explained(said: str, problem: str) -> None:
    assert problem in str(explained(RuntimeError(f"Job aborted\n  {said}\n  at x")))


def test_other_errors_are_not_explained() -> None:
    assert explained(RuntimeError("Job aborted")) is None


def test_executors_that_lack_something_are_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "is_local", lambda _: False)
    monkeypatch.setattr(shipping, "NEEDED", {"pyarrow": "999", "msgspec": "0.1"})
    with pytest.raises(LocalError, match=r"have pyarrow .*, older than 999; install the versions"):
        shipping.check_executors(spark)
    monkeypatch.undo()
    monkeypatch.setattr(shipping, "is_local", lambda _: False)
    shipping.check_executors(spark)
    assert spark in shipping._fit


def test_directories_must_be_visible_to_all_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "is_local", lambda _: False)
    shipping.check_shared(spark, read=[str(tmp_path), "s3://there/j"], write=[tmp_path])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LocalError, match=r"cannot see this machine's .*gone"):
        shipping.check_shared(spark, read=[str(tmp_path / "gone")], write=[])
    look, elsewhere = shipping.look_around, [str(tmp_path / "elsewhere")]
    monkeypatch.setattr(shipping, "look_around", lambda spark, _: look(spark, elsewhere))
    with pytest.raises(LocalError, match="cannot see this machine's"):
        shipping.check_shared(spark, write=[tmp_path])


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_a_master_that_does_not_listen_is_an_error(spark: SparkSession, scheme: str) -> None:
    del spark  # it is installed, but another version is required
    with socket.create_server(("127.0.0.1", 0)) as taken:
        master = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(LocalError, match=f"cannot connect to {master}: Connection refused"):
        pipeline.session(master=master, config={"spark.app.name": "none"})


def test_a_master_without_a_host_is_refused() -> None:
    with pytest.raises(LocalError, match="cannot connect to spark://: it has no host"):
        pipeline.session(master="spark://", config={"spark.app.name": "none"})
    assert places_of("spark://") == []
