"""Failing disks: the node continues, and the journal reports what is missing."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.journal.traffic import losses, message_record, rows, rows_so_far, until
from waystation.errors import LocalError
from waystation.journal import Journal, write
from waystation.journal.check import check
from waystation.journal.tail import Tail

UNSHARE = shutil.which("unshare") or "/usr/bin/unshare"
ROOT = Path(__file__).resolve().parents[2]


class Disk:
    """Replaces the writes of tails: accepts this many bytes, then fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 2**62
        self.error = errno.ENOSPC
        self._write = os.write
        monkeypatch.setattr("waystation.journal.tail.os.write", self.write)

    def write(self, descriptor: int, data: memoryview) -> int:
        taken = min(len(data), self.room)
        if not taken:
            raise OSError(self.error, os.strerror(self.error))
        self.room -= taken
        return self._write(descriptor, data[:taken])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.rule("OB-6")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_disk_loses_no_records_while_there_is_room_in_memory(
    tmp_path: Path, disk: Disk, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        journal.note(message_record(0))
        until(lambda: rows_so_far(tmp_path, "messages"))
        disk.room, disk.error = 100, error  # in the middle of a batch
        for number in range(1, 50):
            journal.note(message_record(number))
        until(lambda: not disk.room and journal.trouble)
        assert len(rows(tmp_path, "messages")) == 1  # no partial batch is left
        disk.room = 2**62
        until(lambda: len(rows_so_far(tmp_path, "messages")) == 50)
    assert journal.lost == 0
    assert check(tmp_path) == []
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2  # logged once, and again when it is over
    assert os.strerror(error) in warnings[0]


@pytest.mark.rule("OB-6")
def test_a_disk_that_stays_full_loses_records_which_are_counted_and_reported(
    tmp_path: Path, disk: Disk
) -> None:
    options: dict[str, Any] = {"flush_seconds": 0.02, "flush_records": 10, "buffer_records": 100}
    with Journal(tmp_path, "garage", **options) as journal:
        until(lambda: rows_so_far(tmp_path, "nodes"))
        disk.room = 0
        journal.note(message_record(0))
        until(lambda: journal.trouble)
        noted = 1
        while journal.lost < 50:
            journal.note(message_record(noted))
            noted += 1
        disk.room = 2**62
        until(lambda: losses(tmp_path))
    [(lost, detail)] = losses(tmp_path)
    assert (lost, journal.lost) == (50, 50)
    assert detail == "the disk could not take them: No space left on device"
    assert len(rows(tmp_path, "messages")) == noted - 50
    assert check(tmp_path) == []


def test_a_disk_that_is_full_at_the_end_does_not_hold_up_the_node(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path, "garage", flush_seconds=0.02)
    until(lambda: rows_so_far(tmp_path, "nodes"))
    disk.room = 0
    journal.note(message_record(1))
    with caplog.at_level(logging.WARNING):
        journal.close()
    assert journal.lost == 2  # the message and the stop
    assert "closed without its last 2 records" in caplog.text


def test_a_partial_batch_that_cannot_be_removed_ends_its_tail(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        journal.note(message_record(0))
        until(lambda: rows_so_far(tmp_path, "messages"))

        def refuse(_descriptor: int, _size: int) -> None:
            raise OSError(errno.EIO, "broken")

        with monkeypatch.context() as patch:
            patch.setattr("waystation.journal.tail.os.ftruncate", refuse)
            disk.room = 100
            journal.note(message_record(1))
            until(lambda: journal.trouble)
        disk.room = 2**62
    assert len(rows(tmp_path, "messages")) == 2
    assert check(tmp_path) == []


@pytest.mark.rule("OB-6")
def test_a_removed_directory_is_recreated_and_its_loss_reported(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    with Journal(directory, "garage", flush_seconds=0.02) as journal:
        for number in range(5):
            journal.note(message_record(number))
        until(lambda: len(rows_so_far(directory, "messages")) == 5)
        directory.rename(tmp_path / "gone")  # at once: the writer may be making files in it
        shutil.rmtree(tmp_path / "gone")
        for number in range(5, 8):
            journal.note(message_record(number))
        until(lambda: losses(directory))
    assert [row["bytes"] for row in rows(directory, "messages")] == [5, 6, 7]
    told = {detail.partition("/")[0]: lost for lost, detail in losses(directory)}
    assert told["messages"] == 5
    assert check(directory) == []


def test_a_tail_removed_before_it_is_sealed_is_reported(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02, seal_seconds=1.0) as journal:
        journal.note(message_record(1))
        until(lambda: rows_so_far(tmp_path, "messages"))
        (tail,) = [file for file in tmp_path.rglob(".*.tail") if "messages" in file.parts]
        tail.unlink()
        until(lambda: losses(tmp_path))
    assert losses(tmp_path)[0] == (1, f"messages/{tail.name[1:]} vanished")


def test_failed_sealing_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"incarnation": 5, "flush_seconds": 0.02, "seal_bytes": 1}
    with Journal(tmp_path, "garage", **options) as journal:
        obstacle = tmp_path / "messages/node=garage/.5-1.seal.tmp"
        obstacle.mkdir(parents=True)  # where the file to be sealed is written
        journal.note(message_record(1))
        until(lambda: caplog.records)
        until(lambda: rows_so_far(tmp_path, "messages"))  # readable meanwhile
        obstacle.rmdir()
    assert len(caplog.records) == 1
    assert "cannot seal, will retry" in caplog.text
    assert not list(tmp_path.rglob(".*.tail"))
    assert len(rows(tmp_path, "messages")) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LocalError, match="Permission denied"):
        Journal(tmp_path / "journal", "garage")


def test_a_file_in_place_of_a_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="cannot write a journal to"):
        Journal(tmp_path / "file", "garage")


