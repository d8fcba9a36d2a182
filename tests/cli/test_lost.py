"""`lost`, and `why` without a whole id, on a small simulated fleet: no JVM is started."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from waystation.cli import waystation
from waystation.cli.lost import _listed
from waystation.node import Node
from waystation.pipeline.lost import LostCopy
from waystation.simulate.fleet import Fleet
from waystation.simulate.journal import CellWriter, prepare
from waystation.testing import async_test, until

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


def test_every_time_names_its_zone_and_incidents_count_what_is_listed(journal: Path) -> None:
    who = next(loss["recipient"] for loss in asked(journal)["losses"] if loss["recipient"])
    lines = run("lost", "--journal", journal, "--participant", who).splitlines()
    assert " UTC" in lines[0]
    count = int(lines[1].split()[0])
    behind = [line for line in lines if line.endswith(" of these)")]
    assert all(re.match(r"[-0-9]{10} [:0-9]{8} UTC [a-z_]+: ", line) for line in behind)
    explained = sum(int(line.split("(")[-1].split()[0].replace(",", "")) for line in behind)
    assert behind
    assert explained <= count + sum("(may have missed)" in line for line in lines)


def test_the_command_that_explains_has_the_whole_id_and_can_be_pasted(
    journal: Path, tmp_path: Path
) -> None:
    place = tmp_path / "it's a journal"
    place.symlink_to(journal)
    last = run("lost", "--journal", place).splitlines()[-1]
    command = shlex.split(last.removeprefix("to explain one: "))
    assert command[0] == "waystation"
    assert f"message {asked(journal)['losses'][-1]['message_id']}" in run(*command[1:])


def test_files_that_cannot_be_read_are_told(journal: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "journal"
    shutil.copytree(journal, damaged)
    victim = next(damaged.glob("messages/node=hub-0000/*.parquet"))
    victim.write_bytes(b"not Parquet")
    result = CliRunner().invoke(waystation, ["lost", "--journal", str(damaged)])
    assert result.exit_code == 0
    assert result.stderr.startswith("note: 1 file could not be read, so losses may be missing; ")
    assert asked(damaged)["unread_files"] == 1
    assert asked(journal)["unread_files"] == 0


@async_test
async def test_what_a_running_node_has_not_sealed_yet_is_told(tmp_path: Path) -> None:
    async with Node("hub", journal=tmp_path) as node:
        lost = await node.send("nobody", b"hello")

        def files(kind: str) -> list[Path]:
            return list(tmp_path.glob(f"messages/node=hub/{kind}"))

        await until(lambda: files(".*.tail"))
        await until(lambda: [one["message_id"] for one in asked(tmp_path)["losses"]] == [lost.id])
        assert files("*.parquet") == []


def test_in_a_narrow_terminal_nothing_is_longer_than_a_line() -> None:
    loss = LostCopy(
        message_id="4bf9" * 8, origin=None, recipient="truck-7", event_time=0, at_visit=0,
        node="hub", next_node=None, sender=None, multicast_id=None, reason="NO_ROUTE",
        cause="its route had expired 163 ms before; a new one came 2.9 s after", internal=False,
        incident_id=None,
    )  # fmt: skip
    wide = list(_listed([loss], None))
    assert wide[1].endswith(loss.cause)
    assert list(_listed([loss], len(wide[1]))) == wide
    narrow = list(_listed([loss], 60))
    assert narrow == [
        "1970-01-01T00:00:00.000Z  NO_ROUTE  for truck-7 at hub",
        f"    {loss.message_id}",
        "    its route had expired 163 ms before; a new one came 2.9",
        "    s after",
    ]


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
