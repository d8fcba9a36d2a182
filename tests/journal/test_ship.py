"""Shipping a journal: everything arrives once, whatever ends when, and nothing else is removed."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.journal.traffic import message_record
from waystation.demo.processes import WAYSTATION
from waystation.errors import LocalError
from waystation.journal import Journal
from waystation.journal import ship as shipping
from waystation.journal.archive import (
    ARCHIVE,
    DirectoryArchive,
    RefusedError,
    checked_name,
    opened_archive,
)
from waystation.journal.check import check as check_rows
from waystation.journal.housekeeping import RetentionLimits, apply_retention, compact
from waystation.journal.read import TableReader
from waystation.journal.schema import NodeKind
from waystation.journal.seal import seal_all_left
from waystation.journal.ship import Shipper
from waystation.journal.shipped import Content, content_of


def write(directory: Path, node: str = "truck", *, rows: int = 10, incarnation: int = 5) -> None:
    with Journal(directory, node, incarnation=incarnation) as journal:
        for number in range(1, rows + 1):
            journal.note(message_record(number))


def files_in(directory: Path) -> dict[str, bytes]:
    """The sealed files and tails below a directory, by name."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*-*"))
        if path.suffix in (".parquet", ".tail")
    }


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    write(tmp_path / "journal")
    return tmp_path / "journal", tmp_path / "archive"


@pytest.fixture
def ship(places: tuple[Path, Path]) -> Callable[..., shipping.Pass]:
    """Ships once, as a new process would."""

    def run(journal: Path = places[0], archive: Path = places[1]) -> shipping.Pass:
        shipper = Shipper(journal, str(archive), lambda: opened_archive(archive))
        try:
            return shipper.ship()
        finally:
            shipper.close()

    return run


def test_all_files_arrive_once(places: tuple[Path, Path], ship: Any) -> None:
    journal, archive = places
    first = ship()
    assert files_in(archive) == files_in(journal)
    assert first.files == len(files_in(journal))
    assert first.waiting == shipping.Waiting()
    assert ship().files == 0
    for ledger in journal.rglob("_shipped"):
        ledger.unlink()
    assert ship().files == 0  # what is there is recognised without the note
    assert not check_rows(archive)


def test_an_interrupted_file_is_continued(places: tuple[Path, Path], tmp_path: Path) -> None:
    journal, _ = places
    name = next(name for name in files_in(journal) if name.startswith("messages"))
    source, content = journal / name, content_of(journal / name)
    archive = DirectoryArchive(tmp_path / "archive")
    data = source.read_bytes()
    assert archive.receive(name, content, 0, data[:100], None) == 100
    assert archive.held(name) is None
    again = DirectoryArchive(tmp_path / "archive")
    assert again.begun(name, content) == 100
    assert again.receive(name, content, 50, data[50:60], None) == 100  # a part that came twice
    again.put(name, source, content, None)
    assert again.held(name) == content
    assert again.receive(name, content, 0, data[:10], None) == content.size
    assert [path.name for path in (archive.directory / name).parent.iterdir()] == [source.name]


def test_a_file_that_is_not_what_it_should_be_starts_again(tmp_path: Path) -> None:
    archive, name = DirectoryArchive(tmp_path / "archive"), "nodes/node=truck/1-2.parquet"
    good, bad = b"what was sealed", b"what was garble"
    (tmp_path / "file").write_bytes(good)
    content = content_of(tmp_path / "file")
    assert archive.receive(name, content, 0, bad, None) == 0
    assert archive.held(name) is None
    archive.put(name, tmp_path / "file", content, None)
    assert (archive.directory / name).read_bytes() == good


def test_the_last_records_of_a_node_that_never_comes_back_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "TAIL_SECONDS", 0.0)
    directory, archive = tmp_path / "journal", tmp_path / "archive"
    with Journal(directory, "truck", seal_seconds=3_600, flush_seconds=0.01) as journal:
        shipper = Shipper(directory, str(archive), lambda: opened_archive(archive))
        for number in range(1, 4):
            journal.note(message_record(number))
            assert journal.flush(60)
            shipper.ship()
            assert files_in(archive) == files_in(directory)
            assert any(name.endswith(".tail") for name in files_in(archive))
        seal_all_left(archive)  # copies of tails are not sealed
        assert any(name.endswith(".tail") for name in files_in(archive))
    shipper.ship()
    shipper.close()
    assert files_in(archive) == files_in(directory)
    assert not any(name.endswith(".tail") for name in files_in(archive))


def test_two_machines_with_one_name_are_refused(
    places: tuple[Path, Path], tmp_path: Path, ship: Any
) -> None:
    ship()
    before = files_in(places[1])
    other = tmp_path / "other"
    write(other, rows=11)
    write(other, "lorry")
    done = ship(other)
    assert list(done.refused) == ["truck"]
    assert "is there with another content" in done.refused["truck"]
    after = files_in(places[1])
    assert {name: after[name] for name in before} == before
    assert any("node=lorry" in name for name in after)


def test_a_compacted_file_replaces_what_was_shipped_from_here(tmp_path: Path, ship: Any) -> None:
    journal, archive = tmp_path / "many", tmp_path / "archive"
    with Journal(journal, "truck", incarnation=5, seal_bytes=1) as writer:
        for number in range(1, 5):
            writer.note(message_record(number))
            assert writer.flush(60)
    ship(journal)
    before = files_in(archive)
    compact(journal, lambda *_: None)
    assert len(files_in(journal)) < len(before)
    assert not ship(journal).refused
    assert files_in(journal).items() <= files_in(archive).items()
    assert files_in(archive) != before
    assert not check_rows(archive)


