"""Journals of earlier versions are read by every reader, alone and beside newer ones (UP-3)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.journal.traffic import entries, message_record, rows, until
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.housekeeping import compact
from waystation.journal.layout import NEW_TAIL, OLD_TAIL, Stem, table_directory
from waystation.journal.read import read_footer, read_tail
from waystation.journal.schema import ADDED_COLUMNS, SCHEMAS, VERSION_KEY, WRITTEN_VERSION
from waystation.journal.seal import write_sealed
from waystation.pipeline.inprocess import survey_files
from waystation.pipeline.listing import Wanted, list_journal
from waystation.why.lookup import MessageLookup

OLD = Path(__file__).resolve().parents[1] / "data/journals"
ROWS = {"first": 38 + 73, "second": 41 + 79}
MESSAGES = 3 * 31


def copy(directory: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(OLD / name, directory, dirs_exist_ok=True)
    return directory


@pytest.fixture(params=[["first"], ["second"], ["first", "second"]], ids=" and ".join)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A journal of one or two earlier versions."""
    return copy(tmp_path / "journal", *request.param)


def names_in(directory: Path) -> list[str]:
    """Which of the old journals a directory has."""
    return [name for name in ROWS if table_directory(directory, "nodes", f"{name}-closed").exists()]


def tail_of(name: str) -> Path:
    """The tail that a killed node left."""
    [tail] = table_directory(OLD / name, "messages", f"{name}-killed").glob(f".*{OLD_TAIL}")
    return tail


def messages_in(journal: Path) -> Path:
    directory = table_directory(journal, "messages", "hub")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def with_seqs(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """A batch as if it had been written later by another incarnation."""
    count = batch.num_rows
    moved = batch.set_column(0, "incarnation", pa.array([7] * count))
    return moved.set_column(1, "seq", pa.array(range(first, first + count)))


@pytest.mark.rule("UP-3")
def test_all_rows_of_old_journals_are_read_with_nulls_in_the_added_columns(old: Path) -> None:
    found = entries(old)
    assert len(found) == sum(ROWS[name] for name in names_in(old))
    for entry in found:
        assert list(entry.fields) == SCHEMAS[entry.table].names
        if entry.table in {"routes", "subscriptions", "messages"}:
            assert {entry.fields[name] for name in ADDED_COLUMNS[entry.table]} == {None}
    assert check(old) == []


@pytest.mark.rule("UP-3")
def test_old_and_new_files_lie_side_by_side(old: Path) -> None:
    before = len(entries(old))
    with Journal(old, "new") as journal:
        journal.note(message_record(1))
    assert len(entries(old)) == before + 3
    assert check(old) == []


@pytest.mark.rule("UP-3")
@pytest.mark.parametrize("name", ROWS)
def test_a_newer_node_seals_the_tails_of_an_older_one(tmp_path: Path, name: str) -> None:
    copy(tmp_path, name)
    node = f"{name}-killed"
    before = [entry for entry in entries(tmp_path) if entry.node == node]
    Journal(tmp_path, node).close()
    after = [entry for entry in entries(tmp_path) if entry.node == node]
    assert after[: len(before)] == before
    assert [entry.fields["kind"] for entry in after[len(before) :]] == ["start", "stop"]
    assert list(tmp_path.rglob(f"*{node}/*{OLD_TAIL}")) == []
    [sealed] = table_directory(tmp_path, "messages", node).glob("*.parquet")
    assert read_footer(sealed).version == 1
    assert check(tmp_path) == []


@pytest.mark.rule("UP-3")
def test_old_messages_are_looked_up_and_followed(old: Path) -> None:
    lookup = MessageLookup(old)
    for digit, name in enumerate(ROWS, 1):
        for number in (1, 1101, 2201):
            found = lookup.message(f"{digit}{number:031x}")
            assert [row["via"] for row in found] == [None] * (name in names_in(old))
    assert lookup.problems == []
    with_tails = survey_files(list_journal(str(old), Wanted(), tails=True))
    assert len(with_tails.found.losses) == 30 * len(names_in(old))


@pytest.mark.rule("UP-3")
def test_compaction_keeps_the_version_of_files_and_mixes_none(tmp_path: Path) -> None:
    batches = read_tail(tail_of("first")).batches
    for first, version in [(1, 1), (33, 1), (65, 2), (97, 2)]:
        moved = [with_seqs(batches[0], first)]
        stem = Stem(7, first)
        write_sealed(messages_in(tmp_path), "messages", stem, moved, fsync=False, version=version)
    before = rows(tmp_path, "messages")
    compact(tmp_path, lambda path, problem: pytest.fail(f"{path}: {problem}"))
    files = [read_footer(path) for path in sorted(messages_in(tmp_path).glob("*.parquet"))]
    assert [(file.stem.first, file.version) for file in files] == [(1, 1), (65, 2)]
    assert rows(tmp_path, "messages") == before


@pytest.mark.rule("UP-3")
def test_a_file_tells_its_version(tmp_path: Path) -> None:
    with Journal(tmp_path, "new", flush_seconds=0.01):
        until(lambda: any(read_tail(tail).batches for tail in tmp_path.rglob(f"*{NEW_TAIL}")))
        [tail] = tmp_path.rglob(f"*{NEW_TAIL}")
        assert read_tail(tail).version == WRITTEN_VERSION
    [sealed] = (tmp_path / "nodes/node=new").glob("*.parquet")
    assert read_footer(sealed).version == WRITTEN_VERSION
    stored = pq.ParquetFile(sealed).metadata.metadata
    assert stored[VERSION_KEY] == str(WRITTEN_VERSION).encode()


def test_the_data_is_what_it_says() -> None:
    for name in ROWS:
        assert len(rows(OLD / name, "messages")) == MESSAGES
        assert bool(rows(OLD / name, "sessions")) == (name == "second")
        content = read_tail(tail_of(name))
        assert content.schema is not None
        assert content.schema.metadata is None
        assert content.version == 1
