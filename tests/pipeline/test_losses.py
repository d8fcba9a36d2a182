"""`losses` and `incidents` by Spark SQL are those of the core; no join compares all with all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.test_incidents import written
from waystation import pipeline
from waystation.pipeline.inprocess import survey
from waystation.pipeline.lost import LostCopy, Question, lost_in_journal, lost_in_tables
from waystation.pipeline.tables import BUILT
from waystation.simulate.fleet import Fleet
from waystation.testing.oracle import day_of

pytestmark = pytest.mark.timeout(1200)  # Spark on a loaded machine takes its time

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def by_spark() -> Iterator[None]:
    """Let Spark find what is lost in small journals, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waystation.pipeline.losses.SMALL", -1)
        yield


def plain(value: Any) -> Any:
    """A value of a row as the core has it: instants are numbers."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    return value


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in row.asDict().items()} for row in frame.collect()]


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, marks=pytest.mark.fault), True],
    ids=["whole", "gaps"],
)
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fleet") / "journal"
    return written(directory, Fleet(9, 120, 2_000, seed=4, gaps=request.param))


@pytest.fixture(scope="module")
def tables(spark: SparkSession, journal: Path, by_spark: None) -> Path:  # noqa: ARG001
    """The tables of the journal."""
    pipeline.build(journal, journal.parent / "tables", spark=spark)
    return journal.parent / "tables"


def test_spark_finds_what_the_core_finds(spark: SparkSession, journal: Path, tables: Path) -> None:
    told = survey(str(journal)).found
    assert len(told.losses) > 100
    found = lost_in_tables(tables, Question(internal=True))
    here = lost_in_journal(str(journal), Question(internal=True))
    assert found.losses == here.losses
    assert found.incidents == here.incidents
    assert found.reach == here.reach
    every = rows(spark.read.parquet(str(tables / "incidents")))
    by_id = {row["incident_id"]: row for row in every}
    assert all(row.pop("day") == day_of(row["started"]) for row in every)
    assert by_id == {one.incident_id: structs.asdict(one) for one in told.incidents}
    assert {one.kind for one in told.incidents} >= {"link_lost", "route_expired"}


def test_what_is_asked_for_is_the_same_from_journal_and_tables(journal: Path, tables: Path) -> None:
    here = lost_in_journal(str(journal), Question())
    assert not any(loss.internal for loss in here.losses)
    for question in questions(here.losses):
        asked = lost_in_journal(str(journal), question)
        assert asked.losses == lost_in_tables(tables, question).losses
        assert asked.losses
        assert len(asked.losses) < len(here.losses)


def questions(losses: list[LostCopy]) -> list[Question]:
    """Questions that some of these answer."""
    named = next(loss for loss in losses if loss.recipient is not None)
    unheard = next(loss for loss in losses if loss.multicast_id is not None)
    return [
        Question(participant=named.recipient),
        Question(topic=unheard.multicast_id),
        Question(node=named.node),
        Question(reason="NO_SUBSCRIBER"),
        Question(since=losses[len(losses) // 2].event_time),
        Question(until=losses[len(losses) // 2].event_time),
    ]


@pytest.mark.parametrize("table", ["losses", "incidents"])
def test_no_join_compares_all_with_all(
    spark: SparkSession, journal: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pipeline.built(pipeline.read_journal(spark, journal), table)
    assert frame.columns == BUILT[table].names
    frame.explain()
    plan = capsys.readouterr().out
    assert "Window" in plan
    assert "NestedLoop" not in plan
    assert "CartesianProduct" not in plan