def test_what_has_not_arrived_is_not_removed_for_its_age(
    places: tuple[Path, Path], ship: Any
) -> None:
    journal, _ = places
    write(journal, incarnation=6)
    shipper = Shipper(journal, "elsewhere", lambda: opened_archive("elsewhere"))
    shipper.close()
    limits = RetentionLimits(age=1.0)
    lost: list[Any] = []
    before = files_in(journal)
    assert apply_retention(journal, "truck", limits, 1e12, lambda *told: lost.append(told)) == 0
    assert files_in(journal) == before
    ship()
    assert apply_retention(journal, "truck", limits, 1e12, lambda *told: lost.append(told)) > 0
    assert not lost


def test_the_disk_is_bounded_and_what_is_lost_is_written_down(
    places: tuple[Path, Path],
) -> None:
    journal, _ = places
    shipper = Shipper(journal, "elsewhere", lambda: opened_archive("elsewhere"))
    shipper.close()
    with Journal(journal, "truck", incarnation=6, keep_bytes=1) as writer:
        writer.note(message_record(1))
    assert not list((journal / "messages" / "node=truck").glob("5-*.parquet"))
    rows = [row for row in nodes_rows(journal) if row["kind"] == str(NodeKind.LOST)]
    assert sum(row["lost"] for row in rows) >= 10
    assert all("before they were shipped" in row["detail"] for row in rows)


def nodes_rows(journal: Path) -> list[dict[str, Any]]:
    reader = TableReader(journal, "nodes", "truck", lambda *_: None)
    return [row for batch in reader.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_archive_is_tried_again(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, code: int, ship: Any
) -> None:
    journal, archive = places

    def fail(*_: Any) -> int:
        raise OSError(code, "it does not work")

    with monkeypatch.context() as broken:
        broken.setattr(DirectoryArchive, "receive", fail)
        shipper = Shipper(journal, str(archive), lambda: opened_archive(archive))
        with pytest.raises(OSError, match="it does not work"):
            shipper.ship()
        assert shipper.last.waiting.files == len(files_in(journal))
        assert shipper.last.waiting.bytes > 0
        shipper.close()
    ship()
    assert files_in(archive) == files_in(journal)


@pytest.mark.timeout(600)
def test_a_process_whose_archive_is_full_goes_on_when_there_is_room(
    places: tuple[Path, Path],
) -> None:
    """The limit of a file's size stands for a full disk: writing fails in the same way."""
    journal, archive = places
    write(journal, incarnation=6, rows=5_000)
    command = [*WAYSTATION, "journal", "ship", str(journal), "--to", str(archive), "--every", "0.1"]
    limited = ["/bin/sh", "-c", 'ulimit -S -f 4; exec "$@"', "sh", *command]  # 2 KiB
    # Python 3.11 takes a short write of compiled code for a whole one: every later process
    # that imports the module would fail.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(limited, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "cannot ship" in line)
            assert "files (" in line
            assert files_in(archive) != files_in(journal)
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
            next(line for line in process.stderr if "shipping works again" in line)
        finally:
            process.kill()
    assert files_in(archive) == files_in(journal)
    assert not check_rows(archive)


def test_a_disk_that_is_not_mounted_is_not_there(places: tuple[Path, Path], ship: Any) -> None:
    missing = places[0].parent / "mnt" / "archive"
    with pytest.raises(FileNotFoundError):
        ship(places[0], missing)
    assert not missing.parent.exists()


def test_one_process_ships_a_journal(places: tuple[Path, Path]) -> None:
    journal, archive = places
    shipper = Shipper(journal, str(archive), lambda: opened_archive(archive))
    with pytest.raises(LocalError, match="ships this journal"):
        Shipper(journal, str(archive), lambda: opened_archive(archive))
    shipper.close()


@pytest.mark.parametrize(
    "name",
    [
        "../messages/node=a/1-2.parquet",
        "messages/node=a/../../1-2.parquet",
        "secrets/node=a/1-2.parquet",
        "messages/node=a/1-2.parquet.part",
        f"messages/node=a/{ARCHIVE}",
        "/messages/node=a/1-2.parquet",
    ],
)
def test_nothing_but_files_of_a_journal_is_taken(name: str, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="is no file of a journal"):
        checked_name(name)
    archive = DirectoryArchive(tmp_path / "archive")
    with pytest.raises(LocalError):
        archive.receive(name, Content(1, 0), 0, b"x", None)


def test_a_replacement_names_what_it_replaces(tmp_path: Path) -> None:
    archive, name = DirectoryArchive(tmp_path / "archive"), "nodes/node=truck/1-2.parquet"
    for text in ("one", "two"):
        (tmp_path / text).write_text(text)
    one, two = (content_of(tmp_path / text) for text in ("one", "two"))
    archive.put(name, tmp_path / "one", one, None)
    with pytest.raises(RefusedError):
        archive.put(name, tmp_path / "two", two, None)
    archive.put(name, tmp_path / "two", two, one)
    assert archive.held(name) == two
