"""Invalid rows and files become rejects and stop nothing; files of other versions are read."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_file, put_rows, row, table_of
from waystation.core.record import ClockRecord, PeerClockRecord, SessionKind, SessionRecord
from waystation.errors import LocalError
from waystation.journal import Journal
from waystation.pipeline.instants import instant
from waystation.pipeline.kernels.node_data import FileData, Reject, Share
from waystation.pipeline.listing import Wanted, list_journal
from waystation.pipeline.schema import JOURNAL, plain_schema, steps_columns


def opened(journal: Path, **wanted: Any) -> FileData:
    asked = Wanted(**wanted)
    [(node, files)] = list_journal(str(journal), asked).nodes.items()
    return FileData(str(journal), Share(node, files), asked)


def rejects(journal: Path) -> list[Reject]:
    return opened(journal).all_rejects()


BAD_ROWS = [
    ("routes", {"seq": -1}, "seq is negative"),
    ("routes", {"seq": None}, "seq is null"),
    ("routes", {"incarnation": None}, "incarnation is null"),
    ("routes", {"at": None}, "at is null"),
    ("routes", {"at": -5}, "at is outside the years 1970 to 9999"),
    ("routes", {"expiry": 10**18}, "expiry is outside the years 1970 to 9999"),
    ("routes", {"kind": "puts"}, "kind is not one of put, remove"),
    ("routes", {"kind": None}, "kind is not one of put, remove"),
    ("routes", {"participant": ""}, "participant is empty"),
    ("routes", {"address": "900#x"}, "address is not a valid address"),
    ("routes", {"address": None}, "address is not a valid address"),
    ("routes", {"local": None}, "local is null"),
    ("routes", {"sticky": None}, "sticky is null"),
    ("subscriptions", {"pattern": "p/*/b"}, "pattern is not a valid pattern"),
    ("subscriptions", {"receiver": None}, "receiver is empty"),
    ("members", {"kind": "gone"}, "kind is not one of join, leave, suspect, invalidate, address"),
    ("members", {"uuid": ""}, "uuid is empty"),
    ("nodes", {"kind": "pause"}, "kind is not one of start, stop, lost, corrupt, clock"),
    ("messages", {"message_id": "ABC"}, "message_id is not 32 lower-case hex digits"),
    ("messages", {"message_id": "g" * 32}, "message_id is not 32 lower-case hex digits"),
    ("messages", {"message_id": None}, "message_id is not 32 lower-case hex digits"),
    (
        "messages",
        {"outcome": "LOST"},
        "outcome is not one of DELIVERED, FORWARDED, QUEUED, DROPPED",
    ),
    ("messages", {"onward": None}, "onward is null"),
    ("messages", {"onward": ["0#a", "what#"]}, "onward has an invalid address"),
    ("messages", {"return": [None]}, "return has an invalid address"),
    ("messages", {"kind": "multicast"}, "a multicast has no multicast_id"),
    ("messages", {"bytes": -1}, "bytes is negative"),
    ("messages", {"from_global": None}, "from_global is null"),
    ("messages", {"received_at": None}, "received_at is null"),
    ("messages", {"received_at": -1}, "received_at is outside the years 1970 to 9999"),
]


@pytest.mark.rule("SP-5")
@pytest.mark.parametrize(
    ("table", "fields", "problem"), BAD_ROWS, ids=lambda value: str(value)[:40]
)
def test_a_bad_row_is_kept_with_its_reason_and_the_others_are_read(
    tmp_path: Path, table: str, fields: dict[str, Any], problem: str
) -> None:
    rows = [row(table, 0), {**row(table, 1), **fields}, row(table, 2)]
    put_rows(tmp_path, table, rows)
    data = opened(tmp_path)
    assert data.events(table).column("seq").to_pylist() == [0, 2]
    [(name, node, file, content, why, _)] = data.rejects
    assert (name, node, why) == (table, "garage", problem)
    assert file == f"{table}/node=garage/{INCARNATION}-0.parquet"
    assert content is not None
    assert set(json.loads(content)) == set(steps_columns(table))


@pytest.mark.rule("SP-5")
def test_unusual_valid_rows_are_not_rejects(tmp_path: Path) -> None:
    remove: dict[str, Any] = {
        "kind": "remove",
        "address": None,
        "local": None,
        "visible": None,
        "sticky": None,
    }
    put_rows(tmp_path, "routes", [row("routes", 0, **remove), row("routes", 1, address="plain")])
    odd: dict[str, Any] = {"onward": [], "reason": "A_REASON_OF_TOMORROW", "outcome": "DROPPED"}
    put_rows(
        tmp_path, "messages", [row("messages", 2, **odd), row("messages", 3, onward=["9#0x00"])]
    )
    assert rejects(tmp_path) == []


@pytest.mark.rule("SP-5")
def test_files_that_cannot_be_read_are_rejects(tmp_path: Path) -> None:
    good = put_rows(tmp_path, "routes", [row("routes", 0)])
    content = good.read_bytes()
    directory = good.parent
    (directory / "1-1.parquet").write_bytes(b"this is no Parquet at all")
    (directory / "1-2.parquet").write_bytes(content[: len(content) // 2])
    (directory / "1-3.parquet").write_bytes(b"")
    (directory / "README.txt").write_text("hello")
    put_file(tmp_path, "routes", "garage", "1-4.parquet", pa.table({"x": [1]}))
    half = table_of("routes", [row("routes", 5)]).set_column(0, "incarnation", pa.array(["one"]))
    put_file(tmp_path, "routes", "garage", "1-5.parquet", half)
    (directory / ".1-6.arrows").write_bytes(b"a tail, which is invisible")
    (directory / "_removed").write_text("invisible as well")
    data = opened(tmp_path)
    assert data.events("routes").num_rows == 1
    found = {str(file).rpartition("/")[2]: why for _, _, file, row_, why, _ in data.rejects}
    assert sorted(found) == sorted(
        ["1-1.parquet", "1-2.parquet", "1-3.parquet", "1-4.parquet", "1-5.parquet", "README.txt"]
    )
    assert found["1-4.parquet"] == "it has no column incarnation"
    assert found["1-5.parquet"] == "its column incarnation is string, not int64"


@pytest.mark.rule("SP-5")
def test_a_corrupt_row_group_does_not_affect_the_others(tmp_path: Path) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only here with options of its own

    rows = table_of("messages", [row("messages", seq) for seq in range(2_000)])
    path = put_file(tmp_path, "messages", "garage", f"{INCARNATION}-0.parquet", rows)
    pq.write_table(rows, path, row_group_size=1_000, write_page_checksum=True)
    footer = pq.read_metadata(path)
    damaged = bytearray(path.read_bytes())
    start = footer.row_group(1).column(3).data_page_offset
    damaged[start + 60 : start + 90] = bytes(30)
    path.write_bytes(bytes(damaged))
    data = opened(tmp_path)
    assert data.events("messages").column("seq").to_pylist() == list(range(1_000))
    [(_, _, _, content, why, _)] = data.rejects
    assert content is None
    assert why.startswith("row group 1: ")


def test_a_file_outside_of_node_directories_is_a_stray(tmp_path: Path) -> None:
    put_rows(tmp_path, "routes", [row("routes", 0)])
    (tmp_path / "routes" / "lonely.parquet").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not of the journal")
    listing = list_journal(str(tmp_path), Wanted())
    assert [stray.path for stray in listing.strays] == ["routes/lonely.parquet"]
    assert list(listing.nodes) == ["garage"]


def test_rows_in_two_files_count_once(tmp_path: Path) -> None:
    put_rows(tmp_path, "messages", [row("messages", seq) for seq in range(10)])
    put_rows(tmp_path, "messages", [row("messages", seq) for seq in range(4, 7)])
    put_rows(tmp_path, "messages", [row("messages", seq) for seq in range(10, 12)])
    data = opened(tmp_path)
    assert data.events("messages").column("seq").to_pylist() == list(range(12))
    assert data.rejects == []


# Other versions (docs/reference/schema-evolution.md)


def test_an_older_file_without_columns_gets_their_defaults(tmp_path: Path) -> None:
    rows = table_of("messages", [row("messages", 0)])
    required = [name for name, column in JOURNAL["messages"].items() if column.required]
    put_file(tmp_path, "messages", "garage", f"{INCARNATION}-0.parquet", rows.select(required))
    [found] = opened(tmp_path).events("messages").to_pylist()
    assert found["received_at"] == found["at"]
    assert (found["return"], found["bytes"], found["from_global"]) == ([], 0, False)
    assert [found[name] for name in ("expiry", "reason", "next_hop", "multicast_id")] == [None] * 4


def test_a_newer_file_with_unknown_columns_is_read_without_them(tmp_path: Path) -> None:
    rows = table_of("routes", [row("routes", 0)])
    newer = rows.append_column("colour", pa.array(["blue"])).append_column("node", pa.array(["x"]))
    put_file(tmp_path, "routes", "garage", f"{INCARNATION}-0.parquet", newer)
    data = opened(tmp_path)
    assert data.events("routes").column_names == steps_columns("routes")
    assert data.rejects == []


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "+02:00"])
def test_compatible_types_are_converted(tmp_path: Path, unit: str, zone: str | None) -> None:
    rows = table_of("messages", [row("messages", 3)])
    at = rows.column("at").cast(pa.timestamp(unit, "UTC"), safe=False)
    at = at.cast(pa.timestamp(unit, zone)) if zone else at.cast(pa.timestamp(unit))
    changed = {
        "incarnation": rows.column("incarnation").cast(pa.uint64()),
        "seq": rows.column("seq").cast(pa.int32()),
        "at": at,
        "kind": rows.column("kind").dictionary_encode(),
        "outcome": rows.column("outcome").cast(pa.large_string()),
        "onward": rows.column("onward").cast(pa.large_list(pa.large_string())),
        "bytes": rows.column("bytes").cast(pa.int64()),
        "reason": pa.nulls(1),
    }
    for name, values in changed.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    put_file(tmp_path, "messages", "garage", f"{INCARNATION}-0.parquet", rows)
    data = opened(tmp_path)
    found = data.events("messages")
    assert data.rejects == []
    assert found.schema == plain_schema("messages")
    assert found.column("at").cast(pa.int64()).to_pylist() == [BEGIN + 3 * SECOND]


def test_a_number_too_large_for_its_column_makes_a_reject(tmp_path: Path) -> None:
    rows = table_of("messages", [row("messages", 0)])
    large = rows.set_column(rows.schema.get_field_index("bytes"), "bytes", pa.array([2**40]))
    put_file(tmp_path, "messages", "garage", f"{INCARNATION}-0.parquet", large)
    [(_, _, _, _, why, _)] = rejects(tmp_path)
    assert "row group 0" in why


# What is not needed is not read


def test_files_of_incarnations_outside_the_span_are_not_even_opened(tmp_path: Path) -> None:
    hour = 3_600_000
    for number in range(4):
        incarnation = INCARNATION + number * hour
        at = incarnation * 1_000
        found = [{**row("messages", 0), "incarnation": incarnation, "at": at, "received_at": at}]
        put_rows(tmp_path, "messages", found)
    broken = tmp_path / "messages" / "node=garage"
    for number in (0, 3):
        (broken / f"{INCARNATION + number * hour}-0.parquet").write_bytes(b"never to be opened")
    span = {"since": (INCARNATION + hour) * 1_000, "until": (INCARNATION + 3 * hour) * 1_000}
    data = opened(tmp_path, **span)
    assert data.events("messages").num_rows == 2
    assert data.rejects == []


def test_row_groups_outside_the_span_are_not_read(tmp_path: Path, monkeypatch: Any) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only here with options of its own

    rows = table_of("messages", [row("messages", seq) for seq in range(100)])
    path = put_file(tmp_path, "messages", "garage", f"{INCARNATION}-0.parquet", rows)
    pq.write_table(rows, path, row_group_size=10)
    read = []
    before = pq.ParquetFile.read_row_group

    def watched(self: Any, number: int, *arguments: Any, **options: Any) -> Any:
        read.append(number)
        return before(self, number, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    data = opened(tmp_path, since=BEGIN + 25 * SECOND, until=BEGIN + 42 * SECOND)
    assert data.events("messages").column("seq").to_pylist() == list(range(25, 42))
    assert read == [2, 3, 4]


def test_routes_before_the_span_are_read_since_they_make_the_table(tmp_path: Path) -> None:
    put_rows(tmp_path, "routes", [row("routes", 0), row("routes", 50, participant="later")])
    data = opened(tmp_path, since=BEGIN + 20 * SECOND, until=BEGIN + 30 * SECOND)
    assert data.events("routes").column("participant").to_pylist() == ["a"]


def test_other_nodes_are_not_listed(tmp_path: Path) -> None:
    put_rows(tmp_path, "routes", [row("routes", 0)], node="hall%2F2")
    put_rows(tmp_path, "routes", [row("routes", 0)], node="garage")
    listing = list_journal(str(tmp_path), Wanted(nodes=frozenset({"hall/2"})))
    assert list(listing.nodes) == ["hall/2"]


def test_a_missing_journal_and_an_invalid_time_are_errors(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no such journal"):
        list_journal(str(tmp_path / "nowhere"), Wanted())
    with pytest.raises(LocalError, match="invalid time"):
        instant("noon")


def test_errors_of_the_machine_are_not_rejects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_rows(tmp_path, "routes", [row("routes", 0)])
    data = opened(tmp_path)

    class Exhausted:
        def open_input_file(self, path: str) -> None:
            raise OSError(errno.EMFILE, "too many open files", path)

    monkeypatch.setattr(data, "_system", Exhausted())
    with pytest.raises(OSError, match="too many"):
        data.events("routes")


@pytest.mark.rule("TM-3")
def test_sessions_and_clocks_in_a_journal_are_no_news_to_the_pipeline(tmp_path: Path) -> None:
    opened_record = SessionRecord(SessionKind.OPENED, "hub", "1#h:1", "h", None, "", BEGIN)
    with Journal(tmp_path, "garage", incarnation=INCARNATION, clock=lambda: BEGIN) as journal:
        journal.note(opened_record)
        journal.note(PeerClockRecord(opened_record, 5_000, 100, BEGIN + 1))
        journal.note(ClockRecord(SECOND, "the wall clock is off", BEGIN + 2))
    (tmp_path / "later" / "node=garage").mkdir(parents=True)  # as a later version may write
    data = opened(tmp_path)
    assert data.events("nodes").column("kind").to_pylist() == ["start", "clock", "stop"]
    assert data.events("messages").num_rows == 0
    assert data.all_rejects() == []
