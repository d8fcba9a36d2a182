from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from waystation.cli.identity import identity
from waystation.node import keyfile


def run(*arguments: object) -> str:
    result = CliRunner().invoke(identity, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.rule("ID-1")
def test_an_identity_is_created_shown_exported_and_rotated(tmp_path: Path) -> None:
    key = tmp_path / "truck-7.key"
    identifier = run("create", key).strip()
    assert f"identifier: {identifier}\nkeys: 1\n" in run("show", key)
    exported = run("export", key)
    public = tmp_path / "truck-7.public"
    public.write_text(exported)
    assert json.loads(run("show", public, "--json"))["identifier"] == identifier
    assert run("rotate", key) == f"{identifier} now has key 2\n"
    assert json.loads(run("show", key, "--json"))["keys"] == 2
    assert run("export", key) != exported
    told = json.loads(run("rotate", key, "--json"))
    assert (told["identifier"], told["keys"]) == (identifier, 3)
    assert json.loads(run("export", key, "--json"))["history"] == run("export", key).strip()
    made = json.loads(run("create", tmp_path / "other.key", "--json"))
    assert made["identifier"] in run("show", tmp_path / "other.key")


@pytest.mark.rule("ID-1")
def test_no_command_prints_the_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    printed = run("create", key)
    secret = json.loads(key.read_text())["key"]
    printed += run("show", key) + run("show", key, "--json") + run("export", key)
    assert secret not in printed
    printed = run("rotate", key)
    assert json.loads(key.read_text())["key"] not in printed


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    key = tmp_path / "key"
    run("create", key)
    before = key.read_bytes()
    result = CliRunner().invoke(identity, ["create", str(key)])
    assert result.exit_code == 1
    assert "exists" in result.output
    assert key.read_bytes() == before


def test_an_expired_key_is_shown_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("create", tmp_path / "key", "--days", 1)
    later = keyfile.now() + 2 * 24 * 3600
    monkeypatch.setattr(keyfile, "now", lambda: later)
    assert "has expired" in run("show", tmp_path / "key")
