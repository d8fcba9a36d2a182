"""A changed bit costs its own batch and no other, and is reported (OB-9)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from struct import pack
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.journal.test_recovery import left_tail
from tests.journal.traffic import losses, message_record, rows, until
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.checksum import is_changed, write_checksum
from waystation.journal.frames import HEADER_SIZE, MARKER, Frame, frame_header, read_frames
from waystation.journal.layout import CORRUPT, NEW_TAIL, Stem, table_directory
from waystation.journal.read import (
    UNREADABLE,
    JournalReader,
    TailContent,
    find_in_sealed,
    read_sealed,
    read_tail,
    sealed_between,
    sealed_column,
)
from waystation.journal.schema import SCHEMAS
from waystation.journal.seal import ROW_GROUP, seal_tail, write_sealed
from waystation.why import explain
from waystation.why.lookup import MessageLookup

Seqs = list[int]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a tail with three batches of ten rows, seqs 1 to 30."""
    return left_tail(tmp_path_factory.mktemp("whole")).read_bytes()


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], TailContent]:
    """Reads a tail that has these bytes."""
    path = tmp_path_factory.mktemp("tail") / ".5-1.tail"

    def read(data: bytes) -> TailContent:
        path.write_bytes(data)
        return read_tail(path)

    return read


def seqs(content: TailContent) -> Seqs:
    return [seq for batch in content.batches for seq in batch.column("seq").to_pylist()]


def frame_of(whole: bytes, position: int) -> tuple[int, Seqs]:
    """The frame that a position is in: where it starts, and its rows."""
    for number, frame in enumerate(read_frames(whole)):
        if position < frame.end:
            return frame.start, list(range(10 * number + 1, 10 * number + 11))
    raise AssertionError(position)


@pytest.mark.rule("OB-9")
@given(where=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
@example(where=0.0, mask=1)
def test_a_changed_byte_costs_its_batch_and_is_found(
    whole: bytes, read: Callable[[bytes], TailContent], where: float, mask: int
) -> None:
    position = int(where * len(whole))
    changed = bytearray(whole)
    changed[position] ^= mask
    content = read(bytes(changed))
    start, lost = frame_of(whole, position)
    assert seqs(content) == [seq for seq in range(1, 31) if seq not in lost]
    assert content.batches == [b for b in read(whole).batches if b["seq"][0].as_py() not in lost]
    [damage] = content.damaged
    assert (damage.start, damage.rows) == (start, 10 if position >= start + HEADER_SIZE else 0)
    assert content.torn == 0


@pytest.mark.rule("OB-9")
def test_no_single_bit_of_a_tail_changes_unnoticed(
    whole: bytes, read: Callable[[bytes], TailContent]
) -> None:
    for position in [*range(2 * HEADER_SIZE), *range(0, len(whole), 37)]:
        for bit in range(8):
            changed = bytearray(whole)
            changed[position] ^= 1 << bit
            _, lost = frame_of(whole, position)
            content = read(bytes(changed))
            assert seqs(content) == [seq for seq in range(1, 31) if seq not in lost]
            assert len(content.damaged) == 1


@pytest.mark.rule("OB-5", "OB-9")
@given(where=st.floats(0, 1))
def test_a_tail_that_is_cut_anywhere_has_its_complete_batches(
    whole: bytes, read: Callable[[bytes], TailContent], where: float
) -> None:
    cut = int(where * len(whole))
    ends = [frame.end for frame in read_frames(whole) if frame.end <= cut]
    content = read(whole[:cut])
    assert seqs(content) == list(range(1, 10 * len(ends) + 1))
    assert (content.end, content.torn) == (max(ends, default=0), cut - max(ends, default=0))
    assert content.damaged == []


@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=40))),
    cut=st.floats(0.2, 1),
)
def test_whatever_happens_to_a_tail_only_whole_batches_are_read(
    whole: bytes,
    read: Callable[[bytes], TailContent],
    changes: list[tuple[float, bytes]],
    cut: float,
) -> None:
    data = bytearray(whole)
    for where, new in changes:
        position = int(where * len(data))
        data[position : position + len(new)] = new
    del data[int(cut * len(data)) :]
    content = read(bytes(data))
    assert [batch for batch in content.batches if batch not in read(whole).batches] == []
    frames = [found for found in read_frames(bytes(data)) if isinstance(found, Frame)]
    unread = content.torn + sum(damage.size for damage in content.damaged)
    assert sum(frame.size for frame in frames) + unread == len(data)  # every byte is accounted for


