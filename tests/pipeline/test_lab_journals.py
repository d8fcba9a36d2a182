"""The journals of the lab's fleets, by Spark: what it says was lost, and why, is what happened."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from waystation import pipeline
from waystation.testing.lab.history import Fault, Got, History, Row, Sent
from waystation.testing.lab.journals import FLUSH
from waystation.testing.lab.running import run_seed

pytestmark = [pytest.mark.fault, pytest.mark.timeout(3600)]

SEEDS = (0, 1, 2, 17, 33)
"""Fleets of one hub, of two levels and of diamonds, calm ones and broken ones."""

NOT_ON_RECORD = FLUSH + 0.1
"""Seconds before a crash whose records may be gone with it."""


class Told(NamedTuple):
    """What the pipeline says of one fleet, beside what happened there."""

    history: History
    losses: list[Any]
    incidents: list[Any]

    @property
    def crashes(self) -> list[Fault]:
        return [fault for fault in self.history.faults if fault.kind in {"kill", "switch off"}]

    def uids(self) -> dict[str, str]:
        """The messages to one receiver, by the ids that are in the journal."""
        kinds = {sent.uid: sent.kind for sent in self.history.sent}
        wanted = {"send", "request"}
        return {
            row.message_id: row.uid for row in self.history.rows if kinds.get(row.uid) in wanted
        }

    def unsure(self) -> set[str]:
        """Messages of which some record was lost in a crash, so that no journal tells their end."""
        seen = defaultdict[str, list[tuple[str, float]]](list)
        facts: list[Row | Got | Sent] = [*self.history.rows, *self.history.got, *self.history.sent]
        for fact in facts:
            seen[fact.uid].append((fact.node, fact.at))
        return {
            uid
            for fault in self.crashes
            for uid, places in seen.items()
            if any(node in fault.nodes and _is_just_before(fault, at) for node, at in places)
        }


def _is_just_before(fault: Fault, at: float) -> bool:
    return fault.at - NOT_ON_RECORD <= at <= fault.at


@pytest.fixture(scope="module", params=SEEDS)
def told(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Told:
    directory = tmp_path_factory.mktemp("lab")
    history = run_seed(request.param, directory=directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waystation.pipeline.losses.SMALL", -1)  # by Spark, though it is little
        pipeline.build(directory / "journal", directory / "tables", spark=spark)
    tables = directory / "tables"
    losses = spark.read.parquet(str(tables / "losses")).where("not internal").collect()
    return Told(history, losses, spark.read.parquet(str(tables / "incidents")).collect())


def test_what_is_told_as_lost_is_what_nobody_received(told: Told) -> None:
    uids, unsure = told.uids(), told.unsure()
    received = {got.uid for got in told.history.got}
    lost = {uids[row.message_id] for row in told.losses if row.message_id in uids}
    assert lost - unsure == set(uids.values()) - received - unsure


def test_who_is_told_to_have_crashed_was_killed(told: Told) -> None:
    crashed = {row.node for row in told.incidents if row.kind == "node_crashed"}
    killed = {name for fault in told.crashes for name in fault.nodes}
    assert crashed <= killed
    uids = {uid: id for id, uid in told.uids().items()}
    lost = {row.message_id for row in told.losses}
    for fault in told.crashes:
        (name,) = fault.nodes
        missed = [
            sent
            for sent in told.history.sent
            if sent.to == f"work-{name}"
            and fault.at < sent.at < fault.until
            and uids.get(sent.uid) in lost
        ]
        assert not missed or name in crashed


def test_every_loss_belongs_to_an_incident_which_counts_it(told: Told) -> None:
    counted = defaultdict[str, int](int)
    for row in told.losses:
        counted[row.incident_id] += 1
    stated = {row.incident_id: row.lost for row in told.incidents if row.lost}
    assert dict(counted) == {id: lost for id, lost in stated.items() if id in counted}
    assert counted.keys() <= stated.keys()


def test_a_fleet_that_nothing_happens_to_loses_nothing_to_anybody(told: Told) -> None:
    if told.history.faults:
        assert told.losses
        return
    kinds = {row.kind for row in told.incidents if row.lost}
    assert kinds <= {"no_subscriber"}
