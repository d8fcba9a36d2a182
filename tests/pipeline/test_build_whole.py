"""A build succeeds or fails as a whole, and nobody takes half of one for its tables (SP-7)."""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waystation.cli.spark import _cause
from waystation.console.views import Views
from waystation.errors import LocalError
from waystation.journal.write import Journal as Writer
from waystation.pipeline import building
from waystation.pipeline.store import Place, Store, replace_all
from waystation.pipeline.tables import BUILT, Table
from waystation.pipeline.writing import Written
from waystation.report.reading import Tables
from waystation.why.tables import explain_from_tables

ID = "ab" * 16
ASKED = ("route_history", "expected", "audit", "traces")


def rows(table: str, node: str) -> pa.Table:
    columns = {field.name: pa.nulls(1, field.type) for field in BUILT[table]}
    return pa.table({**columns, "node": pa.array([node])} if "node" in columns else columns)


def put_aside(out: Path, table: str, content: pa.Table) -> None:
    directory = Path(Place(out, table).prepare())
    directory.mkdir(parents=True)
    pq.write_table(content, directory / "part.parquet")


def nodes_in(out: Path) -> dict[str, list[str]]:
    return {
        path.name: pq.read_table(path).column("node").to_pylist()
        for path in sorted(out.iterdir())
        if not path.name.startswith(".") and path.name != "traces"
    }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A build that needs no Spark: every table has one row, with a name of its own."""
    journal = SimpleNamespace(spark=None, path=str(tmp_path), sharing=nullcontext)
    monkeypatch.setattr(building, "read_journal", lambda *_, **__: journal)
    monkeypatch.setattr(building, "check_shared", lambda *_, **__: None)
    monkeypatch.setattr(building, "rows_in", lambda _: {})
    monkeypatch.setattr(building, "rejects", lambda _: SimpleNamespace(count=lambda: 0))

    def build(name: str, failing: str = "") -> None:
        def write(_: object, store: Store, tables: tuple[Table, ...], __: object) -> Written:
            for table in tables:
                put_aside(Path(store.out), table.name, rows(table.name, name))
                if table.name == failing:
                    raise RuntimeError(failing)
            return Written({table.name: [] for table in tables})

        monkeypatch.setattr(building, "_write", write)
        spark: Any = object()
        building.build(tmp_path / "journal", tmp_path / "tables", spark=spark, tables=ASKED)

    return build


@pytest.mark.rule("SP-5")
@pytest.mark.parametrize("failing", ASKED)
def test_a_build_that_fails_leaves_every_former_table(
    tmp_path: Path, run: Any, failing: str
) -> None:
    run("former")
    before = nodes_in(tmp_path / "tables")
    assert set(map(tuple, before.values())) == {("former",)}
    with pytest.raises(RuntimeError, match=failing):
        run("next", failing)
    assert nodes_in(tmp_path / "tables") == before
    Tables(tmp_path / "tables")  # which are as good as before
    run("next")
    assert set(map(tuple, nodes_in(tmp_path / "tables").values())) == {("next",)}
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(ASKED)


def check_unfinished(out: Path) -> None:
    told = f"the build in {out} did not finish; run `waystation pipeline build"
    for reader in (Tables, lambda place: explain_from_tables(place, ID), asked_in_console):
        with pytest.raises(LocalError) as raised:
            reader(out)
        assert told in str(raised.value)


def asked_in_console(tables: Path) -> None:
    nobody: Any = None
    Views(nobody, nobody, None, tables)._explain(ID)  # noqa: SLF001 - without a browser


@pytest.mark.rule("SP-5")
def test_tables_of_two_builds_are_recognised(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed while it replaced one table after the other."""
    run("former")
    replace, out = Place.replace, tmp_path / "tables"

    def die_at_audit(place: Place) -> None:
        if place.path.name == "audit":
            raise KeyboardInterrupt
        replace(place)

    monkeypatch.setattr(Place, "replace", die_at_audit)
    with pytest.raises(KeyboardInterrupt):
        run("next")
    assert nodes_in(out)["expected"] != nodes_in(out)["audit"]
    check_unfinished(out)
    monkeypatch.setattr(Place, "replace", replace)
    put_aside(out, "health", rows("health", "other"))
    replace_all(out, ["health"])  # which is not what is missing
    check_unfinished(out)
    run("next")
    Tables(out)


@pytest.mark.rule("SP-5")
def test_a_first_build_that_was_killed_is_recognised(tmp_path: Path) -> None:
    put_aside(tmp_path, "route_history", rows("route_history", "first"))
    check_unfinished(tmp_path)


@pytest.mark.rule("OB-5")
def test_a_build_from_python_includes_the_tails_of_dead_nodes(tmp_path: Path, run: Any) -> None:
    """A copy of a journal that is being written is what a killed node leaves."""
    with Writer(tmp_path / "alive", "garage", seal_seconds=3_600, flush_seconds=0.01):
        deadline = time.monotonic() + 60
        while not has_tail(tmp_path / "alive") and time.monotonic() < deadline:
            time.sleep(0.01)
        shutil.copytree(tmp_path / "alive", tmp_path / "journal")
    assert has_tail(tmp_path / "journal")
    run("one")
    assert not has_tail(tmp_path / "journal")
    assert list((tmp_path / "journal").glob("nodes/node=garage/*.parquet"))


def has_tail(journal: Path) -> bool:
    """Whether there is a tail with something in it: an empty one is removed, not sealed."""
    return any(tail.stat().st_size for tail in journal.rglob(".*.tail"))


def test_the_cause_of_a_failed_task_is_the_last_line_of_its_report() -> None:
    told = (
        "Job aborted due to stage failure: Task 0 failed 1 times: org.apache.spark.api.python."
        "PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n    process()\n'
        "pyarrow.lib.ArrowInvalid: no space left on device\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    assert _cause(RuntimeError(told)) == "pyarrow.lib.ArrowInvalid: no space left on device"
    assert _cause(RuntimeError("gone\nfor good")) == "gone"