@pytest.mark.parametrize(
    "length", [0, 2**31 - 1, 2**31, 2**32 - 1], ids=["0", "2^31-1", "2^31", "2^32-1"]
)
def test_a_wrong_length_costs_its_batch(
    whole: bytes, read: Callable[[bytes], TailContent], length: int
) -> None:
    data = bytearray(whole)
    data[16:20] = pack("<I", length)
    content = read(bytes(data))
    assert seqs(content) == list(range(11, 31))
    assert [damage.problem for damage in content.damaged] == ["no valid header"]


def test_a_length_beyond_the_file_that_its_writer_meant_is_torn(
    read: Callable[[bytes], TailContent],
) -> None:
    header = MARKER + pack("<QIII", 0, 2**31, 7, 0)
    content = read(header + pack("<I", crc32(header)) + b"begun")
    assert (content.rows, content.torn, content.damaged) == (0, HEADER_SIZE + 5, [])


@pytest.mark.parametrize("zeros", [1, 31, 32, 4096])
def test_zeros_at_the_end_are_found(
    whole: bytes, read: Callable[[bytes], TailContent], zeros: int
) -> None:
    content = read(whole + bytes(zeros))
    assert seqs(content) == list(range(1, 31))
    assert content.torn + sum(damage.size for damage in content.damaged) == zeros


def test_a_tail_of_zeros_has_no_rows(read: Callable[[bytes], TailContent], whole: bytes) -> None:
    content = read(bytes(len(whole)))
    assert content.batches == []
    assert [damage.size for damage in content.damaged] == [len(whole)]


def test_what_looks_like_a_frame_inside_a_payload_is_none(
    read: Callable[[bytes], TailContent], whole: bytes
) -> None:
    first = next(read_frames(whole))
    inner = whole[: first.end]  # a valid frame, but it says that it begins at byte 0
    header = bytearray(frame_header(memoryview(inner), 99, 0))
    header[8] ^= 1
    content = read(bytes(header) + inner)
    assert content.batches == []
    assert len(content.damaged) == 1


def test_a_frame_with_a_valid_checksum_that_holds_no_rows_is_damage(
    read: Callable[[bytes], TailContent],
) -> None:
    payload = b"no Arrow stream"
    content = read(frame_header(memoryview(payload), 3, 0) + payload)
    [damage] = content.damaged
    assert (damage.start, damage.rows, content.batches) == (0, 3, [])


def corrupt_rows(journal: Path) -> list[tuple[int, str]]:
    found = [row for row in rows(journal, "nodes") if row["kind"] == "corrupt"]
    return [(row["lost"], row["detail"]) for row in found]


def damage_second_batch(path: Path) -> bytes:
    """Change a byte in the second batch; returns the bytes of its frame."""
    data = bytearray(path.read_bytes())
    _, second, _ = read_frames(bytes(data))
    data[second.end - 100] ^= 0x10
    path.write_bytes(data)
    return bytes(data[second.start : second.end])


