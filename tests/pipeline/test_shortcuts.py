"""Fast paths for special cases of the data give the same results as the general code."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from waystation.pipeline.kernels import comparing
from waystation.pipeline.kernels.columns import codes, id_texts, id_words, repeated_numbers
from waystation.pipeline.schema import CODED
from waystation.pipeline.tables import BUILT, part_of
from waystation.pipeline.writing import written

health = importlib.import_module("waystation.pipeline.kernels.health")  # a step has the same name


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=30),
    st.sampled_from([None, "short", "ä" * 16, "é" * 32]),
)
def test_entries_are_numbered_by_id_and_instant(
    pairs: list[tuple[int, int]], odd: str | None
) -> None:
    ids = [f"{id:032x}" if id else odd for id, _ in pairs]
    at = np.array([at for _, at in pairs], np.int64)
    half = len(ids) // 2
    both = pa.chunked_array([pa.array(ids[:half], pa.string()), pa.array(ids[half:], pa.string())])
    numbers = comparing._entry_numbers(both, at).tolist()
    told = list(zip(ids, at.tolist(), strict=True))
    for one, number in zip(told, numbers, strict=True):
        for other, its in zip(told, numbers, strict=True):
            assert (number == its) == (one == other)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.one_of(st.integers(-(2**40), 2**40), st.just(-(2**61)))),
        min_size=1,
        max_size=40,
    )
)
def test_tallies_are_ordered_by_kind_and_duration_however_long_that_is(
    rows: list[tuple[int, int]],
) -> None:
    key = np.array([kind for kind, _ in rows], np.int64)
    took = np.array([microseconds for _, microseconds in rows], np.int64) / 1_000
    order = health._order(key, took)
    found = list(zip(key[order].tolist(), took[order].tolist(), strict=True))
    assert found == sorted(zip(key.tolist(), took.tolist(), strict=True))


def test_the_type_of_an_address_is_the_one_that_the_core_reads() -> None:
    texts = ["0#a", "1#10.0.0.1:4000", "9#x", "37#y", "tcp#h:1", "plain", "no type#x", "0#0xzz", ""]
    names: dict[str, int] = {"local": 0}
    coded = pa.array([*texts, None, *reversed(texts)]).dictionary_encode()
    found = health._types_of(coded, names)
    by_number = {number: name for name, number in names.items()}
    assert [by_number[number] for number in found.tolist()] == [
        health._type_of(text) for text in [*texts, None, *reversed(texts)]
    ]
    nobody = health._types_of(pa.array([None, None], pa.string()).dictionary_encode(), names)
    assert {by_number[number] for number in nobody.tolist()} == {health.NO_TYPE}


@given(st.lists(st.integers(0, 2**128 - 1), max_size=20))
def test_an_id_survives_conversion_to_two_numbers(ids: list[int]) -> None:
    texts = pa.array([f"{id:032x}" for id in ids], pa.string())
    assert id_texts(*id_words(texts)).to_pylist() == texts.to_pylist()


@given(st.lists(st.integers(0, 9), max_size=20))
def test_repeated_numbers_are_found(numbers: list[int]) -> None:
    found = repeated_numbers(np.array(numbers, np.int64)).tolist()
    assert found == sorted(
        number for place, number in enumerate(numbers) if number in numbers[:place]
    )


def test_unused_dictionary_strings_are_not_written(tmp_path: Path) -> None:
    texts = pa.array([f"participant-{number:06}" for number in range(50_000)])
    numbers = np.array([40_000, 40_002, 40_002, -1, 40_001], np.int32)
    indices = pa.array(numbers, mask=numbers < 0)
    rows = BUILT["expected"].empty_table()
    nulls = {field.name: pa.nulls(5, field.type) for field in rows.schema}
    nulls["recipient"] = pa.DictionaryArray.from_arrays(indices, texts)
    assert nulls["recipient"].type == CODED
    [told] = written({"expected": str(tmp_path)}, iter([part_of("expected", pa.table(nulls))]))
    path = tmp_path / told.column("file")[0].as_py()
    found = pq.read_table(path).column("recipient")
    assert found.to_pylist() == nulls["recipient"].to_pylist()
    assert path.stat().st_size < 10_000
    assert codes(found.combine_chunks()).tolist() == [0, 1, 1, -1, 2]
