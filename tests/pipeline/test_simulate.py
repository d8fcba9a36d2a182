"""A simulated fleet: reproducible, with a valid journal, and with losses that can be found."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.journals import read
from waystation import pipeline
from waystation.errors import LocalError
from waystation.journal.check import check
from waystation.journal.schema import SCHEMAS
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import TRUTH, CellWriter, prepare
from waystation.simulate.simulate import Simulated, score, simulate
from waystation.simulate.truth import KINDS
from waystation.testing import oracle

pytestmark = pytest.mark.timeout(600)  # Spark on a loaded machine takes its time

SMALL = Fleet(nodes=9, participants=200, messages=6_000, seed=5)


def written(
    directory: Path, fleet: Fleet = SMALL, cells: range | None = None, **options: int
) -> Path:
    """A fleet written without Spark, cell by cell."""
    prepare(directory)
    for cell in cells or range(fleet.cells):
        CellWriter(fleet, cell, directory, **options).write()
    return directory


def make(
    spark: SparkSession,
    directory: Path,
    fleet: Fleet = SMALL,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """A fleet written by Spark."""
    return simulate(
        spark,
        directory,
        nodes=fleet.nodes,
        participants=fleet.participants,
        messages=fleet.messages,
        seed=fleet.seed,
        progress=progress,
    )


def digest(directory: Path) -> dict[str, str]:
    """The digest of each file."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*.parquet"))
    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("fleet") / "journal")


def test_the_journal_is_sound(fleet: Path) -> None:
    assert check(fleet) == []


def test_the_same_seed_gives_the_same_files_in_whatever_order_they_are_made(
    fleet: Path, tmp_path: Path
) -> None:
    assert SMALL.cells > 2
    again = written(tmp_path / "again", cells=range(SMALL.cells - 1, -1, -1))
    assert digest(again) == digest(fleet)
    other = written(tmp_path / "other", Fleet(9, 200, 6_000, seed=6))
    assert digest(other) != digest(fleet)


def test_how_much_a_task_does_at_a_time_changes_no_row(fleet: Path, tmp_path: Path) -> None:
    sliced = written(tmp_path / "sliced", at_once=700)
    assert len(digest(sliced)) > len(digest(fleet))
    assert check(sliced) == []
    assert read(sliced) == read(fleet)
    assert faults(sliced) == faults(fleet)
    assert losses(sliced) == losses(fleet)


def test_the_rules_explain_every_row_of_a_simulated_journal(fleet: Path) -> None:
    """By the oracle: the rules explain every row, except for the injected faults."""
    journal = read(fleet)
    messages = [{**row, "version": 2} for row in journal["messages"]]
    found = oracle.audit({**journal, "messages": messages})
    injected = {"TRANSPORT_DOWN", "QUEUE_FULL", "FAILED"}
    assert {row["reason"] for row in found if row["verdict"] != "ok"} <= injected
    dropped = Counter(
        (row["message_id"], row["node"], row["reason"])
        for row in found
        if row["actual"] == "DROPPED" and row["reason"] != "DUPLICATE"
    )
    truth = losses(fleet)
    assert dropped == Counter(loss[:3] for loss in truth.elements() if loss[2] != "VANISHED")


def losses(directory: Path) -> Counter[tuple[str, str, str, str | None]]:
    """Every copy that did not reach anybody, except second copies."""
    table: pa.Table = pq.read_table(directory / TRUTH / "copies")
    names = ("message_id", "node", "reason", "detail")
    found = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return Counter(loss for loss in found if loss[2] not in (None, "DUPLICATE"))


def faults(directory: Path) -> list[dict[str, object]]:
    table: pa.Table = pq.read_table(directory / TRUTH / "faults")
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


