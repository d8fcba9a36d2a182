"""Journals from before a column was added are read, sealed, compacted and checked."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.journal.traffic import BEGIN
from waystation.core.gossip import MemberChange, MemberKind
from waystation.core.identity import LogicalAddress, Mapping
from waystation.core.record import ChangeRecord
from waystation.gossip_router.outcomes import MemberRecord
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.layout import Stem
from waystation.journal.read import TableReader
from waystation.journal.schema import ADDED_COLUMNS, SCHEMAS, conform
from waystation.journal.seal import write_sealed

MEMBER = Mapping(LogicalAddress(bytes(15) + b"\7", "truck-7"), ("10.0.0.7:1",))
JOINS = MemberChange(MemberKind.JOIN, "fleet", MEMBER)


def dialects(journal: Path) -> list[str | None]:
    def complain(path: Path, problem: str) -> None:
        raise AssertionError((path, problem))

    reader = TableReader(journal, "members", "router", complain)
    return [value for batch in reader.batches() for value in batch.column("dialect").to_pylist()]


def age(journal: Path) -> Path:
    """Remove the added columns from the sealed file of members."""
    [path] = (journal / "members").rglob("*.parquet")
    file = pq.ParquetFile(path)
    metadata = {b"waystation.last_seq": b"0"}
    older = file.read().drop_columns(ADDED_COLUMNS["members"]).replace_schema_metadata(metadata)
    pq.write_table(older, path)
    return path


@pytest.mark.rule("OB-4")
def test_a_member_has_the_dialect_of_its_router_or_none(tmp_path: Path) -> None:
    with Journal(tmp_path, "router") as journal:
        journal.note(MemberRecord(JOINS, BEGIN, dialect="JGroups 5"))
        journal.note(ChangeRecord(JOINS, BEGIN + 1))
    assert dialects(tmp_path) == ["JGroups 5", None]


def test_older_files_are_read_and_checked(tmp_path: Path) -> None:
    with Journal(tmp_path, "router", incarnation=1) as journal:
        journal.note(ChangeRecord(JOINS, BEGIN))
    assert "dialect" not in pq.ParquetFile(age(tmp_path)).schema_arrow.names
    assert dialects(tmp_path) == [None]
    assert [problem for problem in check(tmp_path) if problem.kind == "schema"] == []


def test_rows_of_older_files_are_rewritten_with_the_column(tmp_path: Path) -> None:
    with Journal(tmp_path, "router", incarnation=1) as journal:
        journal.note(ChangeRecord(JOINS, BEGIN))
    older = age(tmp_path)
    stem = Stem.parse(older.name)
    assert stem is not None
    batches = pq.ParquetFile(older).read().to_batches()
    write_sealed(older.parent, "members", stem, batches, fsync=False)
    assert pq.ParquetFile(older).schema_arrow.names == SCHEMAS["members"].names
    assert dialects(tmp_path) == [None]


def test_only_columns_that_were_added_may_be_missing() -> None:
    schema = SCHEMAS["members"]
    batch = pa.RecordBatch.from_pylist([], schema)
    without = batch.select([name for name in schema.names if name not in ADDED_COLUMNS["members"]])
    assert conform(without, "members").schema == schema
    with pytest.raises(KeyError):
        conform(batch.select(["seq", "dialect"]), "members")
