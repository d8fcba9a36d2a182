"""The directory of a demonstration: replaced if a demonstration made it, and left alone if not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from waystation.demo.directory import prepared
from waystation.demo.summary import from_here
from waystation.errors import LocalError


def test_a_directory_that_is_not_there_is_made(tmp_path: Path) -> None:
    with prepared(tmp_path / "new" / "demo") as directory:
        assert directory.journal.is_dir()
        assert json.loads((directory.out / "demo.json").read_text()) == {"state": "running"}


def test_one_that_did_not_come_to_its_end_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), prepared(tmp_path):
        raise KeyboardInterrupt
    assert json.loads((tmp_path / "demo.json").read_text()) == {"state": "interrupted"}


def test_what_an_earlier_demonstration_made_is_replaced(tmp_path: Path) -> None:
    with prepared(tmp_path) as directory:
        directory.report.write_text("old")
        (directory.tables / "audit").mkdir()
    with prepared(tmp_path) as directory:
        assert not directory.report.exists()
        assert list(directory.tables.iterdir()) == []


def test_what_somebody_put_there_besides_is_left_alone(tmp_path: Path) -> None:
    with prepared(tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
    with prepared(tmp_path):
        assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(LocalError, match="not empty and not from an earlier demo"),
        prepared(tmp_path),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="is not a directory"), prepared(tmp_path / "file"):
        pass


def test_two_demonstrations_do_not_share_a_directory(tmp_path: Path) -> None:
    with (
        prepared(tmp_path),
        pytest.raises(LocalError, match="runs a demonstration there"),
        prepared(tmp_path),
    ):
        pass


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    with prepared(tmp_path) as directory:
        directory.write("deeds.json", [1])
        directory.write("deeds.json", [1, 2])
        assert json.loads((tmp_path / "deeds.json").read_text()) == [1, 2]
        assert not list(tmp_path.glob(".faults*"))


def test_paths_below_the_current_directory_are_told_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_here(tmp_path / "out" / "journal") == Path("out/journal")
    assert from_here(tmp_path.parent) == tmp_path.parent
