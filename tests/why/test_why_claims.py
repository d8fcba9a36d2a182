"""Why a message to a claimed name went where it did: the claims to it are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from waystation.core.address import Address, Route
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.core.record import ChangeRecord, ClaimKind, ClaimRecord, MessageRecord, Record
from waystation.core.routing import RouteChange, RouteKind, RoutingEntry
from waystation.journal import Journal
from waystation.why import explain, explanation_lines
from waystation.why.claims import LONGEST_WAIT, ClaimsThen

BEGIN = 1_700_000_000_000_000
ID = f"{7:032x}"
NAME = "truck-7"
ORIGINS = {"a": "truck-7a", "b": "truck-7b", "c": "truck-7c"}


def claim(at: int, owner: str, kind: ClaimKind = ClaimKind.CLAIM, detail: str = "") -> ClaimRecord:
    origin = ORIGINS[owner]
    return ClaimRecord(
        kind, NAME, f"tcp-{owner}", owner * 32, origin, 1, (origin,), detail, BEGIN + at
    )


def route(at: int, owner: str, kind: RouteKind = RouteKind.PUT) -> ChangeRecord:
    entry = RoutingEntry(NAME, Address(0, f"tcp-{owner}".encode()), local=True)
    return ChangeRecord(RouteChange(kind, entry), BEGIN + at)


def message(at: int, verdict: Verdict) -> MessageRecord:
    sent = Message(Route.parse(NAME), Route.parse("app"), b"hello", ID)
    return MessageRecord(Arrival(sent, BEGIN + at), verdict, BEGIN + at + 1)


NO_ROUTE = Verdict.dropped(Reason.NO_ROUTE, NAME)
TO_A = Verdict(Outcome.FORWARDED, None, NAME, Address(0, b"tcp-a"))

Told = Callable[..., list[str]]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """The lines about the message, of a hub with these records."""

    def write(*records: Record) -> list[str]:
        with Journal(tmp_path, "hub-a", clock=lambda: BEGIN) as journal:
            for record in records:
                journal.note(record)
        return list(explanation_lines(explain(tmp_path, ID)))

    return write


@pytest.mark.rule("CL-4")
def test_two_owners_of_a_name_are_named_with_who_kept_it(told: Told) -> None:
    lines = told(
        claim(1, "a"), route(1, "a"), claim(2, "b"), claim(2, "b", ClaimKind.CONTESTED),
        message(9, TO_A),
    )  # fmt: skip
    assert lines[-1] == (
        "note: truck-7 was claimed by 2 owners; hub-a kept it for node truck-7a (unproven), "
        "and truck-7b (unproven) stood by"
    )


def test_a_claim_that_came_later_or_was_gone_is_not_told(told: Told) -> None:
    lines = told(
        claim(1, "a"), route(1, "a"), claim(2, "b"), claim(3, "b", ClaimKind.WITHDRAW),
        message(9, TO_A), claim(12, "c"),
    )  # fmt: skip
    assert not [line for line in lines if "claimed" in line]


@pytest.mark.rule("CL-6")
@pytest.mark.parametrize(
    ("detail", "end"),
    [("", ""), ("its session was silent in a contest", ": its session was silent in a contest")],
)
def test_a_message_after_the_last_claim_ended_says_so(told: Told, detail: str, end: str) -> None:
    lines = told(
        claim(1, "a"), route(1, "a"),
        claim(1_000, "a", ClaimKind.WITHDRAW, detail), route(1_000, "a", RouteKind.REMOVE),
        message(164_000, NO_ROUTE), claim(170_000, "b"), route(364_000, "b"),
    )  # fmt: skip
    told_why = f"truck-7 had left 163 ms before{end}; it was back 200 ms later"
    assert lines[1] == f"dropped at hub-a, NO_ROUTE: {told_why}"


def relayed(at: int, kind: ClaimKind, detail: str = "") -> ClaimRecord:
    """The claim of a truck behind another hub."""
    return structs.replace(claim(at, "a", kind, detail), path=("truck-7a", "hub-b"))


@pytest.mark.rule("CL-6")
def test_how_a_relayed_claim_ended_is_told_by_the_hub_that_had_its_session(
    told: Told, tmp_path: Path
) -> None:
    silent = "its session ended (silent for 3 s)"
    with Journal(tmp_path, "hub-b", clock=lambda: BEGIN) as journal:
        journal.note(claim(1, "a"))
        journal.note(claim(500, "a", ClaimKind.WITHDRAW, "of another time"))
        journal.note(claim(501, "a"))
        journal.note(claim(999, "a", ClaimKind.WITHDRAW, silent))
    lines = told(
        relayed(1, ClaimKind.CLAIM), route(1, "a"),
        relayed(1_000, ClaimKind.WITHDRAW, "it was taken back"),
        route(1_000, "a", RouteKind.REMOVE), message(4_000, NO_ROUTE),
    )  # fmt: skip
    assert lines[1].endswith(f"had left 3 ms before: at hub-b, {silent}")


@pytest.mark.rule("CL-3")
@pytest.mark.parametrize(
    ("at", "is_released", "is_told"),
    [(4_000, False, True), (4_000, True, False), (LONGEST_WAIT + 2_000, False, False)],
)
def test_a_name_that_a_hub_held_back_is_told(
    told: Told, tmp_path: Path, at: int, is_released: bool, is_told: bool
) -> None:
    with Journal(tmp_path, "hub-b", clock=lambda: BEGIN) as journal:
        journal.note(claim(1_001, "a", ClaimKind.HELD))
        if is_released:
            journal.note(claim(1_002, "a", ClaimKind.RELEASED))
    lines = told(
        relayed(1, ClaimKind.CLAIM), route(1, "a"), relayed(1_000, ClaimKind.WITHDRAW),
        route(1_000, "a", RouteKind.REMOVE), message(at, NO_ROUTE),
    )  # fmt: skip
    later = ": hub-b tells of its next claim later, since the name changed too often"
    assert lines[1].endswith(" before" + later * is_told)


def test_a_refused_claim_is_the_cause_if_there_was_no_other(told: Told) -> None:
    refused = claim(1_000, "a", ClaimKind.REFUSED, "its path has 17 nodes")
    lines = told(refused, message(4_000, NO_ROUTE))
    assert lines[1].endswith("a claim to truck-7 was refused 3 ms before: its path has 17 nodes")


def test_a_route_that_came_after_the_last_claim_is_the_better_explanation(told: Told) -> None:
    lines = told(
        claim(1, "a"), route(1, "a"), claim(2, "a", ClaimKind.WITHDRAW),
        route(2, "a", RouteKind.REMOVE), route(1_000, "c"), route(2_000, "c", RouteKind.REMOVE),
        message(4_000, NO_ROUTE),
    )  # fmt: skip
    assert lines[1].endswith("truck-7 had left 2 ms before")


def rows(*claims: tuple[str, str, str, str]) -> Iterable[dict[str, Any]]:
    names = ("kind", "session", "owner", "origin")
    return [{"number": 1, "path": [], **dict(zip(names, values, strict=True))} for values in claims]


def test_owners_on_nodes_of_one_name_are_told_apart_by_their_sessions() -> None:
    claims = ClaimsThen(
        "hub", NAME, rows(("claim", "s1", "x", "truck"), ("claim", "s2", "y", "truck"))
    )
    assert claims.contest("0#s2") == (
        "truck-7 was claimed by 2 owners; hub kept it for node truck over s2, and truck over s1 "
        "stood by"
    )


def test_two_sessions_of_one_owner_are_no_contest() -> None:
    claims = ClaimsThen(
        "hub", NAME, rows(("claim", "s1", "x", "truck"), ("claim", "s2", "x", "truck"))
    )
    assert claims.contest("0#s1") is None


@pytest.mark.rule("CL-2")
def test_a_claim_that_its_session_replaced_is_gone_and_the_new_one_is_there(told: Told) -> None:
    old, new = claim(1, "a"), structs.replace(claim(5, "a"), path=("truck-7a", "hub-b"))
    ended = structs.replace(old, kind=ClaimKind.WITHDRAW, at=BEGIN + 5)
    lines = told(
        old, route(1, "a"), claim(2, "b", ClaimKind.CONTESTED), new, ended, message(9, TO_A)
    )
    assert (
        "hub-a kept it for node truck-7a (unproven), and truck-7b (unproven) stood by" in lines[-1]
    )


@pytest.mark.rule("ID-2")
def test_owners_who_have_proven_who_they_are_and_others_are_told_apart(told: Told) -> None:
    proven = structs.replace(claim(2, "b", ClaimKind.CONTESTED), proven=True)
    lines = told(claim(1, "a"), route(1, "a"), proven, message(9, TO_A))
    assert "kept it for node truck-7a (unproven), and truck-7b (proven) stood by" in lines[-1]


def test_three_owners_are_listed() -> None:
    made = [("claim", f"s{n}", f"o{n}", f"truck-{n}") for n in range(3)]
    told = ClaimsThen("hub", NAME, rows(*made)).contest("0#s0")
    assert told is not None
    assert told.endswith("3 owners; hub kept it for node truck-0, and truck-1 and truck-2 stood by")


def test_without_a_routing_entry_of_a_claim_there_is_nothing_to_tell() -> None:
    claims = ClaimsThen("hub", NAME, rows(("claim", "s1", "x", "a"), ("claim", "s2", "y", "b")))
    assert claims.contest(None) is None
    assert claims.contest("0#other") is None
    assert claims.ending() is None
