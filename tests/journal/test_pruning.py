"""What a file rules out without being read: bounds, and the Bloom filter of message ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.journal.layout import Stem
from waystation.journal.pruning import (
    _blocks,
    bounds_of,
    instant_bounds,
    may_hold_text,
    number_bounds,
)
from waystation.journal.schema import MESSAGES, SCHEMAS
from waystation.journal.seal import ROW_GROUP, write_sealed

FILTER = {"id": {"ndv": 1_000, "fpp": 0.01}}


def group_of(path: Path, number: int = 0) -> Any:
    return pq.read_metadata(path).row_group(number)


def may_hold(path: Path, name: str, text: str) -> bool:
    with path.open("rb") as file:
        return may_hold_text(file, group_of(path), name, text)


def written(path: Path, columns: dict[str, pa.Array], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_a_bloom_filter_passes_all_its_strings_and_few_others(tmp_path: Path) -> None:
    ids = [f"{number * 7_919:032x}" for number in range(1_000)]
    path = written(tmp_path / "f", {"id": pa.array(ids)}, bloom_filter_options=FILTER)
    others = [f"{number * 7_919 + 1:032x}" for number in range(999)]  # within the bounds
    assert all(may_hold(path, "id", id) for id in ids)
    assert sum(may_hold(path, "id", id) for id in others) < 100


@given(st.lists(st.text(), min_size=1, max_size=20))
def test_no_existing_string_is_ruled_out(tmp_path_factory: Any, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("filter") / "f"
    written(path, {"id": pa.array(texts)}, bloom_filter_options=FILTER)
    assert all(may_hold(path, "id", text) for text in texts)


def test_without_a_bloom_filter_bounds_are_used_and_without_bounds_nothing_is_ruled_out(
    tmp_path: Path,
) -> None:
    texts = {"id": pa.array(["b", "d"])}
    bounded = written(tmp_path / "bounded", texts)
    unbounded = written(tmp_path / "unbounded", texts, write_statistics=False)
    assert [may_hold(bounded, "id", text) for text in "abcde"] == [False, True, True, True, False]
    assert may_hold(unbounded, "id", "a")
    assert may_hold(bounded, "other", "a")


def test_an_unknown_kind_of_bloom_filter_rules_out_nothing() -> None:
    known = bytes.fromhex("1580081c1c00001c1c00001c1c000000")
    assert _blocks(known, 16 + 512) == (16, 16)
    assert _blocks(known, 16 + 256) is None  # the length does not fit
    assert _blocks(known.replace(b"\x1c\x1c\x00\x00", b"\x1c\x2c\x00\x00", 1), 16 + 512) is None
    assert _blocks(b"", 0) is None
    assert _blocks(b"\x15\xff\xff", 3) is None


def test_a_truncated_bloom_filter_rules_out_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "f", {"id": pa.array(["a", "c"])}, bloom_filter_options=FILTER)
    group = group_of(path)
    offset = group.column(0).bloom_filter_offset
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[: offset + 20])
    with cut.open("rb") as file:
        assert may_hold_text(file, group, "id", "b")


@pytest.mark.parametrize(("unit", "scale"), [("ms", 1_000), ("us", 1)])
def test_timestamps_have_bounds_in_microseconds(tmp_path: Path, unit: str, scale: int) -> None:
    at = pa.array([5, 9], pa.timestamp(unit, "UTC"))
    group = group_of(written(tmp_path / "f", {"at": at, "seq": pa.array([3, 4])}))
    assert instant_bounds(group, "at") == bounds_of(group, "at") == (5 * scale, 9 * scale)
    assert number_bounds(group, "seq") == bounds_of(group, "seq") == (3, 4)
    assert instant_bounds(group, "seq") is None
    assert bounds_of(group, "none") is number_bounds(group, "none") is None


def test_nanoseconds_texts_and_columns_with_nulls_have_no_such_bounds(tmp_path: Path) -> None:
    columns = {
        "fine": pa.array([5, 9], pa.timestamp("ns", "UTC")),
        "gaps": pa.array([5, None], pa.timestamp("us", "UTC")),
        "text": pa.array(["a", "b"]),
        "some": pa.array([1, None]),
    }
    group = group_of(written(tmp_path / "f", columns))
    assert instant_bounds(group, "fine") is instant_bounds(group, "gaps") is None
    assert number_bounds(group, "text") is number_bounds(group, "some") is None
    assert bounds_of(group, "some") == (1, 1)


@pytest.mark.parametrize("rows", [1, 1_000, ROW_GROUP + 1])
def test_every_row_group_of_a_sealed_file_has_a_filter_of_its_ids(
    tmp_path: Path, rows: int
) -> None:
    schema = SCHEMAS[MESSAGES]
    columns = [pa.nulls(rows, field.type) for field in schema]
    columns[schema.get_field_index("seq")] = pa.array(range(rows), pa.int64())
    columns[schema.get_field_index("message_id")] = pa.array([f"{n:032x}" for n in range(rows)])
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    path = write_sealed(tmp_path, MESSAGES, Stem(1, 0), [batch], fsync=False)
    with path.open("rb") as file, pq.ParquetFile(path) as whole:
        for number in range(whole.num_row_groups):
            group = whole.metadata.row_group(number)
            place = [group.column(n).path_in_schema for n in range(group.num_columns)]
            chunk = group.column(place.index("message_id"))
            assert chunk.bloom_filter_length <= 64 + 2 * max(32, rows)
            ids = whole.read_row_group(number, ["message_id"]).column(0).to_pylist()
            assert all(may_hold_text(file, group, "message_id", id) for id in ids[:100])
