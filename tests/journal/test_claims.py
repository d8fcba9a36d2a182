"""Claims to names are rows of a table of their own, whatever share of the messages is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journal.traffic import (
    BEGIN,
    change_record,
    claim_record,
    entries,
    losses,
    message_record,
    rows,
    until,
)
from waystation.cli.journal import Columns
from waystation.core.outcome import Reason
from waystation.core.record import ClaimKind
from waystation.journal import Journal
from waystation.journal.check import check
from waystation.journal.housekeeping import compact


@pytest.mark.rule("CL-7")
def test_each_kind_of_claim_is_a_row(tmp_path: Path) -> None:
    with Journal(tmp_path, "hub-a", incarnation=5, clock=lambda: BEGIN) as journal:
        for number, kind in enumerate(ClaimKind, 1):
            journal.note(claim_record(number, kind))
    found = rows(tmp_path, "claims")
    assert [row["kind"] for row in found] == [
        "claim", "withdraw", "refused", "contested", "held", "released",
    ]  # fmt: skip
    assert found[0] == {
        "incarnation": 5,
        "seq": 1,
        "at": BEGIN + 1,
        "kind": "claim",
        "participant": "truck-7",
        "session": "tcp-1",
        "owner": "0f" * 16,
        "proven": False,
        "origin": "truck-7a",
        "number": 3,
        "path": ["truck-7a", "hub-b"],
        "reason": None,
        "detail": None,
    }
    assert check(tmp_path) == []


@pytest.mark.rule("CL-7")
def test_a_refused_claim_tells_why(tmp_path: Path) -> None:
    long = ClaimKind.REFUSED
    with Journal(tmp_path, "hub-a") as journal:
        journal.note(
            claim_record(1, long, reason=Reason.REFUSED, detail="its path has 17 nodes", path=())
        )
        journal.note(claim_record(2, proven=True, owner="I" + "0" * 64))
    refused, proven = rows(tmp_path, "claims")
    assert (refused["reason"], refused["detail"]) == ("REFUSED", "its path has 17 nodes")
    assert (refused["path"], refused["proven"]) == ([], False)
    assert (proven["proven"], proven["owner"]) == (True, "I" + "0" * 64)


@pytest.mark.rule("CL-7")
@pytest.mark.rule("OB-4")
def test_claims_are_kept_when_no_messages_are(tmp_path: Path) -> None:
    with Journal(tmp_path, "hub-a", sample=0.0) as journal:
        for number in range(0, 40, 2):
            journal.note(claim_record(number))
            journal.note(message_record(number + 1))
    assert len(rows(tmp_path, "claims")) == 20
    assert rows(tmp_path, "messages") == []
    assert check(tmp_path) == []


def test_claims_are_in_the_order_of_the_events_around_them(tmp_path: Path) -> None:
    with Journal(tmp_path, "hub-a") as journal:
        journal.note(claim_record(1))
        journal.note(change_record(2, "truck-7"))
        journal.note(message_record(3))
        journal.note(claim_record(4, ClaimKind.WITHDRAW))
    told = [entry.table for entry in entries(tmp_path)]
    assert told == ["nodes", "claims", "routes", "messages", "claims", "nodes"]


def test_claims_are_found_by_their_participant(tmp_path: Path) -> None:
    with Journal(tmp_path, "hub-a") as journal:
        journal.note(claim_record(1))
        journal.note(claim_record(2, participant="truck-8"))
        journal.note(change_record(3, "truck-8"))
    found = entries(tmp_path, participant="truck-8")
    assert [entry.table for entry in found] == ["claims", "routes"]


def test_cat_prints_a_claim_as_one_readable_line(tmp_path: Path) -> None:
    with Journal(tmp_path, "hub-a", incarnation=5, clock=lambda: BEGIN) as journal:
        journal.note(claim_record(1, ClaimKind.CONTESTED, detail="held by truck-7b"))
    [entry] = entries(tmp_path, tables=frozenset({"claims"}))
    assert Columns().line(entry) == (
        "2023-11-14T22:13:20.000001Z hub-a 5-1 claims   contested participant=truck-7 "
        f"session=tcp-1 owner={'0f' * 16} origin=truck-7a number=3 path=truck-7a,hub-b "
        "detail=held by truck-7b"
    )


def test_a_tail_of_claims_is_read_sealed_by_the_next_incarnation_and_compacted(
    tmp_path: Path,
) -> None:
    for incarnation in (5, 6):
        with Journal(tmp_path, "hub-a", incarnation=incarnation, seal_seconds=0.01) as journal:
            for number in range(3):
                journal.note(claim_record(number))
                until(lambda: journal.waiting == 0)
    everything = rows(tmp_path, "claims")
    assert len(everything) == 6
    merged = compact(tmp_path, lambda path, problem: pytest.fail(f"{path}: {problem}"))
    assert merged.after < merged.before
    assert rows(tmp_path, "claims") == everything
    assert (check(tmp_path), losses(tmp_path)) == ([], [])
