"""After a crash, the complete part of tails is sealed, and what is missing is reported (OB-5)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.traffic import entries, losses, message_record, rows, until
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.convert import Converter
from waystation.journal.layout import Stem, table_directory
from waystation.journal.read import JournalReader, read_tail
from waystation.journal.schema import NodeKind, NodeRecord
from waystation.journal.seal import Recovery, seal_tail, write_sealed
from waystation.journal.tail import Tail

ROOT = Path(__file__).resolve().parents[2]


def left_tail(
    directory: Path, count: int = 30, *, incarnation: int = 5, start: bool = True
) -> Path:
    """A tail of messages, as a killed writer leaves it: three batches."""
    converter = Converter("a", incarnation)
    if start:
        [(_, begin)] = converter.convert([NodeRecord(NodeKind.START, "", 1)], 0)
        nodes = Tail(table_directory(directory, "nodes", "garage"), "nodes", Stem(incarnation, 0))
        nodes.append(begin)
        nodes.close()
    messages = table_directory(directory, "messages", "garage")
    tail = Tail(messages, "messages", Stem(incarnation, 1))
    for first in range(0, count, count // 3):
        records = [message_record(first + number) for number in range(count // 3)]
        [(_, batch)] = converter.convert(records, first + 1)
        tail.append(batch)
    tail.close()
    return tail.path


@pytest.mark.rule("OB-5")
def test_the_tails_of_an_earlier_incarnation_are_sealed(tmp_path: Path) -> None:
    path = left_tail(tmp_path)
    with Journal(tmp_path, "garage") as journal:
        assert journal.incarnation > 5
    assert not path.exists()
    assert path.with_name("5-1.parquet").exists()
    assert [row["seq"] for row in rows(tmp_path, "messages")] == list(range(1, 31))
    assert losses(tmp_path) == []
    assert check(tmp_path) == []


@pytest.mark.rule("OB-5")
@pytest.mark.parametrize("cut", [1, 100, 1_000])
def test_a_truncated_end_is_removed_and_reported(tmp_path: Path, cut: int) -> None:
    path = left_tail(tmp_path)
    os.truncate(path, path.stat().st_size - cut)
    Journal(tmp_path, "garage").close()
    assert [row["seq"] for row in rows(tmp_path, "messages")] == list(range(1, 21))
    [(lost, detail)] = losses(tmp_path)
    assert lost == 0
    assert detail.startswith("incarnation 5: ")
    assert "bytes torn off messages/5-1.tail" in detail
    assert check(tmp_path) == []


@pytest.mark.rule("OB-5")
def test_records_missing_between_others_after_a_crash_are_counted(tmp_path: Path) -> None:
    path = left_tail(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    converter = Converter("a", 5)  # another table was flushed further
    [(_, batch)] = converter.convert([NodeRecord(NodeKind.LOST, "", 1)], 31)
    directory = table_directory(tmp_path, "nodes", "garage")
    nodes = Tail(directory, "nodes", Stem(5, 31))
    nodes.append(batch)
    nodes.close()
    Journal(tmp_path, "garage").close()
    [(_, first), (lost, detail)] = losses(tmp_path)
    assert (first, lost) == ("", 10)
    assert "10 records of its last moments missing" in detail
    assert check(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, 10])
def test_a_tail_without_a_complete_batch_is_removed(tmp_path: Path, size: int) -> None:
    path = left_tail(tmp_path)
    os.truncate(path, size)
    Journal(tmp_path, "garage").close()
    assert list(path.parent.iterdir()) == []
    assert len(losses(tmp_path)) == (1 if size else 0)


@pytest.mark.rule("OB-5")
def test_a_crash_between_rename_and_removal_leaves_no_row_twice(tmp_path: Path) -> None:
    path = left_tail(tmp_path)
    write_sealed(path.parent, "messages", Stem(5, 1), read_tail(path).batches, fsync=False)
    assert len(rows(tmp_path, "messages")) == 30
    assert check(tmp_path) == []
    Journal(tmp_path, "garage").close()
    assert not path.exists()
    assert len(rows(tmp_path, "messages")) == 30


def test_a_lost_sealed_file_is_recreated_from_its_tail(tmp_path: Path) -> None:
    path = left_tail(tmp_path)
    path.with_name("5-1.parquet").write_bytes(b"")  # renamed, and then the power failed
    Journal(tmp_path, "garage").close()
    assert len(rows(tmp_path, "messages")) == 30


def test_a_partially_sealed_file_is_removed(tmp_path: Path) -> None:
    path = left_tail(tmp_path)
    half = path.with_name(".5-1.seal.tmp")
    half.write_bytes(b"PAR1")
    Journal(tmp_path, "garage").close()
    assert not half.exists()


def test_recovery_does_not_touch_other_nodes_or_the_current_incarnation(tmp_path: Path) -> None:
    path = left_tail(tmp_path)
    assert Recovery(tmp_path, "garage", 5, fsync=False).run() == []
    assert Recovery(tmp_path, "hall", 9, fsync=False).run() == []
    assert path.exists()


@pytest.mark.rule("OB-5")
@given(cut=st.integers(0, 20_000))
def test_wherever_a_tail_is_truncated_its_complete_batches_are_read(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    directory = tmp_path_factory.mktemp("cut")
    path = left_tail(directory)
    whole = read_tail(path)
    os.truncate(path, min(cut, path.stat().st_size))
    content = read_tail(path)
    assert content.batches == whole.batches[: len(content.batches)]
    assert (content.torn == 0) == (not content.problem)
    assert content.end + content.torn == path.stat().st_size
    assert content.damaged == []
    seal_tail(path, "messages", fsync=False)
    found = [entry for entry in entries(directory) if entry.table == "messages"]
    assert len(found) == 10 * len(content.batches)


@given(flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1, max_size=5))
def test_bit_flips_in_a_tail_never_crash_a_reader(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]]
) -> None:
    directory = tmp_path_factory.mktemp("flip")
    path = left_tail(directory)
    flip(path, flips)
    complaints: list[str] = []
    reader = JournalReader(directory, lambda _, problem: complaints.append(problem))
    assert len(list(reader.entries())) <= 31
    check(directory, recheck_seconds=0)
    Journal(directory, "garage").close()
    list(JournalReader(directory, lambda *_: None).entries())


@given(
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1, max_size=5),
    kept=st.floats(0, 1),
)
def test_bit_flips_and_truncations_of_a_sealed_file_never_crash_a_reader(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]], kept: float
) -> None:
    directory = tmp_path_factory.mktemp("flip")
    path = left_tail(directory)
    seal_tail(path, "messages", fsync=False)
    sealed = path.with_name("5-1.parquet")
    flip(sealed, flips)
    if kept < 0.3:
        os.truncate(sealed, int(kept * sealed.stat().st_size))
    list(JournalReader(directory, lambda *_: None).entries())
    check(directory)


def flip(path: Path, flips: list[tuple[float, int]]) -> None:
    data = bytearray(path.read_bytes())
    for where, bit in flips:
        data[int(where * (len(data) - 1))] ^= 1 << bit
    path.write_bytes(data)


def test_a_tail_with_an_unknown_schema_is_left_alone(tmp_path: Path) -> None:
    directory = table_directory(tmp_path, "routes", "garage")
    directory.mkdir(parents=True)
    foreign = pa.record_batch({"incarnation": [5], "seq": [1], "cheese": ["brie"]})
    (directory / ".5-1.arrows").write_bytes(
        bytes(foreign.schema.serialize()) + bytes(foreign.serialize())
    )
    complaints: list[str] = []
    list(JournalReader(tmp_path, lambda _, problem: complaints.append(problem)).entries())
    assert len(complaints) == 1
    assert [problem.kind for problem in check(tmp_path)] == ["schema"]
    path = left_tail(tmp_path)
    Journal(tmp_path, "garage").close()
    assert not path.exists()
    assert (directory / ".5-1.arrows").exists()
    nodes = list(JournalReader(tmp_path, lambda *_: None).entries())
    assert "routes/5-1.arrows cannot be sealed" in nodes[-2].fields["detail"]


def test_a_batch_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    path = left_tail(tmp_path)
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 100)

    def finish() -> None:
        with path.open("ab") as file:
            file.write(whole[-100:])

    writer = threading.Timer(0.03, finish)
    writer.start()
    found = entries(tmp_path)  # which raises at any complaint
    writer.join()
    assert len(found) == 21  # the start and two batches; the third is for the next look
    assert len(entries(tmp_path)) == 31


def written(directory: Path, incarnation: float) -> list[int]:
    """The numbers of the messages that a reader finds; only a truncated end is allowed."""
    complaints: list[str] = []
    found = JournalReader(directory, lambda _, problem: complaints.append(problem)).entries()
    numbers = [
        int(str(entry.fields["message_id"]), 16)
        for entry in found
        if entry.table == "messages" and entry.fields["incarnation"] == incarnation
    ]
    assert all("incomplete" in complaint for complaint in complaints), complaints
    return numbers


def kill_and_check(directory: Path, round: int) -> None:
    """Kill a writing process, and check that everything that was flushed is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.journal.noting_child", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        incarnation = json.loads(process.stdout.readline())["incarnation"]
        until(lambda: [*directory.rglob(f"*/.{incarnation}-*.tail")])  # the first flush
        time.sleep((round * 37 % 101) / 250)
        safe = max(written(directory, incarnation), default=0)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait(30)
    assert_all_there(written(directory, incarnation), safe)
    if round % 2:
        Journal(directory, "garage").close()
        assert_all_there(written(directory, incarnation), safe)
        assert check(directory) == []


def assert_all_there(numbers: list[int], safe: int) -> None:
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= safe


@pytest.mark.rule("OB-5")
@pytest.mark.timeout(600)
def test_kill_9_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    for round in range(4):
        kill_and_check(tmp_path / str(round // 2), round)


@pytest.mark.fault
@pytest.mark.rule("OB-5")
@pytest.mark.timeout(3_600)
def test_kill_9_two_hundred_times_loses_nothing_that_was_flushed(
    tmp_path: Path,
) -> None:
    for round in range(220):
        kill_and_check(tmp_path / str(round // 20), round)
