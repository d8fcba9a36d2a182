"""The command line as a person meets it: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waystation import __version__
from waystation.cli import main
from waystation.errors import LocalError


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("waystation"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "rules" in result.stdout
    assert run().stdout == result.stdout
    assert run("--version").stdout == f"waystation, version {__version__}\n"


def ends(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "there is no command 'nonsense'; try `waystation --help`"),
        (["nod"], "there is no command 'nod'; did you mean `node`; try `waystation --help`"),
        (["rules", "--nonsense"], "No such option '--nonsense'; try `waystation rules --help`"),
        (["rules", "RE-99"], "unknown rule 'RE-99'; rules run from AD-1 to SP-9"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ends(capsys, *arguments)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.startswith("waystation: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("trouble", "code", "said"),
    [
        (LocalError("type 256", rule="AD-1", hint="give 255"), 1, "waystation: type 256; give 255"),
        (FileNotFoundError(2, "No such file", "x"), 1, "waystation: x: No such file"),
        (KeyboardInterrupt(), 1, "waystation: interrupted"),
    ],
)
def test_trouble_is_one_line_on_stderr(
    trouble: BaseException,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr("waystation.cli.rules.all_rules", fail)
    ended, out, err = ends(capsys, "rules")
    assert (ended, out) == (code, "")
    assert err.lstrip().startswith(said)  # after Ctrl-C the terminal begins a new line
    assert len(err.split("\n")) <= 3


def test_rules_shows_every_rule_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ends(capsys, "rules")
    assert (code, err) == (0, "")
    assert "Routing entries\n" in out
    assert "RE-3   A local entry is replaced by a local one. (" in out
    assert "(not implemented yet)" not in out


def test_rules_shows_the_code_and_the_tests_of_the_chosen_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = ends(capsys, "rules", "re-6", "MC-7")
    assert "src/waystation/core/routing.py" in out
    assert "src/waystation/core/multicast.py::Subscriptions._walk" in out
    assert "tests/core/test_routing.py::test_remote_never_replaces_local" in out
    assert "tests/core/test_multicast.py::test_the_reference_table" in out
    assert "RE-7" not in out


def test_rules_as_json_is_json_and_nothing_else() -> None:
    for result in (run("rules", "--json", "RE-6"), run("rules", "RE-6", WAYSTATION_JSON="1")):
        [rule] = json.loads(result.stdout)
        assert rule["id"] == "RE-6"
        assert rule["tests"]
        assert rule["places"]
        assert result.stderr == ""


@pytest.mark.parametrize("group", ["journal", "pipeline", "identity"])
def test_no_help_is_cut(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([group, "--help"])
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize(
    ("arguments", "code"), [(["why", "zz", "--journal", ".", "--json"], 2), (["nonsense"], 2)]
)
def test_trouble_is_json_too_where_json_is_asked_for(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    if "--json" in arguments:
        told = json.loads(out)
        assert told["exit_code"] == code
        assert told["error"] in err
    else:
        assert out == ""
