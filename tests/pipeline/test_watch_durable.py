"""What `watch` names is on disk before, and what a reader was told of stays for a while (SP-3)."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.pipeline.small import put_rows, row
from tests.pipeline.watched import assert_up_to_date, engine, table_in, take_in
from waystation.pipeline.store import Place
from waystation.pipeline.tables import WATCHED
from waystation.pipeline.watching import store as stores
from waystation.pipeline.watching.store import Ledger, Manifest
from waystation.why.finished import StoredTables, Version

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    directory = tmp_path / "journal"
    directory.mkdir()
    return directory


def put_messages(journal: Path, first: int, count: int = 5) -> None:
    rows = [
        row("messages", seq, message_id=f"{seq:032x}", outcome="DROPPED", reason="NO_ROUTE")
        for seq in range(first, first + count)
    ]
    put_rows(journal, "messages", rows)


def last_of(place: Path) -> Manifest:
    found = Ledger(place / "checkpoint").read()
    assert found is not None
    return found


class Disk:
    """Notes what is asked to be on disk, and what gets its final name, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, Path]] = []
        fsync, replace, link = os.fsync, Place.replace, os.link
        rename = Path.replace

        def note_sync(descriptor: int) -> None:
            self.done.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
            fsync(descriptor)

        def note_replace(place: Place) -> None:
            self.done.append(("publish", place.path))
            replace(place)

        def note_link(source: Any, target: Any) -> None:
            self.done.append(("link", Path(target)))
            link(source, target)

        def note_rename(path: Path, target: Any) -> Path:
            self.done.append(("rename", Path(target)))
            return rename(path, target)

        patch.setattr(os, "fsync", note_sync)
        patch.setattr(os, "link", note_link)
        patch.setattr(Place, "replace", note_replace)
        patch.setattr(Path, "replace", note_rename)

    def at(self, what: str, path: Path) -> int:
        """When it was done; it must have been done once."""
        [found] = [number for number, done in enumerate(self.done) if done == (what, path)]
        return found


@pytest.mark.rule("SP-3")
def test_files_are_on_disk_before_a_batch_names_them(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_messages(journal, 1)
    watch = engine(journal, tmp_path)
    take_in(watch, journal)
    before = last_of(tmp_path).all_files()
    put_messages(journal, 11)
    disk = Disk(monkeypatch)
    take_in(watch, journal)
    monkeypatch.undo()
    store, ledger = tmp_path / "tables" / ".watch", tmp_path / "checkpoint" / "batches" / "last"
    counts = disk.at("rename", ledger)
    new = last_of(tmp_path).all_files() - before
    assert {name.partition("/")[0] for name in new} >= {"states", "traces", "steps", "losses"}
    for name in new:
        path = store / name
        assert disk.at("sync", path) < disk.at("sync", path.parent) < counts
    assert disk.at("sync", store) < counts
    assert disk.at("sync", ledger.with_name(".last.new")) < counts
    assert counts < disk.at("sync", ledger.parent)
    watch.close()


@pytest.mark.rule("SP-3")
def test_a_table_is_on_disk_before_it_is_published(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "tables"
    put_messages(journal, 1)
    watch = engine(journal, tmp_path)
    disk = Disk(monkeypatch)
    take_in(watch, journal)
    monkeypatch.undo()
    hidden = out / ".traces.new"
    published, whole = disk.at("publish", out / "traces"), disk.at("sync", hidden)
    links = [
        at for at, (what, path) in enumerate(disk.done) if (what, path.parent) == ("link", hidden)
    ]
    written = [disk.at("sync", hidden / name) for name in ("_version", "empty.parquet")]
    assert max(*links, *written) < whole < published < disk.at("sync", out)
    assert disk.at("sync", tmp_path / "checkpoint" / "batches") < min(links)
    watch.close()


def test_copies_are_on_disk_as_well_where_there_are_no_links(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    put_messages(journal, 1)
    watch = engine(journal, tmp_path)
    disk = Disk(monkeypatch)
    monkeypatch.setattr(os, "link", refuse)
    take_in(watch, journal)
    monkeypatch.undo()
    for path in (tmp_path / "tables" / "traces").iterdir():
        disk.at("sync", tmp_path / "tables" / ".traces.new" / path.name)
    watch.close()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_disk_that_cannot_tell_is_trusted_and_one_that_fails_is_not(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    put_messages(journal, 1)
    watch = engine(journal, tmp_path)

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if number == errno.EINVAL:
        assert take_in(watch, journal)
        assert_up_to_date(tmp_path / "tables", journal)
    else:
        with pytest.raises(OSError, match="Input/output error"):
            take_in(watch, journal)
        assert not (tmp_path / "checkpoint" / "batches" / "last").exists()  # it does not count
    watch.close()


def listed(out: Path) -> dict[str, list[str]]:
    """The files of each table as a reader is told of them."""
    tables = StoredTables(out)
    found = {table: tables.files(table) for table in WATCHED}
    return {table: names for table, names in found.items() if isinstance(names, list)}


@pytest.mark.rule("SP-3")
@pytest.mark.parametrize("bound", ["batches", "seconds"])
def test_a_reader_that_listed_a_table_can_read_it_some_batches_later(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    out = tmp_path / "tables"
    monkeypatch.setattr(stores, "KEPT_BATCHES", 2)
    put_messages(journal, 1)
    watch = engine(journal, tmp_path)
    take_in(watch, journal)
    files, former = listed(out), table_in(out, "traces")
    assert files.keys() == {*WATCHED}
    dataset = StoredTables(out).dataset("traces")
    assert dataset is not None
    for number in (1, 2):
        put_messages(journal, 1 + 10 * number)
        take_in(watch, journal)
    now = {name for names in listed(out).values() for name in names}
    assert not {*files["traces"][1:]} & now  # the first ones were replaced
    for table, names in files.items():
        read = sum(pq.read_table(name).num_rows for name in names)
        assert read == pq.read_table(names).num_rows, table
    assert dataset.to_table().sort_by("message_id") == former.sort_by("message_id")
    watch.close()
    watch = engine(journal, tmp_path)  # a restart removes none of them
    assert all(Path(name).exists() for names in files.values() for name in names)
    if bound == "seconds":
        monkeypatch.setattr(stores, "KEPT_BATCHES", 100)
        monkeypatch.setattr(stores, "KEPT_SECONDS", 0.0)
    for number in (3, 4):
        put_messages(journal, 1 + 10 * number)
        take_in(watch, journal)
    assert not any(Path(name).exists() for name in files["traces"][1:])
    assert_up_to_date(out, journal)
    watch.close()


def test_a_table_without_its_store_is_read_from_its_directory(
    tmp_path: Path, journal: Path
) -> None:
    out = tmp_path / "tables"
    put_messages(journal, 1)
    watch = engine(journal, tmp_path)
    take_in(watch, journal)
    watch.close()
    copy = tmp_path / "copy"
    shutil.copytree(out / "traces", copy / "traces")
    assert StoredTables(copy).files("traces") == str(copy / "traces")
    version = out / "traces" / "_version"
    told = msgspec.json.decode(version.read_bytes(), type=Version)
    shown = [name.removeprefix(".watch/").replace("/", "-") for name in told.stored]
    assert shown == ["traces-empty.parquet", *told.files]
    for damaged in (b'{"batch": 0, "files": ["a.parquet"]}', b"{"):  # of an older program, of none
        version.write_bytes(damaged)
        assert StoredTables(out).files("traces") == str(out / "traces")
    assert StoredTables(out).files("nothing") is None
