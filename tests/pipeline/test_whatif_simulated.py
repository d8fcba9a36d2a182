"""A simulated fleet with a change, beside what a what-if forecasts from the one without (SP-9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.pipeline.test_incidents import written
from waystation.cli import waystation as program
from waystation.errors import LocalError
from waystation.pipeline.inprocess import survey
from waystation.simulate.fleet import LEASE, Fleet, Otherwise
from waystation.testing.twins.comparing import Compared
from waystation.whatif.changes import Changes, changes_of
from waystation.whatif.local import SmallJournal
from waystation.whatif.verdicts import LOST, MOVED, SAME, SAVED, VOID, sentence_of

Row = dict[str, Any]
Key = tuple[str, str | None]
Fate = tuple[str | None, str | None, str | None]

FLEET = Fleet(9, 150, 3_000, seed=11)
CHANGES = [
    ({"ttl": [{"routes": True, "factor": 4.0}]}, Otherwise(lease=4 * LEASE)),
    ({"sticky": [{}]}, Otherwise(sticky=True)),
    ({"ttl": [{"messages": True, "factor": 10.0}]}, Otherwise(life=10.0)),
    ({"limits": {"hop_limit": 200}}, Otherwise(hop_limit=200)),
    ({"limits": {"hop_limit": 3}}, Otherwise(hop_limit=3)),
]


def fates(rows: list[Row]) -> dict[Key, Fate]:
    return {
        (row["message_id"], row["recipient"]): (
            row["before_outcome"],
            row["before_reason"],
            row["before_node"],
        )
        for row in rows
        if not row["internal"] and row["before_outcome"] is not None
    }


def truth(was: Fate | None, came: Fate | None) -> str:
    if was == came:
        return SAME
    if was is not None and was[0] == "DELIVERED":
        return MOVED if came is not None and came[0] == "DELIVERED" else LOST
    if was is not None and was[0] == "DROPPED" and came is not None and came[0] == "DELIVERED":
        return SAVED
    return MOVED


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> SmallJournal:
    return SmallJournal(written(tmp_path_factory.mktemp("simulated") / "before", FLEET))


@pytest.mark.rule("SP-9")
@pytest.mark.parametrize(("told", "otherwise"), CHANGES, ids=lambda one: str(one)[:40])
def test_what_is_forecast_of_a_simulated_fleet_is_what_comes(
    tmp_path: Path, before: SmallJournal, told: Row, otherwise: Otherwise
) -> None:
    fleet = Fleet(9, 150, 3_000, seed=11, otherwise=otherwise)
    after = SmallJournal(written(tmp_path / "after", fleet))
    was, came = fates(before.rows(Changes())), fates(after.rows(Changes()))
    found = Compared({})
    for row in before.rows(changes_of(told)):
        key = row["message_id"], row["recipient"]
        if row["verdict"] != VOID and not row["internal"]:
            found.add(row["verdict"], truth(was.get(key), came.get(key)))
    assert found.differing > 1
    wrong = found.differing - found.right - round(found.unknown * found.differing)
    assert wrong <= 1 + found.differing // 20, found.counts


@pytest.mark.rule("SP-9")
@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "with gaps"])
def test_what_was_lost_before_is_what_is_lost(tmp_path: Path, gaps: bool) -> None:
    journal = written(tmp_path / "journal", Fleet(9, 150, 3_000, seed=3, gaps=gaps))
    losses = {
        (one.loss.message_id, one.loss.lost.recipient)
        for one in survey(str(journal)).found.losses
        if not one.loss.lost.internal
    }
    rows = SmallJournal(journal).rows(Changes())
    assert {one["internal"] for one in rows} == {False, True}
    found = {key for key, fate in fates(rows).items() if fate[0] == "DROPPED"}
    assert found == losses
    assert sentence_of(Changes(), rows).lost_before == len(losses)


def test_the_command_simulates_a_change(spark: SparkSession, tmp_path: Path) -> None:
    del spark  # the existing session is used
    change = tmp_path / "change.toml"
    change.write_text(
        "[[ttl]]\nroutes = true\nfactor = 2\n[[sticky]]\n[limits]\nhop_limit = 40\n"
        "[[ttl]]\nmessages = true\nfactor = 3\n[[without]]\nkind = 'crash'\n"
    )
    sizes = ["--nodes", "4", "--participants", "20", "--messages", "100"]
    options = [*sizes, "--out", str(tmp_path / "journal"), "--change", str(change)]
    result = CliRunner().invoke(program, ["simulate", *options])
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "journal" / "_truth" / "fleet.json").read_text())
    wanted = {
        "lease": 2 * LEASE,
        "sticky": True,
        "hop_limit": 40,
        "life": 3.0,
        "without": ["crash"],
    }
    assert told["otherwise"] == wanted


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("[[room]]\nmessages = 5", "[[room]] cannot be simulated"),
        ("[[sticky]]\nnode = 'hub'", "single nodes or participants cannot be simulated"),
        ("[[without]]\nkind = 'remove'", "[[without]] remove of that sort cannot be simulated"),
        ("[[ttl]]\nmessages = true\nnever = true", "other than by a factor cannot be simulated"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, change: str, problem: str) -> None:
    file = tmp_path / "change.toml"
    file.write_text(change)
    sizes = ["--nodes", "4", "--participants", "20", "--messages", "100"]
    options = [*sizes, "--out", str(tmp_path / "journal"), "--change", str(file)]
    result = CliRunner().invoke(program, ["simulate", *options])
    assert isinstance(result.exception, LocalError)
    assert problem in str(result.exception)
    assert not (tmp_path / "journal").exists()
