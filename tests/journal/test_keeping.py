"""What is kept: sampling, retention, compaction."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.journal.traffic import (
    NO_ROUTE,
    change_record,
    entries,
    message_record,
    no_problem,
    rows,
    until,
)
from waystation import __version__
from waystation.errors import LocalError
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.convert import is_sampled, sample_threshold
from waystation.journal.files import FileLock
from waystation.journal.housekeeping import RetentionLimits, apply_retention, compact
from waystation.journal.layout import housekeeping_lock_path
from waystation.journal.read import JournalReader, TableReader


def sealed(directory: Path, table: str = "messages") -> list[Path]:
    return sorted(
        (directory / table).glob("node=*/*.parquet"), key=lambda path: path.stat().st_mtime
    )


def many_files(directory: Path, count: int, incarnation: int = 5) -> None:
    """An incarnation that sealed this many files of messages, five rows each, and some routes."""
    journal = Journal(
        directory, "garage", incarnation=incarnation, flush_seconds=0.005, seal_bytes=1
    )
    for file in range(count):
        for number in range(5):
            journal.note(message_record(5 * file + number))
        journal.note(change_record(file))
        wait_for_files(directory, f"routes/node=garage/{incarnation}-*.parquet", file + 1)
    journal.close()


def wait_for_files(directory: Path, pattern: str, count: int) -> None:
    until(lambda: len(list(directory.glob(pattern))) >= count)


def test_a_sampled_message_is_kept_at_every_node_or_at_none(tmp_path: Path) -> None:
    for node in ("garage", "hall"):
        with Journal(tmp_path, node, sample=0.25) as journal:
            for number in range(1, 2_001):
                journal.note(message_record(number))
                journal.note(change_record(number))
    kept = {
        node: {row["message_id"] for row in of_node(tmp_path, node)} for node in ("garage", "hall")
    }
    assert kept["garage"] == kept["hall"]
    assert 400 < len(kept["garage"]) < 600
    assert kept["garage"] == {
        f"{n:032x}" for n in range(1, 2_001) if is_sampled(f"{n:032x}", sample_threshold(0.25))
    }
    assert len(rows(tmp_path, "routes")) == 4_000
    assert check(tmp_path) == []  # what was not sampled is not a gap


def of_node(directory: Path, node: str) -> list[dict[str, Any]]:
    found = entries(directory, tables=frozenset({"messages"}), nodes=frozenset({node}))
    return [entry.fields for entry in found]


def test_drops_are_always_kept(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", sample=0.0) as journal:
        for number in range(100):
            journal.note(message_record(number))
            journal.note(message_record(number, NO_ROUTE))
    assert [row["outcome"] for row in rows(tmp_path, "messages")] == ["DROPPED"] * 100


def test_retention_by_age_removes_old_messages_and_keeps_the_running_incarnation_rebuildable(
    tmp_path: Path,
) -> None:
    many_files(tmp_path, 4, incarnation=5)
    many_files(tmp_path, 4, incarnation=6)
    for path in tmp_path.rglob("*.parquet"):
        os.utime(path, (1_000, 1_000))
    young = next(path for path in sealed(tmp_path) if path.name.startswith("6-"))
    os.utime(young, (5_000, 5_000))
    gone = apply_retention(tmp_path, "garage", RetentionLimits(age=100), now=5_050)
    assert gone > 8
    assert sealed(tmp_path) == [young]
    assert {path.name.partition("-")[0] for path in sealed(tmp_path, "routes")} == {"6"}
    assert len(rows(tmp_path, "routes")) == 4
    assert check(tmp_path) == []  # what was removed is not a gap


def test_retention_by_size_removes_the_oldest_messages_first(tmp_path: Path) -> None:
    many_files(tmp_path, 6)
    before = [row["seq"] for row in rows(tmp_path, "messages")]
    total = sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
    assert apply_retention(tmp_path, "garage", RetentionLimits(bytes=total - 1), now=0) == 1
    after = [row["seq"] for row in rows(tmp_path, "messages")]
    assert before[-len(after) :] == after
    assert len(after) < len(before)
    apply_retention(tmp_path, "garage", RetentionLimits(bytes=1), now=0)
    assert sealed(tmp_path) == []
    assert len(rows(tmp_path, "routes")) == 6
    assert check(tmp_path) == []


def test_a_journal_applies_its_own_retention(tmp_path: Path) -> None:
    many_files(tmp_path, 3)
    for path in sealed(tmp_path):
        os.utime(path, (1_000, 1_000))
    Journal(tmp_path, "garage", keep_age=3_600, keep_bytes=10**9).close()
    assert sealed(tmp_path) == []


def test_nothing_is_removed_when_everything_is_kept_or_somebody_compacts(tmp_path: Path) -> None:
    many_files(tmp_path, 2)
    assert apply_retention(tmp_path, "garage", RetentionLimits(), now=time.time()) == 0
    lock = FileLock(housekeeping_lock_path(tmp_path), "compacts")
    assert apply_retention(tmp_path, "garage", RetentionLimits(bytes=1), now=time.time()) == 0
    with pytest.raises(LocalError, match="is locked"):
        compact(tmp_path, no_problem)
    lock.release()


def test_compaction_merges_small_files_and_changes_no_row(tmp_path: Path) -> None:
    many_files(tmp_path, 8, incarnation=5)
    many_files(tmp_path, 8, incarnation=6)
    before = entries(tmp_path)
    done = compact(tmp_path, no_problem)
    assert entries(tmp_path) == before
    assert [path.name for path in sorted(p for p in sealed(tmp_path))] == [
        "5-1.parquet",
        "6-1.parquet",
    ]
    assert done.before > done.after == len(list(tmp_path.rglob("*.parquet")))
    assert check(tmp_path) == []
    again = compact(tmp_path, no_problem)
    assert (again.before, again.after, again.rows) == (done.after, done.after, 0)


def test_compaction_stays_within_its_target_and_its_node(tmp_path: Path) -> None:
    many_files(tmp_path, 6)
    names = sealed(tmp_path)
    compact(tmp_path, no_problem, node="another")
    compact(tmp_path, no_problem, target_bytes=1)
    assert sealed(tmp_path) == names
    sizes = [path.stat().st_size for path in names]
    compact(tmp_path, no_problem, target_bytes=2 * max(sizes))
    assert 2 <= len(sealed(tmp_path)) < len(names)


def test_a_compacted_file_is_as_old_as_its_rows(tmp_path: Path) -> None:
    many_files(tmp_path, 3)
    for path in sealed(tmp_path):
        os.utime(path, (1_000, 1_000))
    compact(tmp_path, no_problem)
    assert [path.stat().st_mtime for path in sealed(tmp_path)] == [1_000]


def test_a_crash_during_a_compaction_duplicates_no_row(tmp_path: Path) -> None:
    many_files(tmp_path, 4)
    before = entries(tmp_path)
    old = {path: path.read_bytes() for path in sealed(tmp_path)}
    compact(tmp_path, no_problem)
    [merged] = sealed(tmp_path)
    for path, data in old.items():  # as if the others had not been removed yet
        if path != merged:
            path.write_bytes(data)
    half = merged.with_name(".5-1.pack.tmp")
    half.write_bytes(b"PAR1")
    assert entries(tmp_path) == before
    assert [problem.kind for problem in check(tmp_path)] == ["duplicate"]
    compact(tmp_path, no_problem)
    assert sealed(tmp_path) == [merged]
    assert not half.exists()
    assert (entries(tmp_path), check(tmp_path)) == (before, [])


def test_a_file_that_cannot_be_read_is_reported_and_neither_merged_nor_covered(
    tmp_path: Path,
) -> None:
    many_files(tmp_path, 4)
    broken = sorted(sealed(tmp_path), key=lambda path: int(path.stem.partition("-")[2]))[1]
    data = broken.read_bytes()
    broken.write_bytes(b"rubbish")
    complaints: list[Path] = []
    compact(tmp_path, lambda path, _: complaints.append(path))
    assert complaints == [broken]
    broken.write_bytes(data)
    assert [row["message_id"] for row in rows(tmp_path, "messages")] == [
        f"{n:032x}" for n in range(20)
    ]
    assert check(tmp_path) == []


def test_rows_with_a_wrong_checksum_are_not_compacted(tmp_path: Path) -> None:
    many_files(tmp_path, 3)
    victim = sealed(tmp_path)[1]
    column = pq.ParquetFile(victim).metadata.row_group(0).column(3)
    data = bytearray(victim.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 5] ^= 1
    victim.write_bytes(data)
    complaints: list[str] = []
    compact(tmp_path, lambda _, problem: complaints.append(problem))
    assert len(complaints) == 1
    assert victim.exists()


def test_compaction_is_safe_beside_a_running_writer_and_readers(tmp_path: Path) -> None:
    stop = Event()
    failures: list[object] = []

    def compact_again_and_again() -> None:
        while not stop.is_set():
            compact(tmp_path, lambda *problem: failures.append(problem))

    def read_again_and_again() -> None:
        while not stop.is_set():
            reader = TableReader(tmp_path, "messages", "garage", lambda *p: failures.append(p))
            seqs = [
                int(id, 16) for batch in reader.batches() for id in batch["message_id"].to_pylist()
            ]
            if seqs != list(range(len(seqs))):
                failures.append(seqs)

    threads = [Thread(target=compact_again_and_again), Thread(target=read_again_and_again)]
    with Journal(tmp_path, "garage", flush_seconds=0.005, seal_bytes=1, fsync="never") as journal:
        for thread in threads:
            thread.start()
        for number in range(3_000):
            journal.note(message_record(number))
            if not number % 20:
                time.sleep(0.005)
    stop.set()
    for thread in threads:
        thread.join()
    assert [f for f in failures if "incomplete" not in str(f)] == []
    compact(tmp_path, no_problem)
    assert len(rows(tmp_path, "messages")) == 3_000
    assert check(tmp_path) == []


def test_a_reader_continues_when_files_are_compacted_meanwhile(tmp_path: Path) -> None:
    many_files(tmp_path, 6)
    reader = TableReader(tmp_path, "messages", "garage", no_problem)
    stream = reader.batches()
    first = next(stream)
    compact(tmp_path, no_problem)
    found = [id for batch in (first, *stream) for id in batch["message_id"].to_pylist()]
    assert found == [f"{number:032x}" for number in range(30)]
    assert list(reader.batches()) == []


def test_following_returns_each_row_once(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path, no_problem)
    found: list[int] = []
    with Journal(tmp_path, "garage", flush_seconds=0.01, seal_bytes=5_000) as journal:
        for number in range(200):
            journal.note(message_record(number))
            if not number % 10:
                until(lambda: not journal.waiting)
                found += [e.position[1] for e in reader.entries() if e.table == "messages"]
    found += [e.position[1] for e in reader.entries() if e.table == "messages"]
    assert sorted(found) == list(range(1, 201))


def test_what_was_set_aside_is_removed_when_it_is_old(tmp_path: Path) -> None:
    many_files(tmp_path, 1)
    directory = tmp_path / "messages" / "node=garage"
    old, new = directory / ".5-1.0.corrupt", directory / ".5-1.900.corrupt"
    for path, modified in [(old, 1_000), (new, 5_000)]:
        path.write_bytes(b"damaged")
        os.utime(path, (modified, modified))
    for sealed_file in tmp_path.rglob("*.parquet"):
        os.utime(sealed_file, (5_000, 5_000))
    assert apply_retention(tmp_path, "garage", RetentionLimits(bytes=2**40), now=5_050) == 0
    assert old.exists()
    assert apply_retention(tmp_path, "garage", RetentionLimits(age=100), now=5_050) == 0
    assert (old.exists(), new.exists()) == (False, True)


def test_a_start_row_tells_the_version_and_the_share_of_messages(tmp_path: Path) -> None:
    Journal(tmp_path, "garage", sample=0.25).close()
    [start, _] = rows(tmp_path, "nodes")
    assert start["detail"] == f"waystation {__version__} sample=0.25"
