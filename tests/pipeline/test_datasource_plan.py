"""The partitions of the data source, and the files that it need not read; no Spark is started."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_file, put_rows, row, table_of
from waystation.errors import LocalError
from waystation.pipeline.schema import journal_schema, spark_schema
from waystation.pipeline.source.datasource import WaystationSource, register
from waystation.pipeline.source.filters import Condition, all_hold, condition_of
from waystation.pipeline.source.options import Reading
from waystation.pipeline.source.pieces import decoded
from waystation.pipeline.source.reader import FilteringReader, JournalReader
from waystation.pipeline.source.spans import common, united, without

SCHEMA = journal_schema("messages")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def reader_of(
    journal: Path, filters: Iterable[spark.Filter] = (), **options: str
) -> FilteringReader:
    reading = Reading.of({"path": str(journal), **options})
    reader = FilteringReader(reading, spark_schema(reading.schema))
    assert list(reader.pushFilters(list(filters))) == []
    return reader


def rows_of(reader: JournalReader) -> list[dict[str, Any]]:
    return [
        found
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for found in batch.to_pylist()
    ]


def planned(reader: JournalReader) -> list[list[str]]:
    """The names of the files of each task."""
    return [
        [f"{piece.node} {file.first}" for piece in decoded(part.value) for file in piece.files]
        for part in reader.partitions()
    ]


def many_files(journal: Path, node: str, count: int, size: int = 10) -> None:
    for first in range(0, count * size, size):
        rows = [row("messages", seq) for seq in range(first, first + size)]
        put_rows(journal, "messages", rows, node)


def test_small_nodes_share_a_task_and_a_large_one_has_several(tmp_path: Path) -> None:
    for node in ("a", "b", "c"):
        many_files(tmp_path, node, 1)
    many_files(tmp_path, "large", 6)
    size = (tmp_path / "messages/node=a").iterdir().__next__().stat().st_size
    tasks = planned(reader_of(tmp_path, partitionBytes=str(3 * size + size // 2)))
    assert tasks == [
        ["a 0", "b 0", "c 0"],
        ["large 0", "large 10", "large 20"],
        ["large 30", "large 40", "large 50"],
    ]


def test_one_large_file_is_split_at_row_groups(tmp_path: Path) -> None:
    rows = [row("messages", seq) for seq in range(1_000)]
    path = put_file(tmp_path, "messages", "hub", f"{INCARNATION}-0.parquet", SCHEMA.empty_table())
    pq.write_table(table_of("messages", rows), path, row_group_size=100)
    reader = reader_of(tmp_path, partitionBytes=str(path.stat().st_size // 4))
    assert len(reader.partitions()) >= 4
    assert sorted(found["seq"] for found in rows_of(reader)) == list(range(1_000))


@pytest.mark.parametrize("size", [1, 4_000, 10**9])
def test_rows_in_two_files_are_read_once_however_the_node_is_split(
    tmp_path: Path, size: int
) -> None:
    rng = random.Random(7)
    for _ in range(12):
        first = rng.randrange(80)
        incarnation = INCARNATION + rng.choice([0, 5])
        rows = [
            row("messages", seq, incarnation=incarnation)
            for seq in range(first, first + rng.randint(1, 25))
        ]
        name = f"{incarnation}-{first}.parquet"
        path = put_file(tmp_path, "messages", "hub", name, SCHEMA.empty_table())
        pq.write_table(table_of("messages", rows), path, row_group_size=7)
    whole = rows_of(reader_of(tmp_path, partitionBytes=str(10**9)))
    found = rows_of(reader_of(tmp_path, partitionBytes=str(size)))
    assert len({(one["incarnation"], one["seq"]) for one in found}) == len(found)
    assert sorted(map(repr, found)) == sorted(map(repr, whole))


def test_files_without_statistics_are_read_in_one_task(tmp_path: Path) -> None:
    for first in (0, 10):
        path = put_rows(tmp_path, "messages", [row("messages", first)])
        content = table_of("messages", [row("messages", first), row("messages", first + 1)])
        pq.write_table(content, path, write_statistics=False)
    reader = reader_of(tmp_path, partitionBytes="1")
    assert len(reader.partitions()) == 1
    assert sorted(found["seq"] for found in rows_of(reader)) == [0, 1, 10, 11]


def test_nodes_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    for node in ("a", "b", "c"):
        many_files(tmp_path, node, 1)
    only = reader_of(tmp_path, [spark.In(("node",), ("a", "c", "nobody"))])
    assert planned(only) == [["a 0", "c 0"]]
    assert planned(reader_of(tmp_path, [spark.EqualTo(("node",), "b")])) == [["b 0"]]
    assert {found["node"] for found in rows_of(only)} == {"a", "c"}
    assert reader_of(tmp_path, [spark.EqualTo(("node",), "nobody")]).partitions() == []


def test_files_and_row_groups_outside_the_wanted_instants_are_not_read(tmp_path: Path) -> None:
    many_files(tmp_path, "hub", 6)
    later, until = at(BEGIN + 25 * SECOND), at(BEGIN + 41 * SECOND)
    asked = [spark.GreaterThanOrEqual(("at",), later), spark.LessThan(("received_at",), until)]
    reader = reader_of(tmp_path, asked, partitionBytes="1")
    assert planned(reader) == [["hub 20"], ["hub 30"], ["hub 40"]]
    assert [found["seq"] for found in rows_of(reader)] == list(range(25, 41))


def test_files_of_other_incarnations_are_known_by_their_names(tmp_path: Path) -> None:
    for incarnation in (1, 2, 3):
        put_rows(tmp_path, "messages", [row("messages", 0, incarnation=incarnation)])
    (tmp_path / "messages/node=garage/1-0.parquet").write_bytes(b"this would be a reject")
    [tasks] = planned(reader_of(tmp_path, [spark.GreaterThan(("incarnation",), 1)]))
    assert len(tasks) == 2


def test_a_message_is_found_by_its_id_without_reading_other_row_groups(tmp_path: Path) -> None:
    for first in range(0, 40, 10):
        ids = [f"{seq:032x}" for seq in range(first, first + 10)]
        rows = [row("messages", first + n, message_id=id) for n, id in enumerate(ids)]
        put_rows(tmp_path, "messages", rows, "hub")
    asked = [spark.EqualTo(("message_id",), f"{23:032x}")]
    reader = reader_of(tmp_path, asked, partitionBytes="1")
    assert planned(reader) == [["hub 20"]]
    assert [found["seq"] for found in rows_of(reader)] == [23]


FIELDS = {"seq": 5, "bytes": 5, "outcome": "DROPPED", "from_global": True, "at": at(BEGIN + 5)}
FILTERS = [
    *(spark.EqualTo((name,), value) for name, value in FIELDS.items()),
    *(spark.EqualNullSafe((name,), value) for name, value in FIELDS.items()),
    *(
        kind((name,), FIELDS[name])
        for name in ("seq", "bytes", "outcome", "at")
        for kind in (
            spark.LessThan, spark.LessThanOrEqual, spark.GreaterThan, spark.GreaterThanOrEqual
        )
    ),
    *(spark.In((name,), (value,)) for name, value in FIELDS.items()),
    spark.In(("seq",), ()),
    spark.IsNull(("reason",)),
    spark.IsNotNull(("reason",)),
    spark.StringStartsWith(("outcome",), "DROP"),
    spark.StringEndsWith(("outcome",), "ED"),
    spark.StringContains(("outcome",), "ROP"),
]  # fmt: skip


def says(filter: spark.Filter, found: dict[str, Any]) -> bool | None:
    """The value of a condition for a row in SQL: True, False, or null."""
    if isinstance(filter, spark.Not):
        inner = says(filter.child, found)
        return None if inner is None else not inner
    value = found[filter.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(filter, spark.IsNull | spark.IsNotNull):
        return (value is None) == isinstance(filter, spark.IsNull)
    wanted = filter.value  # type: ignore[attr-defined]
    if value is None:
        return False if isinstance(filter, spark.EqualNullSafe) else None
    tests: dict[type, Callable[[], Any]] = {
        spark.EqualTo: lambda: value == wanted,
        spark.EqualNullSafe: lambda: value == wanted,
        spark.LessThan: lambda: value < wanted,
        spark.LessThanOrEqual: lambda: value <= wanted,
        spark.GreaterThan: lambda: value > wanted,
        spark.GreaterThanOrEqual: lambda: value >= wanted,
        spark.In: lambda: value in wanted,
        spark.StringStartsWith: lambda: value.startswith(wanted),
        spark.StringEndsWith: lambda: value.endswith(wanted),
        spark.StringContains: lambda: wanted in value,
    }
    return bool(tests[type(filter)]())


def some_rows() -> pa.Table:
    columns: dict[str, list[Any]] = {
        "seq": [4, 5, 6, None, 5, 0],
        "bytes": [5, 4, 6, None, 5, 0],
        "outcome": ["DROPPED", "DELIVERED", None, "A", "Z", "DROP"],
        "from_global": [True, False, None, True, False, True],
        "at": [at(BEGIN + n) if n != 3 else None for n in (4, 5, 6, 3, 5, 9)],
        "reason": [None, "x", None, "", "y", None],
    }
    return pa.table(
        {name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}
    )


@pytest.mark.parametrize("filter", FILTERS, ids=str)
@pytest.mark.parametrize("negated", [False, True], ids=["", "not"])
def test_a_condition_selects_the_same_rows_as_sql(
    tmp_path: Path, filter: spark.Filter, negated: bool
) -> None:
    if negated and isinstance(filter, spark.EqualNullSafe):
        assert condition_of(spark.Not(filter), SCHEMA) is None
        return
    asked = spark.Not(filter) if negated else filter
    condition = condition_of(asked, SCHEMA)
    assert condition is not None
    rows = some_rows()
    wanted = [found for found in rows.to_pylist() if says(asked, found)]
    assert all_hold([condition], rows).to_pylist() == wanted
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=1)
    footer = pq.read_metadata(tmp_path / "rows.parquet")
    for number, found in enumerate(rows.to_pylist()):
        if says(asked, found):
            assert condition.may_hold(footer.row_group(number))


def test_filters_that_do_not_fit_a_column_are_left_to_spark() -> None:
    for filter in (
        spark.EqualTo(("at",), datetime(2026, 1, 1)),  # noqa: DTZ001 - without a zone
        spark.EqualTo(("seq",), "5"),
        spark.EqualTo(("seq",), True),
        spark.EqualTo(("from_global",), 1),
        spark.EqualTo(("onward",), ["0#a"]),
        spark.EqualTo(("a", "b"), 1),
        spark.EqualTo(("nothing",), 1),
        spark.In(("seq",), (1, None)),
        spark.StringContains(("seq",), "1"),
    ):
        assert condition_of(filter, SCHEMA) is None


def test_a_condition_on_a_column_that_a_file_lacks_prunes_nothing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "rows.parquet")
    group = pq.read_metadata(tmp_path / "rows.parquet").row_group(0)
    assert Condition("bytes", "equal", [5]).may_hold(group)


@pytest.mark.rule("SP-5")
def test_invalid_files_and_rows_appear_only_in_rejects(tmp_path: Path) -> None:
    good = [row("messages", 0), row("messages", 1, outcome="LOST"), row("messages", 2)]
    put_rows(tmp_path, "messages", good, "hub")
    (tmp_path / "messages/node=hub/1-5.parquet").write_bytes(b"no Parquet at all")
    (tmp_path / "messages/stray.parquet").write_bytes(b"")
    assert [found["seq"] for found in rows_of(reader_of(tmp_path))] == [0, 2]
    rejects = rows_of(reader_of(tmp_path, table="rejects"))
    assert sorted((found["table"], found["node"]) for found in rejects if found["node"]) == [
        ("messages", "hub"),
        ("messages", "hub"),
    ]
    assert [found["file"] for found in rejects if not found["node"]] == ["messages/stray.parquet"]
    asked = [spark.EqualTo(("node",), "hub"), spark.IsNull(("row",))]
    [found] = rows_of(reader_of(tmp_path, asked, table="rejects"))
    assert found["file"] == "messages/node=hub/1-5.parquet"


@pytest.mark.rule("SP-5")
def test_files_with_columns_of_other_types_stop_no_planning(tmp_path: Path) -> None:
    many_files(tmp_path, "hub", 2)
    odd = table_of("messages", [row("messages", 90)])
    for name, column in {"1-0": "incarnation", "1-1": "seq", "1-2": "at", "1-3": "outcome"}.items():
        place = odd.schema.get_field_index(column)
        other = pa.array([1.5]) if column == "outcome" else pa.array(["what"])
        changed = odd.set_column(place, column, other)
        put_file(tmp_path, "messages", "hub", f"{name}.parquet", changed)
    asked = [
        spark.GreaterThan(("seq",), 14),
        spark.GreaterThan(("at",), at(BEGIN)),
        spark.EqualTo(("outcome",), "DELIVERED"),
    ]
    for size in ("1", "8m"):
        found = rows_of(reader_of(tmp_path, asked, partitionBytes=size))
        assert sorted(one["seq"] for one in found) == list(range(15, 20))


def test_a_schema_of_fewer_columns_selects_these(tmp_path: Path) -> None:
    many_files(tmp_path, "hub", 1, 2)
    reading = Reading.of({"path": str(tmp_path)})
    few = spark_schema(pa.schema([SCHEMA.field("at"), SCHEMA.field("node")]))
    assert rows_of(JournalReader(reading, few)) == [
        {"at": at(BEGIN), "node": "hub"},
        {"at": at(BEGIN + SECOND), "node": "hub"},
    ]
    wrong = spark_schema(pa.schema({"seq": pa.string()}))
    with pytest.raises(LocalError, match="no column seq of type string"):
        JournalReader(reading, wrong)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "the path of the journal is missing"),
        ({"path": "x", "table": "route"}, "unknown table 'route'; give one of nodes, routes"),
        ({"path": "x", "tabel": "routes"}, "unknown option 'tabel'; use table, pushdown"),
        ({"path": "x", "pushdown": "maybe"}, "the option pushdown is 'maybe'; write true or false"),
        (
            {"path": "x", "partitionBytes": "8q"},
            "the option partitionBytes is '8q'; give a number of bytes",
        ),
        ({"path": "x", "maxFilesPerTrigger": "0"}, "the option maxFilesPerTrigger is '0'"),
        ({"path": "x", "maxFilesPerTrigger": "2k"}, "give 1 or more"),
    ],
)
def test_an_invalid_option_is_reported_with_a_hint(options: dict[str, str], problem: str) -> None:
    with pytest.raises(LocalError, match=problem.replace("(", r"\(")):
        WaystationSource(options).schema()


def test_a_missing_journal_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no such journal"):
        reader_of(tmp_path / "nowhere").partitions()


def test_an_older_pyspark_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.0")
    with pytest.raises(LocalError, match=r"needs PySpark 4.2, but 4.1.0 is installed"):
        register(None)  # type: ignore[arg-type]


def test_options_are_case_insensitive_and_sizes_have_units() -> None:
    reading = Reading.of({"path": "/x", "partitionbytes": "64K", "MAXFILESPERTRIGGER": " 3 "})
    assert (reading.partition_bytes, reading.most_files) == (64 * 2**10, 3)


sets = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6))).map(
    lambda found: united((low, low + length) for low, length in found)
)


@given(sets, sets)
def test_spans_are_sets_of_numbers(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    def numbers(spans: list[tuple[int, int]]) -> set[int]:
        return {number for low, high in spans for number in range(low, high + 1)}

    assert numbers(common(one, other)) == numbers(one) & numbers(other)
    assert numbers(without(one, other)) == numbers(one) - numbers(other)
    assert united([*one, *other]) == united([*other, *one])
    assert numbers(united([*one, *other])) == numbers(one) | numbers(other)
