"""Times in the journal never go back, not even over a restart; offsets and sessions are rows."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import TypeVar

import pytest

from tests.journal.traffic import BEGIN, message_record
from waystation.core.clock import SteadyClock, use_clock
from waystation.core.outcome import Reason
from waystation.core.record import (
    ClockRecord,
    PeerClockRecord,
    SessionKind,
    SessionRecord,
    SessionRole,
)
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.read import Entry, JournalReader, last_instant
from waystation.testing.waiting import wait_until

T = TypeVar("T")

HOUR = 3600 * 10**6


def entries(directory: Path) -> list[Entry]:
    def complain(path: Path, problem: str) -> None:
        raise AssertionError((path, problem))

    return list(JournalReader(directory, complain).entries())


def rows(directory: Path, table: str) -> list[dict[str, object]]:
    return [entry.fields for entry in entries(directory) if entry.table == table]


def at_a_time(microseconds: int, act: Callable[[], T]) -> T:
    """Do something in a process that is started at this time by the wall clock."""

    def process() -> T:
        use_clock(SteadyClock(lambda: microseconds * 1000, lambda: 0))
        return act()

    return copy_context().run(process)


@pytest.mark.rule("TM-1")
def test_a_restart_after_the_clock_was_set_back_begins_after_the_last_row(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", incarnation=BEGIN // 1000, clock=lambda: BEGIN) as before:
        before.note(message_record(1))
    last = max(entry.at for entry in entries(tmp_path))
    at_a_time(BEGIN - HOUR, lambda: Journal(tmp_path, "garage").close())
    lives: dict[int, list[int]] = {}
    for entry in entries(tmp_path):
        lives.setdefault(entry.position[0], []).append(entry.at)
    first, second = (lives[number] for number in sorted(lives))
    assert max(first) == last
    assert last < min(second) < last + HOUR


def test_the_last_row_of_a_tail_counts_as_well(tmp_path: Path) -> None:
    with Journal(tmp_path, "garage", flush_seconds=0.02, clock=lambda: BEGIN) as journal:
        for number in range(5):
            journal.note(message_record(number))
        wait_until(lambda: len(rows(tmp_path, "messages")) == 5)
        last = max(entry.at for entry in entries(tmp_path))
        assert not list(tmp_path.rglob("*.parquet"))
        assert last_instant(tmp_path, "garage") == last


def test_a_new_journal_begins_when_the_clock_says(tmp_path: Path) -> None:
    at_a_time(BEGIN, lambda: Journal(tmp_path, "garage").close())
    assert {entry.at for entry in entries(tmp_path)} == {BEGIN}


def test_without_rows_there_is_no_last_instant(tmp_path: Path) -> None:
    assert last_instant(tmp_path, "garage") is None
    with Journal(tmp_path, "garage", incarnation=7, clock=lambda: BEGIN):
        pass
    assert last_instant(tmp_path, "garage") == BEGIN
    assert last_instant(tmp_path, "other") is None


@pytest.mark.parametrize("content", [b"", b"no parquet"])
def test_what_cannot_be_read_tells_no_instant_and_what_is_before_it_does(
    tmp_path: Path, content: bytes
) -> None:
    with Journal(tmp_path, "garage", incarnation=7, clock=lambda: BEGIN):
        pass
    directory = tmp_path / "nodes" / "node=garage"
    (directory / "9-0.parquet").write_bytes(content)
    (directory / ".8-0.arrows").write_bytes(content)
    assert last_instant(tmp_path, "garage") == BEGIN


@pytest.mark.rule("TM-3")
def test_sessions_and_clocks_become_rows(tmp_path: Path) -> None:
    opened = SessionRecord(
        SessionKind.OPENED, "hub", "1#h:1", "h", None, "", BEGIN, SessionRole.PARENT, "tcp"
    )
    down, refused = Reason.TRANSPORT_DOWN, Reason.REFUSED
    with Journal(tmp_path, "garage", clock=lambda: BEGIN) as journal:
        journal.note(opened)
        journal.note(PeerClockRecord(opened, -1_500, 300, BEGIN + 1))
        journal.note(PeerClockRecord(opened, 0, 0, BEGIN + 2))
        journal.note(PeerClockRecord(opened, 2_000_000, None, BEGIN + 3))
        journal.note(ClockRecord(HOUR, "the wall clock is off", BEGIN + 4))
        journal.note(
            SessionRecord(SessionKind.CLOSED, "hub", "1#h:1", "h", down, "lost", BEGIN + 5)
        )
        journal.note(SessionRecord(SessionKind.REFUSED, "", "1#h:1", None, refused, "", BEGIN + 6))
    found = rows(tmp_path, "sessions")
    assert [row["kind"] for row in found] == ["open", "clock", "clock", "clock", "close", "refused"]
    assert [(row["offset_us"], row["rtt_us"]) for row in found] == [
        (None, None),
        (-1_500, 300),
        (0, 0),
        (2_000_000, None),
        (None, None),
        (None, None),
    ]
    assert {row["role"] for row in found[:4]} == {"parent"}
    assert [row["reason"] for row in found] == [None, None, None, None, down, refused]
    assert [row["at"] for row in found] == [BEGIN + n for n in (0, 1, 2, 3, 5, 6)]
    _, clock, _ = rows(tmp_path, "nodes")
    assert (clock["kind"], clock["offset_us"], clock["lost"]) == ("clock", HOUR, 0)
    assert check(tmp_path) == []
    assert journal.lost == 0
