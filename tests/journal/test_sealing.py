"""`waystation journal seal`: what killed nodes left is sealed, and running nodes are left alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.journal.test_command_line import run  # noqa: F401 - a fixture
from tests.journal.test_damage import corrupt_rows, damage_second_batch
from tests.journal.test_old_journals import OLD
from tests.journal.test_recovery import ROOT, left_tail
from tests.journal.traffic import entries, losses, message_record, rows, until
from waystation.errors import LocalError
from waystation.journal import Journal, seal
from waystation.journal.check import check
from waystation.journal.layout import CORRUPT
from waystation.journal.read import JournalReader, RowFilter
from waystation.journal.seal import seal_all_left, seal_left_tails
from waystation.pipeline.building import _seal_left

Run = Callable[..., tuple[int, list[str], str]]


@pytest.mark.rule("OB-5")
def test_the_tails_of_a_killed_node_are_sealed(run: Run, tmp_path: Path) -> None:  # noqa: F811
    left_tail(tmp_path)
    before = entries(tmp_path)
    code, lines, errors = run("seal", tmp_path)
    assert (code, lines, errors) == (0, ["garage: 2 tails sealed, 31 rows"], "")
    assert sorted(path.name for path in tmp_path.rglob("*.*") if path.is_file()) == [
        ".node=garage.lock",
        "5-0.parquet",
        "5-1.parquet",
    ]
    assert entries(tmp_path) == before
    assert check(tmp_path) == []
    assert run("seal", tmp_path)[1] == ["nothing to seal"]


@pytest.mark.rule("OB-5", "OB-9")
def test_what_is_missing_is_written_down_as_the_next_start_would(
    run: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    path = left_tail(tmp_path)
    damage_second_batch(path)
    os.truncate(path, path.stat().st_size - 1)
    code, lines, _ = run("seal", tmp_path, "--json")
    told = json.loads(lines[0])
    assert (code, told["node"], told["tails"], told["rows"]) == (0, "garage", 2, 11)
    assert len(told["problems"]) == 2
    [(lost, detail)] = corrupt_rows(tmp_path)
    assert lost == 10
    assert detail in told["problems"]
    [(lost, detail)] = losses(tmp_path)
    assert lost == 0
    assert "bytes torn off messages/5-1.tail" in detail
    assert {row["incarnation"] for row in rows(tmp_path, "nodes")} == {5}
    [aside] = path.parent.glob(f".*{CORRUPT}")
    aside.unlink()
    assert check(tmp_path) == []
    with Journal(tmp_path, "garage") as journal:  # has nothing to add to that
        journal.note(message_record(1))
    assert len([row for row in rows(tmp_path, "nodes") if row["kind"] in {"lost", "corrupt"}]) == 2
    assert check(tmp_path) == []


def test_a_tail_of_which_nothing_is_left_is_told(tmp_path: Path) -> None:
    path = left_tail(tmp_path, start=False)
    path.write_bytes(bytes(5_000))
    [done] = seal_all_left(tmp_path)
    assert (done.tails, done.rows) == (1, 0)
    assert [kind for kind, _ in corrupt_rows(tmp_path)] == [0]
    assert [problem.kind for problem in check(tmp_path)] == ["corrupt"]


@pytest.mark.rule("OB-5")
def test_a_running_node_is_left_alone(run: Run, tmp_path: Path) -> None:  # noqa: F811
    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        journal.note(message_record(1))
        until(lambda: rows(tmp_path, "messages"))
        code, lines, _ = run("seal", tmp_path)
        assert (code, lines) == (0, ["garage: tails not sealed: it is running"])
        code, lines, errors = run("seal", tmp_path, "--node", "garage")
        assert (code, lines) == (1, [])
        assert "writes this node's journal" in errors
        with pytest.raises(LocalError):
            seal_left_tails(tmp_path, "garage")
        assert _seal_left(str(tmp_path)) == []
        journal.note(message_record(2))
    assert len(rows(tmp_path, "messages")) == 2
    assert check(tmp_path) == []


def test_an_unknown_node_is_wrong_usage(run: Run, tmp_path: Path) -> None:  # noqa: F811
    left_tail(tmp_path)
    code, _, errors = run("seal", tmp_path, "--node", "hall")
    assert code == 2
    assert "has no node 'hall'" in errors


@pytest.mark.rule("UP-3")
@pytest.mark.parametrize("name", ["first", "second"])
def test_the_tails_of_an_earlier_version_are_sealed(tmp_path: Path, name: str) -> None:
    shutil.copytree(OLD / name, tmp_path, dirs_exist_ok=True)
    before = entries(tmp_path)
    [done] = seal_all_left(tmp_path)
    assert done.node == f"{name}-killed"
    assert done.problems == []
    assert entries(tmp_path) == before
    assert check(tmp_path) == []


def test_a_disk_that_fails_leaves_the_tails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = left_tail(tmp_path)
    damage_second_batch(path)
    with monkeypatch.context() as patch:
        patch.setattr(seal, "write_sealed", full)
        [done] = seal_all_left(tmp_path)
    assert done.left is not None
    assert "No space left" in done.left
    assert path.exists()
    [done] = seal_all_left(tmp_path)
    assert (done.left, done.rows) == (None, 21)


@pytest.mark.rule("OB-5")
def test_a_build_sees_what_killed_nodes_left_and_says_so(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.journal.noting_child", str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        until(lambda: [*tmp_path.rglob("messages/*/.*.tail")])
    finally:
        process.kill()
        process.communicate()
    wanted = RowFilter(tables=frozenset({"messages"}))
    before = len(list(JournalReader(tmp_path, lambda *_: None, wanted).entries()))
    [said] = _seal_left(str(tmp_path))
    assert said.startswith("garage: ")
    assert list(tmp_path.rglob(".*.tail")) == []
    assert len(rows(tmp_path, "messages")) == before
    assert check(tmp_path) == []
