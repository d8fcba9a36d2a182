"""Fleets that are run twice: what a what-if forecasts of the second run, and what came (SP-9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from waystation.testing.twins import __main__ as program
from waystation.testing.twins.comparing import CLASSES, Compared, arrivals, compared
from waystation.testing.twins.kinds import CONTROLS, KINDS
from waystation.testing.twins.running import run
from waystation.testing.twins.script import script_of
from waystation.testing.twins.trying import LEAST, Figures, Tried, try_twins, twins_of
from waystation.whatif.changes import Changes, changes_of
from waystation.whatif.verdicts import SAME

TRIED = {"ttl of routes": 0, "without stop": 106, "without unsubscribe": 20, "room": 25}
"""Some kinds of changes, and the seed that each is tried with for every change of the code."""


@pytest.mark.rule("SP-9")
def test_what_is_forecast_is_what_comes() -> None:
    figures = Figures(len(TRIED))
    for kind, seed in TRIED.items():
        figures.add(try_twins(seed, kind))
    total = figures.total
    assert total.differing > 50
    assert total.right > 4 * total.right_if_nothing_changes
    assert not list(figures.problems())


@pytest.mark.rule("SP-9")
@pytest.mark.parametrize("kind", ["sticky", "put a subscription"])
def test_a_change_that_alters_nothing_is_forecast_to_alter_nothing(kind: str) -> None:
    tried = try_twins(list(CONTROLS).index(kind), kind, control=True)
    assert tried.compared.all > 100
    assert [one for one in tried.differences if one.forecast != SAME] == []


@pytest.mark.fault
@pytest.mark.timeout(3600)
@pytest.mark.rule("SP-9")
def test_what_is_forecast_of_200_fleets_is_what_comes(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seeds", "200"]) == 0, capsys.readouterr().out


def test_a_script_that_is_run_again_ends_in_the_same_way(tmp_path: Path) -> None:
    script = twins_of(3, "without crash").without
    runs = [run(script, tmp_path / name) for name in ("one", "other")]
    assert runs[0].got == runs[1].got
    found = list(compared(script, runs[0], runs[1], Changes()))
    assert len(found) > 100
    assert {(one.forecast, one.true) for one in found} == {(SAME, SAME)}


def test_the_journal_says_who_got_what(tmp_path: Path) -> None:
    script = script_of(5)
    found = run(script, tmp_path)
    assert len(found.got) > 100
    assert arrivals(found, script) == found.got


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_change_can_be_said_in_a_file(kind: str, tmp_path: Path) -> None:
    del tmp_path
    twins = twins_of(list(KINDS).index(kind), kind)
    assert twins.without != twins.changed


def test_there_is_a_control_for_every_kind() -> None:
    assert {kind.removesuffix(" less") for kind in KINDS} == set(CONTROLS)


def test_what_is_worse_than_it_should_be_is_told() -> None:
    figures = Figures(1)
    good = {"saved saved": 20, "lost lost": 20, "moved moved": 20, "same same": 900}
    figures.add(Tried(0, "sticky", False, Compared(good)))
    assert list(figures.problems()) == []
    bad = {"saved same": 5, "same lost": 5, "unknown moved": 20}
    figures.add(Tried(1, "sticky", False, Compared(bad)))
    figures.add(Tried(2, "sticky", True, Compared({"moved same": 1, "same same": 9})))
    said = "\n".join(figures.problems())
    assert f"precision of saved is 0.800, less than {LEAST}" in said
    assert "recall of lost is 0.800" in said
    assert "of what differs is unknown" in said
    assert "the control of sticky alters 1 fates" in said


def test_the_figures_of_a_run_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Tried(0, "sticky", False, Compared({"saved saved": 9, "same same": 91}))
    monkeypatch.setattr(program, "try_many", lambda _: iter([one]))
    assert program.main(["--seeds", "1", "--figures", str(tmp_path / "figures.json")]) == 0
    assert '"saved saved": 9' in (tmp_path / "figures.json").read_text()
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "1 seeds, 0 problems"
    assert all(verdict in told[0] for verdict in CLASSES)


def test_one_seed_is_shown_with_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seed", "2", "--kind", "sticky"]) == 0
    told = capsys.readouterr().out
    assert "forecast saved" in told
    assert str(changes_of({"sticky": [{}]})) not in told