@pytest.mark.rule("OB-9")
def test_the_node_that_recovers_a_damaged_tail_says_so_and_keeps_the_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = left_tail(tmp_path)
    damaged = damage_second_batch(path)
    found = {problem.kind: problem for problem in check(tmp_path, recheck_seconds=0)}
    assert "10 rows: wrong checksum" in found["corrupt"].detail
    reported: list[str] = []
    list(JournalReader(tmp_path, lambda _, problem: reported.append(problem)).entries())
    assert [problem.split(": ")[1] for problem in reported] == ["wrong checksum"]

    with Journal(tmp_path, "garage") as journal:
        until(lambda: journal.lost)
    assert [row["seq"] for row in rows(tmp_path, "messages")] == [*range(1, 11), *range(21, 31)]
    [(lost, detail)] = corrupt_rows(tmp_path)
    assert lost == 10
    assert detail.startswith("incarnation 5: messages/5-1.tail: ")
    assert losses(tmp_path) == []  # the same records are not counted twice
    [aside] = path.parent.glob(f".*{CORRUPT}")
    assert aside.read_bytes() == damaged
    assert "journal of garage: damaged, 10 records lost" in caplog.text
    assert [problem.kind for problem in check(tmp_path)] == ["corrupt"]
    aside.unlink()
    assert check(tmp_path) == []


@pytest.mark.rule("OB-9")
@pytest.mark.parametrize("damaged", range(3))
def test_whichever_batch_is_damaged_the_journal_is_whole_again_once_that_is_known(
    tmp_path: Path, damaged: int
) -> None:
    path = left_tail(tmp_path)
    data = bytearray(path.read_bytes())
    frame = list(read_frames(bytes(data)))[damaged]
    data[frame.start + 3] ^= 1  # in its header, so that not even the number of rows is known
    path.write_bytes(data)
    Journal(tmp_path, "garage").close()
    [(known, _)] = corrupt_rows(tmp_path)
    missing = sum(lost for lost, _ in losses(tmp_path))
    assert (known, missing) == (0, 0 if damaged == 2 else 10)  # nothing comes after the last
    for aside in path.parent.glob(f".*{CORRUPT}"):
        aside.unlink()
    assert check(tmp_path) == []