def test_a_large_fleet_has_every_kind_of_row_and_loss(tmp_path: Path) -> None:
    directory = written(tmp_path / "large", Fleet(30, 900, 60_000))
    causes = {loss[2:] for loss in losses(directory)}
    details = ("never", "removed", "expired", "stopped", "restart", "closed")
    assert causes == {
        *(("NO_ROUTE", detail) for detail in details),
        *((reason, None) for reason in ("EXPIRED", "HOP_LIMIT", "NO_SUBSCRIBER", "QUEUE_FULL")),
        *((reason, None) for reason in ("FAILED", "TRANSPORT_DOWN", "VANISHED")),
    }
    kinds = {str(fault["kind"]) for fault in faults(directory)}
    assert kinds == {kind for kind in KINDS if kind != "journal_gap"}
    tables = {table: pq.read_table(directory / table) for table in SCHEMAS}
    assert set(tables["nodes"].column("kind").to_pylist()) == {"start", "stop"}
    assert set(tables["sessions"].column("kind").to_pylist()) == {"open", "close", "clock"}
    assert set(tables["sessions"].column("role").to_pylist()) == {"parent", "leaf", "peer"}
    assert set(tables["claims"].column("kind").to_pylist()) == {"claim", "withdraw"}
    assert False in tables["routes"].column("accepted").to_pylist()
    assert True in tables["routes"].column("sticky").to_pylist()
    assert "QUEUED" in tables["messages"].column("outcome").to_pylist()
    messages = tables["messages"]
    assert "multicast" in messages.column("kind").to_pylist()
    assert set(messages.column("copy").to_pylist()) == {None, 0, 1}
    assert "DUPLICATE" in messages.column("reason").to_pylist()
    assert True in messages.column("internal").to_pylist()
    assert messages.column("answers").null_count < len(messages)


@pytest.mark.parametrize("size", [(2, 0, 0), (2, 1, 50), (3, 0, 50), (60, 20, 10)])
def test_fleets_of_any_size(tmp_path: Path, size: tuple[int, int, int]) -> None:
    directory = written(tmp_path / "fleet", Fleet(*size))
    assert check(directory) == []
    assert len(list((directory / "nodes").iterdir())) == size[0]


@pytest.fixture(scope="module")
def simulated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("simulated") / "journal"
    told: list[tuple[int, int]] = []
    done = make(spark, directory, progress=lambda *much: told.append(much))
    assert told[-1] == (SMALL.cells, SMALL.cells)
    counted = json.loads((directory / TRUTH / "fleet.json").read_text())
    assert counted["rows"] == done.rows
    assert counted["seed"] == 5
    rows = read(directory)
    assert done.rows == {**dict.fromkeys(done.rows, 0), **{t: len(r) for t, r in rows.items()}}
    lost = pq.read_table(directory / TRUTH / "copies").column("lost").to_pylist()
    assert done.losses == sum(lost) < len(lost) == counted["copies"]
    return directory


def test_spark_makes_the_same_fleet(simulated: Path, fleet: Path) -> None:
    assert digest(simulated) == digest(fleet)


@pytest.mark.rule("SP-2")
def test_the_pipeline_finds_every_loss_and_its_cause_and_nothing_else(
    spark: SparkSession, simulated: Path, tmp_path: Path
) -> None:
    summary = pipeline.build(simulated, tmp_path / "tables", spark=spark)
    assert summary.rejected == 0
    result = score(spark, simulated, tmp_path / "tables")
    wrong = {cause: t for cause, t in result.causes.items() if not t.lost == t.found == t.right}
    assert wrong == {}
    assert len(result.causes) > 8
    assert (result.precision, result.recall) == (1.0, 1.0)


def test_a_directory_that_is_not_empty_is_refused(spark: SparkSession, fleet: Path) -> None:
    with pytest.raises(LocalError, match="is not empty; give a new directory"):
        make(spark, fleet)


def test_a_fleet_of_one_node_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="at least 2 nodes"):
        make(spark, tmp_path / "one", Fleet(1, 1, 1))