def test_permission_denied_while_it_runs_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_args: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        until(lambda: rows_so_far(tmp_path, "nodes"))
        with monkeypatch.context() as patch:
            patch.setattr(Tail, "__init__", denied)
            journal.note(message_record(1))
            until(lambda: journal.trouble)
        until(lambda: rows_so_far(tmp_path, "messages"))
    assert journal.lost == 0


def test_a_node_starts_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(write, "FileLock", full)
        journal = Journal(tmp_path, "garage", flush_seconds=0.02)
        journal.note(message_record(1))
        until(lambda: journal.trouble)
    until(lambda: rows_so_far(tmp_path, "messages"))
    journal.close()
    assert check(tmp_path) == []


SMALL_DISK = """
import sys
from pathlib import Path
from tests.journal.traffic import losses, message_record, rows, rows_so_far, until
from waystation.journal import Journal
from waystation.journal.check import check

disk = Path(sys.argv[1])
with Journal(disk / "journal", "garage", flush_seconds=0.02) as journal:
    until(lambda: rows_so_far(disk / "journal", "nodes"))
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(600_000))
    noted = 0
    while not journal.trouble:
        for _ in range(100):
            journal.note(message_record(noted))
            noted += 1
        until(lambda: journal.trouble or not journal.waiting)
    print("full", noted, flush=True)
    ballast.unlink()
    until(lambda: len(rows_so_far(disk / "journal", "messages")) == noted)
assert check(disk / "journal") == [], check(disk / "journal")
assert journal.lost == 0, journal.lost
print("whole", flush=True)
"""


@pytest.mark.rule("OB-6")
def test_records_survive_a_real_full_disk(tmp_path: Path) -> None:
    if not Path(UNSHARE).exists():
        pytest.skip("no unshare here")
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    allowed = subprocess.run(
        [UNSHARE, "-m", "sh", "-c", mount], capture_output=True, text=True, check=False
    )
    if allowed.returncode:
        pytest.skip(f"no mount namespace here: {allowed.stderr.strip()}")
    command = f'{mount} && exec "$0" -c "$1" {tmp_path}'
    result = subprocess.run(
        [UNSHARE, "-m", "sh", "-c", command, sys.executable, SMALL_DISK],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
        check=False,
    )
    assert result.stdout.endswith("whole\n"), result.stderr
    assert "No space left on device" in result.stderr


def test_without_the_lock_no_other_tail_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(tmp_path, "garage", incarnation=5, flush_seconds=0.02) as living:
        living.note(message_record(1))
        until(lambda: rows_so_far(tmp_path, "messages"))
        with monkeypatch.context() as patch:
            patch.setattr(write, "FileLock", full)
            other = Journal(tmp_path, "garage", incarnation=6, flush_seconds=0.02)
            other.close()
            assert list(tmp_path.rglob(".5-1.tail"))
        assert other.lost == 2  # its start and its stop
        living.note(message_record(2))
    assert len(rows(tmp_path, "messages")) == 2


def test_with_fsync_flush_each_flush_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("waystation.journal.tail.os.fdatasync", synced.append)
    with Journal(tmp_path, "garage", fsync="flush", flush_seconds=0.02) as journal:
        until(lambda: len(synced) == 1)
        journal.note(message_record(1))
        until(lambda: len(synced) == 2)
