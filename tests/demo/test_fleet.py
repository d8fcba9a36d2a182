"""The fleet: files that `waystation node` accepts, and a pace that suits the time there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from waystation.config import check_file
from waystation.demo.directory import prepared
from waystation.demo.fleet import BROKER, HUBS, LEAVES, PROCESSES, ROUTER, TRANSPORTS, Fleet, Pace

LISTENING = {
    BROKER: ["127.0.0.1:1883"],
    ROUTER: ["127.0.0.1:12001"],
    "hub-a": ["tcp://127.0.0.1:4000", "ws://127.0.0.1:4001"],
    "hub-b": ["tcp://127.0.0.1:4002", "mqtt://hubs/hub-b", "gossip://fleet/hub-b"],
}


@pytest.mark.parametrize("name", [*HUBS, *LEAVES])
def test_every_file_is_without_mistakes(name: str, tmp_path: Path) -> None:
    with prepared(tmp_path) as directory:
        fleet = Fleet(directory, Pace(24), lambda condition, _: condition())
        fleet._urls = dict(LISTENING)
        command = fleet._command(name)
        [file] = [part for part in command if part.endswith(".toml")]
        plan, problems = check_file(Path(file))
        assert problems == []
        assert plan is not None
        assert plan.settings.node.name == name


def test_a_hub_that_starts_again_listens_where_it_did(tmp_path: Path) -> None:
    with prepared(tmp_path) as directory:
        fleet = Fleet(directory, Pace(24), lambda condition, _: condition())
        fleet._urls = {name: LISTENING[name] for name in (BROKER, ROUTER)}
        first = [table["url"] for table in fleet._hub("hub-a")["listen"]]
        assert all(url.endswith(":0") for url in first)
        fleet._urls["hub-a"] = LISTENING["hub-a"]
        again = [table["url"] for table in fleet._hub("hub-a")["listen"]]
        assert again == LISTENING["hub-a"]


def test_everybody_has_a_word_for_what_it_speaks() -> None:
    assert set(TRANSPORTS) == set(PROCESSES)


@pytest.mark.parametrize("seconds", [1, 6, 24, 300])
def test_all_faults_fit_into_the_time_or_are_as_short_as_they_can_be(seconds: float) -> None:
    pace = Pace(seconds)
    needed = 4 * pace.hold + pace.listed + 6 * pace.calm
    assert needed <= max(seconds, 6)
    assert pace.listed <= 4