@pytest.mark.rule("OB-9")
def test_a_running_node_finds_damage_when_it_seals(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        for number in range(3):
            journal.note(message_record(number))
            until(lambda: journal.waiting == 0)
        until(lambda: len(rows(tmp_path, "messages")) == 3)
        [path] = tmp_path.glob(f"messages/*/.*{NEW_TAIL}")
        with path.open("r+b") as file:
            file.seek(-20, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
    assert [row["bytes"] for row in rows(tmp_path, "messages")] == [0, 1]
    [(lost, detail)] = corrupt_rows(tmp_path)
    assert (lost, journal.lost) == (1, 1)
    assert "1 row: wrong checksum" in detail
    assert [problem.kind for problem in check(tmp_path)] == ["corrupt"]  # the file beside


@pytest.mark.rule("OB-9")
def test_a_lookup_tells_of_damage_and_finds_the_rest(tmp_path: Path) -> None:
    damage_second_batch(left_tail(tmp_path))
    lookup = MessageLookup(tmp_path)
    assert len(lookup.message(f"{25:032x}")) == 1
    assert lookup.message(f"{15:032x}") == []
    assert "10 rows: wrong checksum" in lookup.problems[0]


@pytest.mark.rule("OB-9")
def test_an_explanation_says_that_a_journal_is_damaged(tmp_path: Path) -> None:
    damage_second_batch(left_tail(tmp_path))
    before = explain(tmp_path, f"{25:032x}")
    assert any("10 rows: wrong checksum" in remark for remark in before.remarks)
    Journal(tmp_path, "garage").close()
    after = explain(tmp_path, f"{25:032x}")
    told = "the journal of garage has 10 damaged records, so this may be incomplete"
    assert told in after.remarks


# Sealed files.


def two_row_groups(directory: Path) -> Path:
    """A sealed file of messages with two row groups, seqs 0 to ROW_GROUP + 9."""
    schema = SCHEMAS["nodes"]
    count = ROW_GROUP + 10
    columns: dict[str, Any] = {
        name: pa.nulls(count, schema.field(name).type) for name in schema.names
    }
    columns["incarnation"] = pa.array([5] * count)
    columns["seq"] = pa.array(range(count))
    columns["at"] = pa.array(range(count), pa.timestamp("us", "UTC"))
    columns["kind"] = pa.array(["clock"] * count)
    folder = table_directory(directory, "nodes", "garage")
    folder.mkdir(parents=True)
    batches = pa.table(columns, schema=schema).to_batches()
    return write_sealed(folder, "nodes", Stem(5, 0), batches, fsync=False)


def with_a_damaged_row_group(directory: Path) -> Path:
    """Such a file whose first row group cannot be read."""
    path = two_row_groups(directory)
    seq = next(
        column
        for column in map(pq.ParquetFile(path).metadata.row_group(0).column, range(3))
        if column.path_in_schema == "seq"
    )
    data = bytearray(path.read_bytes())
    data[seq.data_page_offset + seq.total_compressed_size - 5] ^= 4
    path.write_bytes(data)
    return path


@pytest.mark.rule("OB-9")
def test_a_damaged_row_group_costs_no_other_when_something_is_looked_for(tmp_path: Path) -> None:
    path = with_a_damaged_row_group(tmp_path)
    for read in (
        find_in_sealed(path, "kind", "clock"),
        sealed_between(path, ["at", "seq"], 0, 2 * ROW_GROUP),
    ):
        found: list[int] = []
        with pytest.raises(ValueError, match="row group 1 of 2"):
            found.extend(chain.from_iterable(batch.column("seq").to_pylist() for batch in read))
        assert found == list(range(ROW_GROUP, ROW_GROUP + 10))
    assert [len(kinds) for kinds in sealed_column(path, "kind")] == [ROW_GROUP, 10]


@pytest.mark.rule("OB-9")
def test_a_damaged_row_group_costs_no_other(tmp_path: Path) -> None:
    path = with_a_damaged_row_group(tmp_path)
    found: list[int] = []
    with pytest.raises(ValueError, match=r"checksum is wrong.*row group 1 of 2"):
        found += [seq for batch in read_sealed(path) for seq in batch.column("seq").to_pylist()]
    reported: list[str] = []
    kept = list(JournalReader(tmp_path, lambda _, problem: reported.append(problem)).entries())
    assert [entry.fields["seq"] for entry in kept[-10:]] == list(range(ROW_GROUP, ROW_GROUP + 10))
    assert "row group 1 of 2: " in reported[0]
    assert "unreadable" in {problem.kind for problem in check(tmp_path)}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a sealed file."""
    path = left_tail(tmp_path_factory.mktemp("sealed"))
    seal_tail(path, "messages", fsync=False)
    return path.with_name("5-1.parquet").read_bytes()


@pytest.mark.rule("OB-9")
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_bit_of_a_sealed_file_changes_a_row_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, sealed: bytes, where: float, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "5-1.parquet"
    path.write_bytes(sealed)
    before = list(read_sealed(path))
    data = bytearray(sealed)
    data[int(where * len(data))] ^= 1 << bit
    path.write_bytes(data)
    with suppress(*UNREADABLE):  # which means that it was found
        assert list(read_sealed(path)) == before


def test_the_checksum_of_a_sealed_file_is_that_of_all_its_bytes(sealed: bytes) -> None:
    place = sealed.index(b"crc32:") + 6
    zeros = sealed[:place] + b"00000000" + sealed[place + 8 :]
    assert sealed[place : place + 8] == b"%08x" % crc32(zeros)


def test_a_file_without_a_checksum_is_read(tmp_path: Path) -> None:
    path = tmp_path / "5-1.parquet"
    pq.write_table(pa.table({"seq": [1]}), path)
    assert not is_changed(path)
    path.write_bytes(b"")
    assert not is_changed(path)
    with pytest.raises(ValueError, match="no place for a checksum"):
        write_checksum(path)
