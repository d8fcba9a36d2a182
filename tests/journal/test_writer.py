"""The writer: noted records are in the files that CONTRACT names, once and in order."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tracemalloc
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from tests.journal.traffic import (
    BEGIN,
    DELIVERED,
    FORWARDED,
    NO_ROUTE,
    change_record,
    claim_record,
    entries,
    losses,
    message_record,
    rows,
    rows_so_far,
    until,
)
from waystation.core.address import Address, Route
from waystation.core.expiry import LAST_INSTANT, NEVER
from waystation.core.gossip import MemberChange, MemberKind
from waystation.core.identity import LogicalAddress, Mapping
from waystation.core.message import Arrival, Message
from waystation.core.multicast import SubscriptionChange, SubscriptionKind
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import Cause, ChangeRecord, MessageRecord, SessionKind, SessionRecord
from waystation.core.routing import Refusal, RouteChange, RouteKind, RoutingEntry
from waystation.errors import LocalError
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.convert import Converter
from waystation.journal.schema import ADDED_COLUMNS, SCHEMAS

CONTRACT = {
    # As the contract's words map to Arrow's: long, int, timestamp, bool, string, array<string>.
    "nodes": "kind string, detail string, lost int64, offset_us int64",
    "routes": "kind string, participant string, address string, local bool, visible bool, "
    "expiry timestamp, sticky bool, accepted bool, session string, cause string, message_id string",
    "subscriptions": "kind string, pattern string, receiver string, session string, cause string, "
    "message_id string",
    "members": "kind string, grp string, uuid string, name string, physical array, dialect string",
    "sessions": "kind string, session string, role string, transport string, place string, "
    "peer string, peer_incarnation int64, identity string, reason string, detail string, "
    "offset_us int64, rtt_us int64",
    "claims": "kind string, participant string, session string, owner string, proven bool, "
    "origin string, number int64, path array, reason string, detail string",
    "messages": "message_id string, kind string, onward array, return array, multicast_id string, "
    "outcome string, reason string, next_hop string, recipient string, bytes int32, "
    "expiry timestamp, from_global bool, received_at timestamp, origin string, answers string, "
    "via string, from_node string, out string, next_node string, copy int32, sender string, "
    "durable bool, attempt int32, custodian string, internal bool",
}
TYPES = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array": pa.list_(pa.field("element", pa.string())),
}
MEMBER = Mapping(LogicalAddress(bytes(15) + b"\7", "truck-7"), ("10.0.0.7:1", "10.0.0.7:2"))


def one_of_each_table(journal: Journal) -> None:
    journal.note(change_record(1))
    subscribe = SubscriptionChange(SubscriptionKind.SUBSCRIBE, "garage/door/*", "app", edge=True)
    journal.note(ChangeRecord(subscribe, BEGIN + 2, Cause.ANNOUNCED, "leaf-3", "4bf9" * 8))
    journal.note(ChangeRecord(MemberChange(MemberKind.JOIN, "fleet", MEMBER), BEGIN + 3))
    journal.note(SessionRecord(SessionKind.OPENED, "hub", "1#h:1", "h", None, "", BEGIN + 4))
    journal.note(claim_record(5))
    journal.note(message_record(6))


def sealed(directory: Path, table: str) -> list[Path]:
    return sorted((directory / table).glob("node=*/*.parquet"))


@pytest.mark.rule("OB-4")
def test_every_table_has_the_columns_types_and_file_names_of_the_contract(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", incarnation=17) as journal:
        one_of_each_table(journal)
    tables = ("nodes", "routes", "subscriptions", "members", "sessions", "claims", "messages")
    for first, table in enumerate(tables):
        path = tmp_path / table / "node=garage" / f"17-{first}.parquet"
        expected = {"incarnation": "int64", "seq": "int64", "at": "timestamp"}
        expected |= dict(pair.split() for pair in CONTRACT[table].split(", "))
        schema = pq.ParquetFile(path).schema_arrow
        assert {f.name: f.type for f in schema} == {n: TYPES[t] for n, t in expected.items()}
        assert list(expected) == schema.names
    assert set(CONTRACT) == set(SCHEMAS)


def test_sealed_files_have_zstd_statistics_and_the_order_of_seq(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage") as journal:
        for number in range(100):
            journal.note(message_record(number))
    [path] = sealed(tmp_path, "messages")
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    seq = next(column for column in columns if column.path_in_schema == "seq")
    assert (seq.statistics.min, seq.statistics.max) == (1, 100)
    assert group.sorting_columns


@pytest.mark.rule("OB-4")
def test_each_kind_of_change_is_a_row(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", clock=lambda: BEGIN) as journal:
        one_of_each_table(journal)
    [route] = rows(tmp_path, "routes")
    [subscription] = rows(tmp_path, "subscriptions")
    [member] = rows(tmp_path, "members")
    every = {"incarnation": BEGIN // 1_000}
    assert route == {
        **every,
        "seq": 1,
        "at": BEGIN + 1,
        "kind": "put",
        "participant": "worker-1",
        "address": "0#worker-1",
        "local": True,
        "visible": False,
        "expiry": None,
        "sticky": False,
        "accepted": True,
        "session": None,
        "cause": None,
        "message_id": None,
    }
    assert subscription == {
        **every,
        "seq": 2,
        "at": BEGIN + 2,
        "kind": "subscribe",
        "pattern": "garage/door/*",
        "receiver": "app",
        "session": "leaf-3",
        "cause": "announced",
        "message_id": "4bf9" * 8,
    }
    assert member == {
        **every,
        "seq": 3,
        "at": BEGIN + 3,
        "kind": "join",
        "grp": "fleet",
        "uuid": "00000000-0000-0000-0000-000000000007",
        "name": "truck-7",
        "physical": ["10.0.0.7:1", "10.0.0.7:2"],
        "dialect": None,
    }


@pytest.mark.rule("OB-1", "OB-4")
def test_a_message_is_written_as_it_arrived_with_its_outcome(tmp_path: Path) -> None:
    message = Message(
        Route.parse("a => b"), Route(), b"12345", "4bf9" * 8, expiry=1_800_000_000_000
    )
    with Journal(tmp_path, "garage") as journal:
        journal.note(MessageRecord(Arrival(message, BEGIN, from_global=True), DELIVERED, BEGIN + 9))
    [row] = rows(tmp_path, "messages")
    incarnation = row.pop("incarnation")
    assert row == {
        "seq": 1,
        "at": BEGIN + 9,
        "message_id": "4bf9" * 8,
        "kind": "unicast",
        "onward": ["0#a", "0#b"],
        "return": [],
        "multicast_id": None,
        "outcome": "DELIVERED",
        "reason": None,
        "next_hop": None,
        "recipient": "echo",
        "bytes": 5,
        "expiry": 1_800_000_000_000_000,
        "from_global": True,
        "received_at": BEGIN,
        **dict.fromkeys(ADDED_COLUMNS["messages"]),
        "origin": f"garage/{incarnation}",
        "internal": False,
    }


@pytest.mark.rule("OB-8")
def test_only_forwarded_messages_have_a_next_hop_and_all_a_recipient(tmp_path: Path) -> None:
    queued = Verdict(Outcome.QUEUED, None, "truck-7", Address(1, b"10.0.0.9:4000"))
    with Journal(tmp_path, "garage") as journal:
        for number, verdict in enumerate((DELIVERED, FORWARDED, NO_ROUTE, queued)):
            journal.note(message_record(number, verdict))
    told = [
        (row["outcome"], row["reason"], row["next_hop"], row["recipient"])
        for row in rows(tmp_path, "messages")
    ]
    assert told == [
        ("DELIVERED", None, None, "echo"),
        ("FORWARDED", None, "1#10.0.0.9:4000", "truck-7"),
        ("DROPPED", "NO_ROUTE", None, "truck-8"),
        ("QUEUED", None, None, "truck-7"),
    ]


def test_unicast_and_multicast_rows_are_in_one_table(tmp_path: Path) -> None:
    unicast = message_record(1)
    published = structs.replace(unicast.arrival, multicast_id="garage/door")
    multicast = MessageRecord(published, FORWARDED, BEGIN + 5)
    with Journal(tmp_path, "garage") as journal:
        for record in (unicast, multicast, unicast):
            journal.note(record)
    told = [(row["kind"], row["multicast_id"]) for row in rows(tmp_path, "messages")]
    assert told == [("unicast", None), ("multicast", "garage/door"), ("unicast", None)]


def test_an_expiry_of_never_is_null_beside_others(tmp_path: Path) -> None:
    expiries = [NEVER, 5, NEVER, LAST_INSTANT, 0]
    with Journal(tmp_path, "garage") as journal:
        for number, expiry in enumerate(expiries):
            journal.note(message_record(number, expiry=expiry))
    told = [row["expiry"] for row in rows(tmp_path, "messages")]
    assert told == [None, 5_000, None, LAST_INSTANT * 1_000, 0]


def test_ids_that_are_not_of_32_digits_are_written_as_they_are(tmp_path: Path) -> None:
    ids = ["a" * 31, "b" * 33, "c" * 32, "", "ä" * 32]
    with Journal(tmp_path, "garage") as journal:
        for id in ids:
            message = Message(Route(), Route(), b"", id)
            journal.note(MessageRecord(Arrival(message, BEGIN), NO_ROUTE, BEGIN))
    assert [row["message_id"] for row in rows(tmp_path, "messages")] == ids


@pytest.mark.rule("OB-4")
def test_seq_counts_all_tables_together_in_the_order_of_the_notes(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_records=7) as journal:
        for number in range(1_000):
            journal.note(change_record(number) if number % 3 else message_record(number))
    found = entries(tmp_path)
    assert [entry.fields["seq"] for entry in found] == list(range(1_002))
    assert [entry.at - BEGIN for entry in found[1:-1]] == [n + (n % 3 == 0) for n in range(1_000)]
    assert (found[0].fields["kind"], found[-1].fields["kind"]) == ("start", "stop")
    assert check(tmp_path) == []


def test_many_distinct_routes_and_verdicts_are_distinguished() -> None:
    records = []
    for number in range(2_000):
        verdict = Verdict(Outcome.DELIVERED, None, f"w{number % 700}")
        route = Route.parse(f"w{number % 700} => x{number % 3}")
        message = Message(route, route.rest(), b"", f"{number:032x}")
        records.append(MessageRecord(Arrival(message, BEGIN), verdict, BEGIN))
    converter = Converter("a", 5, cached_values=300)
    found: list[dict[str, Any]] = []
    for first in range(0, len(records), 64):
        [(_, batch)] = converter.convert(records[first : first + 64], first)
        found += batch.to_pylist()
    assert [row["seq"] for row in found] == list(range(2_000))
    for number, row in enumerate(found):
        name, last = f"w{number % 700}", f"0#x{number % 3}"
        assert (row["recipient"], row["onward"], row["return"]) == (
            name,
            [f"0#{name}", last],
            [last],
        )


def test_records_without_a_table_use_no_seq(tmp_path: Path) -> None:
    entry = RoutingEntry("me", Address(1, b"here:1"), local=False)
    own = RouteChange(RouteKind.PUT, entry, Refusal.OWN_ADDRESS)
    with Journal(tmp_path, "garage") as journal:
        journal.note(ChangeRecord(own, BEGIN))
        journal.note(change_record(1))
        journal.note(ChangeRecord(own, BEGIN))
    assert [entry.fields["seq"] for entry in entries(tmp_path)] == [0, 1, 2]
    assert journal.lost == 0


def test_a_refused_put_is_written_as_refused(tmp_path: Path) -> None:
    entry = RoutingEntry("a", Address(1, b"there:1"), local=False, sticky=True, visible=True)
    refused = RouteChange(RouteKind.PUT, entry, Refusal.LOCAL_STAYS)
    with Journal(tmp_path, "garage") as journal:
        journal.note(ChangeRecord(refused, BEGIN))
    [row] = rows(tmp_path, "routes")
    assert (row["accepted"], row["sticky"], row["visible"]) == (False, True, True)


@pytest.mark.parametrize(
    "wrong",
    ["no record", message_record(1, expiry="soon"), MessageRecord(None, DELIVERED, 1), None],  # type: ignore[arg-type]
    ids=["text", "no expiry", "no arrival", "None"],
)
def test_an_invalid_record_is_counted_and_affects_no_other(tmp_path: Path, wrong: Any) -> None:
    with Journal(tmp_path, "garage") as journal:
        for number in range(50):
            journal.note(message_record(number))
            if number == 25:
                journal.note(wrong)
    assert [row["bytes"] for row in rows(tmp_path, "messages")] == list(range(50))
    assert [count for count, _ in losses(tmp_path)] == [1]
    assert check(tmp_path) == []


def test_a_flush_is_triggered_by_time(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.05) as journal:
        journal.note(message_record(1))
        until(lambda: rows_so_far(tmp_path, "messages"))
        assert not sealed(tmp_path, "messages")


def test_a_flush_is_triggered_by_the_number_of_records(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=600, flush_records=10) as journal:
        for number in range(20):
            journal.note(message_record(number))
        until(lambda: rows_so_far(tmp_path, "messages"))


def test_small_numbers_of_records_are_flushed_repeatedly(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=600, flush_records=5) as journal:
        for number in range(5):  # after the row with its start
            journal.note(message_record(number))
        until(lambda: len(rows_so_far(tmp_path, "messages")) == 5)
        for number in range(5, 11):
            journal.note(message_record(number))
        until(lambda: len(rows_so_far(tmp_path, "messages")) == 11)


def test_a_tail_is_sealed_by_size(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02, seal_bytes=1) as journal:
        for number in range(100):
            journal.note(message_record(number))
            if number % 10 == 9:
                until(lambda: not journal.waiting)
        until(lambda: len(sealed(tmp_path, "messages")) > 1)
    assert [row["bytes"] for row in rows(tmp_path, "messages")] == list(range(100))


def test_a_tail_is_sealed_by_age(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02, seal_seconds=0.05) as journal:
        journal.note(message_record(1))
        until(lambda: sealed(tmp_path, "messages") and sealed(tmp_path, "nodes"))


def test_unsealed_files_are_invisible_to_spark(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        one_of_each_table(journal)
        until(lambda: len(entries(tmp_path)) == len(CONTRACT))
        visible = [path for path in tmp_path.rglob("[!._]*") if path.is_file()]
    assert visible == []
    left = [path.name for path in tmp_path.rglob("[._]*")]
    assert left == [".node=garage.lock"]


def test_a_table_without_records_has_no_directory(tmp_path: Path) -> None:
    Journal(tmp_path, "garage").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".node=garage.lock", "nodes"]


@pytest.mark.parametrize("node", ["hall/2: left", "50%", "a=b", "Prüfstand", "node 7", "..", "[x]"])
def test_any_node_name_can_be_escaped_in_a_path(tmp_path: Path, node: str) -> None:
    Journal(tmp_path, node).close()
    assert {entry.node for entry in entries(tmp_path)} == {node}
    [directory] = (tmp_path / "nodes").iterdir()
    assert not set("/:%#?*\"'[]{}^\\") & set(directory.name.removeprefix("node=").replace("%", ""))
    assert check(tmp_path) == []


@pytest.mark.parametrize("node", ["", "x" * 300, "\ud800", None])
def test_a_name_that_is_invalid_in_a_path_is_refused(tmp_path: Path, node: Any) -> None:
    with pytest.raises(LocalError, match="invalid node name"):
        Journal(tmp_path, node)


@pytest.mark.parametrize(
    "options",
    [
        {"flush_seconds": 0},
        {"flush_records": 0},
        {"buffer_records": 0},
        {"seal_bytes": -1},
        {"keep_age": 0},
        {"fsync": "always"},
        {"sample": 1.5},
        {"sample": True},
    ],
)
def test_an_impossible_option_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(LocalError):
        Journal(tmp_path, "garage", **options)


def test_two_writers_of_one_node_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage"):
        with pytest.raises(LocalError, match="is locked"):
            Journal(tmp_path, "garage")
        Journal(tmp_path, "another").close()
    Journal(tmp_path, "garage").close()


def test_the_lock_of_a_killed_writer_is_released(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from waystation.journal import Journal; "
        "Journal(sys.argv[1], 'garage'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    Journal(tmp_path, "garage").close()


def test_an_incarnation_is_later_than_all_earlier_ones(tmp_path: Path) -> None:
    clock = iter([5_000_000, *[9_000_000] * 5, 3_000_000, *[9_000_000] * 5])
    first = Journal(tmp_path, "garage", clock=lambda: next(clock, 9_000_000))
    first.close()
    again = Journal(tmp_path, "garage", clock=lambda: 1_000_000)  # the clock was set back
    again.close()
    assert (first.incarnation, again.incarnation) == (5_000, 5_001)
    with pytest.raises(LocalError, match="not later than 5001"):
        Journal(tmp_path, "garage", incarnation=5_001)
    Journal(tmp_path, "garage", incarnation=5_002).close()


@pytest.mark.parametrize("fsync", ["never", "seal", "flush"])
def test_every_fsync_policy_writes_the_same(tmp_path: Path, fsync: Any) -> None:
    with Journal(tmp_path, "garage", fsync=fsync) as journal:
        one_of_each_table(journal)
    assert len(entries(tmp_path)) == len(CONTRACT) + 1  # and its end


@pytest.fixture
def disk_is_free(monkeypatch: pytest.MonkeyPatch) -> Event:
    """A disk that accepts nothing until this is set."""
    free = Event()
    free.set()
    write = os.write

    def wait_and_write(descriptor: int, data: memoryview) -> int:
        free.wait()
        return write(descriptor, data)

    monkeypatch.setattr("waystation.journal.tail.os.write", wait_and_write)
    return free


@pytest.mark.rule("OB-6")
def test_records_that_the_writer_cannot_keep_up_with_are_counted_and_reported(
    tmp_path: Path, disk_is_free: Event
) -> None:
    journal = Journal(tmp_path, "garage", flush_seconds=600, flush_records=10, buffer_records=100)
    disk_is_free.clear()
    for number in range(500):
        journal.note(message_record(number))
    assert journal.lost > 250  # at most a hundred wait, besides what the writer has taken
    disk_is_free.set()
    journal.close()
    kept = [int(row["message_id"], 16) for row in rows(tmp_path, "messages")]
    assert len(kept) == 500 - journal.lost
    assert kept == sorted(set(kept))
    assert sum(lost for lost, _ in losses(tmp_path)) == journal.lost
    assert {detail for _, detail in losses(tmp_path)} == {"the writer could not keep up"}
    assert check(tmp_path) == []


@pytest.mark.rule("OB-6", "OB-9")
def test_large_messages_do_not_accumulate_in_memory(tmp_path: Path, disk_is_free: Event) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        disk_is_free.clear()
        tracemalloc.start()
        try:
            for number in range(300):
                journal.note(large_record(number))
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            disk_is_free.set()
    assert kept < 10_000_000
    assert journal.lost == 0
    assert len(rows(tmp_path, "messages")) == 300


@pytest.mark.rule("OB-6")
def test_records_after_close_are_counted_as_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "garage")
    journal.close()
    journal.close()
    journal.note(message_record(1))
    assert (journal.lost, journal.waiting) == (1, 0)


def test_several_threads_can_note_records_without_loss(tmp_path: Path) -> None:
    numbers = count()
    with Journal(tmp_path, "garage", flush_seconds=0.01, flush_records=100) as journal:

        def work() -> None:
            for _ in range(5_000):
                journal.note(message_record(next(numbers)))

        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ids = [row["message_id"] for row in rows(tmp_path, "messages")]
    assert sorted(ids) == [f"{number:032x}" for number in range(20_000)]
    assert check(tmp_path) == []


def test_a_journal_has_a_readable_repr(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", incarnation=5) as journal:
        assert repr(journal) == f"<Journal of garage in {tmp_path}, incarnation 5>"


def test_an_error_in_the_writer_itself_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path, "garage", flush_seconds=0.01)

    def broken() -> bool:
        monkeypatch.undo()
        raise RuntimeError("a bug")

    with caplog.at_level(logging.ERROR, "waystation.journal"):
        monkeypatch.setattr(journal, "_report_losses", broken)
        until(lambda: caplog.records)
    journal.note(message_record(1))
    journal.close()
    assert len(rows(tmp_path, "messages")) == 1


def test_a_reason_is_written_as_in_the_rules(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage") as journal:
        for number, reason in enumerate(Reason):
            journal.note(message_record(number, Verdict.dropped(reason)))
    assert [row["reason"] for row in rows(tmp_path, "messages")] == [str(r) for r in Reason]


def large_record(number: int) -> MessageRecord:
    """A megabyte that was dropped."""
    message = Message(Route.parse("truck-8"), Route(), bytes(1_000_000), f"{number:032x}")
    return MessageRecord(Arrival(message, BEGIN + number), NO_ROUTE, BEGIN + number)


@pytest.mark.rule("OB-6", "OB-9")
def test_large_messages_that_are_dropped_together_are_all_recorded(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02) as journal:
        journal.note(large_record(0))
        until(lambda: rows(tmp_path, "messages"))
        for number in range(1, 301):
            journal.note(large_record(number))
    assert journal.lost == 0
    found = rows(tmp_path, "messages")
    assert [row["seq"] for row in found] == list(range(1, 302))
    assert {row["bytes"] for row in found} == {1_000_000}


def test_a_payload_that_is_none_does_not_stop_the_caller(tmp_path: Path) -> None:
    message: Any = Message(Route.parse("a"), Route(), None, "4bf9" * 8)  # type: ignore[arg-type]
    with Journal(tmp_path, "garage") as journal:
        journal.note(MessageRecord(Arrival(message, BEGIN), NO_ROUTE, BEGIN))
        journal.note(message_record(1))
    assert journal.lost == 1
    assert len(rows(tmp_path, "messages")) == 1
