"""`lost`, and `why` without a whole id, on a small simulated fleet: no JVM is started."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from waystation.cli import waystation
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import CellWriter, prepare

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fleet") / "journal"
    prepare(directory)
    fleet = Fleet(9, 120, 1_500, seed=7, gaps=True)
    for cell in range(fleet.cells):
        CellWriter(fleet, cell, directory).write()
    return directory


def run(*arguments: object) -> str:
    result = CliRunner().invoke(waystation, [str(part) for part in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def asked(journal: Path, *arguments: object) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run("lost", "--journal", journal, *arguments, "--json"))
    return told


def test_it_begins_with_who_is_missing(journal: Path) -> None:
    first = run("lost", "--journal", journal).splitlines()[0]
    assert first.startswith("8 of 9 nodes, complete until 2026-01-01 00:")
    assert "; no record of leaf-" in first


def test_what_is_asked_for_is_listed(journal: Path) -> None:
    every = asked(journal)
    assert every["reach"]["nodes"] == 8
    losses = every["losses"]
    named = next(loss for loss in losses if loss["recipient"] and loss["reason"] == "NO_ROUTE")
    for option, column, value in (
        ("--participant", "recipient", named["recipient"]),
        ("--node", "node", named["node"]),
        ("--reason", "reason", "NO_ROUTE"),
    ):
        found = asked(journal, option, value)["losses"]
        sure = [loss for loss in found if not loss["may_have_missed"]]
        assert sure == [loss for loss in losses if loss[column] == value]
    middle = losses[len(losses) // 2]["event_time"]
    early, late = (asked(journal, option, middle)["losses"] for option in ("--until", "--since"))
    assert len(early) + len(late) == len(losses)
    assert len(asked(journal, "--internal")["losses"]) > len(losses)
    topic = next(loss["multicast_id"] for loss in losses if loss["multicast_id"])
    under = asked(journal, "--topic", topic)["losses"]
    assert under
    assert {loss["multicast_id"] for loss in under} == {topic}


def test_groups_and_csv(journal: Path) -> None:
    count = len(asked(journal)["losses"])
    groups = asked(journal, "--by", "reason,node")["groups"]
    assert sum(group["lost"] for group in groups) == count
    assert groups == sorted(groups, key=lambda group: -group["lost"])
    told = list(csv.DictReader(io.StringIO(run("lost", "--journal", journal, "--csv"))))
    assert len(told) == count
    by_hour = run("lost", "--journal", journal, "--by", "hour", "--csv").splitlines()
    assert by_hour == ["hour,lost", f"2026-01-01T00,{count}"]


def test_mistakes_get_one_clear_line(journal: Path) -> None:
    for arguments, words in (
        (["lost"], "give --journal DIR or --tables DIR"),
        (["lost", "--journal", str(journal), "--by", "colour"], "'colour' is none of reason"),
        (["why", "--journal", str(journal)], "give MESSAGE_ID, or --participant NAME and --at"),
        (["why", "xyz", "--journal", str(journal)], "invalid message id 'xyz'"),
    ):
        result = CliRunner().invoke(waystation, arguments)
        assert result.exit_code == 2
        assert words in result.output


def test_why_with_a_beginning_a_time_and_the_last_loss(journal: Path) -> None:
    losses = [loss for loss in asked(journal)["losses"] if loss["recipient"]]
    last = asked(journal)["losses"][-1]
    assert f"message {last['message_id']}" in run("why", "--last-loss", "--journal", journal)
    loss = losses[len(losses) // 2]
    id, who = loss["message_id"], loss["recipient"]
    plain = run("why", id, "--journal", journal)
    assert run("why", id[:12].upper(), "--journal", journal) == plain
    assert "\x1b" not in plain
    told = run("why", "--participant", who, "--at", loss["event_time"], "--journal", journal)
    assert id in told
    assert len(told.splitlines()) <= 11 or f"message {id}" in told


def test_a_beginning_that_several_messages_have_names_them(journal: Path) -> None:
    result = CliRunner().invoke(waystation, ["why", "a", "--journal", str(journal)])
    assert result.exit_code == 1
    assert "several messages begin with a: a" in str(result.exception)
