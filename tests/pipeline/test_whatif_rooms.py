"""Other rooms and other grants: who would have got in, and who would not (SP-9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.small import BEGIN, INCARNATION, SECOND, put_rows, row
from waystation.core.grants import Grant, Grants
from waystation.core.who import Who
from waystation.errors import LocalError
from waystation.whatif.changes import Room, changes_of, parse_changes
from waystation.whatif.copies import UNKNOWN
from waystation.whatif.granting import Judge, who_of
from waystation.whatif.local import SmallJournal
from waystation.whatif.rooms import Served, served

Row = dict[str, Any]


def came(
    received: int,
    at: int | None = None,
    *,
    broadcast: bool = False,
    local: bool = True,
    expiry: int = 10_000,
) -> Served:
    """A message of 100 bytes; without an end it found no room."""
    end, reason = (received, FULL) if at is None else (at, None)
    return Served(0, received, end, reason, 100, expiry, broadcast, local)


def heard(received: int, at: int | None = None, expiry: int = 10_000) -> Served:
    """A broadcast, by seconds; without an end it found no room."""
    times = (received * SECOND, None if at is None else at * SECOND)
    return came(*times, broadcast=True, expiry=expiry * SECOND)


FULL = "QUEUE_FULL"
ANY_TRUCK = "truck-*"
ROOM = Room(messages=1)


@pytest.mark.rule("SP-9")
def test_who_found_no_room_waits_in_a_larger_one() -> None:
    line = [came(0, 10), came(1, 20), came(2), came(3)]
    assert [*served(line, ROOM)] == [None, None, FULL, FULL]
    assert [*served(line, Room(messages=2))] == [None, None, None, FULL]
    assert [*served(line, Room(messages=3))] == [None, None, None, None]


@pytest.mark.rule("SP-9")
def test_a_smaller_room_has_no_place_for_all() -> None:
    line = [came(0, 10), came(1, 20), came(2, 30), came(25, 40)]
    assert [*served(line, ROOM)] == [None, None, FULL, None]


@pytest.mark.rule("SP-9")
def test_what_a_peer_sent_to_a_name_waits_elsewhere() -> None:
    line = [came(0, 10), came(1, 20), came(2, 30, local=False)]
    assert [*served(line, ROOM)] == [None, None, None]


@pytest.mark.rule("SP-9")
def test_nobody_overtakes_what_waits_elsewhere() -> None:
    # The seventh waits with its sender until half of the room is free, which is at 30. There would
    # be room at 21, but who comes then would overtake it.
    line = [came(number, 10 * (number + 1)) for number in range(6)]
    line += [came(6, 70, local=False), came(21), came(31, 80)]
    assert [*served(line, Room(messages=5))] == [*[None] * 7, FULL, None]
    assert [*served(line, Room(messages=6))] == [None] * 9


@pytest.mark.rule("SP-9")
def test_of_what_waits_when_the_record_ends_nothing_is_known() -> None:
    line = [came(0, 10), came(1, 20), came(2), came(3), came(4)]
    ends = served(line, Room(messages=9), 30)
    assert [*ends] == [None, None, None, UNKNOWN, UNKNOWN]


@pytest.mark.rule("SP-9")
def test_a_subscriber_is_busy_after_it_took_a_message() -> None:
    line = [heard(0, 0), heard(1, 10), heard(2), heard(15, 20)]
    assert [*served(line, ROOM)] == [None, None, FULL, None]
    # With room for two the third is taken at 20, and the fourth waits behind it.
    assert [*served(line, Room(messages=2))] == [None, None, None, None]


@pytest.mark.rule("SP-9")
def test_a_subscriber_that_took_a_message_as_it_came_had_done_with_the_one_before() -> None:
    # It took 10 for the first, as the second tells, but no more than 4 for the fourth.
    line = [heard(0, 0), heard(1, 10), heard(2), heard(21, 21), heard(22, expiry=36)]
    line.append(heard(25, 25))
    # With more room the third is taken at 20, the fourth at 30, and the fifth at 34.
    assert [*served(line, Room(messages=3))] == [None] * 6


@pytest.mark.rule("SP-9")
def test_who_waits_too_long_expires() -> None:
    line = [came(0, 10), came(1, 20), came(2, expiry=15), came(3, expiry=25)]
    assert [*served(line, Room(messages=9))] == [None, None, "EXPIRED", None]


@pytest.mark.rule("SP-9")
def test_room_is_counted_in_bytes_too() -> None:
    line = [came(0, 10), came(1, 20), came(2)]
    assert [*served(line, Room(bytes=199))] == [None, None, FULL]
    assert [*served(line, Room(bytes=200))] == [None, None, None]


@pytest.mark.rule("SP-9")
def test_of_a_receiver_that_served_nobody_nothing_is_known() -> None:
    assert [*served([came(0), came(1)], ROOM)] == [UNKNOWN, UNKNOWN]


class Busy:
    """A node with a worker that takes a second for each message, and room for one."""

    def __init__(self, journal: Path) -> None:
        rows: dict[str, list[Row]] = {"nodes": [row("nodes", 0, 0)]}
        rows["nodes"][0]["detail"] = "waystation 0.2.0 sample=1.0"
        own = {"participant": "worker", "address": "0#worker", "cause": "worker"}
        rows["routes"] = [{**row("routes", 1, 0), **own}]
        rows["messages"] = []
        ends = [("DELIVERED", None, 2), ("DELIVERED", None, 3), ("DROPPED", "QUEUE_FULL", 1.2)]
        for number, (outcome, reason, at) in enumerate(ends):
            visit = {
                "message_id": f"{number:032x}",
                "onward": ["0#worker"],
                "return": [],
                "recipient": "worker",
                "received_at": BEGIN + SECOND + number * SECOND // 10,
                "origin": f"busy/{INCARNATION}",
                "outcome": outcome,
                "reason": reason,
            }
            rows["messages"].append({**row("messages", 2 + number, round(at * SECOND)), **visit})
        rows["members"] = [row("members", 9, 60 * SECOND)]
        for table, some in rows.items():
            put_rows(journal, table, some, "busy", version=2)


@pytest.mark.rule("SP-9")
@pytest.mark.parametrize(("messages", "verdict"), [(1, "same"), (2, "saved")])
def test_a_larger_room_saves_who_found_none(tmp_path: Path, messages: int, verdict: str) -> None:
    Busy(tmp_path)
    change = parse_changes(f"[[room]]\nparticipant = 'work*'\nmessages = {messages}")
    found = SmallJournal(tmp_path).rows(change)
    assert [one["verdict"] for one in found] == ["same", "same", verdict]
    assert str(change) == f"work* had had room for {messages} messages"


GRANTS = Grants([Grant(identity=("me",), send=("brakes",)), Grant(token=("truck-*",), send=("*",))])


@pytest.mark.rule("SP-9")
def test_what_nobody_granted_is_refused() -> None:
    judge = Judge(GRANTS)
    assert not judge.refuses("me", ("0#brakes",))
    assert judge.refuses("me", ("0#brakes", "0#doors"))
    assert judge.refuses(None, ("0#brakes",))
    assert not judge.refuses("token:truck-*", ("0#doors",))
    assert not judge.refuses(None, ("0#waystation.custody",))  # its inside is judged
    assert not judge.refuses(None, ())


def test_who_somebody_is_follows_from_the_journal() -> None:
    assert who_of("certificate:truck-7") == Who(certificate=("truck-7",))
    assert who_of("token:truck-*") == Who(token=ANY_TRUCK)
    assert who_of("Iabc") == Who(identity="Iabc")
    assert not who_of(None)


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"room": [{"participant": "x"}]}, "needs messages or bytes"),
        ({"room": [{"messages": 0}]}, "must be 1 or more"),
        ({"grant": [{"send": ["x"]}]}, "a grant for nobody"),
        ({"grant": [{"anyone": True}]}, "a grant of nothing"),
        ({"grant": [{"anyone": True, "sends": "x"}]}, "unknown field `sends`"),
    ],
)
def test_a_room_or_grant_with_a_mistake_says_what_it_is(told: Row, problem: str) -> None:
    with pytest.raises(LocalError, match=problem):
        changes_of(told)
