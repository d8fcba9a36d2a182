"""`waystation demo`: wrong usage, and directories that it does not touch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.live_commands import Commands


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def test_help_has_examples_as_they_are_written(call: Commands) -> None:
    code, out, err = call("demo", "--help")
    assert (code, err) == (0, "")
    assert "  waystation demo --out /tmp/demo --seconds 60\n" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--seconds", "0"], "'--seconds': 0"), (["--out"], "'--out' requires an argument")],
)
def test_wrong_usage_is_exit_2(call: Commands, arguments: list[str], complaint: str) -> None:
    code, out, err = call("demo", *arguments)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_directory_of_somebody_else_is_not_touched(
    call: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.txt").touch()
    monkeypatch.setenv("WAYSTATION_OUT", str(tmp_path))
    code, out, err = call("demo")
    assert (code, out) == (1, "")
    assert "is not empty and not from an earlier demo; give a new directory" in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_is_not_installed_is_named(
    call: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.cli.demo.find_spec", lambda _: None)
    code, out, err = call("demo", "--out", str(tmp_path / "demo"))
    assert (code, out) == (1, "")
    assert "pip install 'waystation[demo]'" in err
    assert not (tmp_path / "demo").exists()
